"""A decoder stack with random weights and a real KV cache, as torch functions that a CUDA graph can capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from calibration.machine import Machine
from calibration.shapes import ModelShape

Tensor: TypeAlias = torch.Tensor
_EPS = 1e-5
_THETA = 10000.0


@dataclass(frozen=True)
class Layer:
    """One layer's weights, the projections of query, key and value together, and of gate and up.

    A dense layer has no `router`; of a mixture of experts `gate_up` and `down` have the expert as their first dimension.
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    router: Tensor | None


@dataclass(frozen=True)
class Cache:
    """Keys and values of a batch, (layers, batch, kv_heads, context + room, head_size); `context` tokens are in it."""

    keys: Tensor
    values: Tensor
    context: int

    @property
    def room(self) -> int:
        """Tokens that a forward may add."""
        return int(self.keys.shape[3]) - self.context


@dataclass(frozen=True)
class Decoder:
    """A model of a shape on a machine; `popularity` (experts,) is added to router logits (zeros: uniform routing)."""

    shape: ModelShape
    machine: Machine
    layers: tuple[Layer, ...]
    head: Tensor
    popularity: Tensor

    @classmethod
    def random(cls, shape: ModelShape, machine: Machine, seed: int, skew: float = 0.0) -> Decoder:
        """Weights drawn by a seed; with `skew` s the r-th expert is chosen as by a popularity of r^−s."""
        generator = torch.Generator(machine.device).manual_seed(seed)

        def drawn(*size: int) -> Tensor:
            weights = torch.empty(size, dtype=machine.dtype, device=machine.device)
            return weights.normal_(0.0, 0.02, generator=generator)

        hidden, head = shape.hidden_size, shape.head_size
        experts = (shape.experts,) if shape.experts else ()
        inner = shape.expert_size if shape.experts else shape.intermediate_size
        layers = tuple(
            Layer(
                drawn((shape.heads + 2 * shape.kv_heads) * head, hidden),
                drawn(hidden, shape.heads * head),
                drawn(*experts, 2 * inner, hidden),
                drawn(*experts, hidden, inner),
                drawn(shape.experts, hidden) if shape.experts else None,
            )
            for _ in range(shape.layers)
        )
        ranks = torch.arange(1, max(shape.experts, 1) + 1, device=machine.device, dtype=torch.float32)
        return cls(shape, machine, layers, drawn(shape.vocabulary, hidden), -skew * ranks.log())

    def cache(self, batch_size: int, context: int, room: int, seed: int) -> Cache:
        """A filled cache of `context` tokens a request, with room for more."""
        shape, machine = self.shape, self.machine
        generator = torch.Generator(machine.device).manual_seed(seed)
        size = (shape.layers, batch_size, shape.kv_heads, context + room, shape.head_size)
        keys, values = (
            torch.empty(size, dtype=machine.dtype, device=machine.device).normal_(generator=generator) for _ in range(2)
        )
        return Cache(keys, values, context)

    def inputs(self, rows: int, count: int, seed: int) -> Tensor:
        """Hidden states (count, rows, hidden_size) to feed in turn, so that no repeat finds its input in a cache."""
        generator = torch.Generator(self.machine.device).manual_seed(seed)
        size = (count, rows, self.shape.hidden_size)
        return torch.empty(size, dtype=self.machine.dtype, device=self.machine.device).normal_(generator=generator)

    def forward(
        self,
        hidden: Tensor,
        cache: Cache,
        batch_size: int,
        start: int = 0,
        mask: Tensor | None = None,
        reduce: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The stack over (batch·width, hidden_size) new tokens, written to the cache from context + start on.

        Without `mask` each new token sees the context, what stands before `start`, and the new ones up to itself; with
        it, (width, start + width) or (batch, width, start + width) of bools, the context and what the mask allows.
        `reduce` gives the sum over the ranks that a layer's two blocks are split over.
        """
        width = hidden.shape[0] // batch_size
        turn = _rotation(self.shape.head_size, cache.context + start, width, self.machine)
        hidden, normed = hidden.clone(), F.rms_norm(hidden, hidden.shape[-1:], eps=_EPS)
        for index, layer in enumerate(self.layers):
            end = cache.context + start + width
            keys, values = cache.keys[index, :, :, :end], cache.values[index, :, :, :end]
            mixed = F.linear(normed, layer.qkv).view(batch_size, width, -1, self.shape.head_size)
            query = turn_and_store(mixed, keys, values, turn, self.shape.heads, end - width)
            told = attention(query, keys, values, cache.context, mask)
            block = F.linear(told.transpose(1, 2).reshape(hidden.shape[0], -1), layer.out)
            normed = add_norm(hidden, _reduced(block, reduce))
            normed = add_norm(hidden, _reduced(self._fed_forward(layer, normed), reduce))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The head over (rows, hidden_size)."""
        return F.linear(F.rms_norm(hidden, hidden.shape[-1:], eps=_EPS), self.head)

    def _fed_forward(self, layer: Layer, hidden: Tensor) -> Tensor:
        if layer.router is None:
            return F.linear(gated(F.linear(hidden, layer.gate_up)), layer.down)
        return self._experts(layer, hidden, layer.router)

    def _experts(self, layer: Layer, hidden: Tensor, router: Tensor) -> Tensor:
        """Each token through its experts, tokens sorted by expert so that an expert's weights are read once."""
        count, used = self.shape.experts, self.shape.experts_per_token
        scores = F.linear(hidden, router).float() + self.popularity
        weights, chosen = scores.softmax(-1).topk(used)
        flat = chosen.flatten()
        order = flat.argsort()
        sizes = torch.zeros(count, dtype=torch.int32, device=flat.device)
        ends = sizes.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
        rows = order // used
        inner = gated(_by_expert(hidden[rows], layer.gate_up, ends, flat[order]))
        outer = _by_expert(inner, layer.down, ends, flat[order]) * weights.flatten()[order, None].to(hidden.dtype)
        return torch.zeros_like(hidden).index_add_(0, rows, outer)


def _reduced(block: Tensor, reduce: Callable[[Tensor], Tensor] | None) -> Tensor:
    return block if reduce is None else reduce(block)


def _by_expert(rows: Tensor, weights: Tensor, ends: Tensor, experts: Tensor) -> Tensor:
    """Rows, sorted by expert, times their expert's weights (experts, out, in); one grouped product on a GPU."""
    if rows.is_cuda:
        return torch._grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    return torch.bmm(weights[experts], rows[:, :, None])[:, :, 0]


# -- steps between the products: fused on a GPU, written out on a CPU ------------------------------------------------------


def attention(query: Tensor, keys: Tensor, values: Tensor, context: int, mask: Tensor | None) -> Tensor:
    """Attention of new tokens (batch, heads, width, head_size) to the context and, by mask or causally, to what follows it."""
    if query.is_cuda:
        from calibration import kernels

        return kernels.attention(query, keys, values, context, mask)
    width, length = query.shape[2], keys.shape[2]
    if mask is None:
        allowed = torch.ones(width, length, dtype=torch.bool).tril(length - width)
    else:
        allowed = F.pad(mask, (context, 0), value=True)
    return F.scaled_dot_product_attention(
        query, keys, values, allowed if allowed.dim() == 2 else allowed[:, None], enable_gqa=True
    )


def turn_and_store(
    mixed: Tensor, keys: Tensor, values: Tensor, turn: tuple[Tensor, Tensor], heads: int, at: int
) -> Tensor:
    """Queries (batch, heads, width, size) of (batch, width, heads + 2·kv_heads, size); keys and values into a layer's cache."""
    if mixed.is_cuda:
        from calibration import kernels

        return kernels.turn_and_store(mixed, keys, values, turn, heads, at)
    kv_heads = keys.shape[1]
    query, key, value = mixed.transpose(1, 2).split((heads, kv_heads, kv_heads), dim=1)
    keys[:, :, at:].copy_(_turned(key, turn))
    values[:, :, at:].copy_(value)
    return _turned(query, turn)


def gated(both: Tensor) -> Tensor:
    """silu(gate)·up of (rows, 2·size)."""
    if both.is_cuda:
        from calibration import kernels

        return kernels.gated(both)
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def add_norm(hidden: Tensor, more: Tensor) -> Tensor:
    """RMS norm of hidden + more, which `hidden` (rows, size) becomes."""
    if hidden.is_cuda:
        from calibration import kernels

        return kernels.add_norm(hidden, more, _EPS)
    hidden.add_(more)
    return F.rms_norm(hidden, hidden.shape[-1:], eps=_EPS)


# -- positions ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _rotation(size: int, start: int, width: int, machine: Machine) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `width` positions from `start` on, (width, head_size): a table, as engines keep one."""
    rates = _THETA ** (-torch.arange(0, size, 2, device=machine.device, dtype=torch.float32) / size)
    angles = torch.arange(start, start + width, device=machine.device, dtype=torch.float32)[:, None] * rates
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def _turned(rows: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    low, high = rows.chunk(2, dim=-1)
    return (rows * turn[0] + torch.cat((-high, low), dim=-1) * turn[1]).to(rows.dtype)


def argmax_tokens(logits: Tensor) -> Any:
    """Greedy sampling, one token a row."""
    return logits.argmax(dim=-1)
