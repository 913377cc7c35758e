"""What a model expects a load to measure, figure by figure, with the interval of a new measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from specsim.breakeven import break_even
from specsim.cost.model import CostModel
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError, UnknownSettingError
from specsim.evaluation import evaluate
from specsim.live.verdict import Expected
from specsim.quantities import SpecConfig, Workload
from specsim.questions import AcceptLength
from specsim.runs.run import Figure, Run
from specsim.uncertainty import difference_interval, quantile


@dataclass(frozen=True)
class Expectation:
    """A prediction, or why there is none; what it extrapolates over and in which fields model and server differ."""

    expected: Expected | None
    why: str = ""
    extrapolated_in: tuple[str, ...] = ()
    mixed_in: tuple[str, ...] = ()


def expected_time(model: CostModel, run: Run) -> Expectation:
    """The cycle of a run, or its plain decode [ms], with the interval of a new measurement (eq. 11).

    Setups that differ are allowed, and named: whether a prediction still holds elsewhere is what a check asks.
    """
    name = "cycle_ms" if run.spec is not None else "decode_ms"
    bare = replace(run, figures=MappingProxyType({name: Figure(1.0)}), workload=_asked(model, run), excluded="")
    try:
        found = evaluate(model, [bare], allow_mixed=True)
    except (NotIdentifiedError, MixedSetupError) as error:
        return Expectation(None, str(error).removeprefix(_NONE).strip().removeprefix(f"{run.id}: "))
    [only] = found.compared
    return Expectation(Expected(only.predicted, *only.interval), "", only.extrapolated_in, only.mixed_in)


def _asked(model: CostModel, run: Run) -> Workload:
    """The workload of a run, without its context where no run of the model states one: nothing is told by it."""
    stated = any(model.ranges.get(name) for name in ("context_len", "decode_context_len"))
    return run.workload if stated else replace(run.workload, context_len=None)


_NONE = "none of the runs can be held against this model:"


def expected_length(length: AcceptLength | None) -> Expectation:
    """An accept length that the model measured or the user states, as an expectation."""
    if length is None:
        return Expectation(None, "the model knows no accept length of this configuration (--accept-length)")
    reach = quantile(0) * length.error
    return Expectation(Expected(length.value, length.value - reach, length.value + reach))


def expected_rate(time: Expectation, length: Expected, batch_size: int) -> Expectation:
    """Throughput R = B·L/C [tok/s] (eq. 6), the relative reaches of both in squares; L is 1 for plain decode."""
    if time.expected is None:
        return time
    ratio = _quotient(length, time.expected)
    scale = batch_size * 1000.0
    return replace(time, expected=Expected(*(scale * end for end in (ratio.value, ratio.low, ratio.high))))


def expected_ratio(model: CostModel, run: Run, spec: SpecConfig) -> Expectation:
    """The break-even accept length C/t, whatever is possible, with Fieller's interval (eq. 7, 11)."""
    try:
        found = break_even(model, spec, _asked(model, run), run.nccl, allow_mixed=True)
    except (NotIdentifiedError, MixedSetupError, UnknownSettingError, ConfigurationError) as error:
        return Expectation(None, str(error))
    ends = [float(np.asarray(value)) for value in (found.cost_ratio, *found.interval)]
    if np.isnan(ends[0]):
        return Expectation(None, found.no_baseline or found.times.open_because)
    beyond = (*found.times.extrapolated_in, *found.decode_extrapolated_in)
    return Expectation(Expected(*ends), "", tuple(dict.fromkeys(beyond)), found.mixed)


def expected_margin(length: Expectation, ratio: Expectation) -> Expectation:
    """By how much the accept length exceeds the break-even, L − C/t."""
    lacking = length if length.expected is None else ratio
    if length.expected is None or ratio.expected is None:
        return lacking
    have, need = length.expected, ratio.expected
    low, high = difference_interval((have.value, have.low, have.high), (need.value, need.low, need.high))
    return replace(ratio, expected=Expected(have.value - need.value, float(low), float(high)))


def expected_speedup(length: Expectation, ratio: Expectation) -> Expectation:
    """L over the break-even, t·L/C (eq. 7)."""
    lacking = length if length.expected is None else ratio
    if length.expected is None or ratio.expected is None:
        return lacking
    return replace(ratio, expected=_quotient(length.expected, ratio.expected))


def _quotient(one: Expected, other: Expected) -> Expected:
    """One over the other, the relative reaches on each side in squares."""
    value = one.value / other.value
    down = np.hypot(1 - one.low / one.value, 1 - other.value / other.high)
    up = np.hypot(one.high / one.value - 1, other.value / other.low - 1 if other.low > 0 else np.inf)
    return Expected(value, float(value * (1 - down)), float(value * (1 + up)))


def expectations(
    model: CostModel, run: Run, length: AcceptLength | None, measured_length: float | None
) -> Mapping[str, Expectation]:
    """What the model expects of a run's figures, by name, without a baseline's.

    Without an accept length of its own the throughput is that at the measured one.
    """
    time, batch = expected_time(model, run), int(run.workload.batch_size)
    if run.spec is None:
        certain = Expected(1.0, 1.0, 1.0)
        return {"decode_ms": time, "output_tok_s": expected_rate(time, certain, batch)}
    have, ratio = expected_length(length), expected_ratio(model, run, run.spec)
    taken = have.expected or (Expected(*[measured_length] * 3) if measured_length else None)
    rate = Expectation(None, have.why) if taken is None else expected_rate(time, taken, batch)
    return {
        "cycle_ms": time,
        "accept_length": have,
        "output_tok_s": rate,
        "cost_ratio": ratio,
        "margin": expected_margin(have, ratio),
        "speedup": expected_speedup(have, ratio),
    }
