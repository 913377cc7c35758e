"""Plots of a serving study: latency by load with the crossover, accept lengths, and what a benchmark of few prompts shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from specsim.errors import ConfigurationError
from specsim.quantities import LEVEL, FloatArray, Workload
from specsim.report.plots import COLOURS, DASHES, MARKERS
from specsim.simulation.policies import Policy
from specsim.simulation.requests import Benchmark, CycleTime, simulate_requests
from specsim.simulation.serving import Server
from specsim.simulation.study import ServingStudy
from specsim.simulation.summary import Summary, saturated

_BENCHMARKS = 4000
_NEAR, _FAR = (
    (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
    (1.0, 2.0, 5.0),
)  # ticks of a decade: of axes over little more than one, and more
_AXES = {"request_rate": "request rate [requests/s]", "concurrency": "concurrency [requests in flight]"}


def drawings(
    done: ServingStudy, prompts: int, progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The plots that a study has, by name, each drawn when called; a trace has no axis to draw latency against."""
    if done.axis[0] in _AXES:
        yield "latency_by_load", lambda: latency_figure(done)
    if done.found.servers[0].drawer is not None:
        yield "accept_lengths", lambda: accept_length_figure(done)
        yield "benchmark", lambda: benchmark_figure(done, prompts, progress)


