"""The terms that a cycle's time is a sum of, each linear in one coefficient (eq. 1–5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from specsim.cost.bare_forwards import BareForwards
from specsim.cost.graph_padding import graphs_known, is_captured, padded_draft_tokens, padded_tokens, single_launches
from specsim.methods import cycle_shape
from specsim.quantities import FloatArray, SpecConfig, Workload

PHASES = ("verify", "draft", "extend", "other")
"""The phases of a speculative cycle, in the order in which they are printed; plain decode is no part of it."""


@dataclass(frozen=True)
class Cycle:
    """Counts of n cycles, each a float array of shape (n,): what runs, before any time is put on it.

    `context_len` is the mean of a request's tokens in the KV cache, `eager` 1 where kernels are launched one by one
    (CUDA graphs off). `padded_verify`, `padded_draft` and `padded_decode` are the tokens that the captured graph runs, in the
    verify, in a draft forward of the branches and in plain decode of the same requests, `launches` what is launched beside graphs; `between_drafts`
    is 1 where a verify's graph runs between a drafter's; `bare_verify` and `bare_decode` are what a bare forward of their tokens takes [ms], NaN where none was given.
    """

    batch_size: FloatArray
    num_steps: FloatArray
    topk: FloatArray
    num_draft_tokens: FloatArray
    draft_forwards: FloatArray
    draft_tokens: FloatArray
    context_len: FloatArray
    eager: FloatArray
    padded_verify: FloatArray
    padded_draft: FloatArray
    padded_decode: FloatArray
    launches: FloatArray
    between_drafts: FloatArray
    bare_verify: FloatArray
    bare_decode: FloatArray

    @property
    def verify_tokens(self) -> FloatArray:
        """T = B·N (eq. 2)."""
        return self.batch_size * self.num_draft_tokens

    @property
    def kv_tokens(self) -> FloatArray:
        """B·c, what attention reads of the KV cache: the N tokens of a request share it (section 5)."""
        return self.batch_size * self.context_len

    @property
    def drafts(self) -> FloatArray:
        """1 where the cycle drafts at all, 0 for a bare target forward (num_steps 0)."""
        return np.where(self.num_steps > 0, 1.0, 0.0)

    @classmethod
    def of(cls, spec: SpecConfig, workload: Workload, engine: str | None, *, eager: bool = False) -> Cycle:
        """The cycles of a configuration under a workload, flattened to one dimension (eq. 3 for the drafts).

        A context that the workload does not state counts as 0.
        """
        parts = np.broadcast_arrays(workload.batch_size, spec.num_steps, spec.topk, spec.num_draft_tokens)
        batch, steps, topk, width = (np.ravel(part).astype(float) for part in parts)
        shape = cycle_shape(spec.method, engine)
        active = np.where(steps > 0, 1.0, 0.0)
        first = shape.width_forwards * active
        looped = np.zeros_like(steps) if shape.loop_offset is None else np.maximum(steps + shape.loop_offset, 0.0)
        context, launched = np.full(batch.shape, float(workload.context_len or 0)), np.full(batch.shape, float(eager))
        forwards, tokens = first + looped, batch * (first * width + looped * topk)
        drafted = (forwards > 0) | (shape.extend_forwards * active > 0)
        between = np.where(drafted, 1.0 - launched, 0.0)
        bare = np.full(batch.shape, np.nan)
        return cls(batch, steps, topk, width, forwards, tokens, context, launched,
                   batch * width, batch * topk, batch, np.zeros_like(batch), between, bare, bare)  # fmt: skip

    def captured(self, engine: str | None, version: str | None) -> Cycle:
        """The cycles in the graphs that an engine captures, and what it launches beside them, where graphs are on (`graph_padding`)."""
        batch, width, graphs = self.batch_size, self.num_draft_tokens, self.eager == 0
        verify = np.where(graphs, padded_tokens(batch, width, engine, version), self.verify_tokens)
        branches = batch * self.topk
        draft = np.where(graphs, padded_draft_tokens(batch, self.topk, width, engine, version), branches)
        decode = np.where(graphs, padded_tokens(batch, 1, engine, version, speculative=False), batch)
        held = is_captured(batch, width, engine, version) if graphs_known(engine) else np.ones(batch.shape, dtype=bool)
        between = np.where(held, self.between_drafts, 0.0)
        launches = np.where(between > 0, single_launches(self.draft_forwards, engine), 0.0)
        return replace(self, padded_verify=verify, padded_draft=draft, padded_decode=decode, launches=launches,
                       between_drafts=between)  # fmt: skip

    def over(self, bare: BareForwards) -> Cycle:
        """The cycles with what bare forwards of their tokens take."""
        verify, decode = bare.time_ms(self.verify_tokens), bare.time_ms(self.batch_size)
        return replace(self, bare_verify=verify, bare_decode=decode)

    @classmethod
    def stacked(cls, cycles: Sequence[Cycle]) -> Cycle:
        """Cycles one after the other as one."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(cycle, name) for cycle in cycles]) for name in names))


PLAIN = SpecConfig(0, 1, 1)
"""Plain decode as a configuration: one token a request, nothing drafted."""


@dataclass(frozen=True)
class Term:
    """One term: the coefficient's name, its phase and unit, what it means, its feature, and what the feature takes.

    With `by_setting` every NCCL setting has a coefficient of its own: what communicates. `parameters` name the
    numbers that shape the feature beside the cycle, none for most. What is `hosted` is the host's work where graphs
    are off: it runs beside what the device does, so that the phase takes the longer of the two sums.
    """

    name: str
    phase: str
    unit: str
    meaning: str
    feature: Callable[..., FloatArray]
    by_setting: bool = False
    parameters: tuple[str, ...] = ()
    hosted: bool = False


