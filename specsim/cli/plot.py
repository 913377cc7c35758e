"""`specsim plot`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from specsim.cli.options import (
    Fitting,
    Source,
    accept_rate_option,
    asked_from,
    context_option,
    counted_case_options,
    example,
    fit_options,
    json_option,
    model_option,
    show,
    written,
)  # fmt: skip
from specsim.cli.progress import Progress

PLAIN = ("break-even", "cycle", "throughput")
MAPS = ("map", "break-even-map")
_RANGES = ("num_steps", "topk", "num_draft_tokens", "batch_size")


@click.command("plot", epilog=example("specsim plot break-even runs.csv -o plots"))
@click.argument("words", nargs=-1, metavar="[KIND]... [RUNS]...")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path(), show_default="the current folder",
              help="A folder for PNG and SVG of each plot, or one file (.png or .svg) for a single KIND.")  # fmt: skip
@counted_case_options
@accept_rate_option
@model_option
@fit_options
@context_option
@json_option
def command(
    words: tuple[str, ...],
    output: Path,
    accept_rate: float | None,
    model_path: Path | None,
    fitting: Fitting,
    context_len: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Draw plots as PNG and SVG: KIND is break-even, cycle, throughput, map or break-even-map; without it, the first three.

    break-even: the accept length needed against draft tokens, a line per NCCL setting, with what was measured.
    cycle: the phases of each configuration's cycle. throughput: tok/s against accept length, crossing marked.
    map: speed-up by steps and draft tokens at the best topk. break-even-map: the acceptance rate that chains need,
    by batch size and steps. Maps sweep COUNTS, such as 1-8 or 1,2,4, at the lengths of --accept-rate or the runs' law;
    the other kinds take one number each.
    """
    kinds = tuple(word for word in words if word in PLAIN + MAPS and not Path(word).exists()) or PLAIN
    runs = tuple(Path(word) for word in words if word not in kinds or Path(word).exists())
    _refuse_near_kinds(runs)
    model = Source(runs, model_path, fitting, context_len).model()
    plain, maps = (tuple(kind for kind in kinds if kind in family) for family in (PLAIN, MAPS))
    if plain and maps:
        raise click.UsageError(
            f"draw {' and '.join(maps)} on their own: they take ranges, the other kinds single numbers"
        )
    if maps:
        drawn, notes = _maps(model, maps, accept_rate, fitting.allow_mixed, options)
    else:
        drawn, notes = _plots(model, plain, accept_rate, options)
    files = _draw(drawn, output)
    record = {"files": [str(path) for path in files], "notes": notes}
    show(record, lambda: "\n".join(str(path) for path in files), as_json)


def _refuse_near_kinds(runs: tuple[Path, ...]) -> None:
    """A word that is no file but nearly a KIND is a slip, not a missing file."""
    for path in runs:
        near = get_close_matches(str(path), PLAIN + MAPS, n=1)
        if near and not path.exists():
            raise click.UsageError(f"{path} is neither a file nor a KIND: did you mean {near[0]!r}?")


Drawings = list[tuple[str, Callable[[], Any]]]


def _plots(
    model: Any, kinds: tuple[str, ...], accept_rate: float | None, options: dict[str, Any]
) -> tuple[Drawings, list[str]]:
    """The plain plots of one question."""
    from specsim.report.plots import drawings

    if accept_rate is not None:
        raise click.UsageError("--accept-rate is for map and break-even-map")
    for name in _RANGES:
        values = options[name] or (None,)
        if len(values) > 1:
            raise click.UsageError(
                f"--{name.replace('_', '-')} takes one number here; ranges are for {', '.join(MAPS)}"
            )
        options[name] = values[0]
    return list(drawings(model, asked_from(options), kinds)), list(model.notes)


def _maps(
    model: Any, kinds: tuple[str, ...], accept_rate: float | None, allow_mixed: bool, options: dict[str, Any]
) -> tuple[Drawings, list[str]]:
    """The maps, a sweep each: one of trees and chains, one of chains."""
    from specsim.report.maps import drawings, map_notes
    from specsim.sweep import Axes, assumed_law, law_from, sweep

    options["nccl"] = options["nccl"] and (options["nccl"],)
    law = law_from(model) if accept_rate is None else assumed_law(accept_rate)
    drawn: Drawings = []
    notes: list[str] = []
    for kind in kinds:
        axes = Axes.completed(model, **options) if kind == "map" else _chain_axes(model, kinds, options)
        found = sweep(model, law, axes, allow_mixed=allow_mixed, progress=Progress("sweep"))
        drawn += drawings(model, found, (kind,))
        notes += map_notes(model, found)
    return drawn, list(dict.fromkeys(notes))


def _chain_axes(model: Any, kinds: tuple[str, ...], options: dict[str, Any]) -> Any:
    """The chains of a question, for the map of what they need."""
    from specsim.sweep import Axes

    own = {name: values for name, values in options.items() if name not in ("topk", "num_draft_tokens")}
    if kinds == ("break-even-map",) and (options["topk"] or options["num_draft_tokens"]):
        raise click.UsageError("break-even-map is of chains: topk is 1, and draft tokens follow from --num-steps")
    return Axes.chains(model, **own)


def _draw(drawn: Drawings, output: Path) -> list[Path]:
    """Draw each kind into its files, with a progress bar on a terminal."""
    from specsim.report.plots import FORMATS, save

    single = output.suffix.lstrip(".") in FORMATS
    if output.suffix and not single and not output.is_dir():
        raise click.UsageError(f"{output}: plots are written as {' or '.join(FORMATS)}; give one of those, or a folder")
    if single and len(drawn) > 1:
        raise click.UsageError(f"{output} is one file: name one KIND ({', '.join(PLAIN + MAPS)}), or give a folder")
    if not single:
        written(output, lambda folder: folder.mkdir(parents=True, exist_ok=True))
    files = []
    with click.progressbar(drawn, label="drawing", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
        for kind, draw in bar:
            figure = draw()
            name = kind.replace("-", "_")
            paths = [output] if single else [output / f"{name}.{form}" for form in FORMATS]
            for path in paths:
                written(path, lambda to, figure=figure: save(figure, to))  # type: ignore[misc]
            files += paths
    return files
