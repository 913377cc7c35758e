"""The terms that a cycle's time is a sum of, each linear in one coefficient (eq. 1–5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from specsim.methods import cycle_shape
from specsim.quantities import FloatArray, SpecConfig, Workload

PHASES = ("verify", "draft", "extend", "other")
"""The phases of a speculative cycle, in the order in which they are printed; plain decode is no part of it."""


@dataclass(frozen=True)
class Cycle:
    """Counts of n cycles, each a float array of shape (n,): what runs, before any time is put on it."""

    batch_size: FloatArray
    num_steps: FloatArray
    topk: FloatArray
    num_draft_tokens: FloatArray
    draft_forwards: FloatArray
    draft_tokens: FloatArray

    @property
    def verify_tokens(self) -> FloatArray:
        """T = B·N (eq. 2)."""
        return self.batch_size * self.num_draft_tokens

    @property
    def drafts(self) -> FloatArray:
        """1 where the cycle drafts at all, 0 for a bare target forward (num_steps 0)."""
        return np.where(self.num_steps > 0, 1.0, 0.0)

    @classmethod
    def of(cls, spec: SpecConfig, workload: Workload, engine: str | None) -> Cycle:
        """The cycles of a configuration under a workload, flattened to one dimension (eq. 3 for the drafts)."""
        parts = np.broadcast_arrays(workload.batch_size, spec.num_steps, spec.topk, spec.num_draft_tokens)
        batch, steps, topk, width = (np.ravel(part).astype(float) for part in parts)
        shape = cycle_shape(spec.method, engine)
        active = np.where(steps > 0, 1.0, 0.0)
        first = shape.width_forwards * active
        looped = np.zeros_like(steps) if shape.loop_offset is None else np.maximum(steps + shape.loop_offset, 0.0)
        return cls(batch, steps, topk, width, first + looped, batch * (first * width + looped * topk))

    @classmethod
    def stacked(cls, cycles: Sequence[Cycle]) -> Cycle:
        """Cycles one after the other as one."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(cycle, name) for cycle in cycles]) for name in names))


def plain_cycle(batch_size: FloatArray) -> Cycle:
    """Plain decode steps at n batch sizes, shape (n,): one token a request, nothing drafted."""
    one = np.ones_like(batch_size)
    return Cycle(batch_size, np.zeros_like(batch_size), one, one, np.zeros_like(batch_size), np.zeros_like(batch_size))


@dataclass(frozen=True)
class Term:
    """One term: the coefficient's name, its phase and unit, what it means, its feature, and what the feature takes.

    With `by_setting` every NCCL setting has a coefficient of its own: what communicates. `parameter` names the one
    number that shapes the feature beside the cycle, empty for most.
    """

    name: str
    phase: str
    unit: str
    meaning: str
    feature: Callable[..., FloatArray]
    by_setting: bool = False
    parameter: str = ""


def _one(c: Cycle) -> FloatArray:
    return np.ones_like(c.batch_size)


def _touched(tokens: FloatArray, share: float) -> FloatArray:
    """Share of the experts that so many tokens touch, each a share of them (MoESD, arXiv 2505.19645)."""
    return 1.0 - (1.0 - share) ** tokens


TERMS = (
    Term("verify_fixed_ms", "verify", "ms", "verify time whatever the tokens", _one, by_setting=True),
    Term(
        "verify_per_token_ms", "verify", "ms/token", "one more verify token", lambda c: c.verify_tokens, by_setting=True
    ),
    Term("other_fixed_ms", "other", "ms", "host, sampling, scheduling", _one),
    Term("draft_per_forward_ms", "draft", "ms/forward", "one draft forward", lambda c: c.draft_forwards),
    Term("draft_fixed_ms", "draft", "ms", "drafting whatever the steps", lambda c: c.drafts),
    Term("draft_per_token_ms", "draft", "ms/token", "one more token in the draft forwards", lambda c: c.draft_tokens),
    Term(
        "extend_per_token_ms", "extend", "ms/token", "re-extend of one more token", lambda c: c.drafts * c.verify_tokens
    ),
    Term("extend_fixed_ms", "extend", "ms", "re-extend whatever the tokens", lambda c: c.drafts),
    Term("decode_fixed_ms", "decode", "ms", "plain decode step whatever the batch", _one, by_setting=True),
    Term(
        "decode_per_token_ms",
        "decode",
        "ms/token",
        "one more request in plain decode",
        lambda c: c.batch_size,
        by_setting=True,
    ),
)
"""The terms that every fit tries to identify, in this order: an earlier one wins where two look alike."""

SHAPES = (
    Term("verify_per_request_ms", "verify", "ms/request", "one more request at the same tokens", lambda c: c.batch_size),
    Term("verify_knee_ms", "verify", "ms/token", "one more token beyond the knee: kernel tiles, compute bound",
         lambda c, knee: np.maximum(c.verify_tokens - knee, 0.0), parameter="tokens"),
    Term("verify_coverage_ms", "verify", "ms", "reading all experts: what T tokens touch of them, concave and saturating",
         lambda c, share: _touched(c.verify_tokens, share), parameter="share of experts a token uses"),
    Term("decode_knee_ms", "decode", "ms/token", "one more request beyond the knee",
         lambda c, knee: np.maximum(c.batch_size - knee, 0.0), parameter="requests"),
    Term("decode_coverage_ms", "decode", "ms", "reading all experts in plain decode",
         lambda c, share: _touched(c.batch_size, share), parameter="share of experts a token uses"),
)  # fmt: skip
"""Terms that a fit adds only where the runs ask for them (section 5, eq. 13); NCCL settings share them."""

TERM_BY_NAME = {term.name: term for term in (*TERMS, *SHAPES)}
