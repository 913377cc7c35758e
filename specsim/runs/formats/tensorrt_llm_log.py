"""TensorRT-LLM's iteration log (print_iter_log): device times, which stand one line after the step that they time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specsim.runs.formats.steps import Steps, why_no_step
from specsim.runs.readings import LeftOut, Reading, Tally, amount

_FIGURE = re.compile(r"'?\b(\w+)'?\s*[=:]\s*([\d.]+)(?:ms)?\b", re.ASCII)


@dataclass(frozen=True)
class IterationLine:
    """A step: its number and batch, and the device time [ms] of the step before it (None: none is told)."""

    iteration: int
    rank: int
    requests: int
    context_requests: int
    tokens: int
    before_ms: float | None


def parse_iteration_line(text: str) -> IterationLine | None:
    """The figures of an iteration line by their names; None where one is missing or wrong."""
    said = {name: amount(value) for name, value in _FIGURE.findall(text)}
    names = ("iter", "global_rank", "num_scheduled_requests", "num_ctx_requests", "num_generation_tokens")
    found = [said.get(name) for name in names]
    if found[1] is None:
        found[1] = said.get("rank")
    if any(value is None or value != int(value) for value in found):
        return None
    iteration, rank, requests, context, tokens = (int(value) for value in found if value is not None)
    return IterationLine(iteration, rank, requests, context, tokens, said.get("prev_device_step_time") or None)


class TensorrtLlmLog:
    """Reads iteration lines of rank 0; the time on a line belongs to the batch of the line before."""

    keys = (b"prev_device_step_time",)

    def __init__(self, _: Mapping[str, Any]) -> None:
        self._before: tuple[int, IterationLine] | None = None
        self._steps = Steps()
        self._left_out = Tally()

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds the key."""
        text = line.decode("ascii", "replace")
        found = parse_iteration_line(text)
        if found is None:
            self._left_out.add("iteration line that cannot be read", number, text)
        elif found.rank != 0:
            self._left_out.add("iteration of another rank than 0", number)
        else:
            if self._before is not None:
                self._time(*self._before, found)
            self._before = number, found

    def _time(self, number: int, step: IterationLine, after: IterationLine) -> None:
        """Take the time of a step from the line after it."""
        if why := _why_not(step, after):
            self._left_out.add(why, number)
            return
        self._steps.add(number, step.requests, step.tokens, after.before_ms or 0.0)

    def finish(self) -> Iterator[Reading | LeftOut]:
        """A run for each batch size and width."""
        if self._before is not None:
            self._left_out.add("last iteration: its time would stand on the next line", self._before[0])
        common = {"engine": "tensorrt-llm", "instrument": "TensorRT-LLM iteration log"}
        yield from self._steps.finish(common, "device times")
        yield from self._left_out


def _why_not(step: IterationLine, after: IterationLine) -> str:
    if after.iteration != step.iteration + 1:
        return "iteration whose next line is missing"
    if after.before_ms is None:
        return "iteration without a device time"
    return why_no_step(step.context_requests, step.requests, step.tokens)
