"""Which cases a question is about: what was asked, completed by what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from specsim.acceptance import accept_length_bounds
from specsim.breakeven import BreakEven, break_even
from specsim.cost.model import CostModel, MeasuredConfiguration
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError, SpecsimError
from specsim.methods import method_named
from specsim.prediction import Prediction, predict
from specsim.quantities import SpecConfig, Workload

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class AcceptLength:
    """An accept length to judge: its value and standard error, and the runs that measured it (none: it was given).

    `elsewhere` says that they were made under another NCCL setting or batch size, of which acceptance knows
    nothing; `error_known` whether the error was measured, or counts as 0 since nobody stated one.
    """

    value: float
    error: float = 0.0
    runs: tuple[str, ...] = ()
    elsewhere: bool = False
    error_known: bool = False


@dataclass(frozen=True)
class LengthBounds:
    """What another depth's measured accept length says of this one's, without any law of acceptance."""

    low: float
    high: float
    runs: tuple[str, ...]
    num_draft_tokens: int


@dataclass(frozen=True)
class Case:
    """One configuration, batch size and NCCL setting, with the accept length that is known for it, if any.

    `context_len` is None where no time depends on it and none is asked.
    """

    spec: SpecConfig
    batch_size: int
    nccl: str
    accept_length: AcceptLength | None
    bounds: LengthBounds | None = None
    context_len: int | None = None

    @property
    def workload(self) -> Workload:
        """What runs: the batch size, at the context that is asked or was measured."""
        return Workload(self.batch_size, self.context_len)


@dataclass(frozen=True)
class Unanswered:
    """NCCL settings of cases that were not asked for by name and cannot be answered, and why."""

    nccl: str
    why: str


@dataclass(frozen=True)
class Asked:
    """What the caller states; None leaves it to the runs."""

    num_steps: int | None = None
    topk: int | None = None
    num_draft_tokens: int | None = None
    batch_size: int | None = None
    nccl: str | None = None
    accept_length: float | None = None

    @property
    def names_configuration(self) -> bool:
        """Whether any part of a configuration is stated."""
        return any(count is not None for count in (self.num_steps, self.topk, self.num_draft_tokens))


def cases(model: CostModel, asked: Asked) -> tuple[Case, ...]:
    """Every case of a question: each measured configuration and setting unless one is named.

    Raises ConfigurationError on an illegal configuration or when none is stated or measured, and
    UnknownSettingError for a setting without runs.
    """
    settings = [asked.nccl] if asked.nccl is not None else [setting.label for setting in model.settings]
    for label in settings:
        model.setting(label)
    return tuple(
        Case(spec, batch, label, *_length(model, (spec, batch, label), asked.accept_length), context)
        for label in settings
        for spec, batch, context in _configurations(model, asked)
    )


def _configurations(model: CostModel, asked: Asked) -> list[tuple[SpecConfig, int, int | None]]:
    seen = [(_spec(m), m.batch_size, _context(model, m)) for m in model.measured]
    if asked.names_configuration:
        spec = SpecConfig.of(
            num_steps=asked.num_steps,
            topk=asked.topk,
            num_draft_tokens=asked.num_draft_tokens,
            method=drafting_method(model) or "eagle",
        )
        seen = [(spec, batch, context) for _, batch, context in seen] or [(spec, 1, model.asked_context)]
    elif not seen:
        raise ConfigurationError("no speculative run among these: state --num-draft-tokens")
    if asked.batch_size is not None:
        Workload(asked.batch_size)
        seen = [(spec, asked.batch_size, context) for spec, _, context in seen]
    return sorted(set(seen), key=_order)


def drafting_method(model: CostModel) -> str | None:
    """The one drafting method of all that a model measured; None where there are several, or none."""
    methods = {m.method for m in model.measured}
    return methods.pop() if len(methods) == 1 else None


def _context(model: CostModel, measured: MeasuredConfiguration) -> int | None:
    """The context that a question asks for, else the configuration's own where times depend on it."""
    return model.asked_context if model.asked_context is not None or not model.reads_context else measured.context_len


def _order(case: tuple[SpecConfig, int, int | None]) -> tuple[int, ...]:
    spec, batch, context = case
    return batch, int(spec.num_draft_tokens), int(spec.num_steps), int(spec.topk), context or 0


def _spec(measured: MeasuredConfiguration) -> SpecConfig:
    return SpecConfig(measured.num_steps, measured.topk, measured.num_draft_tokens, measured.method)


# -- the accept length that is known -------------------------------------------------------------------------------


