"""Servers that answer as engines do, for tests: paths with their answers, over httpx's mock transport."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
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

# llama.cpp's server of 2026-10, run with and without a drafter (own recordings, shortened): /props names no speculation
# either way, /slots does.
LLAMA_MODELS = {"models": [{"name": "target.gguf"}], "data": [{"id": "target.gguf", "owned_by": "llamacpp"}]}
LLAMA_PROPS = {
    "default_generation_settings": {"params": {"temperature": 0.8, "top_k": 40, "speculative.types": "none"}, "n_ctx": 512},
    "total_slots": 2, "model_alias": "target.gguf", "model_ftype": "(guessed) all F32", "model_path": "/models/target.gguf",
    "endpoint_slots": True, "endpoint_props": False, "endpoint_metrics": True, "build_info": "b0-unknown",
}  # fmt: skip
LLAMA_SLOTS = [
    {"id": 0, "n_ctx": 512, "speculative": True, "is_processing": False},
    {"id": 1, "n_ctx": 512, "speculative": True, "is_processing": False, "id_task": 0,
     "params": {"temperature": 0.0, "ignore_eos": True, "speculative.types": "draft-simple"}},
]  # fmt: skip
LLAMA_METRICS = (DATA / "llamacpp_metrics.prom").read_text(encoding="utf-8")
# As llama.cpp of 2026-03 has it (can1357/oh-my-pi#440): the longest draft stands there even where nothing drafts.
LLAMA_OLD_PROPS = {
    "default_generation_settings": {"params": {"temperature": 0.6, "speculative.n_max": 16, "speculative.n_min": 0}},
    "total_slots": 4, "model_path": "qwen35.gguf",
}  # fmt: skip

# TensorRT-LLM: names and labels as tensorrt_llm/metrics/collector.py (main, 2026) exports them, values of its tests
# (tests/unittest/metrics) where it has some, else invented.
TRT_MODELS = {"object": "list", "data": [{"id": "Llama-3-8B", "object": "model", "owned_by": "tensorrt_llm"}]}
TRT_CONFIG = """trtllm_model_config_info{model_name="test_model",model="meta-llama/Llama-3-8B",served_model_name="Llama-3-8B",\
dtype="float16",quantization="none",max_model_len="4096",gpu_type="NVIDIA H100"} 1.0
trtllm_parallel_config_info{model_name="test_model",tensor_parallel_size="4",pipeline_parallel_size="2",gpu_count="8"} 1.0
trtllm_max_batch_size_static{model_name="test_model"} 256.0
trtllm_num_generation_requests{model_name="test_model"} 6.0
"""
TRT_SPECULATIVE = (
    'trtllm_speculative_config_info{model_name="test_model",spec_enabled="true",spec_method="Eagle3",spec_num_tokens="5",'
    'spec_draft_model="eagle-model"} 1.0\n'
)
TRT_TOTALS = """trtllm_spec_decode_num_draft_tokens_total{model_name="test_model"} 500.0
trtllm_spec_decode_num_accepted_tokens_total{model_name="test_model"} 180.0
trtllm_spec_decode_acceptance_length{model_name="test_model"} 9.0
"""
TRT_POSITIONS = "".join(
    f'trtllm_spec_decode_drafted_tokens_total{{model_name="test_model",token_position="{at}"}} {drafted}.0\n'
    f'trtllm_spec_decode_accepted_tokens_total{{model_name="test_model",token_position="{at}"}} {accepted}.0\n'
    for at, (drafted, accepted) in enumerate([(80, 60), (80, 36), (70, 14)])
)


def trt_iteration(requests: int, proposed: int, accepted: int, rank: int = 0, context: int = 0) -> dict:
    """One row of TensorRT-LLM's GET /metrics."""
    return {
        "iter": 1, "iterLatencyMS": 9.1, "attentionDpRank": rank,
        "inflightBatchingStats": {"numContextRequests": 0, "numGenRequests": requests, "numCtxTokens": context},
        "specDecodingStats": {"numDraftTokens": proposed, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": requests},
    }  # fmt: skip


class InTurn(list):
    """Answers that are given one after the other, the last for good."""


def transport(answers: dict[str, object]) -> httpx.MockTransport:
    """Answers by path: text, JSON, (status, body), or an error to raise; 404 otherwise."""

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers.get(request.url.path, (404, {"detail": "Not Found"}))
        if isinstance(answer, InTurn):
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


@contextlib.asynccontextmanager
async def listening(answers: dict[str, object]) -> AsyncIterator[str]:
    """A server on 127.0.0.1 that gives JSON or text by path, 404 otherwise; bytes are sent as they are, then nothing.

    None is never answered. Gives its address.
    """
    stop = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode().partition("?")[0]
            answer = answers.get(path, (404, "Not Found"))
            if answer is None:
                await stop.wait()
            elif isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
                await stop.wait()
            else:
                status, body = answer if isinstance(answer, tuple) else (200, answer)
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                head = f"HTTP/1.1 {status} Said\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        stop.set()
        server.close()
        await server.wait_closed()
