"""Accept length of a chain under a constant acceptance rate, both ways, and what one length says of another."""

from __future__ import annotations

import numpy as np

from specsim.errors import ConfigurationError
from specsim.quantities import FloatArray, Floats, Ints

_NEWTON_STEPS = 40  # the worst case over 0 to 64 steps takes 9; a chain's length is convex in the rate


def chain_accept_length(accept_rate: Floats, num_steps: Ints | Floats) -> Floats:
    """Accept length of a chain, bonus included (eq. 19): Σ_{i=0..S} α^i = (1 − α^{S+1})/(1 − α).

    Arguments broadcast; α in [0, 1]. Source: Leviathan et al., arXiv 2211.17192.
    """
    rate, steps = np.broadcast_arrays(np.asarray(accept_rate, dtype=float), np.asarray(num_steps))
    if not ((rate >= 0) & (rate <= 1)).all():
        raise ConfigurationError("an acceptance rate lies between 0 and 1")
    # expm1/log1p keep the digits near α = 1, where numerator and denominator both vanish
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.expm1((steps + 1) * np.log(rate)) / (rate - 1)
    length = np.where(rate == 1, steps + 1, np.where(rate == 0, 1.0, length))
    return _as_given(np.clip(length, 1.0, steps + 1))  # rounding may leave the last digit outside


def required_accept_rate(accept_length: Floats, num_steps: Ints | Floats) -> Floats:
    """Constant per-token acceptance rate that gives a chain this accept length (eq. 9), solved on [0, 1].

    Arguments broadcast. A length of 1 or less needs rate 0; one above num_steps + 1 cannot be had: NaN.
    """
    target, steps = np.broadcast_arrays(np.asarray(accept_length, dtype=float), np.asarray(num_steps))
    inside = (target > 1) & (target < steps + 1)
    rate = np.where(target <= 1, 0.0, np.where(target == steps + 1, 1.0, np.nan))
    rate[inside] = _newton(target[inside], steps[inside])
    return _as_given(rate)


def _newton(target: FloatArray, steps: FloatArray) -> FloatArray:
    """Solve eq. 19 for the rate; the chord's (L − 1)/S lies below the root, so one step lands above it."""
    rate = (target - 1) / steps
    for _ in range(_NEWTON_STEPS):
        length = np.asarray(chain_accept_length(rate, steps))
        slope = (length - (steps + 1) * rate**steps) / (1 - rate)
        step = np.divide(
            length - target, slope, out=np.zeros_like(rate), where=slope > 0
        )  # 0 at the last double below 1
        rate = np.clip(rate - step, 0.0, np.nextafter(1.0, 0.0))
        if np.max(np.abs(step), initial=0.0) < 1e-15:
            break
    return rate


def accept_length_bounds(accept_length: float, measured_steps: int, num_steps: int) -> tuple[float, float]:
    """What a chain's accept length at one depth says, without any law, of the same drafter's at another.

    From eq. 18, L = 1 + Σ S_i, and a survival S_i that cannot rise with i: the drafts cut off or added are
    worth at most the mean, and at least nothing (when added) or the mean share that stays (when cut).
    """
    if measured_steps == 0:
        return (1.0, 1.0 + num_steps)
    drafts = accept_length - 1
    mean_share = drafts * num_steps / measured_steps
    if num_steps <= measured_steps:
        return (1 + mean_share, 1 + min(drafts, num_steps))
    return (accept_length, 1 + mean_share)


def _as_given(values: FloatArray) -> Floats:
    return float(values) if values.ndim == 0 else values
