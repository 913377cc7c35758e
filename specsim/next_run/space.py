"""The coefficients that measurements are about: a fitted model's, and those that measurements to come would add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from specsim.cost.model import CostModel
from specsim.cost.terms import PLAIN, Cycle
from specsim.errors import MixedSetupError, NotIdentifiedError
from specsim.next_run.knowledge import Knowledge
from specsim.quantities import FloatArray, Ints, SpecConfig, Workload

Kind = Literal["verify", "cycle", "decode"]


@dataclass(frozen=True)
class Space:
    """A model's coefficients, and those that measurements to come would add: all of them open.

    `lines` are phases that no run measured under a setting (fixed and per token each); the last column stands for
    phases of a cycle that no run measured at all.
    """

    model: CostModel
    lines: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, model: CostModel) -> Space:
        """The space of a fitted model."""
        verify = (("verify", setting.label) for setting in model.settings if not setting.verify_tokens)
        decode = (("decode", setting.label) for setting in model.settings if not setting.decode_batches)
        return cls(model, (*verify, *decode))

    def cycle(self, spec: SpecConfig | None, batch_size: Ints) -> Cycle:
        """What the cycles of a configuration (None: plain decode) run at these batch sizes."""
        return self.model.cycle(spec or PLAIN, Workload(batch_size))

    def knowledge(self) -> Knowledge:
        """What the model's runs say."""
        known, more = len(self.model.coefficients), 2 * len(self.lines) + 1
        covariance = np.zeros((known + more, known + more))
        covariance[:known, :known] = self.model.covariance_matrix
        blind = np.array(self.model.blind, dtype=float).reshape(-1, known)
        blind = blind / np.linalg.norm(blind, axis=1, keepdims=True)
        rows = np.block([[blind, np.zeros((len(blind), more))], [np.zeros((more, known)), np.eye(more)]])
        return Knowledge(covariance, rows)

    def widened(self, gradient: FloatArray) -> FloatArray:
        """A model's gradients (n, p) in this space."""
        return np.hstack([gradient, np.zeros((len(gradient), 2 * len(self.lines) + 1))])

    def gradient(self, kind: Kind, cycle: Cycle, nccl: str) -> FloatArray:
        """Features of a measurement of n cycles, one a row (eq. 1–5)."""
        phase, tokens = ("decode", cycle.batch_size) if kind == "decode" else ("verify", cycle.verify_tokens)
        rows = self.widened(self.model.phase(phase, cycle, nccl).gradient)
        if (phase, nccl) in self.lines:
            column = len(self.model.coefficients) + 2 * self.lines.index((phase, nccl))
            rows[:, column], rows[:, column + 1] = 1.0, tokens
        if kind == "cycle":
            rows = rows + self.widened(self.model.rest(cycle, nccl).gradient)
            rows[:, -1] = float(self.model.lower_bound(nccl))
        return rows

    def times(self, kind: Kind, cycle: Cycle, nccl: str) -> FloatArray:
        """Times [ms] to plan with: the model's, else the nearest that it has; NaN where it has none of this phase."""
        if kind == "decode":
            return self._planned("decode", cycle, nccl, self._decode_or_nan(cycle, nccl))
        verify = self._planned("verify", cycle, nccl, self._verify_or_nan(cycle, nccl))
        return verify + self.model.rest(cycle, nccl).value if kind == "cycle" else verify

    def _planned(self, phase: str, cycle: Cycle, nccl: str, told: FloatArray) -> FloatArray:
        """Where the model tells no time: its part that was measured under the setting, else under another."""
        for label in (nccl, self.model.reference, *(s.label for s in self.model.settings)):
            near = self.model.phase(phase, cycle, label).value
            told = np.where(np.isnan(told) & (near > 0), near, told)
        return told

    def _verify_or_nan(self, cycle: Cycle, nccl: str) -> FloatArray:
        try:
            return self.model.verify(cycle, nccl).point.value
        except NotIdentifiedError:
            return np.full(cycle.batch_size.size, np.nan)

    def _decode_or_nan(self, cycle: Cycle, nccl: str) -> FloatArray:
        try:
            return self.model.decode(cycle, nccl).value
        except MixedSetupError:
            return np.full(cycle.batch_size.size, np.nan)

    def readings(self, cycle: Cycle, nccl: str) -> dict[str, tuple[float, FloatArray]]:
        """What stands in for one whole cycle until it is measured: by reading of its NCCL setting, time and gradient."""
        try:
            verify = self.model.verify(cycle, nccl).by_name
        except NotIdentifiedError:
            return {}
        unseen = float(self.model.lower_bound(nccl))  # what no run measured stays open in every reading
        found = {}
        for name, reading in verify.items():
            whole = reading + self.model.rest(cycle, nccl)
            if np.isfinite(whole.value[0]):
                row = self.widened(whole.gradient)[0]
                row[-1] = unseen
                found[name] = (float(whole.value[0]), row)
        return found
