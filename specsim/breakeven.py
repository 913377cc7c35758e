"""The accept length that a configuration needs to pay, and whether it can be had (eq. 7–11)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specsim.acceptance import required_accept_rate
from specsim.cost.communication import Estimate
from specsim.cost.model import CostModel
from specsim.cost.terms import Cycle
from specsim.errors import ConfigurationError, MixedSetupError
from specsim.prediction import (
    CycleCost,
    CycleTimes,
    Flags,
    as_shape,
    check_length,
    common_shape,
    cycle_cost,
    decode_beyond,
    flat,
    in_shape,
)
from specsim.quantities import LEVEL, BoolArray, FloatArray, Floats, Ints, SpecConfig, Workload
from specsim.uncertainty import probability_positive, quantile, ratio_interval

PAYS = "pays"
LOSES = "does not pay"
UNDECIDED = "undecided"
IMPOSSIBLE = "no accept length breaks even"
OPEN = "not told by these runs"


@dataclass(frozen=True)
class Verdict:
    """Whether an accept length pays (eq. 7, 10), in the caller's shape.

    `probability_pays` is the chance that it exceeds C/t, by whichever reading of the NCCL setting is least
    decided; `verdict` is PAYS or LOSES where that leaves the tail outside a LEVEL interval (never where no run tells
    what so long a context costs the baseline), IMPOSSIBLE where no length can, OPEN where the runs do not tell, else
    UNDECIDED. Where the cycle is a lower bound, the chance and the speed-up are upper bounds, and PAYS cannot be said.
    The affordable times [ms] are the cycle, and its verify, that this length pays for.
    """

    accept_length: Floats
    speedup: Floats
    probability_pays: Floats
    verdict: Any
    affordable_cycle_ms: Floats
    affordable_verify_ms: Floats


@dataclass(frozen=True)
class BreakEven:
    """What `break_even` answers; scalars for scalar input, else arrays of the broadcast shape.

    `cost_ratio` is C/t whatever is possible; `break_even_accept_length` is the same where it is at most
    `max_accept_length`, NaN where no accept length breaks even. `interval` belongs to the ratio, at
    quantities.LEVEL, over all readings of an NCCL setting (`by_reading`); `required_accept_rate` is eq. 9's, of a
    chain (NaN for a tree).
    `mixed_in` names the fields in which the two sides differ, and where; empty is like for like. Values are NaN
    where the runs tell no cycle or no baseline (`no_baseline` says why); `decode_extrapolated_in` says
    where the baseline lies outside what was measured.
    """

    spec: SpecConfig
    workload: Workload
    nccl: str
    baseline_nccl: str
    break_even_accept_length: Floats
    cost_ratio: Floats
    interval: tuple[Floats, Floats]
    by_reading: dict[str, Floats]
    max_accept_length: Ints
    feasible: Flags
    required_accept_rate: Floats
    decode_ms: Floats
    times: CycleTimes
    mixed_in: dict[str, Flags]
    no_baseline: str
    decode_extrapolated_in: dict[str, Flags]
    verdict: Verdict | None

    @property
    def mixed(self) -> tuple[str, ...]:
        """Names of the fields that differ somewhere."""
        return tuple(self.mixed_in)


def break_even(
    model: CostModel,
    spec: SpecConfig,
    workload: Workload,
    nccl: str | None = None,
    *,
    accept_length: Floats | None = None,
    accept_length_error: Floats = 0.0,
    baseline_nccl: str | None = None,
    allow_mixed: bool = False,
) -> BreakEven:
    """Break-even accept length L* = C/t (eq. 7) with Fieller's interval (eq. 11), and the verdict on a length.

    Arguments broadcast. `nccl` None is the model's reference setting, `baseline_nccl` None the same as `nccl`;
    `accept_length_error` is a standard error. Raises MixedSetupError when no baseline is like for like and that is
    not allowed, ConfigurationError for an accept length that is not possible, NotIdentifiedError and
    UnknownSettingError as `cycle_cost`.
    """
    label = model.reference if nccl is None else nccl
    shape = common_shape(spec, workload, 1.0 if accept_length is None else accept_length, accept_length_error)
    cost = cycle_cost(model, spec, workload, label, shape)
    baseline = Baseline.find(model, cost.cycle, label, baseline_nccl, allow_mixed)
    decode, most = baseline.decode.value, flat(spec.max_accept_length, shape)
    ratio = cost.total.value / decode
    feasible, chain = ratio <= most, flat(spec.topk, shape) == 1
    low, high = _interval(model, cost, baseline.decode)
    beyond = decode_beyond(model, cost.cycle, baseline.nccl, decode)
    verdict = None
    if accept_length is not None:
        length, error = flat(accept_length, shape), flat(accept_length_error, shape)
        check_length(length, most)
        if not (error >= 0).all():
            raise ConfigurationError("the standard error of an accept length is a number of at least 0")
        untold = beyond.get("decode_context_len", np.zeros_like(feasible))
        verdict = _verdict(model, cost, baseline.decode, length, error, (feasible, untold), shape)
    return BreakEven(
        spec,
        workload,
        label,
        baseline.nccl,
        break_even_accept_length=as_shape(np.where(feasible, ratio, np.nan), shape),
        cost_ratio=as_shape(ratio, shape),
        interval=(as_shape(low, shape), as_shape(high, shape)),
        by_reading=_by_reading(cost, decode, shape),
        max_accept_length=as_shape(most.astype(np.int64), shape),
        feasible=as_shape(feasible, shape),
        required_accept_rate=as_shape(np.where(chain, required_accept_rate(ratio, most - 1), np.nan), shape),
        decode_ms=as_shape(decode, shape),
        times=CycleTimes.of(model, cost, shape),
        mixed_in=in_shape(baseline.mixed, shape),
        no_baseline=baseline.why,
        decode_extrapolated_in=in_shape(beyond, shape),
        verdict=verdict,
    )


# -- the other side of the comparison ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Baseline:
    """The plain decode that cycles are compared with (NaN where there is none, and why), and where the two differ."""

    nccl: str
    decode: Estimate
    mixed: dict[str, BoolArray]
    why: str

    @classmethod
    def find(cls, model: CostModel, cycle: Cycle, nccl: str, asked: str | None, allow_mixed: bool) -> Baseline:
        """The baseline of cycles under `nccl`: the asked setting's, else its own, else one that mixing allows.

        Raises MixedSetupError where none of the cycles has one.
        """
        label = nccl if asked is None else asked
        everywhere = np.ones(cycle.batch_size.shape, dtype=bool)
        differ = dict.fromkeys(model.mixed, everywhere)
        if model.setting(label).label != nccl:
            if not allow_mixed:
                raise MixedSetupError(
                    f"the cycle is under NCCL setting {nccl!r} and the baseline under {label!r}: they differ in nccl;"
                    f" compare like for like{_OR_MIXED}",
                    ("nccl",),
                )
            differ["nccl"] = everywhere
        try:
            decode = model.decode(cycle, label)
        except MixedSetupError as error:
            if not allow_mixed:
                raise MixedSetupError(f"{error}{_OR_MIXED}", error.fields) from None
            if "nccl" in error.fields:
                return cls.find(model, cycle, nccl, _only_other(model, error), allow_mixed)
            return cls(label, _nearest_batch(model, cycle, label), {**differ, "batch_size": everywhere}, "")
        return cls(label, decode, differ, "")._filled(model, cycle, allow_mixed)

    def _filled(self, model: CostModel, cycle: Cycle, allow_mixed: bool) -> Baseline:
        """The nearest measured batch size where this one has no baseline, if that is allowed."""
        missing = np.isnan(self.decode.value)
        if not missing.any():
            return self
        if not allow_mixed:
            return replace(self, why=model.no_baseline_at(cycle, self.nccl))
        nearest = _nearest_batch(model, cycle, self.nccl)
        filled = Estimate(
            np.where(missing, nearest.value, self.decode.value),
            np.where(missing[:, None], nearest.gradient, self.decode.gradient),
        )
        return replace(self, decode=filled, mixed={**self.mixed, "batch_size": missing})


_OR_MIXED = ", or allow a mixed comparison (--allow-mixed)"


def _only_other(model: CostModel, error: MixedSetupError) -> str:
    """The one setting whose baseline can stand in; raises where there is none, or a choice."""
    others = [setting.label for setting in model.settings if setting.decode_batches]
    if len(others) != 1:
        which = "; say which may stand in (--baseline-nccl)" if others else ""
        raise MixedSetupError(f"{error}{which}", error.fields) from None
    return others[0]


def _nearest_batch(model: CostModel, cycle: Cycle, nccl: str) -> Estimate:
    """The baseline at the measured batch size nearest to each cycle's."""
    batches = np.array(model.setting(nccl).decode_batches)
    nearest = batches[np.argmin(np.abs(cycle.batch_size[:, None] - batches), axis=1)]
    return model.decode(model.plain_cycle(nearest, cycle.context_len), nccl)


