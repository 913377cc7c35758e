"""What SGLang's accept rate counts, which changed by version, and what it gives away beside an accept length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specsim.acceptance.conversions import RATE_MEANINGS, rate_meaning
from specsim.errors import SpecsimError
from specsim.quantities import SpecConfig
from specsim.runs.readings import whole

_HALF = 0.005  # lengths and rates are printed with two decimals


@dataclass
class BudgetWindow:
    """What every pair of accept length and accept rate so far allows the rate's denominator to be, by its meaning.

    Up to 0.5.10 the rate is L/budget, from 0.5.11 on (L − 1)/budget; both figures are rounded to two decimals.
    """

    ends: dict[int, tuple[float, float]] = field(default_factory=lambda: {1: (0, math.inf), 0: (0, math.inf)})

    def narrow(self, length: float, rate: float) -> None:
        """One more pair."""
        for bonus, (low, high) in self.ends.items():
            above = length - 1 + bonus
            most = (above + _HALF) / (rate - _HALF) if rate > _HALF else math.inf
            self.ends[bonus] = max(low, (above - _HALF) / (rate + _HALF)), min(high, most)

    def budgets(self, bonus: int) -> list[int]:
        """The few whole budgets that are possible; none where the meaning is ruled out or nothing is known."""
        low, high = self.ends[bonus]
        return [] if high - low > 3 else list(range(max(1, math.ceil(low)), math.floor(high) + 1))


def width_hint(window: BudgetWindow) -> str:
    """What lengths and rates together give away of the configuration."""
    told = []
    if old := window.budgets(1):
        told.append(
            f"{_or(old)} if the rate counts the bonus (SGLang to 0.5.10; of a tree to 0.5.5, its num_steps + 1)"
        )
    if new := window.budgets(0):
        told.append(f"{_or([budget + 1 for budget in new])} if it does not (0.5.11 on)")
    return f"accept len and accept rate imply num_draft_tokens {', '.join(told)}" if told else ""


def rate_note(window: BudgetWindow, settings: Mapping[str, Any]) -> list[str]:
    """How the log's accept rate is counted: as its version says, checked against lengths, or as these tell."""
    try:
        spec = SpecConfig.of(
            num_steps=whole(settings.get("num_steps")),
            topk=whole(settings.get("topk")),
            num_draft_tokens=whole(settings.get("num_draft_tokens")),
            method=str(settings.get("method") or "eagle"),
        )
        version = settings.get("engine_version")
        meanings = [rate_meaning("sglang", str(version))] if version else _LOG_MEANINGS
    except SpecsimError:
        return []
    width = int(spec.num_draft_tokens), int(spec.num_steps)
    fitting = [
        m for m in meanings if m.per_token * width[0] + m.per_step * width[1] + m.plus in window.budgets(m.bonus)
    ]
    if not fitting:
        return ["accept rate does not go with accept len at this configuration and version: is one of them misstated?"]
    counted = "counts" if fitting[0].bonus else "does not count"
    return [f"accept rate {counted} the bonus, as in SGLang {' and '.join(m.first for m in fitting)}"]


_LOG_MEANINGS = [meaning for meaning in RATE_MEANINGS if meaning.engine == "sglang" and not meaning.per_request]


def _or(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
