"""What another all-reduce does to the forwards of a cycle (eq. 17)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.cost.allreduce import AllReduceCurve, MeasuredCurve
from specsim.cost.custom_allreduce import CustomPath, carried_by_custom
from specsim.cost.terms import Cycle
from specsim.errors import ConfigurationError
from specsim.quantities import BoolArray, FloatArray, Floats


@dataclass(frozen=True)
class Shape:
    """What decides a tensor-parallel forward's messages: layers, hidden size, bytes of an element, and their number.

    Two all-reduces a layer, after attention and after the feed-forward block. Where the vocabulary is split over the
    GPUs, as vLLM and SGLang do, `vocab_size` adds the embedding's all-reduce and the gather of the logits.
    """

    layers: int
    hidden_size: int
    bytes_per_element: int = 2
    per_layer: int = 2
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "bytes_per_element", "per_layer", "vocab_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")

    @property
    def all_reduces(self) -> int:
        """How many a forward has, n of eq. 17."""
        return self.per_layer * self.layers + (self.vocab_size is not None)

    def message_bytes(self, tokens: Floats) -> Floats:
        """Size T·h·b of a message [bytes], at the tokens' shape (eq. 17)."""
        return tokens * (self.hidden_size * self.bytes_per_element)

    def logits_bytes(self, positions: Floats) -> Floats:
        """Size P·v·b of the logits that are gathered for so many positions [bytes], at their shape; 0 without a vocabulary."""
        return positions * ((self.vocab_size or 0) * self.bytes_per_element)


def forward_ms(curve: AllReduceCurve, shape: Shape, tokens: Floats) -> Floats:
    """All-reduce time n·a_s(T·h·b) of one forward of T tokens [ms], at the tokens' shape (eq. 17)."""
    return curve.time_us(shape.message_bytes(tokens)) * (shape.all_reduces / 1000.0)


def gathers(curves: tuple[AllReduceCurve, ...]) -> tuple[tuple[AllReduceCurve, float], ...]:
    """The curve that a gather is read off under each setting, and its share of that (eq. 17).

    Gathers themselves where they were measured under all of the settings. Else half of an all-reduce under each: that is
    a reduction to parts and a gather of them, each of as many steps and bytes; a start of its own makes a gather dearer than that.
    """
    measured = [curve.gather for curve in curves if isinstance(curve, MeasuredCurve) and curve.gather is not None]
    if len(measured) == len(curves):
        return tuple((curve, 1.0) for curve in measured)
    return tuple((curve, 0.5) for curve in curves)


def gathers_measured(*curves: AllReduceCurve) -> bool:
    """Whether gathers of logits were measured under all of these settings."""
    return all(share == 1 for _, share in gathers(curves))


def gather_ms(curves: tuple[AllReduceCurve, ...], shape: Shape, positions: Floats) -> tuple[Floats, ...]:
    """Time in which the logits of P positions are gathered under each setting [ms], at the positions' shape (eq. 17)."""
    if shape.vocab_size is None:
        return tuple(positions * 0.0 for _ in curves)
    size = shape.logits_bytes(positions)
    return tuple(curve.time_us(size) * (share / 1000.0) for curve, share in gathers(curves))


def forward_change_ms(
    before: AllReduceCurve,
    after: AllReduceCurve,
    shape: Shape,
    tokens: Floats,
    custom: tuple[CustomPath, ...] = (),
) -> Floats:
    """Change of the all-reduces of a forward of T tokens [ms] from one setting to another, at the tokens' shape (eq. 17).

    n·(a_after(T·h·b) − a_before(T·h·b)), 0 where a custom all-reduce carries the message under both.
    """
    change = forward_ms(after, shape, tokens) - forward_ms(before, shape, tokens)
    kept = np.where(carried_by_custom(custom, shape.message_bytes(tokens)), 0.0, change)
    return float(kept) if np.ndim(tokens) == 0 else kept


def in_cycles(curves: tuple[AllReduceCurve, ...], draft: Shape | None) -> tuple[AllReduceCurve, ...]:
    """The curves that a drafting cycle's all-reduces are read off (eq. 17).

    Those of forwards between a drafter's graphs, where that was measured under all of the settings and the drafter
    communicates: by default NCCL's all-reduces take longer there, another implementation's do not.
    """
    beside = [curve.drafting for curve in curves if isinstance(curve, MeasuredCurve) and curve.drafting is not None]
    return tuple(beside) if draft is not None and len(beside) == len(curves) else curves


def launch_change_ms(before: AllReduceCurve, after: AllReduceCurve, launches: FloatArray) -> FloatArray:
    """Change of so many single launches [ms], at their shape; 0 where those were not measured under both (eq. 17)."""
    each = [curve.launch_us for curve in (before, after) if isinstance(curve, MeasuredCurve) and curve.launch_us]
    return launches * ((each[1] - each[0]) / 1000.0 if len(each) == 2 else 0.0)


@dataclass(frozen=True)
class StepChange:
    """Changes of n cycles by phase and of plain decode at their batch sizes [ms], each of shape (n,) (eq. 17).

    `launch_ms` is what single launches between forwards take more. `extrapolated` and `logits_extrapolated` say where an
    all-reduce or a gather of logits of the cycle or of decode lies outside either curve, `custom` where verify's is carried by
    a custom all-reduce.
    """

    verify_ms: FloatArray
    draft_ms: FloatArray
    extend_ms: FloatArray
    launch_ms: FloatArray
    decode_ms: FloatArray
    extrapolated: BoolArray
    logits_extrapolated: BoolArray
    custom: BoolArray

    @property
    def cycle_ms(self) -> FloatArray:
        """Verify, draft, re-extend and single launches together; the rest of a cycle does not depend on all-reduces."""
        return self.verify_ms + self.draft_ms + self.extend_ms + self.launch_ms


