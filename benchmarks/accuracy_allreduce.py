"""Eq. 17 beside measured tensor-parallel forwards, as markdown tables.

Run: python -m benchmarks.accuracy_allreduce
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.groups import DATA
from benchmarks.held_out import span
from calibration.allreduce import Way
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.step_change import Shape, forward_change_ms, forward_ms
from specsim.quantities import BoolArray, FloatArray
from specsim.runs.allreduce import AllReduceRow, AllReduceTable
from specsim.runs.allreduce_files import load_allreduce

HARNESS = Path(__file__).parents[1] / "calibration" / "data"
SHAPE = Shape(layers=32, hidden_size=4096)
TABLES_OF = "h200x2d"
"""The machine whose all-reduces are asked: measured under most settings, and by other implementations than NCCL's."""
TABLE = "h200x2_allreduce.csv"


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
    rows = [row for row in rows_of(path) if Way.of(row).name == nccl]
    return Forwards(*(np.array([float(row[name]) for row in rows]) for name in ("tokens", "with_ms", "without_ms")))


CYCLED = ("h200x2n", "h200x2o", "h200x2p", "h200x2q")
"""Machines whose all-reduces in a forward were measured in whole cycles, too."""

DRAFTED, STARTED = ("h200x2g", "h200x2j"), "h200x2k"
"""Those of before, with drafts as wide as the verify and short gathers about the forwards; and one where these alone were, in five starts."""

GATHERS = {TABLES_OF: "h200x2f_gather.csv", **{machine: f"{machine}_gather.csv" for machine in (*DRAFTED, *CYCLED)}}
"""Gathers of logits by setting: those of the first of these are another machine's, of the one of five starts there are none."""


@cache
def harness_curves(
    table: str = "allreduce", gathers: bool = False, machines: tuple[str, ...] = (TABLES_OF,)
) -> dict[str, MeasuredCurve]:
    """The calibration harness's curves by setting, those in CUDA graphs: back to back unless another table is named.

    Of several machines the median, each counting once. With `gathers` the settings of that table know what gathers take, where
    those were measured.
    """
    files = [
        [f"{machine}_{table}.csv", *([GATHERS[machine]] if gathers and machine in GATHERS else [])]
        for machine in machines
    ]
    tables = [load_allreduce([(None, HARNESS / name) for name in names]) for names in files]
    settings = AllReduceTable(tuple(row for each in tables for row in _once(each.rows))).settings()
    return {s.label.removesuffix(", graph"): s.curve for s in settings if not s.label.endswith(", eager")}


def _once(rows: tuple[AllReduceRow, ...]) -> Iterator[AllReduceRow]:
    """Every message once, of repeats the median."""
    alike: dict[AllReduceRow, list[float]] = {}
    for row in rows:
        alike.setdefault(replace(row, time_us=0.0, source="", where=""), []).append(row.time_us)
    return (replace(row, time_us=float(np.median(times))) for row, times in alike.items())


def gather_shares() -> FloatArray:
    """Gathers over all-reduces of as many bytes back to back, of sizes at which both were measured; rising."""
    curves = [curve for curve in harness_curves(gathers=True).values() if curve.gather is not None]
    shares = []
    for curve in curves:
        assert curve.gather is not None
        both = np.array(curve.gather.sizes) <= curve.sizes[-1]
        sizes, times = np.array(curve.gather.sizes)[both], np.array(curve.gather.times_us)[both]
        shares.append(times / np.asarray(curve.time_us(sizes)))
    return np.sort(np.concatenate(shares))


def harness_forwards(nccl: str, machine: str = TABLES_OF) -> Forwards:
    """The harness's forwards under a setting, with attention."""
    return _read(HARNESS / f"{machine}_forward_llama-3.1-8b.csv", nccl)


def fall_short() -> float:
    """The largest measured change over the table's on any machine, where the table's is a tenth of a millisecond or more."""
    every = (told for found in changes().values() for told in found.values())
    pairs = [(told.measured_ms, by_table) for told in every if (by_table := told.by_table["back to back"]) is not None]
    ratios = [
        measured[large] / by_table[large] for measured, by_table in pairs if (large := np.abs(by_table) >= 0.1).any()
    ]
    return float(np.concatenate(ratios).max())


def extras_us(
    known: dict[str, MeasuredCurve], of: Callable[[str], Forwards] = harness_forwards
) -> dict[str, FloatArray]:
    """What an all-reduce takes more in a forward than its table says, beside the default's [µs], by setting, shape (n,)."""
    default = of("default")
    short = default.errors_ms(known["default"])
    found = {nccl: of(nccl) for nccl in known if nccl != "default"}
    each = {nccl: short - forwards.errors_ms(known[nccl]) for nccl, forwards in found.items() if forwards.tokens.size}
    return {nccl: 1000.0 * short[default.tokens <= FEW] / SHAPE.all_reduces for nccl, short in each.items()}


