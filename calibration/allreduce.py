"""All-reduces by size, setting and implementation, and what a tensor-parallel forward pays for them; each in its own processes."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.shapes import ModelShape
from specsim.errors import SpecsimError

SIZES = tuple(1024 * 2**power for power in range(13))
"""Messages from 1 KiB to 4 MiB."""

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512)
_SECONDS = 240

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "Ring": {"NCCL_ALGO": "Ring"},
    "Tree": {"NCCL_ALGO": "Tree"},
    **{
        f"{algorithm}-{protocol}": {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        for algorithm in ("Ring", "Tree")
        for protocol in ("LL", "LL128", "Simple")
    },
    "nop2p": {"NCCL_P2P_DISABLE": "1"},
    "nop2p-Ring-LL": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
    "nop2p-Ring-Simple": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
}
"""Labels and their environments; without peer access messages go through host memory, as on a box without it."""

NCCL, ONE_SHOT, TWO_SHOT, VLLM = "nccl", "one-shot", "two-shot", "vllm"
IMPLEMENTATIONS = {
    NCCL: "NCCL, under each setting",
    ONE_SHOT: "torch symmetric memory, each rank reads whole messages",
    TWO_SHOT: "torch symmetric memory, each rank sums a share",
    VLLM: "what vLLM takes for a size: its custom all-reduce, or what it falls back on",
}
"""What carries the messages; NCCL settings are settings of the first, the others are run under the default."""

ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Multicast in the switch is left alone: a fault there outlives the program."""

FAILED = "failed"
"""What a process that ends early prints of why, beside its rows."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """How messages are carried: by which implementation, under which NCCL setting."""

    implementation: str
    nccl: str = "default"

    def __str__(self) -> str:
        return f"NCCL setting {self.nccl}" if self.implementation == NCCL else self.implementation

    def took(self, row: Row) -> bool:
        """Whether a row is of it; one that states no implementation is NCCL's."""
        return (row.get("implementation") or NCCL, row["nccl"]) == (self.implementation, self.nccl)


def ways(implementations: Iterable[str], settings: Iterable[str]) -> list[Way]:
    """NCCL under every setting, where it is asked for, and each other implementation once."""
    return [Way(name, nccl) for name in implementations for nccl in (settings if name == NCCL else ("default",))]


@dataclass(frozen=True)
class Work:
    """What the processes of one way do: `kind` allreduce or forward, over how many ranks; `command` is what was called."""

    kind: str
    ranks: int
    sizes: Sequence[int] = SIZES
    tokens: Sequence[int] = TOKENS
    shape: ModelShape | None = None
    graphs: Sequence[bool] = (True, False)
    seed: int = 0
    command: str = ""

    def written(self, way: Way) -> str:
        """The work for a process to read."""
        shape = None if self.shape is None else self.shape.__dict__
        return json.dumps({**self.__dict__, "shape": shape, "way": way.__dict__})

    @classmethod
    def read(cls, text: str) -> tuple[Work, Way]:
        """The work and the way that were written."""
        fields = json.loads(text)
        way, shape = fields.pop("way"), fields.pop("shape")
        return cls(**fields, shape=ModelShape(**shape) if shape else None), Way(**way)


def measured(work: Work, way: Way) -> list[Row]:
    """The rows of one way, by processes under its environment; raises SpecsimError with their last words."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={work.ranks}",
        "-m", "calibration.worker", work.written(way),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[way.nccl], **ALWAYS}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise SpecsimError(f"{way}: no end within {_SECONDS} s; it may not work here") from None
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = [row for row in told if FAILED not in row]
    if done.returncode != 0 or not rows:
        words = (
            [row[FAILED] for row in told if FAILED in row]
            or done.stderr.strip().splitlines()[-1:]
            or ["(nothing said)"]
        )
        raise SpecsimError(f"{way}: its processes ended with {done.returncode}: {words[0]}")
    return rows


@dataclass
class Table:
    """A CSV that grows by whole ways; one that is there is gone on with."""

    path: Path
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, way: Way) -> bool:
        """Whether a way is in it."""
        return any(map(way.took, self.rows))

    def add(self, way: Way, rows: Iterable[Row]) -> None:
        """Put a way's rows on disk, in place of those it has of it: the whole table beside the old, then over it."""
        self.rows = [row for row in self.rows if not way.took(row)] + list(rows)
        beside = self.path.with_name(self.path.name + ".part")
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        beside.replace(self.path)


_SHARED = ("ranks", "hardware", "nccl_version", "source")
COLUMNS = {
    "allreduce": ("nccl", "implementation", "bytes", "time_us", "spread_us", "cuda_graph", "pattern", *_SHARED),
    "forward": (
        "nccl",
        "implementation",
        "tokens",
        "bytes",
        "with_ms",
        "without_ms",
        "spread_us",
        "cuda_graph",
        *_SHARED,
    ),
}
"""Columns of the two tables; the first is what `specsim comm` reads."""


PATTERNS = ("back to back", "after a product", "after a cold product")
"""What a single all-reduce stands in; the last product's weight comes from memory, as a forward's does."""


def placed(rows: Iterable[Row], pattern: str) -> Iterator[Row]:
    """The rows of one pattern."""
    return (row for row in rows if row["pattern"] == pattern)


def in_a_forward(rows: Iterable[Row], shape: ModelShape) -> Iterator[Row]:
    """All-reduces where they are paid: what each forward takes longer with them, over their number (eq. 17)."""
    for row in rows:
        added_us = 1000.0 * (float(row["with_ms"]) - float(row["without_ms"]))
        if added_us > 0:  # less than the noise of two forwards says nothing
            told = {"time_us": added_us, "spread_us": float(row.get("spread_us") or 0)}
            each = {name: round(us / shape.all_reduces, 3) for name, us in told.items() if us}
            yield {**row, **each, "pattern": "in a forward"}
