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


BEFORE, SINGLE = "gap before an all-reduce in the verify graph", "gap before a single launch"
STREAMS = "streams that graphs ran on"


@dataclass(frozen=True)
class Parts:
    """A change of a step by its parts [ms]: verify's all-reduces, its gather of logits, draft forwards, and what has no message."""

    verify: float
    gather: float
    drafts: float
    rest: float


@cache
def _medians() -> dict[tuple[str, str, int, int, str], float]:
    """Medians of a phase [ms], each of the rank where it is less: a rank that is ahead waits in what it finds first."""
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


def waits_before() -> dict[str, float]:
    """What lies before kernels in profiled servers [µs], and streams of their graphs: with NCCL's mixing, with drafts too, and without."""
    second = kernels(MACHINES[1])
    servers = dict.fromkeys((nccl, drafts) for nccl, drafts, _ in second)
    mixed = [each for each in servers if each[0] not in ("no-mixing", *CURVES)]
    drafted = [second[nccl, drafts, SINGLE] for nccl, drafts in mixed if drafts] + [
        kernels(MACHINES[0])[BASE, 3, SINGLE]
    ]
    others = [second[nccl, drafts, SINGLE] for nccl, drafts in servers if not drafts or (nccl, drafts) not in mixed]
    return {
        "mixed_least": min(second[*each, BEFORE][0] for each in mixed),
        "unmixed_before": second["no-mixing", 3, BEFORE][1],
        "before_most": max(found[*each, BEFORE][1] for found, each in [(second, each) for each in mixed] + [(kernels(MACHINES[0]), (BASE, 3))]),
        "mixed_streams": max(second[*each, STREAMS][1] for each in mixed),
        "late_single_least": min(gaps[1] for gaps in drafted), "late_single_most": max(gaps[1] for gaps in drafted),
        "single_most": max(gaps[1] for gaps in others),
    }  # fmt: skip


def larger_ms(part: str, table: str = BESIDE) -> list[float]:
    """By how much parts of cycles that draft change by more than told [ms], rising."""
    pairs = [(getattr(told(nccl, drafts, batch, table), part), getattr(measured(machine, nccl, drafts, batch), part))
             for machine, nccl, drafts in CASES if drafts for batch in BATCHES[machine]]  # fmt: skip
    return sorted(abs(changed) - abs(said) for said, changed in pairs)


def rests(nccl: str) -> list[float]:
    """What cycles that draft change by where nothing is communicated, measured [ms], rising."""
    cases = [case for case in CASES if case[1] == nccl and case[2]]
    return sorted(measured(*case, batch).rest for case in cases for batch in BATCHES[case[0]])


def cycle_change_ms(nccl: str, batch: int) -> float:
    """What a setting's whole cycles of 3 drafts take more than the base's in the second start, medians [ms]."""
    return _medians()[MACHINES[1], nccl, 3, batch, "cycle"] - _medians()[MACHINES[1], BASE, 3, batch, "cycle"]


def missed() -> dict[str, float]:
    """What the page says of phases."""
    first = [case for case in CASES if case[0] == MACHINES[0]]
    pairs = [(nccl, told(nccl, drafts, batch), measured(machine, nccl, drafts, batch))
             for machine, nccl, drafts in first for batch in BATCHES[machine]]  # fmt: skip
    gathers = [abs(found.gather / said.gather - 1) for nccl, said, found in pairs if nccl not in CURVES]
    over = [server / table for nccl, drafts in ((BASE, 3), *((each, 5) for each in (BASE, "nop2p")))
            for server, table in (gather_us(nccl, drafts, batch) for batch in BATCHES[MACHINES[0]])]  # fmt: skip
    verify, alone, drafts = larger_ms("verify"), larger_ms("verify", ALONE), larger_ms("drafts")
    own, unmixed = rests("engine-own"), rests("no-mixing")
    return {
        "gathers_off": max(gathers), "server_least": min(over), "server_most": max(over),
        "least_verify_beside": verify[0], "most_verify_beside": verify[-1],
        "least_verify_alone": alone[0], "most_verify_alone": alone[-1],
        "least_drafts": drafts[0], "most_drafts": drafts[-1],
        "rest_least": -own[-1], "rest_most": -own[0], "rest_told": -told("engine-own", 3, 1).rest,
        "unmixed_least": -unmixed[-1], "unmixed_most": -unmixed[0], "unmixed_told": -told("no-mixing", 3, 1).rest,
        "nop2p_rest": max(map(abs, rests("nop2p"))),
        "unmixed_1": cycle_change_ms("no-mixing", 1), "unmixed_4": cycle_change_ms("no-mixing", 4),
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
    BEFORE: "before an all-reduce",
    "an all-reduce's kernel in the verify graph": "its kernel",
    "other gap in the verify graph": "before another kernel",
    SINGLE: "before a single launch",
}


def kernels_table() -> str:
    """A line for each server that was profiled on the second machine: medians of the two ranks [µs], and streams of its graphs."""
    found = kernels(MACHINES[1])
    lines = [f"| server | drafts | {' | '.join(WHAT.values())} | streams |", f"|---|--:{'|--:' * len(WHAT)}|--:|"]
    for nccl, drafts in dict.fromkeys((nccl, drafts) for nccl, drafts, _ in found):
        cells = [" and ".join(f"{us:.1f}" for us in found[nccl, drafts, what]) for what in WHAT]
        streams = found[nccl, drafts, STREAMS][0]
        lines.append(f"| {nccl} | {drafts} | {' | '.join(cells)} | {streams:.0f} |")
    return "\n".join(lines)


DRAFTS = HARNESS / "h200x2i_drafts.csv"


@dataclass(frozen=True)
class Between:
    """Forwards with all-reduces in turn with something [µs]: an all-reduce, and gaps before one and before a single launch by rank.

    `streams` counts those of all graphs.
    """

    all_reduce: float
    before: tuple[float, ...]
    single: tuple[float, ...]
    streams: int


def between(nccl: str, implementation: str, tokens: int = 16) -> dict[str, Between]:
    """By what stood between the forwards; gaps and streams where kernels were looked at, else none and 0."""
    with DRAFTS.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["tokens"]) == tokens]
    return {
        row["between"]: Between(
            1000.0 * (float(row["with_ms"]) - float(row["without_ms"])) / 64,
            tuple(float(us) for rank in (0, 1) if (us := row[f"before_{rank}_us"])),
            tuple(float(us) for rank in (0, 1) if (us := row[f"single_{rank}_us"])),
            int(row["streams"] or 0),
        )
        for row in rows
        if (row["nccl"], row["implementation"]) == (nccl, implementation)
    }


TRIED = ((BASE, "nccl"), ("no-mixing", "nccl"), (BASE, "one-shot"))


def between_table() -> str:
    """A line for each way to reduce and what stood between forwards."""
    lines = ["| all-reduces | between the forwards | one all-reduce | before it | before a single launch | streams |",
             "|---|---|--:|--:|--:|--:|"]  # fmt: skip
    for nccl, implementation in TRIED:
        for what, found in between(nccl, implementation).items():
            gaps = [" and ".join(f"{us:.1f}" for us in each) or "–" for each in (found.before, found.single)]
            name = nccl if implementation == "nccl" else implementation
            lines.append(f"| {name} | {what} | {found.all_reduce:.1f} | {' | '.join(gaps)} | {found.streams or '–'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), kernels_table(), between_table(), missed(), sep="\n\n")
