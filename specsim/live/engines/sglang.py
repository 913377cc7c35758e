"""SGLang: GET /server_info for its resolved arguments, /v1/loads and /metrics for what it counts.

Read in 0.4.6 to 0.5.23. /server_info is /get_server_info up to 0.5.5. Since a release between 0.5.15 and 0.5.19,
/v1/loads holds `decode_moments` for each data-parallel rank: sums over decode steps that follow each other closely, of
1, batch, time, batch², batch·time and tokens; tokens over batch is the accept length, counted as it runs and without
any flag. Before, /metrics (--enable-metrics) counts verify passes of requests that have ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specsim.live.answers import Answer, alive
from specsim.live.engines.metrics import life_of, samples_by_name, total
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server, kept, lacking, spec_of
from specsim.quantities import Setup
from specsim.runs.formats.metric_names import METRIC_NAMES
from specsim.runs.formats.prometheus import Sample
from specsim.runs.formats.sglang_settings import settings_of
from specsim.runs.readings import amount, whole

_INFO = ("/server_info", "/get_server_info")
_LOADS, _METRICS = "/v1/loads?include=core", "/metrics"
_COUNT_OF_MOMENTS = 6
_SETTINGS = (
    "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
    "speculative_draft_model_path", "speculative_attention_mode", "speculative_adaptive", "speculative_token_map",
    "speculative_use_rejection_sampling", "speculative_accept_threshold_single", "speculative_accept_threshold_acc",
    "tp_size", "dp_size", "pp_size", "ep_size", "enable_dp_attention",
    "dtype", "quantization", "kv_cache_dtype", "page_size",
    "attention_backend", "decode_attention_backend", "prefill_attention_backend", "sampling_backend",
    "moe_runner_backend", "disable_overlap_schedule", "enable_mixed_chunk", "chunked_prefill_size",
    "max_running_requests", "schedule_policy", "disable_radix_cache", "enable_torch_compile", "enable_metrics",
    "disable_cuda_graph", "disable_decode_cuda_graph", "disable_cuda_graph_padding", "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode", "cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_config.decode.backend",
    "cuda_graph_config.decode.max_bs", "cuda_graph_config.decode.bs",
    "disable_custom_all_reduce", "enable_nccl_nvls", "enable_symm_mem", "enable_torch_symm_mem", "enable_mscclpp",
)  # fmt: skip
_ASKED = re.compile(r"--(speculative-(?:num-steps|eagle-topk|num-draft-tokens))[=\s'\",]+(\d{1,9})\b", re.ASCII)


@dataclass(frozen=True)
class Sglang:
    """Asks an SGLang server."""

    server: Server
    engine: str = "sglang"
    extra_body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({"ignore_eos": True}))

    async def facts(self) -> ServerFacts:
        """What it resolved its arguments to. Raises ServerError where it is gone."""
        answers = await self.server.ask(*_INFO, _LOADS)
        alive(self.server.root, answers.values())
        info, gateway = _info(answers)
        stated = settings_of(info)
        spec, unclear = spec_of(stated) if stated.get("method", "none") != "none" else (None, ())
        missing = (
            *([] if info else [f"its arguments ({'; '.join(str(answers[path]) for path in _INFO)})"]),
            *gateway, *unclear, *_unknown_method(info, stated), *_adaptive(info), *self.server.choice,
            *lacking(answers, {_LOADS: "the GPU's name, and counters that move as it runs"}),
        )  # fmt: skip
        method = stated.get("method") if stated.get("method") != "none" else None
        return ServerFacts(
            url=self.server.url,
            setup=_setup(info, stated, answers[_LOADS].json_object),
            served_model=self.server.served_model or str(info.get("served_model_name") or stated.get("model", "")),
            spec=spec,
            spec_known=spec is not None or stated.get("method") == "none",
            method=method,
            drafter=stated.get("drafter"),
            settings=_settings(info),
            missing=missing,
        )

    async def counters(self) -> Counters:
        """One reading. Raises ServerError where it is gone."""
        answers = await self.server.ask(_LOADS, _METRICS)
        alive(self.server.root, answers.values())
        metrics = answers[_METRICS]
        samples = samples_by_name(metrics.text, self.engine)
        now = _counted_now(samples)
        if moments := _moments(answers[_LOADS]):
            return _by_moments(answers[_LOADS], moments, now)
        if (ended := _of_ended(samples, metrics, now)) is not None:
            return ended
        info = await self.server.ask(*_INFO)
        alive(self.server.root, info.values())
        length = _lifetime(_info(info)[0])
        return Counters(time_s=max(answer.time_s for answer in info.values()), lifetime_accept_length=length, **now)


def _info(answers: Mapping[str, Answer]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arguments, of the decode server where a gateway answers, and what there is to say of that."""
    info = next((found for path in _INFO if (found := answers[path].json_object)), {})
    for name in ("decode", "decode_servers"):
        servers = info.get(name)
        if isinstance(servers, list) and servers and isinstance(servers[0], dict):
            told = f"a gateway answers; its arguments are those of the first of {len(servers)} decode servers"
            states = info.get("internal_states") or servers[0].get("internal_states")
            return {**servers[0], "internal_states": states}, (told,)
    return info, ()


