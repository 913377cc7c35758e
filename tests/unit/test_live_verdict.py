"""PASS, FAIL, INCONCLUSIVE: by hand, and their error rates over many looks, drawn."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from specsim.live.measured import measured
from specsim.live.verdict import FAIL, INCONCLUSIVE, LOOKS, PASS, Expected, judge, look_error, verdict_of_all
from specsim.live.window import Reading, Stream, steady_window
from specsim.quantities import SpecConfig

Z = NormalDist().inv_cdf(0.95)
MANY = 100_000  # degrees of freedom: Student's t is normal


def exactly(value, half_width):
    return Expected(value, value - half_width, value + half_width)


def test_the_error_of_all_looks_adds_up_to_ten_percent():
    parts = [look_error(before, now) for before, now in zip((0.0, *LOOKS), LOOKS, strict=False)]
    assert sum(parts) == pytest.approx(0.10)
    assert look_error(0.0, 0.5) == pytest.approx(0.025)  # a quarter of it at half the time
    assert look_error(1.0, 1.2) == 0


def test_the_whole_interval_inside_passes_and_wholly_outside_fails():
    # error 0.10 is 1.645 standard errors; the prediction is certain
    near = judge(exactly(101.0, 0.0), Reading(100.0, 1.0, MANY), 3.0, 0.10)
    assert near.verdict == PASS
    assert near.difference_pct == pytest.approx(1.0)
    assert near.interval_pct == pytest.approx((1 - Z, 1 + Z), abs=1e-3)
    assert judge(exactly(105.0, 0.0), Reading(100.0, 1.0, MANY), 3.0, 0.10).verdict == FAIL
    assert judge(exactly(95.0, 0.0), Reading(100.0, 1.0, MANY), 3.0, 0.10).verdict == FAIL
    assert judge(exactly(102.0, 0.0), Reading(100.0, 1.0, MANY), 3.0, 0.10).verdict == INCONCLUSIVE


def test_the_predictions_interval_joins_in_squares_widened_for_the_looks():
    found = judge(exactly(100.0, 2.0), Reading(100.0, 1.0, MANY), 3.0, 0.10)
    half = math.hypot(1.08 * 2.0, Z)
    assert found.interval_pct == pytest.approx((-half, half), abs=1e-3)


def test_an_undecided_figure_says_how_long_a_run_would_tell():
    # 1% away and 3% allowed leave 2%; at the last look (error 0.04375) 2.016 standard errors of 2% are 4.03%
    found = judge(exactly(101.0, 0.0), Reading(100.0, 2.0, MANY), 3.0, look_error(0.75, 1.0))
    assert found.verdict == INCONCLUSIVE
    assert found.factor == pytest.approx((2.0 * NormalDist().inv_cdf(1 - 0.04375 / 2) / 2.0) ** 2, rel=1e-3)


def test_a_prediction_wider_than_the_tolerance_can_never_be_told():
    found = judge(exactly(100.0, 4.0), Reading(100.0, 0.1, MANY), 3.0, 0.10)
    assert (found.verdict, found.factor) == (INCONCLUSIVE, math.inf)
    assert "own interval, ±4.3%" in found.why


def test_an_error_that_is_not_known_decides_nothing():
    found = judge(exactly(200.0, 0.0), Reading(100.0, math.nan, 0), 3.0, 0.10)
    assert found.verdict == INCONCLUSIVE
    assert "too few cycles" in found.why


def test_a_margin_is_judged_against_the_length_that_it_is_a_part_of():
    found = judge(exactly(0.05, 0.0), Reading(-0.01, 0.0, MANY), 3.0, 0.10, scale=2.0)
    assert found.difference_pct == pytest.approx(3.0)


def test_one_failure_fails_all_and_nothing_judged_is_no_pass():
    assert verdict_of_all([PASS, FAIL, INCONCLUSIVE]) == FAIL
    assert verdict_of_all([PASS, PASS]) == PASS
    assert verdict_of_all([PASS, INCONCLUSIVE]) == INCONCLUSIVE
    assert verdict_of_all([]) == INCONCLUSIVE


# -- error rates -------------------------------------------------------------------------------------------------------


def outcome(rng, *, truth_pct, own_pct, noise_pct, tolerance_pct=3.0):
    """One sequential session: a prediction that errs once, a mean that settles as time goes by."""
    predicted = 100.0 + truth_pct + own_pct * rng.standard_normal()
    total, before = 0.0, 0.0
    for now in LOOKS:
        total += 100.0 * (now - before) + noise_pct * (now - before) ** 0.5 * rng.standard_normal()
        stated = noise_pct / now**0.5 * (rng.chisquare(31) / 31) ** 0.5  # an error from 32 batches
        reading, expected = Reading(total / now, stated, 31), exactly(predicted, Z * own_pct)
        verdict = judge(expected, reading, tolerance_pct, look_error(before, now)).verdict
        if verdict != INCONCLUSIVE:
            return verdict
        before = now
    return INCONCLUSIVE


def shares(trials, **case):
    rng = np.random.default_rng(20)
    found = [outcome(rng, **case) for _ in range(trials)]
    return {word: found.count(word) / trials for word in (PASS, FAIL, INCONCLUSIVE)}


@pytest.mark.parametrize(("own", "noise"), [(0.0, 0.5), (0.0, 2.0), (1.0, 0.2), (1.0, 0.5), (0.5, 1.5)])
def test_at_the_edge_of_the_tolerance_wrong_verdicts_stay_below_five_percent(own, noise):
    """At the edge both words are wrong by a hair; three standard errors of 2000 draws are 1.5%."""
    found = shares(2000, truth_pct=3.0, own_pct=own, noise_pct=noise)
    assert found[FAIL] < 0.065
    assert found[PASS] < 0.065


def test_a_server_that_behaves_is_not_failed_and_one_far_off_is():
    assert shares(400, truth_pct=0.0, own_pct=0.5, noise_pct=0.5)[PASS] > 0.97
    assert shares(400, truth_pct=0.0, own_pct=1.0, noise_pct=1.0)[FAIL] < 0.005
    assert shares(400, truth_pct=10.0, own_pct=1.0, noise_pct=1.0)[FAIL] > 0.99


def test_noise_beyond_the_tolerance_is_inconclusive():
    assert shares(400, truth_pct=0.0, own_pct=0.0, noise_pct=6.0)[INCONCLUSIVE] > 0.9


# -- from arrivals to the verdict --------------------------------------------------------------------------------------


def arrivals(rng, *, requests=4, cycles=150, cycle_s=0.02, survival=0.7, drafts=3):
    """Requests that share cycles of 2% jitter, each accepting drafts with chance `survival` until one is refused."""
    times = 0.5 + np.cumsum(cycle_s * (1 + 0.02 * rng.standard_normal(cycles + 1)))
    streams = []
    for _ in range(requests):
        accepted = np.cumprod(rng.random((cycles, drafts)) < survival, axis=1).sum(axis=1)
        streams.append(Stream(0.0, times, np.cumsum([1, *(1 + accepted)]).astype(float), 12, None))
    return streams


LENGTH = 1 + 0.7 + 0.49 + 0.343


@pytest.mark.parametrize(("off_pct", "most"), [(5.0, 0.10), (0.0, 0.0)])  # at the edge 5%, and 3 errors of 300 sessions
def test_a_server_within_the_tolerance_is_hardly_ever_failed(off_pct, most):
    rng, failed = np.random.default_rng(8), {"cycle_ms": 0, "accept_length": 0, "output_tok_s": 0}
    truth = {"cycle_ms": 20.0, "accept_length": LENGTH, "output_tok_s": 4000 * LENGTH / 20.0}
    for _ in range(300):
        window = steady_window(arrivals(rng), 4)
        figures = measured(window, SpecConfig(3, 1, 4), None).figures
        for name, value in truth.items():
            predicted = exactly(value * (1 - off_pct / 100), 0.0)
            failed[name] += judge(predicted, figures[name], 5.0, 0.10).verdict == FAIL
    assert {name: count / 300 <= most for name, count in failed.items()} == dict.fromkeys(truth, True)


def test_a_server_twice_the_tolerance_off_is_failed():
    rng = np.random.default_rng(9)
    found = [
        measured(steady_window(arrivals(rng), 4), SpecConfig(3, 1, 4), None).figures["cycle_ms"] for _ in range(20)
    ]
    assert {judge(exactly(22.0, 0.0), reading, 5.0, 0.05).verdict for reading in found} == {FAIL}
