"""Whether two measured benchmarks differ, with what confidence, and how many prompts would tell (eq. 23)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, final

import numpy as np

from specsim.errors import ConfigurationError
from specsim.quantities import FloatArray
from specsim.simulation.renewal import cycles_moments
from specsim.uncertainty import chance_of_no_difference, detection_power, student_interval

SIGNIFICANCE = 0.05
"""Two-sided: how often two equal benchmarks may be called different."""

POWER = 0.80
"""How often a difference is to be found by the number of prompts that is said to tell it."""

DIFFERENT, NOT_DISTINGUISHABLE = "different", "not_distinguishable"
_MOST_PROMPTS = 1 << 60
_COUNTED = 8192  # tokens whose cycles are counted one by one


@final
@dataclass(frozen=True)
class Measured:
    """One measured benchmark: throughput [tok/s], prompts, relative standard deviation of one prompt's throughput.

    `within` is the part of `spread` that cycles being draws make at `output_len`, None where nothing tells it.
    `by_prompt` holds the figures of single prompts, where there are any. `tok_s` is their geometric mean where
    `geometric`, else the tokens of all prompts over their time, as a benchmark tells it.
    """

    name: str
    tok_s: float
    prompts: int
    spread: float
    output_len: int | None = None
    within: float | None = None
    by_prompt: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    geometric: bool = False

    def __post_init__(self) -> None:
        if self.prompts < 2:
            raise ConfigurationError(f"{self.name}: one prompt says nothing of the spread between them; it takes 2")
        if not (0 < self.tok_s < math.inf and 0 <= self.spread < math.inf):
            raise ConfigurationError(f"{self.name}: throughput is above 0 and its spread at least 0")

    @classmethod
    def of_prompts(
        cls, name: str, by_prompt: Mapping[str, float], output_len: int | None = None, within: float | None = None
    ) -> Measured:
        """A benchmark from the throughput of each prompt [tok/s]; raises ConfigurationError on fewer than 2."""
        if len(by_prompt) < 2:
            raise ConfigurationError(f"{name}: one prompt says nothing of the spread between them; it takes 2")
        logs = np.log(list(by_prompt.values()))
        spread = math.sqrt(math.expm1(float(logs.var(ddof=1))))
        figures = MappingProxyType(dict(by_prompt))
        return cls(name, math.exp(float(logs.mean())), len(logs), spread, output_len, within, figures, True)

    def as_benchmark(self) -> Measured:
        """As a benchmark tells it: where single prompts are known, their tokens over their time, a harmonic mean."""
        if not self.by_prompt:
            return self
        figures = list(self.by_prompt.values())
        return replace(self, tok_s=len(figures) / sum(1 / each for each in figures), geometric=False)

    @property
    def log_variance(self) -> float:
        """Variance of the logarithm of `tok_s`, times the prompts (eq. 23).

        Of a geometric mean ln(1 + spread²), the variance of one prompt's logarithm, which is log-normal. Of tokens over
        time spread²: a harmonic mean of rates, whose times spread as the rates do (delta method).
        """
        return math.log1p(self.spread**2) if self.geometric else self.spread**2

    @property
    def standard_error(self) -> float:
        """Relative standard error of the throughput (eq. 23)."""
        return math.sqrt(self.log_variance / self.prompts)

    @property
    def standard_error_within(self) -> float | None:
        """The part of it that cycles being draws make; None where nothing tells it."""
        return None if self.within is None else self.within / math.sqrt(self.prompts)


def within_spread(survival: FloatArray, output_len: int) -> float:
    """Relative standard deviation of one prompt's throughput that cycles being draws make (eq. 23), in closed form.

    `survival` holds S_i, (num_steps,), or of several kinds of prompt, (kinds, num_steps), whose variances are averaged.
    Beyond _COUNTED tokens the square falls with the length, as of a renewal process it does.
    """
    counted = min(output_len, _COUNTED)
    mean, variance = cycles_moments(np.atleast_2d(survival), counted)
    return float(np.sqrt(np.mean(variance[-1] / mean[-1] ** 2) * counted / output_len))


# -- do they differ --------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Comparison:
    """Two benchmarks held against each other by a t test on logarithms of throughput (eq. 23).

    `ratio` is the second over the first, `ratio_interval` at 1 − SIGNIFICANCE, `confidence` 1 − p that they differ at
    all. `prompts_needed`, for each benchmark, finds a true difference of this size with POWER; None where there is
    none. `same_prompts` is how many prompts were paired, 0 in Welch's test; `unpaired` names those of only one side.
    `same_prompts_needed` is the least that pairing could do with, were prompts to move both benchmarks alike.
    """

    first: Measured
    second: Measured
    test: Literal["welch", "paired"]
    ratio: float
    ratio_interval: tuple[float, float]
    standard_error: float
    dof: float
    confidence: float
    prompts_needed: int | None
    same_prompts: int = 0
    same_prompts_needed: int | None = None
    unpaired: tuple[str, ...] = ()

    @property
    def paired_variance(self) -> float | None:
        """Variance of the log differences of single prompts; None where none were paired."""
        return self.same_prompts * self.standard_error**2 if self.same_prompts else None

    @property
    def verdict(self) -> str:
        """DIFFERENT where the interval of the ratio leaves 1 out, else NOT_DISTINGUISHABLE."""
        return DIFFERENT if self.confidence > 1 - SIGNIFICANCE else NOT_DISTINGUISHABLE

    @property
    def probability_second_faster(self) -> float:
        """P(second > first), by the same t distribution."""
        return 0.5 * (1 + math.copysign(self.confidence, self.ratio - 1)) if self.ratio != 1 else 0.5


def compare(first: Measured, second: Measured) -> Comparison:
    """Hold two benchmarks against each other: paired by prompt where two or more prompts are the same, else Welch's.

    Where only one side has single prompts' figures, it counts as it would be told without them (`as_benchmark`).
    """
    common = [prompt for prompt in first.by_prompt if prompt in second.by_prompt]
    if len(common) >= 2:
        return _paired(first, second, common)
    if first.by_prompt and second.by_prompt:
        return _welch(first, second)
    return _welch(first.as_benchmark(), second.as_benchmark())


def _welch(first: Measured, second: Measured) -> Comparison:
    difference = math.log(second.tok_s / first.tok_s)
    squares = [each.log_variance / each.prompts for each in (first, second)]
    freedoms = [each.prompts - 1 for each in (first, second)]
    total = sum(squares)
    dof = total**2 / sum(s**2 / f for s, f in zip(squares, freedoms, strict=True)) if total else float(sum(freedoms))
    needed = prompts_needed(difference, first.log_variance, second.log_variance)
    paired = None
    if first.within is not None and second.within is not None:
        paired = paired_prompts_needed(difference, first.within**2 + second.within**2)
    tested = _tested(difference, math.sqrt(total), dof)
    return Comparison(first, second, "welch", *tested, needed, same_prompts_needed=paired)


def _paired(first: Measured, second: Measured, common: list[str]) -> Comparison:
    differences = np.array([math.log(second.by_prompt[each] / first.by_prompt[each]) for each in common])
    difference, variance = float(differences.mean()), float(differences.var(ddof=1))
    tested = _tested(difference, math.sqrt(variance / len(common)), float(len(common) - 1))
    needed = paired_prompts_needed(difference, variance)
    alone = sorted({*first.by_prompt, *second.by_prompt}.difference(common))
    return Comparison(first, second, "paired", *tested, needed, len(common), unpaired=tuple(alone))


def _tested(difference: float, error: float, dof: float) -> tuple[float, tuple[float, float], float, float, float]:
    """Ratio, its interval, standard error, degrees of freedom and confidence of a difference of logarithms."""
    reach = error * student_interval(dof, 1 - SIGNIFICANCE)
    ends = (math.exp(difference - reach), math.exp(difference + reach))
    if error == 0:
        confidence = 0.0 if difference == 0 else 1.0
    else:
        confidence = 1 - chance_of_no_difference(difference / error, dof)
    return math.exp(difference), ends, error, dof, confidence


# -- how many prompts would tell -------------------------------------------------------------------------------------


def prompts_needed(difference: float, variance: float, other_variance: float) -> int | None:
    """Prompts of each benchmark that find a difference of logarithms with POWER by Welch's test at SIGNIFICANCE.

    The variances are those of `Measured.log_variance`. None where no number of prompts does.
    """
    total, squares = variance + other_variance, variance**2 + other_variance**2

    def power(prompts: int) -> float:
        dof = (prompts - 1) * (total**2 / squares if squares else 2)
        return _power(difference, total / prompts, dof)

    return _fewest(power, difference)


def paired_prompts_needed(difference: float, variance: float) -> int | None:
    """Prompts, the same in both benchmarks, that find a difference of logarithms by the paired test.

    `variance` is that of the differences of single prompts. None where no number of prompts does.
    """
    return _fewest(lambda prompts: _power(difference, variance / prompts, prompts - 1.0), difference)


def _power(difference: float, square: float, dof: float) -> float:
    return 1.0 if square == 0 else detection_power(difference / math.sqrt(square), dof, 1 - SIGNIFICANCE)


def _fewest(power: Callable[[int], float], difference: float) -> int | None:
    """The least number of prompts, from 2 on, at which the power is reached; it never falls with their number."""
    if difference == 0:
        return None
    low, high = 1, 2
    while power(high) < POWER:
        low, high = high, 2 * high
        if high > _MOST_PROMPTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return high


# -- planned ---------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Planned:
    """What a benchmark of outputs of this length takes to see a difference: prompts in each, or the same in both.

    `spread` is the relative standard deviation of one prompt's throughput, made of `between` and `within`, which are
    None where nothing tells cycles from prompts. `same_prompts_needed` is None where nothing is known of the
    differences of single prompts; `same_prompts_least` says that it counts the draws of cycles alone.
    """

    output_len: int | None
    spread: float
    between: float | None
    within: float | None
    prompts_needed: int | None
    same_prompts_needed: int | None
    same_prompts_least: bool


def plan(
    difference: float,
    spread: float,
    seen_len: int | None,
    survival: FloatArray | None,
    output_lens: Iterable[int],
    paired_variance: float | None = None,
) -> tuple[Planned, ...]:
    """Prompts that see a relative difference of throughput, by output length (eq. 23).

    `spread` is the relative standard deviation of one prompt's throughput as it was seen at outputs of `seen_len`,
    `survival` the S_i of its cycles, shape (num_steps,); without one of these two only that length can be planned.
    `paired_variance` is that of the log differences of single prompts, if measured. Prompts' own part of a spread
    stays, that of cycles falls with the output length. Benchmarks of different prompts are told by tokens over time.
    """
    if not 0 < difference < math.inf:
        raise ConfigurationError(f"a difference to be seen is above 0, not {difference:g}")
    step, variance = math.log1p(difference), math.log1p(spread**2)
    if survival is None or seen_len is None:
        needed = prompts_needed(step, spread**2, spread**2)
        pairs = None if paired_variance is None else paired_prompts_needed(step, paired_variance)
        return (Planned(seen_len, spread, None, None, needed, pairs, False),)
    cycles = within_spread(survival, seen_len) ** 2
    between = max(variance - cycles, 0.0)
    apart = None if paired_variance is None else max(paired_variance - 2 * cycles, 0.0)
    return tuple(_planned(step, survival, length, between, apart) for length in output_lens)


def _planned(step: float, survival: FloatArray, output_len: int, between: float, apart: float | None) -> Planned:
    within = within_spread(survival, output_len)
    variance = between + within**2
    pairs = paired_prompts_needed(step, (apart or 0.0) + 2 * within**2)
    square = math.expm1(variance)
    needed = prompts_needed(step, square, square)
    return Planned(output_len, math.sqrt(square), math.sqrt(math.expm1(between)), within, needed, pairs, apart is None)
