"""Bare forwards as a table: CSV with the time of a forward by its tokens (docs/data-format.md)."""

from __future__ import annotations

import csv
import io
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from specsim.cost.bare_forwards import BareForwards
from specsim.runs.formats.checked_csv import checked_rows
from specsim.runs.schema import Text


class BareForwardForm(BaseModel):
    """One forward as a file states it."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    tokens: Annotated[int, Field(ge=1, le=10**7)]
    ms: Annotated[float, Field(ge=1e-6, le=1e9)]
    source: Text = None
    note: Text = None


def is_bare_table(text: str) -> bool:
    """Whether a text is such a table, and not run files: its header has a column of tokens."""
    header = next(csv.reader(io.StringIO(text.lstrip())), [])
    return "tokens" in [column.strip() for column in header]


def parse_bare_forwards(text: str, name: str) -> BareForwards:
    """The curve of a table; raises InputError with every fault of file, row and field."""
    found = [row for _, row in checked_rows(text, name, BareForwardForm, "every row needs tokens and ms")]
    stated = "; ".join(dict.fromkeys(row.source for row in found if row.source))
    return BareForwards.of([row.tokens for row in found], [row.ms for row in found], stated or name)
