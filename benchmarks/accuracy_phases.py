"""Where in a cycle a server's change to another all-reduce lies, told by eq. 17 and measured, as a markdown table.

Run: python -m benchmarks.accuracy_phases
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy_allreduce import HARNESS, harness_curves
from benchmarks.accuracy_allreduce import TABLES as ALL_REDUCES
from benchmarks.accuracy_tensor_parallel import ALONE, BASE, BESIDE, CURVES, DRAFT, TARGET, curves
from specsim import SpecConfig, Workload
from specsim.cost.step_change import gather_ms, step_change
from specsim.cost.terms import PLAIN, Cycle

MACHINES = ("h200x2f", "h200x2h")
"""Two starts: four servers stood on the GPUs together, then seven, and the host was late at small batches; one was loaded at a time."""
VERSION = "0.24.0"
CASES = (("h200x2f", "engine-own", 3), ("h200x2f", "nop2p", 5), ("h200x2h", "engine-own", 0), ("h200x2h", "engine-own", 3),
         ("h200x2h", "no-mixing", 3))  # fmt: skip
BATCHES = {"h200x2f": (1, 4, 16), "h200x2h": (1, 4, 16, 64)}


@dataclass(frozen=True)
class Parts:
    """A change of a step by its parts [ms]: verify's all-reduces, its gather of logits, draft forwards, and what has no message."""

    verify: float
    gather: float
    drafts: float
    rest: float


@cache
def _medians() -> dict[tuple[str, str, int, int, str], float]:
    """Medians of a phase [ms], of either rank the one that waited less."""
    found: dict[tuple[str, str, int, int, str], float] = {}
    for machine in MACHINES:
        with (HARNESS / f"{machine}_phases.csv").open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                key = machine, row["nccl"], int(row["drafts"]), int(row["batch_size"]), row["phase"]
                found[key] = min(found.get(key, np.inf), float(row["median_us"]) / 1000.0)
    return found


def measured(machine: str, nccl: str, drafts: int, batch: int) -> Parts:
    """What the phases of a setting's steps take more than the base's, medians."""

    def more(phase: str) -> float:
        return _medians()[machine, nccl, drafts, batch, phase] - _medians()[machine, BASE, drafts, batch, phase]

    outside = more("head") + more("to the next verify")
    if not drafts:
        return Parts(more("verify graph"), more("gather"), 0.0, outside)
    steps = drafts - 1
    outside += more("sampling and inputs") + steps * more("between draft graphs")
    return Parts(
        more("verify graph"), more("gather"), more("wide draft graph") + steps * more("narrow draft graph"), outside
    )


def told(nccl: str, drafts: int, batch: int, table: str = BESIDE) -> Parts:
    """What eq. 17 says of them, by all-reduces and single launches beside drafts, or by another table, and gathers."""
    before, after = curves(table, nccl)
    gathered = nccl not in CURVES
    spec = SpecConfig(drafts, 1, drafts + 1, "eagle3") if drafts else PLAIN
    cycle = Cycle.of(spec, Workload(batch), "vllm").captured("vllm", VERSION)
    first, then = gather_ms((before, after), TARGET, cycle.verify_tokens)
    gather = float((np.asarray(then) - np.asarray(first))[0]) if gathered else 0.0
    change = step_change(before, after, cycle, TARGET, DRAFT, gathered=gathered)
    return Parts(float(change.verify_ms[0]) - gather, gather, float(change.draft_ms[0]), float(change.launch_ms[0]))


