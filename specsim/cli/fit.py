"""`specsim fit`."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from specsim.cli.options import Fitting, example, fit_options, json_option, read_runs, runs_argument, show, written
from specsim.report.records import fit_record
from specsim.report.tables import fit_text


@click.command("fit", epilog=example("specsim fit runs.csv -o model.json"))
@runs_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the model here, for --model.")
@click.option(
    "--bootstrap",
    type=click.IntRange(100, 100_000),
    metavar="COUNT",
    help="Also refit to so many resamples, for the spread of each coefficient with the bound at 0 in it.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the resamples.")
@fit_options
@json_option
def command(
    runs: tuple[Path, ...],
    output: Path | None,
    bootstrap: int | None,
    seed: int,
    fitting: Fitting,
    as_json: bool,
) -> None:
    """Fit the cost model: fixed and per-token times of each phase, by NCCL setting.

    One weighted non-negative least-squares fit over every figure of every run, whole cycles and throughputs
    included. Says what the runs leave open.
    """
    fitted = fitting.of(read_runs(runs))
    if output is not None:
        written(output, fitted.model.save)
    resamples = None if bootstrap is None else fitted.resampled(bootstrap, np.random.default_rng(seed))
    record = fit_record(fitted, resamples)
    show(record, lambda: fit_text(record), as_json)
    if output is not None:
        click.echo(f"model written to {output}", err=True)
