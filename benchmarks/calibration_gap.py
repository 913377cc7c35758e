"""How much of a served cycle bare forwards explain: the harness's figures beside a real vLLM server's, on one H200.

Run: python -m benchmarks.calibration_gap
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.groups import DENSE
from specsim import CostModel, Run, fit, load_runs, predict
from specsim.cost.terms import PLAIN

DATA = Path(__file__).parents[1] / "calibration" / "data"


@dataclass(frozen=True)
class Beside:
    """A served cycle or step, and what the forwards in it take alone [ms]."""

    drafts: int
    batch_size: int
    served_ms: float
    forwards_ms: float

    @property
    def ratio(self) -> float:
        """Forwards over served."""
        return self.forwards_ms / self.served_ms


def forwards() -> CostModel:
    """The fit of the harness's bare forwards of the served model's shape."""
    return fit(load_runs(DATA / "h200_forward_llama-3.1-8b.json")).model


def rows() -> Iterator[Beside]:
    """Every served row beside verify, drafts and re-extend (plain decode: one step) at its batch size and context."""
    model = forwards()
    for run in DENSE.runs.runs:
        drafts = 0 if run.spec is None else int(run.spec.num_steps)
        name = "decode_ms" if run.spec is None else "cycle_ms"
        yield Beside(drafts, int(run.workload.batch_size), run.figures[name].best, _alone_ms(model, run))


def _alone_ms(model: CostModel, run: Run) -> float:
    if run.spec is None:
        return float(model.decode(model.cycle(PLAIN, run.workload), model.reference).value[0])
    return float(predict(model, run.spec, run.workload, 1.0).times.cycle_ms)


def table() -> str:
    """Forwards over served by drafts and batch size, up to what the harness measured."""
    found = {(row.drafts, row.batch_size): row for row in rows() if row.batch_size <= 64}
    batches, depths = sorted({b for _, b in found}), sorted({d for d, _ in found})
    lines = [f"| drafts | {' | '.join(f'batch {b}' for b in batches)} |", "|--:" * (len(batches) + 1) + "|"]
    for depth in depths:
        lines.append(f"| {depth} | {' | '.join(f'{found[depth, b].ratio:.2f}' for b in batches)} |")
    return "\n".join(lines)


def summary() -> str:
    """The range of the ratios, and of what is missing."""
    found = [row for row in rows() if row.batch_size <= 64]
    ratios, missing = (
        np.array(each) for each in ([r.ratio for r in found], [r.served_ms - r.forwards_ms for r in found])
    )
    return (
        f"{ratios.min():.2f} to {ratios.max():.2f}, median {np.median(ratios):.2f}; {missing.min():.2f} to"
        f" {missing.max():.2f} ms of a cycle are missing, median {np.median(missing):.2f}"
    )


if __name__ == "__main__":
    print(table())
    print(summary())
