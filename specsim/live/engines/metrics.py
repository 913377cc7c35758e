"""Counters out of Prometheus text, by the engine's row in the table of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from specsim.live.answers import Answer
from specsim.live.facts import Counters
from specsim.runs.formats.metric_names import METRIC_NAMES, MetricNames
from specsim.runs.formats.prometheus import Sample, samples_of

_PROCESS_START = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})?\s+(\S+)", re.ASCII | re.MULTILINE)
_DEEPEST = 1024  # no engine drafts deeper; a label beyond it is damage


def samples_by_name(text: str, engine: str) -> dict[str, list[Sample]]:
    """The samples of an engine by name, those of tensor-parallel ranks that repeat rank 0 left out."""
    found: dict[str, list[Sample]] = {}
    for sample in samples_of(text)[0]:
        if sample.engine == engine and sample.labels.get("tp_rank", "0") == "0":
            found.setdefault(sample.name, []).append(sample)
    return found


def total(samples: Mapping[str, Sequence[Sample]], name: str, **labels: str) -> float | None:
    """A metric summed over engines and labels, of those that carry the labels asked for; None where there is none."""
    found = [
        sample.value
        for sample in samples.get(name, ())
        if all(sample.labels.get(label) == value for label, value in labels.items())
    ]
    return sum(found) if found else None


def by_position(samples: Mapping[str, Sequence[Sample]], name: str, label: str) -> tuple[float, ...]:
    """A metric by position from 0, without a gap; empty where there is none."""
    counts: dict[int, float] = {}
    for sample in samples.get(name, ()):
        position = sample.labels.get(label, "")
        if position.isascii() and position.isdecimal() and len(position) <= 4 and int(position) < _DEEPEST:
            counts[int(position)] = counts.get(int(position), 0.0) + sample.value
    return tuple(counts.get(at, 0.0) for at in range(max(counts) + 1)) if counts else ()


def labels_of(samples: Mapping[str, Sequence[Sample]], name: str) -> Mapping[str, str]:
    """The labels of an info metric; empty where there is none."""
    found = samples.get(name)
    return found[0].labels if found else {}


def counters_of(answer: Answer, engine: str) -> Counters:
    """What a good answer counts, by the names of vLLM's or llama.cpp's kind; nothing of an answer that is not good."""
    names = METRIC_NAMES[engine]
    samples = samples_by_name(answer.text, engine)
    found = replace(_plain(samples, names, answer.time_s), life=life_of(answer.text))
    if found.cycles is None:
        return replace(found, accepted=None, drafted=None)
    ended = " of requests that have ended" if names.at_request_end else ""
    gaps = total(samples, names.gaps)
    of = "cycles that drafted" if gaps is None else "all cycles, with drafts or without"
    return replace(
        found,
        cycles=max(found.cycles, gaps or 0.0),  # of a request that is cut off, the last cycle leaves no gap
        accepted_at=by_position(samples, names.accepted_at, names.position),
        how=f"counters on /metrics: drafts accepted over {of}{ended}",
    )


def _plain(samples: Mapping[str, Sequence[Sample]], names: MetricNames, time_s: float) -> Counters:
    return Counters(
        time_s=time_s,
        cycles=total(samples, names.cycles),
        accepted=total(samples, names.accepted),
        drafted=total(samples, names.drafted),
        output_tokens=total(samples, names.output_tokens),
        prompt_tokens=total(samples, names.prompt_tokens),
        running=total(samples, names.running),
        at_request_end=names.at_request_end,
    )


def life_of(text: str) -> str:
    """When the process that answers was started, where it says so: another after a restart."""
    return " ".join(sorted(set(_PROCESS_START.findall(text))))


def are_of(samples: Iterable[str], names: MetricNames) -> bool:
    """Whether draft counters are among the names."""
    return names.cycles in samples
