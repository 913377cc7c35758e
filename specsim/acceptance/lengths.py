"""Accept lengths that a law leaves uncertain, and what two of them have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from specsim.quantities import BoolArray, FloatArray, IntArray


@final
@dataclass(frozen=True)
class Lengths:
    """Accept lengths of n configurations under an uncertain law, their errors as half-widths at quantities.LEVEL.

    `value`, `low` and `high`, of shape (n,), are the lengths and the ends of their intervals. `shared`, of shape
    (n, p), is how far log(value) moves along each of p independent directions of the law's parameters; `own`, of
    shape (n,), is the law's relative error at each, which no two configurations share. `extrapolated` marks those
    deeper, or with more branches, than any that the law was fitted to.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    shared: FloatArray
    own: FloatArray
    extrapolated: BoolArray

    def square_apart(self, one: IntArray, other: IntArray) -> FloatArray:
        """Squared half-width of log(L_one/L_other) (eq. 11); what moves both alike cancels. Indices broadcast."""
        both = np.where(np.equal(one, other), 0.0, np.square(self.own)[one] + np.square(self.own)[other])
        for moves in self.shared.T:
            both += np.square(moves[one] - moves[other])
        return np.asarray(both)
