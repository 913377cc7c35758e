"""Runs that a fit did not see, beside their predictions, and beside what a user would use instead on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from specsim import BareForwards, Run, SpecsimError, evaluate, fit
from specsim.evaluation import Comparison
from specsim.quantities import FloatArray
from specsim.runs.run import Figure, RunSet

Part = Callable[[Run], Hashable]
"""The part of the runs that one is left out with; None for a run that is never left out."""

_KINDS = {"verify_ms": "verify", "draft_ms": "draft", "cycle_ms": "cycle", "decode_ms": "decode"}


@dataclass(frozen=True)
class Held:
    """One measured time that the fit did not see, what it was predicted as, and what was said of the prediction.

    `kind` is the phase that the figure covers; a throughput counts as the time of its cycle or step, B·L/R (eq. 6).
    `inside` is whether the measurement lies in the 90% interval of a new one, `extrapolated` whether it was flagged.
    """

    run: str
    kind: str
    measured_ms: float
    predicted_ms: float
    inside: bool
    extrapolated: bool

    @property
    def error(self) -> float:
        """|predicted/measured − 1|."""
        return abs(self.predicted_ms / self.measured_ms - 1)


# -- leaving a part out ------------------------------------------------------------------------------------------------


def configuration(run: Run) -> Hashable:
    """One configuration at one batch size."""
    return run.spec is None, _shape(run), run.workload.batch_size


def batch_size(run: Run) -> Hashable:
    """All configurations of a batch size."""
    return run.workload.batch_size


def shape(run: Run) -> Hashable:
    """All batch sizes of a depth, branching and width; plain decode stays."""
    return _shape(run)


def single_run(run: Run) -> Hashable:
    """One run: where all of a group have one configuration, a kind of work or a stretch of time."""
    return run.id


def octave(run: Run) -> Hashable:
    """All runs that verify 1, 2 to 3, 4 to 7 … tokens; plain decode stays."""
    return None if run.spec is None else int(np.log2(verify_tokens(run)))


def _shape(run: Run) -> Hashable:
    spec = run.spec
    return None if spec is None else (spec.num_steps, spec.topk, spec.num_draft_tokens)


def verify_tokens(run: Run) -> int:
    """T = B·N; of plain decode, one token a request."""
    return int(run.workload.batch_size) * (1 if run.spec is None else int(run.spec.num_draft_tokens))


def splits(runs: RunSet, part: Part) -> Iterator[tuple[RunSet, tuple[Run, ...]]]:
    """The rest and the part left out, each part in turn; excluded runs are in neither."""
    usable = tuple(run for run in runs.runs if not run.excluded)
    for value in dict.fromkeys(map(part, usable)):
        if value is not None:
            rest = tuple(run for run in usable if part(run) != value)
            yield replace(runs, runs=rest), tuple(run for run in usable if part(run) == value)


def held_out(runs: RunSet, part: Part, bare: BareForwards | None = None) -> list[Held]:
    """Leave out each part in turn, fit the rest, predict the part; what the rest does not determine is missing."""
    return [held for rest, unseen in splits(runs, part) for held in predicted(rest, unseen, bare)]


def predicted(seen: RunSet, unseen: tuple[Run, ...], bare: BareForwards | None = None) -> list[Held]:
    """The figures of unseen runs beside what a fit to the seen ones says, over bare forwards if some are given.

    None where the fit says nothing.
    """
    try:
        compared = evaluate(fit(seen, bare_forwards=bare).model, unseen).compared
    except SpecsimError:
        return []
    by_id = {run.id: run for run in unseen}
    return [_held(by_id[each.run], each) for each in compared]


def _held(run: Run, compared: Comparison) -> Held:
    return Held(
        run.id,
        kind(run, compared.figure),
        time_ms(run, compared.figure, compared.measured),
        time_ms(run, compared.figure, compared.predicted),
        compared.inside,
        bool(compared.extrapolated_in),
    )


def kind(run: Run, figure: str) -> str:
    """The phase that a figure covers: verify, draft, cycle or decode."""
    return _KINDS.get(figure, "decode" if run.spec is None else "cycle")


def time_ms(run: Run, figure: str, value: float) -> float:
    """A figure as a time [ms]; a throughput R is one cycle's, B·L/R (eq. 6), L = 1 for plain decode."""
    if figure != "output_tok_s":
        return value
    length = 1.0 if run.spec is None else run.figures["accept_length"].best
    return float(run.workload.batch_size) * length * 1000.0 / value


def whole(run: Run) -> Figure:
    """A run's cycle, or its step of plain decode."""
    return run.figures["decode_ms" if run.spec is None else "cycle_ms"]


def scatters(runs: Iterable[Run]) -> dict[str, float]:
    """Relative standard deviation of each run's time, from what its parts lie apart."""
    return {run.id: whole(run).relative_spread for run in runs}


def measured(run: Run) -> dict[str, float]:
    """The times [ms] that a run states, by kind."""
    figures = [name for name in (*_KINDS, "output_tok_s") if name in run.figures]
    return {kind(run, name): time_ms(run, name, run.figures[name].best) for name in figures}


def countable(runs: RunSet, part: Part) -> int:
    """How many times there are to predict under a split."""
    return sum(len(measured(run)) for _, unseen in splits(runs, part) for run in unseen)


# -- what a user would use instead -------------------------------------------------------------------------------------

Guess = Callable[[Run, str], float | None]
"""The time [ms] that somebody would guess for a run's figure of a kind; None where the guess says nothing."""


