"""Laws of acceptance: what is accepted at each depth, and the length of the chain or tree an engine builds from it.

AcceptanceLaw                              survival of a chain, accept length of what the engine verifies
├── ConstantRate(rate)                     every draft is accepted with the same probability
├── PerPosition(survival)                  measured, the last conditional rate held beyond it
├── DecayingRate(rate, decay)              conditional acceptance rate·decay^d at depth d
└── TreeLaw(rate, decay, rank_exponent)    the same, and what the candidates after the first are worth
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from specsim.errors import ConfigurationError
from specsim.quantities import BoolArray, FloatArray, Floats, Ints, SpecConfig

Counts = NDArray[np.int64]
_WIDEST = 65_536


class AcceptanceLaw(ABC):
    """Probability that drafts are accepted, by depth; every length includes the bonus token."""

    @abstractmethod
    def conditional_acceptance(self, num_steps: int) -> FloatArray:
        """α_i = S_i/S_{i−1} of a chain's drafts (eq. 18), shape (num_steps,)."""

    def survival(self, num_steps: int) -> FloatArray:
        """S_i = P(at least i drafts of a chain are accepted) for i = 1 … num_steps (eq. 18), shape (num_steps,)."""
        return np.asarray(np.cumprod(self.conditional_acceptance(num_steps)), dtype=np.float64)

    def accept_length(self, num_steps: Ints, topk: Ints, num_draft_tokens: Ints) -> Floats:
        """Expected accept length, bonus included, of the chain or tree that the engine builds (eq. 18, 20).

        Arguments broadcast; scalars give a float. Raises ConfigurationError on an illegal configuration, and
        for topk above 1 unless the law is a TreeLaw. Costs one table per distinct (num_steps, topk), then a
        look-up per element.
        """
        SpecConfig(num_steps, topk, num_draft_tokens)
        if np.max(num_draft_tokens, initial=0) > _WIDEST or np.max(num_steps, initial=0) > _WIDEST:
            raise ConfigurationError(f"no engine drafts or verifies more than {_WIDEST:,} tokens a cycle")
        config = (np.asarray(part, dtype=np.int64) for part in (num_steps, topk, num_draft_tokens))
        return _as_given(self._lengths(*np.broadcast_arrays(*config)))

    def _lengths(self, steps: Counts, topk: Counts, width: Counts) -> FloatArray:
        """Lengths of chains; `width` is only of use to a law that can tell trees."""
        if ((topk > 1) & (steps > 0)).any():
            raise ConfigurationError(
                f"topk {topk.max()}: a tree needs a TreeLaw, because a {type(self).__name__} says nothing of the"
                " candidates after the first; fit a TreeLaw (specsim.fitting.acceptance), or ask for topk 1"
            )
        table = 1 + np.concatenate([[0.0], np.cumsum(self.survival(int(steps.max(initial=0))))])
        return np.asarray(table[steps])


@final
@dataclass(frozen=True)
class ConstantRate(AcceptanceLaw):
    """Every draft is accepted with probability `rate`, given the drafts before it (eq. 19)."""

    rate: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)

    def conditional_acceptance(self, num_steps: int) -> FloatArray:
        """The same rate at every depth, shape (num_steps,)."""
        return np.full(num_steps, float(self.rate))


@final
@dataclass(frozen=True)
class PerPosition(AcceptanceLaw):
    """Survival S_1, S_2 … as `measured`; deeper than that, the last conditional rate is held (eq. 18, 19)."""

    measured: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.measured:
            raise ConfigurationError("a PerPosition law needs the survival of at least one position")
        for before, after in pairwise((1.0, *self.measured)):
            if not 0 <= after <= before:
                raise ConfigurationError(
                    f"survival lies between 0 and 1 and never rises with depth; {after!r} follows {before!r}."
                    " Conditional rates become survival by their running product"
                )

    def conditional_acceptance(self, num_steps: int) -> FloatArray:
        """Ratios of the measured survival, the last one held beyond it; 0 after a survival of 0."""
        before = np.array([1.0, *self.measured[:-1]])
        rates = np.divide(self.measured, before, out=np.zeros_like(before), where=before > 0)
        return np.asarray(rates[np.minimum(np.arange(num_steps), rates.size - 1)])

    def is_extrapolated(self, num_steps: Ints) -> bool | BoolArray:
        """Whether a chain of this depth rests on positions that were not measured; the shape of the argument."""
        beyond = np.asarray(num_steps) > len(self.measured)
        return bool(beyond) if beyond.ndim == 0 else beyond


