"""What a reader makes of a file: runs with the lines that they come from, and what it left out, counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_LEAST, _MOST = 1e-6, 1e9  # as the run form has it: no figure that anybody measures lies outside
_EXAMPLE = 120


@dataclass(frozen=True)
class Reading:
    """One run as a file tells it: fields of the run form, and the first and last line that they come from.

    `at_batch` are figures that mean something only where the batch size is known. `hint` says what the file gives
    away of a configuration that it does not state. `since` is the file that its counts are counted from, if another.
    `unsure` is why it is not used unless it is stated whether it drafted.
    """

    fields: Mapping[str, Any]
    first: int
    last: int
    at_batch: Mapping[str, Any] = field(default_factory=dict)
    hint: str = ""
    since: str = ""
    unsure: str = ""


@dataclass(frozen=True)
class LeftOut:
    """So many lines or rows that made no run, why, where the first and the last stand, and the first one's text."""

    why: str
    count: int
    first: int
    last: int
    example: str = ""


class Tally:
    """Counts what is left out by its reason, in the memory of one line each."""

    def __init__(self) -> None:
        self._seen: dict[str, LeftOut] = {}

    def add(self, why: str, line: int, text: str = "") -> None:
        """Count one more; the text of the first is kept as an example."""
        self.merge(LeftOut(why, 1, line, line, text))

    def merge(self, more: LeftOut) -> None:
        """Count what somebody else left out for the same reason."""
        before = self._seen.get(more.why)
        if before is None:
            self._seen[more.why] = replace(more, example=_printable(more.example))
        else:
            first, last = min(more.first, before.first), max(more.last, before.last)
            self._seen[more.why] = LeftOut(more.why, before.count + more.count, first, last, before.example)

    def __iter__(self) -> Iterator[LeftOut]:
        return iter(self._seen.values())


class Repeats:
    """Rows of figures kept as at most 32 repeats: when full, neighbours are averaged and repeats cover twice as much.

    Means of stretches of a log scatter as the log does from stretch to stretch, which is what a fit has to know.
    """

    most = 32

    def __init__(self) -> None:
        self.each, self.count = 1, 0
        self._full: list[tuple[float, ...]] = []
        self._open: list[tuple[float, ...]] = []

    def add(self, *row: float) -> None:
        """One more row."""
        self.count += 1
        self._open.append(row)
        if len(self._open) == self.each:
            self._full.append(_mean(self._open))
            self._open = []
        if len(self._full) == self.most:
            self._full = [_mean(self._full[i : i + 2]) for i in range(0, self.most, 2)]
            self.each *= 2

    def column(self, index: int) -> list[float]:
        """The repeats of one figure; a stretch not yet complete counts with the one before it."""
        rows = list(self._full)
        if self._open and rows:
            size, over = self.each, len(self._open)
            parts = zip(rows[-1], _mean(self._open), strict=True)
            rows[-1] = tuple((last * size + more * over) / (size + over) for last, more in parts)
        elif self._open:
            rows = [_mean(self._open)]
        return [rounded(row[index]) for row in rows]


def _mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))


def rounded(value: float) -> float:
    """Seven digits: more than any instrument here has."""
    return float(f"{value:.7g}")


def amount(text: object) -> float | None:
    """A number inside what a figure may be, or 0; None for anything else."""
    if isinstance(text, bool) or text is None:
        return None
    shown = str(text).strip()
    if not _NUMBER.fullmatch(shown):
        return None
    value = float(shown)
    return value if value == 0 or _LEAST <= value <= _MOST else None


def whole(text: object) -> int | None:
    """A whole number from 0; None for anything else. 390.0 is whole."""
    value = amount(text)
    return int(value) if value is not None and value == int(value) else None


def pieces(text: str) -> dict[str, str]:
    """The `name: value` pieces of a log line, parted by commas, by name."""
    found = {}
    for piece in text.split(","):
        name, colon, value = piece.partition(":")
        if colon:
            found[name.strip()] = value.strip()
    return found


def intervals_text(count: int, each: int = 1) -> str:
    """How many intervals of a log a run is of, and how many a repeat is the mean of."""
    averaged = f", each repeat the mean of {each}" if each > 1 else ""
    return f"{count} log interval" + ("s" if count > 1 else "") + averaged


def _printable(text: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text.strip())
    return shown if len(shown) <= _EXAMPLE else shown[: _EXAMPLE - 1] + "…"
