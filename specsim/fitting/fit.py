"""The fit: one weighted non-negative least-squares problem over all phases of all runs (eq. 12)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from specsim.cost.bare_forwards import BareForwards
from specsim.cost.model import (
    Alternative,
    Coefficient,
    CostModel,
    Measured,
    MeasuredConfiguration,
    NcclSetting,
    Noise,
    Span,
)
from specsim.cost.terms import KV_READ, PHASES
from specsim.errors import MixedSetupError, NotIdentifiedError, SpecsimError
from specsim.fitting.choice import STEPS, Form, choose
from specsim.fitting.columns import (
    Column,
    base_columns,
    contexts_told,
    features,
    measured_alone,
    noise_ratio,
    phases_of_many_contexts,
    solved,
    told_apart,
)
from specsim.fitting.host import host_or_device
from specsim.fitting.least_squares import Solution, resampled
from specsim.fitting.notes import notes
from specsim.fitting.observations import Observation, observations
from specsim.fitting.outliers import without_gross_outliers
from specsim.quantities import FloatArray, Setup
from specsim.runs.like_for_like import require_like_for_like, shared_setup
from specsim.runs.run import Run, RunSet

ASSUMED_NOISE = 0.01
"""Relative timing noise of a measurement where the runs cannot tell it. The campaign's two instruments differ
by 0.9% on one configuration; the same cell measured in other sessions on one H100 differed by 0.3 to 0.9%."""

_INFLUENCES = 1e-6  # share of the largest influence below which a row only touches a coefficient by rounding


@dataclass(frozen=True)
class Residual:
    """One measured figure beside the fit: the phases that it covers, times in ms, relative difference."""

    run: str
    nccl: str
    phases: tuple[str, ...]
    verify_tokens: float
    measured_ms: float
    fitted_ms: float
    implied: bool

    @property
    def relative(self) -> float:
        """(measured − fitted)/fitted."""
        return self.measured_ms / self.fitted_ms - 1


@dataclass(frozen=True)
class _Problem:
    """Fitted runs, the equations they give, the columns told apart, and the solution."""

    runs: tuple[Run, ...]
    seen: tuple[Observation, ...]
    columns: tuple[Column, ...]
    solution: Solution
    bare: BareForwards | None = None


@dataclass(frozen=True)
class Fit:
    """A fitted model, every figure it was fitted to, and what was left out.

    `left_out` are the runs whose `excluded` says why, `outliers` single figures that the others contradict grossly,
    beside what those say.
    """

    model: CostModel
    residuals: tuple[Residual, ...]
    left_out: tuple[Run, ...]
    outliers: tuple[Residual, ...]
    _problem: _Problem = field(repr=False)

    def resampled(self, count: int, generator: np.random.Generator) -> FloatArray:
        """Coefficients (count, p) refitted to figures drawn anew around the fit (residual bootstrap).

        Residuals are freed of leverage and drawn with replacement; without degrees of freedom the assumed noise is
        drawn. The bound holds in each, so that a coefficient near 0 shows its one-sided spread. The terms stay those chosen.
        """
        seen, noise = self._problem.seen, self.model.noise.relative
        design = features(self._problem.columns, seen)
        return resampled(design, self._problem.solution, noise_ratio(seen, noise), noise, count, generator)


def fit(
    runs: RunSet | Iterable[Run],
    *,
    noise: float = ASSUMED_NOISE,
    allow_mixed: bool = False,
    bare_forwards: BareForwards | None = None,
) -> Fit:
    """Fit a CostModel to runs (eq. 12); `noise` is the relative timing noise assumed where nothing tells it.

    With `bare_forwards` verify and plain decode are that curve and what the runs have beside it (eq. 13). Runs with
    `excluded` set are left out and returned. Raises MixedSetupError when the rest, and the curve, are not like for
    like, NotIdentifiedError when they hold no time at all.
    """
    if not 0 < noise < 1:
        raise SpecsimError(f"the assumed timing noise is a fraction between 0 and 1 (0.01 is 1%), not {noise:g}")
    everything = tuple(runs.runs if isinstance(runs, RunSet) else runs)
    fitted = _fitted(everything)
    setup = shared_setup(fitted)
    seen = host_or_device(observations(fitted, setup.engine))
    unlike = _bare_unlike(bare_forwards, setup, allow_mixed)
    mixed = require_like_for_like(fitted, allow_mixed, _told(seen))
    if bare_forwards is not None:
        seen = tuple(replace(o, cycle=o.cycle.over(bare_forwards)) for o in seen)
    if not seen:
        raise NotIdentifiedError(
            "no run states a time: give verify_ms, cycle_ms or decode_ms, or output_tok_s (with accept_length)"
        )
    base, folded = told_apart(base_columns(seen), seen, noise)
    if not contexts_told(base, folded, seen, noise):
        mixed = require_like_for_like(fitted, allow_mixed)
        base = tuple(column for column in base if column.term not in KV_READ.values())
    seen, outliers = without_gross_outliers(base, seen, noise)
    form, runners_up = choose(base, seen, _expert_shares(runs))

    def modelled(chosen: Form) -> tuple[CostModel, _Problem]:
        solution, judged = solved(chosen.columns, seen, noise)
        problem = _Problem(fitted, seen, chosen.columns, solution, bare_forwards)
        error = chosen.held_out if np.isfinite(chosen.held_out) else None
        made = replace(_model(problem, judged), mixed=(*mixed, *unlike), setup=setup)
        return replace(made, form=chosen.name, held_out=error), problem

    model, problem = modelled(form)
    others = tuple(_alternative(other, form, modelled(other)[0]) for other in runners_up)
    model = replace(model, alternatives=others)
    model = replace(model, notes=notes(model, fitted, seen, outliers, _at_zero(problem), folded))
    left_out = tuple(run for run in everything if run.excluded)
    return Fit(model, _residuals(problem), left_out, tuple(residual(o, time) for o, time in outliers), problem)


def _bare_unlike(bare: BareForwards | None, setup: Setup, allow_mixed: bool) -> tuple[str, ...]:
    """Fields in which bare forwards were made otherwise than the runs; raises MixedSetupError unless mixing is allowed."""
    fields = () if bare is None else bare.unlike(setup)
    if fields and bare is not None and not allow_mixed:
        pairs = (f"{name} {getattr(bare.setup, name)}, the runs {getattr(setup, name)}" for name in fields)
        raise MixedSetupError(
            f"the bare forwards ({bare.source}) have {'; '.join(pairs)}: measure them as the server runs, or allow a"
            " mixed fit (--allow-mixed)",
            fields,
        )
    return tuple(f"{name} of bare forwards" for name in fields)


def _told(seen: tuple[Observation, ...]) -> tuple[str, ...]:
    """What may differ between runs because the fit has a term for it."""
    return ("context_len",) if phases_of_many_contexts(seen) else ()


def _alternative(other: Form, form: Form, model: CostModel) -> Alternative:
    behind = other.aicc - form.aicc
    return Alternative(other.name, float(behind) if np.isfinite(behind) else None, model.held_out, model)


def _expert_shares(runs: RunSet | Iterable[Run]) -> tuple[float, ...]:
    """The share of its experts that a token uses, from the target's model card; empty where there is none."""
    card = runs.model_card if isinstance(runs, RunSet) else {}
    experts, used = card.get("experts"), card.get("experts_per_token")
    if isinstance(experts, int) and isinstance(used, int) and 0 < used < experts:
        return (used / experts,)
    return ()


