"""An NCCL setting that was never run: a measured one, changed by what single all-reduces take under both (eq. 17)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.cost.allreduce import MeasuredCurve, NcclPrior
from specsim.cost.custom_allreduce import CustomPath
from specsim.cost.step_change import Shape, draft_forwards, step_change
from specsim.cost.terms import Cycle
from specsim.quantities import BoolArray, FloatArray

TABLES_FALL_SHORT = (1.0, 1.9)
"""Of all-reduces alone: a forward's change under Ring-Simple was up to 1.82 times the table's, on two H200s."""
FORWARDS_MISS = (0.8, 1.2)
"""Of all-reduces in a forward: a server's changes were 0.86 to 1.10 times the predicted ones, on two H200s."""

_COMMUNICATING = ("verify", "draft", "extend", "decode")


@dataclass(frozen=True)
class DerivedSetting:
    """How a setting differs from the measured one `base`: the curves of both, and which all-reduces a cycle has.

    Without `draft` the drafter communicates nothing; `extend_forwards` and `custom` as of `step_change`.
    """

    label: str
    base: str
    before: MeasuredCurve | NcclPrior
    after: MeasuredCurve | NcclPrior
    target: Shape
    draft: Shape | None = None
    extend_forwards: int = 0
    custom: tuple[CustomPath, ...] = ()

    @property
    def prior(self) -> bool:
        """Whether NCCL's own model stands in for a table."""
        return isinstance(self.before, NcclPrior) or isinstance(self.after, NcclPrior)

    @property
    def shares(self) -> tuple[float, float]:
        """Between which multiples of the table's change the true one lay, where both were measured (docs/accuracy.md)."""
        curves = (self.before, self.after)
        felt = all(isinstance(curve, MeasuredCurve) and curve.in_forward for curve in curves)
        return FORWARDS_MISS if felt else TABLES_FALL_SHORT

    def change_ms(self, phase: str, cycle: Cycle) -> FloatArray:
        """Change of a phase from the base setting [ms], shape (n,) (eq. 17); 0 for what does not communicate."""
        if phase not in _COMMUNICATING:
            return np.zeros_like(cycle.batch_size)
        change = step_change(self.before, self.after, cycle, self.target, self.draft, self.extend_forwards, self.custom)
        return np.asarray(getattr(change, f"{phase}_ms"), dtype=float)

    def beyond(self, cycle: Cycle) -> BoolArray:
        """Where messages of verify, drafts or re-extend lie outside either curve; shape (n,)."""
        outside = self._outside(self.target, cycle.verify_tokens)
        if self.draft is None:
            return outside
        wide, narrow = draft_forwards(cycle)
        full = (wide > 0) | ((cycle.num_steps > 0) & (self.extend_forwards > 0))
        outside = outside | (full & self._outside(self.draft, cycle.verify_tokens))
        return outside | ((narrow > 0) & self._outside(self.draft, cycle.batch_size * cycle.topk))

    def beyond_decode(self, cycle: Cycle) -> BoolArray:
        """Where plain decode's messages lie outside either curve; shape (n,)."""
        return self._outside(self.target, cycle.batch_size)

    def _outside(self, shape: Shape, tokens: FloatArray) -> BoolArray:
        size = shape.message_bytes(tokens)
        return np.asarray(self.before.beyond(size) | self.after.beyond(size))
