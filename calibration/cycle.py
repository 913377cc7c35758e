"""A whole speculative cycle on the device, with SGLang's semantics: what runs, phase by phase, and end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.forward import Bench
from calibration.results import Row
from calibration.session import Task

if TYPE_CHECKING:
    from calibration.decoder import Cache

INSTRUMENT = "whole cycles: phases by CUDA events, the cycle by the clock over many without waiting in between"
WARM, CYCLES, BLOCKS = 5, 40, 3

Spec = tuple[int, int, int]


@dataclass(frozen=True)
class Plan:
    """What to measure: configurations (steps, topk, draft tokens) by batch size at a context, acceptance forced."""

    bench: Bench
    specs: Sequence[Spec]
    batch_sizes: Sequence[int]
    context_len: int
    accept_rate: float


def cycle_tasks(plan: Plan) -> Iterator[Task]:
    """Plain decode at every batch size, then every configuration."""
    for batch in plan.batch_sizes:
        yield Task(f"plain {batch}", partial(_plain_run, plan, batch))
    for spec in plan.specs:
        for batch in plan.batch_sizes:
            yield Task(f"{'/'.join(map(str, spec))} {batch}", partial(_cycle_run, plan, spec, batch))


def _plain_run(plan: Plan, batch: int) -> Row:
    """Plain decode, end to end: each step's token is embedded and fed to the next."""
    import torch

    from calibration.decoder import argmax_tokens

    bench, target = plan.bench, plan.bench.target
    with torch.inference_mode():
        cache, hidden = target.cache(batch, plan.context_len, 1, bench.seed), target.inputs(batch, 1, bench.seed)[0]

        def step() -> None:
            tokens = argmax_tokens(target.logits(target.forward(hidden, cache, batch)))
            hidden.copy_(target.head[tokens])

        replay = bench.machine.capture(step, bench.graph)
        figure = [_end_to_end_ms(plan, replay) for _ in range(BLOCKS)]
    return {"batch_size": batch, "context_len": plan.context_len, "method": "none", "decode_ms": figure}


def _cycle_run(plan: Plan, spec: Spec, batch: int) -> Row:
    import torch

    with torch.inference_mode():
        cycle = Cycle(plan, spec, batch)
        phases = cycle.phase_ms()
        moved = phases.pop("accept_ms")
        whole, length = zip(*(cycle.end_to_end() for _ in range(BLOCKS)), strict=True)
    steps, topk, width = spec
    return {
        "batch_size": batch,
        "context_len": plan.context_len,
        "num_steps": steps,
        "topk": topk,
        "num_draft_tokens": width,
        **phases,
        "cycle_ms": list(whole),
        "output_tok_s": [1000 * batch * tokens / took for tokens, took in zip(length, whole, strict=True)],
        "accept_length": round(float(np.mean(length)), 4),
        "note": f"acceptance forced; accepted tokens go into the context's last places, which takes {min(moved):.4f} ms",
    }


def _end_to_end_ms(plan: Plan, work: Callable[[], object]) -> float:
    """Milliseconds a piece of work, many started one after the other and waited for once."""
    for _ in range(WARM):
        work()
    plan.bench.machine.wait()
    start = time.perf_counter()
    for _ in range(CYCLES):
        work()
    plan.bench.machine.wait()
    return round(1000 * (time.perf_counter() - start) / CYCLES, 5)


