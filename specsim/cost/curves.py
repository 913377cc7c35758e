"""Curves through measured points that never fall: what tables of times have in common, whatever they are over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specsim.quantities import FloatArray


def never_falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The nearest sequence that never falls, in weighted least squares: neighbours that do are pooled; shapes (n,)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), float(weight), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, a, n), (high, b, m) = pools[-2:]
            pools[-2:] = [((low * a + high * b) / (a + b), a + b, n + m)]
    return np.repeat([mean for mean, _, _ in pools], [count for _, _, count in pools])


def slope_of_last_octave(places: Sequence[float], values: Sequence[float]) -> float:
    """Slope at the upper end of rising places: to the last from the largest of at most half of it; 0 with one place."""
    if len(places) == 1:
        return 0.0
    at = max(int(np.searchsorted(places, places[-1] / 2, side="right")) - 1, 0)
    return (values[-1] - values[at]) / (places[-1] - places[at])
