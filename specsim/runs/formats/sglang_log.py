"""SGLang's log: `Decode batch` lines of every version read by key, with what lies between them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specsim.runs.formats.sglang_rates import BudgetWindow, rate_note, width_hint
from specsim.runs.formats.sglang_settings import settings_of_line
from specsim.runs.readings import LeftOut, Reading, Repeats, Tally, amount, intervals_text, pieces, rounded, whole

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_RANK = re.compile(r"\bDP(\d+)")
_ADAPTED = re.compile(r"Adaptive spec params updated: steps \d+ -> (\d+)")
_GRAPHS = ("cuda graph", "cpu graph", "npu graph", "musa graph")


@dataclass(frozen=True)
class Interval:
    """One decode line: what ran, the accept length with the bonus (None: no speculation), tokens a second.

    `rate` is printed as the version counts it; `cached` are the tokens in the KV cache, None where several are named.
    """

    running: int
    rate_tok_s: float
    length: float | None
    rate: float | None
    cached: int | None
    graph: bool | None


def parse_decode_line(text: str) -> Interval | None:
    """The interval of a `Decode batch` line, by key and in any order; None where a needed one is missing or wrong."""
    said = pieces(re.sub(r"^\s*(\[\d+\])?\s*[.,]", "", text.partition("Decode batch")[2]))
    running, speed = whole(said.get("#running-req")), amount(said.get("gen throughput (token/s)"))
    length, rate = amount(said.get("accept len")), amount(said.get("accept rate"))
    if running is None or speed is None or ("accept len" in said and (length is None or length < 1)):
        return None
    if "accept rate" in said and (rate is None or rate > 1):
        return None
    graph = {"True": True, "False": False}.get(next((said[name] for name in _GRAPHS if name in said), ""))
    return Interval(running, speed, length, rate, whole(said.get("#token")), graph)


@dataclass
class _Group:
    """Steady intervals of one batch size under one setting."""

    settings: dict[str, Any]
    first: int
    running: int
    graph: bool | None
    cut: bool
    last: int = 0
    repeats: Repeats = field(default_factory=Repeats)
    window: BudgetWindow = field(default_factory=BudgetWindow)
    context: float = 0.0
    contexts: int = 0
    rates: float = 0.0

    def add(self, line: int, interval: Interval) -> None:
        self.last = line
        length = interval.length or 1.0
        self.repeats.add(interval.running * length / interval.rate_tok_s * 1000, length, interval.rate_tok_s)
        if interval.cached is not None:
            self.context, self.contexts = self.context + interval.cached / interval.running, self.contexts + 1
        if interval.length is not None and interval.rate is not None:
            self.window.narrow(interval.length, interval.rate)
            self.rates += interval.rate


class SglangLog:
    """Reads decode lines of one log, whatever else stands in it."""

    keys = (b"Decode batch", b"Prefill batch", b"server_args=", b"Adaptive spec params updated")

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self._stated = stated
        self._settings: dict[str, Any] = {}
        self._before: dict[str, tuple[str, Interval] | None] = {}
        self._disturbed: dict[str, str] = {}
        self._adaptive = False
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._left_out = Tally()

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds a key."""
        text = line.decode("ascii", "replace")
        ranked = _RANK.search(text.partition("batch")[0])
        rank = ranked[0] if ranked else ""
        if "server_args=" in text:
            self._settings, self._before, self._adaptive = settings_of_line(text), {}, False
        elif "Prefill batch" in text:
            self._disturbed[rank] = "interval with a prefill in it"
            self._left_out.add("prefill line", number)
        elif "Decode batch" not in text:
            self._adapt(text, rank)
        else:
            self._decode(number, text, rank)

    def _adapt(self, text: str, rank: str) -> None:
        """Adaptive speculation, always a chain, has other steps from here on; the rate's denominator stays."""
        if (adapted := _ADAPTED.search(text)) is not None:
            steps = int(adapted[1])
            self._settings = {**self._settings, "num_steps": steps, "num_draft_tokens": steps + 1}
            self._disturbed[rank], self._adaptive = "interval in which adaptive speculation changed its steps", True

    def _decode(self, number: int, text: str, rank: str) -> None:
        interval = parse_decode_line(text)
        if interval is None:
            self._left_out.add("decode line that cannot be read", number, text)
            return
        if self._adaptive:
            interval = replace(interval, rate=None)
        stamp = _STAMP.search(text)
        now = stamp[0] if stamp else ""
        why = self._unsteady(rank, now, interval)
        self._before[rank] = now, interval
        self._disturbed.pop(rank, None)
        if why and why != _BEGINNING:
            self._left_out.add(why, number)
            return
        self._group(number, interval, why != _BEGINNING).add(number, interval)

    def _unsteady(self, rank: str, now: str, interval: Interval) -> str:
        """Why an interval is not one of steady decode; empty where it is."""
        if interval.running == 0 or interval.rate_tok_s == 0:
            return "idle interval"
        if rank in self._disturbed:
            return self._disturbed[rank]
        last = self._before.get(rank)
        if last is None or now < last[0]:
            return _BEGINNING
        before = last[1]
        if before.running != interval.running or before.graph != interval.graph:
            return "interval in which the batch changed"
        if before.cached is not None and interval.cached is not None and interval.cached <= before.cached:
            return "interval in which a request ended (fewer tokens in the KV cache)"
        return ""

    def _group(self, number: int, interval: Interval, steady: bool) -> _Group:
        key = (steady, interval.running, interval.graph, interval.length is None, *sorted(self._settings.items()))
        if key not in self._groups:
            self._groups[key] = _Group(dict(self._settings), number, interval.running, interval.graph, not steady)
        return self._groups[key]

    def finish(self) -> Iterator[Reading | LeftOut]:
        """The runs, and what was left out."""
        steady = {key[1:] for key in self._groups if key[0]}
        for key, group in self._groups.items():
            if not key[0] and key[1:] in steady:
                yield LeftOut(_BEGINNING, group.repeats.count, group.first, group.last)
            else:
                yield _reading(group, key[3], self._stated)
        yield from self._left_out


_BEGINNING = "interval that begins before the log does"


def _reading(group: _Group, plain: bool, stated: Mapping[str, Any]) -> Reading:
    settings = {**group.settings, **stated}
    fields = {"engine": "sglang", "instrument": "SGLang decode log", **group.settings, "batch_size": group.running}
    if group.graph is not None:
        fields["cuda_graph"] = group.graph
    if group.contexts:
        fields["context_len"] = round(group.context / group.contexts)
    fields["output_tok_s"] = group.repeats.column(2)
    if plain:
        fields["method"] = "none"
    notes = [intervals_text(group.repeats.count, group.repeats.each)]
    hint = ""
    if not plain:
        fields |= {"cycle_ms": group.repeats.column(0), "accept_length": group.repeats.column(1), "implied": "cycle_ms"}
        if group.rates:
            fields["accept_rate"] = rounded(group.rates / group.repeats.count)
            notes += rate_note(group.window, settings)
            hint = width_hint(group.window)
    if group.cut:
        fields["exclude"] = "its interval begins before the log does: idle time or a prefill may be in it"
    return Reading(fields | {"note": "; ".join(notes)}, group.first, group.last, hint=hint)
