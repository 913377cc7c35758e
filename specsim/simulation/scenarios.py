"""Many runs at once, rates × policies × replicas, and the request rate at which speculation stops paying (eq. 24)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import final

import numpy as np

from specsim.errors import ConfigurationError
from specsim.metrics import Slo
from specsim.quantities import FloatArray, IntArray
from specsim.simulation.arrivals import Load, PoissonLoad
from specsim.simulation.serving import Server, ServingRun, simulate
from specsim.simulation.summary import Summary
from specsim.uncertainty import quantile

_NARROW = 1.1
"""Of the rates around a crossover, one over the other: closer together, the logarithm of a ratio is straight enough."""


@final
@dataclass(frozen=True)
class Scenario:
    """A server under a load, one replica of it: plain frozen values, so that any executor can run it.

    The same seed and replica draw the same requests for every server, and at every rate the same closer together:
    differences between servers are not hidden behind those of their requests.
    """

    server: Server
    load: Load
    seed: int
    replica: int
    slo: Slo | None = None

    def run(self) -> ServingRun:
        """Every row of it."""
        traffic, cycles = (np.random.default_rng([self.seed, self.replica, stream]) for stream in (0, 1))
        return simulate(self.server, self.load.traffic(traffic), cycles)


def evaluate(scenario: Scenario) -> Summary:
    """The statistics of one scenario."""
    return Summary.of(scenario.server, scenario.run(), scenario.slo, open_loop=scenario.load.open_loop)


@final
@dataclass(frozen=True)
class Replicas:
    """The same figure of n replicas: its mean, and the interval of that mean at quantities.LEVEL, NaN of one replica."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: FloatArray) -> Replicas:
        """By Student's t of the replicas' scatter."""
        mean = float(np.mean(values))
        if values.size < 2:
            return cls(mean, float("nan"), float("nan"))
        half = quantile(values.size - 1) * float(np.std(values, ddof=1)) / float(np.sqrt(values.size))
        return cls(mean, mean - half, mean + half)


@final
@dataclass(frozen=True)
class LoadSweep:
    """Servers under loads: `summaries[server][load][replica]`."""

    servers: tuple[Server, ...]
    loads: tuple[Load, ...]
    summaries: tuple[tuple[tuple[Summary, ...], ...], ...]

    def values(self, server: int, figure: Callable[[Summary], float]) -> FloatArray:
        """A figure of one server, shape (loads, replicas)."""
        return np.array([[figure(summary) for summary in replicas] for replicas in self.summaries[server]])

    def each(self, server: int, figure: Callable[[Summary], float]) -> list[Replicas]:
        """A figure of one server by load."""
        return [Replicas.of(values) for values in self.values(server, figure)]

    def joined(self, other: LoadSweep) -> LoadSweep:
        """The same servers under the Poisson loads of both sweeps, in order of their rates."""
        loads = (*self.loads, *other.loads)
        order = np.argsort([load.request_rate for load in loads if isinstance(load, PoissonLoad)]).tolist()
        both = zip(self.summaries, other.summaries, strict=True)
        summaries = tuple(tuple((*one, *two)[at] for at in order) for one, two in both)
        return LoadSweep(self.servers, tuple(loads[at] for at in order), summaries)


