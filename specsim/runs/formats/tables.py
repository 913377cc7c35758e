"""Tables that people paste: CSV or Markdown, by the names of their columns, or a grid of configuration by batch size."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from typing import Any

from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole
from specsim.runs.schema import RUN_FIELDS

_COLUMNS = {
    "batch_size": ("bs", "batch", "batch_size"),
    "num_steps": ("steps", "num_steps"),
    "topk": ("topk",),
    "num_draft_tokens": ("num_draft", "num_draft_tokens", "draft_tokens"),
    "output_tok_s": ("throughput", "output_throughput", "output_tok_s"),
    "accept_length": ("acc_len", "acc_length", "accept_len", "accept_length"),
    "tensor_parallel": ("tp", "tp_size"),
}
_KNOWN = {theirs: ours for ours, names in _COLUMNS.items() for theirs in names}
_GRID = re.compile(r"bs ?= ?(\d{1,6})", re.ASCII)
_CONFIGURATION = re.compile(r"(?:.*\s)?(\d{1,4})[_/](\d{1,4})[_/](\d{1,4})", re.ASCII)
_BY_DRAFTER = re.compile(r"(al|tpot)_(\w+?)(?:_ms)?", re.ASCII)

OWN_FILE = "runs in specsim's own form: its commands read them as they are"

Row = tuple[int, list[str]]


def looks_like_table(head: str) -> bool:
    """Whether a header names columns that make a run: throughput by batch or configuration, a grid, or lengths by K."""
    headers = [_names(header) for header, _ in _tables(head)]
    return any(_reader(names) is not None or _is_own(names) for names in headers)


def read_tables(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """The runs of every table of a text whose header is known."""
    for (number, header), rows in _tables(text):
        names = _names((number, header))
        reader = _reader(names)
        if _is_own(names):
            yield LeftOut(OWN_FILE, len(rows), number, rows[-1][0])
            continue
        if reader is None:
            yield LeftOut("table whose columns name no run", 1, number, number, ", ".join(header))
            continue
        for row in rows:
            if len(row[1]) != len(header):
                yield LeftOut("row with more or fewer cells than the header", 1, row[0], row[0], ", ".join(row[1]))
        whole = [row for row in rows if len(row[1]) == len(header)]
        found = [each for row in whole for each in reader(names, row)]
        yield from _plain_once(found) if reader is _drafter_row else found
        if reader is _row and (unread := [name for name in names if name not in _KNOWN]):
            yield LeftOut("columns that are not read", len(unread), number, number, ", ".join(unread))


def _tables(text: str) -> Iterator[tuple[Row, list[Row]]]:
    """Tables of a text, a header and its rows each, parted by blank lines."""
    rows: list[Row] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            rows.append((number, _cells(line)))
        elif rows:
            ruled = [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row[1])]
            if len(ruled) > 1:
                yield ruled[0], ruled[1:]
            rows = []


def _cells(line: str) -> list[str]:
    if "|" in line:
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return [line]


def _names(header: Row) -> list[str]:
    return [
        re.sub(r"[\s-]+", "_", cell.strip().lower()) if not _GRID.fullmatch(cell.lower()) else cell.lower()
        for cell in header[1]
    ]


def _is_own(names: Sequence[str]) -> bool:
    return len(names) > 1 and set(names) <= set(RUN_FIELDS)


def _reader(names: Sequence[str]) -> Any:
    """What reads rows under these names; None where they make no run."""
    known = {_KNOWN[name] for name in names if name in _KNOWN}
    if "output_tok_s" in known and known & {"batch_size", "num_steps", "num_draft_tokens"}:
        return _row
    if sum(bool(_GRID.fullmatch(name)) for name in names) > 1:
        return _grid_row
    if "k" in names and any(_BY_DRAFTER.fullmatch(name) for name in names):
        return _drafter_row
    return None


def _row(names: Sequence[str], row: Row) -> Iterator[Reading | LeftOut]:
    """A row with a column for each field; steps 0, or none at all, is plain decode."""
    number, cells = row
    named = {_KNOWN[name]: cell for name, cell in zip(names, cells, strict=True) if name in _KNOWN}
    figures = ("output_tok_s", "accept_length")
    found = {name: amount(cell) if name in figures else whole(cell) for name, cell in named.items() if cell}
    if None in found.values() or not found.get("output_tok_s") or found.get("batch_size") == 0:
        yield LeftOut("row that cannot be read", 1, number, number, ", ".join(cells))
        return
    if not found.get("num_steps") and not found.get("num_draft_tokens"):
        for name in ("num_steps", "topk", "num_draft_tokens", "accept_length"):
            found.pop(name, None)
        yield Reading({**found, "method": "none"}, number, number)
    else:
        yield Reading(found, number, number)


def _grid_row(names: Sequence[str], row: Row) -> Iterator[Reading | LeftOut]:
    """A configuration such as `Static 3_1_4` (steps, topk, draft tokens) with its throughput at each batch size."""
    number, cells = row
    shape = _CONFIGURATION.fullmatch(cells[0])
    for name, cell in zip(names, cells, strict=True):
        batch, speed = _GRID.fullmatch(name), amount(cell)
        if batch is None:
            continue
        if shape is None or not speed or int(batch[1]) < 1:
            yield LeftOut(
                "cell without a configuration or throughput", 1, number, number, f"{cells[0]}, {name}: {cell}"
            )
            continue
        steps, topk, width = (int(each) for each in shape.groups())
        config = {"num_steps": steps, "topk": topk, "num_draft_tokens": width}
        yield Reading({**config, "batch_size": int(batch[1]), "output_tok_s": speed}, number, number)


def _plain_once(found: Sequence[Reading | LeftOut]) -> Iterator[Reading | LeftOut]:
    """A time of plain decode that stands in every row is one measurement, of all their lines."""
    plain = [each for each in found if isinstance(each, Reading) and "decode_ms" in each.fields]
    if len({each.fields["decode_ms"] for each in plain}) != 1:
        yield from found
        return
    yield Reading(plain[0].fields, plain[0].first, plain[-1].last)
    yield from (each for each in found if each not in plain)


def _drafter_row(names: Sequence[str], row: Row) -> Iterator[Reading | LeftOut]:
    """K drafts with a length and a time per token of each drafter: C = TPOT·L (eq. 6); `vanilla` is plain decode."""
    number, cells = row
    named = {
        found.groups(): amount(cell)
        for name, cell in zip(names, cells, strict=True)
        if (found := _BY_DRAFTER.fullmatch(name))
    }
    drafts = whole(cells[names.index("k")])
    if not drafts:
        yield LeftOut("row without K", 1, number, number, ", ".join(cells))
        return
    for drafter in dict.fromkeys(drafter for _, drafter in named):
        length, tpot = named.get(("al", drafter)), named.get(("tpot", drafter))
        if length and length >= 1:
            cycle = {"cycle_ms": rounded(tpot * length), "implied": "cycle_ms"} if tpot else {}
            fields = {"drafter": drafter, "num_draft_tokens": drafts + 1, "accept_length": length, **cycle}
            yield Reading(fields, number, number)
        elif tpot and drafter in ("vanilla", "plain", "base"):
            yield Reading({"method": "none", "decode_ms": tpot}, number, number)
        else:
            yield LeftOut("cells without a length or a time", 1, number, number, drafter)
