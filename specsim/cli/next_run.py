"""`specsim next-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specsim.cli.options import (
    asked_from,
    configuration_options,
    example,
    fit_options,
    json_option,
    model_from,
    model_option,
    runs_argument,
    show,
)
from specsim.next_run import next_run
from specsim.report.next_run import plan_record, plan_text


@click.command("next-run", epilog=example("specsim next-run runs.csv --num-draft-tokens 4"))
@runs_argument
@configuration_options
@model_option
@fit_options
@json_option
def command(
    runs: tuple[Path, ...],
    model_path: Path | None,
    noise: float | None,
    allow_mixed: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell which measurement narrows the interval of a break-even most, by how much, and how to make it.

    Without a configuration it asks for the measured one that the runs tell least. Where two widths fix verify's line,
    the width that tests the line comes first.
    """
    asked = asked_from(options)
    model = model_from(runs, model_path, noise, allow_mixed)
    record = plan_record(model, next_run(model, asked))
    show(record, lambda: plan_text(record), as_json)
