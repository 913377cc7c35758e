"""One measurement after another, within a budget, each on disk before the next; a plan is told first."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click

from calibration.results import Results, Row
from specsim.errors import SpecsimError


@dataclass(frozen=True)
class Task:
    """One run to be measured: its name, and what measures it."""

    name: str
    measure: Callable[[], Row]


@dataclass(frozen=True)
class Outcome:
    """How a session ended: runs measured now, those that an earlier start had, and those that the budget left."""

    measured: int
    earlier: int
    left: int


def tell_plan(what: str, tasks: Sequence[Task], results: Results, seconds_each: float, budget_s: float) -> None:
    """Print what is to be measured, how many, about how long, and where it goes."""
    todo = [task for task in tasks if not results.has(task.name)]
    took = seconds_each * len(todo)
    limit = f", stopped after {budget_s / 60:.3g} min" if took > budget_s else ""
    earlier = f" ({len(tasks) - len(todo)} are in it already)" if len(todo) < len(tasks) else ""
    click.echo(f"{what}: {len(todo)} runs, about {took / 60:.2g} min{limit} → {results.path}{earlier}", err=True)


def measure(
    tasks: Iterable[Task], results: Results, budget_s: float, label: str, failed: list[str] | None = None
) -> Outcome:
    """Measure what the file does not hold yet, in order, until the budget is spent.

    A run that fails ends it, unless there is a list for what failed: then that is told there, and the next is begun.
    """
    tasks = list(tasks)
    todo = [task for task in tasks if not results.has(task.name)]
    end, done = time.monotonic() + budget_s, 0
    with click.progressbar(todo, label=label, file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        for task in bar:
            if time.monotonic() >= end:
                break
            try:
                results.add({"id": task.name, **task.measure()})
                done += 1
            except SpecsimError as error:
                if failed is None:
                    raise
                failed.append(f"{task.name}: {error}")
    return Outcome(done, len(tasks) - len(todo), len(todo) - done)


def tell_outcome(outcome: Outcome, results: Results) -> None:
    """Print how it ended, and how to go on."""
    more = f"; {outcome.left} left by the budget, the same command goes on" if outcome.left else ""
    click.echo(f"{outcome.measured} runs measured, {len(results.runs)} in {results.path}{more}", err=True)
