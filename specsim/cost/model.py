"""The fitted cost model: named coefficients with their covariance, and the phases of a cycle that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from specsim.cost.communication import Estimate, affine_reading, ratio_reading, shift_reading
from specsim.cost.terms import BY_SETTING, TERMS, Cycle
from specsim.errors import MixedSetupError, NotIdentifiedError, UnknownSettingError
from specsim.quantities import BoolArray, FloatArray, Setup

_ESTIMABLE = 1e-7  # relative part of a question that may lie outside what the runs span: rounding, not doubt

Span = tuple[float, float]
Measured = Literal["verify_tokens", "batch_size", "num_steps", "topk"]


@dataclass(frozen=True)
class Coefficient:
    """One coefficient θ: value and standard error in `unit`, and where it comes from.

    `nccl` is the setting it belongs to, None when all share it. One that is not `identified` has no meaning of
    its own: the runs only determine its sum with others (verify at the one width measured, say). `runs` are the
    ids whose figures determine it, `verify_tokens` the range of widths among them, `implied` whether a figure
    that was derived, not measured, is one of them.
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

    @property
    def phase(self) -> str:
        """The phase that the coefficient's term belongs to."""
        return next(term.phase for term in TERMS if term.name == self.name)


@dataclass(frozen=True)
class NcclSetting:
    """A communication setting: its label, environment, and where it was measured.

    `verify_tokens` are the widths T = B·N of its cycles, `decode_batches` the batch sizes of its baselines.
    """

    label: str
    environment: dict[str, str]
    verify_tokens: tuple[float, ...]
    decode_batches: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredConfiguration:
    """A speculative configuration that was run, with the accept length seen there, if any, as (low, high)."""

    num_steps: int
    topk: int
    num_draft_tokens: int
    method: str
    batch_size: int
    nccl: str
    accept_length: float | None
    accept_length_range: Span | None
    runs: tuple[str, ...]


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


