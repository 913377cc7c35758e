"""The fitted cost model: named coefficients with their covariance, and the phases of a cycle that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.bare_forwards import BareForwards
from specsim.cost.communication import Estimate, affine_reading, ratio_reading, shift_reading
from specsim.cost.derived import DerivedSetting, never_run
from specsim.cost.step_change import gathers, in_cycles
from specsim.cost.terms import BARE, KV_READ, PADDED, PHASES, PLAIN, TERM_BY_NAME, Cycle
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError, UnknownSettingError
from specsim.quantities import (
    CONTEXT_TOLERANCE,
    BoolArray,
    FloatArray,
    Setup,
    SpecConfig,
    Workload,
    is_legal,
)

_LEAST_LEFT = 0.01  # of a time, whatever another setting is said to save of it
_FALLS = 0.01  # of a time, by which it may fall with more tokens before that is said
_NOTHING_MS = 1e-9  # a step that takes no more than this is rounding
_ESTIMABLE = 1e-7  # relative part of a question that may lie outside what the runs span: rounding, not doubt

_PADDED = frozenset(term.name for term in PADDED.values())
_KV_READS = frozenset(term.name for term in KV_READ.values())

Span = tuple[float, float]
Measured = Literal["verify_tokens", "batch_size", "num_steps", "topk", "context_len", "decode_context_len"]


@dataclass(frozen=True)
class Coefficient:
    """One coefficient θ: value and standard error in `unit`, and where it comes from.

    `nccl` is the setting it belongs to, None when all share it. One that is not `identified` has no meaning of
    its own: the runs only determine its sum with others (verify at the one width measured, say). `runs` are the
    ids whose figures determine it, `verify_tokens` the range of widths among them, `implied` whether a figure
    that was derived, not measured, is one of them; `parameters` shape the term's feature (where a knee is, say).
    """

    name: str
    nccl: str | None
    value: float
    standard_error: float
    unit: str
    identified: bool
    runs: tuple[str, ...] = ()
    verify_tokens: Span | None = None
    implied: bool = False
    parameters: tuple[float, ...] = ()

    @property
    def phase(self) -> str:
        """The phase that the coefficient's term belongs to."""
        return TERM_BY_NAME[self.name].phase


@dataclass(frozen=True)
class NcclSetting:
    """A communication setting: its label, environment, and where it was measured.

    `verify_tokens` are the widths T = B·N of its cycles, `decode_batches` the batch sizes of its baselines.
    `whole_cycles` says that its verify coefficients hold the whole cycle, since nothing tells the rest apart.
    """

    label: str
    environment: dict[str, str]
    verify_tokens: tuple[float, ...]
    decode_batches: tuple[float, ...]
    whole_cycles: bool = False


