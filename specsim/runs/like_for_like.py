"""Whether runs compare like for like: the fields that must agree, and what differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specsim.errors import MixedSetupError
from specsim.quantities import CONTEXT_TOLERANCE, SETUP_FIELDS, Setup
from specsim.runs.run import Run


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
    found["method"] = _grouped((run.method, run.id) for run in drafted)
    found["instrument"] = _grouped((run.instrument, run.id) for run in drafted)
    found |= _environments(runs)
    contexts = _grouped((run.workload.context_len, run.id) for run in runs)
    if contexts and max(contexts) - min(contexts) > CONTEXT_TOLERANCE:  # type: ignore[operator,type-var]
        found["context_len"] = contexts
    return {name: values for name, values in found.items() if len(values) > 1}


def require_like_for_like(runs: Iterable[Run], allow_mixed: bool, told: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the fields that differ; raises MixedSetupError on any unless mixing is allowed.

    Fields in `told` may differ: the model has a term for them.
    """
    mixed = {name: values for name, values in differences(runs).items() if name not in told}
    if mixed and not allow_mixed:
        lines = [f"runs differ in {name}: {_listed(values)}" for name, values in mixed.items()]
        advice = "fit them apart, say in 'exclude' why a run is left out, or allow a mixed fit (--allow-mixed)"
        if not {"engine", "instrument"}.isdisjoint(mixed):
            advice += "; forwards timed alone go under served runs by --bare-forwards"
        raise MixedSetupError("\n".join([*lines, advice]), mixed)
    return tuple(mixed)


def _environments(runs: tuple[Run, ...]) -> dict[str, dict[object, list[str]]]:
    """NCCL labels that stand for several environments, as a field of their own each."""
    found = {}
    for label in dict.fromkeys(run.nccl for run in runs):
        stated = (
            (" ".join(f"{k}={v}" for k, v in sorted(run.nccl_env.items())), run.id)
            for run in runs
            if run.nccl == label and run.nccl_env
        )
        found[f"nccl_env of {label}"] = _grouped(stated)
    return found


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
