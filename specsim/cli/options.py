"""Options that several commands share, and the model that they choose."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from specsim.cost.bare_forwards import BareForwards
from specsim.cost.model import CostModel
from specsim.errors import Fault, InputError
from specsim.fitting import ASSUMED_NOISE, Fit, fit, timed_settings
from specsim.questions import Asked
from specsim.report.records import plain
from specsim.runs.run import RunSet

Command = TypeVar("Command", bound=Callable[..., Any])


def example(line: str) -> str:
    """A command's example for its help, kept on one line so that it can be copied."""
    return f"\b\nExample:\n  {line}"


_PATH = click.Path(path_type=Path)


def runs_argument(command: Command) -> Command:
    """Run files; none is the bundled campaign."""
    return click.argument("runs", nargs=-1, type=_PATH, metavar="[RUNS]...")(command)


@dataclass(frozen=True)
class Fitting:
    """How runs are fitted: the options of `fit_options`."""

    noise: float | None
    allow_mixed: bool
    bare_forwards: str | None

    @property
    def of_a_fit(self) -> bool:
        """Whether anything is stated that a fitted model has in it."""
        return self.noise is not None or self.bare_forwards is not None

    def of(self, runs: RunSet) -> Fit:
        """The fit of runs."""
        bare = None if self.bare_forwards is None else _bare_forwards(self.bare_forwards, runs)
        noise = ASSUMED_NOISE if self.noise is None else self.noise
        return fit(runs, noise=noise, allow_mixed=self.allow_mixed, bare_forwards=bare)


def _bare_forwards(word: str, runs: RunSet) -> BareForwards:
    """The forwards of a FILE that the runs were made under, or of a SETTING=FILE."""
    from specsim.runs.bare_forwards import load_bare_forwards

    setting, path = labelled_file(word)
    return load_bare_forwards(path, setting, made_under=timed_settings(runs))


def labelled_file(word: str) -> tuple[str | None, Path]:
    """A FILE, or LABEL=FILE."""
    label, equals, path = word.partition("=")
    return (None, Path(word)) if not equals or os.path.exists(word) else (label or None, Path(path))


def fit_options(command: Callable[..., None]) -> Callable[..., None]:
    """How runs are fitted, which reaches the command as its `fitting`."""

    @wraps(command)
    def with_fitting(*, noise: float | None, allow_mixed: bool, bare_forwards: str | None, **rest: Any) -> None:
        command(fitting=Fitting(noise, allow_mixed, bare_forwards), **rest)

    options = (
        click.option("--allow-mixed", is_flag=True, help="Allow what is not like for like, and label it MIXED."),
        click.option(
            "--bare-forwards", metavar="FILE",
            help="The target's forward alone, under what served runs take: 'python -m calibration forward', over several GPUs"
            " 'allreduce --model' (-forward; SETTING=FILE where the runs name it otherwise), or CSV with tokens and ms.",
        ),
        click.option(
            "--noise", type=float, metavar="FRACTION",
            help="Timing noise of one measurement, assumed where the runs cannot tell it.  [default: 0.01]",
        ),
    )  # fmt: skip
    wrapped: Callable[..., None] = with_fitting
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def model_option(command: Command) -> Command:
    """A fitted model instead of runs."""
    return click.option("--model", "model_path", type=_PATH, help="A model from 'specsim fit -o', instead of RUNS.")(
        command
    )


def accept_rate_option(command: Command) -> Command:
    """A stated acceptance rate instead of a law fitted to the runs' accept lengths."""
    return click.option(
        "--accept-rate", type=click.FloatRange(0, 1),
        help="One acceptance rate a token.  [default: the law of the runs]",
    )(command)  # fmt: skip


