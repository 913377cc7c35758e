"""llama.cpp's log: the eval and draft acceptance lines of each request, and the drafters' statistics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.errors import InputError
from specsim.runs.formats.llama_cpp_timings import METHODS, Decoded
from specsim.runs.readings import LeftOut, Reading, Repeats, Tally, amount, rounded

_SLOT = re.compile(r"\bid\s+(\d+) \|", re.ASCII)
_EVAL = re.compile(r"(?<!prompt )\beval time =\s*([\d.]+) ms /\s*(\d{1,9}) (tokens|runs)", re.ASCII)
_ACCEPTED = re.compile(
    r"draft acceptance(?: rate)? =\s*[\d.]+ \(\s*(\d{1,9}) accepted /\s*(\d{1,9}) generated\)", re.ASCII
)
_STATISTICS = re.compile(r"statistics\s+([\w-]+):", re.ASCII)
_CALLS = re.compile(r"#calls(?:\(b,\s*g,\s*a\) =\s*\d+\s+(\d{1,9})\s+\d+| =\s*(\d{1,9}),)", re.ASCII)
_DURATIONS = re.compile(r"dur(?:\(b,\s*g,\s*a\) =\s*[\d.]+,\s*([\d.]+),\s*[\d.]+| =\s*([\d.]+)) ms", re.ASCII)
"""Of begin, generation and accumulation, generation is the drafting; the oldest lines have that one alone."""
_COMMON = {"engine": "llama.cpp", "instrument": "llama.cpp log"}


def parse_eval(text: str) -> Decoded | None:
    """The decode of an `eval time` line; `runs` of llama-cli are steps, `tokens` of the server one more than those."""
    found = _EVAL.search(text)
    time_ms, tokens = (amount(found[1]), int(found[2]) + (found[3] == "runs")) if found else (None, 0)
    return Decoded(tokens, time_ms) if time_ms and tokens >= 2 else None


def parse_acceptance(text: str) -> tuple[int, int] | None:
    """Drafts accepted and proposed of a `draft acceptance` line, with `rate` (older) or without."""
    found = _ACCEPTED.search(text)
    accepted, proposed = (int(found[1]), int(found[2])) if found else (0, 0)
    return (accepted, proposed) if found and accepted <= proposed else None


def parse_statistics(text: str) -> tuple[str, float] | None:
    """A drafter's name and its mean time [ms] of drafting in a cycle."""
    name, calls, durations = (pattern.search(text) for pattern in (_STATISTICS, _CALLS, _DURATIONS))
    time_ms = amount(durations[1] or durations[2]) if durations else None
    count = int(calls[1] or calls[2]) if calls else 0
    if name is None or not count or not time_ms:
        return None
    return name[1].replace("_", "-"), rounded(time_ms / count)


@dataclass
class _Requests:
    """Requests added up, with the repeats of their time."""

    first: int
    last: int = 0
    totals: dict[str, int] = field(default_factory=dict)
    repeats: Repeats = field(default_factory=Repeats)

    def add(self, first: int, last: int, fields: Mapping[str, Any], time: str) -> None:
        self.last = last
        for name in ("cycles", "accepted_drafts", "proposed_drafts"):
            if name in fields:
                self.totals[name] = self.totals.get(name, 0) + fields[name]
        self.repeats.add(fields[time])


class LlamaCppLog:
    """Joins the lines of a request, which are written one after the other for each slot."""

    keys = (b"eval time =", b"draft acceptance", b"#calls")

    def __init__(self, _: Mapping[str, Any]) -> None:
        self._open: dict[str, tuple[int, Decoded]] = {}
        self._requests: dict[str, _Requests] = {}
        self._drafting: dict[str, tuple[int, int, float]] = {}
        self._left_out = Tally()

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds a key."""
        text = line.decode("ascii", "replace")
        found = _SLOT.search(text)
        slot = found[1] if found else ""
        if "#calls" in text:
            self._statistics(number, text)
        elif "draft acceptance" in text:
            self._accepted(number, text, slot)
        elif "prompt eval time" not in text:
            self._close(slot)
            decoded = parse_eval(text)
            if decoded is None:
                self._left_out.add("eval line that cannot be read, or of fewer than two tokens", number, text)
            else:
                self._open[slot] = number, decoded

    def _statistics(self, number: int, text: str) -> None:
        """Totals since the start: the last line of a drafter counts."""
        found = parse_statistics(text)
        if found is None:
            self._left_out.add("statistics line without calls and durations of drafting", number, text)
        else:
            name, draft_ms = found
            self._drafting[name] = self._drafting.get(name, (number, 0, 0.0))[0], number, draft_ms

    def _accepted(self, number: int, text: str, slot: str) -> None:
        counts = parse_acceptance(text)
        waiting = self._open.pop(slot, None)
        if counts is None:
            self._left_out.add("draft acceptance line that cannot be read", number, text)
        elif waiting is None:
            self._left_out.add("draft acceptance line without its eval line", number)
        else:
            line, decoded = waiting
            self._request(line, number, Decoded(decoded.tokens, decoded.time_ms, counts[1], counts[0]))

    def _close(self, slot: str) -> None:
        """An eval line that no draft acceptance followed: nothing was drafted."""
        if waiting := self._open.pop(slot, None):
            self._request(waiting[0], waiting[0], waiting[1])

    def _request(self, first: int, last: int, decoded: Decoded) -> None:
        try:
            fields = decoded.fields()
        except InputError as error:
            self._left_out.add(str(error).replace("\n", "; "), first)
            return
        time = "cycle_ms" if "cycle_ms" in fields else "decode_ms"
        self._requests.setdefault(time, _Requests(first)).add(first, last, fields, time)

    def finish(self) -> Iterator[Reading | LeftOut]:
        """A run of the requests that drafted, one of those that did not, one of each drafter's own time."""
        for slot in list(self._open):
            self._close(slot)
        for time, requests in self._requests.items():
            told = f"{requests.repeats.count} requests" if requests.repeats.count > 1 else "1 request"
            timed = {time: requests.repeats.column(0), "implied": "cycle_ms" if time == "cycle_ms" else ""}
            plain = {"method": "none"} if time == "decode_ms" else {}
            fields = {**_COMMON, **plain, **requests.totals, **timed, "note": told}
            yield Reading(fields, requests.first, requests.last)
        for name, (first, last, draft_ms) in self._drafting.items():
            method = {"method": METHODS[name]} if name in METHODS else {}
            note = f"{name}: time of drafting over its calls, since the start"
            yield Reading({**_COMMON, **method, "draft_ms": draft_ms, "note": note}, first, last)
        yield from self._left_out
