"""Writes docs/accuracy.md: how far predictions lie from public measurements that no fit saw.

python -m benchmarks.accuracy
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import accuracy_acceptance, accuracy_cost

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"

HEAD = """\
# Accuracy

Written by `python -m benchmarks.accuracy`; a test compares this page with what that command gives. Errors are
|predicted/measured − 1|, each row predicted by a fit that did not see it (but for the line that says in sample).

## Cycle time

Own measurements: vLLM 0.24.0 with EAGLE-3 on one H200, CUDA graphs, dummy weights, synthetic acceptance; an 8B dense
model at 0, 1, 3 and 7 drafts and batch 1 to 256, and a 30B mixture of experts (8 of 128) in plain decode
(`tests/validation/data/h200_vllm_cycles.csv`, medians of 2 or 3 repeats). Each part is
left out in turn, the terms chosen and fitted on the rest. Rows that the rest does not determine are not counted: a depth
left out leaves out no plain decode.

{cost}

The last batch sizes and widths lie beyond what is left, and are flagged so: kernels turn from flat to steep between 128
and 256 tokens, and a fit that has not seen it cannot know. Of the mixture of experts four batch sizes are left at a time,
one too few for both terms that all five ask for.

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
    return HEAD.format(
        rows=rows, groups=len(groups), acceptance=accuracy_acceptance.table(), cost=accuracy_cost.table()
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
