"""What an engine's steps take, as tables by batch size: decode cycles from the cost model, prefill by the token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from specsim.cost.model import CostModel
from specsim.cost.terms import PLAIN
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError
from specsim.prediction import price
from specsim.quantities import BoolArray, FloatArray, IntArray, SpecConfig, Workload
from specsim.simulation.policies import Policy

_COMPUTE_BOUND = 256  # tokens: below, a forward mostly reads weights or communicates, and its slope is no prefill's
_NARROW = ", too few to say what prompts take"
_BENT = 0.01  # of a cycle: more than the noise of one measurement


@final
@dataclass(frozen=True)
class StepTimes:
    """Cycle times by configuration and batch size: fixed_ms + kv_ms·(tokens of all requests in the KV cache) [ms].

    Arrays of shape (configurations, most + 1), in the order of `specs`, index 0 of the second axis unused;
    `extrapolated` marks what lies outside what was measured (eq. 14). `notes` qualify the times.
    """

    specs: tuple[SpecConfig, ...]
    fixed_ms: FloatArray
    kv_ms: FloatArray
    extrapolated: BoolArray
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: CostModel,
        policy: Policy,
        max_batch_size: int,
        contexts: tuple[float, float],
        nccl: str | None = None,
    ) -> Self:
        """Price every cycle that a policy can run (eq. 1, 5), with the KV read between the given mean contexts.

        Where no time of the model depends on the context, or one is asked of it, every cycle is priced at that one.
        Raises NotIdentifiedError where the runs leave a cycle open, MixedSetupError without a baseline.
        """
        label = model.reference if nccl is None else nccl
        reads = model.reads_context and model.asked_context is None and contexts[0] < contexts[1]
        rows = [_row(model, spec, max_batch_size, contexts if reads else None, label) for spec in policy.configurations]
        fixed, slope, beyond, bent = (np.stack(column) for column in zip(*rows, strict=True))
        fixed, slope, beyond = (np.pad(table, ((0, 0), (1, 0))) for table in (fixed, slope, beyond))
        notes = list(_notes(model, policy, max_batch_size, label))
        if bent.any():
            notes.append("a cycle's time is not linear in the context: its chord between the contexts stands for it")
        return cls(policy.configurations, fixed, slope, beyond, tuple(notes))

    @property
    def max_batch_size(self) -> int:
        """The largest batch that is priced."""
        return int(self.fixed_ms.shape[1]) - 1


Row = tuple[FloatArray, FloatArray, BoolArray, BoolArray]


def _row(model: CostModel, spec: SpecConfig, most: int, contexts: tuple[float, float] | None, nccl: str) -> Row:
    """Of one configuration by batch size: fixed time, time per token of cache, where extrapolated, where not linear."""
    batch = np.arange(1, most + 1, dtype=np.int64)
    if contexts is None:
        fixed, outside = _cycle_ms(model, spec, batch, None, nccl)
        return fixed, np.zeros_like(fixed), outside, np.zeros_like(outside)
    low, high = contexts
    (at_low, below), (at_high, above) = (_cycle_ms(model, spec, batch, context, nccl) for context in contexts)
    middle, _ = _cycle_ms(model, spec, batch, (low + high) / 2, nccl)
    slope = (at_high - at_low) / (high - low)
    bent = np.abs(middle - (at_low + at_high) / 2) > _BENT * middle
    return at_low - slope * low, slope / batch, below | above, bent


def _notes(model: CostModel, policy: Policy, most: int, nccl: str) -> Iterator[str]:
    """What qualifies the cycles of the configurations that draft."""
    if policy.deepest is None:
        return
    if model.lower_bound(nccl):
        yield f"{', '.join(model.unmeasured_phases)} not measured: cycles are lower bounds, and so are their latencies"
    for spec in policy.drafting:
        cycle = model.cycle(spec, Workload(np.arange(1, most + 1, dtype=np.int64)))
        verify = model.verify(cycle, nccl)
        if verify.read.any():
            times = sorted(float(reading.value[-1]) for reading in verify.by_name.values())
            yield (
                f"NCCL {nccl} at {spec.num_draft_tokens} draft tokens was not measured at every batch: verify reads as"
                f" {times[0]:.2f} to {times[-1]:.2f} ms at batch {most}, the middle is simulated"
            )


def _cycle_ms(
    model: CostModel, spec: SpecConfig, batch: IntArray, context: float | None, nccl: str
) -> tuple[FloatArray, BoolArray]:
    """Time of a configuration's cycles [ms] and where it is extrapolated, shape of `batch`."""
    if spec == PLAIN:
        cycle = model.plain_cycle(batch.astype(float), None if context is None else np.full(batch.shape, context))
        times, outside = model.decode(cycle, nccl).value, model.beyond_decode(cycle, nccl)
        if np.isnan(times).any():
            raise NotIdentifiedError(
                f"{model.no_baseline_at(cycle, nccl)}, or serve no more at once than was measured (max_batch_size)"
            )
    else:
        workload = Workload(batch, None if context is None else round(context))
        cost = price(model, model.cycle(spec, workload), nccl, context_asked=False)
        times, outside = cost.total.value, model.beyond(cost.cycle, nccl)
        if np.isnan(times).any():
            raise NotIdentifiedError(cost.verify.open_because)
    return times, np.any([*outside.values(), np.zeros(batch.shape, dtype=bool)], axis=0)


@final
@dataclass(frozen=True)
class Prefill:
    """What prompts take [ms]: per token, and a step's fixed time where nothing is decoded beside them.

    `assumed` says what they rest on where nobody measured them.
    """

    fixed_ms: float
    ms_per_token: float
    assumed: str = ""

    def __post_init__(self) -> None:
        if not (0 <= self.fixed_ms < np.inf and 0 <= self.ms_per_token < np.inf):
            raise ConfigurationError("prefill times are finite and at least 0")

    @classmethod
    def of(cls, model: CostModel, nccl: str | None = None, ms_per_1000_tokens: float | None = None) -> Self:
        """Prefill as stated, else at verify's slope over the upper half of the widths that were measured.

        The fixed time is that of a plain decode step of one request, which reads the weights as well; without a
        baseline that of verify at the narrowest width measured.
        """
        label = model.reference if nccl is None else nccl
        low, high = model.span("verify_tokens", label)
        fixed = _narrowest_ms(model, label, low)
        if ms_per_1000_tokens is not None:
            return cls(fixed, ms_per_1000_tokens / 1000.0)
        low = max(low, high / 2)
        if not low < high:
            raise NotIdentifiedError(
                "one verify width does not tell what a token costs: state prefill (--prefill-ms-per-1000-tokens)"
            )
        verify = model.verify(model.verify_cycle(np.ones(2), np.array([low, high]), drafting=False), label).point.value
        slope = max(float(verify[1] - verify[0]) / (high - low), 0.0)
        why = (
            f"prefill was not measured: ASSUMED are {1000 * slope:.4g} ms per 1,000 tokens, verify's slope from {low:g} to"
            f" {high:g} tokens{_NARROW if high < _COMPUTE_BOUND else ''}; state what it takes (--prefill-ms-per-1000-tokens)"
        )
        return cls(fixed, slope, why)


def _narrowest_ms(model: CostModel, nccl: str, width: float) -> float:
    """A forward that does little but read the weights [ms]."""
    with suppress(MixedSetupError):
        decode = float(model.decode(model.plain_cycle(np.ones(1)), nccl).value[0])
        if np.isfinite(decode):
            return decode
    return float(model.verify(model.verify_cycle(np.ones(1), np.array([width]), drafting=False), nccl).point.value[0])
