"""Requests generated cycle by cycle: rows of tokens, cycles, time and accepted drafts; statistics after (eq. 21)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from typing import final

import numpy as np

from specsim.cost.model import CostModel
from specsim.errors import ConfigurationError
from specsim.prediction import cycle_cost
from specsim.quantities import FloatArray, IntArray, SpecConfig, Workload
from specsim.simulation.acceptance import Drawer

_CYCLES = 16  # of every request at a time: few are drawn beyond the last token, and arrays stay in the cache
_ROWS = 4096  # requests of one chunk, or one replica's


@final
@dataclass(frozen=True)
class CycleTime:
    """What a cycle takes: its mean [ms], and relative standard deviations from run to run and from cycle to cycle.

    The noise of a run is log-normal and common to all cycles of a replica; that of a cycle has a gamma distribution,
    whose sums are known. Both have a mean of 1.
    """

    cycle_ms: float
    between_runs: float = 0.0
    between_cycles: float = 0.0

    def __post_init__(self) -> None:
        noises = (self.between_runs, self.between_cycles)
        if not (0 < self.cycle_ms < np.inf and all(0 <= noise < np.inf for noise in noises)):
            raise ConfigurationError(f"a cycle takes a time above 0, and noise is at least 0, not {self}")

    @classmethod
    def of(cls, model: CostModel, spec: SpecConfig, workload: Workload, nccl: str | None = None) -> CycleTime:
        """The cycle of one configuration by a cost model (eq. 1), with the noise of one measured run.

        Raises as `prediction.cycle_cost`.
        """
        cost = cycle_cost(model, spec, workload, model.reference if nccl is None else nccl, (1,))
        return cls(float(cost.total.value[0]), between_runs=model.noise.relative)

    def draw_ms(self, cycles: IntArray, generator: np.random.Generator) -> FloatArray:
        """Time of so many cycles of each request, shape (replicas, prompts), one run a replica [ms]."""
        widths = np.log1p(self.between_runs**2)
        run = np.exp(np.sqrt(widths) * generator.standard_normal((len(cycles), 1)) - widths / 2)
        if self.between_cycles == 0:
            return np.asarray(self.cycle_ms * run * cycles)
        shape = self.between_cycles**-2
        return np.asarray(self.cycle_ms * run * generator.gamma(shape * cycles) / shape)


@final
@dataclass(frozen=True)
class Benchmark:
    """What is run: prompts, each generating `output_len` tokens in cycles of one configuration at one batch size.

    `prompts` is how many, drawn anew in every replica, or their kinds (`Drawer.prompts`), the same in all. `output_len`
    counts the tokens that cycles emit, for all prompts or each; the one that a prefill emits is not among them.
    """

    drawer: Drawer
    time: CycleTime
    prompts: int | IntArray
    output_len: int | IntArray
    batch_size: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or self.batch_size < 1 or np.min(self.output_len) < 1:
            raise ConfigurationError("a benchmark has at least one prompt, one output token and a batch size of 1")
        if np.shape(self.output_len) not in ((), (self.count,)):
            raise ConfigurationError(f"output_len is one number, or one for each of {self.count} prompts")

    @property
    def count(self) -> int:
        """How many prompts there are."""
        return self.prompts if isinstance(self.prompts, int) else len(self.prompts)


@final
@dataclass(frozen=True)
class Requests:
    """A row for each request, arrays of shape (replicas, prompts): its kind, tokens, cycles and time [ms].

    `accepted`, with an axis more, counts its cycles by accepted drafts (0 … num_steps) as the verify counts them;
    `cut` are the tokens of the last cycle that lie beyond the output length: tokens + cut = Σ (j + 1)·accepted_j.
    """

    kind: IntArray
    tokens: IntArray
    cycles: IntArray
    cut: IntArray
    time_ms: FloatArray
    accepted: IntArray
    batch_size: int

    @property
    def tok_s_per_user(self) -> FloatArray:
        """Each request's rate [tok/s], shape (replicas, prompts)."""
        return np.asarray(1000.0 * self.tokens / self.time_ms)

    @property
    def output_tok_s(self) -> FloatArray:
        """Each replica's throughput: all tokens over all time, at the batch size (eq. 6) [tok/s], shape (replicas,)."""
        return np.asarray(1000.0 * self.batch_size * self.tokens.sum(axis=1) / self.time_ms.sum(axis=1))

    @property
    def accept_length(self) -> FloatArray:
        """Each replica's accept length as a verify counts it, bonus included, shape (replicas,)."""
        return np.asarray((self.tokens + self.cut).sum(axis=1) / self.cycles.sum(axis=1))


def simulate_requests(
    benchmark: Benchmark,
    replicas: int,
    generator: np.random.Generator,
    *,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Requests:
    """Run a benchmark so many times (eq. 21): every cycle drawn, the last one of a request cut at its output length.

    The same rows come from any executor: chunks of replicas each have a generator of their own, spawned from this one.
    """
    if replicas < 1:
        raise ConfigurationError(f"a simulation has at least one replica, not {replicas}")
    most = max(_ROWS // benchmark.count, 1)
    counts = [min(most, replicas - start) for start in range(0, replicas, most)]
    run = map if executor is None else executor.map
    parts: list[Requests] = []
    for part in run(_replicas, [benchmark] * len(counts), counts, generator.spawn(len(counts))):
        parts.append(part)
        if progress is not None:
            progress(len(parts), len(counts))
    arrays = (field.name for field in fields(Requests) if field.name != "batch_size")
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays}
    return Requests(**joined, batch_size=benchmark.batch_size)


def _replicas(benchmark: Benchmark, replicas: int, generator: np.random.Generator) -> Requests:
    """So many replicas of a benchmark: a plain function of plain values, so that any executor can run it."""
    shape = (replicas, benchmark.count)
    prompts = benchmark.prompts
    kinds = benchmark.drawer.prompts(shape, generator) if isinstance(prompts, int) else np.broadcast_to(prompts, shape)
    tokens = np.broadcast_to(np.asarray(benchmark.output_len, dtype=np.int64), shape)
    cycles, accepted = _generated(benchmark.drawer, kinds.ravel(), tokens.ravel(), generator)
    cycles, accepted = cycles.reshape(shape), accepted.reshape(*shape, -1)
    cut = accepted @ np.arange(1, benchmark.drawer.max_accept_length + 1) - tokens
    time_ms = benchmark.time.draw_ms(cycles, generator)
    return Requests(kinds, tokens, cycles, cut, time_ms, accepted, benchmark.batch_size)


def _generated(
    drawer: Drawer, kinds: IntArray, tokens: IntArray, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Cycles of each request until its last token, shape (n,), and how many emitted 1, 2 … tokens, (n, most)."""
    left = tokens.copy()
    cycles = np.zeros_like(left)
    accepted = np.zeros((left.size, drawer.max_accept_length), dtype=np.int64)
    running = np.arange(left.size)
    while running.size:
        emitted = drawer.draw(kinds[running], generator, _CYCLES)
        after = np.cumsum(emitted, axis=0)
        counted = np.where(after - emitted < left[running], emitted, 0)
        cycles[running] += np.count_nonzero(counted, axis=0)
        for length in range(1, drawer.max_accept_length + 1):
            accepted[running, length - 1] += np.count_nonzero(counted == length, axis=0)
        left[running] -= after[-1]
        running = running[left[running] > 0]
    return cycles, accepted