@dataclass(frozen=True)
class MeasuredConfiguration:
    """A speculative configuration that was run, and the accept length seen there, if any.

    With it its standard error, the cycles behind it, and its survival by position, as far as the run states them.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int
    method: str
    batch_size: int
    nccl: str
    accept_length: float | None
    accept_length_error: float | None
    cycles: int | None
    survival: tuple[float, ...]
    runs: tuple[str, ...]
    context_len: int | None = None


@dataclass(frozen=True)
class Noise:
    """Relative timing noise of one measurement: assumed, or from residuals with these degrees of freedom."""

    relative: float
    assumed: bool
    residual_dof: int


@dataclass(frozen=True)
class Readings:
    """Verify time under a setting: the point used, and every reading that is possible, by name."""

    point: Estimate
    by_name: dict[str, Estimate]
    read: BoolArray
    """Where the width was not measured under the setting, so that the readings differ; shape (n,)."""
    open_because: str
    """Why the runs leave some of the n open (NaN); empty where they leave none."""


@dataclass(frozen=True)
class Alternative:
    """A form of the model that the runs cannot exclude: how far AICc puts it behind, its error on what is left out."""

    form: str
    aicc_behind: float | None
    held_out: float | None
    model: CostModel


@dataclass(frozen=True)
class CostModel:
    """Fixed and per-token costs of a cycle's phases by NCCL setting (eq. 1–5), fitted from runs (eq. 12).

    `covariance` is p × p in the order of `coefficients`; `blind` holds, as rows, the directions of coefficient
    space that the runs say nothing about; `reference` is the setting that others are read against; `ranges`
    gives what was measured, for flagging extrapolation. `measured_phases` were timed alone,
    `unmeasured_phases` neither alone nor in a whole cycle, so that cycle times are lower bounds; `mixed` names
    setup fields that differ among the runs. `form` names the terms that the runs ask for, `held_out` their relative
    error on configurations left out, `alternatives` the forms that the runs cannot exclude (eq. 13). `asked_context`
    is the context that questions of it are asked at, None for the middle of those measured; `derived` are settings
    that were never run; `bare_forwards` is the curve under verify and plain decode, None where none was given.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    setup: Setup
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...]
    blind: tuple[tuple[float, ...], ...]
    settings: tuple[NcclSetting, ...]
    reference: str
    noise: Noise
    ranges: dict[Measured, Span]
    measured_phases: tuple[str, ...]
    unmeasured_phases: tuple[str, ...]
    measured: tuple[MeasuredConfiguration, ...]
    mixed: tuple[str, ...] = ()
    form: str = "line"
    held_out: float | None = None
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()
    asked_context: int | None = None
    derived: tuple[DerivedSetting, ...] = ()
    bare_forwards: BareForwards | None = None

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(problem)

    # -- looking things up -------------------------------------------------------------------------------

    def setting(self, label: str) -> NcclSetting:
        """The setting of this label; raises UnknownSettingError listing the known ones."""
        for setting in self.settings:
            if setting.label == label:
                return setting
        raise UnknownSettingError(label, (s.label for s in self.settings))

    def coefficient(self, name: str, nccl: str | None = None) -> Coefficient | None:
        """The coefficient of this name and setting, None where the runs have no such term."""
        found = (c for c in self.coefficients if c.name == name and c.nccl == nccl)
        return next(found, None)

    @cached_property
    def covariance_matrix(self) -> FloatArray:
        """Σ of eq. 11, shape (p, p)."""
        return np.array(self.covariance, dtype=float).reshape(len(self.coefficients), -1)

    @cached_property
    def _values(self) -> FloatArray:
        return np.array([c.value for c in self.coefficients])

    # -- cycles of this setup --------------------------------------------------------------------------------

    @property
    def reads_context(self) -> bool:
        """Whether any time depends on the context, a KV read that the runs told."""
        return any(coefficient.name in _KV_READS for coefficient in self.coefficients)

    @property
    def context_len(self) -> int | None:
        """The context that cycles are priced at unless they state one: the asked, else the middle of those measured."""
        if self.asked_context is not None:
            return self.asked_context
        span = self.ranges.get("context_len") or self.ranges.get("decode_context_len")
        return None if span is None else round((span[0] + span[1]) / 2)

    def at_one_context(self) -> CostModel:
        """The model with every question asked at one context, where its times depend on that."""
        return replace(self, asked_context=self.context_len) if self.reads_context else self

    def cycle(self, spec: SpecConfig, workload: Workload, cuda_graph: bool | None = None) -> Cycle:
        """What the cycles of a configuration run on this engine, at `context_len` and in its graph mode unless others are stated."""
        context = self.context_len if workload.context_len is None else workload.context_len
        stated = replace(workload, context_len=context)
        graphs = self.setup.cuda_graph if cuda_graph is None else cuda_graph
        return self._captured(Cycle.of(spec, stated, self.setup.engine, eager=graphs is False))

    def _captured(self, cycle: Cycle) -> Cycle:
        """Cycles with the padding of this engine's graphs and the bare forwards of their tokens, where times depend on those."""
        if self.bare_forwards is not None:
            cycle = cycle.over(self.bare_forwards)
        padded = bool(self.derived) or any(coefficient.name in _PADDED for coefficient in self.coefficients)
        return cycle.captured(self.setup.engine, self.setup.engine_version) if padded else cycle

    def plain_cycle(self, batch_size: FloatArray, context_len: FloatArray | None = None) -> Cycle:
        """Plain decode steps at n batch sizes, shape (n,), at `context_len` unless contexts are given."""
        cycle = self.cycle(PLAIN, Workload(np.ones(batch_size.shape, dtype=np.int64)))
        context = cycle.context_len if context_len is None else context_len
        return self._captured(replace(cycle, batch_size=np.asarray(batch_size, dtype=float), context_len=context))

    def verify_cycle(self, batch_size: FloatArray, num_draft_tokens: FloatArray, drafting: bool = True) -> Cycle:
        """Cycles of which only the verify is asked: n batch sizes and widths, shape (n,), at `context_len`.

        Wider than a token they run between a drafter's graphs, where that is `drafting`.
        """
        plain = self.plain_cycle(batch_size)
        between = np.where((num_draft_tokens > 1) & drafting, 1.0 - plain.eager, 0.0)
        drafted = replace(plain, num_steps=np.ones_like(batch_size), between_drafts=between)
        return self._captured(replace(drafted, num_draft_tokens=num_draft_tokens))

    # -- linear forms --------------------------------------------------------------------------------------

    def phase(self, phase: str, cycle: Cycle, nccl: str | None) -> Estimate:
        """Time of one phase, φᵀθ, as a sum of the terms fitted for it (eq. 2–5).

        Where graphs are off and the host's time is told, the longer of that and the device's; under a derived setting
        its base's, changed by eq. 17, of which a part beside verify may then fall below 0 (`rest_change_ms`).
        """
        derived = self._derived(nccl)
        if derived is not None:
            base = self.phase(phase, cycle, derived.base)
            if phase in PHASES[1:]:
                return Estimate(base.value + self._beside_ms(derived, cycle)[phase], base.gradient)
            changed = base.value + derived.changes_ms(cycle)[phase]
            return Estimate(np.maximum(changed, _LEAST_LEFT * base.value), base.gradient)
        device = self._sum(phase, cycle, nccl, hosted=False)
        if not (cycle.eager.any() and any(TERM_BY_NAME[c.name].hosted for c in self.coefficients)):
            return device
        host = self._sum(phase, cycle, nccl, hosted=True)
        return _where(host.value > device.value, host, device)

    def _derived(self, nccl: str | None) -> DerivedSetting | None:
        return next((derived for derived in self.derived if derived.label == nccl), None)

    def _moved(self, derived: DerivedSetting, cycle: Cycle) -> Readings:
        """Verify under a derived setting: its base's readings, each changed by the table and by as much as such tables miss."""
        base, change = self.verify(cycle, derived.base), derived.changes_ms(cycle)["verify"]

        def moved(reading: Estimate, by: FloatArray) -> Estimate:
            value = np.maximum(reading.value + by, _LEAST_LEFT * reading.value)
            return Estimate(value, reading.gradient)

        alone = list(base.by_name) == ["measured"]
        least, most = derived.bounds_ms(change)
        by_name: dict[str, Estimate] = {}
        for name, reading in base.by_name.items():
            of = "" if alone else f"{name}, "
            changes = {"by the table": change, "by the table at least": least, "by the table at most": most}
            by_name |= {f"{of}{said}": moved(reading, by) for said, by in changes.items()}
        everywhere = np.ones(change.shape, dtype=bool)
        return Readings(moved(base.point, change), by_name, everywhere, base.open_because)

    def with_setting(self, derived: DerivedSetting) -> CostModel:
        """The model with a setting that was never run, known as far as its base is (eq. 17).

        Raises UnknownSettingError without the base, ConfigurationError where the label is taken or the change leaves
        no time at something measured.
        """
        base = self.setting(derived.base)
        if self.setup.cuda_graph is False:  # without graphs nothing runs between a drafter's
            derived = derived.without_drafts
        if derived.label in [s.label for s in self.settings]:
            raise ConfigurationError(f"NCCL setting {derived.label!r} was run: its own runs say more than a table")
        copy = replace(base, label=derived.label, environment={})
        moved = replace(self, settings=(*self.settings, copy), derived=(*self.derived, derived))
        for what, own, left in moved._left(derived):
            if (left <= _LEAST_LEFT * own).any():
                raise ConfigurationError(
                    f"by these all-reduces {what} under {derived.label!r} would take no time: under {derived.base!r} it"
                    f" takes {own.min():.4g} ms in all; is the table of this machine, and are layers and hidden size right?"
                )
        alike = [each for each in self.derived if each.told_as == derived.told_as]
        notes = [note for note in self.notes if not alike or note != never_run(alike)]
        return replace(
            moved,
            alternatives=tuple(replace(a, model=a.model.with_setting(derived)) for a in self.alternatives),
            notes=(*notes, never_run([*alike, derived]), *_falls(moved, derived, base)),
        )

    def _left(self, derived: DerivedSetting) -> Iterator[tuple[str, FloatArray, FloatArray]]:
        """What was measured under a derived setting's base, what that takes, and what eq. 17 leaves of it [ms], shapes (n,)."""
        base = self.setting(derived.base)
        one = np.ones(len(base.verify_tokens))  # one request of so many tokens, which no graph pads
        for phase, cycle in (
            ("verify", self.verify_cycle(one, np.array(base.verify_tokens))),
            ("decode", self.plain_cycle(np.array(base.decode_batches))),
        ):
            own = self.phase(phase, cycle, base.label).value
            yield phase, own, own + derived.changes_ms(cycle)[phase]
        if self.lower_bound(base.label):
            return
        for method in {ran.method for ran in self.measured if ran.nccl == base.label}:
            ran = {(m.num_steps, m.topk, m.num_draft_tokens, m.batch_size) for m in self.measured
                   if (m.nccl, m.method) == (base.label, method)}  # fmt: skip
            steps, topk, width, batch = np.array(sorted(ran), dtype=np.int64).T
            cycle = self.cycle(SpecConfig(steps, topk, width, method), Workload(batch))
            verify, rest = self.phase("verify", cycle, base.label).value, self.rest(cycle, base.label).value
            beside = sum(self._beside_ms(derived, cycle).values())
            if derived.draft is not None and np.isfinite(self._least_change_ms(derived, rest)).all():
                yield "what a cycle has beside verify", rest[rest > 0], (rest + beside)[rest > 0]
            yield "a cycle", verify + rest, verify + rest + derived.changes_ms(cycle)["verify"] + beside

    def _sum(self, phase: str, cycle: Cycle, nccl: str | None, hosted: bool) -> Estimate:
        gradient = np.zeros((cycle.batch_size.size, len(self.coefficients)))
        for column, coefficient in enumerate(self.coefficients):
            term = TERM_BY_NAME[coefficient.name]
            if (term.phase, term.hosted) == (phase, hosted) and coefficient.nccl in (None, nccl):
                gradient[:, column] = term.feature(cycle, *coefficient.parameters)
        return Estimate(gradient @ self._values, gradient)

    def estimable(self, estimate: Estimate) -> BoolArray:
        """Where the runs determine this quantity: its gradient lies in what they span (Gauss–Markov)."""
        if not self.blind:
            return np.ones(estimate.value.size, dtype=bool)
        blind = np.array(self.blind).T
        outside, scale = np.abs(estimate.gradient @ blind), np.abs(estimate.gradient) @ np.abs(blind)
        determined: BoolArray = (outside <= _ESTIMABLE * scale).all(axis=1)
        return determined

    def beyond(self, cycle: Cycle, nccl: str | None = None) -> dict[str, BoolArray]:
        """Where cycles lie outside what was measured (eq. 14): a mask of shape (n,) by what was exceeded.

        Verify widths are judged by the setting's own where it has two or more, else with the reference's.
        """
        counts = {
            "verify_tokens": cycle.verify_tokens,
            "batch_size": cycle.batch_size,
            "num_steps": cycle.num_steps,
            "topk": cycle.topk,
        }
        spans = {name: self.span(name, nccl) for name in counts}
        beyond = {name: (counts[name] < low) | (counts[name] > high) for name, (low, high) in spans.items()}
        derived = self._derived(nccl)
        if derived is not None:
            beyond |= derived.beyond(cycle)
        if self.bare_forwards is not None:
            beyond["bare_forward_tokens"] = self.bare_forwards.beyond(cycle.verify_tokens)
        if self.reads_context or self.asked_context is not None:
            beyond["context_len"] = self.beyond_context("context_len", cycle.context_len)
        return beyond

    def beyond_decode(self, cycle: Cycle, nccl: str) -> dict[str, BoolArray]:
        """Where plain decode lies outside what its baselines were measured at: a mask of shape (n,) by what it was.

        Contexts count where any time depends on them.
        """
        low, high = self.span("decode_batch_size", nccl)
        beyond = {"decode_batch_size": (cycle.batch_size < low) | (cycle.batch_size > high)}
        derived = self._derived(nccl)
        if derived is not None:
            beyond |= {f"decode_{name}": mask for name, mask in derived.beyond_decode(cycle).items()}
        if self.bare_forwards is not None:
            beyond["decode_bare_forward_tokens"] = self.bare_forwards.beyond(cycle.batch_size)
        if self.reads_context:
            beyond["decode_context_len"] = self.beyond_context("decode_context_len", cycle.context_len)
        return beyond

    def beyond_context(self, name: str, context_len: FloatArray) -> BoolArray:
        """Where contexts lie further outside the measured ones than counts as alike; shape (n,)."""
        low, high = self.span(name, None)
        return np.asarray((context_len < low - CONTEXT_TOLERANCE) | (context_len > high + CONTEXT_TOLERANCE))

    def span(self, name: str, nccl: str | None) -> Span:
        """Lowest and highest measured value of a count, under a setting where that matters (eq. 14)."""
        if name == "verify_tokens" and nccl is not None:
            widths = self.setting(nccl).verify_tokens
            if len(widths) < 2:
                widths = (*widths, *self.setting(self.reference).verify_tokens)
            return (min(widths), max(widths)) if widths else (np.inf, -np.inf)
        if (sized := name.removeprefix("decode_")) in ("message_bytes", "logits_bytes"):
            return self._told_bytes(nccl, gathered=sized == "logits_bytes", decode=sized != name)
        if name in ("bare_forward_tokens", "decode_bare_forward_tokens") and self.bare_forwards is not None:
            return self.bare_forwards.tokens[0], self.bare_forwards.tokens[-1]
        if name == "decode_batch_size":
            batches = self.setting(nccl or self.reference).decode_batches
            return (min(batches), max(batches)) if batches else (np.inf, -np.inf)
        return next((span for key, span in self.ranges.items() if key == name), (np.inf, -np.inf))

    def _told_bytes(self, nccl: str | None, gathered: bool, decode: bool) -> Span:
        """The sizes at which both settings of a derived one were measured, all-reduces or gathers; none with a prior."""
        derived = self._derived(nccl)
        if derived is None:
            return (np.inf, -np.inf)
        curves = (derived.before, derived.after)
        if gathered:
            read = tuple(curve for curve, _ in gathers(curves))
        else:
            read = curves if decode else in_cycles(curves, derived.draft)
        sizes = [curve.sizes for curve in read if isinstance(curve, MeasuredCurve)]
        if len(sizes) < len(curves):
            return (np.inf, -np.inf)
        return max(each[0] for each in sizes), min(each[-1] for each in sizes)

    def lower_bound(self, nccl: str) -> bool:
        """Whether cycles under a setting lack phases that no run measured."""
        return bool(self.unmeasured_phases) and not self.setting(nccl).whole_cycles

    # -- phases of a cycle ---------------------------------------------------------------------------------

    def rest(self, cycle: Cycle, nccl: str | None) -> Estimate:
        """Draft, extend and other together: what a cycle takes beside verify (eq. 1), under a setting if one is derived."""
        derived = self._derived(nccl)
        if derived is not None:
            base = self.rest(cycle, derived.base)
            return Estimate(base.value + self.rest_change_ms(cycle, derived.label), base.gradient)
        return self.phase("draft", cycle, nccl) + self.phase("extend", cycle, nccl) + self.phase("other", cycle, nccl)

    def rest_change_ms(self, cycle: Cycle, nccl: str) -> FloatArray:
        """What a derived setting changes of `rest` from its base [ms], shape (n,); 0 for a setting that was run.

        At least 1% of `rest` is left where verify was timed apart from it.
        """
        derived = self._derived(nccl)
        if derived is None or derived.draft is None:
            return np.zeros_like(cycle.batch_size)
        change = sum(self._beside_ms(derived, cycle).values())
        return np.asarray(np.maximum(change, self._least_change_ms(derived, self.rest(cycle, derived.base).value)))

    def _least_change_ms(self, derived: DerivedSetting, base: FloatArray) -> FloatArray:
        """The most that may be saved of a time beside verify [ms], shape (n,): all but 1% of what was timed apart."""
        apart = "verify" in self.measured_phases and not self.setting(derived.base).whole_cycles
        return (_LEAST_LEFT - 1.0) * base if apart and not self.unmeasured_phases else np.full_like(base, -np.inf)

    def _beside_ms(self, derived: DerivedSetting, cycle: Cycle) -> dict[str, FloatArray]:
        """What a derived setting changes of each phase beside verify [ms], shapes (n,).

        No more is saved of one than its own time or, as the fit may have it in another's terms, than at the deepest
        configuration that was run; of one that no run measured nothing.
        """
        changes, deepest = derived.changes_ms(cycle), self.span("num_steps", derived.base)[1]
        share = np.clip(deepest / np.maximum(cycle.num_steps, 1.0), 0.0, 1.0)

        def kept(phase: str) -> FloatArray:
            change = changes[phase]
            if phase in self.unmeasured_phases:
                return np.maximum(change, 0.0)
            own = (_LEAST_LEFT - 1.0) * self.phase(phase, cycle, derived.base).value
            return np.maximum(change, np.minimum(share * change, own))

        return {phase: kept(phase) for phase in PHASES[1:]}

    def verify(self, cycle: Cycle, nccl: str) -> Readings:
        """Verify time under a setting (eq. 2), by the readings of section 6 where the width was not measured.

        NaN where neither the setting nor the reference setting can say it; raises NotIdentifiedError where that
        is everywhere.
        """
        derived = self._derived(nccl)
        if derived is not None:
            return self._moved(derived, cycle)
        setting = self.setting(nccl)
        own = self.phase("verify", cycle, nccl)
        known = self.estimable(own) & bool(setting.verify_tokens)
        if known.all():
            return Readings(own, {"measured": own}, ~known, "")
        reference = self.phase("verify", cycle, self.reference)
        timed = bool(self.setting(self.reference).verify_tokens)
        readable = self.estimable(reference) & (nccl != self.reference) & timed
        why = "" if (known | readable).all() else self._one_width(setting, cycle.verify_tokens[~known & ~readable])
        readings = {"measured": own}
        if (readable & ~known).any():
            readings, why = self._read(reference, cycle, setting) or (readings, self._nothing_common(setting))
            readable = readable & (list(readings) != ["measured"])
        if not (known | readable).any():
            raise NotIdentifiedError(why)
        told = known | readable
        mixed = {name: _where(known, own, _where(told, read, _nowhere(own))) for name, read in readings.items()}
        least = np.where(readable & ~known, _LEAST_LEFT * reference.value, -np.inf)
        return Readings(_middle(tuple(mixed.values()), least), mixed, ~known, why)

    def _read(self, reference: Estimate, cycle: Cycle, setting: NcclSetting) -> tuple[dict[str, Estimate], str] | None:
        """The readings that the runs allow of a setting, None where nothing is common with the reference."""
        batches = [b for b in setting.decode_batches if b in self.setting(self.reference).decode_batches]
        decode = [(batch, *self._pair("decode", batch, setting.label)) for batch in batches]
        verify = [(width, *self._pair("verify", width, setting.label)) for width in setting.verify_tokens[:1]]
        if verify and not self.estimable(verify[0][2]).all():
            verify = []
        pairs = [*decode[: 1 if verify else None], *verify]
        if not pairs:
            return None
        tokens, under_setting, under_reference = pairs[-1]
        readings = {
            "ratio": ratio_reading(reference, under_setting, under_reference),
            "shift": shift_reading(reference, under_setting, under_reference),
        }
        if pairs[0][0] != tokens:
            narrow, wide = ((t, s - r) for t, s, r in (pairs[0], pairs[-1]))
            readings["affine"] = affine_reading(reference, cycle.verify_tokens, narrow, wide)
        return readings, ""

    def _pair(self, phase: str, tokens: float, nccl: str) -> tuple[Estimate, Estimate]:
        """A phase at so many tokens under a setting and under the reference."""
        cycle = (
            self.verify_cycle(np.ones(1), np.array([tokens]))
            if phase == "verify"
            else self.plain_cycle(np.array([tokens]))
        )
        return self.phase(phase, cycle, nccl), self.phase(phase, cycle, self.reference)

    def _nothing_common(self, setting: NcclSetting) -> str:
        return (
            f"nothing under NCCL setting {setting.label!r} compares with {self.reference!r}:"
            " measure a verify time at one width, or the baseline, under both"
        )

    def _one_width(self, setting: NcclSetting, tokens: FloatArray) -> str:
        asked = ", ".join(f"{t:g}" for t in np.unique(tokens)[:4])
        if not setting.verify_tokens:
            return f"no cycle was measured under NCCL setting {setting.label!r}, so verify at {asked} tokens is open"
        have = ", ".join(f"{t:g}" for t in setting.verify_tokens)
        return (
            f"runs at {have} verify tokens (NCCL setting {setting.label!r}) cannot say what {asked} tokens take:"
            " one width does not split verify into fixed and per token; measure a second width"
        )

    # -- plain decode ----------------------------------------------------------------------------------------

    def decode(self, cycle: Cycle, nccl: str) -> Estimate:
        """Plain decode step at the cycle's batch sizes (eq. 5); never read off verify.

        NaN where no baseline under this setting tells that batch size, or nothing is left of it; raises MixedSetupError where none tells
        any, naming the field that a baseline would have to share.
        """
        setting = self.setting(nccl)
        if not setting.decode_batches:
            raise MixedSetupError(self._no_baseline(nccl), ("nccl",))
        estimate = self.phase("decode", cycle, nccl)
        known = self.estimable(estimate) & (estimate.value > _NOTHING_MS)
        if not known.any():
            raise MixedSetupError(self.no_baseline_at(cycle, nccl), ("batch_size",))
        return estimate if known.all() else _where(known, estimate, _nowhere(estimate))

    def no_baseline_at(self, cycle: Cycle, nccl: str) -> str:
        """Why a setting's baselines do not tell some of the cycles' batch sizes."""
        have = self.setting(nccl).decode_batches
        own = self.phase("decode", cycle, nccl)
        if (self.estimable(own) & (own.value <= _NOTHING_MS)).any():
            return (
                f"plain decode under NCCL setting {nccl!r} comes out at 0 ms there: all of it is the KV read; measure the"
                " baseline at a short context, too"
            )
        asked = ", ".join(f"{b:g}" for b in np.setdiff1d(cycle.batch_size, have)[:4])
        return (
            f"the baseline under NCCL setting {nccl!r} was measured at batch_size {', '.join(f'{b:g}' for b in have)},"
            f" asked is {asked}: measure it at that batch_size"
        )

    def _no_baseline(self, nccl: str) -> str:
        have = ", ".join(repr(s.label) for s in self.settings if s.decode_batches)
        if not have:
            return (
                "no plain-decode baseline among the runs: measure one (decode_ms, or output_tok_s without speculation)"
            )
        return (
            f"no plain-decode baseline under NCCL setting {nccl!r} (there is one under {have}): measure one under the"
            " same nccl"
        )

    # -- files -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model as JSON, with the provenance of every coefficient."""
        from specsim.cost.model_file import dump

        Path(path).write_bytes(dump(self))

    @classmethod
    def load(cls, path: str | Path) -> CostModel:
        """Read a model that `save` wrote; raises InputError naming file and field."""
        from specsim.cost.model_file import read

        return read(cls, Path(path))


