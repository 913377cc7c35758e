"""`specsim accept`."""

from __future__ import annotations

from pathlib import Path

import click

from specsim.cli.options import example, json_option, read_runs, runs_argument, show
from specsim.errors import SpecsimError
from specsim.expected import expected_lengths, fitted_part, mixed_length
from specsim.fitting import fit
from specsim.fitting.lengths import scaling_points
from specsim.fitting.scaling import fit_scaling
from specsim.quantities import SpecConfig
from specsim.questions import Asked, break_evens
from specsim.report.accept import (
    Target,
    accept_record,
    accept_text,
    mix_record,
    mix_text,
    scaling_record,
    scaling_text,
    targets_of,
)
from specsim.report.records import break_evens_record
from specsim.runs.run import RunSet

LINE_ONLY = "line"


@click.command("accept", epilog=example("specsim accept --num-steps 3 --topk 4 --num-draft-tokens 16 runs.csv"))
@runs_argument
@click.option("--num-steps", type=int, help="Drafting depth; with topk 1 it follows from draft tokens.")
@click.option("--topk", type=int, help="Branches a draft step keeps; 1 is a chain.")
@click.option("--num-draft-tokens", type=int, help="Tokens verified a request and cycle, root included.")
@click.option("--target-length", type=float, help="Also tell which acceptance rate this accept length needs.")
@click.option("--mix", multiple=True, metavar="RUNS=SHARE",
              help="A kind of work with its share of the output tokens; give one for each kind, instead of RUNS.")  # fmt: skip
@click.option("--samples", is_flag=False, flag_value=LINE_ONLY,
              help="Accept length against training samples instead; with N, also at N samples.")  # fmt: skip
@json_option
def command(
    runs: tuple[Path, ...],
    num_steps: int | None,
    topk: int | None,
    num_draft_tokens: int | None,
    target_length: float | None,
    mix: tuple[str, ...],
    samples: str | None,
    as_json: bool,
) -> None:
    """Tell the accept length to expect at any steps, topk and draft tokens, from those that were measured.

    Fits a law of acceptance to accept lengths, rates by position, histograms and counts of one drafter. Without a
    configuration it answers for those measured.
    """
    asked = (num_steps, topk, num_draft_tokens)
    spec = None if asked == (None, None, None) else _spec(*asked)
    _refuse_unused(samples, mix, spec, target_length)
    if samples is not None:
        _tell_scaling(read_runs(runs), _number_of(samples), as_json)
    elif mix:
        if runs or spec is None:
            raise click.UsageError("--mix stands instead of RUNS, and needs a configuration (--num-draft-tokens …)")
        parts = [fitted_part(name, read_runs((Path(name),)), share) for name, share in map(_share, mix)]
        record = mix_record(parts, mixed_length(parts, spec))
        show(record, lambda: mix_text(record), as_json)
    else:
        part = fitted_part(", ".join(map(str, runs)) or "the bundled campaign", read_runs(runs))
        record = accept_record(part, expected_lengths(part, None if spec is None else [spec], target_length))
        show(record, lambda: accept_text(record), as_json)


def _refuse_unused(samples: str | None, mix: tuple[str, ...], spec: SpecConfig | None, target: float | None) -> None:
    """An option that the question has no use for is a slip, and is not passed over."""
    if samples is not None and (mix or spec is not None or target is not None):
        raise click.UsageError(
            "--samples is a question of its own: it takes no configuration, --target-length or --mix"
        )
    if mix and target is not None:
        raise click.UsageError("--target-length asks of one law: leave out --mix")


def _number_of(samples: str) -> float | None:
    """The N of --samples; None where the option stands without one."""
    if samples == LINE_ONLY:
        return None
    try:
        number = float(samples)
    except ValueError:
        raise click.BadParameter(
            f"{samples!r} is not a number; run files come before --samples", param_hint="--samples"
        ) from None
    if not 0 < number < float("inf"):
        raise click.BadParameter(f"{samples} is not a number of samples above 0", param_hint="--samples")
    return number


def _spec(num_steps: int | None, topk: int | None, num_draft_tokens: int | None) -> SpecConfig:
    return SpecConfig.of(num_steps=num_steps, topk=topk, num_draft_tokens=num_draft_tokens)


def _share(written: str) -> tuple[str, float]:
    name, equals, share = written.rpartition("=")
    try:
        if not equals or not float(share) > 0:
            raise ValueError
    except ValueError:
        raise click.BadParameter(
            f"{written!r}: allowed is RUNS=SHARE with a share above 0", param_hint="--mix"
        ) from None
    return name, float(share)


def _tell_scaling(runs: RunSet, samples: float | None, as_json: bool) -> None:
    record = scaling_record(fit_scaling(scaling_points(runs)), samples, _break_even_targets(runs))
    show(record, lambda: scaling_text(record), as_json)


def _break_even_targets(runs: RunSet) -> dict[str, Target]:
    """The break-even lengths that the same runs give; none where they time nothing."""
    try:
        model = fit(runs).model
        return targets_of(break_evens_record(model, *break_evens(model, Asked())))
    except SpecsimError:
        return {}
