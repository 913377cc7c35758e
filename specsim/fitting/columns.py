"""The linear problem of a fit: which coefficients are tried, what each sees of every equation, and its solution (eq. 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from specsim.cost.model import Noise
from specsim.cost.terms import BARE, EAGER, HOST, KV_READ, PHASES, TERM_BY_NAME, TERMS, Cycle, Term
from specsim.fitting.least_squares import Solution, solve
from specsim.fitting.observations import Observation, resolution
from specsim.quantities import CONTEXT_TOLERANCE, BoolArray, FloatArray

_SETTLED = 1e-6  # relative change of the noise below which weights stay
_TOLD = 0.2  # share of a time that reading the KV cache may be uncertain by, over the measured contexts
_APART = 0.1  # least singular value of unit columns that figures tell apart: contexts a third apart, or more
_BELOW = 0.02  # share by which a served time may lie below bare forwards: two machines of a kind differ by as much
_FEW = 0.1  # share of figures that may lie lower still, as outliers, before the curve is no floor
_NOISE_ROUNDS = 6  # a range's weight and the noise settle to 0.1% of each other in four


@dataclass(frozen=True)
class Column:
    """One coefficient to be fitted: its term, the term's parameters, and the NCCL setting that it belongs to, if any.

    One that is `known` is not fitted but stands at that value.
    """

    term: Term
    nccl: str | None = None
    parameters: tuple[float, ...] = ()
    known: float | None = None


def base_columns(seen: tuple[Observation, ...]) -> tuple[Column, ...]:
    """Candidate coefficients, in the order in which the fit tries to tell them apart."""
    alone = measured_alone(seen)
    whole = any(o.phases == PHASES for o in seen)
    owners = {phase: _settings(o for o in seen if phase in o.phases) for phase in ("verify", "decode")}
    bare = tuple(_bare_columns(seen))
    slope = over_bare_forwards(bare, "verify") and len(owners["verify"]) == 1
    terms = [
        *(_BY_REQUEST if slope and term is _BY_TOKEN else term for term in TERMS),
        *(HOST[phase] for phase in KV_READ if hosts(seen, phase)),
        *(EAGER[phase] for phase in KV_READ if _in_both_modes(seen, phase)),
        *(KV_READ[phase] for phase in phases_of_many_contexts(seen)),
    ]
    fitted = (
        Column(term, owner)
        for term in terms
        if term.by_setting or term.phase in KV_READ or _is_candidate(term, alone, whole)
        for owner in (owners[term.phase] if term.by_setting else (None,))
        if owner is None or term.hosted or term in _told_of_device(seen, term.phase, owner)
    )
    return (*bare, *fitted)


_BY_TOKEN, _BY_REQUEST = TERM_BY_NAME["verify_per_token_ms"], TERM_BY_NAME["verify_per_request_ms"]
"""Bare forwards grow with tokens themselves: what served ones have beside them grows with requests, as attention does."""


def _bare_columns(seen: tuple[Observation, ...]) -> Iterator[Column]:
    """Bare forwards under the phases that were seen: as they are, or times a fitted factor where served times lie below."""
    for phase, term in BARE.items():
        rows = [o for o in seen if phase in o.phases and not o.host_bound]
        bare = np.array([float(term.feature(o.cycle)[0]) for o in rows])
        if rows and not np.isnan(bare).any():
            served = np.array([o.time_ms for o in rows])
            below = served < (1 - _BELOW) * bare
            yield Column(term, known=1.0 if below.mean() <= _FEW else None)


def over_bare_forwards(columns: Iterable[Column], phase: str) -> bool:
    """Whether a phase rests on bare forwards."""
    return any(column.term is BARE[phase] for column in columns)


def device_terms(phase: str, reads: bool) -> tuple[Term, ...]:
    """What the device's time of a phase is a sum of, in the order in which figures that exceed the host's tell it."""
    names = (f"{phase}_fixed_ms", f"{phase}_per_token_ms")
    return (*([KV_READ[phase]] if reads else []), *(TERM_BY_NAME[name] for name in names))


def _told_of_device(seen: tuple[Observation, ...], phase: str, nccl: str) -> tuple[Term, ...]:
    """The device's terms that a setting's figures tell: all of them where it waits in none, or graphs were on in some.

    Else those that the figures which exceed the host's time tell apart: one context alone tells no fixed part.
    """
    own = tuple(o for o in seen if phase in o.phases and o.nccl == nccl)
    terms = device_terms(phase, phase in phases_of_many_contexts(seen))
    visible = tuple(o for o in own if not o.host_bound)
    if len(visible) == len(own) or not all(o.cycle.eager.all() for o in own):
        return terms
    told: tuple[Term, ...] = ()
    for term in terms if visible else ():
        design = features(tuple(Column(each) for each in (*told, term)), visible)
        design = design / np.linalg.norm(design, axis=0).clip(np.finfo(float).tiny)
        if len(visible) > len(told) and np.linalg.svd(design, compute_uv=False)[-1] > _APART:
            told = (*told, term)
    return told


def phases_of_many_contexts(seen: Iterable[Observation]) -> tuple[str, ...]:
    """Verify, decode or both, where all figures state their context and the contexts differ."""
    contexts = {phase: [o.context_len for o in seen if phase in o.phases] for phase in KV_READ}
    return tuple(phase for phase, found in contexts.items() if _differ(found))


def _differ(contexts: list[int | None]) -> bool:
    stated = [context for context in contexts if context is not None]
    return len(stated) == len(contexts) and bool(stated) and max(stated) - min(stated) > CONTEXT_TOLERANCE


def hosts(seen: Iterable[Observation], phase: str) -> bool:
    """Whether in some figures of a phase the device waited for the host."""
    return any(o.host_bound and phase in o.phases for o in seen)


def _in_both_modes(seen: Iterable[Observation], phase: str) -> bool:
    """Whether figures show the device's time of a phase with graphs on and off."""
    return len({bool(o.cycle.eager.all()) for o in seen if phase in o.phases and not o.host_bound}) > 1


