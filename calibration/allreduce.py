"""All-reduces by size and setting, and what a tensor-parallel forward pays for them; each setting in processes of its own."""

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

ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Multicast in the switch is left alone: a fault there outlives the program."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What one setting's processes do: `kind` allreduce or forward, over how many ranks; `command` is what was called."""

    kind: str
    ranks: int
    sizes: Sequence[int] = SIZES
    tokens: Sequence[int] = TOKENS
    shape: ModelShape | None = None
    graphs: Sequence[bool] = (True, False)
    seed: int = 0
    command: str = ""

    def written(self, setting: str) -> str:
        """The work for a process to read."""
        shape = None if self.shape is None else self.shape.__dict__
        return json.dumps({**self.__dict__, "shape": shape, "setting": setting})

    @classmethod
    def read(cls, text: str) -> tuple[Work, str]:
        """The work and the setting that were written."""
        fields = json.loads(text)
        setting, shape = fields.pop("setting"), fields.pop("shape")
        return cls(**fields, shape=ModelShape(**shape) if shape else None), setting


def measured(work: Work, setting: str) -> list[Row]:
    """The rows of one setting, by processes under its environment; raises SpecsimError with their last words."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={work.ranks}",
        "-m", "calibration.worker", work.written(setting),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[setting], **ALWAYS}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment, check=False)
    except subprocess.TimeoutExpired:
        raise SpecsimError(f"NCCL setting {setting}: no end within {_SECONDS} s; it may not work here") from None
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not rows:
        last = (done.stderr.strip().splitlines() or ["(nothing said)"])[-1]
        raise SpecsimError(f"NCCL setting {setting}: its processes ended with {done.returncode}: {last}")
    return rows


@dataclass
class Table:
    """A CSV that grows by whole settings; one that is there is gone on with."""

    path: Path
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, setting: str) -> bool:
        """Whether a setting is in it."""
        return any(row["nccl"] == setting for row in self.rows)

    def add(self, setting: str, rows: Iterable[Row]) -> None:
        """Put a setting's rows on disk, in place of those it has of it: the whole table beside the old, then over it."""
        self.rows = [row for row in self.rows if row["nccl"] != setting] + list(rows)
        beside = self.path.with_name(self.path.name + ".part")
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        beside.replace(self.path)


_SHARED = ("ranks", "hardware", "nccl_version", "source")
COLUMNS = {
    "allreduce": ("nccl", "bytes", "time_us", "spread_us", "cuda_graph", "pattern", *_SHARED),
    "forward": ("nccl", "tokens", "bytes", "with_ms", "without_ms", "spread_us", "cuda_graph", *_SHARED),
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
