"""Fused kernels as an engine runs them: without them a stack is timed by its launches, and shared keys are read twice.

Each has the plain torch form of the same name in `calibration.decoder`'s CPU path beside it in the tests.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

Tensor: TypeAlias = torch.Tensor

_KEYS = 64  # keys a step of the attention loop
_PROGRAMS = 264  # two for each multiprocessor of an H100 or H200: fewer, and the context is split
_LEAST_SPLIT = 256  # keys of a split at least


@triton.jit
def _attention(
    query, keys, values, mask, out, sums,
    q_batch, q_head, q_row, k_batch, k_head, k_row, m_batch, m_row,
    context, length, width, before, shared, kv_heads, rows, splits, scale,
    SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of the query rows that share a key head, against one split of its keys; not yet divided by its sum."""
    pair, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    batch, head = pair // kv_heads, pair % kv_heads
    row = block * ROWS + tl.arange(0, ROWS)
    own, token = row // width, row % width
    lane = tl.arange(0, SIZE)
    real = row < rows
    place = batch * q_batch + (head * shared + own) * q_head + token * q_row
    asked = tl.load(query + place[:, None] + lane[None, :], mask=real[:, None], other=0.0)
    chunk = tl.cdiv(tl.cdiv(length, splits), KEYS) * KEYS
    first = split * chunk
    last = tl.minimum(first + chunk, length)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    told = tl.zeros((ROWS, SIZE), tl.float32)
    base = batch * k_batch + head * k_head
    for start in range(first, last, KEYS):
        key = start + tl.arange(0, KEYS)
        there = key < last
        at = base + key[:, None] * k_row + lane[None, :]
        known = tl.load(keys + at, mask=there[:, None], other=0.0)
        scores = tl.dot(asked, tl.trans(known)) * scale
        after = key - context
        if MASKED:
            seen = tl.load(mask + batch * m_batch + token[:, None] * m_row + after[None, :],
                           mask=real[:, None] & (after >= 0)[None, :] & there[None, :], other=0) > 0  # fmt: skip
            allowed = (after < 0)[None, :] | seen
        else:
            allowed = after[None, :] <= before + token[:, None]
        scores = tl.where(allowed & there[None, :], scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        weight = tl.exp(scores - safe[:, None])
        shrink = tl.exp(top - safe)
        total = total * shrink + tl.sum(weight, 1)
        content = tl.load(values + at, mask=there[:, None], other=0.0)
        told = told * shrink[:, None] + tl.dot(weight.to(content.dtype), content)
        top = higher
    spot = (pair * splits + split) * rows + row
    tl.store(out + spot[:, None] * SIZE + lane[None, :], told / tl.maximum(total, 1e-30)[:, None], mask=real[:, None])
    tl.store(sums + spot, tl.where(total > 0, top + tl.log(tl.maximum(total, 1e-30)), -float("inf")), mask=real)


@triton.jit
def _merged(parts, sums, out, rows, splits, SIZE: tl.constexpr, SPLITS: tl.constexpr):
    """The splits of one query row put together, weighted by their sums."""
    pair, row = tl.program_id(0), tl.program_id(1)
    lane, split = tl.arange(0, SIZE), tl.arange(0, SPLITS)
    spot = (pair * splits + split) * rows + row
    logs = tl.load(sums + spot, mask=split < splits, other=-float("inf"))
    weight = tl.exp(logs - tl.max(logs, 0))
    weight = weight / tl.sum(weight, 0)
    told = tl.load(parts + spot[:, None] * SIZE + lane[None, :], mask=(split < splits)[:, None], other=0.0)
    merged = tl.sum(told * weight[:, None], 0)
    tl.store(out + (pair * rows + row) * SIZE + lane, merged.to(out.dtype.element_ty))


def attention(query: Tensor, keys: Tensor, values: Tensor, context: int, mask: Tensor | None) -> Tensor:
    """Attention of new tokens (batch, heads, width, size) to the context and, by mask or causally, to what follows it.

    The query heads of a key head go through it together, so that keys are read once; a small batch splits its context.
    """
    batch, heads, width, size = query.shape
    kv_heads, length = keys.shape[1], keys.shape[2]
    shared = heads // kv_heads
    rows = shared * width
    block = min(64, max(16, triton.next_power_of_2(rows)))
    blocks = triton.cdiv(rows, block)
    wanted = triton.cdiv(_PROGRAMS, batch * kv_heads * blocks)
    splits = max(1, min(wanted, length // _LEAST_SPLIT))
    single = splits == 1
    kind = query.dtype if single else torch.float32
    parts = torch.empty((batch, kv_heads, splits, rows, size), dtype=kind, device=query.device)
    sums = torch.empty((batch, kv_heads, splits, rows), dtype=torch.float32, device=query.device)
    seen = query if mask is None else mask
    strides = (0, 0) if mask is None else (0 if mask.dim() == 2 else mask.stride(0), mask.stride(-2))
    _attention[(batch * kv_heads, blocks, splits)](
        query, keys, values, seen, parts, sums,
        query.stride(0), query.stride(1), query.stride(2), keys.stride(0), keys.stride(1), keys.stride(2), *strides,
        context, length, width, length - context - width, shared, kv_heads, rows, splits, 1.0 / math.sqrt(size),
        SIZE=size, ROWS=block, KEYS=_KEYS, MASKED=mask is not None, num_warps=4, num_stages=3,
    )  # fmt: skip
    if single:
        return parts.view(batch, heads, width, size)
    out = torch.empty((batch, kv_heads, rows, size), dtype=query.dtype, device=query.device)
    _merged[(batch * kv_heads, rows)](
        parts, sums, out, rows, splits, SIZE=size, SPLITS=triton.next_power_of_2(splits), num_warps=1
    )
    return out.view(batch, heads, width, size)


@triton.jit
def _turn_and_store(
    mixed, query, keys, values, cosine, sine, heads, kv_heads, width, q_batch, k_batch, k_head, k_row, at,
    HALF: tl.constexpr,
):  # fmt: skip
    """One head of one token: queries turned, keys turned into the cache, values as they are into the cache."""
    row, head = tl.program_id(0), tl.program_id(1)
    batch, token = row // width, row % width
    lane = tl.arange(0, HALF)
    source = mixed + (row * (heads + 2 * kv_heads) + head) * 2 * HALF
    low, high = tl.load(source + lane), tl.load(source + HALF + lane)
    cos, sin = tl.load(cosine + token * 2 * HALF + lane), tl.load(sine + token * 2 * HALF + lane)
    kind = mixed.dtype.element_ty
    turned_low = (low.to(tl.float32) * cos - high.to(tl.float32) * sin).to(kind)
    turned_high = (high.to(tl.float32) * cos + low.to(tl.float32) * sin).to(kind)
    kv_head = (head - heads) % kv_heads
    spot = batch * k_batch + kv_head * k_head + (at + token) * k_row
    if head < heads:
        goal = query + batch * q_batch + (head * width + token) * 2 * HALF
        tl.store(goal + lane, turned_low)
        tl.store(goal + HALF + lane, turned_high)
    elif head < heads + kv_heads:
        tl.store(keys + spot + lane, turned_low)
        tl.store(keys + spot + HALF + lane, turned_high)
    else:
        tl.store(values + spot + lane, low)
        tl.store(values + spot + HALF + lane, high)


def turn_and_store(
    mixed: Tensor, keys: Tensor, values: Tensor, turn: tuple[Tensor, Tensor], heads: int, at: int
) -> Tensor:
    """Queries (batch, heads, width, size) of (batch, width, heads + 2·kv_heads, size); keys and values into a layer's cache."""
    batch, width, _, size = mixed.shape
    kv_heads = keys.shape[1]
    query = torch.empty((batch, heads, width, size), dtype=mixed.dtype, device=mixed.device)
    _turn_and_store[(batch * width, heads + 2 * kv_heads)](
        mixed, query, keys, values, turn[0], turn[1], heads, kv_heads, width,
        query.stride(0), keys.stride(0), keys.stride(1), keys.stride(2), at, HALF=size // 2, num_warps=1,
    )  # fmt: skip
    return query


@triton.jit
def _gate(both, out, size, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = lane < size
    gate = tl.load(both + row * 2 * size + lane, mask=here, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + lane, mask=here, other=0.0).to(tl.float32)
    tl.store(out + row * size + lane, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=here)


def gated(both: Tensor) -> Tensor:
    """silu(gate)·up of (rows, 2·size)."""
    rows, size = both.shape[0], both.shape[1] // 2
    out = torch.empty((rows, size), dtype=both.dtype, device=both.device)
    _gate[(rows, triton.cdiv(size, 1024))](both, out, size, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _add_norm(hidden, more, out, size, eps, BLOCK: tl.constexpr):
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    here = lane < size
    spot = row * size + lane
    both = tl.load(hidden + spot, mask=here, other=0.0).to(tl.float32) + tl.load(more + spot, mask=here, other=0.0)
    tl.store(hidden + spot, both.to(hidden.dtype.element_ty), mask=here)
    scale = 1.0 / tl.sqrt(tl.sum(both * both, 0) / size + eps)
    tl.store(out + spot, (both * scale).to(out.dtype.element_ty), mask=here)


def add_norm(hidden: Tensor, more: Tensor, eps: float) -> Tensor:
    """RMS norm of hidden + more, which `hidden` (rows, size) becomes."""
    rows, size = hidden.shape
    out = torch.empty_like(hidden)
    _add_norm[(rows,)](hidden, more, out, size, eps, BLOCK=triton.next_power_of_2(size), num_warps=8)
    return out


@triton.jit
def _wait(nanoseconds):
    """One program that looks at the GPU's clock until the time is up."""
    now = globaltimer()
    end = now + nanoseconds
    while now < end:
        now = globaltimer()


def wait(us: float) -> None:
    """Keep the stream waiting for so many µs, whatever the clock of the multiprocessors; fit for capture in a graph."""
    _wait[(1,)](round(1000 * us), num_warps=1)
