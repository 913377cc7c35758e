"""`specsim plot`."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from functools import partial
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
@click.argument("words", nargs=-1, metavar="[KIND]... [RUNS]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path(), show_default="the current folder",
              help="A folder for PNG and SVG of each plot, or one file (.png or .svg) for a single KIND.")  # fmt: skip
@partial(case_options, accept_length=False)
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
    kinds = tuple(word for word in words if word in KINDS and not Path(word).exists()) or KINDS
    runs = tuple(Path(word) for word in words if word not in kinds or Path(word).exists())
    _refuse_near_kinds(runs)
    asked = asked_from(options)
    model = model_from(runs, model_path, noise, allow_mixed)
    files = _draw(model, asked, kinds, output)
    record = {"files": [str(path) for path in files], "notes": list(model.notes)}
    show(record, lambda: "\n".join(str(path) for path in files), as_json)


def _refuse_near_kinds(runs: tuple[Path, ...]) -> None:
    """A word that is no file but nearly a KIND is a slip, not a missing file."""
    for path in runs:
        near = get_close_matches(str(path), KINDS, n=1)
        if near and not path.exists():
            raise click.UsageError(f"{path} is neither a file nor a KIND: did you mean {near[0]!r}?")


def _draw(model: Any, asked: Any, kinds: tuple[str, ...], output: Path) -> list[Path]:
    """Draw each kind into its files, with a progress bar on a terminal."""
    from specsim.report.plots import FORMATS, drawings, save

    single = output.suffix.lstrip(".") in FORMATS
    if output.suffix and not single and not output.is_dir():
        raise click.UsageError(f"{output}: plots are written as {' or '.join(FORMATS)}; give one of those, or a folder")
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
