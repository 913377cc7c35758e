"""Single timed steps of an engine, gathered by batch size and verify width."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.runs.readings import LeftOut, Reading, Repeats


@dataclass
class _Group:
    first: int
    last: int = 0
    repeats: Repeats = field(default_factory=Repeats)


class Steps:
    """Times of steps in which every request verifies the same number of tokens."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, int], _Group] = {}

    def add(self, line: int, requests: int, tokens: int, time_ms: float) -> None:
        """One step of so many requests and tokens."""
        group = self._groups.setdefault((requests, tokens // requests), _Group(line))
        group.repeats.add(time_ms)
        group.last = line

    def finish(self, fields: Mapping[str, Any], note: str) -> Iterator[Reading | LeftOut]:
        """A run for each batch size and width; one token a request is plain decode only where nothing is wider."""
        drafts = any(width > 1 for _, width in self._groups)
        for (batch, width), group in sorted(self._groups.items()):
            if drafts and width == 1:
                why = "step of one token a request on a server that drafts: neither a cycle nor plain decode"
                yield LeftOut(why, group.repeats.count, group.first, group.last)
                continue
            times = group.repeats.column(0)
            timed = (
                {"num_draft_tokens": width, "cycle_ms": times} if width > 1 else {"method": "none", "decode_ms": times}
            )
            counted = {"note": f"{group.repeats.count} steps, {group.repeats.each} in each repeat; {note}"}
            yield Reading({**fields, "batch_size": batch, **timed, **counted}, group.first, group.last)


def why_no_step(context_requests: int, requests: int, tokens: int) -> str:
    """Why a step is not one of decode with equal widths; empty where it is."""
    if requests == 0 or tokens == 0:
        return "step without decode"
    if context_requests:
        return "step with a prefill in it"
    if tokens < requests or tokens % requests:
        return "step whose requests verify different widths"
    return ""
