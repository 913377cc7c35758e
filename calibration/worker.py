"""One rank of an all-reduce measurement; rank 0 prints a row a line, any rank what ended it. Started by `calibration.allreduce`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from calibration.allreduce import FAILED, PATTERNS, Way, Work
from calibration.decoder import Decoder
from calibration.drafting import CONTEXT, DRAFTS, LAUNCHES, REQUESTS, Drafting
from calibration.machine import Machine, Timing, read_links
from calibration.reducers import Reducer, checked, reducer
from specsim.runs.allreduce import GATHER

_IN_A_ROW, _REPEATS = 20, 15
_ROWS = 16
_WARM, _COLD = {"cuda": 4096, "cpu": 64}, {"cuda": 8192, "cpu": 128}
_COLD_WEIGHTS = 4
"""Rows and columns of a weight that stays in the cache (32 MiB in bf16), and of those that take turns and do not (128 MiB,
what an 8B model reads between two all-reduces over two GPUs)."""


def main() -> None:
    """Join the group, measure, and print on rank 0."""
    work, way = Work.read(sys.argv[1])
    rank = int(os.environ["LOCAL_RANK"])
    machine = Machine.here()
    if machine.on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if machine.on_gpu else "gloo")
    shapes = _message_shapes(machine, work)
    reduce = reducer(way.implementation, machine, max(map(math.prod, shapes)))
    checked(reduce, machine, True in work.graphs, (shapes[0], shapes[-1]))
    shared = _provenance(machine, work, way, reduce)
    kinds = {"forward": _forwards, "gather": _gathers, "allreduce": _all_reduces, "cycle": _cycles}
    for row in kinds[work.kind](machine, work, reduce):
        if rank == 0:
            _say({**shared, **row})
    dist.barrier()
    dist.destroy_process_group()


def _say(row: dict[str, Any]) -> None:
    """Print in one write, which another rank's cannot part."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def _provenance(machine: Machine, work: Work, way: Way, reduce: Reducer) -> dict[str, Any]:
    version = ".".join(map(str, torch.cuda.nccl.version())) if machine.on_gpu else ""
    made = {name: value for name, value in machine.provenance().items() if name not in ("hardware", "name", "command")}
    said = ["own measurement", work.command, *(f"{name} {value}" for name, value in made.items())]
    said += [reduce.made_of, f"medians of {_REPEATS}"]
    said += [f"links {found}"] if machine.on_gpu and (found := read_links(work.ranks)) else []
    said += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("NCCL_", "VLLM_")))
    return {
        "nccl": way.nccl,
        "implementation": way.implementation,
        "ranks": work.ranks,
        "hardware": machine.hardware,
        "nccl_version": version,
        "source": ", ".join(said),
    }


