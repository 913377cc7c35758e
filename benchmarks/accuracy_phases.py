"""Where in a cycle a server's change to another all-reduce lies, told by eq. 17 and measured, as a markdown table.

Run: python -m benchmarks.accuracy_phases
"""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy_allreduce import HARNESS, harness_curves
from benchmarks.accuracy_allreduce import TABLES as ALL_REDUCES
from benchmarks.accuracy_tensor_parallel import BASE, CURVES, DRAFT, TARGET
from specsim import SpecConfig, Workload
from specsim.cost.step_change import forward_change_ms, gather_ms, step_change
from specsim.cost.terms import Cycle

PHASES, KERNELS = (HARNESS / f"h200x2f_{name}.csv" for name in ("phases", "kernels"))
VERSION = "0.24.0"
CASES = (("engine-own", 3), ("nop2p", 5))
BATCHES = (1, 4, 16)


@dataclass(frozen=True)
class Parts:
    """A change of a cycle by its parts [ms]: verify's all-reduces, its gather of logits, draft forwards, and what has no message."""

    verify: float
    gather: float
    drafts: float
    rest: float


@cache
def _medians() -> dict[tuple[str, int, int, str], float]:
    with PHASES.open(encoding="utf-8") as lines:
        return {
            (row["nccl"], int(row["drafts"]), int(row["batch_size"]), row["phase"]): float(row["median_us"]) / 1000.0
            for row in csv.DictReader(lines)
        }


def measured(nccl: str, drafts: int, batch: int) -> Parts:
    """What the phases of a setting's cycles take more than the base's, medians."""

    def more(phase: str) -> float:
        return _medians()[nccl, drafts, batch, phase] - _medians()[BASE, drafts, batch, phase]

    steps = drafts - 1
    rest = (
        more("head") + more("sampling and inputs") + steps * more("between draft graphs") + more("to the next verify")
    )
    return Parts(
        more("verify graph"), more("gather"), more("wide draft graph") + steps * more("narrow draft graph"), rest
    )


def told(nccl: str, drafts: int, batch: int) -> Parts:
    """What eq. 17 says of them, by all-reduces in a forward and gathers."""
    known = harness_curves(ALL_REDUCES["in a forward"], gathers=True)
    before, after, gathered = known[BASE], known[CURVES.get(nccl, nccl)], nccl not in CURVES
    spec = SpecConfig(drafts, 1, drafts + 1, "eagle3")
    cycle = Cycle.of(spec, Workload(batch), "vllm").captured("vllm", VERSION)
    first, then = gather_ms((before, after), TARGET, cycle.verify_tokens)
    verify = np.asarray(forward_change_ms(before, after, TARGET, cycle.padded_verify))
    change = step_change(before, after, cycle, TARGET, DRAFT, gathered=gathered)
    gather = float((np.asarray(then) - np.asarray(first))[0]) if gathered else 0.0
    return Parts(float(verify[0]), gather, float(change.draft_ms[0]), 0.0)


@cache
def kernels() -> dict[tuple[str, str], tuple[float, float]]:
    """Medians of both ranks [µs], by setting and what they are of."""
    with KERNELS.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    kinds = dict.fromkeys((row["nccl"], row["what"]) for row in rows)
    of = {kind: sorted(float(row["median_us"]) for row in rows if (row["nccl"], row["what"]) == kind) for kind in kinds}
    return {kind: (found[0], found[-1]) for kind, found in of.items()}


def missed() -> dict[str, float]:
    """By how much and where measured changes are larger than told [ms and shares], least and most."""
    pairs = [
        (nccl, told(nccl, drafts, batch), measured(nccl, drafts, batch)) for nccl, drafts in CASES for batch in BATCHES
    ]
    off = [abs(sum(astuple(found))) - abs(sum(astuple(said))) for _, said, found in pairs]
    of_verify = [(abs(found.verify) - abs(said.verify)) / ms for (_, said, found), ms in zip(pairs, off, strict=True)]
    ratios = [found.verify / said.verify for _, said, found in pairs]
    own = [abs(found.rest) for nccl, _, found in pairs if nccl in CURVES]
    gathers = [abs(found.gather / said.gather - 1) for nccl, said, found in pairs if nccl not in CURVES]
    over = [server / table for nccl, drafts in ((BASE, 3), *((each, 5) for each in (BASE, "nop2p")))
            for server, table in (gather_us(nccl, drafts, batch) for batch in BATCHES)]  # fmt: skip
    return {
        "least_missed": min(off), "most_missed": max(off), "least_verify": min(of_verify), "most_verify": max(of_verify),
        "least_ratio": min(ratios), "most_ratio": max(ratios), "gathers_off": max(gathers),
        "rest_least": min(own), "rest_most": max(own),
        "nccl_rest": max(abs(found.rest) for nccl, _, found in pairs if nccl not in CURVES),
        "server_least": min(over), "server_most": max(over),
    }  # fmt: skip


def gather_us(nccl: str, drafts: int, batch: int) -> tuple[float, float]:
    """A verify's gather of logits in a server, and what the table of gathers says of it [µs]."""
    curve = harness_curves(ALL_REDUCES["in a forward"], gathers=True)[nccl].gather
    assert curve is not None
    size = float(TARGET.logits_bytes(batch * (drafts + 1.0)))
    return 1000.0 * _medians()[nccl, drafts, batch, "gather"], float(curve.time_us(size))


def table() -> str:
    """A line for each change at each batch size."""
    lines = [
        "| to | drafts | batch | verify, told | measured | gather, told | measured | draft forwards, told | measured | outside forwards and gathers, measured |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for nccl, drafts in CASES:
        for batch in BATCHES:
            said, found = told(nccl, drafts, batch), measured(nccl, drafts, batch)
            cells = [f"{getattr(part, name):+.3f}" for name in ("verify", "gather", "drafts") for part in (said, found)]
            lines.append(f"| {nccl} | {drafts} | {batch} | {' | '.join(cells)} | {found.rest:+.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    print(kernels())
