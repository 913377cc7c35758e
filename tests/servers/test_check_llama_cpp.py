"""`specsim check` against llama.cpp's real server, on whatever processor runs the tests.

The model's acceptance is known (`bigram`), but for the last draft of each answer, which is cut short. Nothing that is asserted
of times breaks on a machine that is a few times slower from one moment to the next.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from specsim import load_runs
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

pytestmark = pytest.mark.server
TWO_AT_ONCE = ("--concurrency", 2, "--output-len", 221)


@pytest.fixture
def rough(tmp_path):
    return rough_model(tmp_path, "llama.cpp", 3, bigram.accept_length(3))


@pytest.fixture
def fitted(server, rough, tmp_path):
    """A server with three drafts, and the model fitted to what a first check measured of it."""
    started = server(3)
    first = measured_first(started.url, rough, tmp_path / "first.json", *TWO_AT_ONCE)
    return started, refitted(first, tmp_path / "fitted.json")


def test_a_server_that_behaves_as_fitted_passes(fitted, tmp_path):
    started, model = fitted
    asked = (*TWO_AT_ONCE, "--seconds", 60, "--tolerance", 900)
    code, record, errors = check(started.url, model, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (0, "PASS"), errors
    (run,) = load_runs(tmp_path / "run.json").runs
    assert run.figures["accept_length"].best == pytest.approx(bigram.accept_length(3), rel=0.05)


def test_fewer_drafts_behind_the_models_back_fail(fitted, server, tmp_path):
    _, model = fitted
    asked = (*TWO_AT_ONCE, "--seconds", 60, "--tolerance", 20, "--num-draft-tokens", 4)
    code, record, errors = check(server(1).url, model, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (1, "FAIL"), errors
    (row,) = [each for each in record["rows"] if each["figure"] == "accept_length"]
    assert row["verdict"] == "FAIL"
    assert row["measured"] == pytest.approx(bigram.accept_length(1), rel=0.05)


def test_a_few_short_requests_decide_nothing_of_a_doubtful_model(server, rough, tmp_path):
    """The prediction's own interval is wider than the tolerance, so that no measurement of a second can decide."""
    asked = ("--concurrency", 2, "--output-len", 16, "--seconds", 1, "--tolerance", 20)
    code, record, _ = check(server(3).url, rough, tmp_path / "run.json", *asked)
    assert (code, record["verdict"]) == (3, "INCONCLUSIVE")


def test_a_server_that_is_killed_leaves_what_was_measured(server, rough, tmp_path):
    started, out = server(3), tmp_path / "run.json"
    asked = command(started.url, rough, out, *TWO_AT_ONCE, "--seconds", 60, "--tolerance", 5)
    child = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(out, child)
    started.kill()
    said, errors = child.communicate(timeout=60)
    record = json.loads(said)
    assert (child.returncode, record["verdict"]) == (3, "INCONCLUSIVE"), errors
    assert "a request failed" in record["stopped"]
    (run,) = load_runs(out).runs
    assert is_timed_or_says_why_not(run)
