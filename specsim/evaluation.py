"""A model's predictions beside measurements of runs, row by row and summed up (eq. 1–7, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from specsim.cost.communication import Estimate
from specsim.cost.model import CostModel
from specsim.cost.terms import PLAIN, Cycle
from specsim.errors import MixedSetupError, NotIdentifiedError, SpecsimError
from specsim.methods import method_named
from specsim.prediction import price
from specsim.quantities import SETUP_FIELDS, SpecConfig
from specsim.runs.like_for_like import differences
from specsim.runs.run import TIME_FIGURES, Figure, Run, RunSet
from specsim.uncertainty import quantile

COMPARED_FIGURES = (*TIME_FIGURES, "output_tok_s")
_KEPT_BY_MODELS = {*SETUP_FIELDS, "drafter", "method", "instrument"}
_BESIDE_VERIFY = ("draft_ms", "extend_ms", "other_ms")


@dataclass(frozen=True)
class Comparison:
    """One measured figure of a run beside its prediction, both in the figure's unit [ms or tok/s].

    `spec` is None for plain decode. `interval` is that of a new measurement at quantities.LEVEL: the coefficients' variance and the noise of so
    many readings, over all readings of an NCCL setting. `extrapolated_in` names what lies outside the measured
    range, `in_fit` says that the model was fitted to this run, `mixed_in` in which fields the two differ.
    """

    run: str
    figure: str
    spec: SpecConfig | None
    batch_size: int
    nccl: str
    measured: float
    predicted: float
    interval: tuple[float, float]
    extrapolated_in: tuple[str, ...]
    in_fit: bool
    implied: bool
    mixed_in: tuple[str, ...]

    @property
    def difference_pct(self) -> float:
        """100·(predicted − measured)/measured."""
        return 100.0 * (self.predicted / self.measured - 1)

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the interval of a new measurement."""
        return self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True)
