"""Simulated time per output token beside that of a real server, at every concurrency that its client could sustain."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy_serving import MOST_CONCURRENCY, PARTS, compared, held_out, served
from benchmarks.groups import DENSE
from specsim import fit

BUDGET = 0.03


@pytest.fixture(scope="module")
def model():
    return fit(DENSE.runs).model


def test_every_concurrency_at_every_draft_count_is_within_3_percent():
    """The model is fitted to the same server's engine cycles, never to what its clients saw."""
    found = list(held_out(None))
    assert {(c.load.num_steps, c.load.concurrency) for c in found} == {
        (steps, concurrency) for steps in (0, 1, 3, 7) for concurrency in (1, 2, 4, 8, 16, 32, 64)
    }
    assert max(abs(c.error) for c in found) < BUDGET
    assert np.median([abs(c.error) for c in found]) < 0.01


@pytest.mark.parametrize(("part", "inside", "budget"), [("a depth", 7, BUDGET), ("a batch size", 21, 0.045)])
def test_what_the_fit_did_not_see_is_close_where_it_lies_between_what_it_saw(part, inside, budget):
    found = [c for c in held_out(dict(PARTS)[part]) if not c.extrapolated]
    assert len(found) == inside
    assert max(abs(c.error) for c in found) < budget


@pytest.mark.parametrize("apart_ms", [0.15, 0.4])
def test_when_exactly_the_client_sends_matters_little(apart_ms):
    assert max(abs(c.error) for c in held_out(None, apart_ms)) < BUDGET


def test_a_wave_that_is_sent_at_once_has_no_prompts_read_beside_its_decoding():
    """What a client cannot do: at 64 its requests would then be 3 to 7% faster than they were."""
    at_once = {c.load.concurrency: c.error for c in held_out(None, 0.0) if c.load.num_steps == 0}
    assert -0.07 < at_once[64] < -0.05
    assert abs(at_once[16]) < 0.015


def test_beyond_what_the_client_sustains_it_is_not_the_server_that_is_measured(model):
    """At 256 the server's own steps of 10.4 ms reach the client as 18.6 ms a token."""
    (load,) = (load for load in served() if load.concurrency > 2 * MOST_CONCURRENCY)
    assert compared(model, load).error < -0.3
