"""`specsim evaluate`."""

from __future__ import annotations

from pathlib import Path

import click

from specsim.cli.options import Fitting, example, fit_options, json_option, read_runs, runs_argument, show
from specsim.cost.model import CostModel
from specsim.evaluation import evaluate
from specsim.report.evaluation import evaluation_record, evaluation_text


@click.command("evaluate", epilog=example("specsim evaluate runs.csv"))
@runs_argument
@click.option(
    "--model", "model_path", type=click.Path(path_type=Path),
    help="A model from 'specsim fit -o'.  [default: fitted to RUNS, so that nothing is held out]",
)  # fmt: skip
@fit_options
@json_option
def command(runs: tuple[Path, ...], model_path: Path | None, fitting: Fitting, as_json: bool) -> None:
    """Hold a model's predictions against the measurements of RUNS.

    Per figure and in sum: difference, whether the measurement lies in the interval of a new measurement, and what
    could not be compared, with the reason. A bare target forward is a run with verify_ms and num_steps 0.
    """
    measured = read_runs(runs)
    if model_path is None:
        model = fitting.of(measured).model
    elif fitting.of_a_fit:
        raise click.UsageError("a model has its noise and bare forwards in it: give --model or those, not both")
    else:
        model = CostModel.load(model_path)
    record = evaluation_record(model, evaluate(model, measured, allow_mixed=fitting.allow_mixed))
    show(record, lambda: evaluation_text(record), as_json)