def told_apart(
    columns: tuple[Column, ...], seen: tuple[Observation, ...], noise: float
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Fold terms beside verify and decode that these runs cannot tell from earlier ones into those; name them."""
    solution = solved(columns, seen, noise)[0]
    if _no_verify(columns, solution, seen):  # a forward that drafts nothing would take no time
        columns = tuple(column for column in columns if column.term.phase != "draft")
        return told_apart(columns, seen, noise)[0], ("draft_per_forward_ms",)
    stays = [
        bool(told) or column.term.by_setting or column.term in BARE.values()
        for column, told in zip(columns, solution.kept, strict=True)
    ]
    folded = tuple(column.term.name for column, stay in zip(columns, stays, strict=True) if not stay)
    return tuple(column for column, stay in zip(columns, stays, strict=True) if stay), folded


def _no_verify(columns: tuple[Column, ...], solution: Solution, seen: tuple[Observation, ...]) -> bool:
    """Whether whole cycles alone leave all of some setting's time to drafting, and none to verify."""
    drafts = any(column.term.phase == "draft" for column in columns)
    if not drafts or not measured_alone(seen).isdisjoint(PHASES):
        return False
    phases = np.array([column.term.phase == "verify" for column in columns])
    verify = features(columns, seen)[:, phases] @ solution.values[phases]
    return bool((verify[[o.phases == PHASES for o in seen]] <= 0).any())


def contexts_told(
    columns: tuple[Column, ...], folded: tuple[str, ...], seen: tuple[Observation, ...], noise: float
) -> bool:
    """Whether what contexts cost is told from what differs with them: to _TOLD of every time that it is a part of."""
    if any(term.name in folded for term in KV_READ.values()):
        return False
    solution, design = solved(columns, seen, noise)[0], features(columns, seen)
    reads = [index for index, column in enumerate(columns) if column.term in KV_READ.values()]
    errors = noise * np.sqrt(np.diag(solution.unit_covariance))[reads]
    shares = errors * design[:, reads] / np.array([o.time_ms for o in seen])[:, None]
    return bool((shares < _TOLD).all())


def _is_candidate(term: Term, alone: frozenset[str], whole: bool) -> bool:
    """A phase that no run timed alone is what whole cycles have beside the timed ones: other, or extend with other timed.

    Draft forwards are tried all the same, since they tell cycles of different depth apart.
    """
    if term.phase in alone:
        return True
    beside = "extend" if {"verify", "draft", "other"} <= alone else "other"
    return whole and (term.name == "draft_per_forward_ms" or (term.phase == beside and "verify" in alone))


def measured_alone(seen: Iterable[Observation]) -> frozenset[str]:
    """Phases that some run timed on their own."""
    return frozenset(o.phases[0] for o in seen if len(o.phases) == 1)


def _settings(seen: Iterable[Observation]) -> tuple[str, ...]:
    return tuple(sorted({o.nccl for o in seen}))


def solved(columns: tuple[Column, ...], seen: tuple[Observation, ...], assumed: float) -> tuple[Solution, Noise]:
    """The solution, and the noise of a plain measurement that it was weighted with.

    A range's own spread counts beside that noise, so where residuals tell the noise the two are found in turns.
    """
    design, times = features(columns, seen), np.array([o.time_ms for o in seen])
    finest, ranges = resolution(seen), any(o.relative_spread for o in seen)
    noise = Noise(assumed, True, 0)
    for _ in range(_NOISE_ROUNDS):
        used = max(noise.relative, np.finfo(float).eps)
        solution = solve(design, times, noise_ratio(seen, used), known(columns))
        noise = _noise(solution, used, assumed, finest)
        if abs(noise.relative / used - 1.0) < _SETTLED or not ranges:
            break
    return solution, noise


def known(columns: Iterable[Column]) -> FloatArray:
    """Values (p,) of the coefficients that are not fitted, NaN for those that are."""
    return np.array([np.nan if column.known is None else column.known for column in columns])


def noise_ratio(seen: tuple[Observation, ...], noise: float) -> FloatArray:
    """A figure's relative noise over a plain measurement's: more where it comes with a range."""
    return np.hypot(1.0, np.array([o.relative_spread for o in seen]) / noise)


def _noise(solution: Solution, used: float, assumed: float, finest: float) -> Noise:
    """Noise from residuals where there are degrees of freedom, never below what rounding leaves; else as assumed.

    Without degrees of freedom residuals only show figures that contradict each other, and count where they exceed
    what is assumed.
    """
    squares, dof = float(solution.residuals @ solution.residuals), solution.degrees_of_freedom
    if dof == 0:
        return Noise(max(assumed, (squares / solution.residuals.size) ** 0.5), True, 0)
    return Noise(max((squares / dof) ** 0.5, finest), False, dof)


def features(columns: tuple[Column, ...], seen: tuple[Observation, ...]) -> FloatArray:
    """The design matrix: a column's feature in the rows whose phases and setting it belongs to, 0 elsewhere."""
    cycles = Cycle.stacked([o.cycle for o in seen])
    labels, host_bound = np.array([o.nccl for o in seen]), np.array([o.host_bound for o in seen])
    covers = {phase: np.array([phase in o.phases for o in seen]) for phase in (*PHASES, "decode")}

    def rows(c: Column) -> BoolArray:
        waits = host_bound & (c.term.phase in KV_READ)
        owned = covers[c.term.phase] & ((c.nccl is None) | (labels == c.nccl))
        return np.asarray(owned & (waits == c.term.hosted))

    return np.column_stack([np.where(rows(c), c.term.feature(cycles, *c.parameters), 0.0) for c in columns])
