"""Intervals and probabilities from variances (eq. 11); the few distribution functions they need."""

from __future__ import annotations

import math

import numpy as np

from specsim.quantities import LEVEL, FloatArray, Floats

_NORMAL = 1.6448536269514722
"""The normal quantile of (1 + LEVEL)/2, written out: a test compares it with the standard library's."""


def quantile(residual_dof: int) -> float:
    """Half-width of a LEVEL interval in standard errors: normal for an assumed noise, Student's t otherwise."""
    if residual_dof == 0:
        return _NORMAL
    from scipy.special import stdtrit  # here: scipy is slow to import, and a fit with no dof needs none of it

    return float(stdtrit(residual_dof, (1 + LEVEL) / 2))


def student_quantile(probability: float, dof: int) -> float:
    """Quantile of Student's t with so many degrees of freedom, at least 1, at any probability."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability))


def probability_positive(score: Floats, residual_dof: int) -> Floats:
    """P(x > 0) for an estimate `score` standard errors above 0; t-distributed with the noise's dof, if any."""
    if residual_dof == 0 and np.ndim(score) == 0:
        return 0.5 * math.erfc(-float(score) / math.sqrt(2))
    from scipy.special import ndtr, stdtr

    share = ndtr(score) if residual_dof == 0 else stdtr(residual_dof, score)
    return float(share) if np.ndim(share) == 0 else np.asarray(share)


def ratio_interval(
    numerator: FloatArray,
    denominator: FloatArray,
    variances: tuple[FloatArray, FloatArray, FloatArray],
    half_width: float,
) -> tuple[FloatArray, FloatArray]:
    """Fieller's interval of numerator/denominator (eq. 11); `variances` are var n, var d and cov(n, d).

    Elementwise, shape (n,), of quantities that cannot be negative. Where the denominator is not clearly above 0 the interval has no upper end: inf.
    """
    var_n, var_d, cov = (half_width**2 * v for v in variances)
    ratio = numerator / denominator
    g = var_d / denominator**2
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = ratio - cov / denominator**2
        root = np.sqrt(np.maximum(var_n - 2 * ratio * cov + ratio**2 * var_d - g * (var_n - cov**2 / var_d), 0.0))
        exact = (centre - root / denominator) / (1 - g), (centre + root / denominator) / (1 - g)
        plain = np.sqrt(np.maximum(var_n - 2 * ratio * cov, 0.0)) / denominator
    low = np.where(var_d > 0, exact[0], ratio - plain)
    high = np.where(var_d > 0, exact[1], ratio + plain)
    return np.where(g >= 1, 0.0, np.maximum(low, 0.0)), np.where(g >= 1, np.inf, high)


def difference_interval(
    one: tuple[Floats, Floats, Floats], other: tuple[Floats, Floats, Floats]
) -> tuple[FloatArray, FloatArray]:
    """Ends of the interval of one − other (eq. 11), independent, each a value with its low and high end.

    Elementwise, arguments broadcast. On either side the two reaches add in squares, so intervals may be lopsided.
    """
    (value, low, high), (taken, least, most) = one, other
    middle = np.asarray(value) - taken
    down = np.sqrt(np.square(value - low) + np.square(most - taken))
    up = np.sqrt(np.square(high - value) + np.square(taken - least))
    return middle - down, middle + up
