"""`specsim check` against llama.cpp's real server, on whatever processor runs the tests.

Target and drafter are one model at temperature 0, so that 3 drafts give 4 tokens a cycle. Nothing that is asserted of times
breaks on a machine that is a few times slower from one moment to the next.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from specsim import fit, load_runs

pytestmark = pytest.mark.server
ROUGH = "id,engine,batch_size,num_draft_tokens,method,cycle_ms,accept_length\na,llama.cpp,2,4,draft_model,5,4\n"


def command(url, model, out, *more):
    asked = [url, "--model", model, "-o", out, "--concurrency", "2", *more, "--json"]
    return [sys.executable, "-c", "from specsim.cli.main import main; main()", "check", *map(str, asked)]


def check(url, model, out, *more):
    done = subprocess.run(command(url, model, out, *more), capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def rough(tmp_path):
    """A model of a made-up time, to measure the first time with."""
    (tmp_path / "rough.csv").write_text(ROUGH, encoding="utf-8")
    fit(load_runs(tmp_path / "rough.csv")).model.save(tmp_path / "rough.json")
    return tmp_path / "rough.json"


@pytest.fixture
def fitted(server, rough, tmp_path):
    """A server with three drafts, and the model fitted to what a first check measured of it."""
    _, url = server(3)
    check(url, rough, tmp_path / "first.json", "--output-len", 200, "--seconds", 6, "--tolerance", 0.01)
    fit(load_runs(tmp_path / "first.json"), noise=0.1).model.save(tmp_path / "fitted.json")
    return url, tmp_path / "fitted.json"


def test_a_server_that_behaves_as_fitted_passes(fitted, tmp_path):
    url, model = fitted
    code, record, errors = check(
        url, model, tmp_path / "run.json", "--output-len", 200, "--seconds", 10, "--tolerance", 300
    )
    assert (code, record["verdict"]) == (0, "PASS"), errors
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.figures["accept_length"].best == pytest.approx(4, abs=0.1)


def test_fewer_drafts_behind_the_models_back_fail(fitted, server, tmp_path):
    _, model = fitted
    _, other = server(1)
    asked = ("--output-len", 200, "--seconds", 10, "--tolerance", 20, "--num-draft-tokens", 4)
    code, record, errors = check(other, model, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (1, "FAIL"), errors
    (row,) = [each for each in record["rows"] if each["figure"] == "accept_length"]
    assert row["verdict"] == "FAIL"
    assert row["measured"] == pytest.approx(2, abs=0.1)


def test_a_few_short_requests_decide_nothing_of_a_doubtful_model(fitted, tmp_path):
    """The prediction's own interval is wider than the tolerance, so that no measurement of a second can decide."""
    url, _ = fitted
    fit(load_runs(tmp_path / "first.json"), noise=0.9).model.save(tmp_path / "doubtful.json")
    asked = ("--output-len", 16, "--seconds", 1, "--tolerance", 20)
    code, record, _ = check(url, tmp_path / "doubtful.json", tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (3, "INCONCLUSIVE")


def test_a_server_that_is_killed_leaves_what_was_measured(server, rough, tmp_path):
    process, url = server(3)
    out = tmp_path / "run.json"
    asked = command(url, rough, out, "--output-len", 400, "--seconds", 60, "--tolerance", 0.001)
    child = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not out.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    process.kill()
    said, errors = child.communicate(timeout=60)
    record = json.loads(said)
    assert child.returncode in (1, 3), errors
    (run,) = load_runs(out).runs
    if child.returncode == 3:
        assert record["verdict"] == "INCONCLUSIVE"
        assert "a request failed" in record["stopped"]
    assert run.figures["cycle_ms"].best > 0
