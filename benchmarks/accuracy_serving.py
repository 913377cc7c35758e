"""Simulated TPOT beside that of a real server at fixed concurrency, as a markdown table.

Run: python -m benchmarks.accuracy_serving
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.groups import DATA, DENSE
from specsim import CostModel, Run, SpecConfig, fit
from specsim.acceptance import ConstantRate, required_accept_rate
from specsim.cost.terms import PLAIN
from specsim.runs.run import RunSet
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import ClosedLoad, UniformLengths
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes
from specsim.simulation.serving import Server, simulate

APART_MS = 0.25
"""Between two requests of the client's wave; from 0.15 to 0.4 ms every error stays below 3%. All that is taken from
these figures: the client's log has no send times."""

MOST_CONCURRENCY = 64
"""Above it the client is what limits: at 256 its TPOT is 18.6 ms beside engine steps of 10.4, and throughput scatters
by 21% from repeat to repeat; at 128 tokens reach it in chunks of two steps (its gaps are 9.7 ms, a step 7.0)."""

_REQUESTS = 640  # of all replicas together: then draws scatter by less than 0.5%
_MAX_BATCHED_TOKENS = 8192


@dataclass(frozen=True)
class Served:
    """One measured load: requests in flight, all sent as one wave, what they were, and their mean TPOT [ms]."""

    concurrency: int
    num_steps: int
    prompt_len: int
    output_len: int
    accept_length: float
    tpot_ms: float


def served() -> list[Served]:
    """Every measured load."""
    with (DATA / "h200_vllm_served.csv").open(encoding="utf-8") as lines:
        return [
            Served(
                *(int(row[name]) for name in ("concurrency", "num_steps", "prompt_len", "output_len")),
                *(float(row[name]) for name in ("accept_length", "tpot_ms")),
            )
            for row in csv.DictReader(lines)
        ]


@dataclass(frozen=True)
class Compared:
    """A load's error, relative to what was measured, and whether its cycles lie outside what was fitted."""

    load: Served
    error: float
    extrapolated: bool


def compared(model: CostModel, load: Served, apart_ms: float = APART_MS) -> Compared:
    """Mean TPOT of the same wave, at the accept length that was measured with it, beside the measured one."""
    spec = SpecConfig(load.num_steps, 1, load.num_steps + 1, "eagle3") if load.num_steps else PLAIN
    policy, drawer = Policy.fixed(spec), None
    if load.num_steps:
        drawer = Drawer.of(ConstantRate(float(required_accept_rate(load.accept_length, load.num_steps))), spec)
    length = float(load.prompt_len)
    times = StepTimes.of(model, policy, load.concurrency, (length, length + load.output_len))
    server = Server(times, policy, Prefill.of(model), drawer, load.concurrency, _MAX_BATCHED_TOKENS)
    prompts, outputs = (UniformLengths(each, each) for each in (load.prompt_len, load.output_len))
    wave = ClosedLoad(load.concurrency, load.concurrency, prompts, outputs, apart_ms)
    draws = np.random.default_rng(0)
    replicas = -(-_REQUESTS // load.concurrency)
    tpot = np.mean([simulate(server, wave.traffic(draws), draws).rows.tpot_ms.mean() for _ in range(replicas)])
    return Compared(load, float(tpot) / load.tpot_ms - 1, bool(times.extrapolated[0, -1]))


Part = Callable[[Served], int]
PARTS: tuple[tuple[str, Part | None], ...] = (
    ("no row (in sample)", None),
    ("a depth", lambda load: load.num_steps),
    ("a batch size", lambda load: load.concurrency),
)


def held_out(part: Part | None, apart_ms: float = APART_MS) -> Iterator[Compared]:
    """Every load up to MOST_CONCURRENCY, by a model whose fit saw no cycle of its part."""
    loads = [load for load in served() if load.concurrency <= MOST_CONCURRENCY]
    if part is None:
        model = fit(DENSE.runs).model
        yield from (compared(model, load, apart_ms) for load in loads)
        return
    for value in sorted({part(load) for load in loads}):
        without = fit(RunSet(tuple(run for run in DENSE.runs.runs if part(_as_served(run)) != value))).model
        if without.setting(without.reference).decode_batches:  # else nothing says what plain decode takes
            yield from (compared(without, load, apart_ms) for load in loads if part(load) == value)


def _as_served(run: Run) -> Served:
    """A run by the names of a load, for splitting."""
    steps = 0 if run.spec is None else int(run.spec.num_steps)
    return Served(int(run.workload.batch_size), steps, 0, 0, 1.0, 0.0)


def table() -> str:
    """A line for each part that is left out, and one for a wave that is sent at once."""
    lines = [
        "| left out of the fit | loads | median error | largest error | inside the range | largest error there |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(name, list(held_out(part))) for name, part in PARTS]
    lines.append(_line("no row; all requests sent at once", list(held_out(None, 0.0))))
    return "\n".join(lines)


def _line(name: str, found: list[Compared]) -> str:
    sizes, inside = (np.abs([c.error for c in some]) for some in (found, [c for c in found if not c.extrapolated]))
    cells = (name, len(found), f"{np.median(sizes):.1%}", f"{sizes.max():.1%}", inside.size, f"{inside.max():.1%}")
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    print(table())
