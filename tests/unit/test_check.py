"""`specsim check` against a server on the loopback; nothing here depends on how fast this machine is.

Where a verdict is asserted, the prediction is right within a factor of twenty or wrong by a hundred.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specsim import SpecConfig, fit, load_runs
from specsim.errors import NotIdentifiedError, SpecsimError
from specsim.live.check import predicted_tpot
from specsim.live.counters import CountedLength
from specsim.live.diagnosis import diagnose as real_diagnose
from specsim.live.expectation import Expectation
from specsim.live.load import COMPLETIONS, Load, Loader, route_of, sender_with
from specsim.live.prompts import built_in_prompts, read_prompts
from specsim.live.recording import RequestError
from specsim.live.server import ASSUMED
from specsim.live.session import Row
from specsim.live.verdict import Expected
from specsim.live.window import steady_window
from tests.openai_server import Adapter, OpenAiServer

REPO = Path(__file__).parents[2]
CHAIN = SpecConfig(3, 1, 4)
WIDE = ("--tolerance", 95)  # passes whatever is up to 20 times slower than predicted


def length_between(before, after):
    if before.cycles is None or after.cycles == before.cycles:
        raise NotIdentifiedError("the server counts no cycles")
    cycles = after.cycles - before.cycles
    return CountedLength(1 + (after.accepted - before.accepted) / cycles, 1.0 / cycles**0.5, "by its counters")


@dataclass(frozen=True)
class Wrong:
    name: str
    evidence: str
    advice: str


def diagnose(facts, observed, counted, **_):
    if observed.accept_length is None:
        return ()
    cycles = None if counted is None or counted.cycles is None else counted.cycles
    evidence = f"{observed.accept_length:.2f} of {observed.batch_size:g} requests, {cycles} cycles"
    return (Wrong("nothing much", evidence, "carry on"),)


PEERS = {"session.accept_length_between": length_between, "check.diagnose": diagnose}
"""What stands in for the counters' and the diagnosis' own judgement, which have tests of their own."""


@pytest.fixture
def servers(monkeypatch):
    """The engine's side of a check: known servers answer, by their URL."""
    known = {}

    async def probe(client, url):
        if url not in known:
            raise SpecsimError(f"{url}: nothing answers")
        return known[url]

    for name, stand_in in {"check.probe": probe, **PEERS}.items():
        monkeypatch.setattr(f"specsim.live.{name}", stand_in)

    def add(server, counts=True, at=None):
        known[at or server.url] = Adapter(server, counts)
        return server.url

    return add


@pytest.fixture
def model(tmp_path):
    """A model whose cycles of 4 tokens take so long, with plain decode half of that, at batch 1 to 8."""

    def written(cycle_ms=10.0, noise=None):
        rows = ["id,engine,nccl,batch_size,num_draft_tokens,cycle_ms,decode_ms,accept_length"]
        for batch in (1, 4, 8) if noise is None else (4,):
            rows.append(f"c{batch},vllm,s,{batch},4,{cycle_ms},,2.4")
            rows.append(f"w{batch},vllm,s,{batch},8,{cycle_ms * 1.1},,")
            rows.append(f"p{batch},vllm,s,{batch},,,{cycle_ms / 2},")
        (tmp_path / "fitted.csv").write_text("\n".join(rows))
        path = tmp_path / f"model-{cycle_ms:g}.json"
        runs = load_runs(tmp_path / "fitted.csv")
        (fit(runs) if noise is None else fit(runs, noise=noise)).model.save(path)
        return path

    return written


def check(run_cli, url, model_path, out, *more):
    return run_cli("check", url, "--model", model_path, "-o", out, "--output-len", 64, "--concurrency", 4,
                   "--seconds", 2, *more, "--json")  # fmt: skip


# -- verdicts and exit codes ------------------------------------------------------------------------------------------


