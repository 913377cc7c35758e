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
from specsim.runs.allreduce import IN_A_CYCLE, IN_A_FORWARD, LAUNCH, NCCL, setting_name

SIZES = tuple(1024 * 2**power for power in range(13))
"""Messages from 1 KiB to 4 MiB."""

GATHERED = (*(16 * 1024 * 4**power for power in range(7)), 2**27)
"""Logits of a step that are gathered, all ranks' together: 16 KiB to 128 MiB."""

TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of the forwards: those that batches of a power of two have at 1, 2, 3, 4, 6 and 8 a request, for between two sizes an all-reduce can step."""
SECONDS = 240
_GRACE_S = 40

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "Ring": {"NCCL_ALGO": "Ring"},
    "Tree": {"NCCL_ALGO": "Tree"},
    **{
        f"{algorithm}-{protocol}": {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        for algorithm in ("Ring", "Tree")
        for protocol in ("LL", "LL128", "Simple")
    },
    "no-mixing": {"NCCL_GRAPH_MIXING_SUPPORT": "0"},
    "nop2p": {"NCCL_P2P_DISABLE": "1"},
    "nop2p-Ring-LL": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"},
    "nop2p-Ring-Simple": {"NCCL_P2P_DISABLE": "1", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"},
}
"""Labels and their environments; without peer access messages go through host memory, as on a box without it.

Without mixing NCCL leaves out what keeps its calls in graphs and outside them in order, and forbids a call outside graphs before every graph
with calls of the same communicator has ended.
"""

ONE_SHOT, TWO_SHOT, VLLM, VLLM_NCCL = "one-shot", "two-shot", "vllm", "vllm-nccl"
IMPLEMENTATIONS = (NCCL, ONE_SHOT, TWO_SHOT, VLLM, VLLM_NCCL)
"""What carries the messages; NCCL settings are settings of the first, the others are run under the default.

One shot and two are torch's symmetric memory (each rank reads the messages of all, or sums a share for all); then what vLLM takes for
a size, and NCCL as vLLM calls it where its own all-reduce is off.
"""

ENVIRONMENTS = {VLLM_NCCL: {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}}
"""What an implementation's processes find in their environment, beside the setting's."""

ALWAYS = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
"""Multicast in the switch is left alone: a fault there outlives the program. FlashInfer's all-reduce in vLLM may take it."""

FAILED = "failed"
"""What a process that ends early prints of why, beside its rows."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """How messages are carried: by which implementation, under which NCCL setting."""

    implementation: str
    nccl: str = "default"

    @property
    def name(self) -> str:
        """What `specsim comm` calls it: the setting, or the implementation where it is not NCCL's."""
        return setting_name(self.nccl, self.implementation)

    def __str__(self) -> str:
        return f"NCCL setting {self.nccl}" if self.implementation == NCCL else self.implementation

    @classmethod
    def of(cls, row: Row) -> Way:
        """How a row's message was carried; one that states no implementation is NCCL's."""
        return cls(row.get("implementation") or NCCL, row["nccl"])


def ways(implementations: Iterable[str], settings: Iterable[str]) -> list[Way]:
    """NCCL under every setting, where it is asked for, and each other implementation once."""
    return [Way(name, nccl) for name in implementations for nccl in (settings if name == NCCL else ("default",))]


@dataclass(frozen=True)
class Work:
    """What the processes of one way do: `kind` allreduce, gather, forward or cycle (by drafts and requests), over how many ranks.

    `command` is what was called.
    """

    kind: str
    ranks: int
    sizes: Sequence[int] = SIZES
    tokens: Sequence[int] = TOKENS
    shape: ModelShape | None = None
    graphs: Sequence[bool] = (True, False)
    gathered: Sequence[int] = GATHERED
    cycles: Sequence[tuple[int, int]] = ()
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
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        **SETTINGS[way.nccl],
        **ALWAYS,
        **ENVIRONMENTS.get(way.implementation, {}),
    }
    returncode, out, err = _ended(command, environment, way)
    told = list(filter(None, map(_row, out.splitlines())))
    rows = [row for row in told if FAILED not in row]
    if returncode != 0 or not rows:
        own = [row[FAILED] for row in told if FAILED in row]
        words = own or err.strip().splitlines()[-1:] or ["(nothing said)"]
        raise SpecsimError(f"{way}: its processes ended with {returncode}: {words[0]}")
    return rows


