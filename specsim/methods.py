"""What one cycle runs, by drafting method and engine: a table, not branches through the code.

The counts come from the engines' own sources (SGLang 0.5.23 eagle_worker_v2, vLLM 0.33.0 llm_base_proposer,
TensorRT-LLM eagle3 one-model worker, llama.cpp speculative). Shapes are per request:
`width_forwards` draft forwards read num_draft_tokens tokens, `num_steps + loop_offset` read topk tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from specsim.errors import ConfigurationError


@dataclass(frozen=True)
class CycleShape:
    """The draft forwards of one cycle (eq. 3); `loop_offset` None means that no forward depends on num_steps.

    `extend_forwards` read num_draft_tokens tokens after the verify (eq. 4): the drafter's own forwards too, which
    matters where its all-reduces are counted (eq. 17).
    """

    width_forwards: int
    loop_offset: int | None
    extend_forwards: int = 0


@dataclass(frozen=True)
class Method:
    """A drafting method: which family it runs as, and what bounds its accept length.

    With `steps_bound_length` the accept length is at most num_steps + 1 and the tree limit holds;
    without (n-gram and block drafters report dummy steps) it is at most num_draft_tokens.
    """

    family: str
    steps_bound_length: bool


METHODS = {
    "eagle": Method("autoregressive", True),
    "eagle3": Method("autoregressive", True),
    "mtp": Method("autoregressive", True),
    "nextn": Method("autoregressive", True),
    "standalone": Method("autoregressive", True),
    "draft_model": Method("autoregressive", True),
    "dflash": Method("block", False),
    "dspark": Method("block", False),
    "p-eagle": Method("block", False),
    "pard": Method("block", False),
    "ngram": Method("lookup", False),
    "suffix": Method("lookup", False),
}

CYCLE_SHAPES = {
    ("autoregressive", "sglang"): CycleShape(width_forwards=0, loop_offset=-1, extend_forwards=1),
    ("autoregressive", "vllm"): CycleShape(width_forwards=1, loop_offset=-1),
    ("autoregressive", "tensorrt-llm"): CycleShape(width_forwards=1, loop_offset=-1),
    ("autoregressive", "llama.cpp"): CycleShape(width_forwards=0, loop_offset=0),
    ("autoregressive", "calibration"): CycleShape(width_forwards=0, loop_offset=-1, extend_forwards=1),
    ("block", ""): CycleShape(width_forwards=1, loop_offset=None),
    ("lookup", ""): CycleShape(width_forwards=0, loop_offset=None),
}
ENGINES = ("sglang", "vllm", "tensorrt-llm", "llama.cpp")
CHAIN_ENGINES = ("vllm", "llama.cpp")
"""Engines that draft chains only (vLLM 0.33, llama.cpp's server)."""
COUNTED = frozenset(engine for _, engine in CYCLE_SHAPES if engine)
"""Engines whose draft forwards are known; the calibration harness runs SGLang's."""
PLAIN_METHODS = ("", "none")


def method_named(name: str) -> Method:
    """The table row of a method; raises ConfigurationError naming the known ones."""
    try:
        return METHODS[name]
    except KeyError:
        raise ConfigurationError(f"unknown drafting method {name!r}; known: {', '.join(METHODS)}") from None


def cycle_shape(method: str, engine: str | None) -> CycleShape:
    """The draft forwards of a method on an engine (eq. 3).

    An engine that is not stated or not in the table counts one forward a step, as llama.cpp runs them: with a
    fixed part in the draft time the choice only moves cost between the fixed part and the steps.
    """
    family = method_named(method).family
    known = (engine or "").lower()
    return (
        CYCLE_SHAPES.get((family, known))
        or CYCLE_SHAPES.get((family, ""))
        or CYCLE_SHAPES["autoregressive", "llama.cpp"]
    )


def version_numbers(written: str | None) -> tuple[int, ...]:
    """An engine's version 0.5.12 as (0, 5, 12); unstated is newer than any."""
    numbers = re.findall(r"\d+", written or "")
    return tuple(int(number) for number in numbers[:3]) if numbers else (2**31,)
