"""Single lines of vLLM's log: what an engine did in an interval, and what its drafts came to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specsim.runs.formats.positions import position_counts
from specsim.runs.readings import amount, pieces, whole

_STAMP = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_ENGINE = re.compile(r"(Engine \d+|\d+ Engines Aggregated): Avg")
_POSITIONS = re.compile(r"Per-position acceptance rate: ([\d., ]*)")


@dataclass(frozen=True)
class EngineLine:
    """What the engine did in an interval: requests running at its end, prompt and generated tokens a second."""

    number: int
    at_s: float
    engine: str
    running: int
    prompt_tok_s: float
    output_tok_s: float
    why_unsteady: str = ""


@dataclass(frozen=True)
class SpecLine:
    """Drafts of an interval: cycles of single requests, drafts proposed and accepted, by position where printed."""

    number: int
    at_s: float
    drafts: int
    proposed: int
    accepted: int
    at_least: tuple[int, ...]
    accepted_tok_s: float

    @property
    def output_tok_s(self) -> float | None:
        """Tokens that the drafting requests emitted a second, None where none of their drafts was accepted."""
        return self.accepted_tok_s * (1 + self.drafts / self.accepted) if self.accepted else None


def parse_engine_line(number: int, text: str) -> EngineLine | None:
    """The engine line's figures by key; None where one is missing or wrong."""
    found = _ENGINE.search(text)
    said = pieces(text[found.start() :].partition(":")[2]) if found else {}
    prompt, output = (amount(_bare(said, f"Avg {kind} throughput")) for kind in ("prompt", "generation"))
    running = whole(_bare(said, "Running"))
    if found is None or prompt is None or output is None or running is None:
        return None
    return EngineLine(number, _seconds(text), found[1], running, prompt, output)


def parse_spec_line(number: int, text: str) -> SpecLine | None:
    """A SpecDecoding line of vLLM 0.11 and later; None where it is of another shape, or contradicts itself."""
    said, rates = pieces(_POSITIONS.sub("", text.partition("SpecDecoding metrics:")[2])), _POSITIONS.search(text)
    length, accepted_tok_s = amount(_bare(said, "Mean acceptance length")), amount(_bare(said, "Accepted throughput"))
    accepted, proposed = whole(_bare(said, "Accepted")), whole(_bare(said, "Drafted"))
    survival = [amount(each) for each in rates[1].split(",") if each.strip()] if rates else []
    if length is None or accepted_tok_s is None or accepted is None or not proposed or accepted > proposed:
        return None
    drafts = _drafts(length, accepted, proposed, len(survival))
    counted = position_counts([s for s in survival if s is not None], drafts, accepted, 5e-4) if drafts else None
    if not drafts or counted is None or len(counted) != len(survival):
        return None
    return SpecLine(number, _seconds(text), drafts, proposed, accepted, counted, accepted_tok_s)


def _drafts(length: float, accepted: int, proposed: int, depth: int) -> int | None:
    """How many drafts there were: proposed/depth where all are of that depth, else from the mean length."""
    if depth and proposed % depth == 0 and abs(1 + accepted * depth / proposed - length) < 0.011:
        return proposed // depth
    return round(accepted / (length - 1)) if accepted and length > 1 else None


def _bare(said: Mapping[str, str], name: str) -> str:
    """A value without its unit."""
    return said.get(name, "").split(" ")[0].rstrip("%")


def _seconds(text: str) -> float:
    """Seconds of a line's time stamp, for differences only; 0 without one."""
    found = _STAMP.search(text)
    if found is None:
        return 0.0
    month, day, hour, minute, second = (int(part) for part in found.groups())
    return float((((month * 31 + day) * 24 + hour) * 60 + minute) * 60 + second)
