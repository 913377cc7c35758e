"""Adapters over real connections: answers as recorded, and servers that hang, dribble or break off."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx
import pytest

from specsim.errors import ServerError
from specsim.live import answers as questions
from specsim.live.probe import probe
from tests.unit.servers import (
    LLAMA_METRICS,
    LLAMA_MODELS,
    LLAMA_PROPS,
    LLAMA_SLOTS,
    SGLANG_INFO,
    SGLANG_MODELS,
    TRT_CONFIG,
    TRT_MODELS,
    TRT_POSITIONS,
    VLLM_METRICS,
    VLLM_MODELS,
    asked,
    listening,
    sglang_loads,
)

SERVERS = {
    "sglang": {
        "/v1/models": SGLANG_MODELS,
        "/server_info": SGLANG_INFO,
        "/v1/loads": sglang_loads(([20, 80, 9e3, 320, 72e3, 210], 4, 50)),
    },
    "vllm": {"/v1/models": VLLM_MODELS, "/version": {"version": "0.24.0"}, "/metrics": VLLM_METRICS},
    "llama.cpp": {"/v1/models": LLAMA_MODELS, "/props": LLAMA_PROPS, "/slots": LLAMA_SLOTS, "/metrics": LLAMA_METRICS},
    "tensorrt-llm": {"/v1/models": TRT_MODELS, "/prometheus/metrics": TRT_CONFIG + TRT_POSITIONS},
}


def really_asked(answers, *wanted):
    async def run():
        async with listening(answers) as url, httpx.AsyncClient(trust_env=False) as client:
            adapter = await probe(client, url)
            return url, adapter.engine, *[await getattr(adapter, name)() for name in wanted]

    return asyncio.run(run())


@pytest.mark.parametrize("engine", SERVERS)
def test_a_real_connection_gives_what_the_recorded_answers_give(engine):
    url, name, facts, counters = really_asked(SERVERS[engine], "facts", "counters")
    _, same, alike = asked(SERVERS[engine], "facts", "counters", url=url)
    assert (name, facts.url) == (engine, url)
    assert replace(facts, missing=()) == replace(same, missing=())
    assert replace(counters, time_s=alike.time_s) == alike
    assert counters.cycles > 0


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(questions, "_PATIENCE_S", 0.3)


HANGS = None
DRIBBLES = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{"
NO_HTTP = b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [(HANGS, "no answer within 0.3 s"), (DRIBBLES, "no answer within 0.3 s"), (NO_HTTP, "RemoteProtocolError")],
)
def test_a_server_that_never_answers_is_not_waited_for(impatient, answer, said):
    with pytest.raises(ServerError, match="GET /v1/models") as caught:
        really_asked({"/v1/models": answer})
    assert said in str(caught.value)


def test_one_question_that_hangs_is_said_and_the_others_count(impatient):
    _, _, facts = really_asked({**SERVERS["vllm"], "/version": HANGS}, "facts")
    assert facts.spec.num_draft_tokens == 4
    assert any("its version (GET /version: no answer within 0.3 s)" in each for each in facts.missing)


def test_more_than_anybody_would_answer_is_not_read(impatient, monkeypatch):
    monkeypatch.setattr(questions, "_MOST_BYTES", 1000)
    _, _, facts, counters = really_asked(SERVERS["vllm"], "facts", "counters")
    assert any("more than 1000 bytes" in each for each in facts.missing)
    assert counters.cycles is None


def test_nobody_there():
    async def run():
        async with listening({}) as url:
            pass
        async with httpx.AsyncClient(trust_env=False) as client:
            await probe(client, url)

    with pytest.raises(ServerError, match="is the server up"):
        asyncio.run(run())
