"""What a configuration will do: its cycle by phases, its throughput, its speed-up (eq. 1–7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specsim.cost.communication import Estimate
from specsim.cost.model import CostModel, Readings
from specsim.cost.terms import PHASES, Cycle
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError
from specsim.quantities import BoolArray, FloatArray, Floats, SpecConfig, Workload
from specsim.uncertainty import quantile

Flags = bool | BoolArray
Shape = tuple[int, ...]


@dataclass(frozen=True)
class CycleCost:
    """The time of n cycles under one NCCL setting, as estimates: verify by reading, each phase, the sum."""

    nccl: str
    cycle: Cycle
    verify: Readings
    phases: dict[str, Estimate]
    total: Estimate
    readings: dict[str, Estimate]
    """The whole cycle by every reading of verify."""
    beyond_context: dict[str, BoolArray]
    """Where the asked context is not among the measured ones; empty where none is asked."""


def cycle_cost(model: CostModel, spec: SpecConfig, workload: Workload, nccl: str, shape: Shape) -> CycleCost:
    """Price cycles (eq. 1): verify by the setting's readings (section 6), drafting and the rest shared.

    Raises NotIdentifiedError where the runs leave verify open, UnknownSettingError for an unknown setting.
    """
    wide = replace(workload, batch_size=np.broadcast_to(workload.batch_size, shape))
    return price(model, model.cycle(spec, wide), nccl, workload.context_len is not None)


def price(model: CostModel, cycle: Cycle, nccl: str, context_asked: bool) -> CycleCost:
    """Price cycles as they stand (eq. 1); raises as `cycle_cost`."""
    verify, rest = model.verify(cycle, nccl), model.rest(cycle, nccl)
    phases = {"verify": verify.point, **{phase: model.phase(phase, cycle, nccl) for phase in PHASES[1:]}}
    readings = {name: reading + rest for name, reading in verify.by_name.items()}
    beyond_context = {"context_len": model.beyond_context("context_len", cycle.context_len)} if context_asked else {}
    return CycleCost(nccl, cycle, verify, phases, verify.point + rest, readings, beyond_context)


@dataclass(frozen=True)
class CycleTimes:
    """A predicted cycle in the caller's shape [ms]: sum, interval at quantities.LEVEL, phases, and labels.

    `verify_by_reading` holds the readings of an NCCL setting not measured at this width (empty when it was);
    the interval covers them all. `extrapolated_in` names what lies outside the measured range (eq. 14), `open_because`
    why the runs leave some cycles unknown (NaN); with `lower_bound` phases that no run measured are
    missing from it.
    """

    cycle_ms: Floats
    cycle_interval: tuple[Floats, Floats]
    verify_ms: Floats
    draft_ms: Floats
    extend_ms: Floats
    other_ms: Floats
    verify_by_reading: dict[str, Floats]
    extrapolated: Flags
    extrapolated_in: dict[str, Flags]
    open_because: str
    lower_bound: bool
    by_form: dict[str, Floats]
    """The cycle [ms] by every other form that the runs cannot exclude (eq. 13)."""

    @classmethod
    def of(cls, model: CostModel, cost: CycleCost, shape: Shape) -> CycleTimes:
        """The times of a priced cycle, with their interval (eq. 11)."""
        low, high = _interval(model, cost)
        beyond = {**model.beyond(cost.cycle, cost.nccl), **cost.beyond_context}
        outside = np.any([*beyond.values(), np.zeros(low.size, dtype=bool)], axis=0)
        read = cost.verify.by_name if cost.verify.read.any() else {}
        return cls(
            as_shape(cost.total.value, shape),
            (as_shape(low, shape), as_shape(high, shape)),
            **{f"{phase}_ms": as_shape(estimate.value, shape) for phase, estimate in cost.phases.items()},
            verify_by_reading={name: as_shape(reading.value, shape) for name, reading in read.items()},
            extrapolated=as_shape(outside, shape),
            extrapolated_in=in_shape(beyond, shape),
            open_because=cost.verify.open_because,
            lower_bound=model.lower_bound(cost.nccl),
            by_form={other.form: as_shape(_total(other.model, cost), shape) for other in model.alternatives},
        )


def _total(model: CostModel, cost: CycleCost) -> FloatArray:
    """The same cycles under another form of the model; NaN where that leaves them open."""
    try:
        return (model.verify(cost.cycle, cost.nccl).point + model.rest(cost.cycle, cost.nccl)).value
    except NotIdentifiedError:
        return np.full(cost.cycle.batch_size.shape, np.nan)


def _interval(model: CostModel, cost: CycleCost) -> tuple[FloatArray, FloatArray]:
    width = quantile(model.noise.residual_dof)
    reach = [(r.value, width * np.sqrt(r.variance(model.covariance_matrix))) for r in cost.readings.values()]
    low, high = np.min([v - w for v, w in reach], axis=0), np.max([v + w for v, w in reach], axis=0)
    return np.maximum(low, 0.0), high


@dataclass(frozen=True)
class Prediction:
    """What `predict` answers; scalars for scalar input, else arrays of the broadcast shape.

    Rates [tok/s]; intervals are (low, high) at quantities.LEVEL. `decode_ms` [ms], `baseline_tok_s` and
    `speedup` are NaN, and `no_baseline` says why, where there is no like-for-like baseline;
    `decode_extrapolated_in` says where it lies outside what was measured.
    """

    spec: SpecConfig
    workload: Workload
    nccl: str
    accept_length: Floats
    times: CycleTimes
    output_tok_s: Floats
    output_tok_s_interval: tuple[Floats, Floats]
    tok_s_per_user: Floats
    decode_ms: Floats
    baseline_tok_s: Floats
    speedup: Floats
    no_baseline: str
    decode_extrapolated_in: dict[str, Flags]


def predict(
    model: CostModel, spec: SpecConfig, workload: Workload, accept_length: Floats, nccl: str | None = None
) -> Prediction:
    """Throughput R = B·L/C (eq. 6) and speed-up L/L* (eq. 7) at an accept length, bonus included.

    Arguments broadcast; `nccl` None is the model's reference setting. Raises ConfigurationError for an accept
    length outside 1 … max_accept_length, NotIdentifiedError and UnknownSettingError as `cycle_cost`.
    """
    label = model.reference if nccl is None else nccl
    shape = common_shape(spec, workload, accept_length)
    length = flat(accept_length, shape)
    check_length(length, flat(spec.max_accept_length, shape))
    cost = cycle_cost(model, spec, workload, label, shape)
    times = CycleTimes.of(model, cost, shape)
    decode, outside, why = _decode_or_why(model, cost.cycle, label)
    tokens, cycle = cost.cycle.batch_size * length * 1000.0, cost.total.value
    low, high = (flat(end, shape) for end in times.cycle_interval)
    with np.errstate(divide="ignore"):  # a cycle whose interval reaches 0 has no upper bound on its rate
        slowest, fastest = tokens / high, tokens / low
    return Prediction(
        spec,
        workload,
        label,
        as_shape(length, shape),
        times,
        output_tok_s=as_shape(tokens / cycle, shape),
        output_tok_s_interval=(as_shape(slowest, shape), as_shape(fastest, shape)),
        tok_s_per_user=as_shape(length * 1000.0 / cycle, shape),
        decode_ms=as_shape(decode, shape),
        baseline_tok_s=as_shape(cost.cycle.batch_size * 1000.0 / decode, shape),
        speedup=as_shape(decode * length / cycle, shape),
        no_baseline=why,
        decode_extrapolated_in=in_shape(outside, shape),
    )


def _decode_or_why(model: CostModel, cycle: Cycle, nccl: str) -> tuple[FloatArray, dict[str, BoolArray], str]:
    """Plain decode, where it is extrapolated, and why some of it is missing."""
    try:
        decode = model.decode(cycle, nccl).value
    except MixedSetupError as error:
        return np.full(cycle.batch_size.shape, np.nan), {}, str(error)
    why = model.no_baseline_at(cycle, nccl) if np.isnan(decode).any() else ""
    return decode, decode_beyond(model, cycle, nccl, decode), why


def decode_beyond(model: CostModel, cycle: Cycle, nccl: str, decode: FloatArray) -> dict[str, BoolArray]:
    """Where plain decode is known and lies outside what was measured, by what it exceeds."""
    return {name: mask & ~np.isnan(decode) for name, mask in model.beyond_decode(cycle, nccl).items()}


def check_length(length: FloatArray, most: FloatArray) -> None:
    """Raise ConfigurationError unless every length lies between 1 and the most possible."""
    legal = (length >= 1) & (length <= most)
    if not legal.all():
        at = int(np.argmin(legal))
        raise ConfigurationError(
            f"accept_length {length[at]:g} is not possible: allowed is 1 to {most[at]:g}"
            " (bonus token included, at most num_steps + 1)"
        )


# -- shapes: the caller's on the outside, flat inside ------------------------------------------------------------


def common_shape(spec: SpecConfig, workload: Workload, *more: Any) -> Shape:
    """The shape that a configuration, a workload and further values broadcast to; () for plain numbers."""
    counts = (spec.num_steps, spec.topk, spec.num_draft_tokens, workload.batch_size, *more)
    shapes = [np.shape(count) for count in counts]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(map(str, shapes))
        raise ConfigurationError(
            f"configuration, batch_size and accept_length do not broadcast: shapes {listed}"
        ) from None


def flat(values: Any, shape: Shape) -> FloatArray:
    """Values at a shape, as one dimension of floats."""
    return np.broadcast_to(np.asarray(values, dtype=float), shape).reshape(-1)


def in_shape(masks: dict[str, BoolArray], shape: Shape) -> dict[str, Any]:
    """Masks in the caller's shape, those that hold somewhere."""
    return {name: as_shape(mask, shape) for name, mask in masks.items() if mask.any()}


def as_shape(values: Any, shape: Shape) -> Any:
    """A flat array in the caller's shape; a plain number where the caller gave plain numbers."""
    return np.reshape(values, shape) if shape != () else np.asarray(values).reshape(-1)[0].item()
