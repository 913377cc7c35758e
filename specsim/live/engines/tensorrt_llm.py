"""TensorRT-LLM: GET /prometheus/metrics for configuration and counters, else /metrics, its iterations since last asked.

Read on the main branch of 2026 (`tensorrt_llm/metrics/collector.py`); Prometheus text needs return_perf_metrics, and
names its configuration since about March 2026; iterations need enable_iter_perf_stats. Reading /metrics takes its
iterations away from whoever else reads it, so that it is asked only where Prometheus text does not count by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from specsim.live.answers import Answer, alive
from specsim.live.engines.metrics import by_position, labels_of, life_of, samples_by_name, total
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server, kept, lacking, spec_of
from specsim.quantities import Setup
from specsim.runs.formats.metric_names import METRIC_NAMES
from specsim.runs.formats.prometheus import Sample
from specsim.runs.formats.tensorrt_llm_metrics import drafts_of, is_iteration_stats
from specsim.runs.readings import whole

_VERSION, _PROMETHEUS, _ITERATIONS = "/version", "/prometheus/metrics", "/metrics"
_METHODS = {
    "eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "mtpeagle": "mtp", "ngram": "ngram", "drafttarget": "draft_model",
    "pard": "pard", "dflash": "dflash", "dspark": "dspark", "sa": "suffix",
}  # fmt: skip
_INFOS = ("model_config_info", "parallel_config_info", "speculative_config_info", "kv_cache_config_info")
_SETTINGS = (
    "dtype", "quantization", "max_model_len", "gpu_type", "tensor_parallel_size", "pipeline_parallel_size", "gpu_count",
    "expert_parallel_size", "spec_enabled", "spec_method", "spec_num_tokens", "spec_draft_model", "enable_block_reuse",
)  # fmt: skip


@dataclass
class _Iterations:
    """What the iterations that were read so far did."""

    requests: int = 0
    proposed: int = 0
    accepted: int = 0
    prompt_tokens: int = 0
    running: float | None = None
    seen: bool = False

    def add(self, answer: Answer) -> None:
        """Those of one more answer; rows of other attention ranks repeat rank 0."""
        body = answer.body
        for row in body if isinstance(body, list) else []:
            if not isinstance(row, dict) or not is_iteration_stats(row) or whole(row.get("attentionDpRank", 0)) != 0:
                continue
            self.seen = True
            batch = row["inflightBatchingStats"] if isinstance(row["inflightBatchingStats"], dict) else {}
            self.prompt_tokens += whole(batch.get("numCtxTokens")) or 0
            self.running = whole(batch.get("numGenRequests"))
            requests, proposed, accepted = drafts_of(row) or (0, 0, 0)
            self.requests += requests
            self.proposed += proposed
            self.accepted += accepted


@dataclass(frozen=True)
class TensorrtLlm:
    """Asks a TensorRT-LLM server, and adds up the iterations that it hands out once."""

    server: Server
    engine: str = "tensorrt-llm"
    extra_body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({"ignore_eos": True}))
    _iterations: _Iterations = field(default_factory=_Iterations, repr=False)

    async def facts(self) -> ServerFacts:
        """What it tells of itself. Raises ServerError where it is gone."""
        answers = await self.server.ask(_VERSION, _PROMETHEUS)
        alive(self.server.root, answers.values())
        samples = samples_by_name(answers[_PROMETHEUS].text, self.engine)
        labels: dict[str, str] = {}
        for name in _INFOS:
            labels |= labels_of(samples, name)
        stated = _speculation(labels, "model_config_info" in samples)
        speculates = stated.get("method") != "none" and bool(stated)
        spec, unclear = spec_of(stated) if speculates else (None, ())
        configured = () if labels else ("its configuration and whether it speculates; needs return_perf_metrics: true",)
        hints = {_PROMETHEUS: "configuration, and counters by position", _VERSION: "its version"}
        return ServerFacts(
            url=self.server.url,
            setup=_setup(labels, answers[_VERSION], self.server),
            served_model=self.server.served_model,
            spec=spec,
            spec_known=spec is not None or stated.get("method") == "none",
            method=stated.get("method") if speculates else None,
            drafter=labels.get("spec_draft_model") or None,
            settings=_settings(labels, samples),
            missing=(*configured, *unclear, *self.server.choice, *lacking(answers, hints)),
        )

    async def counters(self) -> Counters:
        """One reading. Raises ServerError where it is gone."""
        answers = await self.server.ask(_PROMETHEUS)
        text = answers[_PROMETHEUS]
        samples = samples_by_name(text.text, self.engine)
        if (ended := _by_position(text, samples)) is not None:
            return ended
        answers |= await self.server.ask(_ITERATIONS)
        alive(self.server.root, answers.values())
        self._iterations.add(answers[_ITERATIONS])
        if self._iterations.seen:
            return _of_iterations(answers[_ITERATIONS], self._iterations)
        return _of_totals(text, samples)


def _speculation(labels: Mapping[str, str], configured: bool) -> dict[str, Any]:
    """Run fields of the configuration's labels; those of speculation are there only where it speculates."""
    if "spec_method" not in labels and "spec_enabled" not in labels:
        return {"method": "none"} if configured else {}
    if labels.get("spec_enabled", "true").lower() == "false":
        return {"method": "none"}
    method = _METHODS.get(labels.get("spec_method", "").lower().replace("_", ""))
    drafts = whole(labels.get("spec_num_tokens"))
    return ({"method": method} if method else {}) | ({"num_draft_tokens": drafts + 1} if drafts else {})