class Unevaluated:
    """Figures of a run (none: the whole run) that the model cannot be held against, and why."""

    run: str
    figures: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Accuracy:
    """Differences of `count` comparisons in percent of the measured figure; NaN where there are none.

    `bias_pct` is the mean of the signed differences, `coverage` the share of measurements inside their interval.
    """

    count: int
    median_abs_pct: float
    p95_abs_pct: float
    max_abs_pct: float
    bias_pct: float
    coverage: float

    @classmethod
    def of(cls, compared: Iterable[Comparison]) -> Accuracy:
        """The accuracy of some comparisons."""
        compared = tuple(compared)
        signed = np.array([c.difference_pct for c in compared])
        if not signed.size:
            return cls(0, *[float("nan")] * 5)
        size = np.abs(signed)
        middle, high = np.percentile(size, [50, 95])
        inside = float(np.mean([c.inside for c in compared]))
        return cls(signed.size, float(middle), float(high), float(size.max()), float(signed.mean()), inside)


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` answers: every comparison, what could not be compared, and the fields in which runs are mixed."""

    compared: tuple[Comparison, ...]
    unevaluated: tuple[Unevaluated, ...]
    mixed: tuple[str, ...]

    @property
    def held_out(self) -> tuple[Comparison, ...]:
        """The comparisons with runs that the model was not fitted to."""
        return tuple(c for c in self.compared if not c.in_fit)


def evaluate(model: CostModel, runs: RunSet | Iterable[Run], *, allow_mixed: bool = False) -> Evaluation:
    """Hold a model against runs (eq. 1–7), each figure with the interval of a new measurement (eq. 11).

    What cannot be compared is returned with its reason. Raises MixedSetupError where the runs differ among each
    other in what the model leaves unstated, or all differ from its setup, unless that is allowed;
    NotIdentifiedError where nothing can be compared.
    """
    everything = tuple(runs.runs if isinstance(runs, RunSet) else runs)
    differing = {run.id: _differs(model, run) for run in everything}
    refused = {run.id: _why_refused(model, run, () if allow_mixed else differing[run.id]) for run in everything}
    held = tuple(run for run in everything if not refused[run.id])
    among = tuple(name for name in differences(held) if _is_open(model, name))
    if among and not allow_mixed:
        raise MixedSetupError(
            f"the runs differ in {', '.join(among)}, which the model does not state: evaluate them apart{_OR_MIXED}",
            among,
        )
    compared: list[Comparison] = []
    unevaluated = [Unevaluated(run.id, (), refused[run.id]) for run in everything if refused[run.id]]
    for run in held:
        rows, open_figures = _held_against(model, run, (*model.mixed, *differing[run.id], *among))
        compared += rows
        unevaluated += open_figures
    if not compared:
        raise _nothing(unevaluated, differing)
    mixed = dict.fromkeys(name for c in compared for name in c.mixed_in)
    return Evaluation(tuple(compared), tuple(unevaluated), tuple(mixed))


_OR_MIXED = ", or allow a mixed comparison (--allow-mixed)"


def _nothing(unevaluated: list[Unevaluated], differing: dict[str, tuple[str, ...]]) -> SpecsimError:
    reasons = dict.fromkeys(f"{each.run}: {each.why}" for each in unevaluated)
    shown = "\n".join(["none of the runs can be held against this model:", *list(reasons)[:8]])
    fields = {name for names in differing.values() for name in names}
    return MixedSetupError(shown, sorted(fields)) if fields else NotIdentifiedError(shown)


# -- like for like with the model ------------------------------------------------------------------------------------


def _differs(model: CostModel, run: Run) -> tuple[str, ...]:
    """Fields in which a run states something else than the model's setup, method family or NCCL environment."""
    pairs = {name: (getattr(model.setup, name), getattr(run.setup, name)) for name in SETUP_FIELDS}
    found = [name for name, (ours, theirs) in pairs.items() if None not in (ours, theirs) and ours != theirs]
    families = {method_named(m.method).family for m in model.measured if m.num_steps > 0}
    if run.spec is not None and run.spec.num_steps > 0 and run.method and families:
        found += [] if method_named(run.method).family in families else ["method"]
    for setting in model.settings:
        theirs = dict(run.nccl_env)
        if setting.label == run.nccl and setting.environment and theirs and setting.environment != theirs:
            found.append(f"nccl_env of {run.nccl}")
    return tuple(found)


def _is_open(model: CostModel, name: str) -> bool:
    """Whether runs may differ in a field without the model saying which of them it is like."""
    return name in _KEPT_BY_MODELS and getattr(model.setup, name, None) is None and name not in model.mixed


def _why_refused(model: CostModel, run: Run, differing: tuple[str, ...]) -> str:
    """Why a run as a whole cannot be held against the model; empty where it can."""
    if run.excluded:
        return f"excluded: {run.excluded}"
    if run.speculative and run.spec is None:
        return "its configuration is not stated: give num_draft_tokens or num_steps"
    if not any(name in run.figures for name in COMPARED_FIGURES):
        return "it states no time and no throughput"
    if differing:
        return f"not like for like: its {', '.join(differing)} {'is' if len(differing) == 1 else 'are'} not the model's{_OR_MIXED}"
    known = [setting.label for setting in model.settings]
    return "" if run.nccl in known else f"unknown NCCL setting {run.nccl!r}; known here: {', '.join(known)}"


def _was_fitted(model: CostModel, run: Run) -> bool:
    """Whether a run of this name, configuration and setting is among those that the model was fitted to."""
    if run.spec is None:
        fitted = {name for c in model.coefficients if (c.phase, c.nccl) == ("decode", run.nccl) for name in c.runs}
        return run.id in fitted and run.workload.batch_size in model.setting(run.nccl).decode_batches
    figure = run.figures.get("accept_length")
    here = (run.spec.num_steps, run.spec.topk, run.spec.num_draft_tokens, run.workload.batch_size, run.nccl)
    return any(
        run.id in m.runs
        and (m.num_steps, m.topk, m.num_draft_tokens, m.batch_size, m.nccl) == here
        and m.accept_length == (figure.best if figure else None)
        for m in model.measured
    )


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Expected:
    """The expected time behind a figure: its point, every reading of it, and what lies outside the measured range."""

    point: Estimate
    readings: tuple[Estimate, ...]
    extrapolated_in: tuple[str, ...]


def _held_against(model: CostModel, run: Run, mixed: tuple[str, ...]) -> tuple[list[Comparison], Iterator[Unevaluated]]:
    """A run's figures beside their predictions, and those that the model leaves open, by reason."""
    rows: list[Comparison] = []
    failed: dict[str, list[str]] = {}
    for name in (name for name in COMPARED_FIGURES if name in run.figures):
        try:
            expected = _expected(model, run, name)
        except (NotIdentifiedError, MixedSetupError) as error:
            failed.setdefault(str(error), []).append(name)
            continue
        rows.append(_comparison(model, run, name, expected, tuple(dict.fromkeys(mixed))))
    return rows, (Unevaluated(run.id, tuple(names), why) for why, names in failed.items())


def _expected(model: CostModel, run: Run, name: str) -> _Expected:
    """The time that the model expects behind a figure; raises where it has none, saying why."""
    if run.spec is None or name == "decode_ms":
        return _plain(model, run)
    if name in _BESIDE_VERIFY:
        return _beside_verify(model, run, run.spec, name.removesuffix("_ms"))
    if name == "verify_ms" and ("verify" not in model.measured_phases or model.setting(run.nccl).whole_cycles):
        raise NotIdentifiedError("only whole cycles were timed for this model: it has no verify time of its own")
    if name == "output_tok_s" and "accept_length" not in run.figures:
        raise NotIdentifiedError("its throughput says nothing of the cycle without an accept length")
    if name != "verify_ms" and model.lower_bound(run.nccl):
        raise NotIdentifiedError(
            f"the model's cycles are lower bounds: {', '.join(model.unmeasured_phases)} not told by its runs"
        )
    cost = price(model, _cycle(model, run, run.spec), run.nccl, run.workload.context_len is not None)
    beyond = {**model.beyond(cost.cycle, run.nccl), **cost.beyond_context}
    outside = tuple(count for count, mask in beyond.items() if mask.any())
    if name == "verify_ms":  # which knows widths, not how deep the drafts were
        outside = tuple(count for count in outside if count != "num_steps")
        return _Expected(cost.verify.point, tuple(cost.verify.by_name.values()), outside)
    return _Expected(cost.total, tuple(cost.readings.values()), outside)


def _plain(model: CostModel, run: Run) -> _Expected:
    cycle = _cycle(model, run, PLAIN)
    decode = model.decode(cycle, run.nccl)
    outside = tuple(name for name, mask in model.beyond_decode(cycle, run.nccl).items() if mask.any())
    return _Expected(decode, (decode,), outside)


def _cycle(model: CostModel, run: Run, spec: SpecConfig) -> Cycle:
    """A run's cycles, in its own graph mode; raises where its time depends on a context that it does not state."""
    if model.reads_context and run.workload.context_len is None:
        raise NotIdentifiedError("its context_len is not stated, and the model's times depend on it")
    return model.cycle(spec, run.workload, run.setup.cuda_graph)


def _beside_verify(model: CostModel, run: Run, spec: SpecConfig, phase: str) -> _Expected:
    cycle = _cycle(model, run, spec)
    time = model.phase(phase, cycle, None)
    if phase not in model.measured_phases or not model.estimable(time).all():
        raise NotIdentifiedError(f"no run of this model timed {phase} alone, so it has no {phase} time to compare")
    if not time.value.all():
        raise NotIdentifiedError(f"the model expects no {phase} time at all here, so a difference has no percentage")
    beyond = model.beyond(cycle, run.nccl)
    return _Expected(time, (time,), tuple(count for count, mask in beyond.items() if mask.any()))


def _comparison(model: CostModel, run: Run, name: str, expected: _Expected, mixed: tuple[str, ...]) -> Comparison:
    figure, predicted = run.figures[name], float(expected.point.value[0])
    low, high = _of_new_measurement(model, expected.readings, _relative_noise(model, run, figure, name))
    if name == "output_tok_s":
        length = run.figures["accept_length"].best if run.spec is not None else 1.0
        tokens = float(run.workload.batch_size) * length * 1000.0
        predicted, (low, high) = tokens / predicted, (tokens / high, tokens / low if low > 0 else float("inf"))
    return Comparison(
        run.id,
        name,
        run.spec,
        int(run.workload.batch_size),
        run.nccl,
        figure.best,
        predicted,
        (low, high),
        expected.extrapolated_in,
        _was_fitted(model, run),
        figure.implied,
        mixed,
    )


def _relative_noise(model: CostModel, run: Run, figure: Figure, name: str) -> float:
    """Relative standard deviation of a figure as measured: noise of its readings, its range, its accept length's."""
    squares = model.noise.relative**2 / len(figure.readings) + figure.relative_spread**2
    if name == "output_tok_s" and run.spec is not None:
        squares += run.figures["accept_length"].relative_spread ** 2
    return float(squares**0.5)


def _of_new_measurement(model: CostModel, readings: tuple[Estimate, ...], noise: float) -> tuple[float, float]:
    """Interval [ms] of a measurement that is yet to come: var = φᵀΣφ + (noise·φᵀθ)² (eq. 11), over all readings."""
    reach = quantile(model.noise.residual_dof)
    ends = []
    for reading in readings:
        time = float(reading.value[0])
        wide = reach * float(np.hypot(reading.variance(model.covariance_matrix)[0] ** 0.5, noise * time))
        ends += [time - wide, time + wide]
    return max(min(ends), 0.0), max(ends)
