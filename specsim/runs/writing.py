"""Writing rows of the run form as files that `load_runs` reads."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specsim.runs.schema import RUN_FIELDS, SCHEMA

Rows = Sequence[Mapping[str, Any]]
WRITERS = (".csv", ".json")


def runs_record(rows: Rows, about: str) -> dict[str, Any]:
    """A JSON runs file as a record."""
    return {"schema": SCHEMA, "about": about, "runs": [dict(row) for row in rows]}


def write_runs(rows: Rows, about: str, path: Path) -> None:
    """Write rows as JSON or CSV by the path's suffix."""
    text = (
        _csv(rows)
        if path.suffix == ".csv"
        else json.dumps(runs_record(rows, about), indent=1, ensure_ascii=False) + "\n"
    )
    path.write_text(text, encoding="utf-8")


def _csv(rows: Rows) -> str:
    """The rows as CSV, with the columns that any of them uses, in the order of the run form."""
    used = [name for name in RUN_FIELDS if any(name in row for row in rows)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(used)
    writer.writerows([_cell(row.get(name)) for name in used] for row in rows)
    return out.getvalue()


def _figure_cell(figure: Mapping[str, Any]) -> str:
    """A value, repeats or a range as a cell has them."""
    if "repeats" in figure:
        return ";".join(map(str, figure["repeats"]))
    value, inside = figure.get("value", ""), f"{figure.get('min')}..{figure.get('max')}"
    return str(value) if "min" not in figure else f"{value} ({inside})" if value != "" else inside


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ";".join(map(str, value))
    if isinstance(value, Mapping):
        return _figure_cell(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
