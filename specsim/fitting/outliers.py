"""Gross outliers: single figures that the others contradict, left out of a fit and reported."""

from __future__ import annotations

import numpy as np

from specsim.fitting.columns import Column, features, solved
from specsim.fitting.observations import Observation
from specsim.quantities import BoolArray, FloatArray
from specsim.uncertainty import probability_positive

_GROSS = 0.10  # relative distance from what the others say, below which no figure is gross
_SPREADS = 6.0  # the same in robust standard deviations (1.4826 times the median distance)
_CHANCE = 0.001  # of calling any good figure of a fit gross
_FITS_WELL = 0.03  # noise of the other figures above which the form is what is wrong
_LEAST_DOF = 3
_MOST = 0.1  # share of figures that may be gross
_ROUNDS = 50  # of reweighting; least absolute deviations settle to what telling suspects needs long before
_CLOSE = 1e-6  # relative distance below which closer weighs no more

Seen = tuple[Observation, ...]
Outliers = tuple[tuple[Observation, float], ...]


def without_gross_outliers(columns: tuple[Column, ...], seen: Seen, noise: float) -> tuple[Seen, Outliers]:
    """The figures without gross outliers, and those, each with the time [ms] that the others say.

    A figure is gross where the form fits all others and misses it by more than 10%, beyond chance (Bonferroni). One at
    the edge of what was measured never is: a knee begins like that.
    """
    whole = solved(columns, seen, noise)[0]
    if whole.degrees_of_freedom <= _LEAST_DOF:
        return seen, ()
    suspects = _suspects(features(columns, seen)[:, whole.kept], seen)
    others = tuple(o for o, suspect in zip(seen, suspects, strict=True) if not suspect)
    if not suspects.any() or suspects.sum() > max(1, _MOST * len(seen)):
        return seen, ()
    solution, found = solved(columns, others, noise)
    if found.residual_dof < _LEAST_DOF or found.relative > _FITS_WELL or (whole.kept != solution.kept).any():
        return seen, ()
    rows, times = features(columns, seen), np.array([o.time_ms for o in seen])
    expected = rows @ solution.values
    variance = (np.einsum("ij,jk,ik->i", rows, solution.unit_covariance, rows) + expected**2) * found.relative**2
    scores = np.abs(times - expected) / np.sqrt(variance.clip(np.finfo(float).tiny))
    chances = 2 * len(seen) * (1 - np.asarray(probability_positive(scores, found.residual_dof)))
    gross = suspects & (chances < _CHANCE)
    outliers = tuple((o, float(time)) for o, time, out in zip(seen, expected, gross, strict=True) if out)
    return tuple(o for o, out in zip(seen, gross, strict=True) if not out), outliers


def _suspects(design: FloatArray, seen: Seen) -> BoolArray:
    """Figures inside the measured range that are far from a fit of least absolute deviations, and alone in that."""
    relative = design / np.array([o.time_ms for o in seen])[:, None]
    misses = np.abs(relative @ _least_absolute(relative) - 1.0)
    far = misses > max(_GROSS, _SPREADS * 1.4826 * float(np.quantile(misses, 0.5)))
    return np.array([bool(far[index]) and _stands_alone(index, far, seen) for index in range(len(seen))])


def _least_absolute(relative: FloatArray) -> FloatArray:
    """θ that minimises Σ |xᵢ·θ − 1|, by reweighted least squares."""
    weight = np.ones(len(relative))
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        values = np.asarray(np.linalg.lstsq(relative * root[:, None], root, rcond=None)[0], dtype=np.float64)
        weight = 1.0 / np.maximum(np.abs(relative @ values - 1.0), _CLOSE)
    return values


def _stands_alone(index: int, far: BoolArray, seen: Seen) -> bool:
    """Whether others at the same tokens are not far, or none is there and others lie on either side.

    Figures that agree with each other are no outliers, whatever the form says.
    """
    one = seen[index]
    alike = [i for i, o in enumerate(seen) if i != index and _kind(o) == _kind(one)]
    same = [i for i in alike if seen[i].verify_tokens == one.verify_tokens]
    if same:
        return not far[same].all()
    widths = [seen[i].verify_tokens for i in alike]
    return min(widths, default=np.inf) < one.verify_tokens < max(widths, default=-np.inf)


def _kind(o: Observation) -> tuple[object, ...]:
    return o.phases, o.nccl, o.host_bound
