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


def student_interval(dof: float, level: float) -> float:
    """Half-width of a two-sided interval of this level in standard errors, by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, (1 + level) / 2))


def chance_of_no_difference(score: float, dof: float) -> float:
    """Two-sided p of a difference `score` standard errors away from 0, by Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(dof, -abs(score)))


def detection_power(score: float, dof: float, level: float) -> float:
    """Chance that a true difference of `score` standard errors comes out as one at this two-sided level.

    By the noncentral t distribution; the part that comes out with the wrong sign counts where it can be computed.
    """
    from scipy.special import nctdtr

    needed = student_interval(dof, level)
    found, wrong = 1 - float(nctdtr(dof, abs(score), needed)), float(nctdtr(dof, abs(score), -needed))
    return found + (wrong if math.isfinite(wrong) else 0.0)
