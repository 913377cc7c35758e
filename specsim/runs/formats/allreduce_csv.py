"""Our own all-reduce table: CSV with one measured all-reduce a row (docs/data-format.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specsim.errors import Fault, InputError
from specsim.runs.allreduce import NCCL, AllReduceRow
from specsim.runs.run import UNSTATED

Text = Annotated[str | None, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]


class AllReduceForm(BaseModel):
    """One all-reduce as a file states it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    nccl: Text = None
    implementation: Text = None
    bytes: Annotated[int, Field(ge=1, le=10**12)]
    time_us: Annotated[float, Field(ge=1e-3, le=1e9)]
    in_place: bool | None = None
    cuda_graph: bool | None = None
    ranks: Annotated[int | None, Field(ge=2, le=10**6)] = None
    hardware: Text = None
    nccl_version: Text = None
    source: Text = None
    note: Text = None

    def to_row(self, label: str | None, where: str) -> AllReduceRow:
        """The frozen row; `label` names rows without a setting of their own."""
        return AllReduceRow(
            self.nccl or label or UNSTATED,
            float(self.bytes),
            self.time_us,
            NCCL if self.implementation is None or self.implementation.lower() == NCCL else self.implementation,
            self.in_place,
            self.cuda_graph,
            self.ranks,
            self.hardware,
            self.nccl_version,
            self.source or "",
            where,
        )


ALLREDUCE_FIELDS = tuple(AllReduceForm.model_fields)


def parse_allreduce_csv(text: str, label: str | None, name: str) -> tuple[AllReduceRow, ...]:
    """The rows of a table; raises InputError with every fault of file, row and field, and what is allowed."""
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    faults: list[Fault] = []
    rows: list[AllReduceRow] = []
    try:
        reader.fieldnames = [column.strip() for column in reader.fieldnames or []]
        faults += _column_faults(reader.fieldnames, f"{name}, header")
        for cells in () if faults else reader:
            where = f"{name}, row {reader.line_num}"
            if None in cells or None in cells.values():
                kind = "more" if None in cells else "fewer"
                faults.append(Fault(where, "", f"has {kind} cells than the header has columns", ""))
                continue
            try:
                stated = {column: cell for column, cell in cells.items() if cell.strip()}
                rows += [AllReduceForm.model_validate(stated).to_row(label, where)] if stated else []
            except ValidationError as error:
                faults += [_fault(details, where) for details in error.errors()]
    except csv.Error as error:
        faults.append(Fault(f"{name}, row {reader.line_num}", "", f"is not CSV ({error})", ""))
    if not rows and not faults:
        faults.append(Fault(name, "", "has no rows", "a header alone is not a measurement"))
    if faults:
        raise InputError(faults[:20])
    return tuple(rows)


def _column_faults(columns: list[str], where: str) -> Iterator[Fault]:
    for at, column in enumerate(columns):
        if column not in ALLREDUCE_FIELDS:
            near = get_close_matches(column, ALLREDUCE_FIELDS, n=1, cutoff=0.5)
            allowed = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(ALLREDUCE_FIELDS)}"
            yield Fault(where, column, "is not a known column", allowed)
        elif column in columns[:at]:
            yield Fault(where, column, "stands twice", "each column once")
    for needed in ("bytes", "time_us"):
        if needed not in columns:
            yield Fault(where, needed, "is missing", "every row needs a size and a time")


def _fault(details: Any, where: str) -> Fault:
    field, message = ".".join(str(part) for part in details["loc"]), str(details["msg"])
    if details["type"] == "missing":
        return Fault(where, field, "is empty", "every row needs a size and a time")
    return Fault(where, field, f"{details['input']!r} is wrong", message[0].lower() + message[1:])
