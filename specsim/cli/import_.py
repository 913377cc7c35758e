"""`specsim import`."""

from __future__ import annotations

from pathlib import Path

import click

from specsim.cli.options import example, json_option, show, written
from specsim.cli.progress import Progress
from specsim.report.import_ import about, import_record, import_text
from specsim.runs.importing import import_files
from specsim.runs.recognition import FORMATS
from specsim.runs.writing import WRITERS, write_runs


def fields(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """FIELD=VALUE pairs; a usage error says what is allowed."""
    pairs = [value.partition("=") for value in values]
    if wrong := [
        value for value, (name, equals, _) in zip(values, pairs, strict=True) if not equals or not name.strip()
    ]:
        raise click.BadParameter(f"{wrong[0]!r} is not FIELD=VALUE, such as num_draft_tokens=4")
    return {name.strip(): text.strip() for name, _, text in pairs}


@click.command("import", epilog=example("specsim import server.log --set num_draft_tokens=4 -o runs.csv"))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), metavar="FORMAT",
              help=f"Read every FILE as this: {', '.join(FORMATS)}.  [default: told by content]")  # fmt: skip
@click.option("--set", "stated", multiple=True, callback=fields, metavar="FIELD=VALUE",
              help="State a field of every run that the files do not; any field of docs/data-format.md.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the runs here (.csv or .json).")
@json_option
def command(
    files: tuple[Path, ...], format_name: str | None, stated: dict[str, str], output: Path | None, as_json: bool
) -> None:
    """Read server logs, metrics and benchmark results as runs.

    Steady intervals of one batch size become one run with repeats. Every run says its file and lines; whatever made
    no run is counted and shown with the reason (docs/importing.md).
    """
    if output is not None and output.suffix not in WRITERS:
        raise click.UsageError(f"{output}: runs are written as {' or '.join(WRITERS)}")
    imported = import_files(files, stated, format_name, Progress("import"))
    if output is not None:
        written(output, lambda path: write_runs(imported.rows, about(imported), path))
    show(import_record(imported), lambda: import_text(imported), as_json)
    if output is not None:
        click.echo(f"{len(imported.runs)} runs written to {output}", err=True)
