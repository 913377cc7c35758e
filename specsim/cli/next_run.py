"""`specsim next-run`."""

from __future__ import annotations

from typing import Any

import click

from specsim.cli.options import (
    Source,
    asked_from,
    configuration_options,
    example,
    json_option,
    show,
    source_options,
)
from specsim.next_run import next_run
from specsim.report.next_run import plan_record, plan_text


@click.command("next-run", epilog=example("specsim next-run runs.csv --num-draft-tokens 4"))
@configuration_options
@source_options
@json_option
def command(source: Source, as_json: bool, **options: Any) -> None:
    """Tell which measurement narrows the interval of a break-even most, by how much, and how to make it.

    Without a configuration it asks for the measured one that the runs tell least. Where two widths fix verify's line,
    the width that tests the line comes first.
    """
    asked = asked_from(options)
    model = source.model()
    record = plan_record(model, next_run(model, asked))
    show(record, lambda: plan_text(record), as_json)