@final
@dataclass(frozen=True)
class DecayingRate(AcceptanceLaw):
    """Conditional acceptance rate·decay^d at depth d = 0, 1 …, at most 1 (section 7).

    A decay above 1 is legal: a mix of easy and hard prompts shows rates that rise with depth.
    """

    rate: float
    decay: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)
        _require_positive("decay", self.decay)

    def conditional_acceptance(self, num_steps: int) -> FloatArray:
        """rate·decay^d, at most 1, for d = 0 … num_steps − 1."""
        return _decaying(self.rate, self.decay, num_steps)


@final
@dataclass(frozen=True)
class TreeLaw(AcceptanceLaw):
    """Coverage 1 − (1 − α_d)·k^−b of the k best candidates at depth d, with α_d = rate·decay^d (eq. 20).

    No candidate is worth more than the one ranked before it: where the formula says otherwise (α_d below
    (1 − α_d)·(1 − 2^−b), deep or with a weak drafter) candidates are held to α_d, and coverage lies below the
    formula. With that order a longer, wider or larger tree, a higher rate or a higher decay never shortens the
    accept length; a higher rank exponent can, where it is so held. Positional assumption: a node's survival is
    the product along its path. Source: Sequoia, arXiv 2402.12374; the form of the coverage is a fit.
    """

    rate: float
    decay: float
    rank_exponent: float

    def __post_init__(self) -> None:
        _require_rate(self.rate)
        _require_positive("decay", self.decay)
        _require_positive("rank_exponent", self.rank_exponent)

    def conditional_acceptance(self, num_steps: int) -> FloatArray:
        """rate·decay^d, at most 1: a chain drafts the best candidate at each depth."""
        return _decaying(self.rate, self.decay, num_steps)

    def rank_acceptance(self, num_steps: int, topk: int) -> FloatArray:
        """q_r at each depth: P(candidate r is the accepted one | its parent is) (eq. 20), shape (num_steps, topk)."""
        return self.shared_out(self.conditional_acceptance(num_steps), topk)

    def shared_out(self, first: FloatArray, topk: int) -> FloatArray:
        """q_r of the topk best candidates where the first is worth `first`, of any shape, to which ranks are added (eq. 20)."""
        best = np.asarray(first)[..., None]
        shares = -np.diff(np.arange(1.0, topk + 1) ** -self.rank_exponent)
        return np.concatenate([best, np.minimum((1 - best) * shares, best)], axis=-1)

    def tree_survival(self, num_steps: int, topk: int, num_draft_tokens: int) -> FloatArray:
        """P(at least i drafts of the engine's tree are accepted), i = 1 … num_steps (eq. 20), shape (num_steps,).

        One configuration; raises ConfigurationError on an illegal one.
        """
        SpecConfig(num_steps, topk, num_draft_tokens)
        levels = self._engine_levels(num_steps, topk, num_draft_tokens)
        depth = np.repeat(np.arange(num_steps), [level.size for level in levels])
        worth = np.concatenate([np.empty(0), *levels])
        chosen = np.argsort(-worth, kind="stable")[: num_draft_tokens - 1]  # of equals, the shallower: parents first
        survival = np.bincount(depth[chosen], weights=worth[chosen], minlength=num_steps)
        return np.minimum.accumulate(np.minimum(survival, 1.0))  # sums of products round

    def best_tree_length(self, num_steps: Ints, num_draft_tokens: Ints) -> Floats:
        """Accept length, bonus included, of the best tree of N nodes (root included) and depth ≤ S (eq. 20).

        Arguments broadcast, S ≥ 0, N ≥ 1. No engine's limit of topk applies: an upper bound of accept_length.
        """
        steps, width = np.broadcast_arrays(num_steps, num_draft_tokens)
        if steps.dtype.kind not in "iu" or width.dtype.kind not in "iu" or steps.min() < 0 or width.min() < 1:
            raise ConfigurationError("the best tree needs whole numbers: num_steps ≥ 0 and num_draft_tokens ≥ 1")
        levels = self._best_levels(int(steps.max()), int(width.max()) - 1)
        depths = np.unique(steps)
        tables = [_lengths_by_width(levels[:depth], int(width.max())) for depth in depths]
        return _as_given(np.asarray(np.stack(tables)[np.searchsorted(depths, steps), width - 1]))

    def _lengths(self, steps: Counts, topk: Counts, width: Counts) -> FloatArray:
        """One table of lengths by width per distinct (num_steps, topk), laid end to end, then one look-up each."""
        radix, widest = int(topk.max(initial=0)) + 1, int(width.max(initial=1))
        key = steps * radix + topk
        start = np.zeros(int(key.max(initial=0)) + 1, dtype=np.int64)
        start[key] = 1
        levels: dict[int, list[FloatArray]] = {}
        tables, size = [np.empty(0)], 0
        for code in np.flatnonzero(start)[::-1]:  # deepest first: its levels serve the shallower trees of that topk
            depth, branches = divmod(int(code), radix)
            if branches not in levels:
                levels[branches] = self._engine_levels(depth, branches, widest)
            pool = levels[branches][:depth]
            tables.append(_lengths_by_width(pool, widest))
            start[code] = size
            size += tables[-1].size
        return np.asarray(np.concatenate(tables)[start[key] + (width - 1)])

    def _engine_levels(self, num_steps: int, topk: int, widest: int) -> list[FloatArray]:
        """Survival of the candidates that an EAGLE-2 style engine scores, by depth: topk, then topk² a level.

        Of each level's candidates the topk most probable get children. Which of equals is kept does not matter:
        a child's worth depends on its parent's worth, its depth and its rank only. Of a level no more than the
        `widest` − 1 best can be verified, nor a child of any other, so the rest is not drawn.
        """
        most = max(min(topk, widest - 1), 1)
        kept, levels = np.ones(1), []
        for rates in self.rank_acceptance(num_steps, most):
            level = np.sort(np.outer(kept, rates).ravel())[::-1]
            levels.append(level[: max(widest - 1, 1)])
            kept = level[:most]
        return levels

    def _best_levels(self, num_steps: int, nodes: int) -> list[FloatArray]:
        """Every node that can be among the `nodes` most probable, by depth.

        Child r of the i-th best parent is no better than the children 1 … r of the parents 1 … i, so only
        i·r ≤ nodes can be chosen.
        """
        children = nodes // np.arange(1, nodes + 1)
        parent = np.repeat(np.arange(nodes), children)
        rank = np.arange(parent.size) - np.repeat(np.cumsum(children) - children, children)
        kept, levels = np.ones(1), []
        for rates in self.rank_acceptance(num_steps, max(nodes, 1)):
            real = parent < kept.size
            levels.append(kept[parent[real]] * rates[rank[real]])
            kept = np.sort(levels[-1])[::-1][:nodes]
        return levels


def _lengths_by_width(levels: list[FloatArray], widest: int) -> FloatArray:
    """Accept length of the 1 … `widest` most probable nodes, root included; all of them where there are fewer."""
    best = np.sort(np.concatenate([np.empty(0), *levels]))[::-1][: widest - 1]
    table = np.empty(widest)
    table[: best.size + 1] = 1 + np.concatenate([[0.0], np.cumsum(best)])
    table[best.size + 1 :] = table[best.size]
    return table


def _decaying(rate: float, decay: float, num_steps: int) -> FloatArray:
    with np.errstate(over="ignore"):  # a decay above 1 may overflow far beyond the depth where the rate reaches 1
        return np.minimum(rate * decay ** np.arange(num_steps, dtype=float), 1.0) if rate > 0 else np.zeros(num_steps)


def _require_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise ConfigurationError(f"an acceptance rate lies between 0 and 1, not {rate!r}")


def _require_positive(name: str, value: float) -> None:
    if not 0 < value < np.inf:
        raise ConfigurationError(f"{name} is a number above 0, not {value!r}")


def _as_given(values: FloatArray) -> Floats:
    return float(values) if values.ndim == 0 else values
