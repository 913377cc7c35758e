"""`python -m calibration serve`: one server after the other within a budget, each load on disk before the next."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import ceil
from pathlib import Path
from types import FrameType

import click

from calibration.allreduce import SETTINGS
from calibration.checkpoints import write_checkpoint
from calibration.commands import listed, machine_for_tests_or_real, trees_of
from calibration.engines import ENGINE_OWN, MOST_CONTEXT, WAITS, Deployment, Loads, Serving, labels_of
from calibration.machine import Machine
from calibration.results import Results
from calibration.serve import INSTRUMENT, STARTS_WITHIN_S, chosen, run_id, served_run, servings
from calibration.server import LocalServer, free_ports, settled, stop
from calibration.session import Task, measure
from calibration.shapes import read_shape
from specsim.errors import SpecsimError

_START_S, _AROUND_S = 75.0, 2.0
"""About what a start takes on an H200 at 8B, and what a load takes beside its own time."""


def run_serve(
    model: Path,
    output: Path,
    budget: float,
    seed: int,
    engine: str,
    num_draft_tokens: tuple[int, ...],
    trees: str,
    batch_size: tuple[int, ...],
    context_len: tuple[int, ...],
    settings: str,
    tensor_parallel: int,
    accept_rate: float,
    eager: bool,
    servers_at_once: int,
    server_args: tuple[str, ...],
) -> None:
    """Plan, tell the plan, serve and measure; a server that fails is told, and the next one is begun."""
    labels = _labels(settings, engine, tensor_parallel, read_shape(model).experts > 0)
    machine = machine_for_tests_or_real()
    if machine.on_gpu and tensor_parallel > machine.count:
        raise SpecsimError(f"--tensor-parallel {tensor_parallel}, but this machine has {machine.count} GPUs")
    wanted_trees = list(trees_of(trees))
    if wanted_trees and engine != "sglang":
        raise SpecsimError("--trees: only SGLang drafts trees (--engine sglang)")
    loads = Loads(batch_size, context_len) if machine.on_gpu else Loads(batch_size, context_len, 128, 3.0)
    if not loads.points():
        raise SpecsimError(f"nothing to measure: every load has more than {MOST_CONTEXT} tokens of context")
    folder = output.with_suffix(".work")
    checkpoint = write_checkpoint(model, folder / "models")
    graphs = machine.on_gpu and not eager
    deployment = Deployment(
        engine, checkpoint, loads, tensor_parallel, accept_rate, graphs, machine.on_gpu, folder, server_args,
        servers_at_once,
    )  # fmt: skip
    results = results_of(deployment, machine, output)
    planned = servings(num_draft_tokens, wanted_trees, labels)
    left = [serving for serving in planned if todo(deployment, serving, results)]
    _tell_plan(deployment, left, results, 60 * budget)
    signal.signal(signal.SIGTERM, _leave)
    failed = serve_all(deployment, left, results, seed, time.monotonic() + 60 * budget)
    for line in failed:
        click.echo(line, err=True)
    missing = sum(len(todo(deployment, serving, results)) for serving in planned)
    if not results.runs:
        raise SpecsimError("nothing was measured" if failed else "nothing was measured within the budget: give it more")
    more = f"; {missing} left, the same command goes on" if missing else ""
    click.echo(f"{len(results.runs)} runs in {results.path}{more}", err=True)


def _labels(settings: str, engine: str, ranks: int, mixture: bool) -> list[str]:
    """The settings that were asked for; raises SpecsimError on one that is none, or none over so many GPUs."""
    allowed = labels_of(engine, ranks, mixture)
    for label in map(str.strip, settings.split(",")):
        if label not in allowed and label in (ENGINE_OWN, *SETTINGS):
            raise SpecsimError(f"--settings: {label!r} is a setting between GPUs: state --tensor-parallel 2 or more")
        if label not in allowed and label in WAITS:
            raise SpecsimError(f"--settings: {label!r} is for vLLM, a dense model and one GPU")
    return listed("--settings", settings, allowed)


def results_of(deployment: Deployment, machine: Machine, output: Path) -> Results:
    """The result file, with what all its runs share."""
    shape = deployment.checkpoint.shape
    defaults = {
        "model": shape.name, "hardware": machine.hardware, "gpus": deployment.ranks, "engine": deployment.engine,
        "tensor_parallel": deployment.ranks, "precision": "bf16", "cuda_graph": deployment.graphs, "instrument": INSTRUMENT,
    }  # fmt: skip
    asked = {"accept_rate": deployment.accept_rate, "server_args": list(deployment.extra)}
    card = {**shape.card(), **asked, "provenance": machine.provenance()}
    return Results(output, f"{shape.name} served without weights", defaults, card)


def todo(deployment: Deployment, serving: Serving, results: Results) -> list[tuple[int, int]]:
    """The loads of a server that are not measured yet."""
    return [point for point in deployment.loads.points() if not results.has(run_id(serving, point))]


def serve_all(deployment: Deployment, left: Sequence[Serving], results: Results, seed: int, end_s: float) -> list[str]:
    """Start what teaches most, load it, stop it, until the time (of the monotonic clock) is up; what failed, in words."""
    waiting, failed = list(left), []
    while waiting and time.monotonic() < end_s:
        together = chosen(waiting, results.path, deployment.at_once)
        waiting = [serving for serving in waiting if serving not in together]
        failed += _serve_together(deployment, together, results, seed, end_s)
    return failed


def _serve_together(
    deployment: Deployment, together: Sequence[Serving], results: Results, seed: int, end_s: float
) -> list[str]:
    """Start them together, load one after the other while the rest is idle, stop them; what failed, in words."""
    ports = free_ports(len(together))
    servers = [_server(deployment, *each) for each in zip(together, ports, range(len(together)), strict=True)]
    failed: list[str] = []
    try:
        for serving, server in zip(together, servers, strict=True):
            click.echo(f"starting {deployment.engine}: {serving.label}", err=True)
            server.start()
        well = []
        for server, failure in settled(servers, STARTS_WITHIN_S):
            label = together[servers.index(server)].label
            click.echo(f"{label}: {f'ready after {server.started_s:.0f} s' if failure is None else 'failed'}", err=True)
            well += [server] if failure is None else []
            failed += [] if failure is None else [f"{label}: {failure}"]
        for serving, server in zip(together, servers, strict=True):
            if server not in well:
                continue
            if server.gone():
                failed.append(f"{serving.label}: the server ended while it waited for its turn:\n{server.last_words()}")
                continue
            tasks = [Task(run_id(serving, point), partial(served_run, deployment, serving, point, server.url, seed))
                     for point in todo(deployment, serving, results)]  # fmt: skip
            measure(tasks, results, end_s - time.monotonic(), serving.label, failed)
    finally:
        stop(servers)
    return failed


def _server(deployment: Deployment, serving: Serving, port: int, slot: int) -> LocalServer:
    log = deployment.folder / f"{serving.file}.log"
    return LocalServer(deployment.command(serving, port), deployment.environment(serving, slot), port, log)


def _tell_plan(deployment: Deployment, left: Sequence[Serving], results: Results, budget_s: float) -> None:
    count = sum(len(todo(deployment, serving, results)) for serving in left)
    took = ceil(len(left) / deployment.at_once) * _START_S + count * (deployment.loads.seconds + _AROUND_S)
    limit = f", stopped after {budget_s / 60:.3g} min" if took > budget_s else ""
    earlier = f" ({len(results.runs)} are in it already)" if results.runs else ""
    click.echo(
        f"serve: {len(left)} servers, {count} loads, about {took / 60:.2g} min{limit} → {results.path}{earlier}",
        err=True,
    )
    if not deployment.on_gpu:
        click.echo(
            "acceptance is not forced on a CPU, whose vLLM ends with it: accept lengths are an untrained head's",
            err=True,
        )
    for serving in left:
        click.echo(f"  {serving.label}", err=True)


def _leave(number: int, frame: FrameType | None) -> None:
    """A polite end: what was started is stopped on the way out."""
    sys.exit(128 + number)
