"""`specsim compare`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from specsim.cli.options import example, json_option, show
from specsim.report.compare import comparison_record, comparison_text, plan_record, plan_text
from specsim.simulation.comparison import compare, plan
from specsim.simulation.measured import (
    Ground,
    Side,
    Stated,
    campaign_sides,
    differing,
    side_of_file,
    sides_of_files,
    sides_stated,
)

Number = TypeVar("Number", int, float)
_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_LARGEST_SHARE = 10.0


def share(written: str) -> float:
    """A share written as 40% or 0.4; ValueError says what is allowed."""
    number = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    if not 0 < number <= _LARGEST_SHARE:
        raise ValueError
    return number


def count(written: str) -> int:
    """A whole number of at least 1; ValueError otherwise."""
    if not 1 <= int(written) <= 10**9:
        raise ValueError
    return int(written)


def length(written: str) -> float:
    """An accept length; ValueError below 1."""
    number = float(written)
    if not 1 <= number < math.inf:
        raise ValueError
    return number


def of_two(read: Callable[[str], Number], allowed: str) -> Callable[..., tuple[Number, Number] | None]:
    """A callback that reads one value for both benchmarks, or two with a comma."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Number, Number] | None:
        if value is None:
            return None
        try:
            found = [read(part.strip()) for part in value.split(",")]
        except ValueError:
            found = []
        if len(found) not in (1, 2):
            raise click.BadParameter(f"{value!r} is not {allowed}, or two of them with a comma between")
        return found[0], found[-1]

    return callback


def planned_share(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """The difference that a plan is to see."""
    try:
        return None if value is None else share(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a share such as 3% or 0.03") from None


@click.command("compare", epilog=example("specsim compare --tok-s 53.2 56.7 --prompts 5 --spread 40%"))
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE FILE]")
@click.option(
    "--tok-s", nargs=2, type=click.FloatRange(min=0, min_open=True), help="Two throughputs, instead of files."
)
@click.option("--prompts", callback=of_two(count, "a whole number above 0"), metavar="N[,N]",
              help="Prompts of the benchmarks.")  # fmt: skip
@click.option("--spread", callback=of_two(share, "a share such as 40% or 0.4"), metavar="SHARE[,SHARE]",
              help="Relative standard deviation of throughput from prompt to prompt.")  # fmt: skip
@click.option("--output-len", callback=of_two(count, "a whole number above 0"), metavar="M[,M]",
              help="Output tokens of a prompt in these benchmarks.")  # fmt: skip
@click.option("--accept-length", callback=of_two(length, "a number of at least 1"), metavar="L[,L]",
              help="Accept length, bonus included: with steps and output length it tells how far cycles scatter.")  # fmt: skip
@click.option("--num-steps", callback=of_two(count, "a whole number above 0"), metavar="S[,S]", help="Drafting depth.")
@click.option("--plan", "difference", callback=planned_share, metavar="SHARE",
              help="Tell how many prompts it takes to see a difference such as 3%, instead of comparing.")  # fmt: skip
@json_option
def command(
    files: tuple[Path, ...],
    tok_s: tuple[float, float] | None,
    difference: float | None,
    as_json: bool,
    **stated: tuple[Any, Any] | None,
) -> None:
    """Tell whether two measured benchmarks differ, with what confidence, and how many prompts would tell.

    FILE is CSV with the columns prompt and tok_s (prompts in both files are paired), or a run file of one run. Without
    anything it compares the campaign's two eager benchmarks.
    """
    known = [Stated(**{name: pair[at] for name, pair in stated.items() if pair is not None}) for at in (0, 1)]
    if files and tok_s is not None:
        raise click.UsageError("--tok-s stands instead of files: give one or the other")
    if difference is not None:
        _tell_plan(files, tok_s, (known[0], known[1]), difference, as_json)
        return
    first, second = _sides(files, tok_s, (known[0], known[1]))
    notes = dict.fromkeys((*first.notes, *second.notes))
    record = comparison_record(compare(first.measured, second.measured), differing(first, second), notes)
    show(record, lambda: comparison_text(record), as_json)


def _sides(
    files: tuple[Path, ...], tok_s: tuple[float, float] | None, known: tuple[Stated, Stated]
) -> tuple[Side, Side]:
    """The two benchmarks that were asked about."""
    if tok_s is not None:
        return sides_stated(tok_s, known)
    if len(files) == 2:
        return sides_of_files((files[0], files[1]), known)
    if not files and known == (Stated(), Stated()):
        return campaign_sides()
    raise click.UsageError(f"a comparison is of two: give two files, not {len(files)}, or --tok-s A B")


def _tell_plan(
    files: tuple[Path, ...],
    tok_s: tuple[float, float] | None,
    known: tuple[Stated, Stated],
    difference: float,
    as_json: bool,
) -> None:
    if tok_s is not None or len(files) > 2:
        raise click.UsageError("--plan rests on a spread: --spread, or one file or two, and no --tok-s")
    if not files and (known[0] != known[1] or known[0].prompts is not None):
        raise click.UsageError(
            "--plan is of benchmarks alike, and tells their prompts: one value each, and no --prompts"
        )
    ground = _ground(files, known)
    lengths = () if ground.output_len is None else sorted({*_LENGTHS, ground.output_len})
    rows = plan(difference, ground.spread, ground.output_len, ground.survival, lengths, ground.paired_variance)
    record = plan_record(difference, rows, ground.output_len, ground.notes)
    show(record, lambda: plan_text(record), as_json)


def _ground(files: tuple[Path, ...], known: tuple[Stated, Stated]) -> Ground:
    """What a plan rests on: files, or what was stated, or the campaign."""
    if len(files) == 2:
        return Ground.of(*sides_of_files((files[0], files[1]), known))
    if files:
        return Ground.of(side_of_file(files[0], known[0]))
    return Ground.of(campaign_sides()[0]) if known == (Stated(), Stated()) else Ground.stated(known[0])
