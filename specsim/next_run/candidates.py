"""The measurements that a user could make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from specsim.cost.model import CostModel
from specsim.cost.terms import Cycle
from specsim.methods import method_named
from specsim.next_run.space import Kind, Space
from specsim.quantities import FloatArray, SpecConfig

WIDTHS = range(2, 17)
"""Chain widths that a user is offered: width 1 drafts nothing, so no engine is started with it."""


@dataclass(frozen=True)
class Candidate:
    """A measurement: which figure, of what (`spec` None is plain decode), its gradient and noise variance [ms²]."""

    kind: Kind
    spec: SpecConfig | None
    batch_size: int
    nccl: str
    gradient: FloatArray
    variance: float


@dataclass(frozen=True)
class Offer:
    """The configurations and batch sizes that may be measured; those asked about stand first."""

    specs: tuple[SpecConfig, ...]
    batches: tuple[int, ...]

    @classmethod
    def of(cls, model: CostModel, specs: Sequence[SpecConfig], batch_size: int) -> Self:
        """What is asked about, what was measured, and chains of WIDTHS."""
        method = specs[0].method
        steps = method_named(method).steps_bound_length
        chains = [SpecConfig(width - 1 if steps else 1, 1, width, method) for width in WIDTHS]
        seen = [SpecConfig(m.num_steps, m.topk, m.num_draft_tokens, m.method) for m in model.measured]
        plain = {int(batch) for setting in model.settings for batch in setting.decode_batches}
        others = sorted({*(m.batch_size for m in model.measured), *plain} - {batch_size})
        return cls(tuple(dict.fromkeys([*specs, *seen, *chains])), (batch_size, *others))


def candidates(space: Space, offer: Offer, stand_in: Callable[[Kind], float]) -> Iterator[Candidate]:
    """What can be measured of an offer under every NCCL setting.

    Cycles, their verify where that was timed, and baselines; a derived setting is no place to measure its base at. `stand_in` is the time [ms] of what nothing tells.
    """
    pairs = [(spec, batch) for batch in sorted(offer.batches) for spec in offer.specs]
    drafted = Cycle.stacked([space.cycle(spec, batch) for spec, batch in pairs])
    plain = [(None, batch) for batch in sorted(offer.batches)]
    steps = space.cycle(None, np.array(sorted(offer.batches)))
    derived = {each.label for each in space.model.derived}
    for setting in (each for each in space.model.settings if each.label not in derived):
        yield from measured_as(space, "decode", steps, plain, setting.label, stand_in)
        for kind in kinds(space.model, setting.label):
            yield from measured_as(space, kind, drafted, pairs, setting.label, stand_in)


def measured_as(
    space: Space,
    kind: Kind,
    cycle: Cycle,
    pairs: Sequence[tuple[SpecConfig | None, int]],
    nccl: str,
    stand_in: Callable[[Kind], float],
) -> Iterator[Candidate]:
    """Measurements of one kind under one setting, of cycles with their configurations and batch sizes."""
    times = space.times(kind, cycle, nccl)
    times = np.where(np.isnan(times), stand_in(kind), times)
    for (spec, batch), row, time in zip(pairs, space.gradient(kind, cycle, nccl), times, strict=True):
        yield Candidate(kind, spec, batch, nccl, row, float(space.model.noise.relative * time) ** 2)


def kinds(model: CostModel, nccl: str) -> tuple[Kind, ...]:
    """Verify alone only where the runs' instrument timed it; whole cycles always."""
    alone = "verify" in model.measured_phases and not model.setting(nccl).whole_cycles
    return ("verify", "cycle") if alone else ("cycle",)
