"""Accept lengths, survival and histograms in, a TreeLaw out, with what the data could and could not tell (section 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.chain import required_accept_rate
from specsim.acceptance.conversions import AcceptanceCounts, conditional_acceptance
from specsim.acceptance.laws import TreeLaw
from specsim.acceptance.lengths import Lengths
from specsim.errors import ConfigurationError, NotIdentifiedError
from specsim.quantities import BoolArray, FloatArray, Floats, IntArray, Ints, SpecConfig
from specsim.uncertainty import quantile

PARAMETERS = ("rate", "decay", "rank_exponent")
"""Parameters of a TreeLaw, fitted as logit(rate), log(decay) and log(rank_exponent), which keeps them legal."""

PRIOR_MEDIAN = (0.75, 0.90, 0.50)
PRIOR_SPREAD = (1.50, 0.15, 0.60)
"""Where nothing is measured: medians, and standard deviations on the fitted scale.

From public groups, each fitted alone with a flat prior. Ten chain sweeps by length (vllm#20780 with two drafters,
InferenceX's six golden curves, TensorRT-LLM's and LMSYS's MTP tables) and four sets of rates by position (vllm#24243
twice, vllm#24344, a DFlash run) have rates of .56 to .94 and decays of .73 to 1.06, whose logs have mean −0.09 and
spread 0.12; two tree sweeps (SpecForge#339, AngelSlim#163) have rank exponents of .57 and .37. The rate's prior is
wide enough to say nearly nothing; the exponent's rests on two drafters of one model, and its spread is set to a
factor of 2.7 either way at LEVEL.
"""

CHAIN_ERROR = 0.010
TREE_ERROR = 0.025
POSITION_ERROR = 0.05
"""How far a law misses what it is fitted to, beside sampling: relative, of lengths and of conditional rates.

Root mean square per degree of freedom over the same groups: 0.9% of a chain's length (0.3 to 1.9% by sweep), 2.0% of
a tree's (1.1 and 2.7%), 5% of a rate by position. A larger sample does not shrink it.
"""

_ENDS = 1e-9  # share of the legal range that an interval's centre keeps from its ends


@dataclass(frozen=True)
class LengthObservation:
    """An accept length, bonus included, at one configuration; with its standard error, or the cycles behind it.

    With cycles alone the spread of a cycle is that of a chain of constant rate with this depth and length. With
    neither, only the law's own error counts. Raises ConfigurationError outside [1, num_steps + 1].
    """

    num_steps: int
    topk: int
    num_draft_tokens: int
    accept_length: float
    cycles: int | None = None
    standard_error: float | None = None

    def __post_init__(self) -> None:
        SpecConfig(self.num_steps, self.topk, self.num_draft_tokens)
        if self.num_steps < 1:
            raise ConfigurationError("an accept length tells of acceptance from num_steps 1 on; leave this run out")
        if not 1 <= self.accept_length <= self.num_steps + 1:
            raise ConfigurationError(
                f"accept_length {self.accept_length:g} at num_steps {self.num_steps} lies outside 1 to"
                f" {self.num_steps + 1}; it includes the bonus token, add 1 to a count of accepted drafts"
            )
        if (self.cycles is not None and self.cycles < 1) or (self.standard_error or 0.0) < 0:
            raise ConfigurationError("cycles are at least 1 and a standard error at least 0")

    @classmethod
    def of(cls, counts: AcceptanceCounts, num_steps: int, topk: int, num_draft_tokens: int) -> Self:
        """From an engine's totals (specsim.acceptance.conversions), of cycles that all drafted this configuration."""
        return cls(num_steps, topk, num_draft_tokens, counts.accept_length, counts.cycles)

    @property
    def measured(self) -> FloatArray:
        """The length, shape (1,)."""
        return np.array([self.accept_length])

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of `measured` about a law: its sampling, and the law's own error."""
        error = CHAIN_ERROR if self.topk == 1 else TREE_ERROR
        return np.hypot(self._sampling(), [error * self.accept_length])

    def expected(self, law: TreeLaw) -> FloatArray:
        """What a law says of `measured`."""
        return np.array([law.accept_length(self.num_steps, self.topk, self.num_draft_tokens)])

    def _sampling(self) -> float:
        if self.standard_error is not None or self.cycles is None:
            return self.standard_error or 0.0
        # half a cycle at either end keeps a length of exactly 1 or S + 1 from counting as certain
        mean = (self.cycles * (self.accept_length - 1) + 0.5) / (self.cycles + 1)
        rate = required_accept_rate(1 + min(mean, self.num_steps - 1e-6), self.num_steps)
        depths = np.arange(1, self.num_steps + 1)
        second = float(((2 * depths - 1) * rate**depths).sum())  # E[J²] = Σ (2i − 1)·S_i
        return float(np.sqrt(max(second - mean**2, 0.0) / self.cycles))


@dataclass(frozen=True)
class SurvivalObservation:
    """Survival S_1, S_2 … of the drafts of one configuration, and the cycles behind it (None: only the law errs).

    Fitted as conditional rates: each is a share of the cycles that came so far, so they err independently.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int
    survival: tuple[float, ...]
    cycles: int | None = None

    def __post_init__(self) -> None:
        SpecConfig(self.num_steps, self.topk, self.num_draft_tokens)
        conditional_acceptance(self.survival)
        if not 1 <= len(self.survival) <= self.num_steps:
            raise ConfigurationError(f"{len(self.survival)} positions of survival at num_steps {self.num_steps}")
        if self.cycles is not None and self.cycles < 1:
            raise ConfigurationError("cycles are at least 1")

    @classmethod
    def of(cls, counts: AcceptanceCounts, num_steps: int, topk: int, num_draft_tokens: int) -> Self:
        """From an engine's counters or histogram (specsim.acceptance.conversions).

        Raises NotIdentifiedError without counts by position, ConfigurationError where they are deeper than num_steps.
        """
        if counts.survival[num_steps:].any():
            raise ConfigurationError(
                f"cycles accepted more drafts than num_steps {num_steps} can draft: check num_steps"
            )
        return cls(num_steps, topk, num_draft_tokens, tuple(counts.survival[:num_steps].tolist()), counts.cycles)

    @property
    def _reached(self) -> FloatArray:
        """Share of cycles that came to each position that any came to."""
        before = np.array([1.0, *self.survival[:-1]])
        return before[before > 0]

    @property
    def measured(self) -> FloatArray:
        """Conditional rates of the positions that any cycle came to."""
        return conditional_acceptance(self.survival)[: self._reached.size]

    @property
    def spread(self) -> FloatArray:
        """Standard deviation of `measured` about a law: binomial, and the law's own error."""
        rates = self.measured
        if self.cycles is None:
            return POSITION_ERROR * np.maximum(rates, 0.5)
        trials = self._reached * self.cycles
        inside = (rates * trials + 0.5) / (trials + 1)  # half a cycle more on either side: none or all is not certain
        return np.hypot(np.sqrt(inside * (1 - inside) / trials), POSITION_ERROR * inside)

    def expected(self, law: TreeLaw) -> FloatArray:
        """What a law says of `measured`."""
        survival = law.tree_survival(self.num_steps, self.topk, self.num_draft_tokens)
        return conditional_acceptance(survival)[: self.measured.size]


Observation = LengthObservation | SurvivalObservation


@dataclass(frozen=True)
class AcceptanceResidual:
    """An observation beside the fitted law: lengths, or conditional rates by position."""

    observation: Observation
    measured: FloatArray
    fitted: FloatArray

    @property
    def relative(self) -> FloatArray:
        """(measured − fitted)/fitted."""
        return self.measured / self.fitted - 1


@dataclass(frozen=True)
class AcceptanceFit:
    """A fitted law with what is known of it.

    `covariance` belongs to the fitted scale of PARAMETERS, `intervals` to the parameters, at quantities.LEVEL.
    `not_identified` names the parameters of which the data say less than the default prior does; `misfit` is how
    many times further than assumed the observations lie from the law, at least 1, and widens every interval.
    """

    law: TreeLaw
    covariance: FloatArray
    intervals: dict[str, tuple[float, float]]
    not_identified: tuple[str, ...]
    residuals: tuple[AcceptanceResidual, ...]
    misfit: float

    def predict(self, num_steps: Ints, topk: Ints, num_draft_tokens: Ints) -> tuple[Floats, Floats, Floats]:
        """Accept length, bonus included, and both ends of its LEVEL interval, of any legal configuration.

        Arguments broadcast; scalars give floats. On logit((L − 1)/S), which keeps the interval inside [1, S + 1]: how
        far it moves, up and down, along each principal axis of the parameters' uncertainty, with the law's own error,
        added in squares. That is the delta method of eq. 11, but with steps as long as the interval.
        """
        shape = np.broadcast_shapes(np.shape(num_steps), np.shape(topk), np.shape(num_draft_tokens))
        told = self.lengths(*np.atleast_1d(*np.broadcast_arrays(num_steps, topk, num_draft_tokens)))
        return _in_shape(told.value, shape), _in_shape(told.low, shape), _in_shape(told.high, shape)

    def lengths(self, num_steps: IntArray, topk: IntArray, num_draft_tokens: IntArray) -> Lengths:
        """What `predict` says of n configurations, arrays of shape (n,), and what their errors have in common."""
        config = (num_steps, topk, num_draft_tokens)
        length = np.asarray(self.law.accept_length(*config))
        score, scale = _score(length, num_steps)
        own = quantile(0) * self.misfit * np.where(topk == 1, CHAIN_ERROR, TREE_ERROR) * (num_steps > 0)
        down, up, shared = np.square(own * scale), np.square(own * scale), []
        for below, above in self._moved(config):
            moves = [_score(each, num_steps)[0] - score for each in (below, above)]
            down += np.square(np.minimum(np.minimum(*moves), 0.0))
            up += np.square(np.maximum(np.maximum(*moves), 0.0))
            shared.append(np.log(above / below) / 2)
        low, high = (1 + num_steps * _expit(score + reach) for reach in (-np.sqrt(down), np.sqrt(up)))
        beyond = np.asarray(self.is_extrapolated(num_steps, topk, num_draft_tokens))
        return Lengths(length, low, high, np.stack(shared, axis=1), own, beyond)

    def _moved(self, config: tuple[IntArray, ...]) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The lengths at both ends of the LEVEL interval along each principal axis of the parameters' uncertainty."""
        variances, axes = np.linalg.eigh(self.covariance)
        for step in (quantile(0) * np.sqrt(np.maximum(variances, 0.0)) * axes).T:
            below, above = (_law(_parameters(self.law) + side * step).accept_length(*config) for side in (-1, 1))
            yield np.asarray(below), np.asarray(above)

    def is_extrapolated(self, num_steps: Ints, topk: Ints, num_draft_tokens: Ints) -> bool | BoolArray:
        """Whether a configuration lies outside those fitted, in depth, branches or draft tokens; arguments broadcast."""
        seen = [residual.observation for residual in self.residuals]
        beyond: BoolArray = np.zeros((), dtype=bool)
        for name, asked in (("num_steps", num_steps), ("topk", topk), ("num_draft_tokens", num_draft_tokens)):
            measured = [getattr(o, name) for o in seen]
            beyond = beyond | (np.asarray(asked) < min(measured)) | (np.asarray(asked) > max(measured))
        return bool(beyond) if beyond.ndim == 0 else np.asarray(beyond)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each parameter that is not identified, with the run that would tell, and one for a misfit."""
        open_ = tuple(
            f"{name} is not identified: {getattr(self.law, name):.2f} ({low:.2f} to {high:.2f}) is mostly the default"
            f" prior; {_TELLS[name]} would tell"
            for name, (low, high) in self.intervals.items()
            if name in self.not_identified
        )
        if self.misfit < _WORTH_A_WORD:
            return open_
        return (
            *open_,
            f"the measured lengths lie {self.misfit:.1f} times as far from the law as assumed: is it one drafter"
            " and one kind of work?",
        )


_WORTH_A_WORD = 1.5
_TELLS = {
    "rate": "a chain of one step",
    "decay": "more cycles, or runs at further num_steps,",
    "rank_exponent": "runs with topk above 1",
}


def fit_acceptance(observations: Iterable[Observation]) -> AcceptanceFit:
    """Fit a TreeLaw, maximum a posteriori, to lengths and survival from one drafter and kind of work (section 7).

    Gauss–Newton on weighted residuals and the default prior; the covariance is from the Jacobian there, the data's
    share scaled by the misfit. Raises NotIdentifiedError without observations.
    """
    seen = tuple(observations)
    if not seen:
        raise NotIdentifiedError(
            "no accept length, survival or histogram to fit an acceptance law to; give at least one"
        )
    solution, jacobian = _maximum_a_posteriori(seen)
    residuals = tuple(AcceptanceResidual(o, o.measured, o.expected(_law(solution))) for o in seen)
    misses = np.concatenate([(r.measured - r.fitted) / r.observation.spread for r in residuals])
    prior = np.diag(np.array(PRIOR_SPREAD) ** -2.0)
    information = jacobian.T @ jacobian
    taken = float(np.trace(np.linalg.solve(information + prior, information)))  # parameters that the data pay for
    misfit = float(np.sqrt(max(1.0, misses @ misses / max(misses.size - taken, 1.0))))
    covariance = np.asarray(np.linalg.inv(information / misfit**2 + prior), dtype=np.float64)
    spread = np.sqrt(np.diag(covariance))
    ends = [_law(solution + side * quantile(0) * spread) for side in (-1, 1)]
    return AcceptanceFit(
        law=_law(solution),
        covariance=covariance,
        intervals={name: (getattr(ends[0], name), getattr(ends[1], name)) for name in PARAMETERS},
        not_identified=tuple(
            name
            for name, after, before in zip(PARAMETERS, spread, PRIOR_SPREAD, strict=True)
            if after**2 > before**2 / 2  # more than half of the precision is the prior's
        ),
        residuals=residuals,
        misfit=misfit,
    )


def _maximum_a_posteriori(seen: Sequence[Observation]) -> tuple[FloatArray, FloatArray]:
    """The fitted scale's optimum, and the Jacobian of the data's weighted residuals there."""
    from scipy.optimize import least_squares  # here: importing it takes longer than the fit

    measured = np.concatenate([o.measured for o in seen])
    spread = np.concatenate([o.spread for o in seen])
    centre = _parameters(TreeLaw(*PRIOR_MEDIAN))

    def misses(theta: FloatArray) -> FloatArray:
        expected = np.concatenate([o.expected(_law(theta)) for o in seen])
        return np.concatenate([(expected - measured) / spread, (theta - centre) / PRIOR_SPREAD])

    solution = least_squares(misses, centre, jac="3-point")
    return np.asarray(solution.x), np.asarray(solution.jac)[: measured.size]


def _parameters(law: TreeLaw) -> FloatArray:
    return np.array([np.log(law.rate / (1 - law.rate)), np.log(law.decay), np.log(law.rank_exponent)])


def _law(theta: FloatArray) -> TreeLaw:
    return TreeLaw(float(_expit(theta[0])), float(np.exp(theta[1])), float(np.exp(theta[2])))


def _expit(score: Floats) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-np.clip(score, -30, 30))))


def _score(length: Floats, num_steps: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """logit((L − 1)/S), and what a relative error of L is on that scale; a cycle without drafts has neither."""
    steps, length = np.maximum(num_steps, 1), np.asarray(length)
    share = np.clip((length - 1) / steps, _ENDS, 1 - _ENDS)
    return np.log(share / (1 - share)), length / (steps * share * (1 - share))


def _in_shape(values: Floats, shape: tuple[int, ...]) -> Floats:
    shaped = np.reshape(values, shape)
    return float(shaped) if shaped.ndim == 0 else shaped