def _falls(model: CostModel, derived: DerivedSetting, base: NcclSetting) -> Iterator[str]:
    """A sentence where a derived verify falls with the tokens by more than a share: the table's change outdoes what the runs rise by."""
    if not base.verify_tokens:
        return
    widths = np.arange(min(base.verify_tokens), max(base.verify_tokens) + 1)
    cycle = model.verify_cycle(np.ones_like(widths), widths)
    times = model.phase("verify", cycle, derived.base).value + derived.changes_ms(cycle)["verify"]
    reached = np.maximum.accumulate(times)
    low = int(np.argmin(times / reached))
    if times[low] < (1 - _FALLS) * reached[low]:
        high = int(np.argmax(times[:low]))
        yield (
            f"{'NCCL ' * derived.gathered}{derived.label}: verify FALLS with more tokens, from {times[high]:.4g} ms at {widths[high]:g} to {times[low]:.4g} ms at"
            f" {widths[low]:g}: by the table the change from {derived.base} falls there by more than verify rises under it, so that table and"
            " runs do not fit together, or a forward of more tokens is faster, as kernels may make it"
        )


def _where(mask: BoolArray, yes: Estimate, no: Estimate) -> Estimate:
    return Estimate(np.where(mask, yes.value, no.value), np.where(mask[:, None], yes.gradient, no.gradient))


