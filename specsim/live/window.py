"""The steady part of a load: the time in which all requests decode and none prefills, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specsim.quantities import BoolArray, FloatArray, IntArray

BATCHES, LEAST_BATCHES = 32, 4
"""Most batches of a mean, and the fewest that tell its error."""
CYCLES_A_BATCH = 5
"""Cycles that a batch has at least: with fewer, its mean is no mean."""
_MERGED_TO = 8


@dataclass(frozen=True)
class Stream:
    """One request as its client saw it: when it was sent and when each chunk of output arrived [s], shape (m,).

    `told` holds the output tokens so far that the server stated with each chunk, NaN where it stated none;
    `completion_tokens` all of them, None where the request has not ended or nobody said.
    """

    sent_s: float
    chunk_s: FloatArray
    told: FloatArray
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True)
class Reading:
    """A measured mean with its standard error, NaN where too little was seen to know it, and the error's dof."""

    value: float
    error: float
    dof: int


@dataclass(frozen=True)
class Window:
    """What the steady part of a load shows; times [ms] and rates by chunk and by token.

    `token_ms` is the time in which a request goes on by one token while all decode and none prefills: no TPOT
    (`metrics`), which holds the prefills of others as well.

    `clear_s` is its length over `intervals` stretches; `ramp_s`, `between_s` (prefills and changes of requests) and
    `tail_s` are the parts left out. `most_running` is the most requests that decoded at once; `tokens_told` is False
    where a request's tokens were spread evenly over its chunks. Without a steady part readings are NaN.
    """

    concurrency: int
    requests: int
    chunks: int
    tokens: float
    clear_s: float
    intervals: int
    ramp_s: float
    between_s: float
    tail_s: float
    most_running: int
    tokens_told: bool
    chunk_ms: Reading
    token_ms: Reading
    tokens_per_chunk: Reading
    context_len: float | None

    @property
    def output_tok_s(self) -> Reading:
        """Throughput of all requests together, B over the time per token [tok/s]."""
        rate = self.concurrency * 1000.0 / self.token_ms.value
        return Reading(rate, rate * self.token_ms.error / self.token_ms.value, self.token_ms.dof)


@dataclass(frozen=True)
class _Gaps:
    """Times between chunks of one request that lie whole in the steady part; arrays of shape (n,), in order of time."""

    length_s: FloatArray
    tokens: FloatArray
    request: IntArray
    context: FloatArray


def steady_window(streams: Sequence[Stream], concurrency: int, idle_s: float = 0.0) -> Window:
    """What the time in which `concurrency` requests decode at once shows; a gap between chunks counts if it lies in it.

    Errors are those of batch means over time, joined in pairs while neighbours go together; of what depends on the
    tokens, the larger of that and the one between requests, which share their prompts' acceptance. `idle_s` is how
    long nothing was asked of the server in between.
    """
    seen = [stream for stream in streams if stream.chunk_s.size]
    starts, ends, most = clear_intervals(seen, concurrency)
    gaps = _clear_gaps(seen, starts, ends)
    steps, ones = gaps.length_s.size / concurrency, np.ones_like(gaps.length_s)
    by_chunk = batch_means(gaps.length_s, ones, steps)
    known = not np.isnan(gaps.context).any() and gaps.context.size > 0
    return Window(
        concurrency,
        requests=int(np.unique(gaps.request).size),
        chunks=int(gaps.length_s.size),
        tokens=float(gaps.tokens.sum()),
        clear_s=float((ends - starts).sum()),
        intervals=int(starts.size),
        **_left_out(streams, starts, ends, idle_s),
        most_running=most,
        tokens_told=all(not np.isnan(stream.told).any() for stream in seen),
        chunk_ms=_in_ms(by_chunk),
        token_ms=_in_ms(_wider(gaps.length_s, gaps.tokens, gaps.request, steps)),
        tokens_per_chunk=_wider(gaps.tokens, ones, gaps.request, steps),
        context_len=float(gaps.context.mean()) if known else None,
    )


def clear_intervals(streams: Sequence[Stream], concurrency: int) -> tuple[FloatArray, FloatArray, int]:
    """Starts and ends [s] of the stretches in which so many requests are between first and last chunk; the most at once."""
    first = np.array([stream.chunk_s[0] for stream in streams])
    last = np.array([stream.chunk_s[-1] for stream in streams])
    times = np.concatenate([first, last])
    change = np.concatenate([np.ones(first.size, dtype=int), -np.ones(last.size, dtype=int)])
    order = np.lexsort((change, times))  # at one moment the ends come first
    times, running = times[order], np.cumsum(change[order])
    clear = np.flatnonzero(running[:-1] >= concurrency)
    kept = clear[times[clear + 1] > times[clear]]
    return times[kept], times[kept + 1], int(running.max(initial=0))


def _left_out(streams: Sequence[Stream], starts: FloatArray, ends: FloatArray, idle_s: float) -> dict[str, float]:
    """Seconds before, between and after the steady stretches, without those in which nothing was asked."""
    began = min((stream.sent_s for stream in streams), default=0.0)
    ended = max((stream.chunk_s[-1] for stream in streams if stream.chunk_s.size), default=began)
    if not starts.size:
        return {"ramp_s": float(ended - began), "between_s": 0.0, "tail_s": 0.0}
    ramp, tail = starts[0] - began, ended - ends[-1]
    between = (ends[-1] - starts[0]) - (ends - starts).sum() - idle_s
    return {"ramp_s": float(ramp), "between_s": max(float(between), 0.0), "tail_s": float(tail)}


