"""vLLM's real server, on whatever processor runs the tests: its adapter, and `specsim check` of it.

The model's acceptance is known exactly (`bigram`), so that counters are held tightly. Nothing that is asserted of times breaks
on a machine that is a few times slower from one moment to the next. Two servers are started, once; the last tests kill them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from itertools import accumulate

import httpx
import pytest

from specsim import load_runs
from specsim.live.counters import accept_length_between, difference
from specsim.live.probe import probe
from specsim.quantities import SpecConfig
from tests.servers import bigram
from tests.servers.checking import (
    check,
    command,
    is_timed_or_says_why_not,
    measured_first,
    refitted,
    rough_model,
    wait_for,
)

pytestmark = pytest.mark.vllm

ROUNDS = sum(bigram.BLOCKS)
TEN_ROUNDS = 1 + 10 * ROUNDS
"""Output tokens of ten times all blocks, after a first token with which they begin: the prefill gives it."""
DRAFTS = 3


@pytest.fixture
def drafting(vllm_servers):
    return vllm_servers[DRAFTS]


@pytest.fixture
def other(vllm_servers):
    """What a restart with another number of drafts would leave at the address."""
    return vllm_servers[1]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Prompts that end in a character outside the ring, so that every answer begins with its first."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {n}~"}) + "\n" for n in range(16)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def fitted(vllm_servers, prompts, tmp_path_factory):
    """A model fitted to what a first check measured of the server with three drafts."""
    folder = tmp_path_factory.mktemp("fitted")
    rough, first = rough_model(folder, "vllm", DRAFTS, bigram.accept_length(DRAFTS)), folder / "first.json"
    measured_first(vllm_servers[DRAFTS].url, rough, first, *asked_of(prompts))
    return refitted(first, folder / "fitted.json")


def asked_of(prompts, *more, output_len=TEN_ROUNDS):
    return "--concurrency", 2, "--prompts", prompts, "--output-len", output_len, *more


def row(record, figure):
    return next(each for each in record["rows"] if each["figure"] == figure)


def watched(server, tokens):
    """An adapter's engine, its facts, and its counters before and after one answer of so many tokens; the text, the metrics."""

    async def run():
        async with httpx.AsyncClient(trust_env=False) as client:
            adapter = await probe(client, server.url)
            facts, before = await adapter.facts(), await adapter.counters()
            body = {"prompt": "~", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            answer = await client.post(f"{server.url}/v1/completions", json=body, timeout=60)
            return adapter.engine, facts, before, await adapter.counters(), answer.json()["choices"][0]["text"]

    return asyncio.run(run())


def test_the_adapter_reads_what_the_server_runs_and_counts_by_position(drafting):
    """Ten rounds in seven cycles each, of which 6, 5 and 4 accept at least one, two and three drafts."""
    engine, facts, before, after, text = watched(drafting, TEN_ROUNDS)
    assert (engine, facts.served_model, facts.missing) == ("vllm", "bigram", ())
    assert (facts.spec, facts.method) == (SpecConfig(3, 1, 4, "draft_model"), "draft_model")
    assert facts.drafter.endswith("drafter")
    assert text == "".join(chr(32 + n % bigram.RING) for n in range(TEN_ROUNDS))
    counted = difference(before, after)
    assert (counted.cycles, counted.drafted, counted.accepted, counted.accepted_at) == (70, 210, 150, (60, 50, 40))
    assert (counted.output_tokens, counted.prompt_tokens, after.running) == (TEN_ROUNDS, 1, 0)
    length = accept_length_between(before, after)
    assert length.accept_length == pytest.approx(bigram.accept_length(DRAFTS), rel=1e-12)
    shares = [at / counted.cycles for at in counted.accepted_at]
    assert shares == pytest.approx(bigram.survival(DRAFTS), rel=1e-12)


def test_a_processor_has_no_graphs_to_capture_and_is_no_gpu(drafting):
    _, facts, *_ = watched(drafting, 1)
    assert facts.settings["device_config.device"] == "cpu"
    assert (facts.setup.gpus, facts.setup.cuda_graph) == (None, None)


def test_a_server_that_tells_no_configuration_shows_its_drafts_by_its_counters(other):
    _, facts, before, after, _ = watched(other, TEN_ROUNDS)
    assert (facts.spec, facts.spec_known, facts.method) == (SpecConfig(1, 1, 2), True, None)
    assert any("VLLM_SERVER_DEV_MODE=1" in each for each in facts.missing)
    assert accept_length_between(before, after).accept_length == pytest.approx(bigram.accept_length(1), rel=1e-12)


def test_a_server_that_behaves_as_fitted_passes(drafting, fitted, prompts, tmp_path):
    asked = asked_of(prompts, "--seconds", 60, "--tolerance", 900)
    code, record, errors = check(drafting.url, fitted, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (0, "PASS"), errors
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.figures["accept_length"].best == pytest.approx(bigram.accept_length(DRAFTS), rel=0.01)


def test_another_number_of_drafts_behind_the_models_back_fails(other, fitted, prompts, tmp_path):
    asked = asked_of(prompts, "--seconds", 60, "--tolerance", 20, "--num-draft-tokens", DRAFTS + 1)
    code, record, errors = check(other.url, fitted, tmp_path / "run.json", *asked)
    assert (code, record["verdict"], row(record, "accept_length")["verdict"]) == (1, "FAIL", "FAIL"), errors
    assert row(record, "accept_length")["measured"] == pytest.approx(bigram.accept_length(1), rel=0.01)
    assert any("stated: 4 draft tokens" in each and "says 2 draft tokens" in each for each in record["remarks"])


def test_a_few_short_requests_decide_nothing_of_a_doubtful_model(drafting, prompts, tmp_path):
    """The prediction's own interval is wider than the tolerance, so that no measurement of a second can decide."""
    rough = rough_model(tmp_path, "vllm", DRAFTS, bigram.accept_length(DRAFTS))
    asked = asked_of(prompts, "--seconds", 1, "--tolerance", 20, output_len=1 + ROUNDS)
    code, record, _ = check(drafting.url, rough, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (3, "INCONCLUSIVE")


def test_a_chunk_holds_whole_cycles_and_the_server_counts_each_as_an_inter_token_latency(drafting):
    """One cycle, or several where the server itself is late: it joins what waits to be sent."""

    async def run():
        body = {"prompt": "~", "max_tokens": TEN_ROUNDS, "temperature": 0, "ignore_eos": True, "stream": True}
        async with httpx.AsyncClient(trust_env=False) as client:
            before = await client.get(f"{drafting.url}/metrics")
            answer = await client.post(f"{drafting.url}/v1/completions", json=body, timeout=60)
            after = await client.get(f"{drafting.url}/metrics")
        return answer.text, gaps_of(after.text) - gaps_of(before.text)

    text, gaps = asyncio.run(run())
    chunks = [json.loads(each[6:]) for each in text.split("\n\n") if each.startswith("data: {")]
    so_far = list(accumulate(len(chunk["choices"][0]["text"]) for chunk in chunks))
    assert gaps == 70
    assert so_far[-1] == TEN_ROUNDS
    assert set(so_far) <= set(accumulate([1, *(4, 4, 1, 4, 3, 4, 2) * 10]))


def gaps_of(metrics):
    lines = (line.split() for line in metrics.splitlines() if line.startswith("vllm:inter_token_latency_seconds_count"))
    return sum(float(line[-1]) for line in lines)


@pytest.mark.parametrize(("part", "drafts"), [("server", 3), ("engine", 1)])
def test_what_is_killed_leaves_what_was_measured(vllm_servers, tmp_path, part, drafts):
    """The whole server, and its engine alone, whose death the API still tells. The prompts are those of the check itself."""
    started, out = vllm_servers[drafts], tmp_path / "run.json"
    rough = rough_model(tmp_path, "vllm", drafts, bigram.accept_length(drafts))
    asked = ("--concurrency", 2, "--output-len", 400, "--seconds", 60, "--tolerance", 5)
    child = subprocess.Popen(
        command(started.url, rough, out, *asked), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(out, child)
    if part == "server":
        started.kill()
    else:
        kill_engine_of(started.process.pid)
    said, errors = child.communicate(timeout=60)
    record = json.loads(said)
    assert (child.returncode, record["verdict"], "Traceback" in errors) == (3, "INCONCLUSIVE", False), errors
    assert "a request failed" in record["stopped"]
    assert ("EngineCore" in record["stopped"]) == (part == "engine")
    (run,) = load_runs(out).runs
    assert is_timed_or_says_why_not(run)
    assert run.figures["accept_length"].best == pytest.approx(bigram.accept_length(drafts), rel=0.05)


def kill_engine_of(pid):
    import psutil  # vLLM needs it, too

    (engine,) = (each for each in psutil.Process(pid).children(recursive=True) if "EngineCore" in each.cmdline()[0])
    engine.kill()
