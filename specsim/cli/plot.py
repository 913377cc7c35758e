"""`specsim plot`."""

from __future__ import annotations

import sys
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
    show,
    written,
)  # fmt: skip

KINDS = ("break-even", "cycle", "throughput")


@click.command("plot", epilog=example("specsim plot break-even runs.csv -o plots"))
@click.argument("words", nargs=-1, metavar="[KIND] [RUNS]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path(), show_default="the current folder",
              help="A folder for PNG and SVG of each plot, or one file (.png or .svg) for a single KIND.")  # fmt: skip
@case_options
@model_option
@fit_options
@json_option
def command(
    words: tuple[str, ...],
    output: Path,
    model_path: Path | None,
    noise: float | None,
    allow_mixed: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Draw plots as PNG and SVG: KIND is break-even, cycle or throughput; without it, all three.

    break-even: the accept length needed against draft tokens, a line per NCCL setting, with what was measured.
    cycle: the phases of each configuration's cycle. throughput: tok/s against accept length, crossing marked.
    """
    kinds = (words[0],) if words and words[0] in KINDS else KINDS
    runs = tuple(Path(word) for word in (words[1:] if kinds != KINDS else words))
    asked = asked_from(options)
    model = model_from(runs, model_path, noise, allow_mixed)
    files = _draw(model, asked, kinds, output)
    record = {"files": [str(path) for path in files], "notes": list(model.notes)}
    show(record, lambda: "\n".join(str(path) for path in files), as_json)


def _draw(model: Any, asked: Any, kinds: tuple[str, ...], output: Path) -> list[Path]:
    """Draw each kind into its files, with a progress bar on a terminal."""
    from specsim.report.plots import FORMATS, drawings, save

    single = output.suffix.lstrip(".") in FORMATS
    if single and len(kinds) > 1:
        raise click.UsageError(f"{output} is one file: name one KIND ({', '.join(KINDS)}), or give a folder")
    if not single:
        written(output, lambda folder: folder.mkdir(parents=True, exist_ok=True))
    files = []
    with click.progressbar(
        list(drawings(model, asked, kinds)), label="drawing", file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as drawn:
        for kind, draw in drawn:
            figure = draw()
            name = kind.replace("-", "_")
            paths = [output] if single else [output / f"{name}.{form}" for form in FORMATS]
            for path in paths:
                written(path, lambda to, figure=figure: save(figure, to))  # type: ignore[misc]
            files += paths
    return files
