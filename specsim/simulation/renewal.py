"""How many cycles an output takes, in closed form: its mean and variance, the last cycle cut short (eq. 21, 23)."""

from __future__ import annotations

import numpy as np

from specsim.quantities import FloatArray


def cycles_moments(survival: FloatArray, output_len: int) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the cycles that 0 … `output_len` tokens take, each of shape (output_len + 1, kinds).

    `survival` is a table of S_i, (kinds, num_steps). With p_j = S_{j−1} − S_j the chance that a cycle emits j tokens,
    N(r) = 1 + N(r − j): E N(r) = 1 + Σ p_j·E N(r − j), and E N² likewise, with N = 0 where nothing is left.
    """
    table = np.asarray(survival, dtype=float)
    kinds, deepest = table.shape[0], table.shape[1] + 1
    edges = np.hstack([np.ones((kinds, 1)), table, np.zeros((kinds, 1))])
    chances = -np.diff(edges, axis=1)[:, ::-1].T  # the most tokens first, as the cycles left stand in memory
    mean, square = np.zeros((2, deepest + output_len, kinds))
    for row in range(deepest, deepest + output_len):
        before = slice(row - deepest, row)
        one = (chances * mean[before]).sum(axis=0)
        mean[row] = 1 + one
        square[row] = 1 + 2 * one + (chances * square[before]).sum(axis=0)
    mean, square = mean[deepest - 1 :], square[deepest - 1 :]
    return mean, np.maximum(square - mean**2, 0.0)
