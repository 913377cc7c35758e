"""The adapter of llama.cpp against its real server."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from specsim.errors import NotIdentifiedError, ServerError
from specsim.live.counters import accept_length_between
from specsim.live.probe import probe
from specsim.quantities import SpecConfig
from tests.servers import bigram

pytestmark = pytest.mark.server
TEN_ROUNDS = 1 + 10 * sum(bigram.BLOCKS)


async def complete(client: httpx.AsyncClient, url: str, tokens: int) -> dict:
    body = {"prompt": "~", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = await client.post(f"{url}/v1/completions", json=body, timeout=60)
    return answer.json()["timings"]


def test_counters_tell_the_acceptance_that_the_models_have(server):
    """Ten rounds in seven cycles each, of which 6, 5 and 4 accept at least one, two and three drafts; the last has room for one."""
    url = server(3).url

    async def run():
        async with httpx.AsyncClient(trust_env=False) as client:
            adapter = await probe(client, url)
            unknown, before = await adapter.facts(), await adapter.counters()
            timings = await complete(client, url, TEN_ROUNDS)
            after, known = await adapter.counters(), await adapter.facts()
            return adapter.engine, unknown, before, timings, after, known

    engine, unknown, before, timings, after, known = asyncio.run(run())
    assert engine == "llama.cpp"
    assert (unknown.spec, unknown.spec_known) == (None, False)
    assert (known.spec, known.method, known.spec_known) == (SpecConfig(3, 1, 4, "draft_model"), "draft_model", True)
    assert known.settings["total_slots"] == 2
    assert (after.drafted, after.accepted, after.output_tokens) == (
        timings["draft_n"],
        timings["draft_n_accepted"],
        TEN_ROUNDS,
    )
    assert (after.cycles, after.accepted, after.accepted_at) == (70, 150, (60, 50, 40))
    length = accept_length_between(before, after)
    assert length.accept_length == pytest.approx(bigram.accept_length(3), rel=1e-12)


def test_a_server_without_a_drafter_says_so_and_one_that_is_killed_is_gone(server):
    plain = server(0)
    url = plain.url

    async def run():
        async with httpx.AsyncClient(trust_env=False) as client:
            adapter = await probe(client, url)
            before = await adapter.counters()
            await complete(client, url, 50)
            facts, after = await adapter.facts(), await adapter.counters()
            plain.kill()
            with pytest.raises(ServerError, match="does not answer"):
                await adapter.counters()
            return facts, before, after

    facts, before, after = asyncio.run(run())
    assert (facts.spec, facts.spec_known, facts.method) == (None, True, None)
    assert (before.output_tokens, after.output_tokens) == (0, 50)
    with pytest.raises(NotIdentifiedError, match="no cycle was counted"):
        accept_length_between(before, after)
