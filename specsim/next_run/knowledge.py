"""What measurements say of coefficients, and what one more makes of it (eq. 15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specsim.quantities import FloatArray

_TOLD = 1e-7  # relative part of a gradient that may lie along what is open: rounding, not doubt
_ROUNDING = 1e-9  # entries of an open direction that differ from 0 by arithmetic only


@dataclass(frozen=True)
class Knowledge:
    """What measurements say of p coefficients: `covariance` (p, p) Σ, and `blind` (q, p), rows spanning what is open.

    It is the limit of Σ + κ·blindᵀ·blind for κ → ∞: along `blind` the variance is infinite.
    """

    covariance: FloatArray
    blind: FloatArray

    def tells(self, gradient: FloatArray) -> bool:
        """Whether a quantity φᵀθ of gradient (p,) has a finite variance."""
        outside, scale = np.abs(self.blind @ gradient), np.abs(self.blind) @ np.abs(gradient)
        return bool((outside <= _TOLD * scale).all())

    def after(self, gradient: FloatArray, variance: float) -> Knowledge:
        """What is known once xᵀθ is measured with this noise variance [ms²] (eq. 15); x is `gradient`, (p,).

        Σ' = Σ − Σx·xᵀΣ/(σ² + xᵀΣx) where xᵀθ was told before. Where it was open, with N = `blind`: k = NᵀNx/|Nx|²,
        Σ' = (1 − kxᵀ)Σ(1 − kxᵀ)ᵀ + σ²kkᵀ, the limit of the same formula, and one direction less is open.
        """
        if self.tells(gradient):
            pull = self.covariance @ gradient
            shrunk = self.covariance - np.outer(pull, pull) / (variance + gradient @ pull)
            return replace(self, covariance=shrunk)
        seen = self.blind @ gradient
        gain = self.blind.T @ seen / (seen @ seen)
        keep = np.eye(gain.size) - np.outer(gain, gradient)
        left = np.linalg.svd(seen[None])[2][1:] @ self.blind  # combinations that the measurement does not see
        still = np.where(np.abs(left) > _ROUNDING * np.abs(left).max(axis=1, keepdims=True), left, 0.0)
        return Knowledge(keep @ self.covariance @ keep.T + variance * np.outer(gain, gain), still)
