"""The request simulator against closed forms worked out by hand, and its rows against the identities that they keep."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pytest

from specsim.acceptance import ConstantRate, TreeLaw
from specsim.errors import ConfigurationError
from specsim.quantities import SpecConfig, Workload
from specsim.simulation import Benchmark, CycleTime, Drawer, Requests, simulate_requests
from specsim.simulation.renewal import cycles_moments

CHAIN = SpecConfig(3, 1, 4)


def test_cycles_of_one_step_by_hand():
    """A cycle emits 2 tokens with chance a, else 1: N(1) = 1; N(2) is 1 or 2; N(3) = 1 + N(1) or 1 + N(2)."""
    a = 0.3
    mean, variance = cycles_moments(np.array([[a]]), 3)
    np.testing.assert_allclose(mean[:, 0], [0, 1, 2 - a, 3 - 2 * a + a**2])
    # N(3): 2 with chance a + (1 − a)·a, 3 with chance (1 − a)²
    np.testing.assert_allclose(variance[:, 0], [0, 0, a * (1 - a), (1 - a) ** 2 * (1 - (1 - a) ** 2)])


def test_certain_cycles_take_whole_numbers():
    mean, variance = cycles_moments(np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), 10)
    np.testing.assert_array_equal(mean[10], [3, 10])  # ⌈10/4⌉ with every draft accepted; plain decode without any
    np.testing.assert_allclose(variance[10], 0, atol=1e-12)


def test_long_outputs_take_their_length_over_the_accept_length():
    survival = np.array([[0.7, 0.4, 0.2]])
    mean, variance = cycles_moments(survival, 4000)
    emitted = np.array([0.3, 0.3, 0.2, 0.2])
    length, second = emitted @ [1, 2, 3, 4], emitted @ [1, 4, 9, 16]
    assert mean[4000] - mean[3000] == pytest.approx(1000 / length, rel=1e-9)
    assert variance[4000] - variance[3000] == pytest.approx(1000 * (second - length**2) / length**3, rel=1e-9)


@pytest.mark.parametrize(
    ("drawer", "output_len"),
    [
        (Drawer.of(ConstantRate(0.6), CHAIN), 64),
        (Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2), 64),
        (Drawer.of(TreeLaw(0.53, 0.83, 0.64), SpecConfig(6, 8, 60), between_prompts=0.15), 48),
        (Drawer.of(ConstantRate(0.9), SpecConfig(7, 1, 8)), 11),
    ],
)
def test_the_mean_is_within_a_thousandth_of_the_closed_form(drawer, output_len):
    kinds = np.arange(drawer.survival.shape[0])  # every kind as often: what scatters is the cycles alone
    replicas = 200_000 // kinds.size
    rows = simulate_requests(Benchmark(drawer, CycleTime(20.0), kinds, output_len), replicas, np.random.default_rng(8))
    mean, variance = cycles_moments(drawer.survival, output_len)
    assert rows.cycles.mean() == pytest.approx(mean[output_len].mean(), rel=1e-3)
    assert rows.time_ms.mean() == pytest.approx(20.0 * mean[output_len].mean(), rel=1e-3)
    assert rows.cycles.var(axis=0).mean() == pytest.approx(variance[output_len].mean(), rel=0.02)
    total = 1000.0 * rows.tokens.sum() / rows.time_ms.sum()
    assert total == pytest.approx(1000.0 * output_len / (20.0 * mean[output_len].mean()), rel=1e-3)


def test_long_outputs_run_at_the_models_throughput():
    """R = B·L/C (eq. 6) with a spread between prompts, too."""
    drawer = Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2)
    length = 1 + 0.6 + 0.36 + 0.216
    benchmark = Benchmark(drawer, CycleTime(25.0), np.arange(drawer.survival.shape[0]), 20_000, batch_size=4)
    rows = simulate_requests(benchmark, 20, np.random.default_rng(2))
    assert rows.output_tok_s.mean() == pytest.approx(4 * length / 0.025, rel=1e-3)
    assert rows.accept_length.mean() == pytest.approx(length, rel=1e-3)


def test_rows_keep_every_token():
    drawer = Drawer.of(ConstantRate(0.7), CHAIN, between_prompts=0.1)
    lengths = np.random.default_rng(0).integers(1, 90, 40)
    rows = simulate_requests(Benchmark(drawer, CycleTime(20.0), 40, lengths), 300, np.random.default_rng(1))
    np.testing.assert_array_equal(rows.tokens, np.broadcast_to(lengths, (300, 40)))
    np.testing.assert_array_equal(rows.accepted.sum(axis=-1), rows.cycles)
    np.testing.assert_array_equal(rows.accepted @ np.array([1, 2, 3, 4]), rows.tokens + rows.cut)
    counted = rows.accepted.sum(axis=1)
    np.testing.assert_allclose(rows.accept_length, counted @ np.array([1, 2, 3, 4]) / counted.sum(axis=-1))
    assert rows.cut.min() >= 0
    assert rows.cut.max() == 3  # the bonus token of the last cycle may be the last that is wanted
    np.testing.assert_allclose(rows.tok_s_per_user, 1000 * rows.tokens / (20.0 * rows.cycles))
    assert (rows.cycles[:, lengths == 1] == 1).all()


def test_the_same_rows_come_from_any_executor_and_only_from_the_same_seed():
    benchmark = Benchmark(Drawer.of(ConstantRate(0.7), CHAIN), CycleTime(20.0, 0.01, 0.1), 50, 30)
    done: list[tuple[int, int]] = []
    alone = simulate_requests(
        benchmark, 200, np.random.default_rng(1), progress=lambda part, parts: done.append((part, parts))
    )
    with ThreadPoolExecutor(2) as pool:
        spread = simulate_requests(benchmark, 200, np.random.default_rng(1), executor=pool)
    for field in fields(Requests):
        np.testing.assert_array_equal(getattr(alone, field.name), getattr(spread, field.name))
    assert done == [(1, 3), (2, 3), (3, 3)]  # 81 replicas of 50 prompts in a chunk of 4,096 rows
    other = simulate_requests(benchmark, 200, np.random.default_rng(2))
    assert (alone.cycles != other.cycles).any()


def test_noise_of_runs_is_common_and_that_of_cycles_averages_out():
    one = Drawer.of(np.array([1.0]), SpecConfig(1, 1, 2))  # two tokens in every cycle
    of_runs = simulate_requests(
        Benchmark(one, CycleTime(20.0, between_runs=0.1), 3, 8), 20_000, np.random.default_rng(1)
    )
    np.testing.assert_allclose(of_runs.time_ms, of_runs.time_ms[:, :1] * np.ones(3))
    assert of_runs.time_ms.mean() == pytest.approx(80.0, rel=0.003)
    assert of_runs.time_ms[:, 0].std() / 80.0 == pytest.approx(0.1, rel=0.03)
    of_cycles = simulate_requests(
        Benchmark(one, CycleTime(20.0, between_cycles=0.2), 100, 32), 500, np.random.default_rng(1)
    )
    assert of_cycles.time_ms.mean() == pytest.approx(320.0, rel=0.001)
    assert of_cycles.time_ms.std() / 320.0 == pytest.approx(0.2 / np.sqrt(16), rel=0.02)


def test_the_cycle_comes_from_the_cost_model(campaign_model):
    time = CycleTime.of(campaign_model, SpecConfig(5, 1, 6, "eagle3"), Workload(1), "default")
    assert time.cycle_ms == pytest.approx(28.7 + 1.59)
    assert time.between_runs == campaign_model.noise.relative


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda drawer: CycleTime(0.0), "takes a time above 0"),
        (lambda drawer: CycleTime(1.0, -0.1), "noise is at least 0"),
        (lambda drawer: Benchmark(drawer, CycleTime(1.0), 0, 5), "at least one prompt"),
        (lambda drawer: Benchmark(drawer, CycleTime(1.0), 3, 0), "one output token"),
        (lambda drawer: Benchmark(drawer, CycleTime(1.0), 3, np.array([5, 6])), "one for each of 3 prompts"),
        (
            lambda drawer: simulate_requests(Benchmark(drawer, CycleTime(1.0), 3, 5), 0, np.random.default_rng(0)),
            "at least one replica",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make(Drawer.of(ConstantRate(0.5), CHAIN))