def _setup(labels: Mapping[str, str], version: Answer, server: Server) -> Setup:
    said = version.json_object.get("version")
    return Setup(
        model=labels.get("model") or server.served_model or None,
        hardware=labels.get("gpu_type") or None,
        gpus=whole(labels.get("gpu_count")) or None,
        engine="tensorrt-llm",
        engine_version=said if isinstance(said, str) and said else None,
        tensor_parallel=whole(labels.get("tensor_parallel_size")) or None,
    )


def _settings(labels: Mapping[str, str], samples: Mapping[str, Sequence[Sample]]) -> Mapping[str, object]:
    largest = whole(total(samples, "max_batch_size_static"))
    return MappingProxyType(dict(kept(labels, _SETTINGS)) | ({"max_batch_size_static": largest} if largest else {}))


def _by_position(answer: Answer, samples: Mapping[str, Sequence[Sample]]) -> Counters | None:
    """Drafts of requests that have ended: those at the first position are as many as the cycles that drafted."""
    names = METRIC_NAMES["tensorrt-llm"]
    drafted = by_position(samples, names.drafted_at, names.position)
    if not drafted:
        return None
    accepted = by_position(samples, names.accepted_at, names.position)
    return Counters(
        time_s=answer.time_s,
        cycles=drafted[0],
        accepted=sum(accepted),
        drafted=sum(drafted),
        accepted_at=accepted,
        output_tokens=total(samples, names.output_tokens),
        running=total(samples, names.running),
        how="counters on /prometheus/metrics by position, of requests that have ended; cycles are drafts at the first",
        at_request_end=True,
        life=life_of(answer.text),
    )


def _of_iterations(answer: Answer, read: _Iterations) -> Counters:
    return Counters(
        time_s=answer.time_s,
        cycles=read.requests,
        accepted=read.accepted,
        drafted=read.proposed,
        prompt_tokens=read.prompt_tokens,
        running=read.running,
        how="iterations of /metrics added up: accepted over requests with drafts; what others read of it is not among them",
    )


def _of_totals(answer: Answer, samples: Mapping[str, Sequence[Sample]]) -> Counters:
    """Totals by iteration: cycles follow only where the configuration says how long every draft is."""
    names = METRIC_NAMES["tensorrt-llm"]
    drafted, accepted = total(samples, names.drafted), total(samples, names.accepted)
    each = whole(labels_of(samples, "speculative_config_info").get("spec_num_tokens"))
    known = bool(each) and drafted is not None and accepted is not None
    return Counters(
        time_s=answer.time_s,
        cycles=drafted / each if known and drafted is not None and each else None,
        accepted=accepted,
        drafted=drafted,
        running=total(samples, names.running),
        how="totals on /prometheus/metrics; cycles are drafted tokens over spec_num_tokens, were every draft that long"
        if known
        else "",
        life=life_of(answer.text),
    )
