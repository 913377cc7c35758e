"""What a fit has to say about itself, in sentences that every output carries."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.cost.model import CostModel
from specsim.cost.terms import BARE, KV_READ, PHASES
from specsim.fitting.observations import Observation, contradictions
from specsim.fitting.outliers import Outliers
from specsim.methods import COUNTED
from specsim.runs.run import Run

_MOVED = 0.05  # of a time, from which it is said that a curve was held to never fall


def notes(
    model: CostModel,
    fitted: tuple[Run, ...],
    seen: tuple[Observation, ...],
    outliers: Outliers,
    at_zero: tuple[str, ...],
    folded: tuple[str, ...],
) -> tuple[str, ...]:
    """Labels of the fit: assumed noise, untested shape, derived inputs, unmeasured phases, mixing, defaults."""
    return (
        *_about_noise(model, len(seen)),
        *_about_outliers(outliers),
        *_about_widths(model),
        *_about_bare_forwards(model, seen),
        *_about_form(model),
        *_about_context(model),
        *_about_phases(model),
        *_about_inputs(model, fitted, seen),
        *_about_untimed_settings(model, fitted),
        *(f"{name} came out at its bound, 0: the runs would rather have it negative" for name in at_zero),
        *(
            f"{name} cannot be told from the other terms by these runs: inside them, itself counted as 0"
            for name in folded
        ),
    )


def _about_untimed_settings(model: CostModel, fitted: tuple[Run, ...]) -> Iterator[str]:
    known = [setting.label for setting in model.settings]
    for label in dict.fromkeys(run.nccl for run in fitted if run.nccl not in known):
        yield f"NCCL {label}: its runs state no time, so that the model knows nothing of it"


def _about_noise(model: CostModel, figures: int) -> Iterator[str]:
    dof = model.noise.residual_dof
    if model.noise.assumed:
        yield (
            f"{figures} figures for as many coefficients leave nothing to judge the fit by: intervals rest on an"
            f" assumed timing noise of {model.noise.relative:.1%} a measurement (--noise changes it)"
        )
    else:
        yield (
            f"timing noise {model.noise.relative:.2%} a measurement, from the residuals"
            f" ({dof} degree{'' if dof == 1 else 's'} of freedom)"
        )


def _about_outliers(outliers: Outliers) -> Iterator[str]:
    for o, expected in outliers:
        yield (
            f"GROSS OUTLIER, not fitted: {' + '.join(o.phases)} of {o.run}, {o.time_ms:g} ms where the other runs say"
            f" {expected:.4g}; measure it again, or say in its 'exclude' what happened"
        )


def _about_widths(model: CostModel) -> Iterator[str]:
    for setting in model.settings:
        widths = ", ".join(f"{t:g}" for t in setting.verify_tokens)
        if len(setting.verify_tokens) == 2:
            yield f"NCCL {setting.label}: two widths ({widths} tokens) fix the line and test nothing of its shape"
        elif len(setting.verify_tokens) == 1 and setting.label != model.reference:
            yield (
                f"NCCL {setting.label}: measured at {widths} tokens only; other widths are read against"
                f" {model.reference} in several ways, and the bracket of them is shown"
            )


def _about_bare_forwards(model: CostModel, seen: tuple[Observation, ...]) -> Iterator[str]:
    bare = model.bare_forwards
    if bare is None:
        return
    curve = f"{bare.source}; {bare.tokens[0]:g} to {bare.tokens[-1]:g} tokens"
    resting = [phase for phase, term in BARE.items() if model.coefficient(term.name) is not None]
    fitted = [phase for phase in resting if model.coefficient(BARE[phase].name).runs]  # type: ignore[union-attr]
    whole = [phase for phase in resting if phase not in fitted]
    if whole:
        yield f"FROM BARE FORWARDS ({curve}): {_named(whole)}, but for what served runs take beside them"
    for phase in fitted:
        yield f"{_named([phase])} is shorter here than the BARE FORWARDS ({curve}): those are no floor, and fitted times a factor"
    if not resting:
        yield f"bare forwards ({curve}) are not used: no run shows the device's time"
    if bare.largest_correction > _MOVED:
        yield f"bare forwards were held to never fall with tokens, which moved them by up to {bare.largest_correction:.0%}"
    beyond = sorted({o.verify_tokens for o in seen if bare.beyond(o.cycle.verify_tokens).any()})
    if beyond:
        yield f"runs at {', '.join(f'{tokens:g}' for tokens in beyond)} tokens lie beyond the bare forwards, whose slope goes on there"


def _named(phases: list[str]) -> str:
    return " and ".join("plain decode" if phase == "decode" else phase for phase in phases)


def _about_form(model: CostModel) -> Iterator[str]:
    left_out = (
        "" if model.held_out is None else f"; configurations left out are predicted within {model.held_out:.1%} rms"
    )
    if model.form != "line":
        yield f"the runs ask for more than a line: {model.form}{left_out}"
    if model.alternatives:
        listed = "; ".join(alternative.form for alternative in model.alternatives)
        yield f"these runs cannot exclude: {listed}"


def _about_context(model: CostModel) -> Iterator[str]:
    told = {phase for phase, term in KV_READ.items() if any(c.name == term.name for c in model.coefficients)}
    if told:
        yield f"times depend on the context: a question without --context-len is priced at {model.context_len} tokens"
    measured = {
        "verify": any(s.verify_tokens for s in model.settings),
        "decode": any(s.decode_batches for s in model.settings),
    }
    for phase, other in (("verify", "plain decode"), ("decode", "verify")):
        missing = "decode" if phase == "verify" else "verify"
        if phase in told and missing not in told and measured[missing]:
            yield (
                f"what a longer context costs {other} is not told by these runs, and counted as 0: measure it at a"
                " second context"
            )


def _about_phases(model: CostModel) -> Iterator[str]:
    inside = [p for p in PHASES if p not in model.measured_phases and p not in model.unmeasured_phases]
    if "verify" in inside:
        yield "only whole cycles were timed: their fixed and per-token parts are the cycle's, not verify's alone"
    elif inside:
        shown = "extend" if inside == ["extend"] else "other"
        yield f"{_joined(inside)} not timed alone: what whole cycles have beside the timed phases is shown as {shown}"
    bounds = [s.label for s in model.settings if s.verify_tokens and not s.whole_cycles]
    if model.unmeasured_phases and len(model.unmeasured_phases) < len(PHASES):
        where = "" if len(bounds) == len(model.settings) else f" under NCCL {', '.join(bounds)}"
        yield (
            f"{_joined(list(model.unmeasured_phases))} not told by these runs{where}, and counted as 0: cycle times and"
            " break-even lengths there are lower bounds"
        )
    for setting in model.settings:
        if setting.whole_cycles:
            yield f"NCCL {setting.label}: whole cycles only; what is shown as verify there is the cycle"


def _about_inputs(model: CostModel, fitted: tuple[Run, ...], seen: tuple[Observation, ...]) -> Iterator[str]:
    if model.mixed:
        yield f"MIXED: the fitted runs differ in {', '.join(model.mixed)}"
    implied = dict.fromkeys(o.run for o in seen if o.implied)
    if implied:
        yield f"rests on derived figures, not measured ones, of {', '.join(implied)}"
    silent = [run.id for run in fitted if not run.batch_size_stated]
    if silent:
        yield f"batch_size is not stated in {_some(silent)} and taken as 1"
    for run in fitted:
        yield from contradictions(run)
    engine = model.setup.engine
    if engine is not None and engine.lower() not in COUNTED and "draft" in model.measured_phases:
        yield f"engine {engine!r} is not known: its draft forwards are counted as one a step"


def _joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