FEW = 128
"""Tokens up to which the default stays LL, so that what it lacks itself is small."""


def extras_table() -> str:
    """A line for each setting: what its all-reduces lack back to back and behind cold products, up to FEW tokens."""
    alone, cold = (extras_us(harness_curves(TABLES[name])) for name in ("back to back", "after a cold product"))
    lines = ["| setting | an all-reduce takes more than back to back | mean | than after a cold product | mean |",
             "|---|--:|--:|--:|--:|"]  # fmt: skip
    for nccl in alone:
        cells = (f"{us.min():+.1f} to {us.max():+.1f} µs | {us.mean():+.1f} µs" for us in (alone[nccl], cold[nccl]))
        lines.append(f"| {nccl} | {' | '.join(cells)} |")
    return "\n".join(lines)


SHOWN = (8, 64, 512, 4096)
"""Messages [KiB] that are shown of each way to carry them."""


def in_forward_table() -> str:
    """A line for each setting and implementation: what one all-reduce takes in a forward [µs]."""
    lines = [
        f"| setting or implementation | {' | '.join(f'{size} KiB' for size in SHOWN)} |",
        f"|---|{'--:|' * len(SHOWN)}",
    ]
    for name, curve in harness_curves(TABLES["in a forward"]).items():
        times = np.asarray(curve.time_us(1024.0 * np.array(SHOWN)))
        lines.append(f"| {name} | {' | '.join(f'{us:.1f} µs' for us in times)} |")
    return "\n".join(lines)


