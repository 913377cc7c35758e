"""vLLM's log: engine lines and SpecDecoding lines, two of one interval joined, and older lines of speculation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.runs.formats.positions import histogram_of
from specsim.runs.formats.vllm_lines import EngineLine, SpecLine, parse_engine_line, parse_spec_line
from specsim.runs.formats.vllm_old_log import OldLines
from specsim.runs.readings import LeftOut, Reading, Repeats, Tally, intervals_text

_PROCESS = re.compile(r"\(([^()]*\bpid=\d+)\)")
_SPEC = re.compile(r"(?:SpecDecoding|Speculative) metrics:")
_TOGETHER_S = 2.0  # the two lines of an interval are written one after the other
_MOST_PENDING = 64
_IDLE = "idle interval"


@dataclass
class _Pool:
    """Counts of intervals added up, and repeats of their times where they are steady."""

    first: int
    last: int = 0
    intervals: int = 0
    drafts: int = 0
    proposed: int = 0
    accepted: int = 0
    at_least: list[int] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)

    def count(self, line: SpecLine) -> None:
        self.intervals, self.drafts = self.intervals + 1, self.drafts + line.drafts
        self.proposed, self.accepted = self.proposed + line.proposed, self.accepted + line.accepted
        self.at_least = [a + b for a, b in zip(self.at_least or [0] * len(line.at_least), line.at_least, strict=True)]


class VllmLog:
    """Reads engine and SpecDecoding lines of one log."""

    keys = (b"generation throughput:", b"SpecDecoding metrics:", b"Speculative metrics:")

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self._pending: dict[str, list[EngineLine]] = {}
        self._before: dict[tuple[str, str], EngineLine] = {}
        self._pools: dict[tuple[int, int], _Pool] = {}  # by depth and batch size, 0 where unsteady
        self._alone: dict[int, _Pool] = {}
        self._old = OldLines(stated)
        self._drafting = False
        self._left_out = Tally()
        self._alone_left_out, self._without_spec = Tally(), Tally()

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds a key."""
        text = line.decode("ascii", "replace")
        found = _PROCESS.search(text)
        process = found[1] if found else ""
        if _SPEC.search(text):
            self._spec(number, text, process)
        elif (engine := parse_engine_line(number, text)) is not None:
            self._engine(engine, process)
        else:
            self._left_out.add("engine line that cannot be read", number, text)

    def _engine(self, line: EngineLine, process: str) -> None:
        why = self._unsteady(line, process)
        self._before[process, line.engine] = line
        waiting = self._pending.setdefault(process, [])
        gone = [w for w in waiting if abs(w.at_s - line.at_s) > _TOGETHER_S or len(waiting) >= _MOST_PENDING]
        for each in gone:
            self._unjoined(each)
        waiting[:] = [w for w in waiting if w not in gone]
        waiting.append(EngineLine(**{**vars(line), "why_unsteady": why}))

    def _unsteady(self, line: EngineLine, process: str) -> str:
        """Why an interval's throughput is not that of steady decode; empty where it is."""
        before = self._before.get((process, line.engine))
        if line.output_tok_s == 0:
            return _IDLE
        if "Aggregated" in line.engine:
            return "line of several engines added up: no batch is told"
        if before is None or line.at_s < before.at_s:
            return "first interval of an engine: idle time may be in it"
        if line.prompt_tok_s > 0:
            return "interval with a prefill in it"
        if line.running != before.running or line.running == 0:
            return "interval in which the number of running requests changed"
        return ""

    def _unjoined(self, line: EngineLine) -> None:
        why = line.why_unsteady
        idle = why == _IDLE  # which writes no SpecDecoding line
        self._without_spec.add(why if idle else "engine line without a SpecDecoding line of its interval", line.number)
        if why:
            self._alone_left_out.add(why, line.number)
            return
        pool = self._alone.setdefault(line.running, _Pool(line.number))
        pool.repeats.add(line.output_tok_s)
        pool.last = line.number

    def _spec(self, number: int, text: str, process: str) -> None:
        self._drafting = True
        line = parse_spec_line(number, text)
        if line is None:
            if not self._old.feed(number, text, process):
                self._left_out.add("SpecDecoding line that cannot be read", number, text)
            return
        engine = self._joined(line, process)
        steady = engine is not None and not engine.why_unsteady
        if engine is not None and engine.why_unsteady:
            self._left_out.add(f"{engine.why_unsteady} (its time; its drafts are counted)", engine.number)
        batch = engine.running if engine is not None and steady else 0
        first = engine.number if engine is not None else number
        pool = self._pools.setdefault((len(line.at_least), batch), _Pool(first))
        pool.count(line)
        pool.last = number
        if engine is not None and steady:
            length = 1 + line.accepted / line.drafts
            pool.repeats.add(batch * length / engine.output_tok_s * 1000, engine.output_tok_s)

    def _joined(self, line: SpecLine, process: str) -> EngineLine | None:
        """The engine line of the same interval: of those just written, the one whose throughput is nearest."""
        waiting = [w for w in self._pending.get(process, []) if abs(w.at_s - line.at_s) <= _TOGETHER_S]
        if not waiting:
            return None
        told = line.output_tok_s
        nearest = min(waiting, key=lambda w: abs(w.output_tok_s - told)) if told is not None else waiting[-1]
        self._pending[process].remove(nearest)
        return nearest

    def finish(self) -> Iterator[Reading | LeftOut]:
        """The runs, and what was left out."""
        for waiting in self._pending.values():
            for line in waiting:
                self._unjoined(line)
        for (depth, batch), pool in self._pools.items():
            yield _speculative(depth, batch, pool)
        yield from self._old.finish()
        if self._drafting:
            yield from self._without_spec
        else:
            yield from (_plain(batch, pool) for batch, pool in self._alone.items())
            yield from self._alone_left_out
        yield from self._left_out


_COMMON = {"engine": "vllm", "instrument": "vLLM engine log"}


def _speculative(depth: int, batch: int, pool: _Pool) -> Reading:
    """Counts of a depth, with a cycle C = B·L/R (eq. 6) of each interval where they were steady."""
    fields: dict[str, Any] = {
        **_COMMON,
        "num_draft_tokens": depth + 1,
        "cycles": pool.drafts,
        "accepted_drafts": pool.accepted,
        "proposed_drafts": pool.proposed,
        "accept_histogram": histogram_of(pool.drafts, pool.at_least),
        "note": intervals_text(pool.intervals),
    }
    if batch:
        fields |= {
            "batch_size": batch,
            "cycle_ms": pool.repeats.column(0),
            "output_tok_s": pool.repeats.column(1),
            "implied": "cycle_ms",
        }
    else:
        fields["note"] += "; tells of acceptance only, for no steady batch is told"
    return Reading(fields, pool.first, pool.last)


def _plain(batch: int, pool: _Pool) -> Reading:
    fields = {**_COMMON, "batch_size": batch, "output_tok_s": pool.repeats.column(0)}
    note = f"{intervals_text(pool.repeats.count)}; taken as plain decode, for the log has no SpecDecoding line"
    return Reading({**fields, "note": note}, pool.first, pool.last)
