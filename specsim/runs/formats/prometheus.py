"""Prometheus text of engines: parsed into samples; into snapshots, and the difference of two."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specsim.runs.formats.metric_names import METRIC_NAMES, PREFIXES
from specsim.runs.readings import LeftOut

_SAMPLE = re.compile(rf"({'|'.join(PREFIXES)})(\w+)(?:\{{(.*)\}})?\s+(\S+)(?:\s+\d+)?\s*", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_IN_FILES = ("sglang", "vllm", "llama.cpp")
_PEDIGREE = ("model_name", "engine", "engine_type", "dp_rank")

Key = tuple[str, str]
"""A metric's name and its position or pedigree labels as text."""


@dataclass(frozen=True)
class Sample:
    """One line: whose metric, its name without the engine's prefix, its labels as text and read, value, line number."""

    engine: str
    name: str
    label_text: str
    value: float
    line: int

    @property
    def labels(self) -> dict[str, str]:
        """The labels by name."""
        return dict(_LABEL.findall(self.label_text))


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
    """Whether a line of a text is a metric of an engine that is read from files."""
    found = (_SAMPLE.fullmatch(line) for line in head.splitlines())
    return any(PREFIXES[sample[1]] in _IN_FILES for sample in found if sample)


def samples_of(text: str) -> tuple[list[Sample], list[LeftOut]]:
    """Every engine's samples of a text, and the lines of theirs that could not be read."""
    samples: list[Sample] = []
    bad: list[LeftOut] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _SAMPLE.fullmatch(line)
        value = _value(found[4]) if found else None
        if found and value is not None:
            samples.append(Sample(PREFIXES[found[1]], found[2], found[3] or "", value, number))
        elif found or line.lstrip().startswith(tuple(PREFIXES)):
            bad.append(LeftOut("metric line that cannot be read", 1, number, number, line[:120]))
    return samples, bad


def snapshots_of(text: str) -> tuple[list[Snapshot], list[LeftOut]]:
    """The snapshots of a text, each ending where a sample stands again, and the lines that could not be read."""
    parts: list[list[Sample]] = [[]]
    seen: set[tuple[str, str, str]] = set()
    samples, bad = samples_of(text)
    for sample in samples:
        if sample.engine not in _IN_FILES:
            continue
        if (name := (sample.engine, sample.name, sample.label_text)) in seen:
            parts, seen = [*parts, []], set()
        seen.add(name)
        parts[-1].append(sample)
    return [_snapshot(part) for part in parts if part], bad


def _value(text: str) -> float | None:
    """A sample's value; counters of a long-lived server are larger than any figure of a run."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < math.inf else None


def _snapshot(samples: Sequence[Sample]) -> Snapshot:
    totals: dict[str, float] = {}
    by_position: dict[int, float] = {}
    pedigree: set[str] = set()
    model = None
    for sample in samples:
        name, labels = sample.name, sample.labels
        if name == "spec_decode_num_drafts_created":
            pedigree.add(f"created {sample.value}")  # another after a restart
        if labels.get("tp_rank", "0") != "0" or name.endswith(("_bucket", "_created")):
            continue
        model = labels.get("model_name") or model
        pedigree |= {f"{label}={labels[label]}" for label in _PEDIGREE if label in labels}
        if name == METRIC_NAMES[sample.engine].accepted_at and labels.get("position", "").isdecimal():
            position = int(labels["position"])
            by_position[position] = by_position.get(position, 0) + sample.value
        elif _counts(name):
            totals[name] = totals.get(name, 0) + sample.value
        else:
            totals.setdefault(name, sample.value)
    first, last = samples[0], samples[-1]
    return Snapshot(first.engine, model, totals, by_position, frozenset(pedigree), first.line, last.line)


def between(before: Snapshot, after: Snapshot) -> Snapshot | None:
    """What was counted from one snapshot to the next; None where they are not of one server without a restart."""
    if (before.engine, before.model, before.pedigree) != (after.engine, after.model, after.pedigree):
        return None
    counted = {name: value - before.totals.get(name, 0) for name, value in after.totals.items() if _counts(name)}
    positions = {at: value - before.by_position.get(at, 0) for at, value in after.by_position.items()}
    if any(value < 0 for value in (*counted.values(), *positions.values())):
        return None
    gauges = {name: value for name, value in after.totals.items() if not _counts(name)}
    return Snapshot(
        after.engine, after.model, {**gauges, **counted}, positions, after.pedigree, after.first, after.last
    )


def nothing_counted(before: Snapshot, after: Snapshot) -> bool:
    """Whether two snapshots with counters are of one server that did nothing in between."""
    counted = between(before, after)
    moved = [value for name, value in counted.totals.items() if _counts(name)] if counted is not None else []
    return bool(moved) and not any(moved)


def _counts(name: str) -> bool:
    return name.endswith(("_total", "_sum", "_count"))
