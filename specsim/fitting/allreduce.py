"""An all-reduce table as α + m/β with knees, as many as the data ask for (eq. 16)."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from specsim.cost.allreduce import AffineCurve, MeasuredCurve, stretch_bytes
from specsim.quantities import FloatArray

MOST_KNEES = 2
"""NCCL has three protocols, so a table has at most two switches of protocol."""

_ROUNDING = 1e-4  # relative: a table's printed digits; a fit that is nearer says nothing of its knees


def fit_affine(curve: MeasuredCurve) -> AffineCurve:
    """The affine curve with 0 to 2 knees at sizes of the table that the medians prefer by AICc (eq. 16).

    Least squares on residuals relative to the medians, with α and every slope at least 0. Each knee counts as two
    parameters, its place and its slope; a knee needs a size on either side, so small tables have none.
    """
    sizes, times = np.array(curve.sizes), np.array(curve.raw_us)
    inner = curve.sizes[1:-1]
    tried = [knees for count in range(MOST_KNEES + 1) for knees in combinations(inner, count)]
    fits = [(knees, *_fitted(sizes, times, knees)) for knees in tried if len(times) > 3 + 2 * len(knees) or not knees]
    knees, values, errors = min(fits, key=lambda fit: _aicc(fit[2], 2 + 2 * len(fit[0])))
    return AffineCurve(
        curve.label,
        float(values[0]),
        tuple(values[1:].tolist()),
        tuple(knees),
        (curve.sizes[0], curve.sizes[-1]),
        float(np.max(np.abs(errors))),
    )


def _fitted(sizes: FloatArray, times: FloatArray, knees: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """Coefficients (α, slopes…) and relative errors (n,)."""
    features = np.column_stack([np.ones_like(sizes), stretch_bytes(sizes, knees)]) / times[:, None]
    values = _non_negative(features, np.ones_like(times))
    return values, features @ values - 1


def _non_negative(columns: FloatArray, target: FloatArray) -> FloatArray:
    """The best values of at least 0: of four columns at most, so every set of those above 0 is tried."""
    scale = np.linalg.norm(columns, axis=0)  # a byte's column is far smaller than that of α
    every = product((False, True), repeat=scale.size)
    tried = [np.zeros(scale.size)]
    for kept in (np.array(above) for above in every if any(above)):
        values = np.zeros(scale.size)
        values[kept] = np.linalg.lstsq(columns[:, kept] / scale[kept], target, rcond=None)[0]
        tried += [values / scale] if (values >= 0).all() else []
    return min(tried, key=lambda values: float(np.linalg.norm(columns @ values - target)))


def _aicc(errors: FloatArray, parameters: int) -> float:
    """Akaike's criterion corrected for few rows, of n relative errors with a noise of their own."""
    count, free = errors.size, parameters + 1
    if count <= free + 1:
        return 0.0 if parameters == 2 else np.inf
    noise = max(float(np.mean(errors**2)), _ROUNDING**2)
    return float(count * np.log(noise) + 2 * free + 2 * free * (free + 1) / (count - free - 1))
