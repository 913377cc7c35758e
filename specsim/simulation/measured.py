"""Benchmarks to be compared, from what was stated, from runs, or from single prompts' figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specsim.acceptance import ConstantRate, required_accept_rate
from specsim.errors import ConfigurationError, Fault, InputError
from specsim.quantities import FloatArray
from specsim.runs.like_for_like import differences
from specsim.runs.per_prompt import PromptFigures, is_per_prompt, load_per_prompt, prompts_of_runs
from specsim.runs.run import Run
from specsim.simulation.comparison import Measured, compare, within_spread

CAMPAIGN_PAIR = ("eager-5", "eager-16")
"""The two runs of the bundled campaign that its five prompts are to tell apart."""


@dataclass(frozen=True)
class Stated:
    """What is known of a benchmark; None is unknown. `survival` are the S_i of its cycles, `run` the run it is.

    Without survival, accept length and depth stand for a constant rate (eq. 19), which tells how far cycles scatter.
    """

    tok_s: float | None = None
    prompts: int | None = None
    spread: float | None = None
    output_len: int | None = None
    accept_length: float | None = None
    num_steps: int | None = None
    survival: tuple[float, ...] = ()
    run: Run | None = None

    def by_depth(self) -> FloatArray | None:
        """S_i of its cycles, measured or by a constant rate, shape (num_steps,); None where nothing tells them."""
        if self.survival:
            return np.array(self.survival)
        if self.accept_length is None or self.num_steps is None:
            return None
        if not 1 <= self.accept_length <= self.num_steps + 1:
            raise ConfigurationError(
                f"an accept length of {self.accept_length:g} is not possible with {self.num_steps} steps:"
                f" allowed is 1 to {self.num_steps + 1} (bonus token included)"
            )
        rate = float(required_accept_rate(self.accept_length, self.num_steps))
        return ConstantRate(rate).survival(self.num_steps)

    def within(self) -> float | None:
        """The spread that cycles being draws make of one prompt's throughput (eq. 23); None where nothing tells it."""
        survival = self.by_depth()
        return None if survival is None or self.output_len is None else within_spread(survival, self.output_len)


@dataclass(frozen=True)
class Side:
    """One benchmark to be compared: what it measured, the S_i of its cycles if known, its run, what to say of it."""

    measured: Measured
    survival: FloatArray | None
    run: Run | None
    notes: tuple[str, ...]


def sides_stated(tok_s: tuple[float, float], stated: tuple[Stated, Stated]) -> tuple[Side, Side]:
    """Two benchmarks of which only the throughput was measured and the rest is stated."""
    first, second = (replace(each, tok_s=rate) for each, rate in zip(stated, tok_s, strict=True))
    return _summary(first, f"{tok_s[0]:g} tok/s"), _summary(second, f"{tok_s[1]:g} tok/s")


def sides_of_files(paths: tuple[Path, Path], stated: tuple[Stated, Stated]) -> tuple[Side, Side]:
    """Two benchmarks from a file each: single prompts' figures, or a run; what a file leaves open may be stated."""
    names = [path.name for path in paths] if paths[0].name != paths[1].name else [str(path) for path in paths]
    known = [_of_file(path, each) for path, each in zip(paths, stated, strict=True)]
    return _sides((known[0], names[0]), (known[1], names[1]))


def side_of_file(path: Path, stated: Stated) -> Side:
    """One benchmark from a file, as a plan rests on it."""
    known = _of_file(path, stated)
    return _of_prompts(*known, path.name) if isinstance(known, tuple) else _summary(known, path.name)


def campaign_sides() -> tuple[Side, Side]:
    """The bundled campaign's two eager benchmarks."""
    from specsim.runs.files import load_campaign  # here: reading runs loads pydantic, and a stated benchmark needs none

    campaign = load_campaign()
    first, second = (campaign.run(name) for name in CAMPAIGN_PAIR)
    return _sides((_of_run(first, Stated()), first.id), (_of_run(second, Stated()), second.id))


_Known = Stated | tuple[PromptFigures, Stated]


def _sides(first: tuple[_Known, str], second: tuple[_Known, str]) -> tuple[Side, Side]:
    """Two sides; a run that states no spread between prompts is taken to spread as the other does, and says so."""
    made: list[Side] = []
    for (known, name), (other, of_other) in ((first, second), (second, first)):
        if isinstance(known, tuple):
            made.append(_of_prompts(*known, name))
        elif known.spread is None and isinstance(other, Stated) and other.spread is not None:
            note = f"the spread between prompts of {name} is not stated: that of {of_other} is ASSUMED"
            side = _summary(replace(known, spread=other.spread), name)
            made.append(replace(side, notes=(*side.notes, note)))
        else:
            made.append(_summary(known, name))
    return made[0], made[1]


def _of_file(path: Path, stated: Stated) -> _Known:
    if is_per_prompt(path):
        return load_per_prompt(path), stated
    from specsim.runs.files import load_runs

    runs = load_runs(path)
    prompts = prompts_of_runs(runs)
    if prompts is not None:
        return prompts, stated
    timed = [run for run in runs.runs if "output_tok_s" in run.figures]
    if len(timed) != 1:
        problem = f"has {len(timed)} runs with a throughput" if timed else "has no throughput (output_tok_s)"
        allowed = "allowed: one run, or runs of one prompt each (prompts 1), or CSV with the columns prompt and tok_s"
        raise InputError([Fault(str(path), "", problem, allowed)])
    return _of_run(timed[0], stated)


