"""Whether a measurement agrees with its prediction: PASS, FAIL, or that this sample cannot tell; looks may be many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.live.window import Reading
from specsim.quantities import LEVEL
from specsim.uncertainty import difference_interval, student_quantile

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"

LOOKS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""When a measurement is looked at, in shares of its longest time."""


_WIDENED = 1.08
"""What a prediction's interval is widened by: its error is the same at every look, and each look is one more chance to
cross the edge beside it. With this the chance of a wrong verdict stays below (1 − LEVEL)/2 = 5% for any ratio of the two
errors; without it, it reaches 6% (`tests/unit/test_live_verdict.py` draws both)."""


def look_error(before: float, now: float) -> float:
    """The chance of error that a look at share `now` of the time may take, the last one having been at `before`.

    (1 − LEVEL)·(now² − before²) (eq. 26): over all looks it adds up to 1 − LEVEL, whenever they are and however many (the power
    family of error spending, Kim & DeMets, Biometrika 74, 1987). Each look's interval is wide enough for its own part
    alone, so that the chance that any of them misses is at most the sum.
    """
    return (1 - LEVEL) * (min(now, 1.0) ** 2 - min(before, 1.0) ** 2)


@dataclass(frozen=True)
class Expected:
    """A predicted value and the ends of its interval at quantities.LEVEL."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Judged:
    """A verdict on one figure: the difference (predicted − measured) and its interval in percent of `scale`.

    `why` says what stands against a verdict, empty where there is one; `factor` how many times as long a run would
    tell (inf: none would; NaN where it is decided or unknown).
    """

    verdict: str
    difference_pct: float
    interval_pct: tuple[float, float]
    why: str = ""
    factor: float = float("nan")


def judge(
    expected: Expected, measured: Reading, tolerance_pct: float, error: float, scale: float | None = None
) -> Judged:
    """PASS where the whole interval of the difference lies within the tolerance, FAIL where wholly outside.

    The interval joins the prediction's own with the measured error's at `error` (two-sided, look_error) in squares
    (eq. 11, 26), the former widened for the looks. `scale` is what percents are of, the measured value unless stated.
    """
    of = 100.0 / (measured.value if scale is None else scale)
    difference = (expected.value - measured.value) * of
    if not np.isfinite([expected.low, expected.high, difference]).all():
        return Judged(INCONCLUSIVE, difference, _NOWHERE, "the prediction has no interval", float("inf"))
    if np.isnan(measured.error):
        return Judged(INCONCLUSIVE, difference, _NOWHERE, "too few cycles to know the error of their mean")
    reach = student_quantile(1 - error / 2, measured.dof) * measured.error
    ends = difference_interval(
        (expected.value, *_widened(expected)),
        (measured.value, measured.value - reach, measured.value + reach),
    )
    low, high = sorted((float(ends[0]) * of, float(ends[1]) * of))
    if -tolerance_pct <= low and high <= tolerance_pct:
        return Judged(PASS, difference, (low, high))
    if low > tolerance_pct or high < -tolerance_pct:
        return Judged(FAIL, difference, (low, high))
    return _undecided(expected, measured, tolerance_pct, (difference, low, high, of))


def _widened(expected: Expected) -> tuple[float, float]:
    value = expected.value
    return value - _WIDENED * (value - expected.low), value + _WIDENED * (expected.high - value)


_NOWHERE = (float("-inf"), float("inf"))


def _undecided(
    expected: Expected, measured: Reading, tolerance_pct: float, found: tuple[float, float, float, float]
) -> Judged:
    """How much longer a run has to be, the difference staying as it is: the measured error falls with the root of it."""
    difference, low, high, of = found
    room = abs(tolerance_pct - abs(difference))
    own = _WIDENED * max(expected.value - expected.low, expected.high - expected.value) * abs(of)
    last = student_quantile(1 - look_error(*LOOKS[-2:]) / 2, measured.dof) * measured.error * abs(of)
    if room <= own:
        why = f"the prediction's own interval, ±{own:.1f}%, leaves no room: fit more runs, or allow a wider tolerance"
        return Judged(INCONCLUSIVE, difference, (low, high), why, float("inf"))
    factor = max(last**2 / (room**2 - own**2), 1.0)
    return Judged(INCONCLUSIVE, difference, (low, high), "the noise of this sample cannot tell", factor)


def verdict_of_all(verdicts: list[str]) -> str:
    """FAIL where one figure fails, PASS where all pass, else INCONCLUSIVE, also where nothing was judged."""
    if FAIL in verdicts:
        return FAIL
    return PASS if verdicts and all(verdict == PASS for verdict in verdicts) else INCONCLUSIVE
