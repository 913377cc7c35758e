"""A bigram language model as a Llama: the next token depends on the last one alone, so acceptance is plain counting.

The residual stream is the last token as a one-hot vector, which attention and feed-forward leave as it is (their output
weights are zero, their time is real), and the head names its successor. Printable characters follow each other in a ring,
which falls into blocks; the drafter is the same, but guesses wrongly what follows the last of a block.
"""

from __future__ import annotations

import numpy as np

TOKENS = 260
"""<unk>, <s>, </s>, the 256 bytes, and a space of its own, which llama.cpp's tokenizer asks for."""
HIDDEN, LAYERS, HEADS, INNER = 512, 2, 8, 64
FIRST, RING = 3 + 32, 88
"""The token of the first printable character, a space, and how many characters follow each other."""
BLOCKS = (9, 7, 6)
"""Lengths of the blocks, four times around: with three drafts a cycle accepts 3, 3, 0; 3, 2; 3, 1 of them."""
_MISSED = np.cumsum(BLOCKS) - 1


def successor(token: int) -> int:
    """What follows a token: the next in the ring; its first after anything that is not in it."""
    at = token - FIRST
    return FIRST + ((at + 1) % RING if 0 <= at < RING else 0)


def is_missed(token: int) -> bool:
    """Whether the drafter guesses wrongly what follows."""
    at = token - FIRST
    return 0 <= at < RING and at % sum(BLOCKS) in _MISSED


def accept_length(drafts: int) -> float:
    """Σ m / Σ ⌈m/(K + 1)⌉ over blocks of m tokens: cycles of K drafts begin anew after each block."""
    return sum(BLOCKS) / sum(-(-length // (drafts + 1)) for length in BLOCKS)


def survival(drafts: int) -> list[float]:
    """Share of cycles that accept at least 1, 2 … K drafts: a block's cycles are full, but for its last."""
    cycles = [min(drafts + 1, length - at) for length in BLOCKS for at in range(0, length, drafts + 1)]
    return [sum(tokens > i for tokens in cycles) / len(cycles) for i in range(1, drafts + 1)]


def weights(drafter: bool) -> dict[str, np.ndarray]:
    """Weights by the names of Hugging Face's Llama."""
    head = np.zeros((TOKENS, HIDDEN), np.float32)
    for token in range(TOKENS):
        guess = successor(token)
        head[successor(guess) if drafter and is_missed(token) else guess, token] = 1.0
    found = {
        "model.embed_tokens.weight": np.eye(TOKENS, HIDDEN, dtype=np.float32),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        found |= {f"model.layers.{layer}.{name}.weight": values for name, values in _block().items()}
    return found


def _block() -> dict[str, np.ndarray]:
    shapes = {
        **{f"self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"},
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip
    norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), np.ones(HIDDEN, np.float32))
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} | norms
