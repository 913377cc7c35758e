"""vLLM's iteration lines (--enable-logging-iteration-details): one time for each batch size and width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.runs.formats.steps import Steps, why_no_step
from specsim.runs.readings import LeftOut, Reading, Tally, amount

_COUNTS = re.compile(r"(\d{1,9}) (context|generation) (requests|tokens)", re.ASCII)
_ELAPSED = re.compile(r"elapsed time: ([\d.]+) ms", re.ASCII)


@dataclass(frozen=True)
class Iteration:
    """One step of an engine: requests and tokens in prefill and in decode, and its time [ms]."""

    context_requests: int
    requests: int
    tokens: int
    elapsed_ms: float


def parse_iteration(text: str) -> Iteration | None:
    """The figures of an iteration line by their names; None where one is missing or wrong."""
    said = {(kind, what): int(count) for count, kind, what in _COUNTS.findall(text)}
    found = _ELAPSED.search(text)
    elapsed = amount(found[1]) if found else None
    needed = (("context", "requests"), ("generation", "requests"), ("generation", "tokens"))
    if not elapsed or any(name not in said for name in needed):
        return None
    context, requests, tokens = (said[name] for name in needed)
    return Iteration(context, requests, tokens, elapsed)


class VllmIterations:
    """Reads iteration lines of one log; iterations with a prefill or with unequal widths are left out."""

    keys = (b"Iteration(",)

    def __init__(self, _: Mapping[str, Any]) -> None:
        self._steps = Steps()
        self._left_out = Tally()

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds the key."""
        text = line.decode("ascii", "replace")
        found = parse_iteration(text)
        if found is None:
            self._left_out.add("iteration line that cannot be read", number, text)
        elif why := why_no_step(found.context_requests, found.requests, found.tokens):
            self._left_out.add(why, number)
        else:
            self._steps.add(number, found.requests, found.tokens, found.elapsed_ms)

    def finish(self) -> Iterator[Reading | LeftOut]:
        """A run for each batch size and width."""
        common = {"engine": "vllm", "instrument": "vLLM iteration log"}
        yield from self._steps.finish(common, "time elapsed on the host")
        yield from self._left_out
