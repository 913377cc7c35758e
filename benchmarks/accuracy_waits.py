"""A server that waits where a tensor-parallel one reduces: what eq. 17 says of a time that is known, as a markdown table.

Run: python -m benchmarks.accuracy_waits
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy_allreduce import HARNESS
from benchmarks.accuracy_tensor_parallel import DRAFT, TARGET
from benchmarks.held_out import whole
from specsim import Run, SpecConfig, load_runs
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.step_change import step_change
from specsim.cost.terms import PLAIN, Cycle
from specsim.quantities import FloatArray

FILE = HARNESS / "h200_waits_served_llama-3.1-8b.json"
CLOCKS = HARNESS / "h200_waits_clocks.csv"
SHORT, LONG = 5.0, 20.0
"""Waits in µs, each the label's number."""
BATCHES = (1, 4, 16, 64)


@dataclass(frozen=True)
class Waited:
    """Of one configuration at BATCHES: its all-reduces a step, what 15 µs more in each are told and measured to add [ms], shape (4,)."""

    all_reduces: int
    told_ms: FloatArray
    measured_ms: FloatArray

    @property
    def share(self) -> FloatArray:
        """Measured over told."""
        return np.asarray(self.measured_ms / self.told_ms)


@cache
def runs() -> tuple[Run, ...]:
    """Plain decode, 3 and 5 drafts of an 8B shape on one H200, under both waits."""
    return load_runs(FILE).runs


def waited(width: int) -> Waited:
    """A configuration by its draft tokens, 1 being plain decode."""
    spec = PLAIN if width == 1 else SpecConfig(width - 1, 1, width, "eagle3")
    found = {(run.nccl, run.workload.batch_size): run for run in runs() if _width(run) == width}
    at = [found["wait-5", batch] for batch in BATCHES]
    cycles = Cycle.stacked(
        [Cycle.of(spec, run.workload, "vllm").captured("vllm", run.setup.engine_version) for run in at]
    )
    change = step_change(_always(SHORT), _always(LONG), cycles, TARGET, DRAFT, gathered=False)
    told = change.decode_ms if width == 1 else change.cycle_ms
    measured = [whole(found["wait-20", batch]).best - whole(found["wait-5", batch]).best for batch in BATCHES]
    count = TARGET.all_reduces + (width - 1) * DRAFT.all_reduces
    return Waited(count, np.asarray(told), np.array(measured))


def _width(run: Run) -> int:
    return 1 if run.spec is None else int(run.spec.num_draft_tokens)


def _always(us: float) -> MeasuredCurve:
    """An all-reduce that takes as long for every message."""
    return MeasuredCurve("wait", (1.0, 1e9), (us, us), (us, us), (1, 1))


@cache
def clocks() -> dict[tuple[str, int], int]:
    """Median clock [MHz] during the loads of 64 requests, by setting and drafts."""
    with CLOCKS.open(encoding="utf-8") as lines:
        return {
            (row["nccl"], int(row["drafts"])): int(row["clocks_sm_mhz"])
            for row in csv.DictReader(lines)
            if row["batch_size"] == "64"
        }


def table() -> str:
    """A line for each configuration."""
    lines = [
        "| configuration | all-reduces | told | measured at batch 1 | 4 | 16 | 64 |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for width in (1, 4, 6):
        found = waited(width)
        cells = " | ".join(
            f"{ms:.3f} ms, {share:.2f} times" for ms, share in zip(found.measured_ms, found.share, strict=True)
        )
        name = "plain decode" if width == 1 else f"{width - 1} drafts"
        lines.append(f"| {name} | {found.all_reduces} | {found.told_ms[0]:.3f} ms | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
