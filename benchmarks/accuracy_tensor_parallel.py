"""Servers over two GPUs under settings that the fit never saw, as markdown tables.

Run: python -m benchmarks.accuracy_tensor_parallel
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations

import numpy as np

from benchmarks.accuracy_allreduce import CYCLED, DRAFTED, HARNESS, STARTED, TABLES_OF, harness_curves
from benchmarks.accuracy_allreduce import TABLES as ALL_REDUCES
from benchmarks.held_out import scatters, span, time_ms, whole
from specsim import BareForwards, CostModel, Run, break_even, evaluate, fit, load_bare_forwards, load_runs
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.derived import Allowed, DerivedSetting
from specsim.cost.step_change import Shape
from specsim.evaluation import Comparison
from specsim.fitting import Fit
from specsim.quantities import BoolArray, FloatArray
from specsim.runs.run import RunSet

ON_TIME, LATE = ("h200x2d", "h200x2e", "h200x2", "h200x2m", "h200x2q", "h200x2j", "h200x2j_again"), "h200x2g"
"""Servers of one machine, of another, of three, of one more and another, and of one in two starts; and of one where loads were late that do not stand out (`lateness`)."""
TWICE = ON_TIME[-2:]
"""The two starts."""
SERVED = (*ON_TIME, LATE)
"""Each file is told by its own runs under NCCL's default."""
BASE, OWN = "default", "engine-own"
CURVES = {OWN: "vllm"}
"""The all-reduces of a setting whose name they do not have."""
TARGET, DRAFT = Shape(32, 4096, vocab_size=128256), Shape(1, 4096, vocab_size=32000)
SHARE, MS, TOKENS = 0.15, 0.2, 0.05
"""What is aimed at: a change's error over it or in ms, a break-even length's in tokens."""
UNSTEADY, MANY = 0.009, 64
"""A load of fewer than so MANY requests whose parts scatter by more stands out (of so many requests every load may).

The share was chosen on the loads of the first three files: seven of 99 lie above, and no other above 0.8%.
"""


@dataclass(frozen=True)
class Told:
    """Runs of a setting in one order: times under it and under the base as measured and as predicted [ms], shape (n,).

    `steady` says where neither load stands out by what its parts scatter.
    """

    runs: tuple[Run, ...]
    measured_ms: FloatArray
    base_ms: FloatArray
    predicted_ms: FloatArray
    base_predicted_ms: FloatArray
    steady: BoolArray

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
def served(file: str) -> RunSet:
    """The runs of vLLM over two GPUs, by setting, drafts and batch size."""
    return load_runs(HARNESS / f"{file}_served_llama-3.1-8b.json")


def runs_of(file: str, nccl: str) -> tuple[Run, ...]:
    """The runs under a setting."""
    return tuple(run for run in served(file).runs if run.nccl == nccl)


@cache
def few_scatters(file: str) -> dict[str, float]:
    """What the parts of each load of fewer than MANY requests scatter by."""
    return scatters(run for run in served(file).runs if run.workload.batch_size < MANY)


def standing_out(file: str) -> set[str]:
    """Loads whose parts scatter by more than others'."""
    return {name for name, share in few_scatters(file).items() if share > UNSTEADY}


BESIDE, ALONE = "beside drafts", "in a forward"
TABLES = (BESIDE, ALONE, "after a cold product", "back to back")
"""All-reduces by how they were measured: the first in a forward and, where that was done, between a drafter's graphs, in whole cycles."""
BY_ONE = {f"beside drafts on {machine} alone": machine for machine in CYCLED}
"""The same of one machine."""
WIDE = "beside wide drafts"
"""The same where drafts as wide as the verify were about the forwards; BESIDE goes by these for a setting that no whole cycle was run under."""


def curves(name: str, nccl: str, file: str = "") -> tuple[MeasuredCurve, MeasuredCurve]:
    """The all-reduces of the base and of a setting, where drafts were beside them if the setting was measured so.

    Medians over the machines that have both, for what machines differ by is no change of a setting; the servers' own is left out
    where there is another.
    """
    known = harness_curves(_table(name), gathers=True, machines=having_measured(name, nccl, file))
    before, after = known[BASE], known[CURVES.get(nccl, nccl)]
    return (before, after) if name in BETWEEN else (replace(before, drafting=None), replace(after, drafting=None))


