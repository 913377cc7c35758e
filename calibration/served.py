"""`python -m calibration serve`: one server after the other within a budget, each load on disk before the next."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import click

from calibration.allreduce import SETTINGS
from calibration.checkpoints import write_checkpoint
from calibration.commands import machine_for_tests_or_real, setting_labels
from calibration.machine import Machine
from calibration.results import Results
from calibration.serve import (
    ENGINE_OWN,
    INSTRUMENT,
    MOST_CONTEXT,
    STARTS_WITHIN_S,
    Engine,
    Loads,
    Serving,
    chosen,
    run_id,
    served_run,
    servings,
)
from calibration.server import LocalServer, free_port
from calibration.session import Task, measure
from specsim.errors import SpecsimError

_START_S, _AROUND_S = 75.0, 2.0
"""About what a start takes on an H200 at 8B, and what a load takes beside its own time."""


def run_serve(
    model: Path,
    output: Path,
    budget: float,
    seed: int,
    num_draft_tokens: tuple[int, ...],
    batch_size: tuple[int, ...],
    context_len: tuple[int, ...],
    settings: str,
    tensor_parallel: int,
    accept_rate: float,
    eager: bool,
) -> None:
    """Plan, tell the plan, serve and measure; a server that fails is told, and the next one is begun."""
    machine = machine_for_tests_or_real()
    labels = setting_labels(settings, [ENGINE_OWN, *SETTINGS])
    if machine.on_gpu and tensor_parallel > machine.count:
        raise SpecsimError(f"--tensor-parallel {tensor_parallel}, but this machine has {machine.count} GPUs")
    loads = Loads(batch_size, context_len) if machine.on_gpu else Loads(batch_size, context_len, 64, 2.0)
    if not loads.points():
        raise SpecsimError(f"nothing to measure: every load has more than {MOST_CONTEXT} tokens of context")
    folder = output.with_suffix(".work")
    engine = Engine(write_checkpoint(model, folder / "models"), loads, tensor_parallel, accept_rate,
                    graphs=machine.on_gpu and not eager, on_gpu=machine.on_gpu, folder=folder)  # fmt: skip
    results = results_of(engine, machine, output)
    planned = servings(num_draft_tokens, labels)
    left = [serving for serving in planned if todo(engine, serving, results)]
    _tell_plan(engine, left, results, 60 * budget)
    signal.signal(signal.SIGTERM, _leave)
    failed = serve_all(engine, left, results, seed, time.monotonic() + 60 * budget)
    for line in failed:
        click.echo(line, err=True)
    missing = sum(len(todo(engine, serving, results)) for serving in planned)
    if not results.runs:
        raise SpecsimError("nothing was measured" if failed else "nothing was measured within the budget: give it more")
    more = f"; {missing} left, the same command goes on" if missing else ""
    click.echo(f"{len(results.runs)} runs in {results.path}{more}", err=True)


def results_of(engine: Engine, machine: Machine, output: Path) -> Results:
    """The result file, with what all its runs share."""
    shape = engine.checkpoint.shape
    defaults = {
        "model": shape.name, "hardware": machine.hardware, "gpus": engine.ranks, "engine": "vllm",
        "tensor_parallel": engine.ranks, "precision": "bf16", "cuda_graph": engine.graphs, "instrument": INSTRUMENT,
    }  # fmt: skip
    card = {**shape.card(), "provenance": machine.provenance()}
    return Results(output, f"{shape.name} served by vLLM without weights", defaults, card)


def todo(engine: Engine, serving: Serving, results: Results) -> list[tuple[int, int]]:
    """The loads of a server that are not measured yet."""
    return [point for point in engine.loads.points() if not results.has(run_id(serving, point))]


def serve_all(engine: Engine, left: Sequence[Serving], results: Results, seed: int, end_s: float) -> list[str]:
    """Start what teaches most, load it, stop it, until the time (of the monotonic clock) is up; what failed, in words."""
    waiting, failed = list(left), []
    while waiting and time.monotonic() < end_s:
        serving = chosen(waiting, results.path)
        waiting.remove(serving)
        port = free_port()
        log = engine.folder / f"{serving.label.replace(' ', '-')}.log"
        click.echo(f"starting vLLM: {serving.label}", err=True)
        server = LocalServer(engine.command(serving, port), engine.environment(serving), port, log, STARTS_WITHIN_S)
        try:
            with server:
                click.echo(f"ready after {server.started_s:.0f} s", err=True)
                tasks = [Task(run_id(serving, point), partial(served_run, engine, serving, point, server.url, seed))
                         for point in todo(engine, serving, results)]  # fmt: skip
                measure(tasks, results, end_s - time.monotonic(), serving.label)
        except SpecsimError as error:
            failed.append(f"{serving.label}: {error}")
    return failed


def _tell_plan(engine: Engine, left: Sequence[Serving], results: Results, budget_s: float) -> None:
    count = sum(len(todo(engine, serving, results)) for serving in left)
    took = len(left) * _START_S + count * (engine.loads.seconds + _AROUND_S)
    limit = f", stopped after {budget_s / 60:.3g} min" if took > budget_s else ""
    earlier = f" ({len(results.runs)} are in it already)" if results.runs else ""
    click.echo(
        f"serve: {len(left)} servers, {count} loads, about {took / 60:.2g} min{limit} → {results.path}{earlier}",
        err=True,
    )
    if not engine.on_gpu:
        click.echo(
            "acceptance is not forced on a CPU, whose vLLM ends with it: accept lengths are an untrained head's",
            err=True,
        )
    for serving in left:
        click.echo(f"  {serving.label}", err=True)


def _leave(number: int, frame: FrameType | None) -> None:
    """A polite end: what was started is stopped on the way out."""
    sys.exit(128 + number)
