"""Whether runs compare like for like: the fields that must agree, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specsim.errors import MixedSetupError
from specsim.quantities import SETUP_FIELDS, Setup
from specsim.runs.run import Run

CONTEXT_TOLERANCE = 128
"""Contexts closer than this many tokens count as alike: reading 128 tokens of KV cache took 4 µs of a 5.8 ms
cycle (8B dense model, one H200, vLLM 0.24, measured 2026-11-29); a plain run and a speculative one of the
same server rarely have the same mean context."""


def shared_setup(runs: Iterable[Run]) -> Setup:
    """The setup that runs agree on: each field's stated value, None where nobody states it or they differ."""
    runs = tuple(runs)
    agreed: dict[str, Any] = {}
    for name in SETUP_FIELDS:
        stated = _stated(name, runs)
        agreed[name] = next(iter(stated)) if len(stated) == 1 else None
    return Setup(**agreed)


def differences(runs: Iterable[Run]) -> dict[str, dict[object, list[str]]]:
    """Fields in which stated values differ, each with the run ids by value; NCCL is the model's own input."""
    runs = tuple(runs)
    found = {name: _stated(name, runs) for name in SETUP_FIELDS}
    drafted = [run for run in runs if run.speculative]
    found["drafter"] = _grouped((run.drafter, run.id) for run in drafted)
    found["method"] = _grouped((run.spec.method, run.id) for run in drafted if run.spec)
    found["instrument"] = _grouped((run.instrument, run.id) for run in drafted)
    contexts = _grouped((run.workload.context_len, run.id) for run in runs)
    if contexts and max(contexts) - min(contexts) > CONTEXT_TOLERANCE:  # type: ignore[operator,type-var]
        found["context_len"] = contexts
    return {name: values for name, values in found.items() if len(values) > 1}


def require_like_for_like(runs: Iterable[Run], allow_mixed: bool) -> tuple[str, ...]:
    """Names of the fields that differ; raises MixedSetupError on any unless mixing is allowed."""
    mixed = differences(runs)
    if mixed and not allow_mixed:
        lines = [f"runs differ in {name}: {_listed(values)}" for name, values in mixed.items()]
        advice = "fit them apart, say in 'exclude' why a run is left out, or allow a mixed fit (--allow-mixed)"
        raise MixedSetupError("\n".join([*lines, advice]), mixed)
    return tuple(mixed)


def _stated(name: str, runs: Iterable[Run]) -> dict[object, list[str]]:
    return _grouped((getattr(run.setup, name), run.id) for run in runs)


def _grouped(pairs: Iterable[tuple[object, str]]) -> dict[object, list[str]]:
    groups: dict[object, list[str]] = {}
    for value, name in pairs:
        if value is not None:
            groups.setdefault(value, []).append(name)
    return groups


def _listed(values: dict[object, list[str]]) -> str:
    shown = []
    for value, names in values.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown.append(f"{value} ({', '.join(names[:3])}{more})")
    return ", ".join(shown)
