"""Tokens that cycles emit, drawn from an acceptance law; rates differ between prompts, positions and tokens (eq. 21)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import final

import numpy as np

from specsim.acceptance import AcceptanceLaw, TreeLaw
from specsim.errors import ConfigurationError
from specsim.expected import drafted
from specsim.quantities import FloatArray, IntArray, SpecConfig

KINDS = 128
"""Kinds of prompt that stand for a continuous distribution: its mid-quantiles, equally frequent."""

_SHIFTS = np.sinh(np.linspace(-4.1, 4.1, 513))  # -30 to 30, finest around 0: beyond, every rate is 0 or 1
_MOST_SCALE = 60.0
_HALVINGS = 60


@final
@dataclass(frozen=True)
class Drawer:
    """Draws the tokens that cycles emit, bonus included, for prompts of several kinds (eq. 21).

    `survival`, shape (kinds, num_steps), holds S_i of each kind, all kinds equally frequent, the hardest first. Two
    drawers of equally many kinds meet the same prompts: kind j is the one of the same quantile for both.
    """

    survival: FloatArray

    @classmethod
    def of(cls, law: AcceptanceLaw | FloatArray, spec: SpecConfig, *, between_prompts: float = 0.0) -> Drawer:
        """Cycles of one configuration by a law, or by its own measured survival of shape (max_accept_length − 1,).

        `between_prompts` is the relative standard deviation of accept length, so of throughput, from prompt to
        prompt: the log-odds of acceptance of a prompt are the law's, moved by a normal variable whose mean and scale
        give that spread and leave `mean` at the law's. Raises ConfigurationError where no such move does.
        """
        if np.ndim(spec.num_steps) or np.ndim(spec.topk) or np.ndim(spec.num_draft_tokens):
            raise ConfigurationError("cycles are drawn for one configuration, not for an array of them")
        if not 0 <= between_prompts < np.inf:
            raise ConfigurationError(f"a spread between prompts is a number of at least 0, not {between_prompts!r}")
        moved = _moved(law, spec)
        if between_prompts == 0:
            return cls(moved(0.0)[None])
        return cls(_spread_out(np.stack([moved(float(shift)) for shift in _SHIFTS]), moved(0.0), between_prompts))

    def __post_init__(self) -> None:
        table = np.asarray(self.survival, dtype=float)
        ordered = np.diff(table, axis=-1, prepend=1.0, append=0.0) <= 0
        if table.ndim != 2 or not table.shape[0] or not ordered.all():
            raise ConfigurationError("survival is a table of kinds by depth, from 1 down to 0, never rising with depth")
        object.__setattr__(self, "survival", table)

    @property
    def means(self) -> FloatArray:
        """Accept length of each kind of prompt, bonus included (eq. 18), shape (kinds,)."""
        return np.asarray(1 + self.survival.sum(axis=1))

    @property
    def mean(self) -> float:
        """Accept length of long outputs of equal length, bonus included: cycles are averaged, not ratios (eq. 22)."""
        return float(1 / np.mean(1 / self.means))

    @property
    def max_accept_length(self) -> int:
        """The most that one cycle can emit, bonus included."""
        return int(self.survival.shape[1]) + 1

    def prompts(self, shape: int | tuple[int, ...], generator: np.random.Generator) -> IntArray:
        """Draw prompts: the kind of each, an index into `survival`, for `draw` to be called with cycle after cycle."""
        return generator.integers(self.survival.shape[0], size=shape)

    def draw(
        self,
        prompts: IntArray | int | tuple[int, ...],
        generator: np.random.Generator,
        cycles: int | None = None,
    ) -> IntArray:
        """Tokens emitted, 1 … max_accept_length, by one cycle of each prompt; with `cycles`, by so many of each.

        `prompts` are kinds from `prompts`, or a shape of as many new ones; the result has their shape, with `cycles`
        a first axis more.
        """
        kinds = prompts if isinstance(prompts, np.ndarray) else self.prompts(prompts, generator)
        shape = kinds.shape if cycles is None else (cycles, *kinds.shape)
        luck = generator.random(shape, dtype=np.float32)
        tokens = np.ones(shape, dtype=np.int64)
        for chances in self.survival.astype(np.float32).T:
            tokens += luck < chances[kinds]
        return tokens


# -- what a prompt moves ---------------------------------------------------------------------------------------------


def _moved(law: AcceptanceLaw | FloatArray, spec: SpecConfig) -> Callable[[float], FloatArray]:
    """Survival of a configuration, shape (num_steps,), by how far the log-odds of acceptance are moved.

    Of a tree by a law the first rate moves, and the engine's tree with it; else the conditional rates at every depth.
    """
    steps, topk, width = (int(count) for count in drafted(spec))
    if isinstance(law, TreeLaw) and topk > 1 and steps > 0:
        tree = law
        return lambda shift: replace(tree, rate=float(odds_moved(tree.rate, shift))).tree_survival(steps, topk, width)
    if isinstance(law, AcceptanceLaw):
        law.accept_length(steps, topk, width)  # raises where this law says nothing of trees
        rates = law.conditional_acceptance(steps)
    else:
        rates = _conditional(np.asarray(law, dtype=float), int(spec.max_accept_length) - 1)
    return lambda shift: np.asarray(np.cumprod(odds_moved(rates, shift)))


def _conditional(survival: FloatArray, depth: int) -> FloatArray:
    """S_i/S_{i−1} of measured survival; 0 after a survival of 0."""
    before = np.concatenate([[1.0], survival[:-1]])
    if survival.shape != (depth,) or not ((survival >= 0) & (survival <= before)).all():
        raise ConfigurationError(f"survival of this configuration is {depth} numbers from 1 down to 0 that never rise")
    return np.asarray(np.divide(survival, before, out=np.zeros_like(survival), where=before > 0))


def odds_moved(rate: float | FloatArray, shift: float | FloatArray) -> FloatArray:
    """Rates whose log-odds are moved by `shift`, arguments broadcast; certain ones stay so."""
    rates = np.asarray(rate, dtype=float)
    return np.asarray(rates / (rates + (1 - rates) * np.exp(-np.asarray(shift))))


def _spread_out(table: FloatArray, middle: FloatArray, spread: float) -> FloatArray:
    """Survival of KINDS kinds, from that at _SHIFTS, with the mean of `middle` and a spread around it (eq. 22)."""
    scores = normal_scores()
    by_shift = 1 + table.sum(axis=1)
    mean = float(1 + middle.sum())

    def lengths(scale: float) -> tuple[FloatArray, FloatArray]:
        """Kinds at a scale: their shifts, centred so that cycles average to the mean, and their lengths."""

        def cycles(centre: float) -> float:
            return float(np.mean(1 / np.interp(centre + scale * scores, _SHIFTS, by_shift)))

        centre = where_reached(lambda at: -cycles(at), -1 / mean, -4 * _MOST_SCALE, 4 * _MOST_SCALE)
        shifts = centre + scale * scores
        return shifts, np.interp(shifts, _SHIFTS, by_shift)

    def spread_at(scale: float) -> float:
        found = lengths(scale)[1]
        return float(found.std() / found.mean())

    most = spread_at(_MOST_SCALE)
    if spread > most:
        raise ConfigurationError(
            f"accept lengths of {mean:.3g} on average, between 1 and {table.shape[1] + 1}, cannot spread by"
            f" {spread:.0%} between prompts: {most:.0%} is the most; throughput spreads for other reasons too"
        )
    shifts = lengths(where_reached(spread_at, spread, 0.0, _MOST_SCALE))[0]
    return np.stack([np.interp(shifts, _SHIFTS, column) for column in table.T], axis=1)


def normal_scores() -> FloatArray:
    """The mid-quantiles of a normal variable, one of each kind, shape (KINDS,)."""
    return np.array([NormalDist().inv_cdf((kind + 0.5) / KINDS) for kind in range(KINDS)])


def where_reached(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Where a function that does not fall reaches a target, by halving."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return high