def _message_shapes(machine: Machine, work: Work) -> list[tuple[int, ...]]:
    """The messages that the work sends, small ones first: elements, or tokens × hidden size in forwards."""
    if work.kind == "cycle":
        assert work.shape is not None
        return [((drafts + 1) * requests, work.shape.hidden_size) for drafts, requests in work.cycles]
    if work.kind == "forward":
        assert work.shape is not None
        return [(tokens, work.shape.hidden_size) for tokens in sorted(work.tokens)]
    return [(size // machine.dtype.itemsize,) for size in sorted(work.sizes)]


def _all_reduces(machine: Machine, work: Work, reduce: Reducer) -> Iterator[dict[str, Any]]:
    """One all-reduce's time by size: of many back to back, and of what each adds after a product it depends on.

    The weight of that product is one that stays in the cache, or the next of many that do not, as a forward's.
    """
    warm, cold = ([_random(machine, side, side) for _ in range(count)]
                  for side, count in ((_WARM[machine.device], 1), (_COLD[machine.device], _COLD_WEIGHTS)))  # fmt: skip
    for graph in work.graphs if machine.on_gpu else (False,):
        for size in work.sizes:
            message = torch.zeros(size // machine.dtype.itemsize, device=machine.device, dtype=machine.dtype)
            alone = _timed(machine, graph, partial(_reduced, reduce, message), reduce)
            yield {"bytes": size, "cuda_graph": graph, "pattern": PATTERNS[0], **_row([alone], alone.median_ms)}
            for pattern, weights in zip(PATTERNS[1:], (warm, cold), strict=True):
                inputs = _random(machine, _ROWS, weights[0].shape[0])

                def without(index: int, m: Any = message, x: Any = inputs, w: list[Any] = weights) -> None:
                    m.add_(torch.mm(x, w[index % len(w)]).view(-1)[0])

                def after(index: int, m: Any = message, without: Callable[[int], None] = without) -> None:
                    without(index)
                    reduce.total(m)

                both = [_timed(machine, graph, step, reduce) for step in (after, without)]
                added_ms = both[0].median_ms - both[1].median_ms
                if added_ms > 0:  # less than the noise of the product says nothing
                    yield {"bytes": size, "cuda_graph": graph, "pattern": pattern, **_row(both, added_ms)}


def _gathers(machine: Machine, work: Work, reduce: Reducer) -> Iterator[dict[str, Any]]:
    """Gathers of every rank's part by what all of them hold afterwards, back to back, as logits are gathered in engines."""
    for graph in work.graphs if machine.on_gpu else (False,):
        for size in work.gathered:
            whole = torch.zeros(size // machine.dtype.itemsize, device=machine.device, dtype=machine.dtype)
            part = torch.ones(whole.numel() // work.ranks, device=machine.device, dtype=machine.dtype)

            def step(_: int, whole: Any = whole, part: Any = part) -> None:
                dist.all_gather_into_tensor(whole[: part.numel() * work.ranks], part)

            timing = _timed(machine, graph, step, reduce)
            yield {"bytes": size, "cuda_graph": graph, "pattern": GATHER, **_row([timing], timing.median_ms)}


def _random(machine: Machine, rows: int, columns: int) -> Any:
    return torch.randn(rows, columns, device=machine.device, dtype=machine.dtype)


def _reduced(reduce: Reducer, message: Any, _: int) -> None:
    reduce.total(message)


def _row(timings: list[Timing], total_ms: float) -> dict[str, Any]:
    """A step's time, of so much for many in a row, and how the repeats behind it scatter."""
    off_us = 1000.0 * sum(timing.spread * timing.median_ms for timing in timings) / _IN_A_ROW
    return {"time_us": round(1000.0 * total_ms / _IN_A_ROW, 3), "spread_us": round(off_us, 3)}


def _timed(machine: Machine, graph: bool, step: Callable[[int], object], reduce: Reducer) -> Timing:
    """Repeats of many steps in a row, each with its number."""

    def many() -> None:
        for index in range(_IN_A_ROW):
            step(index)

    for _ in range(3):
        many()
    machine.wait()
    replay = machine.capture(many, graph, reduce.capturing)
    dist.barrier()
    return machine.timed(replay, _REPEATS)


def _forwards(machine: Machine, work: Work, reduce: Reducer) -> Iterator[dict[str, Any]]:
    """A tensor-parallel forward by tokens: without its all-reduces and with them, alone and between a drafter's graphs."""
    assert work.shape is not None
    model = Decoder.random(work.shape.split(work.ranks), machine, work.seed)
    drafting = Drafting.of(work.shape, machine, reduce, work.ranks, work.seed)
    for tokens in work.tokens:
        with torch.inference_mode():
            cache, hidden = model.cache(REQUESTS, CONTEXT, tokens, work.seed), model.inputs(tokens, 1, work.seed)[0]
            replays = {}
            for name, total in (("with_ms", reduce.total), ("without_ms", None)):
                forward = partial(model.forward, hidden, cache, REQUESTS, reduce=total)
                replays[name] = machine.capture(forward, True, reduce.capturing)
            dist.barrier()
            took = {name: machine.timed(replay, 4 * _REPEATS) for name, replay in replays.items()}
            requests = max(1, tokens // (DRAFTS + 1))
            parts = drafting.cycle(replays["with_ms"], tokens, requests, DRAFTS, 4 * _REPEATS)
        yield {
            "tokens": tokens,
            **{name: round(timing.median_ms, 4) for name, timing in took.items()},
            "drafting_ms": round(parts["verify"].median_ms, 4),
            **{f"{name}_ms": round(parts[name].median_ms, 4) for name in ("wide", "narrow")},
            "launch_us": round(1000.0 * parts["launches"].median_ms / LAUNCHES, 3),
            "bytes": tokens * work.shape.hidden_size * hidden.element_size(),
            "cuda_graph": machine.on_gpu,
            "spread_us": _off_us(*took.values()),
            "drafting_spread_us": _off_us(parts["verify"], took["without_ms"]),
        }


def _cycles(machine: Machine, work: Work, reduce: Reducer) -> Iterator[dict[str, Any]]:
    """Whole cycles of a number of drafts and requests, by their parts, and the verify alone."""
    assert work.shape is not None
    model = Decoder.random(work.shape.split(work.ranks), machine, work.seed)
    drafting = Drafting.of(work.shape, machine, reduce, work.ranks, work.seed)
    for drafts, requests in work.cycles:
        tokens = requests * (drafts + 1)
        with torch.inference_mode():
            cache, hidden = model.cache(REQUESTS, CONTEXT, tokens, work.seed), model.inputs(tokens, 1, work.seed)[0]
            forward = partial(model.forward, hidden, cache, REQUESTS, reduce=reduce.total)
            replay = machine.capture(forward, True, reduce.capturing)
            dist.barrier()
            alone = machine.timed(replay, 4 * _REPEATS)
            parts = drafting.cycle(replay, tokens, requests, drafts, 4 * _REPEATS)
        yield {
            "drafts": drafts,
            "batch_size": requests,
            "alone_ms": round(alone.median_ms, 4),
            **{f"{name}_ms": round(timing.median_ms, 4) for name, timing in parts.items()},
            "cuda_graph": machine.on_gpu,
        }


def _off_us(*timings: Timing) -> float:
    """What forwards scatter by together."""
    return round(1000.0 * sum(timing.spread * timing.median_ms for timing in timings), 2)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        _say({FAILED: f"{type(error).__name__}: {error}"})
        raise
