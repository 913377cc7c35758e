"""Weighted non-negative least squares on relative residuals, with what the rows leave open (eq. 12)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.quantities import BoolArray, FloatArray

_SAME_DIRECTION = 1e-8  # a column this close to those before it (relative) is told apart by rounding only
_NEGATIVE = 1e-9  # a coefficient this far below zero, as a share of a measured time, is negative, not rounded
_SETTLED = 1e-10  # relative change of fitted times below which weights stay
_REWEIGHTINGS = 3  # from measured to fitted times; a fourth changes a fit at 10% noise by less than 0.1%
_LEAST_FITTED = 1e-3  # of a measured time: where the fit leaves a row nothing, its residual is relative to this


@dataclass(frozen=True)
class Solution:
    """The fit of n rows to p columns.

    `kept` are the columns fitted and told apart from those before them, `held` those of them that the rows would rather
    have negative and the bound holds at zero; `residuals` are (measured − fitted)/fitted over the row's noise ratio;
    `unit_covariance` is the coefficients' covariance, without the bound, for a relative noise of 1 a measurement;
    `influence` (p, n) is ∂θ/∂measured; `blind` (q, p) spans the directions that no row sees.
    """

    values: FloatArray
    kept: BoolArray
    held: BoolArray
    residuals: FloatArray
    unit_covariance: FloatArray
    influence: FloatArray
    blind: FloatArray

    @property
    def degrees_of_freedom(self) -> int:
        """Rows less coefficients told apart, those at the bound included: what a bound costs is no noise."""
        return int(self.residuals.size - self.kept.sum())


def solve(
    features: FloatArray, times: FloatArray, noise_ratio: FloatArray, known: FloatArray | None = None
) -> Solution:
    """Minimise Σ ((xᵢ·θ − tᵢ)/(x̂ᵢ·rᵢ))² over θ ≥ 0 (eq. 12), x̂ᵢ the fitted time.

    `features` (n, p) with columns in the order of preference, `times` (n,) [ms] > 0, `noise_ratio` (n,) ≥ 1 is
    a row's relative noise over that of a plain measurement. `known` (p,) are coefficients that are not fitted but stand
    at a value, NaN for those that are. Residuals are relative to the fitted time, found by
    reweighting: relative to the measured one, low readings would weigh most and pull the fit down.
    """
    weighed_by = times
    for _ in range(1 + _REWEIGHTINGS):
        solution = _solve_around(known, features, times, 1.0 / (weighed_by * noise_ratio))
        fitted = np.maximum(features @ solution.values, _LEAST_FITTED * times)
        if np.abs(fitted / weighed_by - 1.0).max() < _SETTLED:
            break
        weighed_by = fitted
    return solution


def aicc(squares: float, n: int, count: int, floor: float) -> float:
    """AICc = n·log(RSS/n) + 2k + 2k(k + 1)/(n − k − 1), NaN with too few rows for one.

    `squares` is RSS of relative residuals, below `floor` [a mean square] rounding; `count` is k, the variance included.
    """
    if n - count - 1 < 2:
        return float("nan")
    return float(n * np.log(max(squares / n, floor)) + 2 * count + 2 * count * (count + 1) / (n - count - 1))


def resampled(
    features: FloatArray,
    solution: Solution,
    noise_ratio: FloatArray,
    noise: float,
    count: int,
    generator: np.random.Generator,
) -> FloatArray:
    """Solutions (count, p) for times drawn anew around a fit, by its residuals or, with none to draw, by a noise.

    `noise_ratio` as in `solve`; `noise` is that of a plain measurement, relative. A residual's spread shrinks with its row's leverage, which is undone; rows that the fit must meet exactly have none.
    """
    fitted = features @ solution.values
    free = 1.0 - np.einsum("np,pn->n", features, solution.influence).clip(0.0, 1.0)
    told = free > _SAME_DIRECTION
    if solution.degrees_of_freedom == 0 or not told.any():
        drawn = generator.normal(0.0, noise, (count, fitted.size))
    else:
        pool = solution.residuals[told] / np.sqrt(free[told])
        drawn = generator.choice(pool - pool.mean(), (count, fitted.size))
    relative = drawn * noise_ratio
    values: FloatArray = solution.values + (fitted * relative) @ solution.influence.T
    below = np.flatnonzero((values < 0).any(axis=1))
    if below.size:
        from scipy.optimize import nnls

        weight = 1.0 / (fitted * noise_ratio)
        rows = features[:, solution.kept] * weight[:, None]
        known = features[:, ~solution.kept] @ solution.values[~solution.kept] * weight
        for index in below:
            values[index, solution.kept] = nnls(rows, (1.0 + relative[index]) / noise_ratio - known)[0]
    return values


def _solve_around(known: FloatArray | None, features: FloatArray, times: FloatArray, weight: FloatArray) -> Solution:
    """The solution with what known coefficients take off the times, and those in it: no noise, nothing open."""
    if known is None or np.isnan(known).all():
        return _solve_weighted(features, times, weight)
    free = np.isnan(known)
    rest = _solve_weighted(features[:, free], times - features[:, ~free] @ known[~free], weight)
    covariance, influence = np.zeros((known.size, known.size)), np.zeros(features.T.shape)
    covariance[np.ix_(free, free)], influence[free] = rest.unit_covariance, rest.influence
    values, kept, held = np.where(free, 0.0, known), np.zeros_like(free), np.zeros_like(free)
    values[free], kept[free], held[free] = rest.values, rest.kept, rest.held
    blind = np.zeros((len(rest.blind), known.size))
    blind[:, free] = rest.blind
    return Solution(values, kept, held, rest.residuals, covariance, influence, blind)


def _solve_weighted(features: FloatArray, times: FloatArray, weight: FloatArray) -> Solution:
    rows = features * weight[:, None]
    norms = np.linalg.norm(rows, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    scaled, target = rows / scale, times * weight
    kept = _distinct(scaled)
    values, held = np.zeros(kept.size), np.zeros(kept.size, dtype=bool)
    values[kept], held[kept] = _non_negative(scaled[:, kept], target)
    inverse = np.linalg.pinv(scaled[:, kept])
    influence = np.zeros(features.T.shape)
    influence[kept] = inverse * weight / scale[kept, None]
    covariance = np.zeros((kept.size, kept.size))
    covariance[np.ix_(kept, kept)] = inverse @ inverse.T / np.outer(scale[kept], scale[kept])
    residuals = target - scaled @ values
    return Solution(values / scale, kept, held, residuals, covariance, influence, _null_rows(scaled) / scale)


def _distinct(columns: FloatArray) -> BoolArray:
    """Greedy from the left: which columns add a direction to those kept before them."""
    kept = np.zeros(columns.shape[1], dtype=bool)
    basis: FloatArray = np.zeros((columns.shape[0], 0))
    for index, column in enumerate(columns.T):
        rest = column - basis @ (basis.T @ column)
        rest = rest - basis @ (basis.T @ rest)  # twice is enough against rounding
        size = float(np.linalg.norm(rest))
        if size > _SAME_DIRECTION * max(np.linalg.norm(column), np.finfo(float).tiny):
            kept[index] = True
            basis = np.hstack([basis, (rest / size)[:, None]])
    return kept


def _non_negative(columns: FloatArray, target: FloatArray) -> tuple[FloatArray, BoolArray]:
    """The optimum, and which coefficients the bound holds there.

    The unconstrained optimum is the constrained one when nothing in it is negative; else Lawson–Hanson.
    """
    plain = np.asarray(np.linalg.lstsq(columns, target, rcond=None)[0], dtype=np.float64)
    if (plain >= -_NEGATIVE).all():
        return np.maximum(plain, 0.0), np.zeros(plain.size, dtype=bool)
    from scipy.optimize import nnls  # here: importing it takes longer than everything else in a small fit

    bounded: FloatArray = nnls(columns, target)[0]
    return bounded, bounded == 0


def _null_rows(columns: FloatArray) -> FloatArray:
    """Orthonormal rows spanning the null space of the columns, rounding cleared to exact zeros."""
    triangle = np.linalg.qr(columns, mode="r")  # p rows at most, with the same null space as the n of columns
    _, singular, right = np.linalg.svd(triangle, full_matrices=True)
    rank = int((singular > _SAME_DIRECTION * singular.max(initial=0.0)).sum())
    return np.where(np.abs(right[rank:]) > _SAME_DIRECTION, right[rank:], 0.0)
