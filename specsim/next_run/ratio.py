"""A question as the ratio of two times, and its interval by what is known (eq. 11, 15)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from specsim.next_run.knowledge import Knowledge
from specsim.next_run.space import Kind, Space
from specsim.quantities import FloatArray, SpecConfig
from specsim.uncertainty import quantile, ratio_interval

Interval = tuple[float, float]
Reading = tuple[float, FloatArray]


@dataclass(frozen=True)
class Side:
    """One time of a ratio: a configuration's whole cycle, or plain decode where `spec` is None.

    `time_ms` is what to plan with, NaN where nothing says it; `own` the gradient that measuring it gives. `readings`
    of its NCCL setting stand in for it until it is measured. `name` is what is missing where it is not told, `role`
    what it is in the question.
    """

    spec: SpecConfig | None
    batch_size: int
    nccl: str
    time_ms: float
    own: FloatArray
    readings: dict[str, Reading]
    name: str
    role: str

    @classmethod
    def of(cls, space: Space, asked: tuple[SpecConfig | None, int, str], name: str, role: str) -> Self:
        """A side by what the model's runs say of it."""
        spec, batch, nccl = asked
        kind: Kind = "decode" if spec is None else "cycle"
        cycle = space.cycle(spec, batch)
        time = float(space.times(kind, cycle, nccl)[0])
        own = space.gradient(kind, cycle, nccl)[0]
        return cls(*asked, time, own, {} if spec is None else space.readings(cycle, nccl), name, role)

    @property
    def asked(self) -> tuple[SpecConfig | None, int, str]:
        """What is run: configuration, batch size and NCCL setting."""
        return self.spec, self.batch_size, self.nccl

    def told(self, known: Knowledge) -> dict[str, Reading]:
        """The time [ms] with its gradient, by reading; its own alone where it is measured, empty where nothing tells it."""
        if known.tells(self.own):
            return {"measured": (self.time_ms, self.own)}
        return {name: reading for name, reading in self.readings.items() if known.tells(reading[1])}


@dataclass(frozen=True)
class Ratio:
    """A question: `over` by `under`, times a factor.

    `reach` is the half-width of an interval in standard errors, `apart` that of log(factor), of which no time tells
    anything. `placed` says that both times come from the model; `subject` what the two are, in a sentence.
    """

    over: Side
    under: Side
    reach: float
    placed: bool
    subject: str
    factor: float = 1.0
    apart: float = 0.0

    @classmethod
    def of(
        cls, space: Space, sides: tuple[Side, Side], subject: str, *, factor: float = 1.0, apart: float = 0.0
    ) -> Self:
        """The ratio of two sides; a time that nothing says counts as the other: relative intervals do not depend on it."""
        finite = [side.time_ms for side in sides if np.isfinite(side.time_ms)]
        over, under = (
            side if np.isfinite(side.time_ms) else replace(side, time_ms=(*finite, 1.0)[0]) for side in sides
        )
        reach = quantile(space.model.noise.residual_dof)
        return cls(over, under, reach, len(finite) == len(sides), subject, factor, apart)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.over, self.under

    @property
    def value(self) -> float:
        """The ratio by the times to plan with."""
        return self.factor * self.over.time_ms / self.under.time_ms

    def time_ms(self, kind: Kind) -> float:
        """The time [ms] that stands for a measurement of which nothing says how long it takes."""
        alike = (side.time_ms for side in self.sides if (side.spec is None) == (kind == "decode"))
        return next(alike, self.over.time_ms)

    def missing(self, known: Knowledge) -> tuple[str, ...]:
        """Which of the two sides no run tells."""
        return tuple(dict.fromkeys(side.name for side in self.sides if not side.told(known)))

    def interval(self, known: Knowledge) -> Interval | None:
        """The ratio's interval: Fieller's (eq. 11) over the readings, and the factor's in squares with it.

        None where a side is missing.
        """
        ends = [self._ends(known, *pair) for pair in self._read_alike(known)]
        return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None

    def _read_alike(self, known: Knowledge) -> Iterator[tuple[Reading, Reading]]:
        """Readings of both sides that can hold together: one NCCL setting is read one way at a time."""
        for name, over in self.over.told(known).items():
            for other, under in self.under.told(known).items():
                if self.over.nccl != self.under.nccl or name == other or "measured" in (name, other):
                    yield over, under

    def _ends(self, known: Knowledge, over: Reading, under: Reading) -> Interval:
        (time, row), (divisor, column) = over, under
        pairs = ((row, row), (column, column), (row, column))
        var_over, var_under, shared = (np.array([a @ known.covariance @ b]) for a, b in pairs)
        variances = (np.maximum(var_over, 0.0), np.maximum(var_under, 0.0), shared)
        low, high = ratio_interval(np.array([time]), np.array([divisor]), variances, self.reach)
        return self._widened(self.factor * time / divisor, self.factor * float(low[0]), self.factor * float(high[0]))

    def _widened(self, value: float, low: float, high: float) -> Interval:
        """Ends of an interval with the factor's doubt, by its logarithm, in squares with theirs."""
        if self.apart == 0:
            return low, high
        with np.errstate(divide="ignore"):  # an end at 0 or ∞ stays there
            down, up = (np.hypot(np.log(end / value), self.apart) for end in (low, high))
        return float(value * np.exp(-down)), float(value * np.exp(up))

    def half_width_pct(self, interval: Interval | None) -> float:
        """Half an interval in percent of the ratio; inf where there is none."""
        return float("inf") if interval is None else 50.0 * (interval[1] - interval[0]) / self.value
