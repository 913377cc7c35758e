"""Counts of cycles by position behind rates that were printed with a few decimals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def position_counts(survival: Sequence[float], drafts: int, accepted: int, half_digit: float) -> tuple[int, ...] | None:
    """Cycles that accepted at least 1, 2 … drafts: whole numbers inside the rates' rounding that add up to `accepted`.

    Exact where drafts·half_digit < 1/2; else within that of the truth. None where no such numbers exist.
    """
    if not survival:
        return None if accepted else ()
    exact = [rate * drafts for rate in survival]
    counts = [round(value) for value in exact]
    slack = accepted - sum(counts)
    step = 1 if slack > 0 else -1
    everywhere, few = divmod(abs(slack), len(counts))
    nearest = sorted(range(len(counts)), key=lambda i: step * (counts[i] - exact[i]))
    for rank, index in enumerate(nearest):
        counts[index] += step * (everywhere + (rank < few))
    if any(abs(count - value) > 0.5 + half_digit * drafts for count, value in zip(counts, exact, strict=True)):
        return None
    counts.sort(reverse=True)
    inside = all(0 <= count <= drafts for count in counts)
    falling = all(before >= after for before, after in pairwise(survival))
    return tuple(counts) if inside and falling else None


def histogram_of(cycles: int, at_least: Sequence[int]) -> list[int]:
    """Cycles that accepted exactly 0, 1 … drafts."""
    return [before - after for before, after in pairwise((cycles, *at_least, 0))]
