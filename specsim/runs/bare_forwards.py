"""Reading bare forwards: run files of the calibration harness or another tool's, or a table by tokens."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from specsim.cost.bare_forwards import BareForwards
from specsim.errors import Fault, InputError
from specsim.quantities import CONTEXT_TOLERANCE
from specsim.runs.files import load_runs
from specsim.runs.formats.bare_forwards_csv import (
    is_bare_table,
    is_table_by_setting,
    parse_bare_forwards,
    parse_by_setting,
)
from specsim.runs.like_for_like import require_like_for_like, shared_setup
from specsim.runs.run import UNSTATED, Run
from specsim.runs.text import text_of

_ALLOWED = (
    "allowed: runs with verify_ms or decode_ms of bare forwards, CSV with the columns tokens and ms, or the table of forwards of"
    " 'python -m calibration allreduce --model'"
)


def load_bare_forwards(path: str | Path, nccl: str | None = None, *, made_under: Collection[str] = ()) -> BareForwards:
    """Read bare forwards from a run file or a table, for `fit`; of runs those at the shortest context count.

    Of a table by NCCL setting or implementation (forwards over several GPUs) the curve is that of `nccl`, or else of the one
    in `made_under`, the settings of the runs it goes under, which have to be one. Raises InputError naming file, row and field, or
    the settings of a table that leave it open; MixedSetupError where the forwards of a file are not like for like.
    """
    text = text_of(Path(path), _ALLOWED)
    if is_table_by_setting(text):
        return _chosen(parse_by_setting(text, str(path)), str(path), nccl, set(made_under))
    if nccl is not None:
        raise InputError([Fault(str(path), "", f"states no settings, and none is {nccl}", "name the file alone")])
    if is_bare_table(text):
        return parse_bare_forwards(text, str(path))
    runs = tuple(run for run in load_runs(path).runs if not run.excluded and _time_ms(run) is not None)
    if not runs:
        raise InputError([Fault(str(path), "", "has no bare forwards", _ALLOWED)])
    require_like_for_like(runs, False, ("context_len",))
    runs = _at_the_shortest_context(runs)
    setup, times = shared_setup(runs), [time for run in runs if (time := _time_ms(run)) is not None]
    where = "" if runs[0].workload.context_len is None else f" at {runs[0].workload.context_len} tokens of context"
    made = " on ".join(filter(None, (setup.model, setup.hardware)))
    return BareForwards.of([_tokens(run) for run in runs], times, f"{Path(path).name}: {made}{where}", setup)


def _chosen(settings: dict[str, BareForwards], path: str, nccl: str | None, made_under: set[str]) -> BareForwards:
    """The curve of the setting that is named, or of the one that the runs are of."""
    if len(made_under) > 1:
        problem = f"has forwards under one setting each, and the runs are of {', '.join(sorted(made_under))}"
        raise InputError(
            [Fault(path, "nccl", problem, "fit the runs of one, and tell the others by 'specsim comm --model'")]
        )
    runs = next(iter(made_under), UNSTATED)
    found = (
        list(settings) if nccl is None and runs == UNSTATED else [each for each in settings if each == (nccl or runs)]
    )
    if len(found) == 1:
        return settings[found[0]]
    asked = nccl or (f"the runs' {runs}" if runs != UNSTATED else "stated by the runs")
    problem = f"has forwards under {', '.join(settings)}, of which none is {asked}"
    raise InputError([Fault(path, "nccl", problem, "name the one that the runs were made under: SETTING=FILE")])


def _at_the_shortest_context(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    contexts = [run.workload.context_len for run in runs if run.workload.context_len is not None]
    most = min(contexts, default=0) + CONTEXT_TOLERANCE
    short = tuple(run for run in runs if run.workload.context_len is None or run.workload.context_len <= most)
    return tuple(sorted(short, key=lambda run: run.workload.context_len or 0))


def _tokens(run: Run) -> int:
    return int(run.workload.batch_size) * (1 if run.spec is None else int(run.spec.num_draft_tokens))


def _time_ms(run: Run) -> float | None:
    """A run's forward: verify at its tokens, or one of plain decode at its requests; None where it timed neither."""
    figure = run.figures.get("decode_ms" if run.spec is None else "verify_ms")
    return None if figure is None else figure.best