def _ended(command: list[str], environment: dict[str, str], way: Way) -> tuple[int, str, str]:
    """How the launcher ended, and what it and its processes said; ended with them where it takes too long."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as launcher:
        try:
            out, err = launcher.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            launcher.terminate()  # upon which it ends its processes, in sessions of their own; killed, it would leave them
            try:
                launcher.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
            raise SpecsimError(f"{way}: no end within {SECONDS} s; it may not work here") from None
        return launcher.returncode, out, err


def _row(line: str) -> Row | None:
    """A row of a process; None for any other line, such as a log's."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


@dataclass
class Table:
    """A CSV that grows by whole ways; one that is there is gone on with, and keeps columns of its own."""

    path: Path
    columns: Sequence[str]
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                try:
                    table = csv.DictReader(file)
                    names, self.rows = table.fieldnames or ["nccl"], list(table)
                except (UnicodeDecodeError, csv.Error) as error:
                    raise SpecsimError(f"{self.path}: cannot be gone on with ({error}); move it away") from None
            if "nccl" not in names or any(not row.get("nccl") or None in row for row in self.rows):
                raise SpecsimError(f"{self.path}: cannot be gone on with: no table of all-reduces; move it away")
            self.columns = [*self.columns, *(name for name in names if name not in self.columns)]

    def refuse_others(self, asked: Row) -> None:
        """Raise SpecsimError where a row states another value of what is asked, such as other ranks."""
        for at, row in enumerate(self.rows, 2):
            for name, value in asked.items():
                if row.get(name) and row[name] != str(value):
                    raise SpecsimError(
                        f"{self.path}: row {at}: {name} is {row[name]}, and this would measure {value};"
                        " give another -o, or move the file away"
                    )

    def has(self, way: Way) -> bool:
        """Whether a way is in it, with all that is measured of it now."""
        needed = _NEEDED & set(self.columns)
        own = [row for row in self.rows if Way.of(row) == way]
        return any(all(row.get(name) for name in needed) for row in own)

    def add(self, way: Way, rows: Iterable[Row]) -> None:
        """Put a way's rows on disk, in place of those it has of it: the whole table beside the old, then over it."""
        self.rows = [row for row in self.rows if Way.of(row) != way] + list(rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".part")
        with beside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        beside.replace(self.path)


_NEEDED = {"drafting_ms", "narrow_ms", "launch_us"}
"""Columns that tables of before lack, whose forwards mostly ran alone or between wide drafts: a way without them is measured again."""

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
        "drafting_ms",
        "wide_ms",
        "narrow_ms",
        "launch_us",
        "spread_us",
        "drafting_spread_us",
        "cuda_graph",
        *_SHARED,
    ),
}
"""Columns of the two forms of tables; the first, which gathers have too, is what `specsim comm` reads."""


PATTERNS = ("back to back", "after a product", "after a cold product")
"""What a single all-reduce stands in; the last product's weight comes from memory, as a forward's does."""


def placed(rows: Iterable[Row], pattern: str) -> Iterator[Row]:
    """The rows of one pattern."""
    return (row for row in rows if row["pattern"] == pattern)


def in_a_forward(rows: Iterable[Row], shape: ModelShape) -> Iterator[Row]:
    """All-reduces where they are paid, in a forward and in one in a whole cycle, and what a single launch takes there.

    An all-reduce takes what a forward takes longer with them than alone and without, over their number (eq. 17). Not than
    without them between drafts: such forwards are the faster the longer drafts wait for messages (docs/accuracy.md).
    """
    for row in rows:
        for pattern, spent, spread in (
            (IN_A_FORWARD, "with_ms", "spread_us"),
            (IN_A_CYCLE, "drafting_ms", "drafting_spread_us"),
        ):
            added_us = 1000.0 * (float(row.get(spent) or 0) - float(row["without_ms"]))
            if added_us > 0:  # less than the noise of two forwards says nothing, and older tables have no drafts
                told = {"time_us": added_us, "spread_us": float(row.get(spread) or 0)}
                each = {name: round(us / shape.all_reduces, 3) for name, us in told.items() if us}
                yield {**row, "spread_us": None, **each, "pattern": pattern}
        if row.get("launch_us"):
            yield {**row, "time_us": row["launch_us"], "spread_us": None, "pattern": LAUNCH}
