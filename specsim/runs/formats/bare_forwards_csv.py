"""Bare forwards as tables: CSV with the time of a forward by its tokens, of one GPU or of several (docs/data-format.md)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specsim.cost.bare_forwards import BareForwards
from specsim.errors import Fault, InputError, first_of
from specsim.quantities import Setup
from specsim.runs.allreduce import NCCL, implementation_named, setting_name
from specsim.runs.formats.checked_csv import checked_rows
from specsim.runs.schema import Text

Milliseconds = Annotated[float, Field(ge=1e-6, le=1e9)]
_ALIKE = (
    "nccl",
    "implementation",
    "ranks",
    "hardware",
    "nccl_version",
    "cuda_graph",
)  # what a setting's forwards are all made under


class BareForwardForm(BaseModel):
    """One forward as a file states it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    tokens: Annotated[int, Field(ge=1, le=10**7)]
    ms: Milliseconds
    source: Text = None
    note: Text = None


class ParallelForwardForm(BaseModel):
    """One forward over several GPUs as `python -m calibration allreduce --model` states it: `with_ms` has its all-reduces in it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    nccl: Annotated[str, Field(min_length=1)]
    implementation: Annotated[str, AfterValidator(implementation_named)] = NCCL
    tokens: Annotated[int, Field(ge=1, le=10**7)]
    bytes: int | None = None
    with_ms: Milliseconds
    without_ms: float | None = None
    drafting_ms: float | None = None
    drafting_without_ms: float | None = None
    wide_ms: float | None = None
    narrow_ms: float | None = None
    launch_us: float | None = None
    spread_us: float | None = None
    drafting_spread_us: float | None = None
    cuda_graph: bool | None = None
    ranks: Annotated[int | None, Field(ge=2, le=10**6)] = None
    hardware: Text = None
    nccl_version: Text = None
    source: Text = None
    note: Text = None

    @property
    def name(self) -> str:
        """The NCCL setting, or the implementation where it is another, as in a table of all-reduces."""
        return setting_name(self.nccl, self.implementation)


def is_bare_table(text: str) -> bool:
    """Whether a text is a table of tokens and ms, and not run files: its header has a column of tokens."""
    return "tokens" in _header(text)


def is_table_by_setting(text: str) -> bool:
    """Whether a text is a table of forwards over several GPUs, by NCCL setting and implementation."""
    columns = set(_header(text))
    return "with_ms" in columns or {"nccl", "tokens"} <= columns


def parse_bare_forwards(text: str, name: str) -> BareForwards:
    """The curve of a table of tokens and ms; raises InputError with every fault of file, row and field."""
    found = [row for _, row in checked_rows(text, name, BareForwardForm, "every row needs tokens and ms")]
    stated = "; ".join(dict.fromkeys(row.source for row in found if row.source))
    return BareForwards.of([row.tokens for row in found], [row.ms for row in found], stated or name)


def parse_by_setting(text: str, name: str) -> dict[str, BareForwards]:
    """The curve of each setting of a table; raises InputError with every fault of file, row and field, and where one's rows are unlike."""
    needs = "every row needs a setting, tokens and the time with all-reduces"
    settings: dict[str, list[ParallelForwardForm]] = {}
    faults: list[Fault] = []
    for where, row in checked_rows(text, name, ParallelForwardForm, needs):
        alike = settings.setdefault(row.name, [])
        faults += _unlike(where, row, alike[0]) if alike else ()
        alike.append(row)
    if faults:
        raise InputError(first_of(faults))
    return {each: _curve(f"{name}: {each}", rows) for each, rows in settings.items()}


def _unlike(where: str, row: ParallelForwardForm, first: ParallelForwardForm) -> Iterator[Fault]:
    for field in _ALIKE:
        one, other = getattr(first, field), getattr(row, field)
        if one != other:
            yield Fault(where, field, f"is {other}, and {one} in {row.name}'s first row", "keep rows of one")


def _header(text: str) -> list[str]:
    try:
        return [column.strip() for column in next(csv.reader(io.StringIO(text.lstrip())), [])]
    except csv.Error:
        return []


def _curve(source: str, rows: list[ParallelForwardForm]) -> BareForwards:
    first = rows[0]
    ranks, over = first.ranks, "" if first.ranks is None else f" over {first.ranks} GPUs"
    setup = Setup(hardware=first.hardware, gpus=ranks, tensor_parallel=ranks, cuda_graph=first.cuda_graph)
    return BareForwards.of([row.tokens for row in rows], [row.with_ms for row in rows], f"{source}{over}", setup)