# -- gaps between chunks -------------------------------------------------------------------------------------------


def _clear_gaps(streams: Sequence[Stream], starts: FloatArray, ends: FloatArray) -> _Gaps:
    tokens = tokens_so_far(streams)
    told = [stream.prompt_tokens for stream in streams if stream.prompt_tokens is not None]
    average = float(np.mean(told)) if told else np.nan  # of those that ended, where a server tells only then
    prompts = [average if stream.prompt_tokens is None else stream.prompt_tokens for stream in streams]
    sizes = [stream.chunk_s.size - 1 for stream in streams]
    before = _joined([stream.chunk_s[:-1] for stream in streams])
    after = _joined([stream.chunk_s[1:] for stream in streams])
    context = _joined([prompt + count[:-1] for prompt, count in zip(prompts, tokens, strict=True)])
    kept = np.flatnonzero(_inside(before, after, starts, ends))
    order = kept[np.argsort(after[kept], kind="stable")]
    request = np.repeat(np.arange(len(streams)), sizes)
    gained = _joined([np.diff(count) for count in tokens])
    return _Gaps((after - before)[order], gained[order], request[order], context[order])


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([np.empty(0), *parts])


def _inside(before: FloatArray, after: FloatArray, starts: FloatArray, ends: FloatArray) -> BoolArray:
    """Whether each gap lies whole in one stretch; stretches that touch are one."""
    if not starts.size:
        return np.zeros(before.size, dtype=bool)
    new = np.concatenate([[True], starts[1:] > ends[:-1]])
    starts, ends = starts[new], ends[np.concatenate([new[1:], [True]])]
    at = np.searchsorted(starts, before, side="right") - 1
    return np.asarray((at >= 0) & (after <= ends[np.maximum(at, 0)]))


def tokens_so_far(streams: Sequence[Stream]) -> list[FloatArray]:
    """Output tokens of each request after each of its chunks, shape (m,): as told, else spread over its chunks.

    The first chunk carries the prefill's one token. What is spread is the request's own total, or the average of those
    that ended; where no server said a total, a chunk counts as a token.
    """
    ended = [s for s in streams if s.completion_tokens is not None and s.chunk_s.size > 1]
    chunks = sum(s.chunk_s.size - 1 for s in ended)
    average = sum((s.completion_tokens or 0) - 1 for s in ended) / chunks if chunks else 1.0
    return [_tokens(stream, average) for stream in streams]


def _tokens(stream: Stream, average: float) -> FloatArray:
    if not np.isnan(stream.told).any():
        return stream.told
    count = stream.chunk_s.size
    if stream.completion_tokens is not None and count > 1:
        average = (stream.completion_tokens - 1) / (count - 1)
    return np.asarray(1.0 + average * np.arange(count), dtype=float)


# -- means and their errors ------------------------------------------------------------------------------------------


def batch_means(numerator: FloatArray, denominator: FloatArray, steps: float) -> Reading:
    """Σ numerator / Σ denominator over values in order of time, shapes (n,), with the error of its batch means.

    `steps` is how many independent moments the values come from: those of one cycle of a batch are one. Neighbouring
    batches are joined while the correlation of successive ones exceeds its own standard error, 1/√k.
    """
    if not numerator.size or not denominator.sum():
        return Reading(float("nan"), float("nan"), 0)
    value = float(numerator.sum() / denominator.sum())
    count = min(BATCHES, int(steps // CYCLES_A_BATCH), numerator.size)
    if count < LEAST_BATCHES:
        return Reading(value, float("nan"), 0)
    edges = np.arange(count) * numerator.size // count
    parts = np.add.reduceat(numerator - value * denominator, edges)
    while parts.size >= 2 * _MERGED_TO and _successive(parts) > parts.size**-0.5:
        parts = np.add.reduceat(parts, np.arange(0, parts.size - 1, 2))  # an odd one out joins the last pair
    return Reading(value, _error(parts, denominator), parts.size - 1)


def _successive(parts: FloatArray) -> float:
    """Correlation of each part with the next."""
    centred = parts - parts.mean()
    square = float(centred @ centred)
    return float(centred[:-1] @ centred[1:]) / square if square > 0 else 0.0


def _error(parts: FloatArray, denominator: FloatArray) -> float:
    """Standard error of a ratio from the residuals of k independent parts of it."""
    k = parts.size
    return float((k / (k - 1) * (parts @ parts)) ** 0.5 / denominator.sum())


def _wider(numerator: FloatArray, denominator: FloatArray, request: IntArray, steps: float) -> Reading:
    """The ratio with the larger of two errors: over time, and between requests where there are enough of them."""
    over_time = batch_means(numerator, denominator, steps)
    if np.isnan(over_time.error):
        return over_time
    _, at = np.unique(request, return_inverse=True)
    parts = np.bincount(at, weights=numerator - over_time.value * denominator).astype(float)
    if parts.size < LEAST_BATCHES:
        return over_time
    between = _error(parts, denominator)
    return Reading(over_time.value, between, parts.size - 1) if between > over_time.error else over_time


def _in_ms(reading: Reading) -> Reading:
    return Reading(reading.value * 1000.0, reading.error * 1000.0, reading.dof)
