"""`specsim next-run`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from specsim.cli.options import (
    Source,
    accept_rate_option,
    asked_from,
    case_options,
    example,
    json_option,
    show,
    source_options,
)
from specsim.cost.model import CostModel
from specsim.errors import NotIdentifiedError
from specsim.next_run import next_run, next_run_for_best
from specsim.next_run.lengths import Law
from specsim.report.next_run import BEST_SETTING, BREAK_EVEN, best_record, best_text, plan_record, plan_text
from specsim.sweep import assumed_law, law_from


@click.command("next-run", epilog=example("specsim next-run runs.csv --num-draft-tokens 4"))
@click.option(
    "--question", type=click.Choice([BREAK_EVEN, BEST_SETTING]), default=BREAK_EVEN, show_default=True,
    help="What the measurement is to tell.",
)  # fmt: skip
@case_options
@accept_rate_option
@source_options
@json_option
def command(source: Source, question: str, accept_rate: float | None, as_json: bool, **options: Any) -> None:
    """Tell which measurement narrows the interval of an answer most, by how much, and how to make it.

    For a configuration's break-even: without a configuration, that of the measured one which the runs tell least. For
    the best setting: the measured configurations, the one named and plain decode compete under every NCCL setting, by
    throughput; the best is held against the rival that can be told from it least. Where the runs leave the model's form
    open, the width that tests it comes first.
    """
    asked = asked_from(options)
    model = source.model()
    if question == BEST_SETTING:
        record = best_record(model, next_run_for_best(model, asked, _law(model, accept_rate)))
        show(record, lambda: best_text(record), as_json)
        return
    if accept_rate is not None or asked.accept_length is not None:
        raise click.UsageError(f"accept lengths have no part in a break-even: they belong to --question {BEST_SETTING}")
    record = plan_record(model, next_run(model, asked))
    show(record, lambda: plan_text(record), as_json)


def _law(model: CostModel, accept_rate: float | None) -> Law | None:
    """The law of acceptance that is stated, else the runs' own, if they have one."""
    if accept_rate is not None:
        return assumed_law(accept_rate)
    with suppress(NotIdentifiedError):  # then only what was measured or stated counts, and the record says so
        return law_from(model)
    return None
