"""Forwards with all-reduces over several GPUs in one start of their processes after the other, as CSV: what a start alone changes.

Run: python -m benchmarks.allreduce_starts calibration/models/llama-3.1-8b.json starts.csv 180
"""

from __future__ import annotations

import csv
import sys
import time
from itertools import count
from pathlib import Path

from calibration.allreduce import COLUMNS, Way, Work, measured
from calibration.shapes import read_shape
from specsim.runs.allreduce import NCCL

SETTINGS = ("default", "nop2p")
TOKENS = (16, 64, 96, 256, 384)
"""What servers have in plain decode and in verifies of 3 and 5 drafts where batches of 16 and 64 requests need most all-reduce time."""
RANKS = 2


def main(model: Path, output: Path, seconds: float) -> None:
    """Start every setting's processes in turn until the time is up, each start on disk before the next."""
    work = Work(
        "forward", RANKS, tokens=TOKENS, shape=read_shape(model), command="python -m benchmarks.allreduce_starts"
    )
    end = time.monotonic() + seconds
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("start", *COLUMNS["forward"]), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for start in count(1):
            for nccl in SETTINGS:
                if time.monotonic() > end:
                    return
                writer.writerows({"start": start, **row} for row in measured(work, Way(NCCL, nccl)))
                file.flush()
                print(f"start {start} of {nccl}: {end - time.monotonic():.0f} s left", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
