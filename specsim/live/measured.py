"""What a load measured of a server, figure by figure, and as a row of a runs file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specsim.live.counters import CountedLength
from specsim.live.facts import Counters, ServerFacts
from specsim.live.window import Reading, Window
from specsim.quantities import SETUP_FIELDS, SpecConfig
from specsim.runs.readings import rounded

ALIKE = 0.03
"""How far tokens a chunk may be from the accept length by counters for a chunk to be a cycle."""
_PLAIN = 1.05
"""Tokens a chunk below which chunks are tokens, not cycles: an accept length of 1.05 is hardly speculation."""


@dataclass(frozen=True)
class Measured:
    """Figures by their names in a run [ms, tok/s, tokens], `how` each was had, and what could not be had and why.

    `derived` names figures that were computed from others instead of read from the arrival of chunks or counters.
    """

    figures: Mapping[str, Reading]
    how: tuple[str, ...]
    missing: tuple[str, ...]
    derived: tuple[str, ...] = ()


def measured(window: Window, spec: SpecConfig | None, counted: CountedLength | None, late_s: float = 0.0) -> Measured:
    """The figures of the steady part; without one there is nothing but the reason.

    A client that was late by more than its length [s] read at once what came over all that time: then nothing that it timed
    is a figure.
    An accept length comes from counters that know its error, else from tokens a chunk where a chunk can be a cycle,
    else from any counter. A cycle is the time from chunk to chunk where a chunk is a cycle, else time per token × L (eq. 6).
    """
    if not window.chunks:
        return Measured({}, (), (_why_empty(window),))
    if late_s > window.clear_s:
        return _untimed(window, spec, counted, late_s)
    rates = {"output_tok_s": window.output_tok_s}
    spread = (
        () if window.tokens_told else ("tokens of a request are spread evenly over its chunks: the server tells none",)
    )
    if spec is None:
        return Measured(
            {"decode_ms": window.token_ms, **rates}, ("decode time is the time per output token", *spread), ()
        )
    length, of_length = _accept_length(window, spec, counted)
    if length is None:
        return Measured(rates, spread, (of_length,))
    if _chunk_is_cycle(window, length):
        how = ("a chunk of the stream is a cycle: its time is that from chunk to chunk", of_length, *spread)
        return Measured({"cycle_ms": window.chunk_ms, "accept_length": length, **rates}, how, ())
    how = (
        "a chunk of the stream is not a cycle: its time is time per output token × accept length",
        of_length,
        *spread,
    )
    cycle = product(window.token_ms, length)
    return Measured({"cycle_ms": cycle, "accept_length": length, **rates}, how, (), ("cycle_ms",))


def _untimed(window: Window, spec: SpecConfig | None, counted: CountedLength | None, late_s: float) -> Measured:
    """What counters tell without a clock, and why there is no more."""
    why = (
        f"the client was {late_s:.2f} s late, longer than the steady part of {window.clear_s:.2f} s: what it timed is no"
        " time of the server's; run it where a core is free, or for longer (--seconds)"
    )
    if spec is None or counted is None or counted.error is None:
        return Measured({}, (), (why,))
    length, how = _accept_length(window, spec, counted)
    return Measured({"accept_length": length} if length is not None else {}, (how,), (why,))


def product(one: Reading, other: Reading) -> Reading:
    """The product of two independent readings."""
    value = one.value * other.value
    share = ((one.error / one.value) ** 2 + (other.error / other.value) ** 2) ** 0.5
    return Reading(value, value * share, min(one.dof, other.dof))


def quotient(one: Reading, other: Reading) -> Reading:
    """The quotient of two independent readings."""
    value = one.value / other.value
    share = ((one.error / one.value) ** 2 + (other.error / other.value) ** 2) ** 0.5
    return Reading(value, value * share, min(one.dof, other.dof))


def _why_empty(window: Window) -> str:
    if 0 < window.most_running < window.concurrency:
        return (
            f"never did {window.concurrency} requests decode at once, at most {window.most_running}: let the server run"
            f" more at once, ask for --concurrency {window.most_running}, or for longer answers (--output-len)"
        )
    return "it ended before all requests were decoding: give it more time (--seconds)"


def _accept_length(window: Window, spec: SpecConfig, counted: CountedLength | None) -> tuple[Reading | None, str]:
    """The accept length and how it was had; None and why there is none."""
    by_chunk = window.tokens_per_chunk
    can_be = _PLAIN < by_chunk.value <= spec.max_accept_length
    if counted is not None and counted.error is not None:
        alike = abs(by_chunk.value / counted.accept_length - 1) <= ALIKE
        wide = alike and by_chunk.error > counted.error  # prompts accept differently, which counts of cycles do not see
        error, dof = (by_chunk.error, by_chunk.dof) if wide else (counted.error, _MANY)
        return Reading(
            counted.accept_length, error, dof
        ), f"accept length by counters ({counted.how or 'accepted over cycles'})"
    if can_be:
        return by_chunk, "accept length from the tokens of each chunk"
    if counted is not None:
        return Reading(
            counted.accept_length, float("nan"), 0
        ), f"accept length, its error unknown, by counters ({counted.how})"
    return None, (
        f"the accept length, and with it the cycle: the server counts no cycles, and a chunk of {by_chunk.value:.2f} tokens"
        " is none"
    )


_MANY = 1000
"""Degrees of freedom of an error that comes from thousands of counted cycles."""


def _chunk_is_cycle(window: Window, length: Reading) -> bool:
    by_chunk = window.tokens_per_chunk.value
    return abs(by_chunk / length.value - 1) <= ALIKE


# -- as a run ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """How a run was made, beside what the server tells: its id, NCCL label, configuration, load and remarks."""

    id: str
    nccl: str
    spec: SpecConfig | None
    output_len: int
    prompts: int
    note: str


def run_row(
    facts: ServerFacts, made: Made, window: Window, found: Measured, counts: Mapping[str, Any]
) -> dict[str, Any]:
    """A row of the run form; an error is written as a range that, read as uniform, has it (half-width √3 errors)."""
    spec = made.spec
    shape = {name: int(getattr(spec, name)) for name in _SHAPE} if spec is not None else {}
    impossible = _impossible(found, spec)
    if impossible:
        found, counts = replace(found, figures={n: f for n, f in found.figures.items() if n != "accept_length"}), {}
    row = {
        "id": made.id,
        **{name: getattr(facts.setup, name) for name in SETUP_FIELDS},
        "nccl": made.nccl,
        "method": "none" if spec is None else spec.method,
        "drafter": None if spec is None else facts.drafter,
        **shape,
        "batch_size": window.concurrency,
        "context_len": None if window.context_len is None else round(window.context_len),
        "output_len": made.output_len,
        "prompts": made.prompts,
        **{name: _cell(name, reading, spec) for name, reading in found.figures.items()},
        **counts,
        "implied": list(found.derived),
        "exclude": impossible or ("" if found.figures else "; ".join(found.missing)),
        "note": made.note,
        "source": f"specsim check {facts.url}",
    }
    return {name: value for name, value in row.items() if value not in (None, "", [])}


def _impossible(found: Measured, spec: SpecConfig | None) -> str:
    """Why an accept length cannot be that of the configuration; empty where it can."""
    length = found.figures.get("accept_length")
    if spec is None or length is None or 1 <= length.value <= spec.max_accept_length:
        return ""
    return (
        f"an accept length of {length.value:.2f} is not possible with {spec.num_draft_tokens} draft tokens: the server runs"
        " another configuration than was stated"
    )


_SHAPE = ("num_steps", "topk", "num_draft_tokens")


def _cell(name: str, reading: Reading, spec: SpecConfig | None) -> float | dict[str, float]:
    value, reach = rounded(reading.value), 3**0.5 * reading.error
    if not reach > 0:  # also where it is not known
        return value
    least, most = (
        (1.0, float(spec.max_accept_length)) if name == "accept_length" and spec else (value * 1e-3, float("inf"))
    )
    return {"value": value, "min": rounded(max(value - reach, least)), "max": rounded(min(value + reach, most))}


def run_counts(before: Counters, after: Counters, spec: SpecConfig | None) -> dict[str, Any]:
    """Cycles and drafts counted between two readings, as fields of a run: a histogram where positions are counted."""
    cycles, accepted = (_whole(before, after, name) for name in ("cycles", "accepted"))
    if spec is None or not cycles:
        return {}
    found = {"cycles": cycles, "proposed_drafts": _whole(before, after, "drafted")}
    at_least = [end - start for start, end in zip(before.accepted_at, after.accepted_at, strict=False)]
    while at_least and len(at_least) >= spec.max_accept_length and at_least[-1] == 0:
        at_least.pop()
    falls = [cycles, *at_least, 0]
    shares = [round(more - less) for more, less in pairwise(falls)]
    if at_least and min(shares) >= 0 and accepted == round(sum(at_least)) and len(at_least) < spec.max_accept_length:
        return {**_stated(found), "accept_histogram": shares}
    return _stated(found)


def _stated(counts: Mapping[str, int | None]) -> dict[str, Any]:
    return {field: count for field, count in counts.items() if count is not None}


def _whole(before: Counters, after: Counters, name: str) -> int | None:
    start, end = getattr(before, name), getattr(after, name)
    return None if start is None or end is None or end < start else round(end - start)