@dataclass(frozen=True)
class CostModel:
    """Fixed and per-token costs of a cycle's phases by NCCL setting (eq. 1–5), fitted from runs (eq. 12).

    `covariance` is p × p in the order of `coefficients`; `blind` holds, as rows, the directions of coefficient
    space that the runs say nothing about; `reference` is the setting that others are read against; `ranges`
    gives what was measured, for flagging extrapolation. `measured_phases` were timed alone,
    `unmeasured_phases` neither alone nor in a whole cycle, so that cycle times are lower bounds; `mixed` names
    setup fields that differ among the runs.
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
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.coefficients)
        if [len(row) for row in self.covariance] != [count] * count:
            raise ValueError(f"covariance is not {count} by {count}, one row and column a coefficient")
        if any(len(row) != count for row in self.blind):
            raise ValueError(f"blind has rows that are not {count} long, one entry a coefficient")
        self.setting(self.reference)

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

    # -- linear forms --------------------------------------------------------------------------------------

    def phase(self, phase: str, cycle: Cycle, nccl: str | None) -> Estimate:
        """Time of one phase, φᵀθ, as a sum of the terms fitted for it (eq. 2–5)."""
        gradient = np.zeros((cycle.batch_size.size, len(self.coefficients)))
        owner = nccl if phase in BY_SETTING else None
        features = {term.name: term.feature for term in TERMS if term.phase == phase}
        for column, coefficient in enumerate(self.coefficients):
            if coefficient.name in features and coefficient.nccl == owner:
                gradient[:, column] = features[coefficient.name](cycle)
        return Estimate(gradient @ self._values, gradient)

    def estimable(self, estimate: Estimate) -> BoolArray:
        """Where the runs determine this quantity: its gradient lies in what they span (Gauss–Markov)."""
        if not self.blind:
            return np.ones(estimate.value.size, dtype=bool)
        blind = np.array(self.blind).T
        outside, scale = np.abs(estimate.gradient @ blind), np.abs(estimate.gradient) @ np.abs(blind)
        determined: BoolArray = (outside <= _ESTIMABLE * scale).all(axis=1)
        return determined

    def beyond(self, cycle: Cycle) -> dict[Measured, BoolArray]:
        """Where the cycles lie outside what was measured (eq. 14): a mask of shape (n,) by what was exceeded."""
        counts: dict[Measured, FloatArray] = {
            "verify_tokens": cycle.verify_tokens,
            "batch_size": cycle.batch_size,
            "num_steps": cycle.num_steps,
            "topk": cycle.topk,
        }
        return {name: (counts[name] < low) | (counts[name] > high) for name, (low, high) in self.ranges.items()}

    # -- phases of a cycle ---------------------------------------------------------------------------------

    def rest(self, cycle: Cycle) -> Estimate:
        """Draft, extend and other together: what a cycle takes beside verify (eq. 1)."""
        return self.phase("draft", cycle, None) + self.phase("extend", cycle, None) + self.phase("other", cycle, None)

    def verify(self, cycle: Cycle, nccl: str) -> Readings:
        """Verify time under a setting (eq. 2), by the readings of section 6 where the width was not measured.

        Raises NotIdentifiedError when neither the setting nor the reference setting can say it.
        """
        setting = self.setting(nccl)
        own = self.phase("verify", cycle, nccl)
        known = self.estimable(own) if setting.verify_tokens else np.zeros(cycle.batch_size.size, dtype=bool)
        if known.all():
            return Readings(own, {"measured": own}, ~known)
        readings = self._read_against_reference(cycle, setting)
        mixed = {name: _choose(known, own, estimate) for name, estimate in readings.items()}
        return Readings(_middle(tuple(mixed.values())), mixed, ~known)

    def _read_against_reference(self, cycle: Cycle, setting: NcclSetting) -> dict[str, Estimate]:
        reference = self.phase("verify", cycle, self.reference)
        if setting.label == self.reference or not self.estimable(reference).all():
            raise NotIdentifiedError(self._one_width(setting, cycle))
        saved_in_decode = self._decode_pair(setting)
        if setting.verify_tokens:
            width = setting.verify_tokens[0]
            pair = (self._verify_at(width, setting.label), self._verify_at(width, self.reference))
        elif saved_in_decode:
            pair = saved_in_decode[1:]
        else:
            raise NotIdentifiedError(
                f"nothing under NCCL setting {setting.label!r} compares with {self.reference!r}:"
                " measure a verify time, or the baseline, under both"
            )
        readings = {"ratio": ratio_reading(reference, *pair), "shift": shift_reading(reference, *pair)}
        if setting.verify_tokens and saved_in_decode and saved_in_decode[0] != width:
            narrow = (saved_in_decode[0], saved_in_decode[1] - saved_in_decode[2])
            readings["affine"] = affine_reading(reference, cycle.verify_tokens, narrow, (width, pair[0] - pair[1]))
        return readings

    def _verify_at(self, tokens: float, nccl: str) -> Estimate:
        estimate = self.phase("verify", _cycle_of_tokens(tokens), nccl)
        if not self.estimable(estimate).all():
            raise NotIdentifiedError(f"verify time at {tokens:g} tokens under NCCL setting {nccl!r} is not measured")
        return estimate

    def _decode_pair(self, setting: NcclSetting) -> tuple[float, Estimate, Estimate] | None:
        """(batch, t_s, t_r) at the smallest batch whose baseline was measured under both settings."""
        for batch in setting.decode_batches:
            if batch in self.setting(self.reference).decode_batches:
                cycle = _cycle_of_tokens(batch)
                return batch, self.phase("decode", cycle, setting.label), self.phase("decode", cycle, self.reference)
        return None

    def _one_width(self, setting: NcclSetting, cycle: Cycle) -> str:
        asked = ", ".join(f"{t:g}" for t in np.unique(cycle.verify_tokens)[:4])
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

        Raises MixedSetupError when no baseline under this setting and batch size was measured.
        """
        setting = self.setting(nccl)
        if not setting.decode_batches:
            raise MixedSetupError(self._no_baseline(nccl), ("nccl",))
        estimate = self.phase("decode", cycle, nccl)
        if not self.estimable(estimate).all():
            asked = ", ".join(f"{b:g}" for b in np.unique(cycle.batch_size)[:4])
            have = ", ".join(f"{b:g}" for b in setting.decode_batches)
            raise MixedSetupError(
                f"the baseline under NCCL setting {nccl!r} was measured at batch_size {have}, asked is {asked}:"
                " measure it at that batch_size, or allow a mixed comparison (--allow-mixed)",
                ("batch_size",),
            )
        return estimate

    def _no_baseline(self, nccl: str) -> str:
        have = ", ".join(repr(s.label) for s in self.settings if s.decode_batches)
        if not have:
            return (
                "no plain-decode baseline among the runs: measure one (decode_ms, or output_tok_s without speculation)"
            )
        return (
            f"no plain-decode baseline under NCCL setting {nccl!r} (there is one under {have}): measure one under the"
            " same nccl, or allow a mixed comparison (--allow-mixed)"
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


def _cycle_of_tokens(tokens: float) -> Cycle:
    """A cycle whose verify width and batch size are both `tokens`: enough for terms in either."""
    count, one = np.array([tokens]), np.ones(1)
    return Cycle(count, one, one, one, one, count)


def _choose(known: BoolArray, own: Estimate, read: Estimate) -> Estimate:
    return Estimate(np.where(known, own.value, read.value), np.where(known[:, None], own.gradient, read.gradient))


def _middle(readings: tuple[Estimate, ...]) -> Estimate:
    """The middle reading where there are three, the mean of two."""
    values = np.stack([r.value for r in readings])
    gradients = np.stack([r.gradient for r in readings])
    order = np.argsort(values, axis=0, kind="stable")
    low, high = order[(len(readings) - 1) // 2], order[len(readings) // 2]
    at = np.arange(values.shape[1])
    return Estimate((values[low, at] + values[high, at]) / 2, (gradients[low, at] + gradients[high, at]) / 2)
