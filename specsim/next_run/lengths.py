"""The accept lengths that candidates are compared by: stated, measured, or a law's (section 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from specsim.acceptance import AcceptanceLaw
from specsim.cost.model import CostModel
from specsim.errors import ConfigurationError
from specsim.expected import lengths_by
from specsim.fitting.acceptance import AcceptanceFit
from specsim.prediction import check_length
from specsim.quantities import SpecConfig
from specsim.questions import AcceptLength, Asked, measured_length
from specsim.uncertainty import quantile

Law = AcceptanceLaw | AcceptanceFit
Origin = Literal["plain", "stated", "measured", "law", "cancels"]


@dataclass(frozen=True)
class Length:
    """An accept length with its interval, and where it comes from; `runs` measured it.

    `shared` is how far log(value) moves along each direction in which the law is uncertain, `own` the relative
    half-width that is its own (as in Lengths). One that `cancels` is not known: 1 stands for it, beside itself alone.
    """

    value: float
    interval: tuple[float, float]
    origin: Origin
    shared: tuple[float, ...] = ()
    own: float = 0.0
    runs: tuple[str, ...] = ()
    error_known: bool = True
    extrapolated: bool = False

    @classmethod
    def of(cls, length: AcceptLength, origin: Origin) -> Self:
        """A length that is stated or measured, with its standard error."""
        reach = quantile(0) * length.error
        ends = (max(length.value - reach, 1.0), length.value + reach)
        known = length.error_known or not length.runs
        return cls(length.value, ends, origin, (), reach / length.value, length.runs, known)

    def apart(self, other: Length) -> float:
        """Half-width of log(value/other's) (eq. 11); what moves both alike cancels, as does a length beside itself.

        A measured length and the law fitted to it count as independent, which overstates their distance.
        """
        if self == other:
            return 0.0
        moves = np.zeros((2, max(len(self.shared), len(other.shared))))
        for row, length in zip(moves, (self, other), strict=True):
            row[: len(length.shared)] = length.shared
        return float(np.sqrt(self.own**2 + other.own**2 + np.square(moves[0] - moves[1]).sum()))


PLAIN_LENGTH = Length(1.0, (1.0, 1.0), "plain")
"""What a step of plain decode emits for a request."""

CANCELS = Length(1.0, (1.0, 1.0), "cancels")
"""Of one configuration under several NCCL settings, which the accept length has no part in."""


def lengths_of(
    model: CostModel, specs: Sequence[SpecConfig], asked: Asked, law: Law | None
) -> dict[SpecConfig, Length]:
    """The accept length of each configuration of which anything says one.

    The stated one belongs to the configuration that is named, or to the only one. An AcceptanceLaw is an assumption
    about all others, an AcceptanceFit says those that were not measured. Raises ConfigurationError where the stated
    length has no configuration, or is not possible.
    """
    measured = {spec: measured_length(model, spec) for spec in specs}
    assumed = law is not None and not isinstance(law, AcceptanceFit)
    found = (
        {} if assumed else {s: Length.of(length, "measured") for s, length in measured.items() if length is not None}
    )
    if asked.accept_length is not None:
        found[_named(specs, asked)] = _stated(_named(specs, asked), asked.accept_length)
    rest = [] if law is None else [spec for spec in specs if spec not in found]
    return found | {spec: _by_law(law, spec) for spec in rest if law is not None}


def _named(specs: Sequence[SpecConfig], asked: Asked) -> SpecConfig:
    """The configuration that a stated length belongs to: the named one stands first."""
    if len(specs) > 1 and not asked.names_configuration:
        raise ConfigurationError(
            f"one accept length for {len(specs)} configurations: name the one that it belongs to (--num-draft-tokens),"
            " or state --accept-rate"
        )
    return specs[0]


def _stated(spec: SpecConfig, value: float) -> Length:
    check_length(np.array([value]), np.array([float(spec.max_accept_length)]))
    return Length.of(AcceptLength(value), "stated")


def _by_law(law: Law, spec: SpecConfig) -> Length:
    steps, topk, width = (np.array([count]) for count in (spec.num_steps, spec.topk, spec.num_draft_tokens))
    values, told = lengths_by(law, SpecConfig(steps, topk, width, spec.method))
    value = float(values[0])
    if told is None:
        return Length(value, (value, value), "law")
    ends, shared = (float(told.low[0]), float(told.high[0])), tuple(told.shared[0].tolist())
    return Length(value, ends, "law", shared, float(told.own[0]), extrapolated=bool(told.extrapolated[0]))