def _by_table(known: dict[str, MeasuredCurve], nccl: str, tokens: FloatArray) -> FloatArray:
    """The change of forwards from the default to a setting by a table [ms], shape (n,)."""
    return np.asarray(forward_change_ms(known["default"], known[nccl], SHAPE, tokens))


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
"""All-reduces of the machine that is asked, by how they were made."""


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
            lines.append(f"| {machine} | {nccl} | {span(told.measured_ms)} | {' | '.join(cells)} |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Changed:
    """What a setting changes of a forward, measured and by each table [ms], shape (n,) each; None for its own table."""

    tokens: FloatArray
    measured_ms: FloatArray
    by_table: dict[str, FloatArray | None]


NO_ATTENTION = "no attention"


@cache
def changes() -> dict[str, dict[str, Changed]]:
    """By machine and setting the changes of forwards from the default's: the tables' machine, then the others."""
    machines = (TABLES_OF, "h200x2c", "h200x2", "h200x2b", "h200x2e", *DRAFTED, *CYCLED)
    found = {
        machine: _changes_of(partial(harness_forwards, machine=machine), machine == TABLES_OF) for machine in machines
    }
    return {**found, NO_ATTENTION: _changes_of(forwards, False)}


def _changes_of(measured: Callable[[str], Forwards], own: bool) -> dict[str, Changed]:
    known = {name: harness_curves(table) for name, table in TABLES.items()}
    before = measured("default")
    found = {nccl: measured(nccl) for nccl in known["back to back"] if nccl != "default"}
    return {
        nccl: Changed(
            before.tokens,
            after.measured_ms - before.measured_ms,
            {name: None if own and name == "in a forward" else _by_table(table, nccl, before.tokens)
             for name, table in known.items()},
        )
        for nccl, after in found.items() if after.tokens.size
    }  # fmt: skip


def within(name: str, of: str = "back to back") -> tuple[int, int]:
    """Of how many changes that the table `of` tells how many a table tells within the aim."""
    told = [each for found in changes().values() for each in found.values() if each.by_table[of] is not None]
    hits = [_within(each.measured_ms, by_table) for each in told if (by_table := each.by_table[name]) is not None]
    return sum(int(each.sum()) for each in hits), sum(each.size for each in hits)


def missed() -> list[tuple[str, str, int]]:
    """The changes that a table in another machine's forward does not tell within the aim: machine, setting and tokens."""
    return [
        (machine, nccl, int(tokens))
        for machine, found in changes().items()
        for nccl, told in found.items()
        if (by_table := told.by_table["in a forward"]) is not None
        for tokens in told.tokens[~_within(told.measured_ms, by_table)]
    ]


def in_the_table(nccl: str, tokens: int) -> bool:
    """Whether the table in a forward has messages of so many tokens under a setting and under the default."""
    known, size = harness_curves(TABLES["in a forward"]), float(SHAPE.message_bytes(float(tokens)))
    return all(size in known[name].sizes for name in ("default", nccl))


def told_by_nothing() -> int:
    """How many changes are within the aim of no change at all."""
    every = (each.measured_ms for found in changes().values() for each in found.values())
    return sum(int(_within(measured, np.zeros_like(measured)).sum()) for measured in every)


def _cells(measured: FloatArray, by_table: FloatArray | None) -> str:
    if by_table is None:
        return "– | –"
    return f"{span(by_table - measured)} | {_within(measured, by_table).sum()} of {measured.size}"


def apart_us() -> tuple[float, float]:
    """How far the machines of whole cycles lie apart at most in an all-reduce of a forward alone [µs]: to 512 KiB, and at the largest shown."""
    each = [harness_curves(TABLES["in a forward"], machines=(machine,)) for machine in CYCLED]
    sizes = 1024.0 * np.array(SHOWN)
    apart = np.max([np.ptp([curves[name].time_us(sizes) for curves in each], axis=0) for name in each[0]], axis=0)
    return float(apart[:-1].max()), float(apart[-1])


def beside_table() -> str:
    """A line for each setting that was measured between drafts, and kind of these: an all-reduce without and with them, and a single launch [µs].

    Medians over the machines that are named.
    """
    columns = (f"{size} KiB, alone | beside drafts" for size in SHOWN)
    lines = [
        f"| setting or implementation | drafts | on | {' | '.join(columns)} | single launch |",
        f"|---|---|---|{'--:|--:|' * len(SHOWN)}--:|",
    ]
    table = TABLES["in a forward"]
    for kind, machines in (("whole cycles", CYCLED), ("wide ones", (*DRAFTED, STARTED))):
        for name, curve in harness_curves(table, machines=machines).items():
            assert curve.drafting is not None
            assert curve.drafting.launch_us is not None
            on = [each.removeprefix("h200") for each in machines if name in harness_curves(table, machines=(each,))]
            pairs = [each.time_us(1024.0 * size) for size in SHOWN for each in (curve, curve.drafting)]
            cells = " | ".join(f"{us:.1f} µs" for us in pairs)
            lines.append(f"| {name} | {kind} | {', '.join(on)} | {cells} | {curve.drafting.launch_us:.1f} µs |")
    return "\n".join(lines)


# -- starts, and ways to call NCCL ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """Forwards of so many tokens under a setting in one start of their processes after the other [ms], shapes (starts,)."""

    nccl: str
    tokens: int
    alone_ms: FloatArray
    beside_ms: FloatArray

    @property
    def apart(self) -> tuple[float, float]:
        """How far starts lie apart at most, alone and beside drafts [ms]."""
        return float(np.ptp(self.alone_ms)), float(np.ptp(self.beside_ms))


@cache
def starts() -> tuple[Started, ...]:
    """What `python -m benchmarks.allreduce_starts` measured."""
    rows = rows_of(HARNESS / f"{STARTED}_starts.csv")
    places = dict.fromkeys((row["nccl"], int(row["tokens"])) for row in rows)
    return tuple(
        Started(*place, *(np.array([float(row[name]) for row in rows if (row["nccl"], int(row["tokens"])) == place])
                          for name in ("with_ms", "drafting_ms")))
        for place in places
    )  # fmt: skip


def starts_table() -> str:
    """A line for each setting and number of tokens: forwards with all-reduces, the least and the most of the starts."""
    lines = ["| setting | tokens | starts | alone | beside drafts |", "|---|--:|--:|--:|--:|"]
    for each in starts():
        cells = (f"{ms.min():.2f} to {ms.max():.2f} ms" for ms in (each.alone_ms, each.beside_ms))
        lines.append(f"| {each.nccl} | {each.tokens} | {each.alone_ms.size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def called_by_vllm_us() -> tuple[FloatArray, FloatArray]:
    """What an all-reduce of NCCL takes more where vLLM calls it, in forwards alone and beside drafts [µs], by tokens."""
    rows = rows_of(HARNESS / f"{DRAFTED[1]}_forward_llama-3.1-8b.csv")
    ours, vllms = ([row for row in rows if Way.of(row).name == name] for name in ("default", "vllm-nccl"))
    pairs = list(zip(ours, vllms, strict=True))
    alone, beside = (
        np.array([float(vllm[name]) - float(own[name]) for own, vllm in pairs]) for name in ("with_ms", "drafting_ms")
    )
    return alone * 1000.0 / SHAPE.all_reduces, beside * 1000.0 / SHAPE.all_reduces


def bare_beside_ms(nccl: str) -> FloatArray:
    """What forwards without all-reduces take more between drafts that have some than alone [ms], by tokens."""
    return _bare_ms(nccl, "drafting_without_ms") - _bare_ms(nccl, "without_ms")


def bare_apart_ms(bare: str) -> float:
    """How much more a change to no peer access would be than forwards with all-reduces differ by, at most tokens, by bare forwards."""
    return float(_bare_ms("default", bare)[-1] - _bare_ms("nop2p", bare)[-1])


def _bare_ms(nccl: str, bare: str) -> FloatArray:
    rows = [row for row in rows_of(HARNESS / f"{DRAFTED[1]}_forward_llama-3.1-8b.csv") if Way.of(row).name == nccl]
    return np.array([float(row[bare]) for row in rows])


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    print(table(), extras_table(), in_forward_table(), beside_table(), starts_table(), sep="\n\n")
