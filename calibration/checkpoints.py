"""Model folders that a server can start from without weights: the configuration, a drafter's, and a tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.shapes import ModelShape, read_shape
from specsim.errors import Fault, InputError

_WORD = "t"
_SPECIAL = ("<unk>", "<s>", "</s>")
"""Tokens that are not asked: unknown, begin and end of a text. Readers match them inside words, so no word begins like one."""


@dataclass(frozen=True)
class Checkpoint:
    """A target's folder and its drafter's, and the shape that both follow."""

    shape: ModelShape
    target: Path
    drafter: Path


def write_checkpoint(config: Path, folder: Path) -> Checkpoint:
    """Write both folders; raises InputError where the config.json names no architecture."""
    shape = read_shape(config)
    file = config / "config.json" if config.is_dir() else config
    written = json.loads(file.read_bytes())
    if not written.get("architectures"):
        fix = 'add "architectures" and "model_type", as a published config.json has them'
        raise InputError([Fault(str(file), "architectures", "is missing, and a server needs it", fix)])
    name = shape.name.rstrip("/").split("/")[-1]
    found = Checkpoint(shape, folder / name, folder / f"{name}-drafter")
    _write(found.target, {"torch_dtype": "bfloat16", **written, **_TOKENS}, shape.vocabulary)
    _write(found.drafter, drafter_config(shape, written), None)
    return found


def drafter_config(shape: ModelShape, target: dict[str, Any]) -> dict[str, Any]:
    """The configuration of an EAGLE-3 head of the target's width: one layer, and a head of part of the vocabulary."""
    draft = shape.drafter()
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": draft.vocabulary,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": target.get("torch_dtype", "bfloat16"),
        **{name: target[name] for name in _SHARED if name in target},
        **_TOKENS,
    }


_SHARED = ("max_position_embeddings", "rms_norm_eps", "rope_theta")
_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def _write(folder: Path, config: dict[str, Any], vocabulary: int | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _json(folder / "config.json", config)
    if vocabulary is not None:
        _json(folder / "tokenizer.json", _tokenizer(vocabulary))
        unknown, begin, end = _SPECIAL
        _json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": unknown,
                                                 "bos_token": begin, "eos_token": end})  # fmt: skip
        _json(folder / "generation_config.json", _TOKENS)


def _json(path: Path, body: object) -> None:
    path.write_text(json.dumps(body) + "\n", encoding="utf-8")


def _tokenizer(vocabulary: int) -> dict[str, Any]:
    """A fast tokenizer of words t3, t4, …: a text of n of them is n tokens."""
    words = (f"{_WORD}{number}" for number in range(len(_SPECIAL), vocabulary))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {token: number for number, token in enumerate((*_SPECIAL, *words))},
            "unk_token": _SPECIAL[0],
        },
    }


def texts(vocabulary: int, count: int, length: int, generator: np.random.Generator) -> list[str]:
    """Texts of `length` random tokens each, no two alike."""
    drawn = generator.integers(len(_SPECIAL), vocabulary, size=(count, length))
    return [" ".join(f"{_WORD}{token}" for token in row) for row in drawn]
