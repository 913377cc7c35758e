"""Two readings of a server's counters, and the accept length between them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

from specsim.errors import NotIdentifiedError, ServerError
from specsim.live.facts import Counters

LIFETIME = "the server's own average over its life, not over these two readings"
_LEAST_CYCLES = 20
"""Fewer tell no error: cycles that all accept alike, as a lookup's first do, would seem certain."""
_COUNTED = ("cycles", "accepted", "drafted", "output_tokens", "prompt_tokens")


class CountedLength(NamedTuple):
    """An accept length, bonus included; its standard error where counts tell it; how it was counted."""

    accept_length: float
    error: float | None
    how: str


def difference(before: Counters, after: Counters) -> Counters:
    """What was counted from one reading to the next; `time_s` is the time between them, the rest as in `after`.

    A counter that only one of them has is in neither. Raises ServerError where the server restarted in between.
    """
    if before.life and after.life and before.life != after.life:
        raise ServerError(f"the server restarted between two readings of its counters ({_times(before, after)})")
    counted: dict[str, Any] = {name: _between(name, before, after) for name in _COUNTED}
    positions = _positions(before, after)
    return replace(after, time_s=after.time_s - before.time_s, accepted_at=positions, **counted)


def accept_length_between(before: Counters, after: Counters) -> CountedLength:
    """1 + accepted/cycles between two readings (eq. 18), by counters; without any, the server's lifetime average.

    The standard error takes cycles as independent, and needs counts by position. Raises NotIdentifiedError where no
    cycle was counted, ServerError where the server restarted or counts otherwise than before.
    """
    counted = difference(before, after)
    if counted.cycles is None or counted.accepted is None:
        if after.lifetime_accept_length is not None:
            return CountedLength(after.lifetime_accept_length, None, LIFETIME)
        raise NotIdentifiedError("the server counts neither cycles nor accepted drafts: no accept length by counters")
    if before.how != after.how:
        raise ServerError(
            f"the server counts otherwise than before ({before.how or 'nothing'}, then {after.how or 'nothing'}): take both"
            " readings again"
        )
    if counted.cycles <= 0:
        ended = ", and it counts a request's when the request ends" if after.at_request_end else ""
        raise NotIdentifiedError(f"no cycle was counted between the two readings ({_times(before, after)}{ended})")
    error = _standard_error(counted.cycles, counted.accepted, counted.accepted_at)
    return CountedLength(1 + counted.accepted / counted.cycles, error, after.how)


def _between(name: str, before: Counters, after: Counters) -> float | None:
    start, end = getattr(before, name), getattr(after, name)
    if start is None or end is None:
        return None
    if end < start:
        raise ServerError(
            f"the server's count of {name} fell from {start:g} to {end:g} ({_times(before, after)}): it restarted, or"
            " another server answers at this address"
        )
    return float(end - start)


def _positions(before: Counters, after: Counters) -> tuple[float, ...]:
    """Counts by position; before the first draft some servers list none."""
    if not after.accepted_at or len(before.accepted_at) > len(after.accepted_at):
        return ()
    start = before.accepted_at + (0.0,) * (len(after.accepted_at) - len(before.accepted_at))
    counts = tuple(end - begin for begin, end in zip(start, after.accepted_at, strict=True))
    if any(count < 0 for count in counts):
        raise ServerError(f"the server's counts by position fell ({_times(before, after)}): it restarted")
    return counts


def _standard_error(cycles: float, accepted: float, at_least: tuple[float, ...]) -> float | None:
    """Of a mean over cycles: E[a²] = Σ (2i − 1)·P(a ≥ i) from counts of cycles that accept at least i drafts."""
    if cycles < _LEAST_CYCLES or not at_least or abs(sum(at_least) - accepted) > 1e-6 * max(accepted, 1):
        return None
    if any(deeper > count for count, deeper in pairwise((cycles, *at_least))):
        return None
    squares = sum((2 * i - 1) * count for i, count in enumerate(at_least, 1)) / cycles
    return sqrt(max(squares - (accepted / cycles) ** 2, 0.0) / (cycles - 1))


def _times(before: Counters, after: Counters) -> str:
    return f"{after.time_s - before.time_s:.3g} s apart"
