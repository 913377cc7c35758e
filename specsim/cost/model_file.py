"""The JSON form of a CostModel; the one place where its bytes are read and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from specsim.errors import Fault, InputError

SCHEMA = "specsim-model/1"
Stored = TypeVar("Stored")


def dump(model: Stored) -> bytes:
    """Bytes of a frozen model's JSON, schema version first."""
    body = TypeAdapter(type(model)).dump_python(model, mode="json")
    return json.dumps({"schema": SCHEMA, **body}, indent=1).encode() + b"\n"


def read(kind: type[Stored], path: Path) -> Stored:
    """Parse a model file into its dataclass; raises InputError when it is missing, not JSON, of another schema or incomplete."""
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError([Fault(str(path), "", f"cannot be read ({error.strerror})", "")]) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            [Fault(str(path), "", f"is not JSON ({error})", "a model is what 'specsim fit -o' writes")]
        ) from None
    found = body.pop("schema", None) if isinstance(body, dict) else None
    if found != SCHEMA:
        problem = f"is {found!r}" if found else "is missing: this is not a model file"
        raise InputError([Fault(str(path), "schema", problem, f"allowed: {SCHEMA!r}, as 'specsim fit -o' writes it")])
    try:
        return TypeAdapter(kind).validate_json(json.dumps(body), strict=True)
    except ValidationError as error:
        raise InputError(Fault(str(path), ".".join(map(str, e["loc"])), e["msg"], "") for e in error.errors()) from None
