"""Writes docs/accuracy.md: how far predictions lie from public measurements that no fit saw.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import accuracy_acceptance

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"

HEAD = """\
# Accuracy

Written by `python -m benchmarks.accuracy`; a test compares this page with what that command gives. Errors are
|predicted/measured − 1|, each row predicted by a fit that did not see it (but for the line that says in sample).

## Accept length

{rows} published accept lengths in {groups} groups, one drafter and kind of work each (figures and sources:
`tests/validation/data/accept_lengths.csv`). The default prior was set from the same groups, so where a fit rests on
it (one chain, trees from chains alone) the row is not independent of its group; the exponent of ranks rests on two
drafters of one model.

{acceptance}

Chains predicted from at most three steps come out low at eight: on those curves the conditional rate stops falling,
which two parameters cannot follow.
"""


def page() -> str:
    """The page's text, from data and code as they stand."""
    groups = accuracy_acceptance.public_groups()
    rows = sum(len(group) for group in groups.values())
    return HEAD.format(rows=rows, groups=len(groups), acceptance=accuracy_acceptance.table())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
