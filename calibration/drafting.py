"""What runs between two verifies of a tensor-parallel engine with a drafter: gathers, single launches, and a draft's graphs.

vLLM 0.24 reduces in a draft's graphs through one communicator and gathers the draft's logits there through another, torch's own. Where
both are NCCL's, and keep their calls in order with those outside graphs, such a graph is laid over several streams; between such
graphs NCCL's kernels in another, and all that is launched singly, follow what ran before by more (docs/accuracy.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from calibration.decoder import Decoder
from calibration.machine import Machine, Timing
from calibration.reducers import Reducer
from calibration.shapes import ModelShape

DRAFTS = 3
"""Draft forwards of the cycles in which forwards are timed; all-reduces take about as much more in those of five (docs/accuracy.md)."""
LAUNCHES, _BETWEEN = 32, 4
"""Small kernels behind a verify, timed together, and behind each draft forward."""
REQUESTS, CONTEXT = 1, 512
"""Of forwards with all-reduces, the target's and the drafter's: they have the tokens of verifies, whatever the requests."""


@dataclass(frozen=True)
class Drafting:
    """A drafter's forwards over the ranks, the group through which logits are gathered, and those of the target by token and rank."""

    drafter: Decoder
    machine: Machine
    reduce: Reducer
    group: Any
    ranks: int
    seed: int
    logits: int

    @classmethod
    def of(cls, target: ModelShape, machine: Machine, reduce: Reducer, ranks: int, seed: int) -> Drafting:
        """A drafter without trained weights; every rank must call this, for the group is a new one."""
        shape = target.drafter()
        part = replace(shape.split(ranks), vocabulary=shape.vocabulary // ranks)
        drafter = Decoder.random(part, machine, seed)
        return cls(drafter, machine, reduce, dist.new_group(), ranks, seed, target.vocabulary // ranks)

    def cycle(
        self, verify: Callable[[], object], tokens: int, requests: int, drafts: int, repeats: int
    ) -> dict[str, Timing]:
        """What the parts of a whole cycle take, one after the other without a wait.

        A verify, the gather of its logits, single launches, a draft forward of as many tokens, and the further ones of a token a request,
        each behind a few launches.
        """
        machine = self.machine
        wide, narrow = self._draft(tokens, requests), self._draft(requests, requests)
        part = torch.zeros(self.logits * tokens, device=machine.device, dtype=machine.dtype)
        gathered, small = part.new_zeros(self.ranks * part.numel()), torch.zeros(1024, device=machine.device)

        def gather() -> None:
            dist.all_gather_into_tensor(gathered, part, group=self.group)

        def launches(count: int) -> None:
            for _ in range(count):
                small.add_(1.0)

        behind, between = partial(launches, LAUNCHES), partial(launches, _BETWEEN)
        parts: list[tuple[str, Callable[[], object]]] = [
            ("verify", verify),
            ("gather", gather),
            ("launches", behind),
            ("wide", wide),
        ]
        parts += [("between", between), ("narrow", narrow)] * (drafts - 1)
        dist.barrier()
        took = machine.timed_in_turn([work for _, work in parts], repeats)
        found: dict[str, tuple[float, ...]] = {}
        for (name, _), timing in zip(parts, took, strict=True):
            found[name] = found.get(name, ()) + timing.repeats
        return {name: Timing(times) for name, times in found.items()}

    def _draft(self, tokens: int, told: int) -> Callable[[], object]:
        """One draft forward in a graph: the embedding's all-reduce, the layer, and the gather of the logits of `told` tokens."""
        drafter, machine = self.drafter, self.machine
        cache = drafter.cache(REQUESTS, CONTEXT, tokens, self.seed)
        hidden = drafter.inputs(tokens, 1, self.seed)[0]
        part = drafter.shape.vocabulary * told
        gathered = torch.zeros(self.ranks * part, device=machine.device, dtype=machine.dtype)

        def forward() -> None:
            embedded = self.reduce.total(hidden.clone())
            ended = drafter.forward(embedded, cache, REQUESTS, reduce=self.reduce.total)
            dist.all_gather_into_tensor(gathered, drafter.logits(ended[:told]).reshape(-1), group=self.group)

        with torch.inference_mode():
            return machine.capture(forward, True, self.reduce.capturing)
