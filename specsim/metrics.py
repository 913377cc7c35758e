"""One definition of every serving metric, for simulated and measured requests alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from specsim.errors import ConfigurationError
from specsim.quantities import BoolArray, FloatArray, IntArray

PERCENTILES = (50, 90, 95, 99)


@final
@dataclass(frozen=True)
class RequestRows:
    """What became of n requests: times [ms] since the start and counts, each of shape (n,), by order of arrival.

    `admitted_ms` is when a request's prompt began to be read, NaN where only a client saw it; `cycles` how many decode
    cycles it took part in, chunks of its stream for a client.
    """

    arrival_ms: FloatArray
    admitted_ms: FloatArray
    first_token_ms: FloatArray
    finish_ms: FloatArray
    prompt_len: IntArray
    output_len: IntArray
    cycles: IntArray

    @property
    def ttft_ms(self) -> FloatArray:
        """Time to first token: from arrival."""
        return self.first_token_ms - self.arrival_ms

    @property
    def e2e_ms(self) -> FloatArray:
        """Time to last token: from arrival."""
        return self.finish_ms - self.arrival_ms

    @property
    def tpot_ms(self) -> FloatArray:
        """Time per output token after the first; NaN for outputs of one token."""
        gaps = np.where(self.output_len > 1, self.output_len - 1.0, np.nan)
        return (self.finish_ms - self.first_token_ms) / gaps

    def only(self, which: BoolArray) -> RequestRows:
        """Some of the rows."""
        return RequestRows(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


@final
@dataclass(frozen=True)
class Window:
    """Which requests count as steady, shape (n,), and from when to when [ms]; `warm_up` and `cool_down` were left out."""

    steady: BoolArray
    start_ms: float
    end_ms: float
    warm_up: int
    cool_down: int


def steady_window(rows: RequestRows) -> Window:
    """The requests between warm-up and cool-down.

    Warm-up by MSER-5 over end-to-end times in order of arrival (White 1997): of all truncations at a multiple of 5
    within the first half, the one that leaves the mean of the rest with the least standard error. Cool-down are the
    requests that arrived no earlier than the oldest one in flight when the last one arrived: after that the load falls.
    """
    arrival, last = rows.arrival_ms, float(rows.arrival_ms.max())
    oldest = float(arrival[rows.finish_ms > last].min(initial=np.inf))
    kept = arrival < oldest
    begin = mser5(rows.e2e_ms[kept]) if kept.any() else 0
    if kept.sum() - begin < 5:
        kept, begin = np.ones_like(kept), 0
    steady = kept.copy()
    steady[np.flatnonzero(kept)[:begin]] = False
    start = float(arrival[steady].min())
    end = float(rows.finish_ms.max()) if kept.all() else min(oldest, last)
    return Window(steady, start, end, begin, int((~kept).sum()))


def mser5(values: FloatArray) -> int:
    """How many of the first values MSER-5 leaves out: those whose removal leaves the mean the least standard error."""
    batches = values[: values.size // 5 * 5].reshape(-1, 5).mean(axis=1)
    if batches.size < 4:
        return 0
    rest = np.arange(batches.size, 0, -1.0)
    centred = batches - batches.mean()
    total, square = (np.cumsum(series[::-1])[::-1] for series in (centred, centred**2))
    error = np.maximum(square - total**2 / rest, 0.0) / rest**2
    return 5 * int(np.argmin(error[: batches.size // 2]))


@final
@dataclass(frozen=True)
class Slo:
    """The most that a request may take [ms] to count as good; None where nothing is asked."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        if any(limit is not None and not limit > 0 for limit in (self.ttft_ms, self.tpot_ms, self.e2e_ms)):
            raise ConfigurationError("the limits of an SLO are times above 0")

    def met(self, rows: RequestRows) -> BoolArray:
        """The requests within every limit, shape (n,); an output of one token has no TPOT to be late with."""
        good = np.ones(rows.output_len.shape, dtype=bool)
        for name, limit in (("ttft_ms", self.ttft_ms), ("tpot_ms", self.tpot_ms), ("e2e_ms", self.e2e_ms)):
            if limit is not None:
                good &= ~(getattr(rows, name) > limit)
        return good


@final
@dataclass(frozen=True)
class Latency:
    """Mean and percentiles [ms] of one latency over requests, NaN ones left out."""

    mean: float
    percentiles: dict[int, float]

    @classmethod
    def of(cls, values: FloatArray) -> Latency:
        """The latency of n requests; NaN throughout where none has it."""
        told = values[~np.isnan(values)]
        if not told.size:
            return cls(float("nan"), dict.fromkeys(PERCENTILES, float("nan")))
        return cls(float(told.mean()), dict(zip(PERCENTILES, np.percentile(told, PERCENTILES).tolist(), strict=True)))


def goodput(rows: RequestRows, slo: Slo, span_ms: float) -> float:
    """Requests a second that meet an SLO, of those that arrived over a span."""
    return float(slo.met(rows).sum() / span_ms * 1000.0)


def output_tok_s(rows: RequestRows, start_ms: float, end_ms: float) -> float:
    """Output tokens a second between two times [ms]; those after a request's first count as emitted evenly."""
    first = (rows.first_token_ms >= start_ms) & (rows.first_token_ms < end_ms)
    length = rows.finish_ms - rows.first_token_ms
    inside = np.minimum(rows.finish_ms, end_ms) - np.maximum(rows.first_token_ms, start_ms)
    share = np.clip(np.divide(inside, length, out=np.zeros_like(length), where=length > 0), 0.0, 1.0)
    return float((first + share * (rows.output_len - 1)).sum() / (end_ms - start_ms) * 1000.0)
