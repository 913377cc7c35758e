"""Tables of our own as CSV: every row checked by its form, every fault named by file, row and field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specsim.errors import Fault, InputError, first_of

Form = TypeVar("Form", bound=BaseModel)


def checked_rows(text: str, name: str, form: type[Form], needs: str) -> list[tuple[str, Form]]:
    """The rows of a table, each with where it stands; `needs` says what every row has to have.

    Raises InputError with every fault of file, row and field, and what is allowed.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    faults: list[Fault] = []
    rows: list[tuple[str, Form]] = []
    try:
        reader.fieldnames = [column.strip() for column in reader.fieldnames or []]
        faults += _column_faults(reader.fieldnames, form, f"{name}, header", needs)
        for cells in () if faults else reader:
            where = f"{name}, row {reader.line_num}"
            if None in cells or None in cells.values():
                kind = "more" if None in cells else "fewer"
                faults.append(Fault(where, "", f"has {kind} cells than the header has columns", ""))
                continue
            try:
                stated = {column: cell for column, cell in cells.items() if cell.strip()}
                rows += [(where, form.model_validate(stated))] if stated else []
            except ValidationError as error:
                faults += [_fault(details, where, needs) for details in error.errors()]
    except csv.Error as error:
        faults.append(Fault(f"{name}, row {reader.line_num}", "", f"is not CSV ({error})", ""))
    if not rows and not faults:
        faults.append(Fault(name, "", "has no rows", "a header alone is not a measurement"))
    if faults:
        raise InputError(first_of(faults))
    return rows


def _column_faults(columns: list[str], form: type[BaseModel], where: str, needs: str) -> Iterator[Fault]:
    known = form.model_fields
    for at, column in enumerate(columns):
        if column not in known:
            near = get_close_matches(column, known, n=1, cutoff=0.5)
            allowed = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known)}"
            yield Fault(where, column, "is not a known column", allowed)
        elif column in columns[:at]:
            yield Fault(where, column, "stands twice", "each column once")
    for needed in (field for field, info in known.items() if info.is_required()):
        if needed not in columns:
            yield Fault(where, needed, "is missing", needs)


def _fault(details: Any, where: str, needs: str) -> Fault:
    field, message = ".".join(str(part) for part in details["loc"]), str(details["msg"])
    if details["type"] == "missing":
        return Fault(where, field, "is empty", needs)
    return Fault(where, field, f"{details['input']!r} is wrong", message[0].lower() + message[1:])
