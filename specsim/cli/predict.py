"""`specsim predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specsim.cli.options import (
    asked_from,
    case_options,
    example,
    fit_options,
    json_option,
    model_from,
    model_option,
    runs_argument,
    show,
)  # fmt: skip
from specsim.questions import predictions
from specsim.report.records import predictions_record
from specsim.report.tables import predict_text


@click.command("predict", epilog=example("specsim predict --num-draft-tokens 4 --accept-length 2.1 --nccl LL-Ring-SYS"))
@runs_argument
@case_options
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
    """Predict cycle time by phases, throughput, per-user rate and speed-up at an accept length.

    Configurations, batch sizes, NCCL settings and accept lengths that are not stated are those measured.
    """
    asked = asked_from(options)
    model = model_from(runs, model_path, noise, allow_mixed)
    record = predictions_record(model, *predictions(model, asked))
    show(record, lambda: predict_text(record), as_json)
