"""Reading runs from CSV, JSON and JSONL files, with every fault named by file, row and field."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specsim.errors import Fault, InputError, first_of
from specsim.runs.run import Run, RunSet
from specsim.runs.schema import RUN_FIELDS, SCHEMA, RunForm, RunsForm
from specsim.runs.text import text_of


def load_campaign() -> RunSet:
    """The bundled campaign: Kimi-K2.5 on eight GPUs without NVLink, SGLang with EAGLE-3."""
    resource = files("specsim.data").joinpath("kimi_k25_campaign.json")
    return _parse_json(resource.read_text(encoding="utf-8"), "bundled campaign")


def load_runs(paths: str | Path | Iterable[str | Path]) -> RunSet:
    """Read a run file, or several as one set (CSV, JSON, JSONL, told apart by content).

    Raises InputError listing the faults of every file, each with file, row, field and what is allowed.
    """
    sets: list[RunSet] = []
    faults: list[Fault] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        try:
            sets.append(_load(Path(path)))
        except InputError as error:
            faults += error.faults
    runs = tuple(run for each in sets for run in each.runs)
    if not faults:
        faults += _repeated_ids(runs)
    if faults:
        raise InputError(first_of(faults))
    if len(sets) == 1:
        return sets[0]
    return RunSet(runs, claims=tuple(claim for each in sets for claim in each.claims))


_ALLOWED = "allowed: CSV, JSON or JSONL runs"


def _load(path: Path) -> RunSet:
    text = text_of(path, _ALLOWED)
    if not text.strip():
        raise InputError([Fault(str(path), "", "is empty", _ALLOWED)])
    name = str(path)
    if text.lstrip()[0] not in "[{":
        return _checked(_csv_rows(text, name), name)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line.lstrip().startswith("{") for line in lines):
        return _checked(_jsonl_rows(text, name), name)
    return _parse_json(text, name)


# -- rows of each form: (where, fields) or a fault ------------------------------------------------------------

Row = tuple[str, dict[str, Any]]


def _csv_rows(text: str, name: str) -> Iterator[Row | Fault]:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    reader.fieldnames = [column.strip() for column in reader.fieldnames or []]
    faults = list(_column_faults(reader.fieldnames, f"{name}, header"))
    yield from faults
    if faults:
        return
    try:
        for cells in reader:
            where = f"{name}, row {reader.line_num}"
            if None in cells or None in cells.values():
                kind = "more" if None in cells else "fewer"
                yield Fault(where, "", f"has {kind} cells than the header's {len(reader.fieldnames)} columns", "")
                continue
            stated = {column: cell for column, cell in cells.items() if cell.strip()}
            if stated:
                yield where, stated
    except csv.Error as error:
        yield Fault(f"{name}, row {reader.line_num}", "", f"is not CSV ({error})", "")


def _column_faults(columns: Iterable[str], where: str) -> Iterator[Fault]:
    seen: set[str] = set()
    for column in columns:
        other = next((mark for mark in (";", "\t", "|") if mark in column), None)
        if other:
            yield Fault(where, "", f"columns are parted by {other!r}", "allowed: comma-separated values")
            return
        if not column:
            yield Fault(where, "", f"column {len(seen) + 1} has no name", "is there a comma too many?")
            return
        if column not in RUN_FIELDS:
            yield Fault(where, column, "is not a known column", nearest_field(column))
        elif column in seen:
            yield Fault(where, column, "stands twice", "each column once")
        seen.add(column)


def nearest_field(name: str) -> str:
    """Advice on a field's name that is not known: the nearest one, or all of them."""
    near = get_close_matches(name, RUN_FIELDS, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(RUN_FIELDS)}"


def _jsonl_rows(text: str, name: str) -> Iterator[Row | Fault]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{name}, row {number}"
        try:
            yield where, _json(line)
        except ValueError as error:
            yield Fault(where, "", f"is not JSON ({error})", "")


def _parse_json(text: str, name: str) -> RunSet:
    try:
        body = _json(text)
    except ValueError as error:
        raise InputError([Fault(name, "", f"is not JSON ({error})", "allowed: CSV, JSON or JSONL runs")]) from None
    if isinstance(body, list):
        return _checked(_numbered(body, name), name)
    if "schema" not in body and "runs" not in body:
        return _checked(_numbered([body], name), name)
    try:
        form = RunsForm.model_validate(body)
    except ValidationError as error:
        raise InputError(_pydantic_faults(error, name, f"see docs/data-format.md ({SCHEMA})")) from None
    rows = _numbered([{**form.defaults, **run} for run in form.runs], name)
    return form.run_set(_checked(rows, name).runs)


def _json(text: str) -> Any:
    """Parse JSON; raises ValueError, also on a key that stands twice in one object and on bottomless nesting."""
    try:
        return json.loads(text, object_pairs_hook=_distinct_keys)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _numbered(rows: Iterable[Any], name: str) -> Iterator[Row | Fault]:
    for number, row in enumerate(rows, 1):
        where = f"{name}, run {number}"
        yield (where, row) if isinstance(row, dict) else Fault(where, "", "is not an object", "")


# -- checking --------------------------------------------------------------------------------------------------


def _checked(rows: Iterable[Row | Fault], name: str) -> RunSet:
    """Turn rows into runs; every fault of every row is collected before any is raised."""
    runs: list[Run] = []
    faults: list[Fault] = []
    for row in rows:
        if isinstance(row, Fault):
            faults.append(row)
            continue
        where, fields = row
        try:
            runs.append(checked_run(fields, where, f"{name}:{where.rsplit(' ', 1)[-1]}"))
        except InputError as error:
            faults += error.faults
    if not runs and not faults:
        faults.append(Fault(name, "", "has no runs", "a header alone is not a measurement"))
    if faults:
        raise InputError(faults)
    return RunSet(tuple(runs))


def checked_run(fields: Mapping[str, Any], where: str, default_id: str) -> Run:
    """The frozen run of one row's fields; raises InputError with every fault of them, placed at `where`."""
    try:
        return RunForm.model_validate(fields).to_run(where, default_id)
    except ValidationError as error:
        raise InputError(_pydantic_faults(error, where, "")) from None


def typed_fields(fields: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields, each checked by itself, in the types of the run form; raises InputError with the fault of each."""
    try:
        return RunForm.model_validate(dict(fields)).model_dump(include=set(fields), exclude_defaults=True)
    except ValidationError as error:
        raise InputError(_pydantic_faults(error, where, "")) from None


def _pydantic_faults(error: ValidationError, where: str, hint: str) -> list[Fault]:
    return [_fault(details, where, hint) for details in error.errors()]  # type: ignore[arg-type]


def _fault(details: dict[str, Any], where: str, hint: str) -> Fault:
    parts = [str(part) for part in details["loc"]]
    field = ".".join(parts[:-1] if parts[-1] == "value" else parts)  # a bare number is its figure's value
    if details["type"] == "extra_forbidden":
        return Fault(where, field, "is not a known field", nearest_field(field))
    if details["type"] == "value_error":
        problem, _, allowed = str(details["ctx"]["error"]).partition("; ")
        return Fault(where, field, problem, allowed or hint)
    message = str(details["msg"])
    return Fault(where, field, f"{details['input']!r} is wrong", message[0].lower() + message[1:])


def _repeated_ids(runs: Iterable[Run]) -> Iterator[Fault]:
    seen: dict[str, str] = {}
    for run in runs:
        if run.id in seen:
            yield Fault(run.where, "id", f"{run.id!r} stands already at {seen[run.id]}", "each id once")
        seen.setdefault(run.id, run.where)