def _one(c: Cycle) -> FloatArray:
    return np.ones_like(c.batch_size)


def touched(tokens: FloatArray, share: float) -> FloatArray:
    """Share of the experts that so many tokens touch, each a share of them (MoESD, arXiv 2505.19645)."""
    return 1.0 - (1.0 - share) ** tokens


def _distinct(c: Cycle, overlap: float) -> FloatArray:
    """Tokens that as many would touch as much by whose experts do not overlap, B·(1 + (N − 1)(1 − overlap)).

    `overlap` is the share of a further token's experts that its request's other tokens have touched already.
    """
    return c.batch_size * (1.0 + (c.num_draft_tokens - 1.0) * (1.0 - overlap))


def _ramp(tokens: FloatArray, low: float, high: float) -> FloatArray:
    """From 0 at `low` to 1 at `high`: sums of ramps are a curve through measured points."""
    return np.clip((tokens - low) / (high - low), 0.0, 1.0)


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

KV_READ = {
    phase: Term(f"{phase}_kv_read_ms", phase, "ms/1000 tokens", "reading 1,000 more tokens of KV cache",
                lambda c: c.kv_tokens / 1000.0)
    for phase in ("verify", "decode")
}  # fmt: skip
"""Reading the KV cache, by phase: fitted where the contexts of the phase's runs differ."""

HOST = {
    phase: Term(f"{phase}_host_ms", phase, "ms", "launching kernels one by one", lambda c: c.eager, True, hosted=True)
    for phase in ("verify", "decode")
}
"""The host's time where graphs are off, by phase: fitted where the runs show the device hidden behind it."""

EAGER = {
    phase: Term(f"{phase}_eager_ms", phase, "ms", "gaps between kernels that no graph closes", lambda c: c.eager)
    for phase in ("verify", "decode")
}
"""What the device takes longer where graphs are off, by phase: fitted where runs show it with graphs on and off."""

PADDED = {
    "verify": Term("verify_per_padded_token_ms", "verify", "ms/token", "one more token of the captured graph",
                   lambda c: c.padded_verify, by_setting=True),
    "decode": Term("decode_per_padded_token_ms", "decode", "ms/token", "one more request of the captured graph",
                   lambda c: c.padded_decode, by_setting=True),
}  # fmt: skip
"""Per token of the captured graph instead of per token asked for, by phase: where runs show that graphs are padded."""

BARE = {
    "verify": Term("verify_bare_forwards", "verify", "of the curve", "bare forwards of as many tokens",
                   lambda c: c.bare_verify),
    "decode": Term("decode_bare_forwards", "decode", "of the curve", "bare forwards of as many requests",
                   lambda c: c.bare_decode),
}  # fmt: skip
"""The curve of bare forwards under a phase's other terms, by phase: where some were given."""


def _shapes() -> Iterator[Term]:
    """Knee, curve and expert coverage of a phase in its tokens; the curve of the host's time too."""
    counts: dict[str, tuple[str, Callable[[Cycle], FloatArray]]] = {
        "verify": ("token", lambda c: c.verify_tokens),
        "decode": ("request", lambda c: c.batch_size),
    }
    yield Term("verify_per_request_ms", "verify", "ms/request", "one more request at the same tokens",
               lambda c: c.batch_size)  # fmt: skip
    yield Term("draft_tree_step_ms", "draft", "ms/step", "one more step of a tree: choosing among its candidates, their mask",
               lambda c: c.num_steps * (c.topk > 1))  # fmt: skip
    yield Term("verify_overlapping_coverage_ms", "verify", "ms",
               "reading all experts: what so many tokens touch of them where those of a request route alike",
               lambda c, share, overlap: touched(_distinct(c, overlap), share),
               parameters=("share of experts a token uses", "overlap within a request"))  # fmt: skip
    for phase, (each, tokens) in counts.items():
        yield Term(f"{phase}_knee_ms", phase, "ms/token", f"one more {each} beyond the knee: kernel tiles, compute bound",
                   lambda c, knee, of=tokens: np.maximum(of(c) - knee, 0.0), parameters=(f"{each}s",))  # fmt: skip
        yield Term(f"{phase}_ramp_ms", phase, "ms", f"a step of the measured curve over {each}s",
                   lambda c, low, high, of=tokens: _ramp(of(c), low, high), parameters=("from", "to"))  # fmt: skip
        yield Term(f"{phase}_host_ramp_ms", phase, "ms", f"a step of the host's curve over {each}s",
                   lambda c, low, high, of=tokens: c.eager * _ramp(of(c), low, high),
                   parameters=("from", "to"), hosted=True)  # fmt: skip
        yield Term(f"{phase}_coverage_ms", phase, "ms",
                   f"reading all experts: what so many {each}s touch of them, concave and saturating",
                   lambda c, share, of=tokens: touched(of(c), share),
                   parameters=("share of experts a token uses",))  # fmt: skip


SHAPES = tuple(_shapes())
"""Terms that a fit adds only where the runs ask for them (section 5, eq. 13); NCCL settings share them."""

TERM_BY_NAME = {
    term.name: term
    for term in (
        *TERMS, *KV_READ.values(), *HOST.values(), *EAGER.values(), *PADDED.values(), *BARE.values(), *SHAPES,
    )
}  # fmt: skip