def _of_run(run: Run, stated: Stated) -> Stated:
    """What a run states, completed by what was stated beside it; raises InputError where the two differ."""
    figures = {name: figure.best for name, figure in run.figures.items()}
    own = {
        "prompts": run.prompts,
        "spread": figures.get("between_prompt_spread"),
        "output_len": run.workload.output_len,
        "accept_length": figures.get("accept_length"),
        "num_steps": None if run.spec is None else int(run.spec.max_accept_length) - 1,
    }
    faults = [
        Fault(run.where or run.id, name, f"is {value:g} in the run, {getattr(stated, name):g} was stated beside it", "")
        for name, value in own.items()
        if value is not None and getattr(stated, name) not in (None, value)
    ]
    if faults:
        raise InputError(faults)
    known = {name: getattr(stated, name) if value is None else value for name, value in own.items()}
    return Stated(tok_s=figures["output_tok_s"], survival=_survival(run), run=run, **known)  # type: ignore[arg-type]


def _survival(run: Run) -> tuple[float, ...]:
    """S_i of a run as far as its configuration goes; empty where it was not counted whole."""
    counted = run.counts is not None and run.counts.at_least is not None
    seen = tuple(run.counts.survival.tolist()) if counted and run.counts is not None else run.survival
    return seen if run.spec is not None and len(seen) == int(run.spec.max_accept_length) - 1 else ()


def _summary(known: Stated, name: str) -> Side:
    """A benchmark known by its mean; raises InputError naming what is missing."""
    missing = [word for word in ("prompts", "spread") if getattr(known, word) is None]
    if missing or known.tok_s is None or known.prompts is None or known.spread is None:
        faults = [Fault(name, word, "is not known", f"state --{word}") for word in missing]
        raise InputError(faults)
    measured = Measured(name, known.tok_s, known.prompts, known.spread, known.output_len, known.within())
    return Side(measured, known.by_depth(), known.run, (*_rate_note(known, name), *_excess_note(measured)))


def _of_prompts(figures: PromptFigures, stated: Stated, name: str) -> Side:
    if stated.prompts is not None or stated.spread is not None:
        raise InputError([Fault(name, "", "has the figure of every prompt", "leave out --prompts and --spread")])
    if stated.output_len is not None and figures.output_len not in (None, stated.output_len):
        raise InputError([Fault(name, "output_len", f"is {figures.output_len} on average", "leave out --output-len")])
    known = replace(stated, output_len=figures.output_len or stated.output_len)
    measured = Measured.of_prompts(name, figures.tok_s, known.output_len, known.within())
    notes = (*figures.notes, *_rate_note(known, name), *_excess_note(measured))
    return Side(measured, known.by_depth(), None, notes)


def _rate_note(known: Stated, name: str) -> Iterator[str]:
    if known.within() is None:
        if known.survival or known.accept_length is not None or known.num_steps is not None:
            yield f"{name}: how far cycles scatter takes accept length, steps and output length: not all three are known"
    elif not known.survival:
        yield (
            f"{name}: how far cycles scatter follows from a constant acceptance rate at an accept length of"
            f" {known.accept_length:g} in {known.num_steps} steps (ASSUMED)"
        )


def _excess_note(measured: Measured) -> Iterator[str]:
    if measured.within is not None and measured.within > measured.spread:
        yield (
            f"{measured.name}: cycles alone would make prompts spread by {measured.within:.1%}, more than the"
            f" {measured.spread:.1%} seen: accept length, steps or output length do not fit it"
        )


def differing(first: Side, second: Side) -> tuple[str, ...]:
    """Stated fields, other than the configuration, in which two runs differ: what else a difference may come from."""
    if first.run is None or second.run is None:
        return ()
    runs = (first.run, second.run)
    found = list(differences(runs))
    if first.run.nccl != second.run.nccl:
        found.append("nccl")
    stated = [run.workload.batch_size if run.batch_size_stated else None for run in runs]
    lengths = [run.workload.output_len for run in runs]
    found += [name for name, pair in (("batch_size", stated), ("output_len", lengths)) if _differ(*pair)]
    return tuple(found)


def _differ(one: int | np.ndarray | None, other: int | np.ndarray | None) -> bool:
    return one is not None and other is not None and bool(np.any(np.not_equal(one, other)))


# -- what a plan rests on --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ground:
    """What a planned benchmark is known to spread by: `spread` of one prompt's throughput at `output_len`.

    `survival` are the S_i of its cycles, `paired_variance` that of log differences of single prompts, None unknown.
    """

    spread: float
    output_len: int | None
    survival: FloatArray | None
    paired_variance: float | None
    notes: tuple[str, ...]

    @classmethod
    def stated(cls, known: Stated) -> Ground:
        """The ground that was stated; raises InputError without a spread."""
        if known.spread is None:
            raise InputError([Fault("a plan", "spread", "is not known", "state --spread, or give a file")])
        return cls(known.spread, known.output_len, known.by_depth(), None, tuple(_rate_note(known, "a plan")))

    @classmethod
    def of(cls, first: Side, second: Side | None = None) -> Ground:
        """What one benchmark shows, or two: their mean variance, and how prompts differ between them where paired."""
        one = first.measured
        if second is None:
            return cls(one.spread, one.output_len, first.survival, None, first.notes)
        variance = (math.log1p(one.spread**2) + math.log1p(second.measured.spread**2)) / 2
        notes = tuple(dict.fromkeys((*first.notes, *second.notes, *_lengths_note(one, second.measured))))
        paired = compare(one, second.measured).paired_variance
        return cls(math.sqrt(math.expm1(variance)), one.output_len, first.survival, paired, notes)


def _lengths_note(one: Measured, other: Measured) -> Iterator[str]:
    if one.output_len is not None and other.output_len not in (None, one.output_len):
        lengths = f"{one.name} and {other.name} have outputs of {one.output_len:,} and {other.output_len:,} tokens"
        yield f"{lengths}: their spread counts as seen at the first"
