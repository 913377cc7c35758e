"""Trees that an engine draws by confidence, which differs from token to token (eq. 20, 21)."""

from __future__ import annotations

import numpy as np

from specsim.acceptance import TreeLaw
from specsim.errors import ConfigurationError
from specsim.quantities import FloatArray, SpecConfig
from specsim.simulation.acceptance import normal_scores, odds_moved, where_reached

_TOGETHER = 2048  # trees drawn at once: some MB of candidates even at topk 8 and 8 steps


def confident_survival(
    law: TreeLaw, spec: SpecConfig, between_tokens: float, generator: np.random.Generator, trees: int = 50_000
) -> FloatArray:
    """P(at least i drafts are accepted) of an EAGLE-2 style engine whose confidence differs by context (eq. 20, 21).

    The log-odds of the first candidate are normal at every token, independent, with a standard deviation of
    `between_tokens` and with the law's rate as their mean rate; the engine sees them when it chooses nodes. Shape
    (num_steps,), an average over so many drawn trees, without the noise of acceptance. A chain's is the law's own: an
    average of independent rates is a rate. A law fitted to lengths of such trees has the gain in it already.
    """
    if not 0 <= between_tokens < np.inf:
        raise ConfigurationError(f"a spread between tokens is a number of at least 0, not {between_tokens!r}")
    steps, topk, width = int(spec.num_steps), int(spec.topk), int(spec.num_draft_tokens)
    if topk == 1 or steps == 0 or between_tokens == 0:
        return law.tree_survival(steps, topk, width)
    rates = law.conditional_acceptance(steps).tolist()
    centres = [_centre(rate, between_tokens) for rate in rates]
    total = np.zeros(steps)
    for start in range(0, trees, _TOGETHER):
        shape = (min(_TOGETHER, trees - start), topk)
        shifts = [centre + between_tokens * generator.standard_normal(shape) for centre in centres]
        shifts[0] = shifts[0][:, :1]  # the root is one
        firsts = [odds_moved(rate, shift) for rate, shift in zip(rates, shifts, strict=True)]
        total += _survival_of_trees(law, topk, width, firsts)
    return np.minimum.accumulate(np.minimum(total / trees, 1.0))


def _centre(rate: float, spread: float) -> float:
    """How far the middle of log-odds that spread lies from the rate's own, for their mean rate to be that rate."""
    if not 0 < rate < 1:
        return 0.0
    moves = spread * normal_scores()
    return where_reached(lambda at: float(odds_moved(rate, at + moves).mean()), rate, -100.0, 100.0)


def _survival_of_trees(law: TreeLaw, topk: int, width: int, firsts: list[FloatArray]) -> FloatArray:
    """Summed over trees, by depth, from the first candidate's rate at every kept node, (trees, nodes) by depth."""
    kept = np.ones_like(firsts[0])
    pool, depths = [], []
    for depth, first in enumerate(firsts):
        level = (kept[..., None] * law.shared_out(first, topk)).reshape(len(first), -1)
        pool.append(level)
        depths.append(np.full(level.shape[1], depth))
        kept = -np.sort(-level, axis=1)[:, :topk]
    worth, depth_of = np.concatenate(pool, axis=1), np.concatenate(depths)
    chosen = np.argsort(-worth, axis=1, kind="stable")[:, : width - 1]
    weights = np.take_along_axis(worth, chosen, axis=1)
    counted = np.bincount(depth_of[chosen].ravel(), weights=weights.ravel(), minlength=len(firsts))
    return np.asarray(counted, dtype=np.float64)
