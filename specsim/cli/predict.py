"""`specsim predict`."""

from __future__ import annotations

from typing import Any

import click

from specsim.cli.options import (
    Source,
    asked_from,
    case_options,
    example,
    json_option,
    show,
    source_options,
)  # fmt: skip
from specsim.questions import predictions
from specsim.report.records import predictions_record
from specsim.report.tables import predict_text


@click.command("predict", epilog=example("specsim predict --num-draft-tokens 4 --accept-length 2.1 --nccl LL-Ring-SYS"))
@case_options
@source_options
@json_option
def command(source: Source, as_json: bool, **options: Any) -> None:
    """Predict cycle time by phases, throughput, per-user rate and speed-up at an accept length.

    Configurations, batch sizes, NCCL settings and accept lengths that are not stated are those measured.
    """
    asked = asked_from(options)
    model = source.model()
    record = predictions_record(model, *predictions(model, asked))
    show(record, lambda: predict_text(record), as_json)