BETWEEN = (BESIDE, WIDE, *BY_ONE)
"""Those of forwards between a drafter's."""


def _table(name: str) -> str:
    return ALL_REDUCES[ALONE if name in BETWEEN else name]


def having_measured(name: str, nccl: str, file: str = "") -> tuple[str, ...]:
    """The machines whose all-reduces tell a setting of servers on one of them, or on none: those of one kind."""
    if name in BY_ONE:
        return (BY_ONE[name],)
    wide = (*DRAFTED, STARTED) if _table(name) == ALL_REDUCES[ALONE] else DRAFTED
    for machines in (wide,) if name == WIDE else (CYCLED, wide):
        if having := tuple(each for each in machines if _has(each, _table(name), nccl)):
            return tuple(each for each in having if each != file.removesuffix("_again")) or having
    return (TABLES_OF,)


def _has(machine: str, table: str, nccl: str) -> bool:
    return CURVES.get(nccl, nccl) in harness_curves(table, machines=(machine,))


def known_by(name: str, nccl: str) -> bool:
    """Whether a table has a setting: that of one machine has what it was measured under."""
    return name not in BY_ONE or _has(BY_ONE[name], _table(name), nccl)


def moved(name: str, nccl: str, file: str = "") -> DerivedSetting:
    """A setting that is the base's, changed by one of the tables (eq. 17)."""
    return DerivedSetting(nccl, BASE, *curves(name, nccl, file), TARGET, DRAFT, gathered=nccl not in CURVES)


FORWARDS = ("h200x2d", "h200x2e", *DRAFTED, *CYCLED)
"""Machines on which the base's forwards were timed to as many tokens as servers were asked for (on one more that served some of h200x2, too)."""


def others(file: str) -> tuple[str, ...]:
    """Those that are not the servers' own."""
    return tuple(machine for machine in FORWARDS if machine != file.removesuffix("_again"))


@cache
def forwards_of(machines: tuple[str, ...]) -> BareForwards:
    """The base's forwards alone, at each count of tokens the median over the machines that have it."""
    known = [load_bare_forwards(HARNESS / f"{machine}_forward_llama-3.1-8b.csv", BASE) for machine in machines]
    times: dict[float, list[float]] = {}
    for curve in known:
        for tokens, ms in zip(curve.tokens, curve.raw_ms, strict=True):
            times.setdefault(tokens, []).append(ms)
    medians = [float(np.median(each)) for each in times.values()]
    return BareForwards.of(list(times), medians, f"forwards of {', '.join(machines)}", known[0].setup)


@cache
def base_fit(file: str, over: tuple[str, ...] = ()) -> Fit:
    """A fit to the base setting's runs, over the base's forwards alone on these machines."""
    bare = forwards_of(over) if over else None
    return fit(RunSet(runs_of(file, BASE), model_card=served(file).model_card), bare_forwards=bare)


@cache
def model_of(name: str, file: str, over: tuple[str, ...] = (), exact: bool = False) -> CostModel:
    """Such a fit that knows the other settings by one of the tables (eq. 17); `exact` allows for nothing that the table misses."""
    model = base_fit(file, over).model
    for nccl in filter(partial(known_by, name), settings(file)):
        derived = moved(name, nccl, file)
        model = model.with_setting(_Exact(**vars(derived)) if exact else derived)
    return model


class _Exact(DerivedSetting):
    """A setting whose change by the table is taken as it is."""

    @property
    def allowed(self) -> Allowed:
        return Allowed(1.0, 1.0, 0.0)


def settings(file: str) -> list[str]:
    """Settings that were served, but the base."""
    return [nccl for nccl in dict.fromkeys(run.nccl for run in served(file).runs) if nccl != BASE]