def plain_steps(runs: RunSet) -> dict[int, float]:
    """Plain decode's step [ms] by batch size, the mean where it was measured more than once."""
    found: dict[int, list[float]] = {}
    for run in runs.runs:
        if run.spec is None and not run.excluded:
            found.setdefault(int(run.workload.batch_size), []).append(measured(run)["decode"])
    return {batch: float(np.mean(times)) for batch, times in found.items()}


def proportional(runs: RunSet) -> Guess:
    """Verify grows with its tokens: N plain steps of that batch size; without them, in proportion to the narrowest run."""
    plain, narrowest = plain_steps(runs), _narrowest(runs)

    def guess(run: Run, kind: str) -> float | None:
        if kind not in narrowest or run.spec is None:
            return None
        batch, width = int(run.workload.batch_size), int(run.spec.num_draft_tokens)
        if plain:
            return plain[batch] * width if batch in plain else None
        known = narrowest[kind]
        return None if run is known else measured(known)[kind] * verify_tokens(run) / verify_tokens(known)

    return guess


def constant_ratio(runs: RunSet) -> Guess:
    """Leviathan et al.: verify costs a plain step, a draft step a constant share of it, taken from one known run.

    That run is the chain nearest to three steps at the smallest batch size. Bare forwards cost what the narrowest does.
    """
    plain, narrowest = plain_steps(runs), _narrowest(runs)
    known = _known(runs, plain)
    share = 0.0 if known is None else _draft_share(known, plain)

    def guess(run: Run, kind: str) -> float | None:
        if kind == "verify":
            return None if run is narrowest[kind] else measured(narrowest[kind])[kind]
        batch = int(run.workload.batch_size)
        if kind != "cycle" or known is None or run is known or run.spec is None or batch not in plain:
            return None
        return plain[batch] * (1 + share * int(run.spec.num_steps))

    return guess


def _narrowest(runs: RunSet) -> dict[str, Run]:
    """The run of fewest verify tokens among those that time verify, and among those that time a cycle."""
    found: dict[str, Run] = {}
    for run in sorted(runs.runs, key=verify_tokens):
        for name in measured(run) if run.spec is not None and not run.excluded else ():
            if name in ("verify", "cycle"):
                found.setdefault(name, run)
    return found


def _known(runs: RunSet, plain: dict[int, float]) -> Run | None:
    cycles = [run for run in runs.runs if not run.excluded and run.spec is not None and "cycle" in measured(run)]
    usable = [run for run in cycles if int(run.workload.batch_size) in plain and run.spec.num_steps > 0]

    def order(run: Run) -> tuple[int, ...]:
        spec = run.spec
        return int(run.workload.batch_size), int(spec.topk), abs(int(spec.num_steps) - 3)

    return min(usable, key=order, default=None)


def _draft_share(run: Run, plain: dict[int, float]) -> float:
    return (measured(run)["cycle"] / plain[int(run.workload.batch_size)] - 1) / int(run.spec.num_steps)


@dataclass(frozen=True)
class Roofline:
    """A target's forward by its vendor's figures: read the weights it touches, or compute (pure roofline).

    Parameters in all and used by a token, the share of its experts that a token uses (1: dense), bytes a parameter;
    bytes and operations a second of all GPUs together.
    """

    parameters: float
    active: float
    expert_share: float
    bytes_per_parameter: float
    memory_bytes_s: float
    flop_s: float

    def forward_ms(self, tokens: float) -> float:
        """The longer of reading and computing, for so many tokens [ms]."""
        untouched = 0.0
        if self.expert_share < 1:  # a token leaves 1 − share of the experts alone, T tokens the Tth power of that
            experts = (self.parameters - self.active) / (1 - self.expert_share)
            untouched = experts * (1 - self.expert_share) ** tokens
        read = (self.parameters - untouched) * self.bytes_per_parameter / self.memory_bytes_s
        return 1000.0 * max(read, 2 * self.active * tokens / self.flop_s)

    def guess(self, run: Run, kind: str) -> float | None:
        """The target's forward alone: a drafter's size is seldom stated."""
        return None if kind == "draft" else self.forward_ms(verify_tokens(run))


# -- cells of a table --------------------------------------------------------------------------------------------------


def summed_up(errors: Iterable[float]) -> str:
    """Median, 95th percentile and largest of some errors."""
    errors = list(errors)
    if not errors:
        return "– | – | –"
    return f"{np.median(errors):.1%} | {np.quantile(errors, 0.95):.1%} | {max(errors):.1%}"


def span(values: FloatArray) -> str:
    """Least and largest of some milliseconds, with their signs."""
    return f"{values.min():+.2f} to {values.max():+.2f} ms"


def inside_the_range(held: Iterable[Held]) -> str:
    """How many were predicted without extrapolation, with the median and the largest error of those."""
    errors = [each.error for each in held if not each.extrapolated]
    return f"{len(errors)} | {np.median(errors):.1%} | {max(errors):.1%}" if errors else "0 | – | –"


def covered(held: Iterable[Held]) -> str:
    """Share of the measurements that lie in the 90% interval of a new one."""
    inside = [each.inside for each in held]
    return f"{np.mean(inside):.0%}" if inside else "–"


def instead(runs: RunSet, held: Iterable[Held], guess: Guess | None) -> str:
    """How many rows a guess speaks of, its median error there, and ours there."""
    by_id = {run.id: run for run in runs.runs}
    pairs = [(each, guess(by_id[each.run], each.kind)) for each in held] if guess else []
    spoken = [(each, time) for each, time in pairs if time is not None]
    if not spoken:
        return "– | – | –"
    theirs = [abs(time / each.measured_ms - 1) for each, time in spoken]
    return f"{len(spoken)} | {np.median(theirs):.1%} | {np.median([each.error for each, _ in spoken]):.1%}"
