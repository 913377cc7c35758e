"""`specsim break-even`."""

from __future__ import annotations

from typing import Any

import click

from specsim.cli.options import (
    Source,
    asked_from,
    case_options,
    example,
    json_option,
    read_runs,
    show,
    source_options,
)  # fmt: skip
from specsim.questions import Asked, break_evens
from specsim.report.records import break_evens_record
from specsim.report.tables import break_even_text


@click.command(
    "break-even", epilog=example("specsim break-even --nccl default --baseline-nccl LL-Ring-SYS --allow-mixed")
)
@case_options
@click.option(
    "--baseline-nccl", help="NCCL setting of the baseline, where it is not the cycle's (needs --allow-mixed)."
)
@source_options
@json_option
def command(source: Source, baseline_nccl: str | None, as_json: bool, **options: Any) -> None:
    """Tell the accept length that speculation needs, whether it can be had, and whether the measured one pays.

    Like for like by default: the baseline is plain decode under the same NCCL setting and batch size. Without
    RUNS and options it tells the bundled campaign's story.
    """
    asked = asked_from(options)
    if not source.runs and source.model_path is None and asked == Asked() and baseline_nccl is None:
        _tell_campaign(source, as_json)
        return
    model = source.model()
    record = break_evens_record(model, *break_evens(model, asked, baseline_nccl, source.allow_mixed))
    show(record, lambda: break_even_text(record), as_json)


def _tell_campaign(source: Source, as_json: bool) -> None:
    from specsim.report.story import corrections, story_text

    campaign = read_runs(())
    model = source.fitting.of(campaign).model
    record = break_evens_record(model, *break_evens(model, Asked(), None, source.allow_mixed))
    record["corrections"] = corrections(campaign, model)
    show(record, lambda: story_text(campaign.about, break_even_text(record), record["corrections"]), as_json)
