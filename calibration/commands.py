"""What the subcommands do once their options are read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import click

from calibration.allreduce import (
    COLUMNS,
    GATHERED,
    IMPLEMENTATIONS,
    PATTERNS,
    SETTINGS,
    SIZES,
    TOKENS,
    VLLM,
    VLLM_NCCL,
    Table,
    Way,
    Work,
    in_a_forward,
    measured,
    placed,
    ways,
)
from calibration.forward import Bench, tasks
from calibration.grids import Point, next_width, points
from calibration.machine import Machine, recorded_command
from calibration.results import Results, Row
from calibration.session import Task, measure, tell_outcome, tell_plan
from calibration.shapes import ModelShape, read_shape
from specsim.errors import SpecsimError
from specsim.runs.allreduce import GATHER, NCCL

_SECONDS_EACH = 1.5  # a point's capture and repeats on an H200 at 8B; weights are filled once


def machine_for_tests_or_real() -> Machine:
    """The machine, saying on a CPU that its times stand for nothing."""
    try:
        machine = Machine.here()
    except ImportError:
        raise SpecsimError("torch is not installed: pip install torch, in a build for this machine's GPU") from None
    if not machine.on_gpu:
        click.echo("no GPU: small shapes on the CPU test the code, and their times say nothing of a GPU", err=True)
    return machine


def results_for(bench: Bench, output: Path, about: str, instrument: str | None = None, **asked: float) -> Results:
    """The result file of a bench, with what the machine is; `asked` is what all its runs share beside the target."""
    defaults = bench.defaults() | ({"instrument": instrument} if instrument else {})
    card = {**bench.shape.card(), **asked, "provenance": bench.machine.provenance()}
    return Results(output, about, defaults, card)


def run_forward(
    model: Path,
    output: Path,
    budget: float,
    seed: int,
    batch_size: tuple[int, ...],
    num_draft_tokens: tuple[int, ...],
    context_len: tuple[int, ...],
    most_tokens: int,
    extra_widths: int,
    eager: bool,
    skew: float,
    machine: Machine | None = None,
) -> None:
    """`python -m calibration forward`, on a machine that was told of already if one is given."""
    shape, machine = read_shape(model), machine or machine_for_tests_or_real()
    bench = Bench(shape, machine, not eager, skew, seed)
    results = results_for(
        bench, output, f"bare forwards of {shape.name}, random weights, routing skew {skew:g}", skew=skew
    )
    grid = points(batch_size, num_draft_tokens, context_len, most_tokens)
    if not grid:
        raise SpecsimError(f"nothing to measure: no forward has at most {most_tokens} tokens (--most-tokens)")
    planned = list(tasks(bench, grid))
    tell_plan("forward", planned, results, _SECONDS_EACH, 60 * budget)
    outcome = measure(planned, results, 60 * budget, "forward")
    if not outcome.left:
        for task in _bends(bench, results, grid, extra_widths, most_tokens):
            measure([task], results, 60 * budget, "bend")
    tell_outcome(outcome, results)


def run_quick(model: Path, output: Path, budget: float, seed: int) -> None:
    """`python -m calibration quick`: forwards, the fit, its plot, and what they cannot tell."""
    from calibration.quick import CANNOT_KNOW, model_of

    runs = output / "forward.json"
    machine = machine_for_tests_or_real()
    batches, widths, contexts = (
        ((1, 4, 16, 64), (1, 2, 4, 8, 16), (512, 4096)) if machine.on_gpu else ((1, 2), (1, 2, 4), (16, 512))
    )
    run_forward(model, runs, budget, seed, batches, widths, contexts, 1024, 4, eager=False, skew=0.0, machine=machine)
    written = model_of(runs, output)
    for note in (*written["notes"], *(f"NOT KNOWN: {line}" for line in CANNOT_KNOW)):
        click.echo(f"* {note}")
    click.echo(
        f"{written['model']} for specsim --model, {written['plot']}; {runs} for --bare-forwards, under served runs"
    )


def _bends(bench: Bench, results: Results, grid: list[Point], count: int, most_tokens: int) -> Iterator[Task]:
    """Widths where the slope changes, one after the other, at the smallest batch and context of the grid."""
    batch, context = (min(getattr(point, name) for point in grid) for name in ("batch_size", "context_len"))
    for _ in range(count):
        known = {
            int(run.get("num_draft_tokens", 1)): float(sum(figure) / len(figure))
            for run in results.runs
            if (run["batch_size"], run["context_len"]) == (batch, context)
            and (figure := run.get("verify_ms", run.get("decode_ms")))
        }
        width = next_width(known)
        if width is None or width * batch > most_tokens:
            return
        yield from tasks(bench, [Point(batch, width, context)])


def run_cycle(
    model: Path,
    output: Path,
    budget: float,
    seed: int,
    chains: tuple[int, ...],
    trees: str,
    batch_size: tuple[int, ...],
    context_len: int,
    accept_rate: float,
) -> None:
    """`python -m calibration cycle`."""
    from calibration.cycle import INSTRUMENT, Plan, cycle_tasks

    shape, machine = read_shape(model), machine_for_tests_or_real()
    bench = Bench(shape, machine, True, 0.0, seed)
    about = f"whole speculative cycles of {shape.name}, random weights, acceptance forced at {accept_rate:g} a draft"
    results = results_for(bench, output, about, INSTRUMENT, accept_rate=accept_rate)
    specs = [(steps, 1, steps + 1) for steps in chains] + list(trees_of(trees))
    planned = list(cycle_tasks(Plan(bench, specs, batch_size, context_len, accept_rate)))
    tell_plan("cycle", planned, results, 2 * _SECONDS_EACH, 60 * budget)
    tell_outcome(measure(planned, results, 60 * budget, "cycle"), results)


def run_allreduce(
    output: Path, ranks: int | None, settings: str, implementations: str, model: Path | None, budget: float, seed: int
) -> None:
    """`python -m calibration allreduce`: OUTPUT (back to back), -after, -after-cold, -gather; with a model -forward, -in-forward."""
    machine = machine_for_tests_or_real()
    ranks = ranks or machine.count
    if machine.on_gpu and ranks > machine.count:
        raise SpecsimError(f"--ranks {ranks}, but this machine has {machine.count} GPUs")
    asked = ways(_implementations(implementations, machine), listed("--settings", settings, SETTINGS))
    small = not machine.on_gpu
    sizes, gathered, tokens = (SIZES[:3], GATHERED[:2], TOKENS[:2]) if small else (SIZES, GATHERED, TOKENS)
    shape = read_shape(model) if model else None
    if shape is not None:
        shape.split(ranks)  # raises where it does not divide
    kinds = ["allreduce", "gather", *(["forward"] if shape else [])]
    for kind in kinds:
        for table in _tables(output, kind):
            table.refuse_others({"ranks": ranks, "hardware": machine.hardware})
    wanted = [(way, kind) for way, kind in product(asked, kinds) if _says(way, kind) and not _have(output, way, kind)]
    _tell_ways(wanted, output, budget)
    work = Work("", ranks, sizes, tokens, shape, gathered=gathered, seed=seed, command=recorded_command(sys.argv[1:]))
    failed, left = _measure_ways(output, work, wanted, time.monotonic() + 60 * budget)
    for line in failed:
        click.echo(line, err=True)
    done = _tables(output, "allreduce")[0]
    if not done.rows:
        nothing = "nothing that was asked could be measured"
        raise SpecsimError(nothing if failed else "nothing was measured within the budget: give it more")
    more = f"; {left} measurements left by the budget, the same command goes on" if left else ""
    click.echo(f"{len({Way.of(row) for row in done.rows})} settings and implementations in {output}{more}", err=True)


def _says(way: Way, kind: str) -> bool:
    """Whether a kind of work says anything of a way: NCCL alone gathers."""
    return kind != "gather" or way.implementation == NCCL


def _tell_ways(wanted: list[tuple[Way, str]], output: Path, budget: float) -> None:
    """The plan: what is left to measure, about how long, where to."""
    left = list(dict.fromkeys(way for way, _ in wanted))
    of_nccl = sum(way.implementation == NCCL for way in left)
    said = [f"NCCL under {of_nccl} setting{'s' * (of_nccl > 1)}"] * (of_nccl > 0)
    said += [way.implementation for way in left if way.implementation != NCCL]
    kinds = dict.fromkeys(kind for _, kind in wanted)
    what = f"{', '.join(said)} × {' and '.join(kinds)}" if wanted else "nothing left to measure"
    minutes = 0.4 * len(wanted)
    stopped = f", begins none after {budget:g} min" if budget < minutes else ""
    click.echo(f"allreduce: {what}, about {minutes:.1f} min{stopped} → {output}", err=True)


def _have(output: Path, way: Way, kind: str) -> bool:
    """Whether all files of a kind have a way."""
    return all(table.has(way) for table in _tables(output, kind))


def _measure_ways(output: Path, work: Work, wanted: list[tuple[Way, str]], end_s: float) -> tuple[list[str], int]:
    """Measure ways, a kind at a time; what failed, in words, and how many the budget left."""
    failed, left = [], 0
    with click.progressbar(wanted, label="all-reduces", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        for way, kind in bar:
            if time.monotonic() >= end_s:
                left += 1
                continue
            try:
                rows = measured(replace(work, kind=kind), way)
                _add(output, kind, way, rows, work.shape)
            except SpecsimError as error:
                failed.append(str(error))
    return failed, left


def listed(option: str, written: str, allowed: Iterable[str]) -> list[str]:
    """Labels as in default,Ring-LL, or all of them; raises SpecsimError on one that is none."""
    allowed = list(allowed)
    labels = allowed if written == "all" else [label.strip() for label in written.split(",")]
    unknown = [label for label in labels if label not in allowed]
    if unknown:
        raise SpecsimError(f"{option}: {unknown[0]!r} is not known; allowed: all, {', '.join(allowed)}")
    return list(dict.fromkeys(labels))


def _implementations(written: str, machine: Machine) -> list[str]:
    """Those asked for; raises SpecsimError on one that cannot run here."""
    asked = listed("--implementations", written, IMPLEMENTATIONS)
    of_vllm = [name for name in asked if name in (VLLM, VLLM_NCCL)]
    if of_vllm and find_spec("vllm") is None:
        raise SpecsimError(
            f"--implementations: {of_vllm[0]} needs vLLM, which is not installed here: install it, or leave it out"
        )
    on_gpus = [name for name in asked if name not in (NCCL, *of_vllm)]
    if on_gpus and not machine.on_gpu:
        raise SpecsimError(
            f"--implementations: {on_gpus[0]} needs GPUs; without them nccl (by gloo) and vLLM's are measured"
        )
    return asked


def _tables(output: Path, kind: str) -> list[Table]:
    """The files of a kind: back to back and after products, gathers, or the forwards and what their all-reduces took."""
    names = {"allreduce": {"": "allreduce", "-after": "allreduce", "-after-cold": "allreduce"},
             "gather": {"-gather": "allreduce"},
             "forward": {"-forward": "forward", "-in-forward": "allreduce"}}[kind]  # fmt: skip
    return [Table(output.with_name(output.stem + name + ".csv"), COLUMNS[form]) for name, form in names.items()]


def _add(output: Path, kind: str, way: Way, rows: list[Row], shape: ModelShape | None) -> None:
    """Put a way's rows into the files of their kind."""
    if kind == "forward":
        assert shape is not None
        parts = [rows, list(in_a_forward(rows, shape))]
    else:
        patterns = {"allreduce": PATTERNS, "gather": (GATHER,)}[kind]
        parts = [list(placed(rows, pattern)) for pattern in patterns]
    for table, each in zip(_tables(output, kind), parts, strict=True):
        table.add(way, each)


def trees_of(written: str) -> Iterator[tuple[int, int, int]]:
    """Trees as steps/topk/draft tokens; raises on what is none."""
    from specsim.quantities import SpecConfig

    for word in filter(None, (part.strip() for part in written.split(","))):
        numbers = word.split("/")
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            raise SpecsimError(f"--trees: {word!r} is not steps/topk/draft tokens, such as 3/4/8")
        steps, topk, width = (int(number) for number in numbers)
        SpecConfig(steps, topk, width)  # raises, with the legal range
        yield steps, topk, width
