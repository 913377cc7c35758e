"""The linear problem of a fit: which coefficients are tried, what each sees of every equation, and its solution (eq. 12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from specsim.cost.model import Noise
from specsim.cost.terms import PHASES, TERMS, Cycle, Term
from specsim.fitting.least_squares import Solution, solve
from specsim.fitting.observations import Observation, resolution
from specsim.quantities import FloatArray

_SETTLED = 1e-6  # relative change of the noise below which weights stay
_NOISE_ROUNDS = 6  # a range's weight and the noise settle to 0.1% of each other in four


@dataclass(frozen=True)
class Column:
    """One coefficient to be fitted: its term, the term's parameters, and the NCCL setting that it belongs to, if any."""

    term: Term
    nccl: str | None = None
    parameters: tuple[float, ...] = ()


def base_columns(seen: tuple[Observation, ...]) -> tuple[Column, ...]:
    """Candidate coefficients, in the order in which the fit tries to tell them apart."""
    alone = measured_alone(seen)
    whole = any(o.phases == PHASES for o in seen)
    owners = {phase: _settings(o for o in seen if phase in o.phases) for phase in ("verify", "decode")}
    return tuple(
        Column(term, owner)
        for term in TERMS
        if term.by_setting or _is_candidate(term, alone, whole)
        for owner in (owners[term.phase] if term.by_setting else (None,))
    )


def told_apart(
    columns: tuple[Column, ...], seen: tuple[Observation, ...], noise: float
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Fold terms beside verify and decode that these runs cannot tell from earlier ones into those; name them."""
    kept = solved(columns, seen, noise)[0].kept
    stays = [bool(told) or column.term.by_setting for column, told in zip(columns, kept, strict=True)]
    folded = tuple(column.term.name for column, stay in zip(columns, stays, strict=True) if not stay)
    return tuple(column for column, stay in zip(columns, stays, strict=True) if stay), folded


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
    spread, finest = np.array([o.relative_spread for o in seen]), resolution(seen)
    noise = Noise(assumed, True, 0)
    for _ in range(_NOISE_ROUNDS):
        used = max(noise.relative, np.finfo(float).eps)
        solution = solve(design, times, np.hypot(1.0, spread / used))
        noise = _noise(solution, used, assumed, finest)
        if abs(noise.relative / used - 1.0) < _SETTLED or not spread.any():
            break
    return solution, noise


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
    labels = np.array([o.nccl for o in seen])
    covers = {phase: np.array([phase in o.phases for o in seen]) for phase in (*PHASES, "decode")}
    return np.column_stack(
        [
            np.where(
                covers[c.term.phase] & ((c.nccl is None) | (labels == c.nccl)),
                c.term.feature(cycles, *c.parameters),
                0.0,
            )
            for c in columns
        ]
    )
