"""What SGLang says of its own settings: the server_args line of its log, and server_info inside a result file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specsim.methods import METHODS, method_named
from specsim.runs.readings import whole
from specsim.runs.schema import WIDEST

_ARGUMENT = re.compile(r"\b(\w+)=('[^']*'|\"[^\"]*\"|[^,()\[\]{}\s]+)")
_ALGORITHMS = {name.upper(): name for name in METHODS} | {"FROZEN_KV_MTP": "mtp"}


def settings_of_line(text: str) -> dict[str, Any]:
    """The run fields that a `server_args=ServerArgs(...)` line states."""
    _, found, arguments = text.partition("server_args=")
    return settings_of({name: value.strip("'\"") for name, value in _ARGUMENT.findall(arguments)}) if found else {}


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run fields of resolved server arguments; what is None, or a dummy of the method, is not stated.

    With topk 1 the engine itself sets the draft tokens to steps + 1, and so does this.
    """
    fields: dict[str, Any] = {}
    if model := _text(arguments.get("model_path")):
        fields["model"] = model
    if version := _text(arguments.get("version")):
        fields["engine_version"] = version
    if (gpus := whole(arguments.get("tp_size"))) is not None and gpus >= 1:
        fields["tensor_parallel"] = gpus
    if drafter := _text(arguments.get("speculative_draft_model_path")):
        fields["drafter"] = drafter
    return fields | _speculation(arguments)


def _speculation(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if "speculative_algorithm" not in arguments:
        return {}
    algorithm = _text(arguments["speculative_algorithm"])
    if algorithm is None:
        return {"method": "none"}
    method = _ALGORITHMS.get(algorithm.upper())
    fields: dict[str, Any] = {"method": method} if method else {}
    names = {"num_steps": "num_steps", "topk": "eagle_topk", "num_draft_tokens": "num_draft_tokens"}
    stated = {name: whole(arguments.get(f"speculative_{theirs}")) for name, theirs in names.items()}
    if method and not method_named(method).steps_bound_length:
        stated |= {"num_steps": None, "topk": None}  # its steps and topk are dummies
    elif stated["topk"] == 1 and stated["num_steps"] is not None:
        stated["num_draft_tokens"] = stated["num_steps"] + 1
    return fields | {name: value for name, value in stated.items() if value is not None and value <= WIDEST}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("", "None") else None
