"""Eq. 17 beside a measured tensor-parallel forward, as a markdown table.

Run: python -m benchmarks.accuracy_allreduce
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
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


def harness_curves(name: str = "h200x2_allreduce.csv") -> dict[str, MeasuredCurve]:
    """The calibration harness's curves by setting, those in CUDA graphs: back to back unless another table is named."""
    settings = load_allreduce([(None, HARNESS / name)]).settings()
    return {s.label.removesuffix(", graph"): s.curve for s in settings if not s.label.endswith(", eager")}


def harness_forwards(nccl: str, machine: str = "h200x2") -> Forwards:
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
    """That extra by the first measurement and by the harness's."""
    first = extra_of_simple_us(curves(), forwards("default"), forwards("Ring-Simple"))
    return first, extra_of_simple_us(harness_curves(), harness_forwards("default"), harness_forwards("Ring-Simple"))


def _within(measured: FloatArray, told: FloatArray) -> BoolArray:
    """Where a change is told within 15% or 0.1 ms."""
    off = np.abs(told - measured)
    return np.asarray((off <= 0.15 * np.abs(measured)) | (off <= 0.1))


def table() -> str:
    """A line for each setting and one for its change from the default, of both measurements."""
    lines = [
        "| measurement | predicted | widths | measured | error, least and largest | largest | within 15% or 0.1 ms |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name, known, measured in (
        ("first", curves(), {nccl: forwards(nccl) for nccl in SETTINGS}),
        ("harness", harness_curves(), {nccl: harness_forwards(nccl) for nccl in harness_curves()}),
    ):
        before = measured["default"]
        for nccl, each in measured.items():
            lines.append(_line(name, f"forward under {nccl}", each.measured_ms, each.errors_ms(known[nccl]), "–"))
            if nccl != "default":
                lines.append(_change_line(name, known, before, each, nccl))
    for name, file, machine in TABLES:
        other, before = harness_curves(file), harness_forwards("default", machine)
        for nccl in (nccl for nccl in other if nccl != "default"):
            after = harness_forwards(nccl, machine)
            if after.tokens.size:
                lines.append(_change_line(name, other, before, after, nccl))
    return "\n".join(lines)


TABLES = (
    ("harness, after a product", "h200x2_after_allreduce.csv", "h200x2"),
    ("again, back to back", "h200x2b_allreduce.csv", "h200x2b"),
    ("again, after a product", "h200x2b_after_allreduce.csv", "h200x2b"),
    ("again, after a cold product", "h200x2b_after_cold_allreduce.csv", "h200x2b"),
    ("again, by the harness's in a forward", "h200x2_in_forward_allreduce.csv", "h200x2b"),
)
"""Tables of all-reduces made otherwise, and the machine whose forwards they are asked of; "again" is another machine."""


def _change_line(
    measurement: str, known: dict[str, MeasuredCurve], before: Forwards, after: Forwards, nccl: str
) -> str:
    change, told = _changes(known, before, after, nccl)
    within = f"{_within(change, told).sum()} of {change.size}"
    return _line(measurement, f"change from default to {nccl}", change, told - change, within)


def _line(measurement: str, name: str, measured: FloatArray, errors: FloatArray, within: str) -> str:
    spans = (f"{values.min():+.2f} to {values.max():+.2f} ms" for values in (measured, errors))
    took, off = spans
    small = np.abs(measured).max() < 0.2
    share = "–" if small else f"{np.abs(errors / measured).max():.1%}"
    return f"| {measurement} | {name} | {measured.size} | {took.replace('+', '')} | {off} | {share} | {within} |"


if __name__ == "__main__":
    print(table())