def test_a_server_that_behaves_passes_and_its_run_is_written(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server:
        result = check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE)
    record = json.loads(result.stdout)
    assert (result.exit_code, record["verdict"]) == (0, "PASS"), result.output
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.spec == CHAIN
    assert run.workload.batch_size == 4
    assert run.figures["cycle_ms"].best == pytest.approx(record["rows"][0]["measured"], rel=1e-6)
    assert run.figures["cycle_ms"].error == pytest.approx(
        record["rows"][0]["measured_error"], rel=0.01
    )  # of rounded ends
    assert {row["figure"] for row in record["rows"]} == {"cycle_ms", "accept_length", "output_tok_s", "margin"}
    assert record["server"]["chunks"] > 0
    told = record["server"]["ended"]
    gaps = (told["e2e_ms"]["mean"] - told["ttft_ms"]["mean"]) / 63  # every answer has 64 tokens
    assert told["requests"] > 0
    assert told["tpot_ms"]["mean"] == pytest.approx(gaps)
    (found,) = record["findings"]
    assert re.fullmatch(r"2\.\d+ of 4 requests, [\d.]+ cycles", found["evidence"])
    assert {body["ignore_eos"] for body in server.bodies} == {True}


@pytest.mark.parametrize("collects", [False, True])
def test_answers_that_come_all_at_once_are_found(run_cli, servers, model, tmp_path, monkeypatch, collects):
    monkeypatch.setattr("specsim.live.check.diagnose", real_diagnose)
    with OpenAiServer(collects=collects) as server:
        record = json.loads(check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE).stdout)
    found = [each["name"] for each in record["findings"]]
    assert ("chunks held back on their way" in found) is collects


@pytest.mark.parametrize("others", [0, 1000])
def test_prompts_of_other_clients_are_found_and_those_of_the_load_are_not(
    run_cli, servers, model, tmp_path, monkeypatch, others
):
    monkeypatch.setattr("specsim.live.check.diagnose", real_diagnose)
    with OpenAiServer() as server:
        url = servers(server)
        counters = server.counters

        def beside():  # all that other clients ever ask is there at the second reading
            read = counters()
            monkeypatch.setattr(
                server, "counters", lambda: replace(c := counters(), prompt_tokens=c.prompt_tokens + others)
            )
            return read

        monkeypatch.setattr(server, "counters", beside)
        record = json.loads(check(run_cli, url, model(), tmp_path / "run.json", *WIDE).stdout)
    assert server.prompt_tokens > 0
    found = [each["evidence"] for each in record["findings"] if each["name"] == "prefill in the measured window"]
    assert len(found) == (1 if others else 0)
    assert not others or "prompt tokens that were not left out" in found[0]


def test_the_time_per_token_that_is_claimed_is_the_predictions():
    """100 tok/s of 4 requests are 40 ms a token."""
    plan = type("Plan", (), {"concurrency": 4})()
    rows = [
        Row("cycle_ms", Expectation(None, "none"), None, None),
        Row("output_tok_s", Expectation(Expected(100.0, 90.0, 110.0)), None, None),
    ]
    assert predicted_tpot(plan, rows) == 40.0
    assert predicted_tpot(plan, rows[:1]) is None


def test_accept_length_and_counts_are_the_servers(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server:
        check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE)
    (run,) = load_runs(tmp_path / "run.json").runs
    length = run.figures["accept_length"].best
    assert length == pytest.approx(1 + 0.7 + 0.49 + 0.343, abs=6 * run.accept_length_error)
    assert run.counts.cycles <= server.cycles
    assert run.counts.accepted / run.counts.cycles == pytest.approx(length - 1)


def test_a_server_far_from_the_prediction_fails(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server:
        result = check(run_cli, servers(server), model(cycle_ms=10_000.0), tmp_path / "run.json")
    record = json.loads(result.stdout)
    assert (result.exit_code, record["verdict"]) == (1, "FAIL")
    assert {row["figure"]: row["verdict"] for row in record["rows"]}["cycle_ms"] == "FAIL"
    assert load_runs(tmp_path / "run.json").runs


def test_a_prediction_that_is_too_uncertain_is_inconclusive_and_no_run_would_tell(run_cli, servers, model, tmp_path):
    """Noise of 50% makes ±89% of the prediction: neither inside 40% nor outside, up to three times slower."""
    with OpenAiServer() as server:
        result = check(run_cli, servers(server), model(noise=0.5), tmp_path / "run.json", "--tolerance", 40)
    record = json.loads(result.stdout)
    cycle = record["rows"][0]
    assert (result.exit_code, record["verdict"], cycle["verdict"]) == (3, "INCONCLUSIVE", "INCONCLUSIVE")
    assert "own interval" in cycle["why"]
    assert cycle["seconds_needed"] is None  # none would


def test_too_short_to_know_its_own_error_is_inconclusive(run_cli, servers, model, tmp_path):
    with OpenAiServer(cycle_s=0.2, prefill_s=0.2) as server:  # at most 9 cycles in 2 s, and a mean of them needs 20
        result = check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE)
    record = json.loads(result.stdout)
    assert (result.exit_code, record["verdict"]) == (3, "INCONCLUSIVE")
    assert "too few cycles" in record["rows"][0]["why"]
    assert load_runs(tmp_path / "run.json").runs[0].figures["cycle_ms"].best > 0


