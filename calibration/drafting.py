"""What runs between two verifies of a tensor-parallel engine with a drafter: gathers, single launches, and a draft's graphs.

vLLM 0.24 reduces in a draft's graphs through one communicator and gathers the draft's logits there through another, torch's own. Where
both are NCCL's, and keep their calls in order with those outside graphs, such a graph is laid over several streams; between such
graphs NCCL's kernels in another, and all that is launched singly, follow what ran before by more (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from calibration.decoder import Decoder
from calibration.machine import Machine, Timing
from calibration.reducers import Reducer
from calibration.shapes import ModelShape

DRAFTS = 3
"""Draft forwards of a cycle."""
_LAUNCHES, _BETWEEN = 32, 4
"""Small kernels behind a verify, timed together, and behind each draft forward."""
REQUESTS, CONTEXT = 1, 512
"""Of forwards with all-reduces, the target's and the drafter's: they have the tokens of verifies, whatever the requests."""


@dataclass(frozen=True)
class Drafting:
    """A drafter's forwards over the ranks, and the group through which its logits are gathered, and hidden states for the target's."""

    drafter: Decoder
    machine: Machine
    reduce: Reducer
    group: Any
    ranks: int
    seed: int

    @classmethod
    def of(cls, target: ModelShape, machine: Machine, reduce: Reducer, ranks: int, seed: int) -> Drafting:
        """A drafter without trained weights; every rank must call this, for the group is a new one."""
        shape = target.drafter()
        part = replace(shape.split(ranks), vocabulary=shape.vocabulary // ranks)
        return cls(Decoder.random(part, machine, seed), machine, reduce, dist.new_group(), ranks, seed)

    def around(self, verify: Callable[[], object], tokens: int, repeats: int) -> tuple[Timing, float]:
        """A verify's time between drafts, and from one of many single launches behind it to the next [µs]."""
        machine, draft = self.machine, self._draft(tokens)
        states = torch.zeros(tokens * self.drafter.shape.hidden_size, device=machine.device, dtype=machine.dtype)
        gathered = states.new_zeros(self.ranks * states.numel())
        small = torch.zeros(1024, device=machine.device)

        def gather() -> None:
            dist.all_gather_into_tensor(gathered, states, group=self.group)

        def launch(count: int) -> None:
            for _ in range(count):
                small.add_(1.0)

        def drafts() -> None:
            for _ in range(DRAFTS):
                draft()
                launch(_BETWEEN)

        parts = (verify, gather, lambda: launch(_LAUNCHES), drafts)
        dist.barrier()
        whole, _, launches, _ = machine.timed_in_turn(parts, repeats)
        return whole, 1000.0 * launches.median_ms / _LAUNCHES

    def _draft(self, tokens: int) -> Callable[[], object]:
        """One draft forward in a graph: the embedding's all-reduce, the layer, and the gather of its logits."""
        drafter, machine = self.drafter, self.machine
        cache = drafter.cache(REQUESTS, CONTEXT, tokens, self.seed)
        hidden = drafter.inputs(tokens, 1, self.seed)[0]
        part = drafter.shape.vocabulary * tokens
        gathered = torch.zeros(self.ranks * part, device=machine.device, dtype=machine.dtype)

        def forward() -> None:
            embedded = self.reduce.total(hidden.clone())
            told = drafter.logits(drafter.forward(embedded, cache, REQUESTS, reduce=self.reduce.total))
            dist.all_gather_into_tensor(gathered, told.reshape(-1), group=self.group)

        with torch.inference_mode():
            return machine.capture(forward, True, self.reduce.capturing)
