"""llama.cpp's server: GET /props and /slots for what it runs, /metrics (--metrics) for what it counts.

Read @0c1e57098 and run as of 2026-10. /props names the default speculation as "none" even where a drafter is loaded:
/slots tells. All counters but that of prompt tokens move when a request ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specsim.live.answers import Answer, alive
from specsim.live.engines.metrics import by_position, counters_of, samples_by_name, total
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server, kept, lacking, spec_of
from specsim.quantities import Setup
from specsim.runs.formats.llama_cpp_timings import METHODS
from specsim.runs.formats.metric_names import METRIC_NAMES
from specsim.runs.readings import whole

_PROPS, _SLOTS, _METRICS = "/props", "/slots", "/metrics"
_SETTINGS = ("total_slots", "build_info", "model_ftype", "default_generation_settings.n_ctx")
_TYPES, _LONGEST = "speculative.types", "speculative.n_max"


@dataclass(frozen=True)
class LlamaCpp:
    """Asks a llama.cpp server."""

    server: Server
    engine: str = "llama.cpp"
    extra_body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({"ignore_eos": True}))

    async def facts(self) -> ServerFacts:
        """What it tells of itself. Raises ServerError where it is gone."""
        answers = await self.server.ask(_PROPS, _SLOTS, _METRICS)
        alive(self.server.root, answers.values())
        props = answers[_PROPS].json_object
        parameters = _parameters(props, answers[_SLOTS])
        speculates = _speculates(answers[_SLOTS], answers[_METRICS], parameters)
        stated, unclear = _speculation(parameters, answers[_METRICS]) if speculates else ({}, ())
        spec, more = spec_of(stated) if "num_draft_tokens" in stated else (None, ())
        hints = {
            _PROPS: "its model and build",
            _SLOTS: "whether it speculates; start it with --slots",
            _METRICS: "counters; start it with --metrics",
        }
        return ServerFacts(
            url=self.server.url,
            setup=Setup(
                model=_text(props.get("model_path")) or self.server.served_model or None,
                engine="llama.cpp",
                engine_version=_text(props.get("build_info")),
            ),
            served_model=self.server.served_model,
            spec=spec,
            spec_known=speculates is False or spec is not None,
            method=stated.get("method"),
            drafter=None,
            settings=_settings(props, parameters if speculates else {}),
            missing=(*unclear, *more, *self.server.choice, *lacking(answers, hints)),
        )

    async def counters(self) -> Counters:
        """One reading. Raises ServerError where it is gone."""
        answers = await self.server.ask(_METRICS)
        alive(self.server.root, answers.values())
        return counters_of(answers[_METRICS], self.engine)


def _slots(answer: Answer) -> list[Mapping[str, Any]]:
    body = answer.body
    return [slot for slot in body if isinstance(slot, dict)] if isinstance(body, list) else []


def _parameters(props: Mapping[str, Any], slots: Answer) -> dict[str, Any]:
    """Generation parameters: the defaults of /props, and over them those of the slots that have run a request."""
    defaults = props.get("default_generation_settings")
    inside = defaults.get("params", defaults) if isinstance(defaults, dict) else {}
    found = dict(inside) if isinstance(inside, dict) else {}
    for slot in _slots(slots):
        if isinstance(run := slot.get("params"), dict):
            found |= run
    return found


def _speculates(slots: Answer, metrics: Answer, parameters: Mapping[str, Any]) -> bool | None:
    """By its slots; else, where drafts were counted or a type is set, yes; None where nothing tells."""
    told = [slot["speculative"] for slot in _slots(slots) if isinstance(slot.get("speculative"), bool)]
    if told:
        return any(told)
    drafts = total(samples_by_name(metrics.text, "llama.cpp"), METRIC_NAMES["llama.cpp"].cycles)
    return True if drafts or parameters.get(_TYPES, "none") not in ("none", "") else None


def _speculation(parameters: Mapping[str, Any], metrics: Answer) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Run fields of a server that drafts, and what they rest on."""
    named = [METHODS[name] for name in str(parameters.get(_TYPES, "")).split(",") if name in METHODS]
    fields: dict[str, Any] = {"method": named[0]} if named else {}
    several = (f"which of its drafters ({parameters[_TYPES]}) drafts: it is taken as the first",) if named[1:] else ()
    if longest := whole(parameters.get(_LONGEST)):
        return fields | {"num_draft_tokens": longest + 1}, several
    names = METRIC_NAMES["llama.cpp"]
    positions = by_position(samples_by_name(metrics.text, "llama.cpp"), names.accepted_at, names.position)
    if positions:
        told = f"its longest draft (--spec-draft-n-max): {len(positions)}, as its counters by position have it"
        return fields | {"num_draft_tokens": len(positions) + 1}, (*several, told)
    return fields, (
        *several,
        "its longest draft (--spec-draft-n-max): not told before a first draft is counted; ask again",
    )


def _settings(props: Mapping[str, Any], parameters: Mapping[str, Any]) -> Mapping[str, object]:
    drafting = {"speculative": {"types": parameters.get(_TYPES), "n_max": parameters.get(_LONGEST)}}
    return MappingProxyType({**kept(props, _SETTINGS), **kept(drafting, (_TYPES, _LONGEST))})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def are_props(body: Mapping[str, Any]) -> bool:
    """Whether an answer to GET /props is one of llama.cpp's."""
    return {"total_slots", "default_generation_settings"} <= body.keys()
