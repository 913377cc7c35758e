"""Cycles over two GPUs by their parts, of three and five drafts, in one start of their processes after the other, as CSV.

Run: python -m benchmarks.drafting_cycles calibration/models/llama-3.1-8b.json cycles.csv 60
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.allreduce_starts import RANKS, append, main, starts
from calibration.allreduce import Way, Work, measured
from calibration.shapes import ModelShape
from specsim.errors import SpecsimError
from specsim.runs.allreduce import NCCL

CYCLES = tuple((drafts, requests) for requests in (1, 4, 16, 64) for drafts in (3, 5))
"""Drafts and requests."""
PARTS = ("verify", "gather", "launches", "wide", "between", "narrow")
"""What a cycle is of, each of a kind its median; `alone_ms` is the verify with nothing beside it."""
COLUMNS = ("start", "nccl", "implementation", "drafts", "batch_size", "alone_ms", *(f"{part}_ms" for part in PARTS), "cuda_graph", "ranks",
           "hardware", "nccl_version", "source")  # fmt: skip


def cycles_in_turn(shape: ModelShape, output: Path, seconds: float, command: str) -> None:
    """Start every setting's processes in turn until the time is up, each start on disk before the next.

    Raises SpecsimError where the output is there already, and where a start fails.
    """
    if output.exists():
        raise SpecsimError(f"{output} is there already: give another name, or move it away")
    work = Work("cycle", RANKS, cycles=CYCLES, shape=shape, graphs=(True,), command=command)
    for start, nccl in starts(seconds):
        append(output, COLUMNS, ({"start": start, **row} for row in measured(work, Way(NCCL, nccl))))


if __name__ == "__main__":
    main(start=cycles_in_turn, name="drafting_cycles", doc=__doc__)
