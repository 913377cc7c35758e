"""What accept length to expect of a configuration that was not run, and what a target length asks of the drafter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specsim.acceptance import AcceptanceLaw, TreeLaw, required_accept_rate
from specsim.acceptance.lengths import Lengths
from specsim.acceptance.mix import mixed_accept_length
from specsim.cost.model import MeasuredConfiguration
from specsim.errors import ConfigurationError, NotIdentifiedError
from specsim.fitting.acceptance import AcceptanceFit, LengthObservation, Observation, fit_acceptance
from specsim.fitting.lengths import acceptance_observations
from specsim.methods import method_named
from specsim.quantities import FloatArray, Floats, SpecConfig
from specsim.runs.run import RunSet
from specsim.uncertainty import quantile

_HALVINGS = 60
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Expected:
    """An expected accept length (bonus included) with its interval, beside what was measured there, if anything.

    `measured_survival` says that the length is the sum of measured survival, without a law. `required_accept_rate`
    and `required_first_rate` are set with a target: the constant rate of a chain that reaches it (eq. 9), and the
    law's first rate with decay and rank exponent held; NaN where nothing reaches it.
    """

    spec: SpecConfig
    accept_length: float
    interval: tuple[float, float]
    extrapolated: bool
    measured_survival: bool
    measured: float | None
    target_length: float | None = None
    required_accept_rate: float | None = None
    required_first_rate: float | None = None


@dataclass(frozen=True)
class Part:
    """One kind of work in a mix: its fitted law, its share of the output tokens, and what to say of it."""

    name: str
    weight: float
    fitted: AcceptanceFit
    notes: tuple[str, ...]


def fitted_part(name: str, runs: RunSet, weight: float = 1.0) -> Part:
    """Fit a law to the accept lengths, survival and counts of runs (section 7).

    Raises NotIdentifiedError when they say nothing of acceptance, MixedSetupError when of several drafters.
    """
    seen, notes = acceptance_observations(runs.runs)
    if not seen:
        told = f" ({'; '.join(notes)})" if notes else ""
        raise NotIdentifiedError(f"{name}: no run states an accept length, survival or counts{told}")
    fitted = fit_acceptance(seen)
    return Part(name, weight, fitted, (*fitted.notes, *notes))


def expected_lengths(part: Part, specs: Iterable[SpecConfig] | None, target: float | None = None) -> list[Expected]:
    """Expected accept length of each configuration; without any, of those that were measured (eq. 18, 20)."""
    asked = _measured_specs(part.fitted) if specs is None else specs
    return [_with_target(_expected(part.fitted, spec), part.fitted.law, target) for spec in asked]


def mixed_length(parts: Iterable[Part], spec: SpecConfig) -> Expected:
    """The accept length of a mix of work: cycles averaged over the parts' shares of tokens (eq. 22)."""
    parts = tuple(parts)
    each = [_expected(part.fitted, spec) for part in parts]
    width = quantile(0)
    lengths, weights = np.array([one.accept_length for one in each]), np.array([part.weight for part in parts])
    alike = any(part.fitted.not_identified for part in parts)  # then the parts err together, on the same prior
    ends = []
    for side in (0, 1):
        errors = np.array([abs(one.interval[side] - one.accept_length) / width for one in each])
        length, error = (float(value) for value in mixed_accept_length(lengths, errors, weights, together=alike))
        ends.append(length + (-width, width)[side] * error)
    low, high = max(ends[0], 1.0), min(ends[1], float(spec.max_accept_length))
    return Expected(spec, length, (low, high), any(one.extrapolated for one in each), False, None)


def _expected(fitted: AcceptanceFit, spec: SpecConfig) -> Expected:
    config = int(spec.num_steps), int(spec.topk), int(spec.num_draft_tokens)
    seen = [residual.observation for residual in fitted.residuals]
    measured = _measured_length(seen, config)
    by_survival = _from_survival(seen, config)
    if by_survival is not None:
        return Expected(spec, *by_survival, False, True, by_survival[0])
    length, low, high = (float(value) for value in fitted.predict(*config))
    floor = _counted_so_far(seen, config)
    length, low, high = (max(value, floor) for value in (length, low, high))
    return Expected(spec, length, (low, high), bool(fitted.is_extrapolated(*config)), False, measured)


def _counted_so_far(seen: list[Observation], config: tuple[int, int, int]) -> float:
    """The least that counted survival of a chain's shallower drafts leaves possible, at the low end of its sampling."""
    steps, topk, width = config
    shallower = [
        (o.num_steps, 1, o.num_steps + 1) for o in seen if o.topk == 1 and o.num_steps <= min(steps, width - 1)
    ]
    told = [found for chain in shallower if topk == 1 and (found := _from_survival(seen, chain)) is not None]
    return max((low for _, (low, _) in told), default=1.0)