PARTS = tuple((file, nccl) for file in SERVED for nccl in settings(file))
"""Every file with every setting in it that is told."""
PROMPT = tuple(part for part in PARTS if part[0] in ON_TIME)
"""Those of the files where no load was late that does not stand out."""
BOTH = tuple(part for part in PROMPT if all(known_by(name, part[1]) for name in BY_ONE))
"""Those of them whose setting was measured on every machine of whole cycles."""


@cache
def told(name: str, file: str, nccl: str) -> Told:
    """What a table says of a setting's runs, beside what was measured of them and of the base's."""
    model = model_of(name, file)
    base = {_place(run): run for run in runs_of(file, BASE)}
    runs = runs_of(file, nccl)
    here, there = _predicted(model, runs), _predicted(model, tuple(base.values()))
    under = [base[_place(run)] for run in runs]
    return Told(
        runs,
        np.array([whole(run).best for run in runs]),
        np.array([whole(run).best for run in under]),
        np.array([here[run.id] for run in runs]),
        np.array([there[run.id] for run in under]),
        np.array([not {run.id, other.id} & standing_out(file) for run, other in zip(runs, under, strict=True)]),
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
    found = (each for file, nccl in PARTS for each in _times(model_of(name, file), runs_of(file, nccl)))
    return sum(any(what in flag for flag in each.extrapolated_in) for each in found)


# -- tables --------------------------------------------------------------------------------------------------------------


def table() -> str:
    """A line for each file and setting."""
    columns = " | ".join(f"{name}, within" for name in TABLES)
    lines = [
        f"| servers of | setting | change measured | error {TABLES[0]} | {columns} | not within {TABLES[0]} |",
        f"|---|---|--:|--:{'|--:' * len(TABLES)}|---|",
    ]
    for file, nccl in PARTS:
        found = told(TABLES[0], file, nccl)
        cells = " | ".join(
            f"{each.within.sum()} of {each.within.size}" for each in (told(t, file, nccl) for t in TABLES)
        )
        missed = [
            (run, steady) for run, well, steady in zip(found.runs, found.within, found.steady, strict=True) if not well
        ]
        off = [named(*each) for each in missed]
        lines.append(
            f"| {file} | {nccl} | {span(found.change_ms)} | {span(found.error_ms)} | {cells} | {', '.join(off) or '–'} |"
        )
    return "\n".join(lines)


def named(run: Run, steady: bool) -> str:
    """A run by its drafts and batch size, marked where a load behind it stands out."""
    batch, width = _place(run)
    return f"{'plain' if width == 1 else f'{width - 1} drafts'} at {batch}{'' if steady else ' †'}"


MOVED, FIT, OVER = "moved runs", "the fit", "the fit over forwards"
"""What tells a break-even length: the base's own two runs there moved by eq. 17, the fit to the base's runs, and that over its forwards alone."""


@dataclass(frozen=True)
class ByFit:
    """What a fit answers: break-even length and its interval, and tok/s."""

    length: float
    interval: tuple[float, float]
    rate: float


@dataclass(frozen=True)
class Answer:
    """What one run's setting needs and gives at its batch size: break-even length and tok/s, measured and as told.

    `fits` are by FIT and OVER; `steady` where no load behind it stands out.
    """

    run: Run
    length: float
    length_moved: float
    rate: float
    fits: dict[str, ByFit]
    steady: bool

    def told(self, by: str) -> float:
        """The length as told."""
        return self.length_moved if by == MOVED else self.fits[by].length

    def off(self, by: str) -> float:
        """What it is told off by."""
        return abs(self.told(by) - self.length)

    def rate_off(self, by: str) -> float:
        """What tok/s are told off by, relative."""
        return abs(self.fits[by].rate / self.rate - 1)

    def holds(self, by: str) -> bool:
        """Whether the interval of the length holds what was measured."""
        low, high = self.fits[by].interval
        return low <= self.length <= high


@cache
def answers(file: str, nccl: str, name: str = BESIDE) -> tuple[Answer, ...]:
    """Break-even length and tok/s of a setting, told by the base's runs and a table: all-reduces measured beside drafts."""
    found = told(name, file, nccl)
    told_ms = dict(zip(map(_place, found.runs), found.base_ms + found.change_ms + found.error_ms, strict=True))
    measured = dict(zip(map(_place, found.runs), found.measured_ms, strict=True))
    steady = dict(zip(map(_place, found.runs), found.steady, strict=True))
    models = {FIT: model_of(name, file), OVER: model_of(name, file, others(file))}
    return tuple(
        Answer(
            run,
            measured[at] / measured[at[0], 1],
            told_ms[at] / told_ms[at[0], 1],
            run.figures["output_tok_s"].best,
            {by: _asked(model, run) for by, model in models.items()},
            bool(steady[at] and steady[at[0], 1]),
        )
        for run in sorted(found.runs, key=_place)
        if (at := _place(run))[1] > 1 and (at[0], 1) in measured
    )


def _asked(model: CostModel, run: Run) -> ByFit:
    assert run.spec is not None
    answer = break_even(model, run.spec, run.workload, nccl=run.nccl)
    low, high = answer.interval
    rate = 1000.0 * run.workload.batch_size * run.figures["accept_length"].best / _predicted(model, (run,))[run.id]
    return ByFit(float(answer.cost_ratio), (float(low), float(high)), float(rate))


def answers_table() -> str:
    """A line for each file and setting whose plain decode was served."""
    columns = " | ".join(f"by {by}, within 0.05 | largest error" for by in (MOVED, FIT, OVER))
    lines = [
        f"| servers of | setting | L* measured | {columns} | not within by moved runs | tok/s off by the last, median | largest |",
        f"|---|---|--:{'|--:|--:' * 3}|---|--:|--:|",
    ]
    for file, nccl in PARTS:
        if found := answers(file, nccl):
            lengths = [each.length for each in found]
            cells = [
                f"{sum(each.off(by) <= TOKENS for each in found)} of {len(found)} | {max(each.off(by) for each in found):.2f}"
                for by in (MOVED, FIT, OVER)
            ]
            off = [named(each.run, each.steady) for each in found if each.off(MOVED) > TOKENS]
            rates = [each.rate_off(OVER) for each in found]
            lines.append(
                f"| {file} | {nccl} | {min(lengths):.2f} to {max(lengths):.2f} | {' | '.join(cells)} | {', '.join(off) or '–'} |"
                f" {np.median(rates):.1%} | {max(rates):.1%} |"
            )
    return "\n".join(lines)


def steady_answers() -> tuple[Answer, ...]:
    """The answers of PROMPT behind which no load stands out."""
    return tuple(each for part in PROMPT for each in answers(*part) if each.steady)


def by_model(model: Callable[[str], CostModel]) -> list[tuple[Answer, ByFit]]:
    """The steady answers of PROMPT, each with what the model of its file says."""
    return [
        (each, _asked(model(file), each.run)) for file, nccl in PROMPT for each in answers(file, nccl) if each.steady
    ]


@cache
def variants() -> dict[str, float]:
    """What the page says of fits otherwise made: how many lengths they tell within the aim or hold, and how far they are off."""
    alone = [by_model(lambda file, m=machine: model_of(BESIDE, file, (m,))) for machine in FORWARDS]
    exact = by_model(lambda file: model_of(BESIDE, file, others(file), exact=True))
    told_by_one = [sum(_length_off(*pair) <= TOKENS for pair in found) for found in alone]
    return {
        "one_least": min(told_by_one),
        "one_most": max(told_by_one),
        "exact_held": sum(by.interval[0] <= each.length <= by.interval[1] for each, by in exact),
    }


def _length_off(answer: Answer, by: ByFit) -> float:
    return abs(by.length - answer.length)


def falls(file: str) -> bool:
    """Whether the fit over forwards warns that verify falls with more tokens under the engine's own."""
    return any(f"{OWN}: verify FALLS" in note for note in model_of(BESIDE, file, others(file)).notes)


KINDS = {"Ring-LL, Ring-Simple": ("Ring-LL", "Ring-Simple"), OWN: (OWN,), "nop2p": ("nop2p",)}
"""Settings by what carries their messages."""


def fits_table() -> str:
    """A line for each of what tells a length: how it comes out where no load stands out."""
    lines = [
        f"| told by | {' | '.join(f'{kind}, within 0.05' for kind in KINDS)} | largest error | in its interval | half of it, median"
        " | tok/s off by, median | largest |",
        f"|---|{'--:|' * (len(KINDS) + 5)}",
    ]
    found = steady_answers()
    for by in (MOVED, FIT, OVER):
        cells = ["{} of {}".format(*close(by, parts_of(*kind), steady=True)) for kind in KINDS.values()]
        cells.append(f"{max(each.off(by) for each in found):.2f}")
        if by == MOVED:
            cells += ["–"] * 4
        else:
            half = np.median(half_widths(by))
            rates = [each.rate_off(by) for each in found]
            cells += [
                f"{sum(each.holds(by) for each in found)} of {len(found)}",
                f"{half:.2f}",
                f"{np.median(rates):.1%}",
                f"{max(rates):.1%}",
            ]
        lines.append(f"| {by} | {' | '.join(cells)} |")
    return "\n".join(lines)


def half_widths(by: str) -> FloatArray:
    """Half of each interval of the steady answers, rising."""
    return np.sort([np.ptp(each.fits[by].interval) / 2 for each in steady_answers()])


def held(by: str, parts: tuple[tuple[str, str], ...]) -> tuple[int, int]:
    """Of all lengths, those of loads that stand out too, how many lie in their intervals."""
    found = [each.holds(by) for part in parts for each in answers(*part)]
    return sum(found), len(found)


def own_table() -> str:
    """The engine's own all-reduce beside NCCL's default, both measured."""
    default, own = ({_place(run): whole(run).best for run in runs_of("h200x2", nccl)} for nccl in (BASE, OWN))
    lines = [
        "| batch | plain, NCCL | own | 3 drafts, NCCL | own | 5 drafts, NCCL | own | L* of 3, NCCL | own | L* of 5, NCCL | own |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for batch in sorted({batch for batch, _ in default}):
        plain, *drafted = ([times[batch, width] for times in (default, own)] for width in (1, 4, 6))
        times = " | ".join(f"{ms:.2f} ms" for pair in (plain, *drafted) for ms in pair)
        both = (zip(plain, cycles, strict=True) for cycles in drafted)
        lengths = " | ".join(f"{cycle / step:.2f}" for pair in both for step, cycle in pair)
        lines.append(f"| {batch} | {times} | {lengths} |")
    return "\n".join(lines)


def lateness(file: str = LATE, nccl: str = BASE, steady: bool = False) -> FloatArray:
    """Cycles with drafts of fewer than MANY requests in a file over those of the first, rising; of `steady` ones where that is asked."""
    left_out = standing_out(file) if steady else set()
    late, first = (
        {_place(run): whole(run).best for run in runs_of(each, nccl)
         if run.spec is not None and run.workload.batch_size < MANY and run.id not in left_out}
        for each in (file, ON_TIME[0])
    )  # fmt: skip
    return np.sort([ms / first[place] for place, ms in late.items()])


def outside_intervals(parts: tuple[tuple[str, str], ...]) -> int:
    """How many steady changes lie outside what the interval of verify's allows for."""
    count = 0
    for part in parts:
        each = told(BESIDE, *part)
        low, high = moved(BESIDE, part[1], part[0]).bounds_ms(each.change_ms + each.error_ms)
        count += int((each.steady & ((each.change_ms < low) | (each.change_ms > high))).sum())
    return count


@dataclass(frozen=True)
class Place:
    """One setting, batch size and number of draft tokens in the files where its length is steady: told less measured."""

    nccl: str
    batch: int
    width: int
    files: tuple[str, ...]
    lengths: FloatArray
    errors: FloatArray

    @property
    def by_machine(self) -> dict[str, float]:
        """The error on each machine, of two starts the mean."""
        return self._by_machine(self.errors)

    @property
    def length_by_machine(self) -> dict[str, float]:
        """The length that was measured on each machine, of two starts the mean."""
        return self._by_machine(self.lengths)

    def _by_machine(self, values: FloatArray) -> dict[str, float]:
        machines = [file.removesuffix("_again") for file in self.files]
        return {each: float(values[[other == each for other in machines]].mean()) for each in machines}

    @property
    def error(self) -> float:
        """The median over machines."""
        return float(np.median(list(self.by_machine.values())))

    def __str__(self) -> str:
        return f"{self.nccl}, {self.width - 1} drafts at {self.batch}"


@cache
def places(by: str = MOVED, name: str = BESIDE, parts: tuple[tuple[str, str], ...] = PROMPT) -> tuple[Place, ...]:
    """Every place of the steady lengths of PROMPT, or of parts of it, as they are told by a table."""
    found: dict[tuple[str, int, int], list[tuple[str, Answer]]] = {}
    for file, nccl in parts:
        for each in answers(file, nccl, name):
            if each.steady:
                found.setdefault((nccl, *_place(each.run)), []).append((file, each))
    return tuple(
        Place(
            *key,
            tuple(file for file, _ in each),
            np.array([answer.length for _, answer in each]),
            np.array([answer.told(by) - answer.length for _, answer in each]),
        )
        for key, each in found.items()
    )


def pairs(found: Iterable[Place]) -> tuple[int, int]:
    """Of how many pairs of servers of one place on two machines how many have the same length within the aim."""
    apart = [abs(one - other) for place in found for one, other in combinations(place.length_by_machine.values(), 2)]
    return sum(each <= TOKENS for each in apart), len(apart)


def by_other_servers(found: Iterable[Place]) -> tuple[int, int]:
    """Of how many lengths how many the median of the other machines' tells within the aim."""
    off = [
        abs(length - np.median([other for there, other in lengths.items() if there != machine]))
        for lengths in (place.length_by_machine for place in found)
        for machine, length in lengths.items()
        if len(lengths) > 1
    ]
    return sum(each <= TOKENS for each in off), len(off)


def off_ms(name: str, nccl: str, width: int, *files: str) -> list[float]:
    """What steady changes of PROMPT, or of these files, with so many tokens a request are told by a table less measured [ms]."""
    parts = [part for part in parts_of(nccl) if not files or part[0] in files]
    return [error for _, _, error in _steady_errors(name, parts, width)]


def _steady_errors(name: str, parts: Iterable[tuple[str, str]], width: int) -> Iterator[tuple[int, float, float]]:
    """Steady changes with so many tokens a request: batch size, what a table tells, and that less what was measured [ms]."""
    for part in parts:
        each = told(name, *part)
        for run, changed, off, steady in zip(each.runs, each.change_ms, each.error_ms, each.steady, strict=True):
            batch, tokens = _place(run)
            if steady and tokens == width:
                yield batch, float(changed + off), float(off)


def by_own_tables_ms(width: int) -> tuple[float, float]:
    """What cycles of so many tokens a request without peer access change by the servers' own machine's table, less measured [ms]: least, most."""
    (name,) = (name for name, machine in BY_ONE.items() if machine in SERVED)
    off = off_ms(name, "nop2p", width, BY_ONE[name])
    return min(off), max(off)


def places_table(*settings: str) -> str:
    """A line for each place of these settings: what was measured in each file, and what is told less that."""
    lines = ["| setting | drafts | batch | L* measured | told less measured | median |", "|---|--:|--:|---|---|--:|"]
    for each in sorted(places(), key=lambda place: (place.nccl, place.width, place.batch)):
        if each.nccl in settings:
            readings = list(zip(each.files, each.lengths, each.errors, strict=True))
            measured = ", ".join(f"{length:.2f} ({file.removeprefix('h200')})" for file, length, _ in readings)
            errors = ", ".join(f"{error:+.2f}" for _, _, error in readings)
            lines.append(
                f"| {each.nccl} | {each.width - 1} | {each.batch} | {measured} | {errors} | {each.error:+.3f} |"
            )
    return "\n".join(lines)


def again(nccl: str) -> float:
    """How far steady times under a setting lie apart at most in the two starts, of fewer than MANY requests: over each other, less 1."""
    names = set.union(*(standing_out(file) for file in TWICE))
    first, then = (
        {
            run.id: whole(run).best
            for run in runs_of(file, nccl)
            if run.workload.batch_size < MANY and run.id not in names
        }
        for file in TWICE
    )
    return max(abs(ms / first[name] - 1) for name, ms in then.items() if name in first)


def again_length() -> tuple[float, Place]:
    """How far steady L* lie apart at most in the two starts, and where."""
    both = [place for place in places() if set(TWICE) <= set(place.files)]
    return max(
        ((float(np.ptp(place.lengths[[place.files.index(file) for file in TWICE]])), place) for place in both),
        key=lambda pair: pair[0],
    )


def within(name: str, parts: tuple[tuple[str, str], ...] = PARTS, steady: bool = False) -> tuple[int, int]:
    """Of how many changes how many are told within the aim; of `steady` ones where that is asked."""
    found = [told(name, *part) for part in parts]
    hits = np.concatenate([each.within[each.steady] if steady else each.within for each in found])
    return int(hits.sum()), hits.size


def close(
    by: str, parts: tuple[tuple[str, str], ...] = PARTS, steady: bool = False, name: str = BESIDE
) -> tuple[int, int]:
    """Of how many break-even lengths how many are told within the aim by a table; of `steady` ones where that is asked."""
    errors = [each.off(by) for part in parts for each in answers(*part, name) if each.steady or not steady]
    return sum(error <= TOKENS for error in errors), len(errors)


def rates_off(by: str, *files: str) -> list[float]:
    """What tok/s of these files, given the accept length, are told off by, relative, where no load stands out."""
    parts = [part for part in PROMPT if part[0] in files]
    return [each.rate_off(by) for part in parts for each in answers(*part) if each.steady]


def parts_of(*names: str) -> tuple[tuple[str, str], ...]:
    """The parts of PROMPT that are of these files or settings."""
    return tuple(part for part in PROMPT if set(part) & set(names))


def larger_ms(nccl: str, width: int) -> dict[int, list[float]]:
    """By how much changes are larger than told beside drafts [ms], by batch size, of steady loads of PROMPT.

    What is saved more counts as larger, too; `width` is the tokens of a request, 1 in plain decode.
    """
    found: dict[int, list[float]] = {}
    for batch, said, off in _steady_errors(BESIDE, parts_of(nccl), width):
        found.setdefault(batch, []).append(-off * float(np.sign(said)))
    return dict(sorted(found.items()))


def larger_table() -> str:
    """A line for each setting: by how much its changes are larger than told, at each batch size the mean over files."""
    lines = ["| setting | plain | 3 drafts | 5 drafts |", "|---|--:|--:|--:|"]
    for nccl in dict.fromkeys(nccl for _, nccl in PROMPT):
        found = [larger_ms(nccl, width) for width in (1, 4, 6)]
        cells = [
            ", ".join(f"{np.mean(each[batch]):+.2f}" if batch in each else "–" for batch in (1, 4, 16, 64))
            for each in found
        ]
        lines.append(f"| {nccl} | {' | '.join(cells)} |")
    return "\n".join(lines)


def loads_told() -> dict[str, object]:
    """How many loads of fewer than MANY requests there are, and what those that stand out and the others scatter by."""
    shares = [share for file in ON_TIME for share in few_scatters(file).values()]
    out = [share for share in shares if share > UNSTEADY]
    return {
        "few_loads": len(shares),
        "standing_out": len(out),
        "out_least": min(out),
        "else_most": max(share for share in shares if share <= UNSTEADY),
        "unsteady": UNSTEADY,
        "many": MANY,
    }


if __name__ == "__main__":
    print(table(), larger_table(), fits_table(), answers_table(), own_table(), sep="\n\n")