def latency_figure(done: ServingStudy) -> Figure:
    """Mean end-to-end time and time per output token against load, a line a policy, the crossover marked (eq. 24).

    Hollow points are saturated: their latency depends on how long the load lasts.
    """
    figure = Figure(figsize=(8, 7.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    kinds: tuple[tuple[Axes, str, Callable[[Summary], float]], ...] = (
        (upper, "end-to-end time [ms]", lambda s: s.e2e_ms.mean),
        (lower, "time per output token [ms]", lambda s: s.tpot_ms.mean),
    )
    for axes, label, figure_of in kinds:
        for index in range(len(done.found.servers)):
            _draw_line(axes, done, index, figure_of)
        axes.set(ylabel=f"mean {label}", yscale="log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(10, _NEAR if high / low < 20 else _FAR))
        axes.yaxis.set_major_formatter("{x:,.12g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
    _draw_crossovers(upper, done)
    name, values = done.axis
    lower.set(xlabel=_AXES[name], xlim=(0, float(values.max()) * 1.03))
    upper.set_title("Latency by load, with and without speculation")
    upper.legend(fontsize="small", frameon=False)
    bands = f"bands: {LEVEL:.0%} interval over {done.replicas} replicas; " if done.replicas > 1 else ""
    _footnote(lower, f"{bands}hollow: saturated")
    return figure


def _draw_line(axes: Axes, done: ServingStudy, index: int, figure_of: Callable[[Summary], float]) -> None:
    told = done.found.each(index, figure_of)
    _, values = done.axis
    means, low, high = (np.array([getattr(each, end) for each in told]) for end in ("mean", "low", "high"))
    colour, marker = COLOURS[index % 4], MARKERS[index]
    axes.fill_between(values, np.maximum(low, means / 10), high, color=colour, alpha=0.12, linewidth=0)
    axes.plot(values, means, color=colour, linestyle=DASHES[index % 4], label=str(done.found.servers[index].policy))
    full = np.array([saturated(replicas) for replicas in done.found.summaries[index]])
    axes.plot(values[~full], means[~full], marker, color=colour)
    axes.plot(values[full], means[full], marker, color=colour, markerfacecolor="white")


def _draw_crossovers(axes: Axes, done: ServingStudy) -> None:
    _, values = done.axis
    for index, server in enumerate(done.found.servers):
        crossing = done.crossover(index)
        if crossing is None or crossing.request_rate is None:
            continue
        low, high = crossing.interval or (crossing.request_rate,) * 2
        ends = values[0] if low is None else low, values[-1] if high is None else high
        axes.axvspan(*ends, color=COLOURS[index % 4], alpha=0.15, linewidth=0)
        label = f"{server.policy} stops paying at {crossing.request_rate:.3g}/s"
        axes.axvline(crossing.request_rate, color=COLOURS[index % 4], linewidth=1, linestyle=":", label=label)


def accept_length_figure(done: ServingStudy) -> Figure:
    """How often a cycle emits 1, 2 … tokens under the first policy, over all its loads."""
    counts = np.sum([s.accept_histogram for replicas in done.found.summaries[0] for s in replicas], axis=0)
    emitted, share = np.arange(1, counts.size + 1), counts / counts.sum()
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(emitted, share, 0.7, color="0.6", edgecolor="black", linewidth=0.6)
    for tokens, part in zip(emitted, share, strict=True):
        axes.annotate(f"{part:.1%}", (tokens, part), (0, 3), textcoords="offset points", ha="center", fontsize="small")
    mean = float((emitted * share).sum())
    axes.axvline(mean, color="black", linestyle="--", label=f"mean {mean:.2f}")
    axes.set(xlabel="tokens emitted by a cycle (bonus included)", ylabel="share of cycles", xticks=emitted)
    axes.set_title(f"Accept lengths, {done.found.servers[0].policy}")
    axes.legend(frameon=False)
    _footnote(axes, f"{counts.sum():,} cycles of single requests")
    return figure


def benchmark_figure(done: ServingStudy, prompts: int, progress: Callable[[int, int], None] | None = None) -> Figure:
    """What a benchmark of so many prompts measures, one at a time, over many repeats; plain decode beside it (eq. 21)."""
    server = done.found.servers[0]
    rates = {count: _benchmarks(done, server, count, progress) for count in (prompts, 10 * prompts)}
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    edges = np.histogram_bin_edges(np.concatenate(list(rates.values())), 60).tolist()
    for (count, found), shade in zip(rates.items(), ("0.75", "0.35"), strict=True):
        spread = float(found.std() / found.mean())
        label = f"{count} prompts: {found.mean():.1f} tok/s ± {spread:.1%}"
        axes.hist(
            found, edges, density=True, histtype="stepfilled", color=shade, alpha=0.7, edgecolor="black", label=label
        )
    plain = _plain_rate(done)
    if plain is not None:
        axes.axvline(plain, color="black", linestyle="--", label=f"plain decode: {plain:.1f} tok/s")
    axes.set(xlabel="measured output_tok_s, one request at a time", ylabel="density", yticks=[])
    axes.set_title(f"What a benchmark measures, {_shape(server)}")
    axes.legend(frameon=False, fontsize="small")
    _footnote(
        axes,
        f"{_BENCHMARKS:,} benchmarks each, {done.question.output_len:.0f} output tokens a prompt,"
        f" {done.question.between_prompts:.0%} spread between prompts, timing noise of one run {done.model.noise.relative:.1%}",
    )
    return figure


def _shape(server: Server) -> str:
    return str(Policy.fixed(server.policy.deepest)) if server.policy.deepest else ""


def _benchmarks(
    done: ServingStudy, server: Server, prompts: int, progress: Callable[[int, int], None] | None
) -> FloatArray:
    spec, drawer = server.policy.deepest, server.drawer
    if spec is None or drawer is None:
        raise ConfigurationError("a server that drafts nothing has no accept lengths whose spread could be drawn")
    time = CycleTime.of(done.model, spec, Workload(1), done.nccl)
    benchmark = Benchmark(drawer, time, prompts, max(round(done.question.output_len), 1))
    return simulate_requests(benchmark, _BENCHMARKS, np.random.default_rng(done.seed), progress=progress).output_tok_s


def _plain_rate(done: ServingStudy) -> float | None:
    """Plain decode of one request [tok/s], None without a baseline."""
    if done.plain is None:
        return None
    return 1000.0 / float(done.model.decode(done.model.plain_cycle(np.ones(1)), done.nccl).value[0])


def _footnote(axes: Axes, text: str) -> None:
    axes.annotate(
        text, (0, 0), (0, -46), xycoords="axes fraction", textcoords="offset points", fontsize="x-small", color="0.3"
    )
