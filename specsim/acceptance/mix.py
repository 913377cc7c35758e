"""One accept length for work of several kinds: cycles are averaged, not ratios (eq. 22)."""

from __future__ import annotations

import numpy as np

from specsim.errors import ConfigurationError
from specsim.quantities import FloatArray


def mixed_accept_length(
    accept_lengths: FloatArray, errors: FloatArray, token_shares: FloatArray, *, together: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Accept length and standard error of a mix in which kind i emits a share wᵢ of the tokens (eq. 22).

    A token of kind i costs 1/Lᵢ cycles, so L = Σw/Σ(wᵢ/Lᵢ): a harmonic mean. The kinds run along the first axis of
    `accept_lengths` and `errors`; shares are positive and need not add up to 1. Errors count as independent, or as moving together.
    """
    shares = np.asarray(token_shares, dtype=float)
    if shares.size == 0 or not (shares > 0).all() or not np.isfinite(shares).all():
        raise ConfigurationError("the weights of a mix are numbers above 0")
    shares = (shares / shares.sum()).reshape(-1, *(1,) * (np.ndim(accept_lengths) - 1))
    length = 1 / (shares / accept_lengths).sum(axis=0)
    slope = length**2 * shares / np.asarray(accept_lengths) ** 2
    parts = slope * errors
    return length, parts.sum(axis=0) if together else np.sqrt((parts**2).sum(axis=0))
