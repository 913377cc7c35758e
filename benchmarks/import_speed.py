"""How fast `specsim import` reads a log whose lines mostly do not match, beside a plain loop over its lines.

python benchmarks/import_speed.py [MB]
"""

from __future__ import annotations

import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specsim.runs.importing import import_files

MEGABYTE = 1_000_000
ROUNDS = 5
LIMIT_MB_S = 100
WORDS = [
    "INFO",
    "request",
    "completed",
    "status",
    "POST",
    "/v1/completions",
    "latency",
    "ms",
    "token",
    "cache",
    "block",
    "scheduler",
    "worker",
    "time",
    "draft",
    "memory",
    "usage",
    "throughput",
    "batch",
]
DECODE = (
    "[2026-11-01 10:00:{second:02d} TP0] Decode batch, #running-req: 8, #token: {tokens}, token usage: 0.03, accept len: 2.91,"
    " accept rate: 0.64, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0\n"
)


def noise() -> bytes:
    """A megabyte of lines as servers write them, none of which is read."""
    source = random.Random(0)
    lines = (f"[2026-11-01 10:00:{n % 60:02d} TP0] {' '.join(source.choices(WORDS, k=14))}\n" for n in range(20_000))
    return "".join(lines).encode()[:MEGABYTE].rsplit(b"\n", 1)[0] + b"\n"


def write(path: Path, megabytes: int, matching: int) -> None:
    """A log of so many megabytes, with a few decode lines at its end."""
    block = noise()
    with path.open("wb") as log:
        for _ in range(megabytes):
            log.write(block)
        log.writelines(DECODE.format(second=n % 60, tokens=1000 + 900 * n).encode() for n in range(matching))


def loop(path: Path) -> None:
    """Every line, and nothing done with it."""
    with path.open("rb") as log:
        for _ in log:
            pass


def rates(path: Path, read: Callable[[Path], object]) -> float:
    """Megabytes a second, the median of a few rounds."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        read(path)
        seconds.append(time.perf_counter() - start)
    return path.stat().st_size / MEGABYTE / statistics.median(seconds)


def imported(path: Path) -> object:
    return import_files([path], {})


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        short, long, dense = (Path(folder) / name for name in ("short.log", "long.log", "dense.log"))
        write(short, 10, 3)
        imported(short)
        before = peak_mb()
        write(long, megabytes, 3)
        plain, reading = rates(long, loop), rates(long, imported)
        print(f"{megabytes} MB of lines that do not match: {reading:.0f} MB/s (limit {LIMIT_MB_S})")
        print(f"a plain loop over the lines: {plain:.0f} MB/s; import takes {plain / reading:.2f} times as long")
        print(f"memory beyond that of 10 MB: {peak_mb() - before:.0f} MB")
        write(dense, 0, 100_000)
        print(f"lines that all match: {rates(dense, imported):.1f} MB/s")


if __name__ == "__main__":
    main()
