"""Servers over two GPUs under NCCL settings that the fit never saw, as markdown tables.

Run: python -m benchmarks.accuracy_tensor_parallel
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.accuracy_allreduce import HARNESS, harness_curves
from benchmarks.accuracy_allreduce import TABLES as ALL_REDUCES
from benchmarks.held_out import scatters, span, time_ms, whole
from specsim import CostModel, Run, break_even, evaluate, fit, load_runs
from specsim.cost.derived import DerivedSetting
from specsim.cost.step_change import Shape
from specsim.evaluation import Comparison
from specsim.quantities import BoolArray, FloatArray
from specsim.runs.run import RunSet

BASE, OWN = "default", "engine-own"
STANDS_OUT = "6 draft tokens Ring-LL 4x128"
"""A load that took longer than its neighbours under the same setting and under the default, and scattered more."""
_MANY = 64  # requests, among which steps scatter more in any load
TARGET, DRAFT = Shape(32, 4096, vocab_size=128256), Shape(1, 4096, vocab_size=32000)
SHARE, MS, TOKENS = 0.15, 0.2, 0.05
"""What is aimed at: a change's error over it or in ms, a break-even length's in tokens."""


@dataclass(frozen=True)
class Told:
    """Runs of a setting in one order: times under it and under the base as measured and as predicted [ms], shape (n,)."""

    runs: tuple[Run, ...]
    measured_ms: FloatArray
    base_ms: FloatArray
    predicted_ms: FloatArray
    base_predicted_ms: FloatArray

    @property
    def change_ms(self) -> FloatArray:
        """What the setting changed, measured."""
        return self.measured_ms - self.base_ms

    @property
    def error_ms(self) -> FloatArray:
        """The predicted change less the measured one."""
        return self.predicted_ms - self.base_predicted_ms - self.change_ms

    @property
    def within(self) -> BoolArray:
        """Where a change is told within the aim."""
        return np.asarray(np.abs(self.error_ms) <= np.maximum(SHARE * np.abs(self.change_ms), MS))


@cache
def served() -> RunSet:
    """The runs of vLLM over two GPUs, by setting, drafts and batch size."""
    return load_runs(HARNESS / "h200x2_served_llama-3.1-8b.json")


def runs_of(nccl: str) -> tuple[Run, ...]:
    """The runs under a setting."""
    return tuple(run for run in served().runs if run.nccl == nccl)


TABLES = ("in a forward", "after a cold product", "back to back")
"""All-reduces by how they were measured, on another machine of the kind than the servers'."""


@cache
def model_of(name: str) -> CostModel:
    """A fit to the base setting's runs that knows the other settings by one of the tables (eq. 17)."""
    known = harness_curves(ALL_REDUCES[name])
    model = fit(RunSet(runs_of(BASE), model_card=served().model_card)).model
    for nccl in settings():
        model = model.with_setting(DerivedSetting(nccl, BASE, known[BASE], known[nccl], TARGET, DRAFT))
    return model


def settings() -> list[str]:
    """Settings of NCCL that were served, but the base."""
    return [nccl for nccl in dict.fromkeys(run.nccl for run in served().runs) if nccl not in (BASE, OWN)]


@cache
def told(name: str, nccl: str) -> Told:
    """What a table says of a setting's runs, beside what was measured of them and of the base's."""
    model = model_of(name)
    under = {_place(run): whole(run).best for run in runs_of(BASE)}
    runs = runs_of(nccl)
    here, there = _predicted(model, runs), _predicted(model, runs_of(BASE))
    base = {_place(run): there[run.id] for run in runs_of(BASE)}
    return Told(
        runs,
        np.array([whole(run).best for run in runs]),
        np.array([under[_place(run)] for run in runs]),
        np.array([here[run.id] for run in runs]),
        np.array([base[_place(run)] for run in runs]),
    )


def _place(run: Run) -> tuple[int, int]:
    return int(run.workload.batch_size), 1 if run.spec is None else int(run.spec.num_draft_tokens)


def _predicted(model: CostModel, runs: tuple[Run, ...]) -> dict[str, float]:
    """The time of each run [ms]."""
    by_id = {run.id: run for run in runs}
    return {each.run: time_ms(by_id[each.run], each.figure, each.predicted) for each in _times(model, runs)}


def _times(model: CostModel, runs: tuple[Run, ...]) -> Iterator[Comparison]:
    return (each for each in evaluate(model, runs).compared if each.figure in ("cycle_ms", "decode_ms"))


def beyond(name: str, what: str) -> int:
    """How many predicted times are flagged for that some size of `what` lies outside a table."""
    found = (each for nccl in settings() for each in _times(model_of(name), runs_of(nccl)))
    return sum(any(what in flag for flag in each.extrapolated_in) for each in found)


# -- tables --------------------------------------------------------------------------------------------------------------


SAID = 3
"""So many runs that are missed are named; more are counted."""