def timed_settings(runs: RunSet) -> set[str]:
    """NCCL settings under which the runs that a fit takes state a time."""
    fitted = _fitted(runs.runs)
    return {o.nccl for o in observations(fitted, shared_setup(fitted).engine)}


def _fitted(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(run for run in runs if not run.excluded and _has_configuration(run))


def _has_configuration(run: Run) -> bool:
    """A drafter's accept length after so many training samples may come without a configuration, and then no time."""
    return run.spec is not None or not run.speculative


# -- from the solution to the model ----------------------------------------------------------------------------


def _model(problem: _Problem, noise: Noise) -> CostModel:
    fitted, seen, columns, solution = problem.runs, problem.seen, problem.columns, problem.solution
    covariance = solution.unit_covariance * noise.relative**2
    coefficients = tuple(_coefficient(column, index, problem, covariance) for index, column in enumerate(columns))
    settings = _nccl_settings(fitted, seen)
    alone, whole = measured_alone(seen), any(o.phases == PHASES for o in seen)
    beside = any(column.term.phase in PHASES[1:] for column in columns)
    rest_told = whole and (beside or "verify" not in alone)
    if whole and not rest_told:
        settings = tuple(replace(s, whole_cycles=_has_whole(seen, s.label)) for s in settings)
    return CostModel(
        setup=Setup(),
        coefficients=coefficients,
        covariance=tuple(tuple(float(v) for v in row) for row in covariance),
        blind=tuple(tuple(float(v) for v in row) for row in solution.blind),
        settings=settings,
        reference=min(settings, key=lambda s: (-len(s.verify_tokens), -len(s.decode_batches), s.label)).label,
        noise=noise,
        ranges=_ranges(seen),
        measured_phases=tuple(phase for phase in (*PHASES, "decode") if phase in alone),
        unmeasured_phases=() if rest_told else tuple(phase for phase in PHASES if phase not in alone),
        measured=_measured_configurations(fitted, [setting.label for setting in settings]),
        bare_forwards=problem.bare,
    )


def _at_zero(problem: _Problem) -> tuple[str, ...]:
    held = problem.solution.held
    columns = zip(problem.columns, held, strict=True)
    return tuple(column.term.name for column, at_zero in columns if at_zero and column.term.name not in STEPS)


def _coefficient(column: Column, index: int, problem: _Problem, covariance: FloatArray) -> Coefficient:
    seen, solution = problem.seen, problem.solution
    pull = np.abs(solution.influence[index]) * np.array([o.time_ms for o in seen])
    sources = [o for o, share in zip(seen, pull, strict=True) if share > _INFLUENCES * pull.max(initial=0.0)]
    widths = [o.verify_tokens for o in sources if o.phases != ("decode",)]
    blind = solution.blind[:, index]
    scale = np.abs(solution.blind).max(axis=1, initial=0.0)
    return Coefficient(
        name=column.term.name,
        nccl=column.nccl,
        parameters=column.parameters,
        value=float(solution.values[index]),
        standard_error=float(np.sqrt(covariance[index, index])),
        unit=column.term.unit,
        identified=bool((solution.kept[index] or column.known) and (np.abs(blind) <= 1e-7 * scale).all()),
        runs=tuple(dict.fromkeys(o.run for o in sources)),
        verify_tokens=(min(widths), max(widths)) if widths else None,
        implied=any(o.implied for o in sources),
    )


def _nccl_settings(fitted: tuple[Run, ...], seen: tuple[Observation, ...]) -> tuple[NcclSetting, ...]:
    environments: dict[str, dict[str, str]] = {}
    for run in fitted:
        environments.setdefault(run.nccl, {}).update(run.nccl_env)
    return tuple(
        NcclSetting(
            label,
            environment,
            tuple(sorted({o.verify_tokens for o in seen if o.nccl == label and "verify" in o.phases})),
            tuple(sorted({float(o.cycle.batch_size[0]) for o in seen if o.nccl == label and "decode" in o.phases})),
        )
        for label, environment in environments.items()
        if any(o.nccl == label for o in seen)
    )


def _has_whole(seen: tuple[Observation, ...], label: str) -> bool:
    return any(o.phases == PHASES and o.nccl == label for o in seen)


def _ranges(seen: tuple[Observation, ...]) -> dict[Measured, Span]:
    """What was measured, lowest and highest; steps where anything beside verify was, if it was."""
    cycles = [o for o in seen if "decode" not in o.phases]
    drafted = [o for o in cycles if o.phases != ("verify",)] or cycles
    counts: dict[Measured, list[float]] = {
        "verify_tokens": [o.verify_tokens for o in cycles],
        "batch_size": [float(o.cycle.batch_size[0]) for o in cycles],
        "num_steps": [float(o.cycle.num_steps[0]) for o in drafted],
        "topk": [float(o.cycle.topk[0]) for o in cycles],
        "context_len": [float(o.context_len) for o in cycles if o.context_len is not None],
        "decode_context_len": [
            float(o.context_len) for o in seen if "decode" in o.phases and o.context_len is not None
        ],
    }
    return {name: (min(values), max(values)) for name, values in counts.items() if values}


def _measured_configurations(fitted: tuple[Run, ...], labels: list[str]) -> tuple[MeasuredConfiguration, ...]:
    return tuple(_measured_configuration(run) for run in fitted if run.spec is not None and run.nccl in labels)


def _measured_configuration(run: Run) -> MeasuredConfiguration:
    assert run.spec is not None
    length = run.figures.get("accept_length")
    return MeasuredConfiguration(
        int(run.spec.num_steps),
        int(run.spec.topk),
        int(run.spec.num_draft_tokens),
        run.spec.method,
        int(run.workload.batch_size),
        run.nccl,
        length.best if length else None,
        run.accept_length_error,
        run.cycles,
        tuple(run.counts.survival.tolist()) if run.counts and run.counts.at_least else run.survival,
        (run.id,),
        run.workload.context_len,
    )


def _residuals(problem: _Problem) -> tuple[Residual, ...]:
    seen, fitted = problem.seen, features(problem.columns, problem.seen) @ problem.solution.values
    return tuple(residual(o, float(time)) for o, time in zip(seen, fitted, strict=True))


def residual(seen: Observation, fitted_ms: float) -> Residual:
    """A figure beside its fitted time."""
    phases, width = seen.phases, seen.verify_tokens
    return Residual(seen.run, seen.nccl, phases, width, seen.time_ms, fitted_ms, seen.implied)
