"""Forwards with all-reduces over two GPUs in one start of their processes after the other, as CSV: what a start alone changes.

Run: python -m benchmarks.allreduce_starts calibration/models/llama-3.1-8b.json starts.csv 180
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path

from calibration.allreduce import COLUMNS, Row, Way, Work, in_a_forward, measured
from calibration.machine import Machine
from calibration.shapes import ModelShape, read_shape
from specsim.errors import SpecsimError
from specsim.runs.allreduce import NCCL

SETTINGS = ("default", "nop2p")
TOKENS = (16, 64, 96, 256, 384)
"""What servers have in plain decode and in verifies of 3 and 5 drafts where batches of 16 and 64 requests need most all-reduce time."""
RANKS = 2


def start_in_turn(shape: ModelShape, output: Path, seconds: float, command: str) -> None:
    """Start every setting's processes in turn until the time is up, each start on disk before the next.

    Forwards go to `output`, what their all-reduces took in them to a file beside it. Raises SpecsimError where one of them is
    there already, and where a start fails.
    """
    beside = output.with_name(f"{output.stem}-in-forward.csv")
    for path in (output, beside):
        if path.exists():
            raise SpecsimError(f"{path} is there already: give another name, or move it away")
    work = Work("forward", RANKS, tokens=TOKENS, shape=shape, command=command)
    for start, nccl in starts(seconds):
        rows = measured(work, Way(NCCL, nccl))
        append(output, ("start", *COLUMNS["forward"]), ({"start": start, **row} for row in rows))
        append(beside, COLUMNS["allreduce"], in_a_forward(rows, shape))


def starts(seconds: float) -> Iterator[tuple[int, str]]:
    """Numbers of starts and settings, every setting in turn, none once the time is up; how much is left is told behind each."""
    end = time.monotonic() + seconds
    for start in count(1):
        for nccl in SETTINGS:
            if time.monotonic() > end:
                return
            yield start, nccl
            print(f"start {start} of {nccl}: {end - time.monotonic():.0f} s left", file=sys.stderr)


def append(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Put rows on disk behind those that are there."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main(
    arguments: Sequence[str] | None = None,
    start: Callable[[ModelShape, Path, float, str], None] = start_in_turn,
    name: str = "allreduce_starts",
    doc: str | None = __doc__,
) -> None:
    """Read what is asked, and start; exit code 2 where it cannot be measured."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="a Hugging Face config.json, or the folder that holds it")
    parser.add_argument("output", type=Path, help="a CSV that is not there yet; what goes with it is put beside it")
    parser.add_argument("seconds", type=float, help="no start begins after so long")
    given = parser.parse_args(arguments)
    try:
        shape = read_shape(given.model)
        shape.split(RANKS)  # raises where it does not divide
        machine = Machine.here()
        if not machine.on_gpu or machine.count < RANKS:
            parser.error(f"this takes {RANKS} GPUs, and none or fewer are here")
        start(
            shape,
            given.output,
            given.seconds,
            f"{parser.prog} {given.model.name} {given.output.name} {given.seconds:g}",
        )
    except ImportError:
        parser.error("torch is not installed: pip install torch, in a build for this machine's GPUs")
    except (SpecsimError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
