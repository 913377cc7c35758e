"""All-reduce tables: their rows, and the settings that the rows are of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specsim.cost.allreduce import MeasuredCurve, measured_curve

NCCL = "nccl"
"""The implementation that NCCL settings are settings of."""

IN_A_FORWARD = "in a forward"
"""The pattern of all-reduces that were measured where they are paid: what a forward takes longer with them, over them."""

IN_A_CYCLE, BESIDE_DRAFTS = "in a forward in a whole cycle", "in a forward beside drafts"
"""The patterns of the same in a forward between a drafter's: followed by the gather of its logits, a draft forward as wide and narrow ones,
as vLLM 0.24 runs them, or with other drafts about it, beside which NCCL takes less (docs/accuracy.md)."""

BETWEEN_DRAFTS = {IN_A_CYCLE: "all-reduces in whole cycles", BESIDE_DRAFTS: "all-reduces beside drafts"}
"""What a cycle's all-reduces are read off, and what it is called: of a setting the first of these that it has."""

LAUNCH = "single launch beside drafts"
"""The pattern of rows that are no all-reduces: from one kernel that is launched singly between a drafter's forwards to the next."""

GATHER = "gather of logits"
"""The pattern of rows that are no all-reduces: a gather of so many bytes, all ranks' parts together."""

COMPANIONS = (GATHER, *BETWEEN_DRAFTS, LAUNCH)
"""Patterns of rows that go with others' curves and are none of their own."""

CONDITIONS = ("cuda_graph", "pattern", "ranks", "hardware", "nccl_version")
"""What a row may state beside its setting; rows that differ in one are never repeats of each other."""


def setting_name(nccl: str, implementation: str) -> str:
    """What carried messages by name: the NCCL setting, or the implementation where it is another."""
    return nccl if implementation == NCCL else implementation


def implementation_named(stated: str | None) -> str:
    """An implementation as files state it: NCCL where it is left out, in any case of its letters."""
    return NCCL if stated is None or stated.lower() == NCCL else stated


@dataclass(frozen=True)
class AllReduceRow:
    """One measured all-reduce: the setting, the message [bytes], the time [µs], and under which conditions.

    `in_place` None is unstated, as are all conditions; `where` is the file and row.
    """

    nccl: str
    message_bytes: float
    time_us: float
    implementation: str = NCCL
    in_place: bool | None = None
    cuda_graph: bool | None = None
    pattern: str | None = None
    ranks: int | None = None
    hardware: str | None = None
    nccl_version: str | None = None
    source: str = ""
    where: str = ""

    @property
    def name(self) -> str:
        """The NCCL setting, or the implementation where it is another."""
        return setting_name(self.nccl, self.implementation)

    @property
    def conditions(self) -> tuple[object, ...]:
        """What it was measured under, beside the setting."""
        return tuple(getattr(self, name) for name in CONDITIONS)

    @property
    def file(self) -> str:
        """The file that it stands in."""
        return self.where.rpartition(", ")[0]


@dataclass(frozen=True)
class AllReduceSetting:
    """One curve of a table: a setting (or implementation) under one set of conditions.

    `ranks` None is unstated; `sources` say where its rows were published, `files` what each kind of them was read from.
    """

    label: str
    implementation: str
    ranks: int | None
    hardware: str | None
    sources: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    curve: MeasuredCurve


@dataclass(frozen=True)
class AllReduceTable:
    """The rows of one or more files, and what their readers had to say."""

    rows: tuple[AllReduceRow, ...]
    notes: tuple[str, ...] = ()

    def settings(self, in_place: bool = False) -> tuple[AllReduceSetting, ...]:
        """Every setting's curve, in the order of the rows.

        Where a setting states out-of-place and in-place times, those asked for are used. A label is extended by the
        conditions that its rows differ in. Gathers go with the settings of their name and conditions, what was measured beside
        drafts with those of them in a forward.
        """
        groups: dict[tuple[object, ...], list[AllReduceRow]] = {}
        for row in _placed(self.all_reduces, in_place):
            groups.setdefault((row.name, row.implementation, *row.conditions), []).append(row)
        differing = _differing([rows[0] for rows in groups.values()])
        others = {pattern: _placed(self.of(pattern), in_place) for pattern in COMPANIONS}
        return tuple(_setting(rows, differing[rows[0].name], others) for rows in groups.values())

    @property
    def all_reduces(self) -> tuple[AllReduceRow, ...]:
        """The rows that are all-reduces of a setting of its own."""
        return tuple(row for row in self.rows if row.pattern not in COMPANIONS)

    def of(self, pattern: str) -> tuple[AllReduceRow, ...]:
        """The rows of a pattern."""
        return tuple(row for row in self.rows if row.pattern == pattern)

    def unused(self, pattern: str) -> tuple[str, ...]:
        """Names of which there are rows of a pattern, but none that goes with an all-reduce of that name, in place or not.

        What was measured beside drafts goes with none that has whole cycles, single launches only with one that has either.
        """
        others, used = {each: self.of(each) for each in COMPANIONS}, set()
        for row in self.all_reduces:
            drafted = _drafted(row, others)
            found = drafted if pattern in BETWEEN_DRAFTS else _beside(row, others[pattern])
            if found and found[0].pattern == pattern and (drafted or pattern != LAUNCH):
                used.add(row.name)
        return tuple(dict.fromkeys(row.name for row in others[pattern] if row.name not in used))


