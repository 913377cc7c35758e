"""Answers as plain records under the glossary's names: what `--json` prints and tables are drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np

from specsim.breakeven import IMPOSSIBLE, BreakEven
from specsim.cost.model import Coefficient, CostModel
from specsim.cost.terms import PHASES
from specsim.errors import NotIdentifiedError
from specsim.fitting import Fit
from specsim.fitting.choice import STEPS
from specsim.prediction import CycleTimes, Prediction, predict
from specsim.quantities import LEVEL, FloatArray
from specsim.questions import Case, LengthBounds, Unanswered
from specsim.runs.run import PHASE_FIGURES, Run
from specsim.uncertainty import quantile

Record = dict[str, Any]


def plain(value: Any) -> Any:
    """Numbers that JSON has no form for (not a number, infinite) become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


# -- fit ----------------------------------------------------------------------------------------------------------


def fit_record(fitted: Fit, resamples: FloatArray | None = None) -> Record:
    """A fit: the reference setting's coefficients by name at the top, then everything it rests on.

    With coefficients refitted to resamples, (count, p), the interval that their quantiles span.
    """
    model = fitted.model
    spread = _quantiles(model, resamples)
    tops = {
        c.name: c.value if c.identified else None
        for c in model.coefficients
        if c.nccl in (None, model.reference) and c.name not in STEPS
    }
    if "verify" not in model.measured_phases:
        tops["cycle_fixed_ms"], tops["cycle_per_token_ms"] = (tops.get(name) for name in _VERIFY)
        tops |= dict.fromkeys(_VERIFY)
    return {
        "nccl": model.reference,
        **{name: tops.get(name) for name in _VERIFY},
        **tops,
        "verify_fixed_share": _fixed_shares(model),
        **_noise_record(model),
        "setup": asdict(model.setup),
        "coefficients": [
            {**_coefficient_record(model, c), "bootstrap_interval": ends}
            for c, ends in zip(model.coefficients, spread, strict=True)
        ],
        "bootstrap": 0 if resamples is None else len(resamples),
        "settings": [asdict(setting) for setting in model.settings],
        "ranges": dict(model.ranges),
        "bare_forwards": None if model.bare_forwards is None else asdict(model.bare_forwards),
        "form": model.form,
        "held_out": model.held_out,
        "alternatives": [
            {"form": a.form, "aicc_behind": a.aicc_behind, "held_out": a.held_out} for a in model.alternatives
        ],
        "mixed_setup": bool(model.mixed),
        "mixed_fields": list(model.mixed),
        "residuals": [{**asdict(r), "relative": r.relative} for r in fitted.residuals],
        "left_out": [_left_out_record(model, run) for run in fitted.left_out],
        "outliers": [{**asdict(r), "relative": r.relative} for r in fitted.outliers],
        "notes": list(model.notes),
    }


_VERIFY = ("verify_fixed_ms", "verify_per_token_ms")


def _fixed_shares(model: CostModel) -> list[Record]:
    """Share of verify time that is fixed, at each width measured under the reference setting.

    None where tokens alone do not tell verify's time: it depends on contexts or requests too, or the host may be longer.
    """
    fixed, slope = (model.coefficient(name, model.reference) for name in _VERIFY)
    others = {c.name for c in model.coefficients if c.phase == "verify"} - {*_VERIFY}
    if fixed is None or not fixed.identified or (slope is not None and not slope.identified):
        return []
    if "verify" not in model.measured_phases or others - _BY_TOKENS:
        return []
    widths = np.array(model.setting(model.reference).verify_tokens)
    times = model.phase("verify", model.verify_cycle(np.ones_like(widths), widths), model.reference).value
    return [
        {"verify_tokens": float(t), "share": float(fixed.value / time)}
        for t, time in zip(widths, times, strict=True)
        if time > 0
    ]


_BY_TOKENS = {"verify_knee_ms", "verify_coverage_ms", "verify_ramp_ms"}


def _noise_record(model: CostModel) -> Record:
    noise = model.noise
    return {
        "residual_dof": noise.residual_dof,
        "noise_assumed": noise.assumed,
        "noise_relative": noise.relative,
        "interval_level": LEVEL,
    }


