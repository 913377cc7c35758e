"""TensorRT-LLM's GET /metrics: iteration statistics as JSON objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.runs.formats.located import Located
from specsim.runs.formats.steps import Steps, why_no_step
from specsim.runs.readings import LeftOut, Reading, Tally, amount, whole

_COMMON = {"engine": "tensorrt-llm", "instrument": "TensorRT-LLM iteration metrics"}


@dataclass
class _Counts:
    first: int
    last: int
    requests: int = 0
    proposed: int = 0
    accepted: int = 0
    iterations: int = 0


def is_iteration_stats(body: dict[str, Any]) -> bool:
    """Whether an object is one iteration's statistics."""
    return {"iterLatencyMS", "inflightBatchingStats"} <= body.keys()


def read_iteration_stats(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """Draft counts added up by width, (accepted + requests)/requests their length, and times of steps of one width.

    Rows of other attention ranks than 0 repeat it and are left out.
    """
    counts: dict[int, _Counts] = {}
    steps, left_out = Steps(), Tally()
    for row in rows:
        if whole(row.body.get("attentionDpRank", 0)) != 0:
            left_out.add("iteration of another attention rank than 0", row.first)
            continue
        width = _count(row, counts)
        if (why := _time(row, width, steps)) != "":
            left_out.add(why, row.first)
    for width, pool in sorted(counts.items()):
        yield Reading(
            {
                **_COMMON,
                "num_draft_tokens": width,
                "cycles": pool.requests,
                "accepted_drafts": pool.accepted,
                "proposed_drafts": pool.proposed,
                "note": f"{pool.iterations} iterations, of any batch size",
            },
            pool.first,
            pool.last,
        )
    yield from steps.finish(_COMMON, "time of the iteration on the host")
    yield from left_out


def drafts_of(body: dict[str, Any]) -> tuple[int, int, int] | None:
    """Requests with drafts, drafts proposed and accepted in an iteration; None where nothing was drafted."""
    stats = body.get("specDecodingStats")
    names = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
    requests, proposed, accepted = (whole(stats.get(name)) if isinstance(stats, dict) else None for name in names)
    return (requests, proposed, accepted) if requests and proposed and accepted is not None else None


def _count(row: Located, counts: dict[int, _Counts]) -> int:
    """Add an iteration's drafts to those of its width; 1 where nothing was drafted, 0 where widths differ."""
    if (drafts := drafts_of(row.body)) is None:
        return 1
    requests, proposed, accepted = drafts
    if proposed % requests or accepted > proposed:
        return 0
    width = proposed // requests + 1
    pool = counts.setdefault(width, _Counts(row.first, row.last))
    pool.last, pool.iterations = row.last, pool.iterations + 1
    pool.requests, pool.proposed = pool.requests + requests, pool.proposed + proposed
    pool.accepted += accepted
    return width


def _time(row: Located, width: int, steps: Steps) -> str:
    """Take an iteration's time; why not, where it is none of decode with one width."""
    stats = row.body["inflightBatchingStats"]
    names = ("numContextRequests", "numGenRequests")
    context, requests = (whole(stats.get(name)) if isinstance(stats, dict) else None for name in names)
    time_ms = amount(row.body.get("iterLatencyMS"))
    if context is None or requests is None or not time_ms or width == 0:
        return "iteration that cannot be read"
    drafting = row.body.get("specDecodingStats")
    drafted = whole(drafting.get("numRequestsWithDraftTokens")) if isinstance(drafting, dict) else 0
    if width > 1 and drafted != requests:
        return "step whose requests verify different widths (its time; its drafts are counted)"
    if why := why_no_step(context, requests, requests * width):
        return f"{why} (its time; its drafts are counted)" if width > 1 else why
    steps.add(row.first, requests, requests * width, time_ms)
    return ""
