"""Held-out error of the cost model on measured cycles, beside what a user would use instead, as markdown tables.

Run: python -m benchmarks.accuracy_cost
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.groups import LEFT_OUT, OWN, PUBLIC, Group
from benchmarks.held_out import (
    Held,
    constant_ratio,
    countable,
    covered,
    held_out,
    inside_the_range,
    instead,
    proportional,
    summed_up,
)


@dataclass(frozen=True)
class Result:
    """A group with every time that was predicted while its part was left out, by what was left out."""

    group: Group
    held: dict[str, list[Held]]

    @property
    def finest(self) -> list[Held]:
        """Of the first split: with as little left out as the group allows."""
        return next(iter(self.held.values()))


def results(groups: Iterable[Group]) -> list[Result]:
    """Every group under every split."""
    return [Result(group, {name: held_out(group.runs, by) for name, by in group.parts.items()}) for group in groups]


def held_table(found: Iterable[Result]) -> str:
    """How much of what was left out is predicted, and how well; with the repeats' noise where the source states it."""
    lines = [
        "| group | left out | predicted | median | p95 | largest | in the 90% interval | repeats | inside the range | median | largest |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in found:
        for name, held in each.held.items():
            of = countable(each.group.runs, each.group.parts[name])
            cells = [
                each.group.title,
                name,
                f"{len(held)} of {of}",
                summed_up(h.error for h in held),
                covered(held),
                each.group.noise,
                inside_the_range(held),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def together(found: Iterable[Result]) -> str:
    """All groups' finest splits in two sentences: times counted alike, and groups counted alike."""
    found = list(found)
    held = [h for each in found for h in each.finest]
    near = [h for h in held if not h.extrapolated]
    groups = [float(np.median([h.error for h in each.finest])) for each in found]
    return (
        f"Of all {len(held)} times under each group's first split half are within {np.median([h.error for h in held]):.1%}"
        f" and {covered(held)} in their 90% interval; of the {len(near)} inside the measured range half are within"
        f" {np.median([h.error for h in near]):.1%} and {covered(near)} in it. Two curves of llama.cpp are many of those;"
        f" with each group counted once, the median of the groups' medians is {np.median(groups):.1%}, the worst"
        f" {max(groups):.1%}."
    )


def instead_table(found: Iterable[Result]) -> str:
    """What a user would use instead: the rows of which it speaks, its median error there, and ours held out."""
    lines = [
        "| group | proportional: rows | median | ours | constant ratio: rows | median | ours | roofline: rows | median | ours |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in found:
        roofline = each.group.roofline.guess if each.group.roofline else None
        guesses = (proportional(each.group.runs), constant_ratio(each.group.runs), roofline)
        cells = " | ".join(instead(each.group.runs, each.finest, guess) for guess in guesses)
        lines.append(f"| {each.group.title} | {cells} |")
    return "\n".join(lines)


def left_out() -> str:
    """The public rows that are not fitted, a line a reason."""
    return "\n".join(f"- {why}: {which}." for why, which in LEFT_OUT.items())


if __name__ == "__main__":
    everything = results((*OWN, *PUBLIC))
    print(held_table(everything), together(everything), instead_table(everything), sep="\n\n")
    for result in everything:
        for split, rows in result.held.items():
            worst = sorted(rows, key=lambda h: -h.error)[:3]
            shown = [f"{h.run} {h.predicted_ms / h.measured_ms - 1:+.1%}{' outside' * h.extrapolated}" for h in worst]
            print(result.group.title, split, shown)