def _setup(info: Mapping[str, Any], stated: Mapping[str, Any], loads: Mapping[str, Any]) -> Setup:
    ranks = [whole(info.get(name, 1)) for name in ("tp_size", "pp_size", "dp_size")]
    gpus = ranks[0] * ranks[1] if info and ranks[0] and ranks[1] and ranks[2] == 1 else None
    name = loads.get("accelerator")
    return Setup(
        model=stated.get("model"),
        hardware=name if isinstance(name, str) and name else None,
        gpus=gpus,
        engine="sglang",
        engine_version=stated.get("engine_version"),
        tensor_parallel=stated.get("tensor_parallel"),
        cuda_graph=_graphs(info),
    )


def _graphs(info: Mapping[str, Any]) -> bool | None:
    """Whether decode runs in graphs, by the argument's old name or its new ones."""
    config = info.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, dict) else None
    if isinstance(decode, dict) and isinstance(decode.get("backend"), str):
        return bool(decode["backend"] != "disabled")
    off = [info[name] for name in ("disable_cuda_graph", "disable_decode_cuda_graph") if name in info]
    return not any(value is True for value in off) if off else None


def _settings(info: Mapping[str, Any]) -> Mapping[str, object]:
    """Its arguments, those of speculation as they were asked for, and NCCL's environment where it is exposed."""
    found: dict[str, object] = dict(kept(info, _SETTINGS))
    command = info.get("launch_command")
    text = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
    found |= {f"asked --{name}": int(value) for name, value in _ASKED.findall(text)}
    states = info.get("internal_states")
    environment = (
        states[0].get("env_vars") if isinstance(states, list) and states and isinstance(states[0], dict) else 0
    )
    if isinstance(environment, dict):
        found |= {name: str(value) for name, value in environment.items() if str(name).startswith("NCCL_")}
    return MappingProxyType(found)


def _unknown_method(info: Mapping[str, Any], stated: Mapping[str, Any]) -> tuple[str, ...]:
    algorithm = info.get("speculative_algorithm")
    return (
        (f"what a cycle of {algorithm!r} runs: no such method is known",)
        if algorithm and not stated.get("method")
        else ()
    )


def _adaptive(info: Mapping[str, Any]) -> tuple[str, ...]:
    adapts = info.get("speculative_adaptive") is True
    return (
        ("how many tokens it drafts now: it adapts them to what is accepted (speculative_adaptive)",) if adapts else ()
    )


def _moments(answer: Answer) -> list[tuple[float, float]]:
    """Requests and tokens of decode steps by rank: 0 before the first; none where the server does not count them."""
    loads = answer.json_object.get("loads")
    found = []
    for load in loads if isinstance(loads, list) else []:
        if not isinstance(load, dict) or "decode_moments" not in load:
            return []
        sums = load["decode_moments"] or [0.0] * _COUNT_OF_MOMENTS
        numbers = [_count(value) for value in sums] if isinstance(sums, list) else []
        if len(numbers) < _COUNT_OF_MOMENTS or (requests := numbers[1]) is None or (tokens := numbers[5]) is None:
            return []
        if tokens < requests:  # every request of a step gets a token
            return []
        found.append((requests, tokens))
    return found


def _by_moments(answer: Answer, moments: Sequence[tuple[float, float]], now: Mapping[str, Any]) -> Counters:
    cycles, tokens = (sum(column) for column in zip(*moments, strict=True))
    loads = answer.json_object["loads"]
    return Counters(
        time_s=answer.time_s,
        cycles=cycles,
        accepted=tokens - cycles,
        output_tokens=now["output_tokens"],
        prompt_tokens=_sum(loads, "total_prefill_uncached_tokens"),
        running=_sum(loads, "num_running_reqs"),
        how="decode_moments of /v1/loads: tokens of decode steps over requests in them, steps beside a prefill left out",
    )


def _of_ended(samples: Mapping[str, Sequence[Sample]], answer: Answer, now: Mapping[str, Any]) -> Counters | None:
    """Verify passes of requests that have ended, each of which got its first token from the prefill."""
    names = METRIC_NAMES["sglang"]
    cycles, tokens, requests = (total(samples, n) for n in (names.cycles, names.output_tokens, names.ended))
    if cycles is None or tokens is None or requests is None or tokens < requests + cycles:
        return None
    return Counters(
        time_s=answer.time_s,
        cycles=cycles,
        accepted=tokens - requests - cycles,
        how="counters on /metrics: tokens of requests that have ended, less their first ones, over their verify passes",
        at_request_end=True,
        life=life_of(answer.text),
        **now,
    )


def _counted_now(samples: Mapping[str, Sequence[Sample]]) -> dict[str, Any]:
    """What /metrics counts at every step: tokens by what computed them, and requests that run."""
    names = METRIC_NAMES["sglang"]
    return {
        "output_tokens": total(samples, names.tokens_now, mode="decode"),
        "prompt_tokens": total(samples, names.tokens_now, mode="prefill_compute"),
        "running": total(samples, names.running),
    }


def _lifetime(info: Mapping[str, Any]) -> float | None:
    """The mean over data-parallel ranks that state one."""
    states = info.get("internal_states")
    lengths = (
        [amount(s.get("avg_spec_accept_length")) for s in states or [] if isinstance(s, dict)]
        if isinstance(states, list)
        else []
    )
    stated = [length for length in lengths if length]
    return sum(stated) / len(stated) if stated else None


def _sum(loads: Sequence[Mapping[str, Any]], name: str) -> float | None:
    counts = [_count(load.get(name)) for load in loads]
    return sum(count for count in counts if count is not None) if None not in counts else None


def _count(value: object) -> float | None:
    """A count of any size, which a server of months has."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300 else None
    )