@dataclass(frozen=True)
class Cycle:
    """The phases of one cycle as replays over buffers that they share.

    Draft: steps − 1 forwards of B·topk tokens, the tree from all their candidates (none of a chain's). Verify: the target over B·N tokens
    under the tree's mask, head and greedy choice for all of them. Then the accepted path, as deep as the seeded law
    says, its keys and values moved to their places; and the drafter's re-extend over B·N tokens, whose last row gives
    the next cycle's first level.
    """

    plan: Plan
    spec: Spec
    batch: int

    @cached_property
    def state(self) -> State:
        """The buffers."""
        return State.of(self)

    @cached_property
    def phases(self) -> dict[str, Callable[[], object]]:
        """Each phase as a graph's replay, or as it is."""
        capture = partial(self.plan.bench.machine.capture, graph=self.plan.bench.graph)
        state = self.state
        return {
            "draft_ms": capture(state.draft),
            "verify_ms": capture(state.verify),
            "accept_ms": capture(state.accept),
            "extend_ms": capture(state.extend),
        }

    def phase_ms(self) -> dict[str, list[float]]:
        """Every phase alone by events, medians of blocks."""
        machine = self.plan.bench.machine
        timed = {
            name: [round(machine.timed(work, 9).median_ms, 5) for _ in range(BLOCKS)]
            for name, work in self.phases.items()
        }
        return timed if self.spec[0] > 0 else {name: timed[name] for name in ("verify_ms", "accept_ms")}

    def end_to_end(self) -> tuple[float, float]:
        """Milliseconds a cycle, and the mean accept length that came of it, bonus included."""
        turn = iter(self._forced(WARM + CYCLES))

        def cycle() -> None:
            self.state.wanted.copy_(next(turn), non_blocking=True)
            for work in self.phases.values():
                work()

        self.state.emitted.zero_()
        took = _end_to_end_ms(self.plan, cycle)
        return took, float(self.state.emitted.double().mean()) / (WARM + CYCLES)

    def _forced(self, count: int) -> list[Any]:
        """Accepted drafts by cycle and request: each further one with the law's chance, at most the tree's depth."""
        import torch

        generator = np.random.default_rng(self.plan.bench.seed)
        steps = self.spec[0]
        hits = generator.random((count, self.batch, max(steps, 1))) < self.plan.accept_rate
        drawn = np.cumprod(hits, axis=2).sum(axis=2) * (steps > 0)
        return list(torch.from_numpy(drawn).to(self.plan.bench.machine.device))


