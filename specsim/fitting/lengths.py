"""What measured runs say of acceptance: observations for the law, points of the scaling line, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specsim.acceptance.conversions import accept_length_from_rate
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError, SpecsimError
from specsim.fitting.acceptance import LengthObservation, Observation, SurvivalObservation
from specsim.fitting.scaling import ScalingPoint
from specsim.methods import method_named
from specsim.quantities import SpecConfig
from specsim.runs.run import Run, RunSet


def acceptance_observations(runs: Iterable[Run]) -> tuple[tuple[Observation, ...], tuple[str, ...]]:
    """Observations of every run that says something of acceptance, and a sentence for each that could not be used.

    Counts by position first, then totals, then lengths, then a rate whose meaning is known. Runs with `excluded`
    set are left out. Raises MixedSetupError where runs are of several models, drafters or methods.
    """
    used = tuple(run for run in runs if not run.excluded and _says_something(run))
    _require_one_drafter(used)
    seen: list[Observation] = []
    notes: list[str] = []
    for run in used:
        try:
            seen += _observation(run)
        except SpecsimError as error:
            notes.append(f"{run.id} not used: {error}")
    return tuple(seen), tuple(notes)


def scaling_points(runs: RunSet) -> tuple[ScalingPoint, ...]:
    """Accept lengths by training samples: the file's data_scaling, and runs that state training_samples.

    Raises MixedSetupError where those runs are of several models or configurations, which share no line.
    """
    listed = tuple(ScalingPoint(samples, f.best, f.error, note) for samples, f, note in runs.data_scaling)
    trained = [run for run in runs.runs if run.training_samples is not None and not run.excluded]
    for name, found in (
        ("model", {run.setup.model for run in trained}),
        ("configuration", {run.spec for run in trained}),
    ):
        if len(found - {None}) > 1:
            raise MixedSetupError(
                f"accept lengths after training of several {name}s share no line; keep one, or say in 'exclude' why the"
                " others are left out",
                (name,),
            )
    stated = tuple(
        ScalingPoint(run.training_samples, figure.best, run.accept_length_error, run.note or run.id)
        for run in trained
        if run.training_samples is not None and (figure := run.figures.get("accept_length"))
    )
    return listed + stated


def _says_something(run: Run) -> bool:
    told = run.counts or run.survival or {"accept_length", "accept_rate"} & set(run.figures)
    return bool(told) and run.spec is not None and int(run.spec.num_steps) > 0


def _require_one_drafter(runs: tuple[Run, ...]) -> None:
    values: dict[str, set[str | None]] = {
        "model": {run.setup.model for run in runs},
        "drafter": {run.drafter for run in runs},
        "method": {run.spec.method for run in runs if run.spec},
    }
    mixed = {name: found - {None} for name, found in values.items() if len(found - {None}) > 1}
    if mixed:
        listed = "; ".join(f"{name}: {', '.join(sorted(map(str, found)))}" for name, found in mixed.items())
        raise MixedSetupError(
            f"accept lengths of one drafter on one model make a law, these differ in {listed};"
            " keep one, or say in 'exclude' why the others are left out",
            mixed,
        )


def _observation(run: Run) -> Iterator[Observation]:
    assert run.spec is not None
    spec = run.spec
    if not method_named(spec.method).steps_bound_length:
        raise ConfigurationError(
            f"a {spec.method} drafter has no steps for a law by depth (specsim sweep takes it as a chain)"
        )
    config = (int(spec.num_steps), int(spec.topk), int(spec.num_draft_tokens))
    if run.counts is not None and run.counts.at_least is not None:
        yield SurvivalObservation.of(run.counts, *config)
    elif run.survival:
        yield SurvivalObservation(*config, run.survival, run.cycles)
    elif run.counts is not None:
        yield LengthObservation.of(run.counts, *config)
    elif (figure := run.figures.get("accept_length")) is not None:
        yield LengthObservation(*config, figure.best, run.cycles, run.accept_length_error)
    else:
        yield LengthObservation(*config, _length_from_rate(run, spec), run.cycles)


def _length_from_rate(run: Run, spec: SpecConfig) -> float:
    """The length behind an accept rate, where engine and version say what the rate means."""
    if run.setup.engine is None or run.setup.engine_version is None:
        raise NotIdentifiedError(
            "an accept_rate means different things by engine and version: state both, or accept_length"
        )
    rate = run.figures["accept_rate"].best
    return float(accept_length_from_rate(rate, spec, run.setup.engine, run.setup.engine_version))