@cache
def kernels(machine: str) -> dict[tuple[str, int, str], tuple[float, float]]:
    """Medians of both ranks, rising, by setting, drafts and what they are of; the first machine's are of 3 drafts."""
    with (HARNESS / f"{machine}_kernels.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    found: dict[tuple[str, int, str], list[float]] = {}
    for row in rows:
        key = row["nccl"], int(row.get("drafts", 3)), row["what"].removesuffix(" [us]")
        found.setdefault(key, []).append(float(row.get("median_us") or row["median"]))
    return {key: (min(each), max(each)) for key, each in found.items()}


def verify_off() -> dict[str, float]:
    """By how much measured changes of verify graphs with drafts are larger than told [ms], by table, least and most."""
    found = {}
    for table, name in ((BESIDE, "beside"), (ALONE, "alone")):
        pairs = [(told(nccl, drafts, batch, table).verify, measured(machine, nccl, drafts, batch).verify)
                 for machine, nccl, drafts in CASES if drafts for batch in BATCHES[machine]]  # fmt: skip
        off = [abs(changed) - abs(said) for said, changed in pairs]
        found |= {f"least_verify_{name}": min(off), f"most_verify_{name}": max(off)}
    return found


def missed() -> dict[str, float]:
    """What the page says of gathers, and of what has no message on the machine whose host was not late."""
    first = [case for case in CASES if case[0] == MACHINES[0]]
    pairs = [(nccl, told(nccl, drafts, batch), measured(machine, nccl, drafts, batch))
             for machine, nccl, drafts in first for batch in BATCHES[machine]]  # fmt: skip
    own = [found.rest for nccl, _, found in pairs if nccl in CURVES]
    gathers = [abs(found.gather / said.gather - 1) for nccl, said, found in pairs if nccl not in CURVES]
    over = [server / table for nccl, drafts in ((BASE, 3), *((each, 5) for each in (BASE, "nop2p")))
            for server, table in (gather_us(nccl, drafts, batch) for batch in BATCHES[MACHINES[0]])]  # fmt: skip
    return {
        "gathers_off": max(gathers),
        "rest_least": -max(own), "rest_most": -min(own), "rest_told": -next(said.rest for nccl, said, _ in pairs if nccl in CURVES),
        "nccl_rest": max(abs(found.rest) for nccl, _, found in pairs if nccl not in CURVES),
        "server_least": min(over), "server_most": max(over),
        **verify_off(),
    }  # fmt: skip


def gather_us(nccl: str, drafts: int, batch: int) -> tuple[float, float]:
    """A verify's gather of logits in a server, and what the first machine's gathers say of it [µs]."""
    curve = harness_curves(ALL_REDUCES[ALONE], gathers=True)[nccl].gather
    assert curve is not None
    size = float(TARGET.logits_bytes(batch * (drafts + 1.0)))
    return 1000.0 * _medians()[MACHINES[0], nccl, drafts, batch, "gather"], float(curve.time_us(size))


def table() -> str:
    """A line for each change at each batch size."""
    parts = ("verify", "gather", "drafts", "rest")
    lines = [
        "| machine | to | drafts | batch | verify, told | measured | gather, told | measured | draft forwards, told | measured | the rest, told | measured |",
        f"|---|---|--:|--:{'|--:|--:' * len(parts)}|",
    ]
    for machine, nccl, drafts in CASES:
        for batch in BATCHES[machine]:
            said, found = told(nccl, drafts, batch), measured(machine, nccl, drafts, batch)
            cells = [f"{getattr(part, name) + 0.0:+.3f}" for name in parts for part in (said, found)]
            lines.append(f"| {machine} | {nccl} | {drafts} | {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


WHAT = {
    "gap before an all-reduce in the verify graph": "before an all-reduce",
    "an all-reduce's kernel in the verify graph": "its kernel",
    "other gap in the verify graph": "before another kernel",
    "gap before a single launch": "before a single launch",
}


def kernels_table() -> str:
    """A line for each server that was profiled on the second machine: medians of the two ranks [µs], and streams of its graphs."""
    found = kernels(MACHINES[1])
    lines = [f"| server | drafts | {' | '.join(WHAT.values())} | streams |", f"|---|--:{'|--:' * len(WHAT)}|--:|"]
    for nccl, drafts in dict.fromkeys((nccl, drafts) for nccl, drafts, _ in found):
        cells = [" and ".join(f"{us:.1f}" for us in found[nccl, drafts, what]) for what in WHAT]
        streams = found[nccl, drafts, "streams that graphs ran on"][0]
        lines.append(f"| {nccl} | {drafts} | {' | '.join(cells)} | {streams:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), kernels_table(), missed(), sep="\n\n")
