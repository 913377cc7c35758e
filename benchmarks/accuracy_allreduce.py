"""Eq. 17 beside measured tensor-parallel forwards, as markdown tables.

Run: python -m benchmarks.accuracy_allreduce
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.groups import DATA
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.step_change import Shape, forward_change_ms, forward_ms
from specsim.quantities import BoolArray, FloatArray
from specsim.runs.allreduce_files import load_allreduce

HARNESS = Path(__file__).parents[1] / "calibration" / "data"
SHAPE = Shape(layers=32, hidden_size=4096)
TABLE, SETTINGS = "h200x2_allreduce.csv", ("default", "Ring-Simple")


@dataclass(frozen=True)
class Forwards:
    """Forwards under a setting: tokens, milliseconds with their all-reduces and without, shape (n,) each."""

    tokens: FloatArray
    measured_ms: FloatArray
    bare_ms: FloatArray

    def errors_ms(self, curve: MeasuredCurve) -> FloatArray:
        """What a forward without all-reduces and the table of single ones give too much."""
        return self.bare_ms + np.asarray(forward_ms(curve, SHAPE, self.tokens)) - self.measured_ms


def curves(name: str = TABLE) -> dict[str, MeasuredCurve]:
    """The table's curves by setting."""
    return {s.label: s.curve for s in load_allreduce([(None, DATA / name)]).settings()}


def forwards(nccl: str) -> Forwards:
    """The measured forwards under a setting."""
    return _read(DATA / "h200x2_forward.csv", nccl)


def _read(path: Path, nccl: str) -> Forwards:
    with path.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["nccl"] == nccl]
    return Forwards(*(np.array([float(row[name]) for row in rows]) for name in ("tokens", "with_ms", "without_ms")))


def harness_curves(table: str = "allreduce", machine: str = "h200x2c") -> dict[str, MeasuredCurve]:
    """The calibration harness's curves by setting, those in CUDA graphs: back to back unless another table is named."""
    settings = load_allreduce([(None, HARNESS / f"{machine}_{table}.csv")]).settings()
    return {s.label.removesuffix(", graph"): s.curve for s in settings if not s.label.endswith(", eager")}


def harness_forwards(nccl: str, machine: str = "h200x2c") -> Forwards:
    """The harness's forwards under a setting, with attention."""
    return _read(HARNESS / f"{machine}_forward_llama-3.1-8b.csv", nccl)


def fall_short() -> float:
    """The largest measured change over the table's, where the table's is a tenth of a millisecond or more."""
    known, before = harness_curves(), harness_forwards("default")
    ratios = [_changes(known, before, harness_forwards(nccl), nccl) for nccl in known if nccl != "default"]
    pairs = [pair for measured, told in ratios for pair in zip(measured, told, strict=True) if abs(pair[1]) >= 0.1]
    return max(float(measured / told) for measured, told in pairs)


def _changes(
    known: dict[str, MeasuredCurve], before: Forwards, after: Forwards, nccl: str
) -> tuple[FloatArray, FloatArray]:
    """The change from the default to a setting, measured and by the table [ms], shape (n,) each."""
    told = np.asarray(forward_change_ms(known["default"], known[nccl], SHAPE, before.tokens))
    return after.measured_ms - before.measured_ms, told


def extra_of_simple_us(known: dict[str, MeasuredCurve], default: Forwards, simple: Forwards) -> float:
    """What an all-reduce under Ring-Simple takes more in a forward than its table says, beside the default's [µs], mean."""
    short = default.errors_ms(known["default"]) - simple.errors_ms(known["Ring-Simple"])
    return float(1000.0 * short.mean() / SHAPE.all_reduces)


def extras_of_simple() -> tuple[float, float]:
    """That extra by the harness's all-reduces: back to back, and after products whose weights come from memory."""
    default, simple = (harness_forwards(nccl) for nccl in SETTINGS)
    tables = (harness_curves(table) for table in ("allreduce", "after_cold_allreduce"))
    back_to_back, cold = (extra_of_simple_us(known, default, simple) for known in tables)
    return back_to_back, cold


def _within(measured: FloatArray, told: FloatArray) -> BoolArray:
    """Where a change is told within 15% or 0.1 ms."""
    off = np.abs(told - measured)
    return np.asarray((off <= 0.15 * np.abs(measured)) | (off <= 0.1))


TABLES = {
    "back to back": "allreduce",
    "after a product": "after_allreduce",
    "after a cold product": "after_cold_allreduce",
    "in a forward": "in_forward_allreduce",
}
"""All-reduces of the machine that was measured last and most, by how they were made."""


def table() -> str:
    """A line for each machine's forwards and setting: what the tables say of its change from the default."""
    columns = " | ".join(f"{name} | within" for name in TABLES)
    lines = [
        f"| forwards of | change from default to | measured | {columns} |",
        f"|---|---|--:{'|--:|--:' * len(TABLES)}|",
    ]
    for machine, found in changes().items():
        for nccl, told in found.items():
            cells = (_cells(told.measured_ms, told.by_table[name]) for name in TABLES)
            lines.append(f"| {machine} | {nccl} | {_span(told.measured_ms)} | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Changed:
    """What a setting changes of a forward, measured and by each table [ms], shape (n,) each; None for its own table."""

    measured_ms: FloatArray
    by_table: dict[str, FloatArray | None]


def changes() -> dict[str, dict[str, Changed]]:
    """By machine and setting the changes of forwards from the default's: the machine of the tables, then the others."""
    machines = {"the tables' machine": "h200x2c", "a second": "h200x2", "a third": "h200x2b"}
    found = {name: _changes_of(partial(harness_forwards, machine=machine), name.startswith("the"))
             for name, machine in machines.items()}  # fmt: skip
    return {**found, "a fourth, no attention": _changes_of(forwards, False)}


def _changes_of(measured: Callable[[str], Forwards], own: bool) -> dict[str, Changed]:
    known = {name: harness_curves(table) for name, table in TABLES.items()}
    before = measured("default")
    found = {nccl: measured(nccl) for nccl in known["back to back"] if nccl != "default"}
    return {
        nccl: Changed(
            after.measured_ms - before.measured_ms,
            {name: None if own and name == "in a forward" else _changes(curves, before, after, nccl)[1]
             for name, curves in known.items()},
        )
        for nccl, after in found.items() if after.tokens.size
    }  # fmt: skip


def within(name: str) -> tuple[int, int]:
    """Of how many changes how many a table tells within the aim."""
    pairs = [(told.measured_ms, by_table) for found in changes().values() for told in found.values()
             if (by_table := told.by_table[name]) is not None]  # fmt: skip
    hits = np.concatenate([_within(*pair) for pair in pairs])
    return int(hits.sum()), hits.size


def _cells(measured: FloatArray, by_table: FloatArray | None) -> str:
    if by_table is None:
        return "– | –"
    return f"{_span(by_table - measured)} | {_within(measured, by_table).sum()} of {measured.size}"


def _span(values: FloatArray) -> str:
    return f"{values.min():+.2f} to {values.max():+.2f} ms"


if __name__ == "__main__":
    print(table())
