"""Does the cost model's form hold? The width that tests it (eq. 13, 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from specsim.cost.communication import Estimate
from specsim.cost.terms import Cycle
from specsim.next_run.candidates import Candidate, Offer, kinds
from specsim.next_run.ratio import Interval, Ratio, Side
from specsim.next_run.space import Kind, Space
from specsim.quantities import BoolArray, FloatArray, SpecConfig

Shape = Callable[[Any], Any]

_EXPERT_SHARES = (8 / 256, 8 / 128, 2 / 8)  # active of all experts: large, middle and small mixtures in use
_ROUNDING = 1e-9  # relative distance of two shapes that is arithmetic only
_MATTERS = 0.01  # relative change of an answer from which another form of the model is worth telling apart


def check_of_form(space: Space, ask: Callable[[Space], Ratio], offer: Offer) -> tuple[Candidate, str] | None:
    """The run that tests the form of verify (eq. 13, 15), and why; None where nothing calls for one.

    Two widths under a setting fix a line and test nothing of it: a third. From three on, the width that tells the form
    that the runs ask for from those that they cannot exclude.
    """
    question = ask(space)
    side = next((side for side in question.sides if side.spec is not None), None)
    if side is None:
        return None
    label = side.nccl if len(space.model.setting(side.nccl).verify_tokens) > 1 else space.model.reference
    measured = space.model.setting(label).verify_tokens
    if len(measured) == 2:
        return _third_width(space, question, _Widths.of(space, side, label, offer, (side.batch_size,)), measured)
    if len(measured) > 2:
        return _telling_width(space, ask, _Widths.of(space, side, label, offer, offer.batches))
    return None


@dataclass(frozen=True)
class _Widths:
    """Chains that could be run under a setting, up to twice the widest measured or asked: figure, configurations, cycles."""

    kind: Kind
    nccl: str
    pairs: tuple[tuple[SpecConfig, int], ...]
    cycle: Cycle

    @classmethod
    def of(cls, space: Space, side: Side, nccl: str, offer: Offer, batches: tuple[int, ...]) -> _Widths:
        """The widths of an offer that may test a side's form."""
        asked = 0 if side.spec is None else side.batch_size * int(side.spec.num_draft_tokens)
        most = 2 * max(*space.model.setting(nccl).verify_tokens, asked)
        chains = [spec for spec in offer.specs if spec.topk == 1]
        pairs = [(s, b) for b in batches for s in chains if b * s.num_draft_tokens <= most]
        cycle = Cycle.stacked([space.cycle(*pair) for pair in pairs])
        return cls(kinds(space.model, nccl)[0], nccl, tuple(pairs), cycle)

    def candidate(self, space: Space, at: int) -> Candidate:
        """The measurement at one of them."""
        row = space.gradient(self.kind, self.cycle, self.nccl)[at]
        return Candidate(self.kind, *self.pairs[at], self.nccl, row, float(self.noise(space)[at]) ** 2)

    def times(self, space: Space) -> FloatArray:
        """What the model predicts [ms]."""
        return space.times(self.kind, self.cycle, self.nccl)

    def noise(self, space: Space) -> FloatArray:
        """Standard deviation of one measurement [ms]."""
        return space.model.noise.relative * self.times(space)

    def variance(self, space: Space) -> FloatArray:
        """Variance of what the model says, φᵀΣφ [ms²]."""
        gradient = space.gradient(self.kind, self.cycle, self.nccl)
        return Estimate(self.times(space), gradient).variance(space.knowledge().covariance)

    def told(self, space: Space) -> BoolArray:
        """Where the model's runs say the time."""
        known = space.knowledge()
        return np.array([known.tells(row) for row in space.gradient(self.kind, self.cycle, self.nccl)])


def _shown_best(shows: FloatArray) -> int:
    """Where alternatives (rows) show best on average, each as a share of the best that any width does for it."""
    best = shows.max(axis=1, keepdims=True)
    return int(np.argmax((shows[best[:, 0] > 0] / best[best > 0][:, None]).mean(axis=0)))


# -- two widths fix a line ------------------------------------------------------------------------------------------------


def _third_width(
    space: Space, question: Ratio, widths: _Widths, measured: tuple[float, ...]
) -> tuple[Candidate, str] | None:
    """The width at which the alternatives show best on average, where the form rests on two.

    Expert coverage 1 − (1 − a/E)^T and a knee max(0, T − T₀) at every T₀, each put through both measured widths. An
    alternative shows by its distance from the form over the standard deviation of measured − predicted, which is
    √(σ²V² + φᵀΣφ).
    """
    tokens = widths.cycle.verify_tokens
    usable = ~np.isin(tokens, measured)
    if not usable.any():
        return None
    spread = np.sqrt(widths.noise(space) ** 2 + widths.variance(space))
    apart = departures(tokens, (measured[0], measured[1]), _fitted_shape(space))
    at = _shown_best(np.where(usable, apart / spread, 0.0))
    why = _why_third(space.model.form, measured, widths.nccl, tokens[at], question.reach * spread[at])
    return widths.candidate(space, at), why


