"""Weighted non-negative least squares on relative residuals, with what the rows leave open (eq. 12)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.quantities import BoolArray, FloatArray

_SAME_DIRECTION = 1e-8  # a column this close to those before it (relative) is told apart by rounding only
_NEGATIVE = -1e-10  # a coefficient below this share of a measured time is negative, not rounded


@dataclass(frozen=True)
class Solution:
    """The fit of n rows to p columns.

    `kept` are the columns told apart from those before them, `free` those of them off the bound at zero;
    `residuals` are (measured − fitted)/measured divided by the row's noise; `unit_covariance` is the
    coefficients' covariance for a relative noise of 1 a measurement; `influence` (p, n) is ∂θ/∂measured,
    `blind` (q, p) spans the directions that no row sees.
    """

    values: FloatArray
    kept: BoolArray
    free: BoolArray
    residuals: FloatArray
    unit_covariance: FloatArray
    influence: FloatArray
    blind: FloatArray

    @property
    def degrees_of_freedom(self) -> int:
        """Rows less coefficients told apart, those at the bound included: what a bound costs is no noise."""
        return int(self.residuals.size - self.kept.sum())


def solve(features: FloatArray, times: FloatArray, noise_ratio: FloatArray) -> Solution:
    """Minimise Σ ((xᵢ·θ − tᵢ)/(tᵢ·rᵢ))² over θ ≥ 0 (eq. 12).

    `features` (n, p) with columns in the order of preference, `times` (n,) [ms] > 0, `noise_ratio` (n,) ≥ 1 is
    a row's relative noise over that of a plain measurement.
    """
    weight = 1.0 / (times * noise_ratio)
    rows = features * weight[:, None]
    norms = np.linalg.norm(rows, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    scaled = rows / scale
    kept = _distinct(scaled)
    target = times * weight
    values = np.zeros(features.shape[1])
    values[kept] = _non_negative(scaled[:, kept], target)
    free = values > 0
    inverse = np.linalg.pinv(scaled[:, free])
    influence = np.zeros(features.T.shape)
    influence[free] = inverse * weight / scale[free, None]
    covariance = np.zeros((free.size, free.size))
    covariance[np.ix_(free, free)] = inverse @ inverse.T / np.outer(scale[free], scale[free])
    return Solution(
        values / scale, kept, free, target - scaled @ values, covariance, influence, _null_rows(scaled) / scale
    )


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


def _non_negative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """The unconstrained optimum is the constrained one when nothing in it is negative; else Lawson–Hanson."""
    plain = np.asarray(np.linalg.lstsq(columns, target, rcond=None)[0], dtype=np.float64)
    if (plain >= _NEGATIVE).all():
        return np.maximum(plain, 0.0)
    from scipy.optimize import nnls  # here: importing it takes longer than everything else in a small fit

    bounded: FloatArray = nnls(columns, target)[0]
    return bounded


def _null_rows(columns: FloatArray) -> FloatArray:
    """Orthonormal rows spanning the null space of the columns, rounding cleared to exact zeros."""
    triangle = np.linalg.qr(columns, mode="r")  # p rows at most, with the same null space as the n of columns
    _, singular, right = np.linalg.svd(triangle, full_matrices=True)
    rank = int((singular > _SAME_DIRECTION * singular.max(initial=0.0)).sum())
    return np.where(np.abs(right[rank:]) > _SAME_DIRECTION, right[rank:], 0.0)
