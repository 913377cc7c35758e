"""Our own all-reduce table: CSV with one measured all-reduce a row (docs/data-format.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from specsim.runs.allreduce import COMPANIONS, IN_A_FORWARD, AllReduceRow, implementation_named
from specsim.runs.formats.checked_csv import checked_rows
from specsim.runs.run import UNSTATED
from specsim.runs.schema import Text

_KNOWN = (IN_A_FORWARD, *COMPANIONS)


class AllReduceForm(BaseModel):
    """One all-reduce as a file states it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    nccl: Text = None
    implementation: Text = None
    bytes: Annotated[int, Field(ge=1, le=10**12)]
    time_us: Annotated[float, Field(ge=1e-3, le=1e9)]
    spread_us: Annotated[float | None, Field(ge=0, le=1e9)] = None
    in_place: bool | None = None
    cuda_graph: bool | None = None
    pattern: Text = None
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
            implementation_named(self.implementation),
            self.in_place,
            self.cuda_graph,
            next((known for known in _KNOWN if known == (self.pattern or "").lower()), self.pattern),
            self.ranks,
            self.hardware,
            self.nccl_version,
            self.source or "",
            where,
        )


ALLREDUCE_FIELDS = tuple(AllReduceForm.model_fields)


def parse_allreduce_csv(text: str, label: str | None, name: str) -> tuple[AllReduceRow, ...]:
    """The rows of a table; raises InputError with every fault of file, row and field, and what is allowed."""
    rows = checked_rows(text, name, AllReduceForm, "every row needs a size and a time")
    return tuple(row.to_row(label, where) for where, row in rows)
