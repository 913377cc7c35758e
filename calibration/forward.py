"""Bare forwards of a target and a one-layer drafter, by requests, tokens a request and context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from calibration.grids import Point
from calibration.machine import Machine, Timing
from calibration.results import Row
from calibration.session import Task
from calibration.shapes import ModelShape

if TYPE_CHECKING:
    from calibration.decoder import Cache, Decoder

BLOCKS, REPEATS = 3, 9
"""A figure is three medians of nine repeats each: their scatter is what the fit takes for noise."""

INPUTS = 4
DRAFT_STEPS = 2
"""The drafter's forwards are those of a chain of two steps, as SGLang runs it: one of B tokens, one of B·3 after verify."""

INSTRUMENT = "bare forwards with head and greedy sampling, timed alone"


@dataclass(frozen=True)
class Bench:
    """A target and its drafter on a machine, and how forwards are run."""

    shape: ModelShape
    machine: Machine
    graph: bool
    skew: float = 0.0
    seed: int = 0

    @cached_property
    def target(self) -> Decoder:
        """The target's random weights."""
        from calibration.decoder import Decoder

        return Decoder.random(self.shape, self.machine, self.seed, self.skew)

    @cached_property
    def drafter(self) -> Decoder:
        """The one-layer drafter's."""
        from calibration.decoder import Decoder

        return Decoder.random(self.shape.drafter(), self.machine, self.seed + 1)

    def defaults(self) -> Row:
        """What every run of this bench shares."""
        return {
            "model": self.shape.name,
            "hardware": self.machine.hardware,
            "gpus": 1,
            "engine": "calibration",
            "precision": "bf16" if self.machine.on_gpu else "fp32",
            "cuda_graph": self.graph and self.machine.on_gpu,
            "instrument": INSTRUMENT,
            "method": "eagle3",
        }

    def timed(self, model: Decoder, point: Point) -> tuple[Timing, ...]:
        """A forward of one point with head and sampling, in blocks of repeats, over inputs that change."""
        import torch

        from calibration.decoder import argmax_tokens

        with torch.inference_mode():
            batch, width = point.batch_size, point.num_draft_tokens
            inputs = model.inputs(point.tokens, INPUTS, self.seed + 2)
            cache: Cache = model.cache(batch, point.context_len, width, self.seed + 3)
            hidden = inputs[0].clone()
            work = self.machine.capture(
                lambda: argmax_tokens(model.logits(model.forward(hidden, cache, batch))), self.graph
            )

            def fresh(index: int) -> None:
                hidden.copy_(inputs[index % INPUTS])

            return tuple(self.machine.timed(work, REPEATS, fresh) for _ in range(BLOCKS))


def tasks(bench: Bench, points: Iterable[Point]) -> Iterator[Task]:
    """A run for each point: plain decode at one token a request, verify beyond; and the drafter at each batch."""
    points = list(points)
    for point in points:
        name = f"{point.batch_size}x{point.num_draft_tokens} at {point.context_len}"
        yield Task(name, partial(_target_run, bench, point))
        if point.num_draft_tokens == 1 and point.context_len == min(p.context_len for p in points):
            yield Task(f"drafter {point.batch_size} at {point.context_len}", partial(_draft_run, bench, point))


def _target_run(bench: Bench, point: Point) -> Row:
    blocks = bench.timed(bench.target, point)
    figure = medians(blocks)
    shared = {"batch_size": point.batch_size, "context_len": point.context_len, "note": spread_note(blocks)}
    if point.num_draft_tokens == 1:
        return {**shared, "method": "none", "decode_ms": figure}
    return {**shared, "num_draft_tokens": point.num_draft_tokens, "topk": 1, "verify_ms": figure}


def _draft_run(bench: Bench, point: Point) -> Row:
    width = DRAFT_STEPS + 1
    one = bench.timed(bench.drafter, point)
    wide = bench.timed(bench.drafter, Point(point.batch_size, width, point.context_len))
    return {
        "batch_size": point.batch_size,
        "context_len": point.context_len,
        "num_draft_tokens": width,
        "topk": 1,
        "draft_ms": medians(one),
        "extend_ms": medians(wide),
        "note": spread_note(one),
    }


def medians(blocks: Iterable[Timing]) -> list[float]:
    """A figure's repeats: the median of each block [ms]."""
    return [round(block.median_ms, 5) for block in blocks]


def spread_note(blocks: Iterable[Timing]) -> str:
    """How far repeats of a block lie apart."""
    spreads = [block.spread for block in blocks]
    return f"{len(spreads)} medians of {REPEATS} repeats, quartiles ±{100 * max(spreads):.2f}%"
