"""What engines call their counters in Prometheus text: one table, for files that are read and servers that are asked.

Names without the engine's prefix. Read in SGLang 0.4.6 to 0.5.23, vLLM 0.11 to 0.33, llama.cpp @0c1e57098 (its draft
counters are of 2026), TensorRT-LLM main of 2026 (`tensorrt_llm/metrics/collector.py`). A name that a version does not
have yet is not in its text: names are looked up by presence, not by version.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIXES = {"sglang:": "sglang", "vllm:": "vllm", "llamacpp:": "llama.cpp", "trtllm_": "tensorrt-llm"}
"""How an engine's names begin."""


@dataclass(frozen=True)
class MetricNames:
    """An engine's names; empty where it has none.

    `cycles` counts verify passes of single requests, `drafted` and `accepted` drafts, `accepted_at` and `drafted_at`
    those by the label `position`. `gaps` counts times between outputs of one request: all its cycles after the first token,
    those without drafts too. `tokens_now` counts tokens as they are computed, by a label `mode`.
    With `at_request_end` what a request did is counted when it ends.
    """

    running: str
    output_tokens: str
    prompt_tokens: str = ""
    cycles: str = ""
    drafted: str = ""
    accepted: str = ""
    accepted_at: str = ""
    drafted_at: str = ""
    position: str = "position"
    gaps: str = ""
    ended: str = ""
    tokens_now: str = ""
    at_request_end: bool = False


METRIC_NAMES = {
    "vllm": MetricNames(
        running="num_requests_running",
        output_tokens="generation_tokens_total",
        prompt_tokens="prompt_tokens_total",
        cycles="spec_decode_num_drafts_total",
        drafted="spec_decode_num_draft_tokens_total",
        accepted="spec_decode_num_accepted_tokens_total",
        accepted_at="spec_decode_num_accepted_tokens_per_pos_total",
        gaps="inter_token_latency_seconds_count",
    ),
    "llama.cpp": MetricNames(
        running="requests_processing",
        output_tokens="tokens_predicted_total",
        prompt_tokens="prompt_tokens_total",
        cycles="spec_decode_num_drafts_total",
        drafted="spec_decode_num_draft_tokens_total",
        accepted="spec_decode_num_accepted_tokens_total",
        accepted_at="spec_decode_num_accepted_tokens_per_pos_total",
        at_request_end=True,
    ),
    "sglang": MetricNames(
        running="num_running_reqs",
        output_tokens="generation_tokens_total",
        cycles="spec_verify_calls_total",
        ended="num_requests_total",
        tokens_now="realtime_tokens_total",
        at_request_end=True,
    ),
    "tensorrt-llm": MetricNames(
        running="num_generation_requests",
        output_tokens="generation_tokens_total",
        drafted="spec_decode_num_draft_tokens_total",
        accepted="spec_decode_num_accepted_tokens_total",
        accepted_at="spec_decode_accepted_tokens_total",
        drafted_at="spec_decode_drafted_tokens_total",
        position="token_position",
        at_request_end=True,
    ),
}
"""Prompt tokens only where they are counted when they are computed. TensorRT-LLM's totals count by iteration, its
counts by position when a request ends; llama.cpp's prompt tokens when the prompt is done, all else when a request ends.
"""