def json_option(command: Command) -> Command:
    """Machine-readable output."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def counts(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """The whole numbers of a text such as 1-8 or 1,2,4; a usage error says what is allowed."""
    if value is None:
        return None
    found: list[int] = []
    for piece in value.split(","):
        low, dash, high = (part.strip() for part in piece.partition("-"))
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise click.BadParameter(f"{piece.strip()!r} is neither a whole number nor a range such as 1-8")
        last = int(high or low)
        if not 0 <= last - int(low) < _MOST_VALUES:
            raise click.BadParameter(f"{piece.strip()!r} runs backwards, or over more than {_MOST_VALUES:,} values")
        found += range(int(low), last + 1)
    return tuple(found)


_MOST_VALUES = 1_000_000


def case_options(command: Command) -> Command:
    """What is asked about; whatever is left out is taken from the measured runs."""
    return configuration_options(_ACCEPT_LENGTH(command))


def configuration_options(command: Command) -> Command:
    """What is asked about, but for the accept length."""
    return _case_options(command, {"type": int})


def counted_case_options(command: Command) -> Command:
    """What is asked about, with ranges where `case_options` has one number."""
    return _case_options(command, {"callback": counts, "metavar": "COUNTS"})


def _case_options(command: Command, number: dict[str, Any]) -> Command:
    for option in reversed(
        (
            click.option("--num-draft-tokens", **number, help="Tokens verified a request and cycle, root included."),
            click.option("--num-steps", **number, help="Drafting depth; with topk 1 it follows from draft tokens."),
            click.option("--topk", **number, help="Branches a draft step keeps; 1 is a chain."),
            click.option("--batch-size", **number, help="Requests running together."),
            click.option("--nccl", help="NCCL setting, by its label in the runs.  [default: each]"),
        )
    ):
        command = option(command)
    return command


_ACCEPT_LENGTH = click.option("--accept-length", type=float, help="Accept length, bonus included.  [default: measured]")


def asked_from(options: dict[str, Any]) -> Asked:
    """The question in the options of `case_options`, which it takes out of them."""
    return Asked(**{name: options.pop(name, None) for name in Asked.__dataclass_fields__})


def read_runs(paths: tuple[Path, ...]) -> RunSet:
    """The files' runs, or the bundled campaign's."""
    from specsim.runs.files import load_campaign, load_runs

    return load_runs(paths) if paths else load_campaign()


@dataclass(frozen=True)
class Source:
    """Where a command's model comes from: run files (none is the campaign's) or a fitted model, and how runs are fitted."""

    runs: tuple[Path, ...]
    model_path: Path | None
    fitting: Fitting
    context_len: int | None

    @property
    def allow_mixed(self) -> bool:
        """Whether what is not like for like is allowed."""
        return self.fitting.allow_mixed

    def model(self) -> CostModel:
        """The model loaded or fitted, asked at a context if one is stated."""
        return replace(self._model(), asked_context=self.context_len)

    def _model(self) -> CostModel:
        if self.model_path is None:
            return self.fitting.of(read_runs(self.runs)).model
        if self.runs or self.fitting.of_a_fit:
            raise click.UsageError(
                "--model stands instead of RUNS, and its noise and bare forwards are in it: give one or the other"
            )
        return CostModel.load(self.model_path)


def source_options(command: Callable[..., None]) -> Callable[..., None]:
    """RUNS, --model and the options of a fit, which reach the command as its `source`."""

    @wraps(command)
    def with_source(
        *,
        runs: tuple[Path, ...],
        model_path: Path | None,
        fitting: Fitting,
        context_len: int | None,
        **rest: Any,
    ) -> None:
        command(source=Source(runs, model_path, fitting, context_len), **rest)

    return runs_argument(model_option(fit_options(context_option(with_source))))


def context_option(command: Command) -> Command:
    """The context that a question is asked at."""
    return click.option(
        "--context-len", type=click.IntRange(min=0),
        help="Mean tokens of a request in the KV cache.  [default: measured]",
    )(command)  # fmt: skip


def show(record: dict[str, Any], text: Callable[[], str], as_json: bool) -> None:
    """Print a record for programs, or its text for people."""
    click.echo(json.dumps(plain(record), indent=1, ensure_ascii=False) if as_json else text())


def written(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file, turning what the system refuses into one line."""
    try:
        write(path)
    except OSError as error:
        raise InputError([Fault(str(path), "", f"cannot be written ({error.strerror})", "")]) from None
