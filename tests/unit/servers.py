"""Servers that answer as engines do, for tests: paths with their answers, over httpx's mock transport."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

from specsim.live.probe import probe

DATA = Path(__file__).parent / "data"
ROOT = "http://gpu:30000"

# SGLang 0.5.23, /server_info and /v1/loads: names and shapes as http_server.py, v1_loads.py, load_snapshot.py and
# cuda_graph_config.py of its wheel build them; the values are invented.
SGLANG_INFO = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct", "served_model_name": "llama", "api_key": "sk-of-the-server",
    "tp_size": 4, "dp_size": 1, "pp_size": 1, "dtype": "auto", "quantization": None, "page_size": 1,
    "attention_backend": "fa3", "max_running_requests": 48, "disable_custom_all_reduce": False,
    "disable_overlap_schedule": False, "chunked_prefill_size": 8192,
    "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4, "speculative_draft_model_path": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
    "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 48, "bs": [1, 2, 4, 48]}, "prefill": {}},
    "launch_command": "sglang serve --api-key sk-of-the-server --speculative-num-steps 3 --speculative-num-draft-tokens 8",
    "internal_states": [{"last_gen_throughput": 812.4, "avg_spec_accept_length": 2.91,
                         "env_vars": {"NCCL_PROTO": "LL", "HF_TOKEN": "hf_secret"}}],
    "version": "0.5.23", "frontend": "python",
}  # fmt: skip
SGLANG_MODELS = {"object": "list", "data": [{"id": "llama", "object": "model", "owned_by": "sglang", "root": "llama"}]}


def sglang_loads(*ranks: tuple[list[float] | None, int, int]) -> dict:
    """Answers of /v1/loads: moments, running requests and prompt tokens of each rank."""
    loads = [
        {"dp_rank": rank, "num_running_reqs": running, "decode_moments": moments, "total_prefill_uncached_tokens": prompt}
        for rank, (moments, running, prompt) in enumerate(ranks)
    ]  # fmt: skip
    return {"version": "0.5.23", "accelerator": "NVIDIA H200", "num_accelerators": 4, "loads": loads}


def sglang_metrics(verify: int, tokens: tuple[int, int], requests: int, decode: int, prefill: int) -> str:
    """SGLang's counters, 0.5.12 to 0.5.23; tokens by is_streaming, as its collector labels them."""
    lines = [
        f'sglang:spec_verify_calls_total{{model_name="m"}} {verify}.0',
        f'sglang:generation_tokens_total{{is_streaming="true",model_name="m"}} {tokens[0]}.0',
        f'sglang:generation_tokens_total{{is_streaming="false",model_name="m"}} {tokens[1]}.0',
        f'sglang:num_requests_total{{is_streaming="true",model_name="m"}} {requests}.0',
        f'sglang:realtime_tokens_total{{mode="decode",model_name="m",tp_rank="0"}} {decode}.0',
        f'sglang:realtime_tokens_total{{mode="prefill_compute",model_name="m",tp_rank="0"}} {prefill}.0',
        'sglang:realtime_tokens_total{mode="prefill_cache",model_name="m",tp_rank="0"} 999.0',
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 8.0',
        'sglang:num_running_reqs{model_name="m",tp_rank="1"} 8.0',
        'sglang:spec_accept_length{model_name="m",tp_rank="0"} 9.0',
    ]
    return "\n".join(lines) + "\n"


VLLM_MODELS = {
    "object": "list",
    "data": [{"id": "m", "object": "model", "owned_by": "vllm", "root": "meta-llama/Llama-3.1-8B"}],
}
# The recorded answer is shortened in the data folder; two more of its lines.
VLLM_METRICS = (DATA / "vllm_0.24_h200_metrics_k3.prom").read_text(encoding="utf-8") + (
    'process_start_time_seconds 1.79595428749e+09\nvllm:prompt_tokens_total{engine="0",model_name="m"} 473472.0\n'
)
# vLLM's sections and field names, config/*.py of 0.33; a development server answers /server_info with them.
VLLM_CONFIG = {
    "model_config": {"model": "meta-llama/Llama-3.1-8B", "dtype": "torch.bfloat16", "quantization": None, "enforce_eager": False},
    "parallel_config": {"tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 1,
                        "disable_custom_all_reduce": False},
    "scheduler_config": {"max_num_seqs": 256},
    "compilation_config": {"cudagraph_mode": [2, 1], "max_cudagraph_capture_size": 512},
    "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"},
}  # fmt: skip
# vLLM of 2025-04, shortened, from vllm-project/vllm#16572 (there speculative_config=None).
VLLM_TEXT = (
    "model='deepseek-ai/DeepSeek-R1-Distill-Qwen-7B', speculative_config={spec}, tokenizer='deepseek-ai/DeepSeek-R1-Distill"
    "-Qwen-7B', skip_tokenizer_init=False, dtype=torch.bfloat16, max_seq_len=32768, load_format=LoadFormat.AUTO, tensor_par"
    "allel_size=1, pipeline_parallel_size=1, disable_custom_all_reduce=False, quantization=None, enforce_eager=True, "
    "kv_cache_dtype=auto, device_config=cuda, seed=None"
)


def transport(answers: dict[str, object]) -> httpx.MockTransport:
    """Answers by path: text, JSON, (status, body), or an error to raise; 404 otherwise. A list is used up in turn."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers.get(request.url.path, (404, {"detail": "Not Found"}))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        text = body if isinstance(body, str) else json.dumps(body)
        return httpx.Response(status, text=text)

    return httpx.MockTransport(handle)


def asked(answers: dict[str, object], *questions: str, url: str = ROOT, **client):
    """The adapter that a probe returns, and what it answers to `facts` or `counters`, one after the other."""

    async def run():
        async with httpx.AsyncClient(transport=transport(answers), **client) as asking:
            adapter = await probe(asking, url)
            return adapter, *[await getattr(adapter, question)() for question in questions]

    return asyncio.run(run())
