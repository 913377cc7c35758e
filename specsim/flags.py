"""The flags that give an engine a configuration; one table row an engine and method.

The root counts in SGLang's draft tokens and in no other engine's. Sources: SGLang 0.5.23, vLLM 0.33.0,
TensorRT-LLM's main branch, llama.cpp of autumn 2026.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specsim.methods import ENGINES, METHODS
from specsim.quantities import SpecConfig


@dataclass(frozen=True)
class EngineFlags:
    """What to paste for one engine; without flags, `why_not` says what stands against it."""

    engine: str
    flags: str
    why_not: str = ""


_NAMES = {
    "sglang": {
        "eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "nextn": "NEXTN", "standalone": "STANDALONE",
        "draft_model": "STANDALONE", "ngram": "NGRAM", "dflash": "DFLASH", "dspark": "DSPARK",
    },
    "vllm": {
        "eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "nextn": "mtp", "standalone": "draft_model",
        "draft_model": "draft_model", "ngram": "ngram", "suffix": "suffix", "dflash": "dflash", "dspark": "dspark",
    },
    "tensorrt-llm": {
        "eagle": "Eagle", "eagle3": "Eagle3", "mtp": "MTP", "nextn": "MTP", "standalone": "Draft_Target",
        "draft_model": "Draft_Target", "ngram": "NGram", "pard": "PARD", "dflash": "DFlash", "dspark": "DSpark",
    },
    "llama.cpp": {
        "eagle3": "draft-eagle3", "mtp": "draft-mtp", "nextn": "draft-mtp", "standalone": "draft-simple",
        "draft_model": "draft-simple", "dflash": "draft-dflash", "dspark": "draft-dspark",
    },
}  # fmt: skip
"""How each engine calls the methods that it has."""

_SGLANG_BLOCKS = {
    "ngram": ("--speculative-num-draft-tokens", 0),
    "dflash": ("--speculative-dflash-block-size", 0),
    "dspark": ("--speculative-dspark-block-size", 1),
}
"""Flags of the methods without steps, and what they leave out of the width."""


def engine_flags(spec: SpecConfig) -> tuple[EngineFlags, ...]:
    """Flags of one configuration for every engine, or why an engine cannot run it; the draft model is the user's to add."""
    return tuple(_flags(engine, spec) for engine in ENGINES)


def _flags(engine: str, spec: SpecConfig) -> EngineFlags:
    name = _NAMES[engine].get(spec.method)
    if spec.num_draft_tokens == 1:
        return EngineFlags(engine, "", "the best is to run without speculation: leave its flags out")
    if name is None:
        return EngineFlags(engine, "", f"no flags known here for the method {spec.method!r}")
    flags, why_not = _WRITERS[engine](name, spec)
    return EngineFlags(engine, flags, why_not)


def _sglang(name: str, spec: SpecConfig) -> tuple[str, str]:
    start = f"--speculative-algorithm {name}"
    if spec.method in _SGLANG_BLOCKS:
        flag, less = _SGLANG_BLOCKS[spec.method]
        return f"{start} {flag} {spec.num_draft_tokens - less}", ""
    counts = (
        f"--speculative-num-steps {spec.num_steps} --speculative-eagle-topk {spec.topk}"
        f" --speculative-num-draft-tokens {spec.num_draft_tokens}"
    )
    return f"{start} {counts}", ""


def _vllm(name: str, spec: SpecConfig) -> tuple[str, str]:
    if _is_tree(spec):
        return "", "vLLM drafts chains only (topk 1)"
    config = f'{{"method": "{name}", "num_speculative_tokens": {spec.num_draft_tokens - 1}}}'
    return f"--speculative-config '{config}'", ""


def _tensorrt_llm(name: str, spec: SpecConfig) -> tuple[str, str]:
    drafts = spec.num_draft_tokens - 1
    if not _is_tree(spec):
        return f"speculative_config: {{decoding_type: {name}, max_draft_len: {drafts}}}", ""
    if spec.method not in ("eagle", "eagle3"):
        return "", f"TensorRT-LLM's {name} drafts chains only (topk 1)"
    most = spec.topk * spec.num_steps
    if not spec.num_steps <= drafts <= most:
        return "", f"a TensorRT-LLM tree of this depth and topk takes {spec.num_steps} to {most} drafts, not {drafts}"
    tree = f"use_dynamic_tree: true, dynamic_tree_max_topK: {spec.topk}, max_total_draft_tokens: {drafts}"
    return f"speculative_config: {{decoding_type: {name}, max_draft_len: {spec.num_steps}, {tree}}}", ""


def _llama_cpp(name: str, spec: SpecConfig) -> tuple[str, str]:
    if _is_tree(spec):
        return "", "llama.cpp's server drafts chains only (topk 1)"
    return f"--spec-type {name} --spec-draft-n-max {spec.num_draft_tokens - 1}", ""


_WRITERS: dict[str, Callable[[str, SpecConfig], tuple[str, str]]] = {
    "sglang": _sglang,
    "vllm": _vllm,
    "tensorrt-llm": _tensorrt_llm,
    "llama.cpp": _llama_cpp,
}


def _is_tree(spec: SpecConfig) -> bool:
    return bool(METHODS[spec.method].steps_bound_length and spec.topk > 1)
