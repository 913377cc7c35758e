"""The draft tree as SGLang's EAGLE-2 builds it: topk nodes a level survive, the best of all candidates are verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True)
class Level:
    """Candidates of one level, shape (batch, candidates): log scores along their paths, tokens, and parents.

    A parent is an index into all candidates of the levels before, −1 for the root.
    """

    scores: Tensor
    tokens: Tensor
    parents: Tensor


def first_level(log_probabilities: Tensor, topk: int) -> Level:
    """The root's topk candidates from (batch, vocabulary)."""
    scores, tokens = log_probabilities.topk(topk, dim=-1)
    return Level(scores, tokens, torch.full_like(tokens, -1))


def next_level(log_probabilities: Tensor, frontier: Level, at: Tensor, topk: int) -> Level:
    """Topk candidates of each of the frontier's nodes, (batch, k, vocabulary) → (batch, k·topk); `at` are its indices."""
    scores, tokens = log_probabilities.topk(topk, dim=-1)
    along = scores + frontier.scores[:, :, None]
    parents = at[:, :, None].expand_as(tokens)
    return Level(along.flatten(1), tokens.flatten(1), parents.flatten(1))


def survivors(level: Level, offset: int, topk: int) -> tuple[Level, Tensor, Tensor]:
    """The topk best of a level: them, their indices among all candidates, and which of the frontier each comes from."""
    scores, chosen = level.scores.topk(topk, dim=-1)
    origin = chosen // topk if level.scores.shape[1] > topk else torch.zeros_like(chosen)
    kept = Level(scores, level.tokens.gather(1, chosen), level.parents.gather(1, chosen))
    return kept, chosen + offset, origin


def selected(levels: list[Level], num_draft_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """The tree to verify: tokens (batch, N − 1), the mask (batch, N, N) of who sees whom, and depths (batch, N).

    The N − 1 best candidates of all levels by score; a parent's score is never below its child's, so that ancestors come
    along. The root stands first and everybody sees it.
    """
    scores = torch.cat([level.scores for level in levels], dim=1)
    tokens, parents = (torch.cat([getattr(level, name) for level in levels], dim=1) for name in ("tokens", "parents"))
    best = scores.topk(num_draft_tokens - 1, dim=1).indices.sort(dim=1).values
    own = tokens.gather(1, best)
    place = torch.zeros_like(parents)
    place.scatter_(1, best, torch.arange(1, num_draft_tokens, device=best.device).expand_as(best))
    above = parents.gather(1, best)
    parent = torch.where(above < 0, torch.zeros_like(above), place.gather(1, above.clamp(min=0)))
    mask = ancestry(parent, len(levels))
    return own, mask, mask.sum(dim=-1) - 1


def ancestry(parent: Tensor, depth: int) -> Tensor:
    """Who sees whom, (batch, N, N), from the parents (batch, N − 1) of nodes 1 … N − 1 in a tree of at most this depth.

    Each node sees itself and its parent; squaring that doubles how far it sees.
    """
    batch, count = parent.shape
    sees = torch.eye(count + 1, device=parent.device).repeat(batch, 1, 1)
    sees[:, 1:].scatter_(2, parent[:, :, None], 1.0)
    for _ in range(max(depth - 1, 0).bit_length()):
        sees = (sees @ sees).clamp(max=1.0)
    return sees > 0


def accepted_path(mask: Tensor, depths: Tensor, wanted: Tensor) -> Tensor:
    """Nodes (batch, most + 1) of an accepted path, `wanted` (batch,) drafts deep or as deep as the tree; −1 after its end.

    The deepest node not below the wanted depth ends the path; its ancestors are what the mask lets it see.
    """
    reachable = torch.where(depths <= wanted[:, None], depths, -torch.ones_like(depths))
    end = reachable.argmax(dim=1)
    seen = mask[torch.arange(mask.shape[0], device=mask.device), end]
    order = torch.where(seen, depths, torch.full_like(depths, mask.shape[1]))
    nodes = order.argsort(dim=1, stable=True)
    return torch.where(order.gather(1, nodes) < mask.shape[1], nodes, -torch.ones_like(nodes))
