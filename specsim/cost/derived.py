"""An NCCL setting that was never run: a measured one, changed by what single all-reduces take under both (eq. 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specsim.cost.allreduce import MeasuredCurve, NcclPrior
from specsim.cost.custom_allreduce import CustomPath
from specsim.cost.step_change import Shape, beyond_cycle, beyond_decode, step_change
from specsim.cost.terms import Cycle
from specsim.quantities import BoolArray, FloatArray


@dataclass(frozen=True)
class Allowed:
    """How far off a predicted change of verify may be: between which multiples of it, and by so many µs an all-reduce."""

    least: float
    most: float
    us: float


ALONE, IN_FORWARDS, ACROSS = Allowed(0.75, 2.2, 5.5), Allowed(0.8, 1.25, 2.0), Allowed(0.8, 1.4, 5.5)
"""What intervals allow for: all-reduces measured alone; in forwards, both NCCL's, or beside drafts too; in forwards, of two implementations.

Two H200s with NVLink, messages within the tables (docs/accuracy.md, tests/validation/test_tensor_parallel.py). Measured changes of
0.2 ms or more of forwards were 0.50 to 2.68 times what all-reduces back to back say and 0.63 to 1.38 times what those in forwards say;
smaller ones were off by 5.4 and 1.5 µs an all-reduce at most. One of 524 lay outside what is allowed alone, by 0.01 ms, six of 368 outside
the second, all to vLLM's own between two sizes of the table: five at 192 tokens, where NCCL's default steps, one by 0.01 ms. A server's between NCCL's settings, where no load stood out and the host kept up, lay within the second, and so did those to the engine's own
all-reduce, 0.90 to 1.32 times what all-reduces beside drafts say; without drafts beside them they were up to 1.79 times what those in
forwards say, one of 33 outside the third.
"""

_CHANGES = {
    "verify": "verify_ms",
    "draft": "draft_ms",
    "extend": "extend_ms",
    "other": "launch_ms",
    "decode": "decode_ms",
}
"""What of a step's change goes to a phase."""


@dataclass(frozen=True)
class DerivedSetting:
    """How a setting differs from the measured one `base`: the curves of both, and which all-reduces a cycle has.

    Without `draft` the drafter communicates nothing; `extend_forwards`, `custom` and `gathered` as of `step_change`.
    """

    label: str
    base: str
    before: MeasuredCurve | NcclPrior
    after: MeasuredCurve | NcclPrior
    target: Shape
    draft: Shape | None = None
    extend_forwards: int = 0
    custom: tuple[CustomPath, ...] = ()
    gathered: bool = True

    @property
    def prior(self) -> bool:
        """Whether NCCL's own model stands in for a table."""
        return isinstance(self.before, NcclPrior) or isinstance(self.after, NcclPrior)

    @property
    def told_as(self) -> tuple[object, ...]:
        """What a sentence on it says beside its name; settings alike in it share one."""
        return self.base, self.prior, self.gathered, self.target.all_reduces, self.allowed

    @property
    def allowed(self) -> Allowed:
        """How far off the predicted change of verify is taken to be."""
        curves = [curve for curve in (self.before, self.after) if isinstance(curve, MeasuredCurve) and curve.in_forward]
        if len(curves) < 2:
            return ALONE
        beside = [curve.drafting for curve in curves if curve.drafting is not None and curve.drafting.launch_us]
        return IN_FORWARDS if self.gathered or (self.draft is not None and len(beside) == 2) else ACROSS

    @property
    def without_drafts(self) -> DerivedSetting:
        """The same by all-reduces in forwards alone."""
        before, after = (replace(curve, drafting=None) if isinstance(curve, MeasuredCurve) else curve
                         for curve in (self.before, self.after))  # fmt: skip
        return replace(self, before=before, after=after)

    def bounds_ms(self, change: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lowest and highest change of verify that its interval allows for where one is predicted [ms], shapes (n,)."""
        off = self.allowed.us * self.target.all_reduces / 1000.0
        ends = np.sort([self.allowed.least * change, self.allowed.most * change], axis=0)
        return np.minimum(ends[0], change - off), np.maximum(ends[1], change + off)

    def changes_ms(self, cycle: Cycle) -> dict[str, FloatArray]:
        """Change of each phase from the base setting [ms], shapes (n,) (eq. 17)."""
        change = step_change(self.before, self.after, cycle, self.target, self.draft, self.extend_forwards, self.custom,
                             self.gathered)  # fmt: skip
        return {phase: np.asarray(getattr(change, name), dtype=float) for phase, name in _CHANGES.items()}

    def beyond(self, cycle: Cycle) -> dict[str, BoolArray]:
        """Where all-reduces of verify, drafts or re-extend, and gathers of logits, lie outside either curve; shapes (n,)."""
        curves = (self.before, self.after)
        return self._named(*beyond_cycle(curves, cycle, self.target, self.draft, self.extend_forwards))

    def beyond_decode(self, cycle: Cycle) -> dict[str, BoolArray]:
        """Where plain decode's lie outside either curve; shapes (n,)."""
        return self._named(*beyond_decode((self.before, self.after), cycle, self.target))

    def _named(self, messages: BoolArray, logits: BoolArray) -> dict[str, BoolArray]:
        counted = self.gathered and (self.target.vocab_size or (self.draft and self.draft.vocab_size))
        return {"message_bytes": messages} | ({"logits_bytes": logits} if counted else {})


def never_run(alike: Sequence[DerivedSetting]) -> str:
    """The sentence that qualifies settings which are told alike."""
    first, names = alike[0], [each.label for each in alike]
    were = "was never run: it is" if len(alike) == 1 else "were never run: they are"
    how = "NCCL's own model, a PRIOR" if first.prior else "the all-reduce table"
    return (
        f"{'NCCL ' * first.gathered}{' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))} {were} {first.base} changed by {how}"
        f" ({first.target.all_reduces} all-reduces a forward, eq. 17); intervals allow for {first.allowed.least:g} to"
        f" {first.allowed.most:g} times its change of verify and {first.allowed.us:g} µs an all-reduce, as far as measured tables"
        " were off, and of plain decode and drafts for nothing"
    )
