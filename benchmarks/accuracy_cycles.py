"""Cycles without peer access: a server's phases, beside whole cycles of the harness on the same GPUs and eq. 17, as a markdown table.

Run: python -m benchmarks.accuracy_cycles
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from benchmarks.accuracy_allreduce import HARNESS, rows_of
from benchmarks.accuracy_phases import told
from benchmarks.accuracy_tensor_parallel import BASE, BESIDE, WIDE, runs_of
from benchmarks.held_out import whole
from specsim.runs.allreduce import NCCL

MACHINE, SETTING = "h200x2m", "nop2p"
CASES = ((3, 1), (3, 4), (3, 64), (5, 1), (5, 4), (5, 16), (5, 64))
"""Drafts and requests of which both servers' phases were told (of 3 at 16 there were too few cycles)."""


@dataclass(frozen=True)
class Change:
    """What verify and the draft forwards of a cycle take more without peer access [ms]."""

    verify: float
    drafts: float

    @property
    def both(self) -> float:
        """Their sum."""
        return self.verify + self.drafts


@cache
def _rows(name: str) -> tuple[dict[str, str], ...]:
    return tuple(rows_of(HARNESS / f"{MACHINE}_{name}.csv"))


def _of(name: str, drafts: int, batch: int, nccl: str) -> list[dict[str, str]]:
    wanted = (nccl, str(drafts), str(batch))
    return [row for row in _rows(name) if (row["nccl"], row["drafts"], row["batch_size"]) == wanted]


def served(drafts: int, batch: int) -> Change:
    """By a server's phases, medians, each of the rank where it is less: the other waits in it."""

    def more(phase: str) -> float:
        took = {
            nccl: min(float(row["median_us"]) for row in _of("phases", drafts, batch, nccl) if row["phase"] == phase)
            for nccl in (BASE, SETTING)
        }
        return (took[SETTING] - took[BASE]) / 1000.0

    return Change(more("verify graph"), more("wide draft graph") + (drafts - 1) * more("narrow draft graph"))


def _harness(part: str, drafts: int, batch: int) -> float:
    """By the harness, medians over starts."""
    took = {
        nccl: np.median([float(row[f"{part}_ms"]) for row in _of("cycles", drafts, batch, nccl)])
        for nccl in (BASE, SETTING)
    }
    return float(took[SETTING] - took[BASE])


def cycled(drafts: int, batch: int) -> Change:
    """By the harness's whole cycles."""
    narrow = _harness("narrow", drafts, batch)
    return Change(_harness("verify", drafts, batch), _harness("wide", drafts, batch) + (drafts - 1) * narrow)


def whole_off_ms() -> tuple[float, float]:
    """What the parts of whole cycles from 4 requests on change more than servers of the same GPUs without marks [ms]: least and most."""
    measured = _served_ms()
    off = [
        cycled(*case).both + _harness("gather", *case) - (measured[SETTING, *case] - measured[BASE, *case])
        for case in product((3, 5), (4, 16, 64))
    ]
    return min(off), max(off)


def marked_ms() -> tuple[float, float]:
    """What cycles of 1 and 4 requests under the base took more in a server with marks than in one without [ms]: least and most."""
    unmarked = _served_ms()
    more = [
        min(float(row["median_us"]) for row in _of("phases", *case, BASE) if row["phase"] == "cycle") / 1000.0
        - unmarked[BASE, *case]
        for case in product((3, 5), (1, 4))
    ]
    return min(more), max(more)


def _served_ms() -> dict[tuple[str, int, int], float]:
    """Cycles of servers without marks, by setting, drafts and requests."""
    return {(run.nccl, int(run.spec.num_draft_tokens) - 1, int(run.workload.batch_size)): whole(run).best
            for nccl in (BASE, SETTING) for run in runs_of(MACHINE, nccl) if run.spec is not None}  # fmt: skip


AGAIN = ("h200x2o", "h200x2p")
"""Machines that ran whole cycles minutes after their tables, one start each."""


def apart_from_tables_ms() -> list[float]:
    """What verify's change without peer access in cycles of 3 drafts is more than in the tables' forwards of as many tokens [ms]."""
    found = []
    for machine in AGAIN:
        cycles, forwards = (rows_of(HARNESS / f"{machine}_{name}.csv") for name in ("cycles", "forward_llama-3.1-8b"))
        took = {
            (row["nccl"], 4 * int(row["batch_size"])): float(row["verify_ms"]) for row in cycles if row["drafts"] == "3"
        }
        told_by = {(row["nccl"], int(row["tokens"])): float(row["drafting_ms"])
                   for row in forwards if row["implementation"] == NCCL}  # fmt: skip
        found += [
            (took[SETTING, tokens] - took[BASE, tokens]) - (told_by[SETTING, tokens] - told_by[BASE, tokens])
            for nccl, tokens in took
            if nccl == BASE
        ]
    return found


def by_eq_17(drafts: int, batch: int, name: str = BESIDE) -> Change:
    """By all-reduces of other machines in whole cycles, or by another table."""
    said = told(SETTING, drafts, batch, name)
    return Change(said.verify, said.drafts)


def by_wide(drafts: int, batch: int) -> Change:
    """By all-reduces of other machines between drafts as wide as the verify."""
    return by_eq_17(drafts, batch, WIDE)


def table() -> str:
    """A line for each case: what verify and draft forwards take more without peer access."""
    lines = [
        "| drafts | batch | verify, in a server | in whole cycles | between three wide drafts | alone | by eq. 17 | by eq. 17 and wide drafts"
        " | draft forwards, in a server | in whole cycles | by eq. 17 | by eq. 17 and wide drafts |",
        f"|--:|--:{'|--:' * 10}|",
    ]
    for case in CASES:
        server, whole, said, wide = served(*case), cycled(*case), by_eq_17(*case), by_wide(*case)
        harness = (_harness(part, *case) for part in ("beside_three", "alone"))
        verify = (server.verify, whole.verify, *harness, said.verify, wide.verify)
        cells = " | ".join(f"{ms:+.3f}" for ms in (*verify, server.drafts, whole.drafts, said.drafts, wide.drafts))
        lines.append(f"| {case[0]} | {case[1]} | {cells} |")
    return "\n".join(lines)


def over_wide(drafts: int) -> tuple[float, float]:
    """By how much verify's change is larger in whole cycles of so many drafts than between three wide ones [ms], least and most."""
    more = [_harness("verify", *case) - _harness("beside_three", *case) for case in CASES if case[0] == drafts]
    return min(more), max(more)


def short(of: str, how: Callable[[int, int], Change]) -> list[float]:
    """By how much a part is told less than a server's change [ms], rising: by `cycled`, `by_eq_17` or `by_wide`."""
    return sorted(getattr(served(*case), of) - getattr(how(*case), of) for case in CASES)


if __name__ == "__main__":
    print(table())
