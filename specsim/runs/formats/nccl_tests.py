"""The table that nccl-tests' all_reduce_perf prints, in its old and its new layout."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from statistics import median

from specsim.errors import Fault, InputError
from specsim.runs.allreduce import AllReduceRow

_ADVICE = "allowed: the output of nccl-tests' all_reduce_perf, its header lines included"
_COLUMNS = ("size", "time")
_MOST = 1e15  # no message [bytes] or time [µs] is larger; larger numbers are another column


@dataclass(frozen=True)
class _Header:
    """Where the columns stand: how many there are, the size, and the times with the place that each is of."""

    count: int
    size: int
    times: tuple[tuple[int, bool], ...]
    algbw: int | None
    busbw: int | None
    wrong: tuple[int, ...]


def looks_like_nccl_tests(text: str) -> bool:
    """Whether a header line of nccl-tests stands in a text."""
    return any(_header(line) for line in text.splitlines())


def parse_nccl_tests(text: str, nccl: str, name: str) -> tuple[tuple[AllReduceRow, ...], tuple[str, ...]]:
    """Rows out of place and in place of every line that can be read, and notes on those that cannot.

    Columns are found by the header line, so layouts with and without redop and root both read; sizes are bytes,
    times µs. `nccl` is the setting's label, which the text does not hold; ranks are listed in its preamble, or follow
    from busbw/algbw = 2(n − 1)/n. Raises InputError where nothing can be used.
    """
    _refuse_other_collectives(text, name)
    rows: list[AllReduceRow] = []
    ratios: list[float] = []
    header, dropped = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _header(line) or header
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = [] if header is None else _rows(line.split(), header, nccl, f"{name}, line {number}")
        dropped += not found
        rows += found
        ratios += [] if header is None or not found else _bus_ratio(line.split(), header)
    if not rows:
        seen = f"has no row that can be read ({dropped} lines were tried)" if header else "has no header line"
        raise InputError([Fault(name, "", seen, _ADVICE)])
    ranks = _listed_ranks(text) or _ranks_of(ratios)
    notes = [f"{name}: {dropped} lines are no rows of a table and were dropped"] if dropped else []
    return tuple(replace(row, ranks=ranks) for row in rows), tuple(notes)


def _header(line: str) -> _Header | None:
    """The columns that a comment line names; None on any other line."""
    stripped = line.strip()
    names = stripped[1:].split() if stripped.startswith("#") else []
    if not set(_COLUMNS) <= set(names):
        return None
    times = [at for at, name in enumerate(names) if name == "time"]
    wrong = tuple(at for at, name in enumerate(names) if name in ("#wrong", "error"))
    first = {name: names.index(name) if name in names else None for name in ("algbw", "busbw")}
    placed = tuple((at, place == 1) for place, at in enumerate(times[:2]))
    return _Header(len(names), names.index("size"), placed, first["algbw"], first["busbw"], wrong)


def _rows(cells: list[str], header: _Header, nccl: str, where: str) -> list[AllReduceRow]:
    """The rows of one line, none where it is malformed or its results were wrong."""
    size = _number(cells[header.size]) if len(cells) == header.count else None
    if size is None or size != int(size) or any(_is_wrong(cells[at]) for at in header.wrong):
        return []
    times = [(_number(cells[at]), place) for at, place in header.times]
    return [AllReduceRow(nccl, size, time, in_place=place, where=where) for time, place in times if time is not None]


def _number(cell: str) -> float | None:
    """A positive number, None where the cell is none."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 < value < _MOST else None


def _is_wrong(cell: str) -> bool:
    """Whether a count of wrong elements, or the old layout's largest error, says that the result was wrong."""
    try:
        return float(cell) > 1e-2
    except ValueError:
        return False  # 'N/A': not checked


def _bus_ratio(cells: list[str], header: _Header) -> list[float]:
    if header.algbw is None or header.busbw is None:
        return []
    algorithm, bus = _number(cells[header.algbw]), _number(cells[header.busbw])
    return [bus / algorithm] if algorithm and bus and algorithm > 1 else []  # below 1 GB/s rounding decides


def _ranks_of(ratios: list[float]) -> int | None:
    """Ranks n from busbw/algbw = 2(n − 1)/n, None unless that is nearly whole."""
    if not ratios or not 0.9 < median(ratios) < 1.99:
        return None
    ranks = 2 / (2 - median(ratios))
    return round(ranks) if abs(ranks - round(ranks)) < 0.1 * ranks / 2 else None


def _listed_ranks(text: str) -> int | None:
    listed = set(re.findall(r"^#\s+Rank\s+(\d+)\b", text, flags=re.MULTILINE))
    return len(listed) or None


def _refuse_other_collectives(text: str, name: str) -> None:
    named = re.search(r"^#\s*Collective test starting:\s*(\w+)", text, flags=re.MULTILINE)
    if named and not named[1].startswith("all_reduce"):
        raise InputError([Fault(name, "", f"is a table of {named[1]}", _ADVICE)])
