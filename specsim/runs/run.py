"""One measured run, as everything after the file edge sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from specsim.quantities import Setup, SpecConfig, Workload

if TYPE_CHECKING:
    from specsim.acceptance.conversions import AcceptanceCounts

PHASE_FIGURES = ("verify_ms", "draft_ms", "extend_ms", "other_ms")
TIME_FIGURES = (*PHASE_FIGURES, "cycle_ms", "decode_ms")
FIGURES = (*TIME_FIGURES, "output_tok_s", "accept_length", "accept_rate", "between_prompt_spread")
"""Everything that a run may have measured; docs/glossary.md says what each means."""

UNSTATED = "unstated"
"""The NCCL label of a run that does not state one: a setting of its own, never equal to a stated one."""


@dataclass(frozen=True)
class Figure:
    """One measured quantity: a value, repeats of it, a range, or a value read inside a range.

    `implied` marks a figure derived from others or inferred, not read off an instrument.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    repeats: tuple[float, ...] = ()
    implied: bool = False

    @property
    def best(self) -> float:
        """The value where there is one, else the mean of the repeats, else the middle of the range."""
        if self.value is not None:
            return self.value
        if self.repeats:
            return sum(self.repeats) / len(self.repeats)
        if self.low is None or self.high is None:
            raise ValueError("a figure is a value, repeats, or a range with both ends")
        return (self.low + self.high) / 2

    @property
    def readings(self) -> tuple[float, ...]:
        """The single measurements: every repeat, or the one best value."""
        return self.repeats or (self.best,)

    @property
    def relative_spread(self) -> float:
        """Relative standard deviation of a range read as uniform (half-width/√3), also around a value; 0 without."""
        if self.repeats or self.low is None or self.high is None:
            return 0.0
        return float((self.high - self.low) / 2 / 3**0.5 / self.best)

    @property
    def error(self) -> float | None:
        """Standard error: of the mean of repeats, or of a range read as uniform; None where none is known."""
        if len(self.repeats) > 1:
            count, mean = len(self.repeats), self.best
            return float((sum((value - mean) ** 2 for value in self.repeats) / (count - 1) / count) ** 0.5)
        return self.relative_spread * self.best or None


@dataclass(frozen=True)
class Run:
    """A run: where (setup, NCCL setting), under what load, with which speculation or none, and what was measured.

    `speculative` without `spec` is a run whose configuration was not stated. `counts` are its cycles and accepted
    drafts, `cycles` those alone, `survival` the shares of cycles that accepted at least 1, 2 … drafts. `excluded` says why a fit leaves
    the run out; empty for a run to be fitted. `where` is the file and row that it came from.
    """

    id: str
    setup: Setup
    nccl: str
    workload: Workload
    speculative: bool
    spec: SpecConfig | None = None
    figures: Mapping[str, Figure] = field(default_factory=lambda: MappingProxyType({}))
    nccl_env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    method: str | None = None
    drafter: str | None = None
    instrument: str | None = None
    prompts: int | None = None
    counts: AcceptanceCounts | None = None
    cycles: int | None = None
    survival: tuple[float, ...] = ()
    training_samples: int | None = None
    excluded: str = ""
    note: str = ""
    source: str = ""
    where: str = ""
    batch_size_stated: bool = True

    @property
    def accept_length_error(self) -> float | None:
        """Standard error of the accept length: from counts by position, its repeats or its range; None if unknown."""
        if self.counts is not None and self.counts.at_least is not None:
            survival = self.counts.survival
            mean, second = float(survival.sum()), sum((2 * i + 1) * float(s) for i, s in enumerate(survival))
            return float((max(second - mean**2, 0.0) / self.counts.cycles) ** 0.5)  # E[J²] = Σ (2i − 1)·S_i
        figure = self.figures.get("accept_length")
        return figure.error if figure is not None else None


@dataclass(frozen=True)
class Claim:
    """Something that the source of the runs says about them, kept to be checked: what, and its numbers."""

    id: str
    text: str
    figures: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class RunSet:
    """The runs of one or more files, with what a file says beside them.

    `model_card` holds the target's shape (layers, hidden_size, …), `data_scaling` accept lengths by number of
    training samples; both are kept as read for what needs them.
    """

    runs: tuple[Run, ...]
    about: str = ""
    claims: tuple[Claim, ...] = ()
    model_card: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    data_scaling: tuple[tuple[int, Figure, str], ...] = ()

    def claim(self, name: str) -> Claim:
        """The claim of this id; raises KeyError."""
        return {claim.id: claim for claim in self.claims}[name]

    def run(self, name: str) -> Run:
        """The run of this id; raises KeyError."""
        return {run.id: run for run in self.runs}[name]