# -- uncertainty of the ratio ------------------------------------------------------------------------------------


def _variances(model: CostModel, cycle: Estimate, decode: Estimate) -> tuple[FloatArray, FloatArray, FloatArray]:
    covariance = model.covariance_matrix
    return cycle.variance(covariance), decode.variance(covariance), cycle.covariance_with(decode, covariance)


def _interval(model: CostModel, cost: CycleCost, decode: Estimate) -> tuple[FloatArray, FloatArray]:
    """Fieller's interval of C/t, widened over the readings of the setting."""
    half_width = quantile(model.noise.residual_dof)
    ends = [
        ratio_interval(cycle.value, decode.value, _variances(model, cycle, decode), half_width)
        for cycle in cost.readings.values()
    ]
    return np.min([low for low, _ in ends], axis=0), np.max([high for _, high in ends], axis=0)


def _by_reading(cost: CycleCost, decode: FloatArray, shape: tuple[int, ...]) -> dict[str, Floats]:
    if not cost.verify.read.any():
        return {}
    return {name: as_shape(cycle.value / decode, shape) for name, cycle in cost.readings.items()}


def _probability(
    model: CostModel, cost: CycleCost, decode: Estimate, length: FloatArray, error: FloatArray
) -> FloatArray:
    """P(L > C/t) by the least decided reading; one half where the readings disagree on the sign."""
    chances = np.array([_chance(model, cycle, decode, length, error) for cycle in cost.readings.values()])
    ahead = length * decode.value > cost.total.value
    chance: FloatArray = np.where(ahead, np.maximum(chances.min(axis=0), 0.5), np.minimum(chances.max(axis=0), 0.5))
    return np.where(np.isnan(cost.total.value * decode.value), np.nan, chance)


