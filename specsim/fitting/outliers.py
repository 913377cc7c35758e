"""Gross outliers: single figures that the others contradict, left out of a fit and reported."""

from __future__ import annotations

from collections.abc import Iterator

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
    the edge of what was measured is so only where it does what no knee does (`_like_no_knee`).
    """
    whole = solved(columns, seen, noise)[0]
    if whole.degrees_of_freedom <= _LEAST_DOF:
        return seen, ()
    times = np.array([o.time_ms for o in seen])
    design = features(columns, seen)
    known = design[:, ~whole.kept] @ whole.values[~whole.kept]
    for suspects in _suspects(design[:, whole.kept], times, known, seen):
        outliers = _confirmed(columns, seen, suspects, noise, whole.kept)
        if outliers:
            found = [o for o, _ in outliers]
            return tuple(o for o in seen if not any(o is out for out in found)), outliers
    return seen, ()


def _confirmed(columns: tuple[Column, ...], seen: Seen, suspects: BoolArray, noise: float, kept: BoolArray) -> Outliers:
    """The suspects that a fit of all other figures rejects; none where that fits badly, or tells less."""
    others = tuple(o for o, suspect in zip(seen, suspects, strict=True) if not suspect)
    if not suspects.any() or suspects.sum() > max(1, _MOST * len(seen)):
        return ()
    solution, found = solved(columns, others, noise)
    if found.residual_dof < _LEAST_DOF or found.relative > _FITS_WELL or (kept != solution.kept).any():
        return ()
    rows, times = features(columns, seen), np.array([o.time_ms for o in seen])
    expected = np.maximum(rows @ solution.values, _CLOSE * times)
    variance = (np.einsum("ij,jk,ik->i", rows, solution.unit_covariance, rows) + expected**2) * found.relative**2
    scores = np.abs(times - expected) / np.sqrt(variance.clip(np.finfo(float).tiny))
    chances = 2 * len(seen) * (1 - np.asarray(probability_positive(scores, found.residual_dof)))
    gross = suspects & (chances < _CHANCE) & (np.abs(np.log(times / expected)) > _GROSS)
    return tuple((o, float(time)) for o, time, out in zip(seen, expected, gross, strict=True) if out)


def _suspects(design: FloatArray, times: FloatArray, known: FloatArray, seen: Seen) -> Iterator[BoolArray]:
    """Figures to hold against a fit of the others: those far from least absolute deviations, then the worst one alone.

    The former finds several at once; a single one at the edge may pull even that fit to itself, and the latter finds it.
    `known` (n,) [ms] is what is not fitted of the times.
    """
    misses = np.abs(np.log(times / _least_absolute(design, times, known)))
    far = misses > max(_GROSS, _SPREADS * 1.4826 * float(np.quantile(misses, 0.5)))
    yield np.array([bool(far[index]) and _stands_alone(index, far, seen) for index in range(len(seen))])
    worst = np.arange(len(seen)) == _worst(design / times[:, None], 1.0 - known / times)
    yield np.array([bool(worst[index]) and _stands_alone(index, worst, seen) for index in range(len(seen))])


def _worst(relative: FloatArray, target: FloatArray) -> int:
    """The figure with the largest externally studentised residual: how far a fit without it misses it."""
    basis = np.linalg.qr(relative)[0]
    free = 1.0 - np.square(basis).sum(axis=1)
    residuals = target - basis @ (basis.T @ target)
    free = np.where(free > _CLOSE, free, np.inf)  # a figure that alone tells something contradicts no other
    left = np.maximum(np.square(residuals).sum() - np.square(residuals) / free, np.finfo(float).tiny)
    return int(np.argmax(np.abs(residuals) / np.sqrt(free * left)))


def _least_absolute(design: FloatArray, times: FloatArray, known: FloatArray) -> FloatArray:
    """Fitted times (n,) [ms] that minimise Σ |log t − log xθ|, by reweighted least squares around what is known of them.

    Of logarithms, so that readings too low weigh no more than readings too high by the same factor.
    """
    fitted = times
    for _ in range(_ROUNDS):
        middle = np.sqrt(times * fitted)
        root = 1.0 / np.sqrt(np.maximum(np.abs(times - fitted) / middle, _CLOSE)) / middle
        values = np.linalg.lstsq(design * root[:, None], (times - known) * root, rcond=None)[0]
        fitted = np.maximum(design @ values + known, 1e-3 * times)
    return fitted


def _stands_alone(index: int, far: BoolArray, seen: Seen) -> bool:
    """Whether others at the same tokens are not far, or none is there and others lie on either side, or no knee explains it.

    Figures that agree with each other are no outliers, whatever the form says.
    """
    one = seen[index]
    alike = [i for i, o in enumerate(seen) if i != index and _kind(o) == _kind(one)]
    same = [i for i in alike if seen[i].verify_tokens == one.verify_tokens]
    if same:
        return not far[same].all()
    if not alike:
        return False
    widths = [seen[i].verify_tokens for i in alike]
    if min(widths) < one.verify_tokens < max(widths):
        return True
    nearest = min(alike, key=lambda i: abs(seen[i].verify_tokens - one.verify_tokens))
    return _like_no_knee(*sorted((one, seen[nearest]), key=lambda o: o.verify_tokens))


def _like_no_knee(narrow: Observation, wide: Observation) -> bool:
    """Whether time falls with tokens, or grows faster than they do and by more than a tile that is begun can double."""
    growth = wide.time_ms / narrow.time_ms
    most = max(2.0, wide.verify_tokens / narrow.verify_tokens)
    return not 1.0 - _GROSS < growth < (1.0 + _GROSS) * most


def _kind(o: Observation) -> tuple[object, ...]:
    return o.phases, o.nccl, o.host_bound
