"""The shape of a decoder model, from a Hugging Face config.json; its weights are random, so no download is needed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specsim.errors import ConfigurationError, Fault, InputError

_ALIASES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "intermediate_size": ("intermediate_size",),
    "vocabulary": ("vocab_size",),
    "experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_size": ("moe_intermediate_size",),
}
DRAFT_VOCABULARY = 32000
"""Tokens that EAGLE-3's drafters choose from (their published heads for 8B models)."""

_NEEDED = ("layers", "hidden_size", "heads", "intermediate_size", "vocabulary")


@dataclass(frozen=True)
class ModelShape:
    """Counts and sizes of a decoder-only model; `experts` 0 is dense, `expert_size` the width of one expert."""

    name: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0

    @property
    def parameters(self) -> int:
        """Weights of the stack and the head; the embedding is a table that a forward does not read whole."""
        attention = self.hidden_size * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        block = 3 * self.hidden_size * (self.experts * self.expert_size if self.experts else self.intermediate_size)
        router = self.hidden_size * self.experts
        return self.layers * (attention + block + router) + self.vocabulary * self.hidden_size

    @property
    def all_reduces(self) -> int:
        """Of a forward that is split over GPUs: after each attention and each feed-forward block."""
        return 2 * self.layers

    def drafter(self) -> ModelShape:
        """A drafter of the EAGLE-3 kind: one dense layer of the target's width, with a head of part of the vocabulary."""
        return replace(self, name=f"{self.name} drafter", layers=1, experts=0, experts_per_token=0, expert_size=0,
                       vocabulary=min(DRAFT_VOCABULARY, self.vocabulary))  # fmt: skip

    def split(self, ranks: int) -> ModelShape:
        """One rank's part of the layers in tensor parallel; raises ConfigurationError where it does not divide."""
        uneven = [name for name in ("heads", "kv_heads", "intermediate_size") if getattr(self, name) % ranks]
        if uneven or self.experts:
            what = "a mixture of experts" if self.experts else ", ".join(uneven)
            raise ConfigurationError(f"{self.name} is not split over {ranks} ranks: {what} does not divide")
        parts = {name: getattr(self, name) // ranks for name in ("heads", "kv_heads", "intermediate_size")}
        return replace(self, **parts)

    def card(self) -> dict[str, object]:
        """What a runs file says of the target."""
        shown: dict[str, object] = {
            "name": self.name,
            "layers": self.layers,
            "hidden_size": self.hidden_size,
            "parameters": self.parameters,
        }
        if self.experts:
            shown |= {"experts": self.experts, "experts_per_token": self.experts_per_token}
        return shown


def read_shape(path: Path) -> ModelShape:
    """The shape in a config.json, or in the folder that holds one; raises InputError naming file and field."""
    file = path / "config.json" if path.is_dir() else path
    try:
        written = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError([Fault(str(file), "", f"cannot be read ({error.strerror})", "")]) from None
    except ValueError as error:
        raise InputError([Fault(str(file), "", f"is not JSON ({error})", "give a Hugging Face config.json")]) from None
    if not isinstance(written, dict):
        raise InputError([Fault(str(file), "", "is no JSON object", "give a Hugging Face config.json")])
    config = written.get("text_config", written)  # models that see keep the decoder's shape one level down
    found = {name: _whole(config, names) for name, names in _ALIASES.items()}
    missing = [_ALIASES[name][0] for name in _NEEDED if not found[name]]
    if missing:
        faults = [Fault(str(file), name, "is missing or no whole number above 0", "") for name in missing]
        raise InputError(faults)
    return _completed(str(config.get("_name_or_path") or file.resolve().parent.name), found)


def _whole(config: dict[str, Any], names: tuple[str, ...]) -> int:
    """The first of some fields that is there; 0 where none is a whole number above 0."""
    value = next((config[name] for name in names if config.get(name) is not None), 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _completed(name: str, found: dict[str, int]) -> ModelShape:
    """Fields that configurations leave out when they follow from others."""
    found["kv_heads"] = found["kv_heads"] or found["heads"]
    found["head_size"] = found["head_size"] or found["hidden_size"] // found["heads"]
    if found["experts"]:
        found["expert_size"] = found["expert_size"] or found["intermediate_size"]
        found["experts_per_token"] = found["experts_per_token"] or 1
    return ModelShape(name, **found)