def test_plain_decode_is_checked_as_decode(run_cli, servers, model, tmp_path):
    with OpenAiServer(spec=None) as server:
        result = check(run_cli, servers(server), model(cycle_ms=20.0), tmp_path / "run.json", *WIDE)
    record = json.loads(result.stdout)
    assert (result.exit_code, [row["figure"] for row in record["rows"]]) == (0, ["decode_ms", "output_tok_s"])
    (run,) = load_runs(tmp_path / "run.json").runs
    assert (run.speculative, set(run.figures)) == (False, {"decode_ms", "output_tok_s"})


def test_without_counters_chunks_tell_cycle_and_length(run_cli, servers, model, tmp_path):
    with OpenAiServer(usage=False) as server:
        result = check(run_cli, servers(server, counts=False), model(), tmp_path / "run.json", *WIDE)
    server_record = json.loads(result.stdout)["server"]
    assert any("from the tokens of each chunk" in line for line in server_record["how"])
    assert any("spread evenly" in line for line in server_record["how"])
    assert any("counts no cycles" in line for line in server_record["missing"])


def test_fewer_running_than_asked_is_said_and_inconclusive(run_cli, servers, model, tmp_path):
    with OpenAiServer(most=2) as server:
        result = check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE)
    record = json.loads(result.stdout)
    assert (result.exit_code, record["verdict"]) == (3, "INCONCLUSIVE")
    assert any("never did 4 requests decode at once, at most 2" in line for line in record["server"]["missing"])
    (run,) = load_runs(tmp_path / "run.json").runs
    assert "at most 2" in run.excluded


def test_a_look_does_not_keep_the_load_waiting(run_cli, servers, model, tmp_path, monkeypatch):
    looked_in = []

    def window(*arguments):
        looked_in.append(threading.get_ident())
        return steady_window(*arguments)

    monkeypatch.setattr("specsim.live.session.steady_window", window)
    with OpenAiServer() as server:
        check(run_cli, servers(server), model(), tmp_path / "run.json", "--tolerance", 0.01)
    planned, *looks, last = looked_in  # before the load, beside it, and after it
    assert planned == last == threading.get_ident()
    assert looks
    assert threading.get_ident() not in looks


