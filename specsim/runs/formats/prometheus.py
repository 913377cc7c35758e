"""Prometheus text of SGLang, vLLM and llama.cpp: parsed into snapshots, and the difference of two."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specsim.runs.readings import LeftOut

_SAMPLE = re.compile(r"(sglang|vllm|llamacpp):(\w+)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?\s*", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_ENGINES = {"sglang": "sglang", "vllm": "vllm", "llamacpp": "llama.cpp"}
_PEDIGREE = ("model_name", "engine", "engine_type", "dp_rank")

Key = tuple[str, str]
"""A metric's name and its position or pedigree labels as text."""


@dataclass(frozen=True)
class Snapshot:
    """What one server's /metrics said at one moment, samples of its engines added up; lines as read."""

    engine: str
    model: str | None
    totals: Mapping[str, float]
    by_position: Mapping[int, float]
    pedigree: frozenset[str]
    first: int
    last: int


def looks_like_prometheus(head: str) -> bool:
    """Whether a line of a text is a metric of an engine that is read here."""
    return any(_SAMPLE.fullmatch(line) for line in head.splitlines())


def snapshots_of(text: str) -> tuple[list[Snapshot], list[LeftOut]]:
    """The snapshots of a text, each ending where a sample stands again, and the lines that could not be read."""
    parts: list[list[tuple[int, re.Match[str], float]]] = [[]]
    seen: set[tuple[str, str, str]] = set()
    bad: list[LeftOut] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (found := _SAMPLE.fullmatch(line)):
            if line.lstrip().startswith(tuple(f"{name}:" for name in _ENGINES)):
                bad.append(LeftOut("metric line that cannot be read", 1, number, number, line[:120]))
            continue
        value = _value(found[4])
        if value is None:
            bad.append(LeftOut("metric line that cannot be read", 1, number, number, line[:120]))
            continue
        if (sample := (found[1], found[2], found[3] or "")) in seen:
            parts, seen = [*parts, []], set()
        seen.add(sample)
        parts[-1].append((number, found, value))
    return [_snapshot(part) for part in parts if part], bad


def _value(text: str) -> float | None:
    """A sample's value; counters of a long-lived server are larger than any figure of a run."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _snapshot(samples: Sequence[tuple[int, re.Match[str], float]]) -> Snapshot:
    totals: dict[str, float] = {}
    by_position: dict[int, float] = {}
    pedigree: set[str] = set()
    model = None
    for _, found, value in samples:
        labels = dict(_LABEL.findall(found[3] or ""))
        if found[2] == "spec_decode_num_drafts_created":
            pedigree.add(f"created {value}")  # another after a restart
        if labels.get("tp_rank", "0") != "0" or found[2].endswith(("_bucket", "_created")):
            continue
        model = labels.get("model_name") or model
        pedigree |= {f"{name}={labels[name]}" for name in _PEDIGREE if name in labels}
        if found[2].endswith("_per_pos_total") and labels.get("position", "").isdecimal():
            position = int(labels["position"])
            by_position[position] = by_position.get(position, 0) + value
        elif _counts(found[2]):
            totals[found[2]] = totals.get(found[2], 0) + value
        else:
            totals.setdefault(found[2], value)
    engine = _ENGINES[samples[0][1][1]]
    return Snapshot(engine, model, totals, by_position, frozenset(pedigree), samples[0][0], samples[-1][0])


def between(before: Snapshot, after: Snapshot) -> Snapshot | None:
    """What was counted from one snapshot to the next; None where they are not of one server without a restart."""
    if (before.engine, before.model, before.pedigree) != (after.engine, after.model, after.pedigree):
        return None
    counted = {name: value - before.totals.get(name, 0) for name, value in after.totals.items() if _counts(name)}
    positions = {at: value - before.by_position.get(at, 0) for at, value in after.by_position.items()}
    if any(value < 0 for value in (*counted.values(), *positions.values())) or not any(counted.values()):
        return None
    gauges = {name: value for name, value in after.totals.items() if not _counts(name)}
    return Snapshot(
        after.engine, after.model, {**gauges, **counted}, positions, after.pedigree, after.first, after.last
    )


def _counts(name: str) -> bool:
    return name.endswith(("_total", "_sum", "_count"))