@dataclass
class State:
    """What the phases of a cycle pass to each other; every method is fit for capture in a graph."""

    cycle: Cycle
    target_cache: Cache
    draft_cache: Cache
    first: Any
    draft_hidden: Any
    verify_hidden: Any
    tokens: Any
    mask: Any
    depths: Any
    wanted: Any
    emitted: Any

    @classmethod
    def of(cls, cycle: Cycle) -> State:
        """Buffers with random content, and the mask of a chain."""
        import torch

        plan, (_, topk, width), batch = cycle.plan, cycle.spec, cycle.batch
        bench, device = plan.bench, plan.bench.machine.device
        room = max(width, 1) + topk * max(cycle.spec[0] - 1, 0)
        whole = torch.ones(width, width, dtype=torch.bool, device=device).tril().repeat(batch, 1, 1)
        return cls(
            cycle,
            bench.target.cache(batch, plan.context_len, width, bench.seed),
            bench.drafter.cache(batch, plan.context_len, room, bench.seed),
            torch.randn(batch, bench.drafter.shape.vocabulary, device=device).log_softmax(-1),
            bench.drafter.inputs(batch * topk, 1, bench.seed)[0],
            bench.target.inputs(batch * width, 1, bench.seed)[0],
            torch.zeros(batch, width, dtype=torch.int64, device=device),
            whole,
            whole.sum(-1) - 1,
            torch.zeros(batch, dtype=torch.int64, device=device),
            torch.zeros(batch, dtype=torch.int64, device=device),
        )

    def draft(self) -> None:
        """The draft forwards, each over the frontier's topk nodes, and the tree that is to be verified."""
        from calibration.tree import first_level, next_level, selected, survivors

        steps, topk, width = self.cycle.spec
        if steps == 0:
            return
        if topk == 1:
            self._draft_chain()
            return
        levels = [first_level(self.first, topk)]
        frontier, at = levels[0], self._counted(topk)
        seen = self._own(topk)
        for step in range(steps - 1):
            logits = self._draft_forward(frontier.tokens, step * topk, seen)
            grown = next_level(logits, frontier, at, topk)
            offset = topk + step * topk * topk
            levels.append(grown)
            frontier, at, origin = survivors(grown, offset, topk)
            seen = self._extended(seen, origin, topk)
        own, mask, depths = selected(levels, width)
        self.tokens[:, 1:].copy_(own)
        self.mask.copy_(mask)
        self.depths.copy_(depths)

    def _draft_chain(self) -> None:
        """The draft forwards of a chain, each over the token that the one before it likes best; no tree is built."""
        logits = self.first[:, None]
        for step in range(self.cycle.spec[0]):
            best = logits.argmax(-1)
            self.tokens[:, step + 1].copy_(best[:, 0])
            if step + 1 < self.cycle.spec[0]:
                logits = self._draft_forward(best, step, None)

    def _counted(self, topk: int) -> Any:
        import torch

        return torch.arange(topk, device=self.first.device).expand(self.cycle.batch, topk)

    def _own(self, topk: int) -> Any:
        """Each of the first nodes sees itself, (batch, topk, topk)."""
        import torch

        return torch.eye(topk, dtype=torch.bool, device=self.first.device).repeat(self.cycle.batch, 1, 1)

    def _extended(self, seen: Any, origin: Any, topk: int) -> Any:
        """What the next frontier sees of the drafts so far: what its parent saw, and itself."""
        import torch

        inherited = seen.gather(1, origin[:, :, None].expand(-1, -1, seen.shape[2]))
        return torch.cat((inherited, self._own(topk)), dim=2)

    def _draft_forward(self, tokens: Any, start: int, seen: Any) -> Any:
        """Log probabilities (batch, topk, vocabulary) of a draft forward over the frontier."""
        drafter, (_, topk, _) = self.cycle.plan.bench.drafter, self.cycle.spec
        hidden = drafter.head[tokens.flatten()] + self.draft_hidden
        told = drafter.forward(hidden, self.draft_cache, self.cycle.batch, start, seen)
        return drafter.logits(told).float().log_softmax(-1).view(self.cycle.batch, topk, -1)

    def verify(self) -> None:
        """The target over the tree, the head and a greedy choice for all of its tokens."""
        target, (_, topk, _) = self.cycle.plan.bench.target, self.cycle.spec
        hidden = target.head[self.tokens.flatten()] + self.verify_hidden
        mask = None if topk == 1 else self.mask
        told = target.forward(hidden, self.target_cache, self.cycle.batch, 0, mask)
        self.verify_hidden.copy_(told)
        self.tokens[:, 0].copy_(target.logits(told).argmax(-1).view(self.cycle.batch, -1)[:, 0])

    def accept(self) -> None:
        """The accepted path, and its keys and values moved into the last places of the context."""
        import torch

        from calibration.tree import accepted_path

        most = self.cycle.spec[0] + 1
        nodes = accepted_path(self.mask, self.depths, self.wanted)[:, :most]
        self.emitted.add_((nodes >= 0).sum(dim=1))
        path = nodes.clamp(min=0)
        context = self.target_cache.context
        if context < most:
            return
        for buffer in (self.target_cache.keys, self.target_cache.values):
            layers, batch, heads, _, size = buffer.shape
            at = (path + context)[None, :, None, :, None].expand(layers, batch, heads, most, size)
            buffer[:, :, :, context - most : context].copy_(torch.gather(buffer, 3, at))

    def extend(self) -> None:
        """The drafter over the verified tokens; its last row is the next cycle's first level."""
        if self.cycle.spec[0] == 0:
            return
        bench, batch = self.cycle.plan.bench, self.cycle.batch
        told = bench.drafter.forward(self.verify_hidden, self.draft_cache, batch)
        last = told.view(batch, -1, told.shape[-1])[:, -1]
        self.first.copy_(bench.drafter.logits(last).float().log_softmax(-1))
