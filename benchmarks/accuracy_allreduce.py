"""Eq. 17 beside a measured tensor-parallel forward, as a markdown table.

Run: python -m benchmarks.accuracy_allreduce
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

import numpy as np

from benchmarks.groups import DATA
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.step_change import Shape, forward_change_ms, forward_ms
from specsim.quantities import FloatArray
from specsim.runs.allreduce_files import load_allreduce

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
    with (DATA / "h200x2_forward.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["nccl"] == nccl]
    return Forwards(*(np.array([float(row[name]) for row in rows]) for name in ("tokens", "with_ms", "without_ms")))


def table() -> str:
    """A line for each setting, and one for the change between the two."""
    lines = ["| predicted | widths | measured | error, least and largest | largest |", "|---|--:|--:|--:|--:|"]
    known = curves()
    measured = {nccl: forwards(nccl) for nccl in SETTINGS}
    for nccl, each in measured.items():
        lines.append(_line(f"forward under {nccl}", each.measured_ms, each.errors_ms(known[nccl])))
    before, after = (measured[nccl] for nccl in SETTINGS)
    change = after.measured_ms - before.measured_ms
    told = np.asarray(forward_change_ms(known[SETTINGS[0]], known[SETTINGS[1]], SHAPE, before.tokens))
    lines.append(_line(f"change from {SETTINGS[0]} to {SETTINGS[1]}", change, told - change))
    return "\n".join(lines)


def _line(name: str, measured: FloatArray, errors: FloatArray) -> str:
    spans = (f"{values.min():+.2f} to {values.max():+.2f} ms" for values in (measured, errors))
    took, off = spans
    return f"| {name} | {measured.size} | {took.replace('+', '')} | {off} | {np.abs(errors / measured).max():.1%} |"


if __name__ == "__main__":
    print(table())
