"""What to measure in which order: ends first, then between, then where the slope changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

_STRAIGHT = 0.02  # relative to the middle one, how far a point may lie off its neighbours' line and still be straight


@dataclass(frozen=True, order=True)
class Point:
    """One forward: requests, tokens of each, tokens of each in the KV cache."""

    batch_size: int
    num_draft_tokens: int
    context_len: int

    @property
    def tokens(self) -> int:
        """T = B·N."""
        return self.batch_size * self.num_draft_tokens


def teaching_order(values: Iterable[int]) -> list[int]:
    """Values so that any beginning spans them: the least, the greatest, then the middle of the widest gap."""
    left = sorted(set(values))
    taken: list[int] = []
    for value in (left[0], left[-1]) if left else ():
        if value not in taken:
            taken.append(value)
    while len(taken) < len(left):
        taken.append(_farthest([value for value in left if value not in taken], taken))
    return taken


def _farthest(candidates: list[int], taken: list[int]) -> int:
    """The candidate in the relatively widest gap, as near its middle as there is one."""
    return max(candidates, key=lambda value: min(max(value, t, 1) / max(min(value, t), 1) for t in taken))


def points(batches: Iterable[int], widths: Iterable[int], contexts: Iterable[int], most_tokens: int) -> list[Point]:
    """The grid in the order of measuring: plain decode first, corners before what lies between them."""
    orders = [teaching_order(values) for values in (batches, widths, contexts)]
    ranks = [{value: rank for rank, value in enumerate(order)} for order in orders]
    found = [Point(*each) for each in product(*orders)]

    def order(point: Point) -> tuple[int, ...]:
        rank = (ranks[0][point.batch_size], ranks[1][point.num_draft_tokens], ranks[2][point.context_len])
        return (point.num_draft_tokens > 1, max(rank), sum(rank), *rank)

    return sorted((point for point in found if point.tokens <= most_tokens), key=order)


def next_width(measured: Mapping[int, float]) -> int | None:
    """The width to measure next among those between measured ones: where the slope changes most; None where nothing bends.

    A bend at a width is its relative distance from the line through its neighbours; the wider gap beside the sharpest
    bend is halved.
    """
    widths = sorted(measured)
    bends = sorted(_bends(measured, widths), reverse=True)
    for bend, left, middle, right in bends:
        if bend < _STRAIGHT:
            return None
        low, high = max(((left, middle), (middle, right)), key=lambda gap: gap[1] / gap[0])
        between = (low + high) // 2
        if low < between < high:
            return between
    return None


def _bends(measured: Mapping[int, float], widths: list[int]) -> Iterator[tuple[float, int, int, int]]:
    for left, middle, right in zip(widths, widths[1:], widths[2:], strict=False):
        share = (middle - left) / (right - left)
        line = measured[left] + (measured[right] - measured[left]) * share
        yield abs(measured[middle] / line - 1), left, middle, right
