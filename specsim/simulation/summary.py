"""What a simulated run says: latencies, throughput, batch sizes, acceptance, and whether the server kept up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from specsim.metrics import Latency, RequestRows, Slo, Window, goodput, output_tok_s, steady_window
from specsim.quantities import FloatArray, IntArray
from specsim.simulation.serving import Server, ServingRun, Steps

_BACKLOG = 3.0  # standard deviations of a Poisson count: less growth is chance


@final
@dataclass(frozen=True)
class Summary:
    """Statistics of the steady requests of one run (`steady_window`), and of the cycles of all.

    Latencies [ms]; `request_rate` arrivals a second; `goodput` requests a second within the SLO, None without one.
    `batch_share` is the share of decoding time by batch size, shape (max_batch_size + 1,). `accept_length` is what a
    cycle that drafts emits, bonus included and before an output's end cuts it, NaN where none does; `accept_histogram`
    counts those cycles by accepted drafts. `in_flight` requests were in the server on average, and `littles_law` is what
    rate times time in it says; they differ by what the ends of the window cut. Over the second half of the arrivals the
    backlog grew by `backlog_growth` requests a second, `backlog_noise` of it by chance (one standard deviation, infinite
    in a closed loop). `extrapolated_share` is the share of decoding time in cycles outside what was measured.
    """

    requests: int
    warm_up: int
    cool_down: int
    request_rate: float
    ttft_ms: Latency
    tpot_ms: Latency
    e2e_ms: Latency
    output_tok_s: float
    goodput: float | None
    batch_share: FloatArray
    accept_length: float
    accept_histogram: IntArray
    in_flight: float
    littles_law: float
    backlog_growth: float
    backlog_noise: float
    preemptions: int
    extrapolated_share: float

    @property
    def mean_batch_size(self) -> float:
        """Requests that decode together, averaged over decoding time."""
        return float((self.batch_share * np.arange(self.batch_share.size)).sum())

    @property
    def saturated(self) -> bool:
        """Whether the server cannot keep up, as far as this run tells."""
        return saturated([self])

    @classmethod
    def of(cls, server: Server, run: ServingRun, slo: Slo | None = None, *, open_loop: bool = True) -> Summary:
        """The statistics of a run; a closed loop has no backlog."""
        window = steady_window(run.rows)
        rows, span = run.rows.only(window.steady), window.end_ms - window.start_ms
        histogram = _histogram(server, run)
        growth, noise = backlog_growth(run.rows) if open_loop else (0.0, math.inf)
        rate = rows.e2e_ms.size / span
        weight, beyond = _decoding(server, run.steps, window)
        return cls(
            rows.e2e_ms.size,
            window.warm_up,
            window.cool_down,
            1000.0 * rate,
            Latency.of(rows.ttft_ms),
            Latency.of(rows.tpot_ms),
            Latency.of(rows.e2e_ms),
            output_tok_s(run.rows, window.start_ms, window.end_ms),
            None if slo is None else goodput(rows, slo, span),
            weight,
            _mean_length(histogram),
            histogram,
            _in_flight(run.rows, window),
            rate * float(rows.e2e_ms.mean()),
            growth,
            noise,
            run.preemptions,
            beyond,
        )


def saturated(replicas: Sequence[Summary]) -> bool:
    """Whether the backlog of a server under one load grew by more than chance, over all replicas together."""
    growth = sum(each.backlog_growth for each in replicas)
    return growth > _BACKLOG * math.hypot(*(each.backlog_noise for each in replicas))


def backlog_growth(rows: RequestRows) -> tuple[float, float]:
    """By how many requests a second the server falls behind in the second half of the arrivals, and the noise of that."""
    half, last = (float(rows.arrival_ms.max()) * share for share in (0.5, 1.0))
    came, went = (((half < times) & (times <= last)).sum() for times in (rows.arrival_ms, rows.finish_ms))
    seconds = max(last - half, 1e-9) / 1000.0
    return float(came - went) / seconds, math.sqrt(max(came, 1)) / seconds


def _in_flight(rows: RequestRows, window: Window) -> float:
    inside = np.minimum(rows.finish_ms, window.end_ms) - np.maximum(rows.arrival_ms, window.start_ms)
    return float(np.maximum(inside, 0.0).sum() / (window.end_ms - window.start_ms))


def _histogram(server: Server, run: ServingRun) -> IntArray:
    drafted = [
        counts for spec, counts in zip(server.times.specs, run.accepted_drafts, strict=True) if spec.num_steps > 0
    ]
    longest = max((counts.size for counts in drafted), default=1)
    padded = [np.pad(counts, (0, longest - counts.size)) for counts in drafted]
    return np.asarray(np.sum([np.zeros(longest, dtype=np.int64), *padded], axis=0), dtype=np.int64)


def _mean_length(histogram: IntArray) -> float:
    cycles = histogram.sum()
    return float((histogram * np.arange(1, histogram.size + 1)).sum() / cycles) if cycles else math.nan


def _decoding(server: Server, steps: Steps, window: Window) -> tuple[FloatArray, float]:
    """Share of decoding time in the window by batch size, and the share that is extrapolated."""
    ends = np.minimum(steps.start_ms + steps.duration_ms, window.end_ms)
    time = np.maximum(ends - np.maximum(steps.start_ms, window.start_ms), 0.0) * (steps.cycles > 0)
    by_size = np.bincount(steps.decoding, weights=time, minlength=server.max_batch_size + 1)
    total = time.sum()
    if not total > 0:
        return np.zeros_like(by_size), 0.0
    beyond = server.times.extrapolated[steps.configuration, steps.decoding]
    return by_size / total, float((time * beyond).sum() / total)
