"""AIPerf's profile_export_aiperf.json, and GenAI-Perf's of the same shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specsim.runs.formats.located import Client, Located, client_reading
from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole

_TO_MS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "seconds": 1000.0, "us": 1e-3, "ns": 1e-6}


def is_aiperf(body: dict[str, Any]) -> bool:
    """Whether an object is an export: its latency is an object with a unit and an average."""
    latency = body.get("inter_token_latency")
    return isinstance(latency, dict) and {"unit", "avg"} <= latency.keys()


def read_aiperf(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run an export: its inter-token latency is per token; the pooled histogram counts cycles by accepted drafts.

    The averages of per-request lengths weigh requests alike: the histogram, or the token-weighted length, is used.
    """
    for row in rows:
        latency = row.body["inter_token_latency"]
        scale, average = _TO_MS.get(str(latency.get("unit"))), amount(latency.get("avg"))
        tpot = rounded(average * scale) if scale and average else None
        speed = _average(row, "output_token_throughput")
        counted = _counted(row)
        length = _length(row, counted)
        if tpot is None and speed is None and not length:
            yield LeftOut("export without a latency, throughput or accept length", 1, row.first, row.last)
            continue
        fields: dict[str, Any] = {"note": "engine and configuration are not in the export", **counted}
        if length and not counted:
            fields["accept_length"] = length
        yield client_reading(row, fields, Client(_concurrency(row), tpot, speed, length, True if length else None))


def _counted(row: Located) -> dict[str, Any]:
    """The pooled histogram as a list from 0 accepted drafts on."""
    pooled = row.body.get("pooled_spec_decode_acceptance_histogram")
    if not isinstance(pooled, dict):
        return {}
    counts = {whole(accepted): whole(cycles) for accepted, cycles in pooled.items()}
    if not counts or None in counts or None in counts.values() or max(k for k in counts if k is not None) > 999:
        return {}
    depth = max(accepted for accepted in counts if accepted is not None)
    listed = [counts.get(accepted) or 0 for accepted in range(depth + 1)]
    return {"accept_histogram": listed} if sum(listed) else {}


def _length(row: Located, counted: dict[str, Any]) -> float | None:
    if histogram := counted.get("accept_histogram"):
        return rounded(1 + sum(j * count for j, count in enumerate(histogram)) / sum(histogram))
    names = ("spec_decode_token_weighted_acceptance_length", "spec_decode_acceptance_length")
    return next((value for name in names if (value := _average(row, name)) is not None and value >= 1), None)


def _average(row: Located, name: str) -> float | None:
    metric = row.body.get(name)
    return amount(metric.get("avg")) or None if isinstance(metric, dict) else amount(metric) or None


def _concurrency(row: Located) -> int | None:
    """The client's concurrency in the export's configuration, wherever it stands."""
    waiting = [row.body.get("input_config")]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if found := whole(part.get("concurrency")):
                return found
            waiting += part.values()
    return None
