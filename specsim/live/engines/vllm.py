"""vLLM: /metrics for what it counts, /version, and /server_info where it runs in development mode.

Read in 0.11 to 0.33; /server_info (VLLM_SERVER_DEV_MODE=1) is a text up to 0.10, JSON on request since. Draft counters
exist only where it speculates, and by position from the start: their number is num_speculative_tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specsim.live.answers import Answer, alive
from specsim.live.engines.metrics import are_of, by_position, counters_of, samples_by_name
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server, kept, lacking, spec_of
from specsim.methods import METHODS
from specsim.quantities import Setup
from specsim.runs.formats.metric_names import METRIC_NAMES
from specsim.runs.readings import whole

_VERSION, _INFO, _METRICS = "/version", "/server_info?config_format=json", "/metrics"
_SETTINGS = (
    "device_config.device", "model_config.dtype", "model_config.quantization", "model_config.enforce_eager", "model_config.max_model_len",
    "parallel_config.tensor_parallel_size", "parallel_config.pipeline_parallel_size",
    "parallel_config.data_parallel_size", "parallel_config.enable_expert_parallel",
    "parallel_config.disable_custom_all_reduce",
    "scheduler_config.max_num_seqs", "scheduler_config.max_num_batched_tokens", "scheduler_config.async_scheduling",
    "scheduler_config.enable_chunked_prefill",
    "cache_config.enable_prefix_caching", "cache_config.cache_dtype", "cache_config.block_size",
    "compilation_config.cudagraph_mode", "compilation_config.max_cudagraph_capture_size",
    "compilation_config.cudagraph_capture_sizes",
    "speculative_config.method", "speculative_config.num_speculative_tokens", "speculative_config.model",
    "speculative_config.parallel_drafting", "speculative_config.rejection_sample_method",
    "speculative_config.draft_sample_method", "speculative_config.draft_tensor_parallel_size",
)  # fmt: skip
_ENVIRONMENT = re.compile(r"NCCL_\w+|VLLM_(?:ALLREDUCE|USE_NCCL|DISABLE_PYNCCL|SKIP_P2P)\w*", re.ASCII)
_TEXT = {
    "model_config.model": r"\bmodel='([^']*)'",
    "model_config.dtype": r"\bdtype=([\w.]+)",
    "model_config.quantization": r"\bquantization=(\w+)",
    "model_config.enforce_eager": r"\benforce_eager=(True|False)",
    "device_config.device": r"\bdevice_config=(\w+)",
    "parallel_config.tensor_parallel_size": r"\btensor_parallel_size=(\d{1,6})\b",
    "parallel_config.pipeline_parallel_size": r"\bpipeline_parallel_size=(\d{1,6})\b",
    "parallel_config.data_parallel_size": r"\bdata_parallel_size=(\d{1,6})\b",
    "parallel_config.disable_custom_all_reduce": r"\bdisable_custom_all_reduce=(True|False)",
    "speculative_config.method": r"SpeculativeConfig\(method='([^']*)'",
    "speculative_config.model": r"SpeculativeConfig\([^)]*model='([^']*)'",
    "speculative_config.num_speculative_tokens": r"SpeculativeConfig\([^)]*num_spec_tokens=(\d{1,6})\b",
}
_SPELT = {"True": True, "False": False, "None": None}


@dataclass(frozen=True)
class Vllm:
    """Asks a vLLM server."""

    server: Server
    engine: str = "vllm"
    extra_body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({"ignore_eos": True}))

    async def facts(self) -> ServerFacts:
        """What it tells of itself. Raises ServerError where it is gone."""
        answers = await self.server.ask(_VERSION, _INFO, _METRICS)
        alive(self.server.root, answers.values())
        config = _config(answers[_INFO])
        stated = _speculation(config, answers[_METRICS])
        speculates = stated.get("method") != "none" and bool(stated)
        spec, unclear = spec_of(stated) if speculates else (None, ())
        hints = {
            _INFO: "method, drafter, parallelism, graphs and all-reduce settings; start it with VLLM_SERVER_DEV_MODE=1",
            _METRICS: "counters, and whether it speculates",
            _VERSION: "its version",
        }
        return ServerFacts(
            url=self.server.url,
            setup=_setup(config, answers[_VERSION], self.server),
            served_model=self.server.served_model,
            spec=spec,
            spec_known=spec is not None or stated.get("method") == "none",
            method=stated.get("method") if speculates else None,
            drafter=_text(_at(config, "speculative_config.model")),
            settings=_settings(config, answers[_INFO]),
            missing=(*unclear, *_dynamic(config), *self.server.choice, *lacking(answers, hints)),
        )

    async def counters(self) -> Counters:
        """One reading. Raises ServerError where it is gone."""
        answers = await self.server.ask(_METRICS)
        alive(self.server.root, answers.values())
        return counters_of(answers[_METRICS], self.engine)


def _config(answer: Answer) -> dict[str, Any]:
    """The configuration by its JSON, or by what the old text states."""
    config = answer.json_object.get("vllm_config")
    if isinstance(config, dict):
        return config
    found: dict[str, Any] = {}
    if not isinstance(config, str):
        return found
    for path, pattern in _TEXT.items():
        if match := re.search(pattern, config, re.ASCII):
            section, name = path.split(".")
            found.setdefault(section, {})[name] = _value(match[1])
    if "speculative_config=None" in config:
        found["speculative_config"] = None
    return found


def _value(text: str) -> object:
    return int(text) if text.isdecimal() else _SPELT.get(text, text)


def _speculation(config: Mapping[str, Any], metrics: Answer) -> dict[str, Any]:
    """Run fields: by the configuration, else by the draft counters that are there; empty where neither is."""
    if "speculative_config" in config:
        stated = config["speculative_config"]
        if not isinstance(stated, dict):
            return {"method": "none"}
        drafts, method = whole(stated.get("num_speculative_tokens")), _method(stated)
        return ({"method": method} if method else {}) | ({"num_draft_tokens": drafts + 1} if drafts else {})
    names = METRIC_NAMES["vllm"]
    samples = samples_by_name(metrics.text, "vllm")
    if not are_of(samples, names):
        return {"method": "none"} if samples else {}
    positions = by_position(samples, names.accepted_at, names.position)
    return {"num_draft_tokens": len(positions) + 1} if positions else {}


def _method(stated: Mapping[str, Any]) -> str | None:
    name = str(stated.get("method") or "")
    if stated.get("parallel_drafting") is True:
        name = {"eagle": "p-eagle", "eagle3": "p-eagle", "draft_model": "pard"}.get(name, name)
    name = "mtp" if name.endswith("_mtp") else name.removesuffix("_gpu")
    return name if name in METHODS else None


def _dynamic(config: Mapping[str, Any]) -> tuple[str, ...]:
    varies = bool(_at(config, "speculative_config.num_speculative_tokens_per_batch_size"))
    return (
        ("how many tokens it drafts now: that goes by the batch (num_speculative_tokens_per_batch_size)",)
        if varies
        else ()
    )


def _setup(config: Mapping[str, Any], version: Answer, server: Server) -> Setup:
    ranks = [
        whole(_at(config, f"parallel_config.{kind}_parallel_size")) for kind in ("tensor", "pipeline", "data")
    ]  # fmt: skip
    root = server.models[0].get("root") if server.models else None
    return Setup(
        model=_text(_at(config, "model_config.model")) or _text(root) or server.served_model or None,
        gpus=ranks[0] * ranks[1] if ranks[0] and ranks[1] and ranks[2] in (None, 1) and not _on_cpu(config) else None,
        engine="vllm",
        engine_version=_text(version.json_object.get("version")),
        tensor_parallel=ranks[0] or None,
        cuda_graph=_graphs(config),
    )


def _graphs(config: Mapping[str, Any]) -> bool | None:
    """Whether it captures graphs: not where it is eager, nor where their mode is NONE (0); a CPU has none to miss."""
    if _on_cpu(config):
        return None
    eager, mode = _at(config, "model_config.enforce_eager"), _at(config, "compilation_config.cudagraph_mode")
    if eager is True or mode in (0, "NONE", "0") or (isinstance(mode, str) and mode.endswith("NONE")):
        return False
    return True if eager is False or mode is not None else None


def _on_cpu(config: Mapping[str, Any]) -> bool:
    return bool(_at(config, "device_config.device") == "cpu")


def _settings(config: Mapping[str, Any], answer: Answer) -> Mapping[str, object]:
    found = dict(kept(config, _SETTINGS))
    environment = answer.json_object.get("vllm_env")
    if isinstance(environment, dict):
        found |= {str(n): str(v) for n, v in environment.items() if _ENVIRONMENT.fullmatch(str(n))}
    return MappingProxyType(found)


def _at(config: Mapping[str, Any], path: str) -> Any:
    section, name = path.split(".")
    inside = config.get(section)
    return inside.get(name) if isinstance(inside, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