def _length(
    model: CostModel, case: tuple[SpecConfig, int, str], given: float | None
) -> tuple[AcceptLength | None, LengthBounds | None]:
    if given is not None:
        return AcceptLength(given), None
    spec, batch, nccl = case
    with_length = [m for m in model.measured if m.accept_length is not None]
    same = [m for m in with_length if _spec(m) == spec]
    here = [m for m in same if (m.batch_size, m.nccl) == (batch, nccl)]
    if same:
        return _mean_length(here or same, elsewhere=not here), None
    return None, _bounds(spec, with_length)


def measured_length(model: CostModel, spec: SpecConfig) -> AcceptLength | None:
    """The accept length of a configuration over all its runs: NCCL settings and batch sizes have no part in it."""
    same = [m for m in model.measured if m.accept_length is not None and _spec(m) == spec]
    return _mean_length(same, elsewhere=False) if same else None


def _mean_length(measured: Iterable[MeasuredConfiguration], elsewhere: bool) -> AcceptLength:
    """Mean of what was measured; its error from the spread of several, or from their own errors."""
    measured = tuple(measured)
    values = np.array([m.accept_length for m in measured], dtype=float)
    own = [m.accept_length_error for m in measured if m.accept_length_error is not None]
    within = float(np.mean(np.square(own))) / values.size if own else 0.0
    between = float(values.var(ddof=1)) / values.size if values.size > 1 else 0.0
    runs = tuple(run for m in measured for run in m.runs)
    error = max(within, between) ** 0.5
    return AcceptLength(float(values.mean()), error, runs, elsewhere, error > 0)


def _bounds(spec: SpecConfig, measured: Iterable[MeasuredConfiguration]) -> LengthBounds | None:
    """What other chains' accept lengths leave possible (eq. 18), all of them together; trees give none.

    None, too, where they contradict each other, as noisy lengths can.
    """
    if spec.topk != 1 or not method_named(spec.method).steps_bound_length:
        return None
    steps = int(spec.num_steps)
    found = [
        LengthBounds(*accept_length_bounds(m.accept_length, m.num_steps, steps), m.runs, m.num_draft_tokens)
        for m in measured
        if m.topk == 1 and m.accept_length is not None and m.method == spec.method
    ]
    if not found:
        return None
    low, high = max(b.low for b in found), min(b.high for b in found)
    closest = min(found, key=lambda b: b.high - b.low)
    return replace(closest, low=low, high=high) if low <= high else None


# -- answering ------------------------------------------------------------------------------------------------------


def predictions(model: CostModel, asked: Asked) -> tuple[list[tuple[Case, Prediction]], list[Unanswered]]:
    """A prediction per case; raises ConfigurationError where no accept length is given or measured."""

    def answer(case: Case) -> list[tuple[Case, Prediction]]:
        if case.accept_length is None:
            raise ConfigurationError(
                f"no accept length was measured at num_draft_tokens {case.spec.num_draft_tokens}: state --accept-length"
            )
        return [(case, predict(model, case.spec, case.workload, case.accept_length.value, case.nccl))]

    return _each(cases(model, asked), answer)


def break_evens(
    model: CostModel, asked: Asked, baseline_nccl: str | None = None, allow_mixed: bool = False
) -> tuple[list[tuple[Case, BreakEven]], list[Unanswered]]:
    """The break-even of each case, like for like; with `allow_mixed` also against other settings' baselines."""

    def against(case: Case, baseline: str | None) -> tuple[Case, BreakEven]:
        length = case.accept_length
        return case, break_even(
            model,
            case.spec,
            case.workload,
            case.nccl,
            accept_length=length.value if length else None,
            accept_length_error=length.error if length else 0.0,
            baseline_nccl=baseline,
            allow_mixed=allow_mixed,
        )

    def answer(case: Case) -> list[tuple[Case, BreakEven]]:
        first = against(case, baseline_nccl)
        if baseline_nccl is not None or not allow_mixed:
            return [first]
        taken = (case.nccl, first[1].baseline_nccl)
        others = [s.label for s in model.settings if s.decode_batches and s.label not in taken]
        return [first, *(against(case, other) for other in others)]

    rows, unanswered = _each(cases(model, asked), answer)
    return sorted(rows, key=lambda row: row[1].mixed != ()), unanswered


def _each(
    asked_cases: tuple[Case, ...], answer: Callable[[Case], list[Answer]]
) -> tuple[list[Answer], list[Unanswered]]:
    """Answer every case; one may fail, and is listed with its reason, as long as another answers."""
    rows: list[Answer] = []
    failed: dict[str, list[str]] = {}
    first: SpecsimError | None = None
    for case in asked_cases:
        try:
            rows += answer(case)
        except (MixedSetupError, NotIdentifiedError, ConfigurationError) as error:
            failed.setdefault(str(error), []).append(case.nccl)
            first = first or error
    if first is not None and not rows:
        raise first
    return rows, [Unanswered(", ".join(dict.fromkeys(labels)), why) for why, labels in failed.items()]
