"""Reading all-reduce tables: nccl-tests text or our own CSV, told apart by content."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from specsim.errors import Fault, InputError
from specsim.runs.allreduce import AllReduceRow, AllReduceTable
from specsim.runs.formats.allreduce_csv import parse_allreduce_csv
from specsim.runs.formats.nccl_tests import looks_like_nccl_tests, parse_nccl_tests
from specsim.runs.text import text_of

_ALLOWED = "allowed: the output of nccl-tests, or CSV with the columns bytes and time_us (docs/data-format.md)"


def load_allreduce(paths: Iterable[tuple[str | None, Path]]) -> AllReduceTable:
    """Read tables, each with a label for rows that state no setting (None: the file's name for nccl-tests).

    Raises InputError listing the faults of every file.
    """
    rows: list[AllReduceRow] = []
    notes: list[str] = []
    faults: list[Fault] = []
    for label, path in paths:
        try:
            found, said = _parse(text_of(path, _ALLOWED), label, path)
        except InputError as error:
            faults += error.faults
            continue
        rows += found
        notes += said
    table = AllReduceTable(tuple(rows), tuple(notes))
    if rows and not table.all_reduces:
        patterns = " or ".join(dict.fromkeys(f"{row.pattern!r}" for row in rows))
        faults.append(
            Fault(rows[0].where, "pattern", f"is {patterns} in every row", "give a table of all-reduces beside it")
        )
    if faults:
        raise InputError(faults)
    return table


def load_published() -> AllReduceTable:
    """The bundled published all-reduce times of hosts without NVLink, each with its source."""
    text = files("specsim.data").joinpath("allreduce_published.csv").read_text(encoding="utf-8")
    return AllReduceTable(parse_allreduce_csv(text, None, "bundled all-reduce times"))


def _parse(text: str, label: str | None, path: Path) -> tuple[tuple[AllReduceRow, ...], tuple[str, ...]]:
    if looks_like_nccl_tests(text):
        return parse_nccl_tests(text, label or path.stem, str(path))
    if not text.strip() or text.lstrip().startswith("#") or "," not in text:
        problem = "is no all-reduce table" if text.strip() else "is empty"
        raise InputError([Fault(str(path), "", problem, _ALLOWED)])
    return parse_allreduce_csv(text, label, str(path)), ()
