"""Held-out error of the acceptance law on public accept lengths, as a markdown table.

Run: python benchmarks/accuracy_acceptance.py
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specsim.fitting.acceptance import LengthObservation, fit_acceptance

DATA = Path(__file__).parents[1] / "tests" / "validation" / "data" / "accept_lengths.csv"

Group = list[LengthObservation]


@dataclass(frozen=True)
class Prediction:
    """One accept length that the fit did not see, beside what it was predicted as."""

    group: str
    observation: LengthObservation
    length: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """|predicted/measured − 1|."""
        return abs(self.length / self.observation.accept_length - 1)

    @property
    def inside(self) -> bool:
        """Whether the measured length lies in the predicted interval, to the digits it was published with."""
        return self.low - 0.005 <= self.observation.accept_length <= self.high + 0.005


def public_groups() -> dict[str, Group]:
    """The public rows by group, one drafter and kind of work each."""
    groups: dict[str, Group] = {}
    with DATA.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            config = (int(row[name]) for name in ("num_steps", "topk", "num_draft_tokens"))
            groups.setdefault(row["group"], []).append(LengthObservation(*config, float(row["accept_length"])))
    return groups


def predict(group: str, seen: Group, unseen: Group) -> list[Prediction]:
    """Fit one part of a group, predict the other."""
    fitted = fit_acceptance(seen)
    return [Prediction(group, o, *fitted.predict(o.num_steps, o.topk, o.num_draft_tokens)) for o in unseen]


def everything() -> list[Prediction]:
    """Every row, by a fit that saw it."""
    return [p for name, rows in public_groups().items() for p in predict(name, rows, rows)]


def deeper_chains() -> list[Prediction]:
    """Fit the chains of at most 3 steps of a sweep, predict its deeper ones."""
    return [p for name, seen, unseen in _chain_splits() for p in predict(name, seen, unseen)]


def chains_of_eight() -> list[Prediction]:
    """Of those, the chains of 8 steps."""
    return [p for p in deeper_chains() if p.observation.num_steps == 8]


def deeper_chains_from_one() -> list[Prediction]:
    """Fit the chain of 3 steps alone, predict the deeper ones: the decay is the default prior's."""
    return [p for name, seen, unseen in _chain_splits() for p in predict(name, seen[-1:], unseen)]


def other_trees() -> list[Prediction]:
    """Fit the chains of a tree sweep and one tree, predict its other trees; every tree in turn."""
    return [p for name, chains, one, rest in _tree_splits() if chains for p in predict(name, chains + one, rest)]


def other_trees_from_one() -> list[Prediction]:
    """Fit one tree alone, predict the other trees of its sweep; every tree in turn."""
    return [p for name, _, one, rest in _tree_splits() for p in predict(name, one, rest)]


def trees_from_chains() -> list[Prediction]:
    """Fit the chains of a tree sweep, predict its trees: the rank exponent is the default prior's."""
    return [
        p
        for name, rows in public_groups().items()
        if len({o.topk == 1 for o in rows}) == 2
        for p in predict(name, [o for o in rows if o.topk == 1], [o for o in rows if o.topk > 1])
    ]


TASKS = {
    "fitted rows (in sample)": everything,
    "chains of at most 3 steps → deeper": deeper_chains,
    "chains of at most 3 steps → 8 steps": chains_of_eight,
    "one chain of 3 steps → deeper": deeper_chains_from_one,
    "chains and one tree → the other trees": other_trees,
    "one tree → the other trees": other_trees_from_one,
    "chains → trees": trees_from_chains,
}


def table() -> str:
    """The markdown table: rows predicted, groups, median and largest error, share of rows in the interval."""
    lines = [
        "| fitted → predicted | rows | groups | median error | largest error | in the 90% interval |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, task in TASKS.items():
        found = task()
        errors, groups = [p.error for p in found], {p.group for p in found}
        lines.append(
            f"| {name} | {len(found)} | {len(groups)} | {np.median(errors):.1%} | {max(errors):.1%}"
            f" | {np.mean([p.inside for p in found]):.0%} |"
        )
    return "\n".join(lines)


def _chain_splits() -> Iterator[tuple[str, Group, Group]]:
    for name, rows in public_groups().items():
        seen, unseen = [o for o in rows if o.num_steps <= 3], [o for o in rows if o.num_steps > 3]
        if all(o.topk == 1 for o in rows) and seen and unseen:
            yield name, seen, unseen


def _tree_splits() -> Iterator[tuple[str, Group, Group, Group]]:
    for name, rows in public_groups().items():
        trees: dict[tuple[int, int, int], Group] = {}
        for o in rows:
            if o.topk > 1:
                trees.setdefault((o.num_steps, o.topk, o.num_draft_tokens), []).append(o)
        for chosen, one in trees.items():
            rest = [o for config, same in trees.items() if config != chosen for o in same]
            yield name, [o for o in rows if o.topk == 1], one, rest


if __name__ == "__main__":
    print(table())