def _coefficient_record(model: CostModel, coefficient: Coefficient) -> Record:
    reach = quantile(model.noise.residual_dof) * coefficient.standard_error
    interval = [max(coefficient.value - reach, 0.0), coefficient.value + reach]
    interval_or_none = interval if coefficient.identified else None
    return {**asdict(coefficient), "name": _shown_name(model, coefficient), "interval": interval_or_none}


def _quantiles(model: CostModel, resamples: FloatArray | None) -> list[list[float] | None]:
    """The middle LEVEL of each coefficient's resamples; None without any, or where it has no meaning of its own."""
    if resamples is None:
        return [None] * len(model.coefficients)
    low, high = np.quantile(resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    ends = zip(model.coefficients, low, high, strict=True)
    return [[float(least), float(most)] if c.identified else None for c, least, most in ends]


def _shown_name(model: CostModel, coefficient: Coefficient) -> str:
    """What the coefficient is called: the cycle's, where only whole cycles were timed."""
    whole = "verify" not in model.measured_phases or (
        coefficient.nccl is not None and model.setting(coefficient.nccl).whole_cycles
    )
    return coefficient.name.replace("verify", "cycle") if whole else coefficient.name


def _left_out_record(model: CostModel, run: Run) -> Record:
    """A run that was not fitted: why, and its phases beside the fit where the fit speaks of that setting."""
    shown = {name: run.figures[name].best for name in (*PHASE_FIGURES, "cycle_ms") if name in run.figures}
    record: Record = {"id": run.id, "why": run.excluded, "instrument": run.instrument, "measured": shown, "fitted": {}}
    if shown and run.spec is not None and run.nccl in {s.label for s in model.settings}:
        with suppress(NotIdentifiedError):  # then there is nothing to show beside it
            times = predict(model, run.spec, run.workload, 1.0, run.nccl).times
            record["fitted"] = {name: getattr(times, name) for name in shown}
    return record


# -- predict and break-even ------------------------------------------------------------------------------------------


def predictions_record(
    model: CostModel, rows: Iterable[tuple[Case, Prediction]], unanswered: Iterable[Unanswered]
) -> Record:
    """Predictions: the first one's fields at the top, all of them under `rows`."""
    return _with_first([_prediction_row(model, case, answer) for case, answer in rows], model, unanswered)


def break_evens_record(
    model: CostModel, rows: Iterable[tuple[Case, BreakEven]], unanswered: Iterable[Unanswered]
) -> Record:
    """Break-evens: the first one's fields at the top, all of them under `rows`."""
    return _with_first([_break_even_row(model, case, answer) for case, answer in rows], model, unanswered)


def _with_first(rows: list[Record], model: CostModel, unanswered: Iterable[Unanswered]) -> Record:
    return {
        **rows[0],
        "rows": rows,
        "unanswered": [asdict(each) for each in unanswered],
        "setup": asdict(model.setup),
        "notes": list(model.notes),
    }


def case_record(case: Case) -> Record:
    """The configuration, batch size and NCCL setting that a row answers for."""
    return {
        "num_steps": case.spec.num_steps,
        "topk": case.spec.topk,
        "num_draft_tokens": case.spec.num_draft_tokens,
        "batch_size": case.batch_size,
        "context_len": case.context_len,
        "nccl": case.nccl,
    }


def _times_record(model: CostModel, case: Case, times: CycleTimes, baseline: tuple[str, Iterable[str]]) -> Record:
    """The cycle and its phases; phases that the runs cannot tell apart are null.

    `baseline` is the setting of the plain decode beside it, and what of that lies outside the measured range.
    """
    timed = "verify" in model.measured_phases and not model.setting(case.nccl).whole_cycles
    beyond = [_beyond(model, name, case.nccl) for name in times.extrapolated_in]
    beyond += [f"plain decode: {_beyond(model, name, baseline[0])}" for name in baseline[1]]
    told = {coefficient.phase for coefficient in model.coefficients} if timed else set()
    told -= {phase for phase in PHASES if getattr(times, f"{phase}_ms") < 0}  # eq. 17 may save more of one than it has
    return {
        "cycle_ms": times.cycle_ms,
        "cycle_interval": times.cycle_interval,
        **{f"{phase}_ms": getattr(times, f"{phase}_ms") if phase in told else None for phase in PHASES},
        "verify_by_reading": times.verify_by_reading if timed else {},
        "extrapolated": bool(beyond),
        "extrapolated_in": beyond,
        "lower_bound": times.lower_bound,
        "cycle_by_form": dict(times.by_form),
    }


def all_beyond(model: CostModel, names: Iterable[str], nccl: str) -> list[str]:
    """What lies outside the measured range, each with that range (eq. 14)."""
    return [_beyond(model, name, nccl) for name in names]


def _beyond(model: CostModel, name: str, nccl: str) -> str:
    low, high = model.span(name, nccl)
    if low > high and name.endswith("_bytes"):
        return f"{name.removeprefix('decode_')} of a prior, which is no measurement"
    if low > high:
        return f"{name} is not stated by any run"
    return f"{name.removeprefix('decode_')} outside the measured {low:g}" + ("" if low == high else f" to {high:g}")


def _prediction_row(model: CostModel, case: Case, answer: Prediction) -> Record:
    mixed = bool(model.mixed)
    return {
        **case_record(case),
        "accept_length": answer.accept_length,
        "output_tok_s": answer.output_tok_s,
        "output_tok_s_interval": answer.output_tok_s_interval,
        "tok_s_per_user": answer.tok_s_per_user,
        "speedup": answer.speedup,
        "decode_ms": answer.decode_ms,
        "baseline_tok_s": answer.baseline_tok_s,
        "no_baseline": answer.no_baseline,
        **_times_record(model, case, answer.times, (case.nccl, answer.decode_extrapolated_in)),
        **_noise_record(model),
        "mixed_setup": mixed,
        "mixed_fields": list(model.mixed),
    }


def _break_even_row(model: CostModel, case: Case, answer: BreakEven) -> Record:
    verdict = answer.verdict
    word = verdict.verdict if verdict else _verdict_of_bounds(answer, case.bounds)
    return {
        **case_record(case),
        "baseline_nccl": answer.baseline_nccl,
        "break_even_accept_length": answer.break_even_accept_length,
        "interval": answer.interval,
        "cost_ratio": answer.cost_ratio,
        "by_reading": answer.by_reading,
        "max_accept_length": answer.max_accept_length,
        "feasible": answer.feasible,
        "required_accept_rate": answer.required_accept_rate,
        "decode_ms": answer.decode_ms,
        "baseline_tok_s": case.batch_size * 1000.0 / float(answer.decode_ms),
        **_times_record(model, case, answer.times, (answer.baseline_nccl, answer.decode_extrapolated_in)),
        "mixed_setup": bool(answer.mixed),
        "mixed_fields": list(answer.mixed),
        **_noise_record(model),
        "accept_length": case.accept_length.value if case.accept_length else None,
        "accept_length_error": case.accept_length.error if case.accept_length else None,
        "accept_length_error_known": case.accept_length.error_known if case.accept_length else None,
        "accept_length_elsewhere": case.accept_length.elsewhere if case.accept_length else None,
        "accept_length_runs": list(case.accept_length.runs) if case.accept_length else [],
        "accept_length_bounds": asdict(case.bounds) if case.bounds else None,
        "speedup": verdict.speedup if verdict else None,
        "probability_pays": verdict.probability_pays if verdict else None,
        "verdict": word,
        "affordable_cycle_ms": verdict.affordable_cycle_ms if verdict else None,
        "affordable_verify_ms": verdict.affordable_verify_ms if verdict else None,
        "message": _message(answer, word),
    }


def _verdict_of_bounds(answer: BreakEven, bounds: LengthBounds | None) -> str:
    """What bounds on the accept length decide, if anything, against the whole interval of the need."""
    if not answer.feasible:
        return IMPOSSIBLE
    low, high = answer.interval
    if bounds is not None and bounds.low > float(high) and not answer.times.lower_bound:
        return "pays"
    if bounds is not None and bounds.high < float(low):
        return "does not pay"
    return "not measured"


def _message(answer: BreakEven, word: str) -> str:
    """The answer as one sentence."""
    most = f"at most {answer.max_accept_length} possible"
    need = f"{'at least ' if answer.times.lower_bound else ''}{answer.cost_ratio:.2f}"
    if not answer.feasible:
        return f"no accept length breaks even: needs {need}, {most}"
    if float(answer.cost_ratio) < 1 and not answer.times.lower_bound:
        return f"pays at any accept length: needs {need}, and every cycle gives at least 1"
    return f"needs an accept length of {need} ({most}): {word}"
