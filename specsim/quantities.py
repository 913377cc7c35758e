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


def tree_limit(num_steps: Ints, topk: Ints) -> Ints:
    """Widest legal verify of a tree, root included: 1 + k + (S − 1)·k² (section 1)."""
    return 1 + topk + (num_steps - 1) * topk**2


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
        steps, topk, width = np.broadcast_arrays(self.num_steps, self.topk, self.num_draft_tokens)
        for name, values in (("num_steps", steps), ("topk", topk), ("num_draft_tokens", width)):
            if values.dtype.kind not in "iu":
                raise ConfigurationError(f"{name} must be a whole number, not {values.flat[0]!r}")
        low, high = self._legal_width(steps, topk)
        legal = (steps >= 0) & (topk >= 1) & (width >= low) & (width <= high)
        if not legal.all():
            at = int(np.argmin(legal))
            raise ConfigurationError(
                _why_illegal(steps.flat[at], topk.flat[at], width.flat[at], low.flat[at], high.flat[at])
            )

    def _legal_width(self, steps: NDArray[Any], topk: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if not method_named(self.method).steps_bound_length:
            return np.ones(steps.shape), np.full(steps.shape, np.inf)
        chain = (topk == 1) | (steps == 0)
        low = np.where(chain, steps + 1, 2)
        high = np.where(chain, steps + 1, tree_limit(steps, topk))
        return low, high

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


def _why_illegal(steps: int, topk: int, width: int, low: float, high: float) -> str:
    asked = f"num_steps {steps}, topk {topk}, num_draft_tokens {width} is not legal"
    if steps < 0 or topk < 1:
        return f"{asked}: num_steps is at least 0 and topk at least 1"
    if np.isinf(high):
        return f"{asked}: num_draft_tokens is at least 1"
    if low == high:
        kind = "a chain (topk 1)" if topk == 1 else "a cycle without drafts"
        return f"{asked}: {kind} of {steps} steps verifies exactly {low} tokens (num_steps + 1, root included)"
    return (
        f"{asked}: a tree of {steps} steps and topk {topk} verifies {low} to {high} tokens"
        " (1 + topk + (num_steps - 1)·topk², root included)"
    )


@dataclass(frozen=True)
class Workload:
    """What runs: requests together in a cycle, mean tokens in their KV cache, output tokens of a request."""

    batch_size: Ints = 1
    context_len: int | None = None
    output_len: int | None = None

    def __post_init__(self) -> None:
        if np.asarray(self.batch_size).dtype.kind not in "iu" or np.min(self.batch_size) < 1:
            raise ConfigurationError(f"batch_size must be a whole number of at least 1, not {self.batch_size!r}")


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