def step_change(
    before: AllReduceCurve,
    after: AllReduceCurve,
    cycle: Cycle,
    target: Shape,
    draft: Shape | None = None,
    extend_forwards: int = 0,
    custom: tuple[CustomPath, ...] = (),
    gathered: bool = True,
) -> StepChange:
    """What going from one setting to another does to n cycles and to plain decode (eq. 17).

    Without `draft` the drafter communicates nothing (it runs on one GPU, or is a lookup); its forwards are those of
    eq. 3, and `extend_forwards` of T tokens after the verify (eq. 4). Messages have the tokens that graphs are padded to
    (`Cycle.captured`), and so have a draft's logits; those of verify and decode are sampled of the tokens alone. Logits are
    `gathered` under both by NCCL, else not counted: a kernel that only reduces says nothing of it. Cycles that draft are told
    by what was measured between drafts, where it was (`in_cycles`).
    """
    curves = (before, after)
    beside, between = in_cycles(curves, draft), cycle.between_drafts > 0

    def change(of: tuple[AllReduceCurve, ...], shape: Shape, tokens: FloatArray, positions: FloatArray) -> FloatArray:
        reduced = np.asarray(forward_change_ms(of[0], of[1], shape, tokens, custom))
        first, then = gather_ms(curves, shape, positions)
        return reduced + (then - first if gathered else 0.0)

    def in_cycle(shape: Shape, tokens: FloatArray, positions: FloatArray) -> FloatArray:
        return np.where(between, *(change(of, shape, tokens, positions) for of in (beside, curves)))

    nothing = np.zeros_like(cycle.batch_size)
    drafted = extended = nothing
    if draft is not None:
        wide, narrow = draft_forwards(cycle)
        whole = in_cycle(draft, cycle.padded_verify, last_positions(cycle))
        drafted = wide * whole + narrow * in_cycle(draft, cycle.padded_draft, cycle.padded_draft)
        extended = extend_forwards * cycle.drafts * whole
    carried = carried_by_custom(custom, np.asarray(target.message_bytes(cycle.padded_verify)))
    messages, logits = beyond_cycle(curves, cycle, target, draft, extend_forwards)
    decode_messages, decode_logits = beyond_decode(curves, cycle, target)
    return StepChange(
        in_cycle(target, cycle.padded_verify, cycle.verify_tokens),
        drafted,
        extended,
        np.where(carried, 0.0, launch_change_ms(beside[0], beside[1], cycle.launches)),
        change(curves, target, cycle.padded_decode, cycle.batch_size),
        messages | decode_messages,
        (logits | decode_logits) & gathered,
        carried,
    )


def beyond_cycle(
    curves: tuple[AllReduceCurve, ...], cycle: Cycle, target: Shape, draft: Shape | None, extend_forwards: int
) -> tuple[BoolArray, BoolArray]:
    """Where a cycle's all-reduces, and where its gathers of logits, lie outside any of the curves; shapes (n,)."""
    between, beside = cycle.between_drafts > 0, in_cycles(curves, draft)
    everywhere = np.ones(cycle.batch_size.shape, dtype=bool)
    forwards = [(everywhere, target, cycle.padded_verify, cycle.verify_tokens)]
    if draft is not None:
        wide, narrow = draft_forwards(cycle)
        whole = (wide > 0) | ((cycle.num_steps > 0) & (extend_forwards > 0))
        forwards += [
            (whole, draft, cycle.padded_verify, last_positions(cycle)),
            (narrow > 0, draft, cycle.padded_draft, cycle.padded_draft),
        ]

    def outside(sizes: Floats) -> BoolArray:
        return np.where(between, _outside(beside, sizes), _outside(curves, sizes))

    messages = [there & outside(shape.message_bytes(tokens)) for there, shape, tokens, _ in forwards]
    logits = [there & _logits_outside(curves, shape, positions) for there, shape, _, positions in forwards]
    return np.logical_or.reduce(messages), np.logical_or.reduce(logits)


def beyond_decode(curves: tuple[AllReduceCurve, ...], cycle: Cycle, target: Shape) -> tuple[BoolArray, BoolArray]:
    """The same of plain decode at the cycles' batch sizes; shapes (n,)."""
    return (
        _outside(curves, target.message_bytes(cycle.padded_decode)),
        _logits_outside(curves, target, cycle.batch_size),
    )


def _outside(curves: tuple[AllReduceCurve, ...], sizes: Floats) -> BoolArray:
    return np.asarray(np.logical_or.reduce([curve.beyond(sizes) for curve in curves]))


def _logits_outside(curves: tuple[AllReduceCurve, ...], shape: Shape, positions: FloatArray) -> BoolArray:
    read = tuple(curve for curve, _ in gathers(curves))
    return _outside(read, shape.logits_bytes(positions)) & (shape.vocab_size is not None)


def last_positions(cycle: Cycle) -> FloatArray:
    """Positions that a draft forward of the whole width drafts from: the last of each request of the graph; shape (n,)."""
    return np.asarray(cycle.padded_verify / cycle.num_draft_tokens)


def draft_forwards(cycle: Cycle) -> tuple[FloatArray, FloatArray]:
    """Draft forwards of B·N tokens and of B·k tokens in each cycle, shapes (n,), from their number and tokens (eq. 3).

    With w of the former and F in all, the tokens are B·(w·N + (F − w)·k); where N = k there is nothing to part.
    """
    width, branches = cycle.num_draft_tokens, cycle.topk
    apart = np.where(width == branches, 1.0, width - branches)
    surplus = cycle.draft_tokens / cycle.batch_size - branches * cycle.draft_forwards
    wide = np.where(width == branches, 0.0, surplus / apart)
    return wide, cycle.draft_forwards - wide