def _line(tokens: Any) -> Any:
    return tokens


def _coverage(share: float, tokens: Any) -> Any:
    """Share of a layer's experts that T tokens touch, each taking `share` of them."""
    return 1 - (1 - share) ** tokens


def _knee(place: float, tokens: Any) -> Any:
    """Time above a line that steepens at `place` tokens."""
    return np.maximum(0.0, tokens - place)


def _fitted_shape(space: Space) -> Shape:
    """What verify grows with by the fit: expert coverage where that stands in for the slope, else tokens."""
    coverage = [c.parameters[0] for c in space.model.coefficients if c.name == "verify_coverage_ms"]
    return partial(_coverage, coverage[0]) if coverage else _line


def departures(tokens: FloatArray, measured: Interval, fitted: Shape = _line) -> FloatArray:
    """Distance of each alternative to what was fitted through two widths, at `tokens` (n,); shape (alternatives, n).

    Expert coverage at common shares of active experts, knees at every width, and the line [arbitrary units a row: each
    alternative has an amplitude of its own].
    """
    low, high = measured
    places = np.unique([*tokens, low, high])
    shapes: list[Shape] = [
        *(partial(_coverage, share) for share in _EXPERT_SHARES),
        *(partial(_knee, at) for at in places),
        _line,
    ]
    return np.array([_from_fitted(shape, fitted, tokens, low, high) for shape in shapes])


def _from_fitted(shape: Shape, fitted: Shape, tokens: FloatArray, low: float, high: float) -> FloatArray:
    share = (fitted(tokens) - fitted(low)) / (fitted(high) - fitted(low))
    apart = np.abs(shape(tokens) - shape(low) - (shape(high) - shape(low)) * share)
    return np.where(apart > _ROUNDING * np.abs(shape(tokens)).max(), apart, 0.0)


def _why_third(form: str, measured: tuple[float, ...], nccl: str, tokens: float, visible: float) -> str:
    low, high = measured
    straight = form == "line"
    curve, others = ("line", "expert coverage or a knee") if straight else ("curve", "a line or a knee")
    return (
        f"checks the form: two widths ({low:g}, {high:g} tokens) fix verify's {curve} under NCCL {nccl} and test nothing"
        f" of its shape; {others} shows best at {tokens:g} tokens, where a departure of {visible:.2f} ms or more is told"
        f" from the {curve}"
    )


# -- forms that the runs cannot exclude -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Other:
    """A form that the runs cannot exclude: by how much it changes the answer, and its distance at each width.

    `apart` [ms] is what it predicts beyond the form that the runs ask for, `visible` [ms] the least distance that one
    run tells at LEVEL: by the measurement's noise and what the less certain fit does not know, √(σ²V² + max φᵀΣφ).
    """

    form: str
    change: float
    apart: FloatArray
    visible: FloatArray

    @property
    def shows(self) -> FloatArray:
        """Distance as a multiple of what one run tells."""
        return np.abs(self.apart) / self.visible


def _telling_width(space: Space, ask: Callable[[Space], Ratio], widths: _Widths) -> tuple[Candidate, str] | None:
    """The width at which one run tells most of the forms that matter and cannot be excluded; None where it tells none.

    Of several such widths, the one at which they show best on average.
    """
    others = [other for other in _others(space, ask, widths) if (other.shows >= 1).any()]
    if not others:
        return None
    shows = np.array([other.shows for other in others])
    most = (shows >= 1).sum(axis=0)
    at = _shown_best(np.where(most == most.max(), shows, 0.0))
    shown = [other for other in others if other.shows[at] >= 1]
    return widths.candidate(space, at), _why_telling(space.model.form, shown, widths, at)


def _others(space: Space, ask: Callable[[Space], Ratio], widths: _Widths) -> Iterator[_Other]:
    """The forms that the runs cannot exclude and that change the answer by more than _MATTERS, or beyond its interval."""
    question, times, mine = ask(space), widths.times(space), widths.variance(space)
    now = question.interval(space.knowledge())
    for other in space.model.alternatives:
        theirs = Space.of(other.model)
        value = ask(theirs).value
        if abs(value / question.value - 1) > _MATTERS or (now is not None and not now[0] <= value <= now[1]):
            visible = question.reach * np.sqrt(widths.noise(space) ** 2 + np.maximum(mine, widths.variance(theirs)))
            told = widths.told(space) & widths.told(theirs)
            apart = np.where(told, widths.times(theirs) - times, 0.0)
            yield _Other(other.form, value / question.value - 1, apart, visible)


def _why_telling(form: str, shown: list[_Other], widths: _Widths, at: int) -> str:
    found = " or ".join(f"{other.form} (the answer changes by {other.change:+.1%})" for other in shown)
    gaps = " and ".join(f"{other.apart[at]:+.2f} ms" for other in shown)
    visible = max(other.visible[at] for other in shown)
    return (
        f"checks the form: these runs ask for {form} and cannot exclude {found}; at"
        f" {widths.cycle.verify_tokens[at]:g} tokens that predicts {gaps} beside it, where {visible:.2f} ms or more is told"
    )