def test_text_names_the_verdict_the_file_and_what_was_left_out(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server:
        url = servers(server)
        result = run_cli("check", url, "--model", model(), "-o", tmp_path / "run.json", "--output-len", 64,
                         "--concurrency", 4, "--seconds", 2, *WIDE)  # fmt: skip
    said = " ".join(result.stdout.split())
    for text in (
        "PASS (tolerance 95%",
        f"measured: {tmp_path / 'run.json'}",
        "left out: warm-up, ramp",
        "4 draft tokens",
        "requests ended, on average TTFT",
    ):
        assert text in said
    assert result.stderr == ""  # no progress bar where nobody watches


def test_the_example_of_the_help_runs(run_cli, servers, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"Example:\n +specsim (.*)\n", run_cli("check", "--help").output).group(1).split()
    model(cycle_ms=10_000.0).rename("model.json")
    with OpenAiServer() as server:
        servers(server, at=example[1])
        result = run_cli(*example)
    assert result.exit_code == 1, result.output
    assert list(tmp_path.glob("specsim-check-*.json"))


# -- a baseline --------------------------------------------------------------------------------------------------------


def test_a_baseline_in_turns_gives_break_even_and_speedup(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server, OpenAiServer(spec=None, cycle_s=0.005) as plain:
        urls = servers(server), servers(plain)
        result = check(
            run_cli, urls[0], model(), tmp_path / "run.json", "--baseline-url", urls[1], *WIDE, "--seconds", 4
        )
    record = json.loads(result.stdout)
    rows = {row["figure"]: row for row in record["rows"]}
    ratio = rows["cycle_ms"]["measured"] / rows["baseline_decode_ms"]["measured"]
    assert rows["cost_ratio"]["measured"] == pytest.approx(ratio)
    assert rows["cost_ratio"]["predicted"] == pytest.approx(2.0, rel=0.01)
    assert rows["margin"]["measured"] == pytest.approx(rows["accept_length"]["measured"] - ratio)
    assert rows["speedup"]["predicted"] == pytest.approx(2.4 / 2.0, rel=0.01)
    assert [run.speculative for run in load_runs(tmp_path / "run.json").runs] == [True, False]
    assert record["mixed_fields"] == []


def test_a_baseline_that_drafts_or_differs(run_cli, servers, model, tmp_path, monkeypatch):
    with OpenAiServer() as server, OpenAiServer() as other:
        urls = servers(server), servers(other)
        result = check(run_cli, urls[0], model(), tmp_path / "run.json", "--baseline-url", urls[1])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "is no baseline: it drafts with 4 draft tokens" in result.stderr
    with OpenAiServer() as server, OpenAiServer(spec=None) as plain:
        facts = plain.facts()
        monkeypatch.setattr(plain, "facts", lambda: replace(facts, setup=replace(facts.setup, precision="fp8")))
        ours = server.facts()
        monkeypatch.setattr(server, "facts", lambda: replace(ours, setup=replace(ours.setup, precision="bf16")))
        urls = servers(server), servers(plain)
        found = check(run_cli, urls[0], model(), tmp_path / "run.json", "--baseline-url", urls[1], *WIDE)
    record = json.loads(found.stdout)
    assert (record["mixed_setup"], record["mixed_fields"]) == (True, ["precision"])


# -- nothing that was measured is lost ---------------------------------------------------------------------------------


def test_a_server_that_dies_half_way_leaves_a_run(run_cli, servers, model, tmp_path):
    with OpenAiServer(die_after=60) as server:
        result = check(run_cli, servers(server), model(), tmp_path / "run.json", "--seconds", 20, "--tolerance", 0.01)
    record = json.loads(result.stdout)
    assert (result.exit_code, record["verdict"]) == (3, "INCONCLUSIVE")
    assert "a request failed" in record["stopped"]
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.figures["cycle_ms"].best > 0
    assert "a request failed" in run.note


CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as under a terminal, whoever runs the tests
sys.path.insert(0, {repo!r})
from pathlib import Path
import specsim.live.check, specsim.live.session
from specsim.live.window import steady_window
from tests.openai_server import Adapter, OpenAiServer
from tests.unit.test_check import PEERS
from specsim.cli.main import main
with OpenAiServer() as server:
    async def probe(client, url):
        return Adapter(server)
    for name, stand_in in dict(PEERS, **{{"check.probe": probe}}).items():
        module, attribute = name.split(".")
        setattr(getattr(specsim.live, module), attribute, stand_in)
    import threading, time
    def tell():
        while server.steps < 60:
            time.sleep(0.01)
        print("loaded", file=sys.stderr, flush=True)
    threading.Thread(target=tell, daemon=True).start()
    main(["check", server.url, "--model", {model!r}, "-o", {out!r}, "--concurrency", "4", "--output-len", "64",
          "--seconds", "60", "--tolerance", "0.01"])
"""


def test_ctrl_c_leaves_a_run_and_exits_as_inconclusive(model, tmp_path):
    out = tmp_path / "run.json"
    code = CHILD.format(repo=str(REPO), model=str(model()), out=str(out))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr.readline() == "loaded\n"
    child.send_signal(signal.SIGINT)
    said, errors = child.communicate(timeout=60)
    assert child.returncode == 3, errors
    assert "interrupted after" in " ".join(said.split())
    (run,) = load_runs(out).runs
    assert "interrupted after" in run.note
    assert run.figures["cycle_ms"].best > 0


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_bad_input_exits_with_2_in_one_line(run_cli, servers, model, tmp_path):
    fitted = model()
    with OpenAiServer() as server:
        url = servers(server)
        cases = {
            ("ftp://x", "--model", fitted): "is not a URL",
            ("http://user:secret@x", "--model", fitted): "carries a user or password",
            ("http://127.0.0.1:9", "--model", fitted): "nothing answers",
            (url, "--model", tmp_path / "none.json"): "none.json",
            (url, "--model", fitted, "-o", tmp_path / "no" / "run.json"): "cannot be written",
            (url, "--model", fitted, "--prompts", tmp_path / "none.jsonl"): "cannot be read",
            (url, "--model", fitted, "--api-key-env", "SPECSIM_NO_SUCH_KEY"): "SPECSIM_NO_SUCH_KEY: is not set",
            (url, "--model", fitted, "--accept-length", 9): "not possible",
            (url, "--model", fitted, "--nccl", "other"): "unknown NCCL setting",
        }
        for arguments, said in cases.items():
            result = run_cli("check", *arguments)
            assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output
            assert said in result.stderr
            assert "secret" not in result.output
    assert server.bodies == []  # nothing was loaded


def test_a_server_that_does_not_say_its_configuration_has_to_be_told(run_cli, servers, model, tmp_path, monkeypatch):
    with OpenAiServer() as server:
        facts = replace(server.facts(), spec=None, spec_known=False)
        monkeypatch.setattr(server, "facts", lambda: facts)
        url = servers(server)
        refused = run_cli("check", url, "--model", model())
        assert (refused.exit_code, "state --num-draft-tokens" in refused.stderr) == (2, True)
        assert server.cycles > 0  # it was asked again after a request, as some servers know only then
        told = check(run_cli, url, model(), tmp_path / "run.json", *WIDE, "--num-draft-tokens", 4)
    assert told.exit_code == 0


def test_a_stated_configuration_that_the_server_contradicts_is_named(run_cli, servers, model, tmp_path):
    with OpenAiServer() as server:
        result = check(run_cli, servers(server), model(), tmp_path / "run.json", *WIDE, "--num-draft-tokens", 8)
    assert any("stated: 8 draft tokens" in line and "says 4" in line for line in json.loads(result.stdout)["remarks"])


def test_a_server_that_tells_no_method_is_taken_to_draft_as_the_model_was_measured(
    run_cli, servers, tmp_path, monkeypatch
):
    """vLLM's metrics tell how many tokens it drafts, not by which method: a length measured with a draft model is still its own."""
    rows = "method,batch_size,num_draft_tokens,cycle_ms,accept_length\ndraft_model,4,4,10,2.5\n"
    (tmp_path / "runs.csv").write_text("engine," + rows.replace("\ndraft", "\nvllm,draft"))
    fit(load_runs(tmp_path / "runs.csv")).model.save(tmp_path / "model.json")
    with OpenAiServer() as server:
        facts = replace(server.facts(), method=None, missing=(ASSUMED, "its weight"))
        monkeypatch.setattr(server, "facts", lambda: facts)
        result = check(run_cli, servers(server), tmp_path / "model.json", tmp_path / "run.json", *WIDE)
    record = json.loads(result.stdout)
    (length,) = [row for row in record["rows"] if row["figure"] == "accept_length"]
    assert length["predicted"] == 2.5
    assert record["server"]["missing"] == ["its drafting method; taken as the model's, draft_model", "its weight"]
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.spec == replace(CHAIN, method="draft_model")


def test_the_api_key_is_sent_and_never_told(run_cli, servers, model, tmp_path, monkeypatch):
    monkeypatch.setenv("KEY_OF_SERVER", "sk-very-secret")
    with OpenAiServer(key="sk-very-secret") as server:
        result = check(
            run_cli, servers(server), model(), tmp_path / "run.json", *WIDE, "--api-key-env", "KEY_OF_SERVER"
        )
        assert result.exit_code == 0, result.output
        assert "secret" not in result.output + (tmp_path / "run.json").read_text()
    monkeypatch.setenv("KEY_OF_SERVER", "sk-wrong-secret")
    with OpenAiServer(key="sk-very-secret") as server:  # which repeats the key that it refuses
        result = check(run_cli, servers(server), model(), tmp_path / "b.json", *WIDE, "--api-key-env", "KEY_OF_SERVER")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "answered 401" in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize("key", ["sécret", "secret\nX-Other: 1", "two secrets"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(run_cli, model, monkeypatch, key):
    monkeypatch.setenv("KEY_OF_SERVER", key)
    result = run_cli("check", "http://127.0.0.1:9", "--model", model(), "--api-key-env", "KEY_OF_SERVER")
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "KEY_OF_SERVER: holds no API key" in result.stderr
    assert "cret" not in result.output


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_the_pipeline_of_the_docs_stops_where_it_should(tmp_path, code, ends):
    """In the shell as pipelines start it, which stops at the first command that fails."""
    [script] = re.findall(r"```sh\n(.*?)```", (REPO / "docs" / "check.md").read_text(encoding="utf-8"), re.DOTALL)
    stand_in = tmp_path / "specsim"
    stand_in.write_text(f"#!/bin/sh\necho '{{}}'\nexit {code}\n")
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "URL": "http://x"}
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (ends, "")
    assert ("not told" in done.stdout) == (code == 3)
    assert (tmp_path / "check.json").read_text() == "{}\n"


# -- the load ----------------------------------------------------------------------------------------------------------


def loaded(server, **changes):
    """What a load records until more than three requests have ended."""

    async def go():
        async with sender_with(None) as sender:
            load = Load(server.url, "tiny", built_in_prompts(), 3, 32, {}, **changes)
            loader = Loader(sender, await route_of(sender, load))
            loader.start()
            while sum(recording.ended for recording in loader.recordings) <= 3:
                await loader.hold(0.2)
            await loader.stop()
            return loader

    return asyncio.run(go())


def test_a_load_keeps_so_many_requests_running_and_records_every_chunk():
    with OpenAiServer(cycle_s=0.002) as server:
        loader = loaded(server)
    streams = loader.streams()
    ended = [stream for stream in streams if stream.completion_tokens is not None]
    unsent = len(server.writers) - len(server.bodies)  # a connection each: none that the server may just have closed
    assert 0 <= unsent <= 3  # cut off while connecting
    assert steady_window(streams, 3).most_running == 3
    assert len(streams) - len(ended) <= 3  # those that were cut off
    assert len(ended) > 3
    for stream in ended:
        assert stream.completion_tokens == 32
        assert stream.told[-1] == 32
        assert (stream.chunk_s[1:] >= stream.chunk_s[:-1]).all()
        assert stream.chunk_s[0] > stream.sent_s
    texts = [body["messages"][0]["content"] for body in server.bodies[1:]]  # the first one tried the route
    assert len(set(texts)) == min(len(texts), 160)


def test_a_server_without_a_chat_template_is_asked_for_plain_text():
    with OpenAiServer(cycle_s=0.002, chat=False) as server:
        loader = loaded(server)
    assert loader.load.route == COMPLETIONS
    assert isinstance(server.bodies[-1]["prompt"], str)


def test_without_usage_the_limit_tells_how_many_tokens_came():
    with OpenAiServer(cycle_s=0.002, usage=False) as server:
        server.usage = False
        loader = loaded(server)
    ended = [stream for stream in loader.streams() if stream.completion_tokens is not None]
    assert {stream.completion_tokens for stream in ended} == {32}


def test_a_request_that_breaks_off_ends_the_load_with_its_reason():
    with (
        OpenAiServer(cycle_s=0.002, die_after=20) as server,
        pytest.raises(RequestError, match=r"broke off|ended its stream"),
    ):
        loaded(server)
    assert threading.active_count() < 10


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_the_built_in_prompts_are_160_and_differ():
    texts = [prompt.plain for prompt in built_in_prompts()]
    assert (len(texts), len(set(texts))) == (160, 160)


def test_prompts_of_a_file_are_text_messages_or_turns_with_sampling(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"prompt": "once", "temperature": 0.7, "category": "story"}\n\n'
        '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]}\n'
        '{"turns": ["first", "second"]}\n'
    )
    once, hello, first = read_prompts(path)
    assert (once.text, dict(once.sampling)) == ("once", {"temperature": 0.7})
    assert [m["role"] for m in hello.messages] == ["system", "user"]
    assert first.plain == "first"
    body = Load("u", "m", [once], 1, 16, {"ignore_eos": True}, COMPLETIONS).body(5)
    assert (body["prompt"], body["temperature"], body["ignore_eos"], body["max_tokens"]) == ("once", 0.7, True, 16)


def test_faults_of_a_prompt_file_name_their_lines(run_cli, servers, model, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\nnot json\n{"messages": "x"}\n{"prompt": ""}\n')
    with OpenAiServer() as server:
        result = run_cli("check", servers(server), "--model", model(), "--prompts", path)
    assert result.exit_code == 2
    assert [line.split(", ")[1].split(":")[0] for line in result.stderr.splitlines()] == ["line 2", "line 3", "line 4"]