def load_sweep(
    servers: Sequence[Server],
    loads: Sequence[Load],
    *,
    replicas: int = 5,
    seed: int = 0,
    slo: Slo | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LoadSweep:
    """Simulate every server under every load, `replicas` times; through any executor, as `sweep` does.

    Raises ConfigurationError without a server, load or replica, and as `simulate`.
    """
    if not servers or not loads or replicas < 1:
        raise ConfigurationError("a sweep of loads needs at least one server, one load and one replica")
    scenarios = [
        Scenario(server, load, seed, replica, slo)
        for server in servers
        for load in loads
        for replica in range(replicas)
    ]
    found = []
    for summary in (map if executor is None else executor.map)(evaluate, scenarios):
        found.append(summary)
        if progress is not None:
            progress(len(found), len(scenarios))
    rest: Iterator[Summary] = iter(found)
    return LoadSweep(
        tuple(servers),
        tuple(loads),
        tuple(tuple(tuple(next(rest) for _ in range(replicas)) for _ in loads) for _ in servers),
    )


@final
@dataclass(frozen=True)
class Crossover:
    """The request rate at which one server stops being faster than another, by mean end-to-end time.

    `request_rate` is None where it does not fall behind between the lowest and the highest rate; `ahead` says whether it
    is ahead at the lowest, None where that is within the replicas' scatter, `pays_until` up to which rate and
    `behind_from` from which on it is ahead or behind by more than that, None for none. The interval
    is that of the replicas' own crossings, its end None (beyond the rates) where some replica has none. `ratios` are by
    rate: end-to-end time of the first over that of the second.
    """

    request_rate: float | None
    interval: tuple[float | None, float | None] | None
    ahead: bool | None
    pays_until: float | None
    behind_from: float | None
    ratios: tuple[Replicas, ...]


def crossover(rates: FloatArray, first: FloatArray, second: FloatArray) -> Crossover:
    """Where `first` stops being below `second`, mean end-to-end times of shape (rates, replicas) (eq. 24).

    Linear in the logarithm of their ratio between two rates, the replicas paired.
    """
    log_ratio = np.log(first / second)
    ratios = tuple(Replicas.of(np.exp(row)) for row in log_ratio)
    mean = log_ratio.mean(axis=1)
    at = _crossing(rates, mean)
    behind = np.array([not each.low <= 1.0 for each in ratios]) & (mean > 0)  # NaN of one replica: its mean decides
    pays = np.array([not each.high >= 1.0 for each in ratios]) & (mean < 0)
    ahead = bool(pays[0]) if pays[0] or behind[0] else None
    until = float(rates[pays][-1]) if pays.any() else None
    since = float(rates[behind][0]) if behind.any() else None
    if at is None or not (behind & (rates > at)).any():
        return Crossover(None, None, ahead, until, since, ratios)
    own = [_crossing(rates, column) for column in log_ratio.T]
    return Crossover(at, _interval(at, own, log_ratio), ahead, until, since, ratios)


def rate_to_add(rates: FloatArray, first: FloatArray, second: FloatArray) -> float | None:
    """The rate that halves the bracket of a crossover, None where it is narrow or there is none; arrays as `crossover`.

    The ratio bends upwards with the load: over a wide bracket a straight line places the crossover too low, by more than
    the replicas scatter.
    """
    if crossover(rates, first, second).request_rate is None:
        return None
    i = int(_rises(np.log(first / second).mean(axis=1))[0])
    low, high = rates[i], rates[i + 1]
    return None if high / low <= _NARROW else float(f"{(low * high) ** 0.5:.3g}")


def _interval(at: float, own: list[float | None], log_ratio: FloatArray) -> tuple[float | None, float | None] | None:
    """Of the replicas' crossings by Student's t; by their extremes, open where one is missing, if some have none."""
    told = np.array([each for each in own if each is not None])
    if len(own) < 2:
        return None
    if told.size == len(own):
        spread = Replicas.of(told)
        return min(spread.low, at), max(spread.high, at)
    return (
        None if (log_ratio[0] >= 0).any() or not told.size else float(told.min()),
        None if (log_ratio[-1] < 0).any() or not told.size else float(told.max()),
    )


def _crossing(rates: FloatArray, log_ratio: FloatArray) -> float | None:
    """The first rate, in ascending order, at which the ratio rises through 1."""
    rises = _rises(log_ratio)
    if not rises.size:
        return None
    i = int(rises[0])
    share = -log_ratio[i] / (log_ratio[i + 1] - log_ratio[i])
    return float(rates[i] + share * (rates[i + 1] - rates[i]))


def _rises(log_ratio: FloatArray) -> IntArray:
    """After which rates the ratio rises through 1."""
    return np.flatnonzero((log_ratio[:-1] < 0) & (log_ratio[1:] >= 0))


def capacity(server: Server, prompt_len: float, output_len: float) -> float:
    """About how many requests a second of these mean lengths a server can serve at most, its KV cache apart.

    1000/(prompt·p + min n·C/B), at the batch size that is cheapest: a request is in n = (output − 1)/L cycles, and in one
    step more where its prompt is read beside decoding.
    """
    batch = np.arange(1, server.max_batch_size + 1)
    configuration = server.policy.by_batch(server.max_batch_size)[1:]
    lengths = np.array([_mean_length(server, at) for at in range(len(server.times.specs))])[configuration]
    context = prompt_len + output_len / 2
    cycle = server.times.fixed_ms[configuration, batch] + server.times.kv_ms[configuration, batch] * batch * context
    steps = (output_len - 1) / lengths + server.chunked_prefill
    busy = prompt_len * server.prefill.ms_per_token + float((steps * cycle / batch).min())
    return 1000.0 / max(busy, 1e-9)


def _mean_length(server: Server, configuration: int) -> float:
    """Mean tokens of a cycle under a configuration: the drawer's survival down to its depth."""
    spec = server.times.specs[configuration]
    if server.drawer is None or spec.num_steps == 0:
        return 1.0
    survival = server.drawer.survival[:, : int(spec.max_accept_length) - 1]
    return float(1 / np.mean(1 / (1 + survival.sum(axis=1))))