def _measured_length(seen: list[Observation], config: tuple[int, int, int]) -> float | None:
    """Mean of the lengths that were measured at exactly this configuration, by survival where it was counted whole."""
    here = [o for o in seen if (o.num_steps, o.topk, o.num_draft_tokens) == config]
    found = [
        o.accept_length if isinstance(o, LengthObservation) else 1 + sum(o.survival)
        for o in here
        if isinstance(o, LengthObservation) or len(o.survival) == o.num_steps
    ]
    return float(np.mean(found)) if found else None


def _from_survival(seen: list[Observation], config: tuple[int, int, int]) -> tuple[float, tuple[float, float]] | None:
    """1 + Σ S_i of a chain no deeper than survival was counted, with its sampling interval (eq. 18)."""
    steps, topk, _ = config
    for o in seen:
        if isinstance(o, LengthObservation) or topk != 1 or o.topk != 1 or o.cycles is None or len(o.survival) < steps:
            continue
        survival = np.array(o.survival[:steps])
        length = 1 + float(survival.sum())
        second = float(((2 * np.arange(1, steps + 1) - 1) * survival).sum())  # E[J²] = Σ (2i − 1)·S_i
        reach = quantile(0) * float(np.sqrt(max(second - (length - 1) ** 2, 0.0) / o.cycles))
        return length, (max(length - reach, 1.0), min(length + reach, steps + 1.0))
    return None


def _measured_specs(fitted: AcceptanceFit) -> list[SpecConfig]:
    seen = [residual.observation for residual in fitted.residuals]
    return [SpecConfig(*config) for config in sorted({(o.num_steps, o.topk, o.num_draft_tokens) for o in seen})]


# -- what a law gives configurations -------------------------------------------------------------------------------


def drafted(spec: SpecConfig | MeasuredConfiguration) -> tuple[Any, Any, Any]:
    """Steps, topk and draft tokens as a law takes them: where steps are dummies, a chain as deep as it can be accepted."""
    if method_named(spec.method).steps_bound_length:
        return spec.num_steps, spec.topk, spec.num_draft_tokens
    return spec.num_draft_tokens - 1, np.ones_like(spec.num_draft_tokens)[()], spec.num_draft_tokens


def lengths_by(law: AcceptanceLaw | AcceptanceFit, spec: SpecConfig) -> tuple[FloatArray, Lengths | None]:
    """Accept lengths of n configurations, arrays of shape (n,), by a law, and what an uncertain one does not know of them.

    Raises ConfigurationError where the law gives a length that is not possible.
    """
    if not isinstance(law, AcceptanceFit):
        return _possible(law.accept_length(*drafted(spec)), spec), None
    lengths = law.lengths(*drafted(spec))
    return _possible(lengths.value, spec), lengths


def _possible(lengths: Floats, spec: SpecConfig) -> FloatArray:
    """The law's accept lengths, each between 1 and the most that its configuration allows."""
    length, most = np.broadcast_arrays(lengths, spec.max_accept_length)
    possible = abs(length - np.clip(length, 1, most)) <= _ROUNDING  # a law's last digit is no wrong length
    if not possible.all():
        at = int(np.argmin(possible))
        counts = (spec.num_steps, spec.topk, spec.num_draft_tokens)
        steps, topk, width = (int(np.asarray(count)[at]) for count in counts)
        raise ConfigurationError(
            f"the law gives an accept length of {length[at]:g} at num_steps {steps}, topk {topk},"
            f" num_draft_tokens {width}: allowed is 1 to {most[at]:g} (bonus token included)"
        )
    within: FloatArray = np.clip(length, 1.0, most)
    return within


# -- what a target asks -----------------------------------------------------------------------------------------


def _with_target(one: Expected, law: TreeLaw, target: float | None) -> Expected:
    if target is None:
        return one
    if not 1 <= target < np.inf:
        raise ConfigurationError(f"a target accept length is a number of at least 1 (bonus included), not {target:g}")
    chain = one.spec.topk == 1
    constant = float(required_accept_rate(target, int(one.spec.num_steps))) if chain else float("nan")
    return replace(
        one, target_length=target, required_accept_rate=constant, required_first_rate=_first_rate(one.spec, law, target)
    )


def _first_rate(spec: SpecConfig, law: TreeLaw, target: float) -> float:
    """The first-rank rate at which the law reaches a length, its decay and rank exponent held; NaN if never.

    The length never falls as the rate rises, so halving [0, 1] finds it.
    """

    def length(rate: float) -> float:
        return float(replace(law, rate=rate).accept_length(spec.num_steps, spec.topk, spec.num_draft_tokens))

    if length(1.0) < target:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) < target else (low, middle)
    return high
