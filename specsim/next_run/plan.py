"""A plan of measurements: the candidates ranked by what they do to a question's interval (eq. 15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from specsim.next_run.candidates import Candidate, Offer, candidates
from specsim.next_run.form import check_of_form
from specsim.next_run.knowledge import Knowledge
from specsim.next_run.ratio import Interval, Ratio, Side
from specsim.next_run.space import Kind, Space
from specsim.quantities import SpecConfig
from specsim.recipes import commands

About = TypeVar("About")

_WORTH_MAKING = 0.995  # a run that leaves more than this of an interval is not worth its time


@dataclass(frozen=True)
class NextRun:
    """A measurement to make: what, at which configuration (`spec` None is plain decode), and what it does to the answer.

    `kind` says which figure it gives: verify_ms, cycle_ms (or throughput with an accept length), or decode_ms.
    `checks_form` is a width that tests the form, next to those that shrink the interval. `interval_after` is expected,
    with today's noise and estimate; None while a side is missing or no run says where the answer lies.
    `ratio` is its width over today's: 0 where there is none today, None where there is none after either.
    """

    kind: Kind
    spec: SpecConfig | None
    batch_size: int
    nccl: str
    checks_form: bool
    interval_after: Interval | None
    half_width_pct_after: float
    ratio: float | None
    makes_answerable: bool
    why: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Plan(Generic[About]):
    """What to measure next: what the question is about, its interval today, and the runs to make, best first.

    `questions` counts those that were asked, of which the one that the runs tell least is answered. `missing` names
    the sides that no run tells.
    """

    about: About
    questions: int
    interval_now: Interval | None
    half_width_pct_now: float
    missing: tuple[str, ...]
    next: tuple[NextRun, ...]


def planned(
    space: Space, about: About, ask: Callable[[Space], Ratio], offer: Offer, *, questions: int, most: int
) -> Plan[About]:
    """The measurements that shrink the interval of a question most, after the one that tests the form, if one does.

    c-optimal in closed form: each candidate updates Σ by its rank-one formula, and the ratio's interval follows. Of
    each kind, NCCL setting and batch size the best width is kept, and what is asked itself beside it.
    """
    question, known = ask(space), space.knowledge()
    now = question.interval(known)
    check = check_of_form(space, ask, offer)
    first = [] if check is None else [_next(space, question, known, *check)]
    found = _ranked(space, question, known, offer, first)
    missing = question.missing(known)
    return Plan(about, questions, now, question.half_width_pct(now), missing, (*first, *found[: most - len(first)]))


def _ranked(space: Space, question: Ratio, known: Knowledge, offer: Offer, chosen: list[NextRun]) -> list[NextRun]:
    """Candidates that help, best first: fewest sides missing after, then the narrowest interval; one a group."""
    before = len(question.missing(known))
    now = question.half_width_pct(question.interval(known))
    asked = {side.spec for side in question.sides} - {None}
    judged = []
    for candidate in candidates(space, offer, question.time_ms):
        then = known.after(candidate.gradient, candidate.variance)
        left, width = len(question.missing(then)), question.half_width_pct(question.interval(then))
        if left < before or (left == 0 and width < _WORTH_MAKING * now):
            judged.append((left, float(f"{width:.6g}"), _order(candidate, asked), candidate))
    best: dict[tuple[str, str, int, SpecConfig | None], Candidate] = {}
    for *_, candidate in sorted(judged, key=lambda each: each[:3]):
        itself = candidate.spec if candidate.spec in asked else None
        best.setdefault((candidate.kind, candidate.nccl, candidate.batch_size, itself), candidate)
    taken = {(run.kind, run.spec, run.batch_size, run.nccl) for run in chosen}
    left_over = (c for c in best.values() if (c.kind, c.spec, c.batch_size, c.nccl) not in taken)
    return [_next(space, question, known, candidate) for candidate in left_over]


def _order(candidate: Candidate, asked: set[SpecConfig | None]) -> tuple[bool, int, int]:
    """Among runs that do the same: an asked configuration first, then the fewest tokens."""
    width = 0 if candidate.spec is None else int(candidate.spec.num_draft_tokens)
    return candidate.spec not in {None, *asked}, candidate.batch_size, width


def _next(space: Space, question: Ratio, known: Knowledge, candidate: Candidate, form: str = "") -> NextRun:
    then = known.after(candidate.gradient, candidate.variance)
    now, after = question.interval(known), question.interval(then)
    setting, answerable = space.model.setting(candidate.nccl), now is None and after is not None
    return NextRun(
        candidate.kind,
        candidate.spec,
        candidate.batch_size,
        candidate.nccl,
        bool(form),
        after if question.placed else None,
        question.half_width_pct(after),
        None if after is None else _ratio(now, after),
        answerable,
        form or _why(question, candidate, known, then),
        tuple(commands(candidate.spec, candidate.batch_size, space.model.setup.engine, setting.environment)),
    )


def _ratio(now: Interval | None, after: Interval) -> float:
    if now is None or not np.isfinite(now[1]):
        return 0.0 if np.isfinite(after[1]) else 1.0
    return (after[1] - after[0]) / (now[1] - now[0]) if now[1] > now[0] else 1.0


def _why(question: Ratio, candidate: Candidate, known: Knowledge, then: Knowledge) -> str:
    """What the run does to the answer, as one sentence."""
    before = question.missing(known)
    if before:
        return _told(before, question.missing(then))
    itself = next((side for side in question.sides if side.asked == _run(candidate)), None)
    if any(_replaced(side, known, then) for side in question.sides):
        how = f"of {itself.role} itself" if itself else "of another width"
        return f"puts a measurement {how} in place of the readings of NCCL {candidate.nccl}"
    if candidate.kind == "decode" and any(side.spec is None for side in question.sides):
        return "times a plain-decode baseline: its noise is in the interval as the cycle's is"
    if candidate.kind == "decode":
        return f"times plain decode, on which the readings of NCCL {candidate.nccl} rest"
    if itself:
        return f"times {itself.role} itself, whatever the form of the line"
    return f"pins the fitted line where it bears most on {question.subject}"


def _told(before: tuple[str, ...], left: tuple[str, ...]) -> str:
    """What a run does where sides of the question are missing."""
    if not left:
        return f"makes the question answerable: today no run tells {before[0]}"
    return f"tells {' and '.join(m for m in before if m not in left)}; {' and '.join(left)} stays missing"


def _run(candidate: Candidate) -> tuple[SpecConfig | None, int, str]:
    return candidate.spec, candidate.batch_size, candidate.nccl


def _replaced(side: Side, known: Knowledge, then: Knowledge) -> bool:
    """Whether a measurement takes the place of a side's readings."""
    return known.tells(side.own) != then.tells(side.own)
