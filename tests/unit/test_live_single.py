"""A server measured once, without a model; nothing here depends on how fast this machine is."""

from __future__ import annotations

import asyncio

import pytest

from specsim.live.load import RequestError
from specsim.live.prompts import Prompt
from specsim.live.single import Sample, measured_run
from specsim.runs.files import checked_run
from tests.openai_server import Adapter, OpenAiServer


@pytest.fixture
def sample(monkeypatch):
    """Ask a server of our own."""

    def run(server, concurrency=2, output_len=40, seconds=1.0):
        async def probe(client, url):
            return Adapter(server, True)

        monkeypatch.setattr("specsim.live.single.probe", probe)
        prompts = [Prompt(text="a b c"), Prompt(text="d e f")]
        asked = Sample(server.url, prompts, concurrency, output_len, seconds, "a run", "Ring-LL")
        return asyncio.run(measured_run(asked))

    return run


def test_a_drafting_server_gives_a_run_with_cycle_length_and_counts(sample):
    with OpenAiServer(accept=1.0, prefill_s=0.0) as server:
        facts, row = sample(server)
    run = checked_run(row, "here", "a run")
    assert facts.spec.num_draft_tokens == 4
    assert (run.id, run.nccl, run.workload.batch_size, run.spec.num_draft_tokens) == ("a run", "Ring-LL", 2, 4)
    assert run.figures["accept_length"].best == pytest.approx(4, rel=0.1)  # the last cycle of an answer is cut short
    assert run.figures["cycle_ms"].best >= 10  # the server sleeps as long
    assert run.counts.cycles > 0


def test_plain_decode_gives_a_baseline(sample):
    with OpenAiServer(spec=None) as server:
        _, row = sample(server)
    run = checked_run(row, "here", "a run")
    assert run.spec is None
    assert run.figures["decode_ms"].best >= 10


def test_a_server_that_never_runs_all_requests_gives_no_figures_and_says_why(sample, monkeypatch):
    monkeypatch.setattr("specsim.live.single.WARM_UP_S", 1.5)
    with OpenAiServer(most=1, cycle_s=0.05, prefill_s=0.0) as server, pytest.raises(RequestError, match="not all of 2"):
        sample(server, output_len=400)


def test_a_server_that_dies_is_told(sample):
    with OpenAiServer(die_after=60) as server, pytest.raises(RequestError):
        sample(server, output_len=400, seconds=30.0)
