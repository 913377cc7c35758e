"""What an NCCL setting does to verify time at widths that were not measured under it (section 6).

One measured pair (the same width under two settings) allows several readings; they bracket the answer.
Every quantity travels as an Estimate, its value with its gradient in the model's coefficients, so that the
reading's own uncertainty comes along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.quantities import FloatArray


@dataclass(frozen=True)
class Estimate:
    """n values [ms] of shape (n,) and their gradients in the p coefficients, shape (n, p)."""

    value: FloatArray
    gradient: FloatArray

    def __add__(self, other: Estimate) -> Estimate:
        return Estimate(self.value + other.value, self.gradient + other.gradient)

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.gradient - other.gradient)

    def scaled(self, factor: FloatArray) -> Estimate:
        """The estimate times a constant of shape (n,) or (1,)."""
        return Estimate(self.value * factor, self.gradient * factor[:, None])

    def variance(self, covariance: FloatArray) -> FloatArray:
        """Variance φᵀΣφ (eq. 11), shape (n,)."""
        return np.maximum(self.covariance_with(self, covariance), 0.0)

    def covariance_with(self, other: Estimate, covariance: FloatArray) -> FloatArray:
        """Covariance φᵀΣψ (eq. 11), shape (n,)."""
        shared: FloatArray = np.einsum("ij,ij->i", self.gradient @ covariance, other.gradient)
        return shared


def ratio_reading(reference: Estimate, pair_setting: Estimate, pair_reference: Estimate) -> Estimate:
    """The setting multiplies time: V_s(T) = V_r(T)·V_s(T₀)/V_r(T₀)."""
    ratio = pair_setting.value / pair_reference.value
    gradient = reference.gradient * ratio[:, None] + (reference.value / pair_reference.value)[:, None] * (
        pair_setting.gradient - pair_reference.gradient * ratio[:, None]
    )
    return Estimate(reference.value * ratio, gradient)


def shift_reading(reference: Estimate, pair_setting: Estimate, pair_reference: Estimate) -> Estimate:
    """The setting saves the same time at every width: V_s(T) = V_r(T) + V_s(T₀) − V_r(T₀)."""
    return reference + (pair_setting - pair_reference)


def affine_reading(
    reference: Estimate, tokens: FloatArray, narrow: tuple[float, Estimate], wide: tuple[float, Estimate]
) -> Estimate:
    """Two differences, each (tokens, V_s − V_r), put a line through what is saved: fixed and per token.

    The narrow one comes from plain decode, on the assumption that decode and verify communicate alike.
    """
    (t_narrow, d_narrow), (t_wide, d_wide) = narrow, wide
    share = (tokens - t_narrow) / (t_wide - t_narrow)
    return reference + d_narrow.scaled(1 - share) + d_wide.scaled(share)
