"""The frozen values that everything else speaks in; numbers may be scalars or arrays that broadcast."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specsim.errors import ConfigurationError
from specsim.methods import method_named

Floats = float | NDArray[np.float64]
Ints = int | NDArray[np.int64]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LEVEL = 0.90
"""Two-sided level of every interval that specsim states."""

CONTEXT_TOLERANCE = 160
"""Contexts closer than this many tokens count as alike: reading 128 tokens of KV cache took 4 µs of a 5.8 ms
cycle (8B dense model, one H200, vLLM 0.24, measured 2026-11-29); a plain run and a speculative one of the
same server rarely have the same mean context. Loads of equal length in one file lay up to 138 tokens apart, since the slow
ones saw the beginnings of their answers alone (calibration/data/h200_served_qwen3-30b-a3b.json)."""


def tree_limit(num_steps: Ints, topk: Ints) -> Ints:
    """Widest legal verify of a tree, root included: 1 + k + (S − 1)·k² (section 1)."""
    return 1 + topk + (num_steps - 1) * topk**2


def is_legal(num_steps: Ints, topk: Ints, num_draft_tokens: Ints, method: str = "eagle") -> BoolArray:
    """Where a configuration is legal (section 1), elementwise; arguments broadcast."""
    steps, branches, width = _together(num_steps, topk, num_draft_tokens)
    possible = (steps >= 0) & (branches >= 1) & (width >= 1)
    if not method_named(method).steps_bound_length:
        return np.asarray(possible)
    chain = (branches == 1) | (steps == 0)
    tree = (width >= 2) & (width <= tree_limit(steps, branches))
    return np.asarray(possible & np.where(chain, width == steps + 1, tree))


@dataclass(frozen=True)
class SpecConfig:
    """A speculative configuration (section 1): depth, branches a step, verify width with the root included.

    Scalars, or arrays that broadcast. Raises ConfigurationError, with the legal range, on an illegal one.
    """

    num_steps: Ints
    topk: Ints
    num_draft_tokens: Ints
    method: str = "eagle"

    def __post_init__(self) -> None:
        for name in ("num_steps", "topk", "num_draft_tokens"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        legal = is_legal(self.num_steps, self.topk, self.num_draft_tokens, self.method)
        if not legal.all():
            at = int(np.argmin(legal))
            counts = _together(self.num_steps, self.topk, self.num_draft_tokens)
            raise ConfigurationError(_why_illegal(*(int(count.flat[at]) for count in counts)))

    @property
    def max_accept_length(self) -> Ints:
        """Largest possible accept length, bonus included (eq. 8): num_steps + 1, or the width without steps."""
        bound: Ints = self.num_steps + 1 if method_named(self.method).steps_bound_length else self.num_draft_tokens
        return bound

    @classmethod
    def of(
        cls,
        *,
        num_steps: int | None = None,
        topk: int | None = None,
        num_draft_tokens: int | None = None,
        method: str = "eagle",
    ) -> Self:
        """Complete a configuration from what is stated: with topk 1, steps and draft tokens follow from each other.

        Raises ConfigurationError when what is stated leaves the configuration open.
        """
        if not method_named(method).steps_bound_length:
            if num_draft_tokens is None:
                raise ConfigurationError(f"{method} needs num_draft_tokens (the verify width, root included)")
            return cls(1 if num_steps is None else num_steps, topk or 1, num_draft_tokens, method)
        if num_steps is None and num_draft_tokens is None:
            raise ConfigurationError("state num_draft_tokens (the verify width, root included) or num_steps")
        if topk is not None and topk < 1:
            raise ConfigurationError(f"topk is at least 1, not {topk}")
        if topk in (None, 1) and (num_steps is None or num_draft_tokens is None):
            steps = num_steps if num_steps is not None else (num_draft_tokens or 0) - 1
            return cls(steps, 1, steps + 1 if num_draft_tokens is None else num_draft_tokens, method)
        if num_steps is None or num_draft_tokens is None:
            raise ConfigurationError("a tree (topk above 1) needs num_steps, topk and num_draft_tokens, all three")
        if topk is None and num_draft_tokens != num_steps + 1:
            raise ConfigurationError(
                f"num_steps {num_steps} with num_draft_tokens {num_draft_tokens} is a tree: state its topk"
            )
        return cls(num_steps, topk or 1, num_draft_tokens, method)


def _whole(name: str, value: Any) -> Ints:
    """A whole number, or an array of them as 64-bit integers, so that no product of counts can overflow."""
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu":
        shown = numbers.flat[0] if numbers.size and numbers.dtype.kind != "O" else value
        raise ConfigurationError(f"{name} must be a whole number of a size that a configuration can have, not {shown}")
    return int(numbers) if numbers.ndim == 0 else numbers.astype(np.int64)


def _together(*counts: Any) -> tuple[IntArray, ...]:
    """Counts at their common shape, as 64-bit integers; raises ConfigurationError where shapes do not broadcast."""
    try:
        return tuple(np.asarray(count, dtype=np.int64) for count in np.broadcast_arrays(*counts))
    except ValueError:
        shapes = ", ".join(str(np.shape(count)) for count in counts)
        raise ConfigurationError(f"num_steps, topk and num_draft_tokens do not broadcast: shapes {shapes}") from None


def _why_illegal(steps: int, topk: int, width: int) -> str:
    asked = f"num_steps {steps}, topk {topk}, num_draft_tokens {width} is not legal"
    if width < 1 or (width == steps + 1 and steps < 0):
        return f"{asked}: num_draft_tokens is at least 1 (the root is one of them)"
    if steps < 0 or topk < 1:
        return f"{asked}: num_steps is at least 0 and topk at least 1"
    if topk == 1 or steps == 0:
        kind = "a chain (topk 1)" if topk == 1 else "a cycle without drafts"
        return f"{asked}: {kind} of {steps} steps verifies exactly {steps + 1} tokens (num_steps + 1, root included)"
    return (
        f"{asked}: a tree of {steps} steps and topk {topk} verifies 2 to {tree_limit(steps, topk)} tokens"
        " (1 + topk + (num_steps - 1)·topk², root included)"
    )


@dataclass(frozen=True)
class Workload:
    """What runs: requests together in a cycle, mean tokens in their KV cache, output tokens of a request."""

    batch_size: Ints = 1
    context_len: int | None = None
    output_len: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", _whole("batch_size", self.batch_size))
        if np.min(self.batch_size, initial=1) < 1:
            raise ConfigurationError(f"batch_size must be at least 1, not {np.min(self.batch_size)}")


@dataclass(frozen=True)
class Setup:
    """Where runs were made; None is unstated. Two runs compare like for like when no stated field differs."""

    model: str | None = None
    hardware: str | None = None
    gpus: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    tensor_parallel: int | None = None
    precision: str | None = None
    cuda_graph: bool | None = None


SETUP_FIELDS = tuple(field.name for field in fields(Setup))
