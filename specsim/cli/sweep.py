"""`specsim sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from specsim.cli.options import (
    Source,
    accept_rate_option,
    counts,
    example,
    json_option,
    show,
    source_options,
    written,
)
from specsim.cli.progress import Progress
from specsim.quantities import SpecConfig
from specsim.report.sweep import sweep_record, sweep_text, write_csv
from specsim.sweep import Axes, assumed_law, drafting_method, law_from, sweep


def configuration(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Steps, topk and draft tokens of a text such as 3/1/4; a usage error says what is allowed."""
    if value is None:
        return None
    pieces = [piece.strip() for piece in value.split("/")]
    if len(pieces) != 3 or not all(piece.isdecimal() for piece in pieces):
        raise click.BadParameter(f"{value!r} is not num_steps/topk/num_draft_tokens, such as 3/1/4")
    return tuple(int(piece) for piece in pieces)


def axis_options(command: Any) -> Any:
    """The axes of a sweep; whatever is left out has a documented default."""
    for option in reversed(
        (
            click.option("--num-steps", callback=counts, metavar="COUNTS", help="Drafting depths.  [default: 1-8]"),
            click.option("--topk", callback=counts, metavar="COUNTS", help="Branches a draft step.  [default: 1,2,4]"),
            click.option(
                "--num-draft-tokens", callback=counts, metavar="COUNTS",
                help="Tokens verified a request and cycle, root included.  [default: 2-32]",
            ),
            click.option(
                "--batch-size", callback=counts, metavar="COUNTS",
                help="Requests running together.  [default: those of the speculative runs]",
            ),
            click.option("--nccl", multiple=True, help="NCCL setting, by its label; may be repeated.  [default: each]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    "sweep", epilog=example("specsim sweep --num-steps 1-8 --topk 1 --accept-rate 0.55 --present 5/1/6 --nccl default")
)
@axis_options
@accept_rate_option
@click.option(
    "--present",
    callback=configuration,
    metavar="S/k/N",
    help="What runs now: gets its regret, the throughput it gives away.",
)
@source_options
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write every cell here.")
@json_option
def command(
    source: Source,
    accept_rate: float | None,
    present: tuple[int, int, int] | None,
    csv_path: Path | None,
    as_json: bool,
    **axes: Any,
) -> None:
    """Find the best steps, topk and draft tokens at each batch size and NCCL setting.

    COUNTS are whole numbers and ranges, such as 1-8 or 1,2,4. Illegal combinations are left out and counted.
    Shows the best, what cannot be told from it, the regret of the present setting, and the engines' flags.
    """
    model = source.model()
    asked = Axes.completed(model, **{name: values or None for name, values in axes.items()})
    law = law_from(model) if accept_rate is None else assumed_law(accept_rate)
    mine = None if present is None else SpecConfig(*present, drafting_method(model))
    found = sweep(
        model, law, asked, present=mine, allow_mixed=source.allow_mixed, keep_cells=csv_path is not None,
        progress=Progress("sweep"),
    )  # fmt: skip
    if csv_path is not None:
        written(csv_path, lambda path: write_csv(found, path))
    record = sweep_record(model, found)
    show(record, lambda: sweep_text(record), as_json)
    if csv_path is not None:
        click.echo(f"{found.evaluated:,} cells written to {csv_path}", err=True)