def _nowhere(like: Estimate) -> Estimate:
    """Unknown values; their gradient is 0, so that only the value says so."""
    return Estimate(np.full_like(like.value, np.nan), np.zeros_like(like.gradient))


def _middle(readings: tuple[Estimate, ...], least: FloatArray) -> Estimate:
    """The middle reading where there are three, the mean of two; one that leaves no time counts as the least (n,)."""
    values = np.maximum(np.stack([r.value for r in readings]), least)
    gradients = np.stack([r.gradient for r in readings])
    order = np.argsort(values, axis=0, kind="stable")
    low, high = order[(len(readings) - 1) // 2], order[len(readings) // 2]
    at = np.arange(values.shape[1])
    return Estimate((values[low, at] + values[high, at]) / 2, (gradients[low, at] + gradients[high, at]) / 2)


# -- what a model must be, whoever made it -----------------------------------------------------------------------


def _problems(model: CostModel) -> Iterator[str]:
    """What is wrong with a model, in sentences; a fit gives none, a damaged file may."""
    count, labels = len(model.coefficients), [s.label for s in model.settings]
    if [len(row) for row in model.covariance] != [count] * count:
        yield f"covariance is not {count} by {count}, one row and column a coefficient"
        return
    if any(len(row) != count for row in model.blind):
        yield f"blind has rows that are not {count} long, one entry a coefficient"
        return
    if model.reference not in labels or len(set(labels)) != len(labels):
        yield f"settings must be distinct and hold the reference {model.reference!r}; they are {', '.join(labels)}"
    if any(d.label not in labels or d.base not in labels for d in model.derived):
        yield "derived: a setting or its base is none of settings"
    for c in model.coefficients:
        term = TERM_BY_NAME.get(c.name)
        if term is None or c.nccl not in (None, *labels) or len(c.parameters) != len(term.parameters):
            yield f"coefficients: {c.name!r} under NCCL setting {c.nccl!r} is no term of this model"
            return
        if term in BARE.values() and model.bare_forwards is None:
            yield f"coefficients: {c.name} without bare_forwards, the curve that it is a share of"
            return
        if not (0 <= c.value < np.inf and 0 <= c.standard_error < np.inf):
            yield f"coefficients: {c.name} and its standard error must be finite and at least 0"
    if not np.isfinite(model.covariance_matrix).all() or (np.diag(model.covariance_matrix) < 0).any():
        yield "covariance must be finite, with no negative variance"
    if not (0 <= model.noise.relative < np.inf) or model.noise.residual_dof < 0:
        yield "noise must be finite and at least 0, and residual_dof at least 0"
    yield from _problems_of_what_was_measured(model, labels)


def _problems_of_what_was_measured(model: CostModel, labels: list[str]) -> Iterator[str]:
    for setting in model.settings:
        for phase, measured in (("verify", setting.verify_tokens), ("decode", setting.decode_batches)):
            if measured and min(measured) <= 0:
                yield f"settings: {setting.label} was measured at {min(measured)} tokens or requests"
            base = next((d.base for d in model.derived if d.label == setting.label), setting.label)
            own = [c.value for c in model.coefficients if c.phase == phase and c.nccl in (None, base)]
            if measured and not sum(own) > 0:
                yield f"coefficients: {phase} under {setting.label} takes no time"
    if any(not low <= high for low, high in model.ranges.values()):
        yield "ranges must run from low to high"
    for m in model.measured:
        if not is_legal(m.num_steps, m.topk, m.num_draft_tokens, m.method) or m.batch_size < 1 or m.nccl not in labels:
            yield f"measured: {', '.join(m.runs)} is no legal configuration, batch size and setting of this model"
        elif m.accept_length is not None and not 1 <= m.accept_length <= m.num_draft_tokens:
            yield f"measured: accept_length {m.accept_length} of {', '.join(m.runs)} is not possible"