def _placed(rows: tuple[AllReduceRow, ...], in_place: bool) -> list[AllReduceRow]:
    """Rows without those of the other place where the one asked for is there."""
    have = {(row.name, row.conditions) for row in rows if row.in_place in (in_place, None)}
    return [row for row in rows if row.in_place in (in_place, None) or (row.name, row.conditions) not in have]


_SHARED = tuple(name for name in CONDITIONS if name != "pattern")


def _beside(row: AllReduceRow, others: Sequence[AllReduceRow]) -> list[AllReduceRow]:
    """Gathers, say, of one set of conditions that an all-reduce goes with, as far as both state them; of both modes graphs'.

    None where what it leaves unstated is not the same in all of them; what was measured beside drafts goes with forwards alone.
    """
    groups: dict[tuple[object, ...], list[AllReduceRow]] = {}
    if others and others[0].pattern != GATHER and row.pattern != IN_A_FORWARD:
        return []
    for each in others:
        alike = all(_alike(getattr(each, name), getattr(row, name)) for name in _SHARED)
        if alike and (each.name, each.implementation) == (row.name, row.implementation):
            groups.setdefault(tuple(getattr(each, name) for name in _SHARED), []).append(each)
    in_graphs = [rows for rows in groups.values() if rows[0].cuda_graph]
    found = in_graphs if len(groups) > 1 and in_graphs else list(groups.values())
    return found[0] if len(found) == 1 else []


def _drafted(row: AllReduceRow, others: Mapping[str, Sequence[AllReduceRow]]) -> list[AllReduceRow]:
    """What an all-reduce takes between drafts: in whole cycles, or else beside other drafts."""
    return next((found for pattern in BETWEEN_DRAFTS if (found := _beside(row, others[pattern]))), [])


def _alike(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def _setting(
    rows: list[AllReduceRow], told_apart_by: tuple[str, ...], others: Mapping[str, Sequence[AllReduceRow]]
) -> AllReduceSetting:
    first = rows[0]
    gathered, launches = (_beside(first, others[pattern]) for pattern in (GATHER, LAUNCH))
    drafting = _drafted(first, others)
    label = ", ".join([first.name, *(_said(name, getattr(first, name)) for name in told_apart_by)])
    sources = tuple(dict.fromkeys(row.source for row in rows if row.source))
    gather = _curve(f"{label}, gather", gathered) if gathered else None
    curve = replace(_curve(label, rows, first.pattern == IN_A_FORWARD), gather=gather)
    if drafting:
        launch_us = float(np.median([row.time_us for row in launches])) if launches else None
        beside = _curve(f"{label}, beside drafts", drafting, in_forward=True)
        curve = replace(curve, drafting=replace(beside, launch_us=launch_us))
    kinds = {
        "all-reduces": rows,
        "gathers": gathered,
        **{kind: [row for row in drafting if row.pattern == pattern] for pattern, kind in BETWEEN_DRAFTS.items()},
        "single launches": launches,
    }
    files = {kind: tuple(dict.fromkeys(row.file for row in each)) for kind, each in kinds.items() if each}
    return AllReduceSetting(label, first.implementation, first.ranks, first.hardware, sources, files, curve)


def _curve(label: str, rows: list[AllReduceRow], in_forward: bool = False) -> MeasuredCurve:
    sizes, times = (np.array([getattr(row, name) for row in rows]) for name in ("message_bytes", "time_us"))
    return measured_curve(label, sizes, times, in_forward)


def _differing(firsts: Iterable[AllReduceRow]) -> dict[str, tuple[str, ...]]:
    """By name: the conditions (and the implementation) in which its groups differ."""
    alike: dict[str, list[AllReduceRow]] = {}
    for row in firsts:
        alike.setdefault(row.name, []).append(row)
    names = ("implementation", *CONDITIONS)
    return {
        name: tuple(each for each in names if len({getattr(row, each) for row in rows}) > 1)
        for name, rows in alike.items()
    }


def _said(name: str, value: object) -> str:
    """A condition in words."""
    if value is None:
        return f"{name} unstated"
    if name == "cuda_graph":
        return "graph" if value else "eager"
    return {"ranks": f"{value} ranks", "nccl_version": f"NCCL {value}"}.get(name, str(value))
