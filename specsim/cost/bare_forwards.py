"""Bare forwards: what the target's forward takes alone, by tokens, under what served steps take (section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from specsim.cost.curves import never_falling, slope_of_last_octave
from specsim.errors import ConfigurationError
from specsim.quantities import BoolArray, FloatArray, Setup

_SAME = ("hardware", "gpus", "tensor_parallel", "precision", "cuda_graph")


@dataclass(frozen=True)
class BareForwards:
    """The target's forward timed alone as a curve: `tokens` rising, `times_ms` never falling, shapes (n,) (eq. 13).

    `raw_ms` are the times before wider forwards were held to take no less than narrower ones; `source` says what was
    measured, under `setup`.
    """

    tokens: tuple[float, ...]
    times_ms: tuple[float, ...]
    raw_ms: tuple[float, ...]
    source: str
    setup: Setup = field(default_factory=Setup)

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(f"bare forwards: {problem}")

    @classmethod
    def of(
        cls, tokens: Sequence[float], times_ms: Sequence[float], source: str, setup: Setup | None = None
    ) -> BareForwards:
        """The curve of single measurements (n,) in any order: at each count the least, then the nearest that never falls.

        The least, since what configurations of as many tokens take beside each other (attention by request) is the
        served runs' to tell. Raises ConfigurationError on counts below 1 or times not above 0.
        """
        counts, times = np.asarray(tokens, dtype=float), np.asarray(times_ms, dtype=float)
        if (
            counts.shape != times.shape
            or not counts.size
            or not (np.isfinite(times) & (times > 0) & (counts >= 1)).all()
        ):
            raise ConfigurationError(f"bare forwards of {source}: a time above 0 ms for each count, from 1 token on")
        rising, group = np.unique(counts, return_inverse=True)
        least = np.full(rising.size, np.inf)
        np.minimum.at(least, group, times)
        held = never_falling(least, np.ones(rising.size))
        return cls(tuple(rising.tolist()), tuple(held.tolist()), tuple(least.tolist()), source, setup or Setup())

    def time_ms(self, tokens: FloatArray) -> FloatArray:
        """Time [ms] at tokens (n,): straight between counts, flat below the least, the last octave's slope beyond."""
        slope = slope_of_last_octave(self.tokens, self.times_ms)
        beyond = np.maximum(np.asarray(tokens, dtype=float) - self.tokens[-1], 0.0)
        return np.asarray(np.interp(tokens, self.tokens, self.times_ms) + slope * beyond, dtype=float)

    def beyond(self, tokens: FloatArray) -> BoolArray:
        """Where tokens (n,) lie outside the curve."""
        return np.asarray((tokens < self.tokens[0]) | (tokens > self.tokens[-1]))

    def scaled(self, factor: float) -> BareForwards:
        """The curve times a factor above 0: layers of the model over those that were measured, say."""
        times, raw = (tuple(factor * time for time in each) for each in (self.times_ms, self.raw_ms))
        return replace(self, times_ms=times, raw_ms=raw, source=f"{self.source} × {factor:g}")

    @property
    def largest_correction(self) -> float:
        """Largest relative change that the demand never to fall made; 0 for times that rise."""
        return float(np.abs(np.array(self.times_ms) / np.array(self.raw_ms) - 1).max())

    def unlike(self, setup: Setup) -> tuple[str, ...]:
        """Fields in which these were made otherwise than served runs of a setup, as far as both state them.

        Hardware is alike where one name holds the other: drivers say NVIDIA H200 where people say H200.
        """
        pairs = [(name, getattr(self.setup, name), getattr(setup, name)) for name in _SAME]
        return tuple(name for name, ours, theirs in pairs if None not in (ours, theirs) and not _alike(ours, theirs))


def _alike(one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        short, long = sorted((one.casefold(), other.casefold()), key=len)
        return short in long
    return one == other


def _problems(curve: BareForwards) -> list[str]:
    counts, times, raw = (np.array(each) for each in (curve.tokens, curve.times_ms, curve.raw_ms))
    if not counts.size or not counts.size == times.size == raw.size:
        return ["one time for each count of tokens, and one at least"]
    found = []
    if not (np.isfinite(counts).all() and counts[0] >= 1 and (np.diff(counts) > 0).all()):
        found.append("counts of tokens are at least 1 and rise")
    if not (np.isfinite([*times, *raw]).all() and min(*times, *raw) > 0 and (np.diff(times) >= 0).all()):
        found.append("times are above 0 ms and never fall with tokens")
    return found