def _chance(model: CostModel, cycle: Estimate, decode: Estimate, length: FloatArray, error: FloatArray) -> FloatArray:
    var_cycle, var_decode, shared = _variances(model, cycle, decode)
    # L > C/t exactly where L·t − C > 0: linear in the coefficients, so no ratio needs expanding
    gap = length * decode.value - cycle.value
    spread = np.sqrt(
        np.maximum(length**2 * var_decode - 2 * length * shared + var_cycle, 0.0) + (error * decode.value) ** 2
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(spread > 0, gap / spread, np.where(gap == 0, 0.0, np.copysign(np.inf, gap)))
    scalar = float(score[0]) if score.size == 1 else score
    chance: FloatArray = np.reshape(probability_positive(scalar, model.noise.residual_dof), score.shape)
    return chance


def _verdict(
    model: CostModel,
    cost: CycleCost,
    decode: Estimate,
    length: FloatArray,
    error: FloatArray,
    masks: tuple[BoolArray, BoolArray],
    shape: tuple[int, ...],
) -> Verdict:
    """The verdict where a length can pay at all (the first mask), and the baseline's context is told (not the second)."""
    feasible, untold = masks
    pays = _probability(model, cost, decode, length, error)
    sure = (1 + LEVEL) / 2
    ahead = UNDECIDED if model.lower_bound(cost.nccl) else PAYS
    words = np.where(pays >= sure, ahead, np.where(pays <= 1 - sure, LOSES, UNDECIDED))
    words = np.where(feasible, words, IMPOSSIBLE)
    words = np.where(untold, UNDECIDED, words)
    words = np.where(np.isnan(pays), OPEN, words)
    afford = length * decode.value
    rest = cost.total.value - cost.verify.point.value
    return Verdict(
        as_shape(length, shape),
        as_shape(afford / cost.total.value, shape),
        as_shape(pays, shape),
        as_shape(words, shape),
        as_shape(afford, shape),
        as_shape(afford - rest, shape),
    )
