"""Lines on speculation of vLLM before 0.11: the V0 engine's running totals, and the first of V1 by interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.runs.readings import Reading, amount, pieces, whole


@dataclass(frozen=True)
class Totals:
    """Drafts proposed and accepted; with the V0 engine also its depth and the tokens emitted, bonus included.

    V0 counted a draft as accepted where the target agreed at its position, also after a rejection: what was emitted
    tells the accept length, what was accepted does not.
    """

    proposed: int
    accepted: int
    depth: int | None = None
    emitted: int | None = None


def parse_old_line(text: str) -> Totals | None:
    """The totals of an old line, by key; None where it is of no known shape."""
    said = pieces(text.partition("metrics:")[2].rstrip(" .,"))
    names = (
        "Number of draft tokens",
        "Number of accepted tokens",
        "Number of speculative tokens",
        "Number of emitted tokens",
    )
    proposed, accepted, depth, emitted = (whole(said.get(name)) for name in names)
    if "Draft acceptance rate" not in said or amount(said["Draft acceptance rate"].rstrip("%")) is None:
        return None
    if proposed is None:  # the shape of spring 2025: "Accepted: 66 tokens, Drafted: 66 tokens"
        proposed, accepted = (whole(said.get(name, "").removesuffix(" tokens")) for name in ("Drafted", "Accepted"))
    if not proposed or accepted is None or accepted > proposed:
        return None
    if depth and emitted is not None:
        cycles = proposed / depth
        return Totals(proposed, accepted, depth, emitted) if cycles <= emitted <= proposed + cycles else None
    return Totals(proposed, accepted)


class OldLines:
    """Adds up old lines: V0 prints totals since the start, so its last line counts; V1 printed each interval."""

    def __init__(self, stated: Mapping[str, Any]) -> None:
        width = whole(stated.get("num_draft_tokens"))
        self._depth = width - 1 if width is not None and width > 1 else None
        self._since_start: dict[str, tuple[int, int, Totals]] = {}
        self._by_shape: dict[str, tuple[int, int, Totals]] = {}

    def feed(self, number: int, text: str, process: str) -> bool:
        """Whether the line was an old one."""
        totals = parse_old_line(text)
        if totals is None:
            return False
        if totals.depth:
            self._since_start[process] = self._since_start.get(process, (number, 0, totals))[0], number, totals
            return True
        shape = "SpecDecoding" if "SpecDecoding" in text else "Speculative"
        first, _, before = self._by_shape.get(shape, (number, number, Totals(0, 0)))
        added = Totals(before.proposed + totals.proposed, before.accepted + totals.accepted)
        self._by_shape[shape] = first, number, added
        return True

    def finish(self) -> Iterator[Reading]:
        """One run of each process (V0), one of each shape (V1)."""
        for first, last, totals in self._since_start.values():
            yield Reading(_since_start(totals), first, last)
        for first, last, totals in self._by_shape.values():
            hint = (
                ""
                if self._depth
                else "only drafts are counted: with --set num_draft_tokens=N cycles follow, drafted/(N - 1)"
            )
            yield Reading(_by_interval(totals, self._depth), first, last, hint=hint)


_COMMON = {"engine": "vllm", "instrument": "vLLM engine log"}


def _since_start(totals: Totals) -> dict[str, Any]:
    assert totals.depth is not None
    assert totals.emitted is not None
    cycles = totals.proposed // totals.depth
    return {
        **_COMMON,
        "num_draft_tokens": totals.depth + 1,
        "cycles": cycles,
        "accepted_drafts": totals.emitted - cycles,
        "proposed_drafts": totals.proposed,
        "note": f"V0 engine, totals since its start; {totals.accepted} drafts agreed with the target, rejected positions too",
    }


def _by_interval(totals: Totals, depth: int | None) -> dict[str, Any]:
    fields = {**_COMMON, "proposed_drafts": totals.proposed}
    note = {"note": f"{totals.accepted} of {totals.proposed} drafts accepted; the lines count no cycles"}
    if depth is None:
        rate = {"accept_rate": totals.accepted / totals.proposed} if totals.accepted else {}
        return fields | rate | note
    return fields | {"cycles": totals.proposed // depth, "accepted_drafts": totals.accepted}