def table() -> str:
    """A line for each table and setting."""
    lines = [
        "| all-reduces measured | setting | change measured | error, least and largest | within 15% or 0.2 ms | not within |",
        "|---|---|--:|--:|--:|---|",
    ]
    for name in TABLES:
        for nccl in settings():
            found = told(name, nccl)
            off = [_named(run) for run, well in zip(found.runs, found.within, strict=True) if not well]
            said = ", ".join(off) if len(off) <= SAID else f"{len(off)} times"
            lines.append(
                f"| {name} | {nccl} | {span(found.change_ms)} | {span(found.error_ms)} |"
                f" {found.within.sum()} of {found.within.size} | {said or '–'} |"
            )
    return "\n".join(lines)


def _named(run: Run) -> str:
    batch, width = _place(run)
    return f"{'plain' if width == 1 else f'{width - 1} drafts'} at batch {batch}"


@dataclass(frozen=True)
class Answer:
    """What one run's setting needs and gives at its batch size: break-even length and tok/s, measured and as told.

    `length_told` is asked of the fit, `length_moved` of the base's own two runs there, moved by eq. 17.
    """

    run: Run
    length: float
    length_told: float
    length_moved: float
    rate: float
    rate_told: float


@cache
def answers() -> tuple[Answer, ...]:
    """Break-even length and tok/s of each setting, told by the base's runs and the all-reduces measured in a forward."""
    name = "in a forward"
    return tuple(answer for nccl in settings() for answer in _answers(model_of(name), told(name, nccl)))


def _answers(model: CostModel, found: Told) -> Iterator[Answer]:
    moved = dict(zip(map(_place, found.runs), found.base_ms + found.change_ms + found.error_ms, strict=True))
    measured = {_place(run): whole(run).best for run in found.runs}
    for run in sorted(found.runs, key=_place):
        batch, width = _place(run)
        if run.spec is not None:
            cycle = _predicted(model, (run,))[run.id]
            accepted = run.figures["accept_length"].best
            yield Answer(
                run,
                measured[batch, width] / measured[batch, 1],
                float(break_even(model, run.spec, run.workload, nccl=run.nccl).cost_ratio),
                moved[batch, width] / moved[batch, 1],
                run.figures["output_tok_s"].best,
                1000.0 * batch * accepted / cycle,
            )


def answers_table() -> str:
    """A line for each run of a setting that was not fitted."""
    lines = [
        "| setting | drafts | batch | L* measured | told | by moved runs | tok/s measured | told | off by |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for each in answers():
        batch, width = _place(each.run)
        lines.append(
            f"| {each.run.nccl} | {width - 1} | {batch} | {each.length:.2f} | {each.length_told:.2f} | {each.length_moved:.2f} |"
            f" {each.rate:,.0f} | {each.rate_told:,.0f} | {each.rate_told / each.rate - 1:+.1%} |"
        )
    return "\n".join(lines)


def own_table() -> str:
    """The engine's own all-reduce beside NCCL's default: no table of NCCL's tells it, so both are measured."""
    default, own = ({_place(run): whole(run).best for run in runs_of(nccl)} for nccl in (BASE, OWN))
    lines = [
        "| batch | plain, NCCL | own | 3 drafts, NCCL | own | 5 drafts, NCCL | own | L* of 3, NCCL | own | L* of 5, NCCL | own |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for batch in sorted({batch for batch, _ in default}):
        plain, *drafted = ([times[batch, width] for times in (default, own)] for width in (1, 4, 6))
        times = " | ".join(f"{ms:.2f} ms" for pair in (plain, *drafted) for ms in pair)
        pairs = (zip(plain, cycles, strict=True) for cycles in drafted)
        lengths = " | ".join(f"{cycle / step:.2f}" for pair in pairs for step, cycle in pair)
        lines.append(f"| {batch} | {times} | {lengths} |")
    return "\n".join(lines)


def within(name: str) -> tuple[int, int]:
    """Of how many changes how many are told within the aim."""
    found = np.concatenate([told(name, nccl).within for nccl in settings()])
    return int(found.sum()), found.size


def close(figure: str) -> tuple[int, int]:
    """Of how many break-even lengths how many are told within the aim."""
    errors = _length_errors(figure)
    return sum(error <= TOKENS for error in errors), len(errors)


def furthest(figure: str) -> tuple[float, float]:
    """The largest error of a break-even length, and the largest but one [tokens]."""
    last, largest = sorted(_length_errors(figure))[-2:]
    return largest, last


def short_of(nccl: str) -> list[float]:
    """By how much of what is told in a forward the changes are larger that are not within the aim."""
    found = told("in a forward", nccl)
    return list((-found.error_ms / (found.change_ms + found.error_ms))[~found.within])


def scatter() -> tuple[float, float, float]:
    """Relative standard deviation of the load that stands out; largest and median of others of as many requests or fewer."""
    small = [run for run in served().runs if run.workload.batch_size < _MANY]
    found = scatters(small)
    out = found.pop(STANDS_OUT)
    return out, max(found.values()), float(np.median(list(found.values())))


def _length_errors(figure: str) -> list[float]:
    return [abs(getattr(each, figure) - each.length) for each in answers()]


if __name__ == "__main__":
    print(table(), answers_table(), own_table(), sep="\n\n")
