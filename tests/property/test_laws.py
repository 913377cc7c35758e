"""Laws that hold whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student_t

from specsim import CostModel, SpecConfig, Workload, break_even, chain_accept_length, fit, predict, required_accept_rate
from tests.synthetic import Truth, lognormal, phase_runs

costs = st.floats(0.05, 50.0)
truths = st.builds(Truth, *(costs for _ in range(8)))
widths = st.sets(st.integers(2, 12), min_size=3, max_size=4).map(tuple)
chains = st.integers(1, 16)


def model_of(truth: Truth, at: tuple[int, ...] = (2, 4, 7), batches: tuple[int, ...] = (1, 4)) -> CostModel:
    return fit(phase_runs(truth, at, batches)).model


@given(truths, widths)
def test_fit_recovers_known_coefficients_exactly(truth, at):
    model = model_of(truth, at)
    expected = {
        "verify_fixed_ms": truth.verify_fixed_ms,
        "verify_per_token_ms": truth.verify_per_token_ms,
        "decode_fixed_ms": truth.decode_fixed_ms,
        "decode_per_token_ms": truth.decode_per_token_ms,
    }
    for name, value in expected.items():
        assert model.coefficient(name, "s").value == pytest.approx(value, rel=1e-6, abs=1e-7)
    assert model.coefficient("other_fixed_ms").value == pytest.approx(truth.other_ms, rel=1e-6, abs=1e-6)
    for name in ("draft_per_forward_ms", "draft_fixed_ms", "draft_per_token_ms"):
        assert model.coefficient(name).value == pytest.approx(getattr(truth, name), rel=1e-6, abs=1e-6)


@given(truths, chains, st.integers(1, 8))
def test_break_even_is_the_fixed_point(truth, steps, batch):
    model, spec, load = model_of(truth), SpecConfig(steps, 1, steps + 1), Workload(batch)
    answer = break_even(model, spec, load, "s")
    if not answer.feasible:
        assert np.isnan(answer.break_even_accept_length)
        assert answer.cost_ratio > steps + 1
        return
    if answer.break_even_accept_length < 1:
        return  # pays whatever is accepted; no legal accept length gives exactly the baseline
    at = predict(model, spec, load, answer.break_even_accept_length, "s")
    assert at.output_tok_s == pytest.approx(at.baseline_tok_s, rel=1e-9)
    assert at.speedup == pytest.approx(1.0, rel=1e-9)


COSTS_UP = tuple(name for name in Truth.__dataclass_fields__ if not name.startswith("decode"))


@given(truths, st.sampled_from(COSTS_UP), st.floats(1.01, 3.0), chains)
def test_break_even_rises_with_every_cost_of_the_cycle(truth, name, factor, steps):
    dearer = replace(truth, **{name: getattr(truth, name) * factor})
    spec, load = SpecConfig(steps, 1, steps + 1), Workload(2)
    before, after = (break_even(model_of(t), spec, load, "s").cost_ratio for t in (truth, dearer))
    assert after > before


@given(truths, st.sampled_from(("decode_fixed_ms", "decode_per_token_ms")), st.floats(1.01, 3.0), chains)
def test_break_even_falls_with_the_cost_of_plain_decode(truth, name, factor, steps):
    dearer = replace(truth, **{name: getattr(truth, name) * factor})
    spec, load = SpecConfig(steps, 1, steps + 1), Workload(2)
    before, after = (break_even(model_of(t), spec, load, "s").cost_ratio for t in (truth, dearer))
    assert after < before


@given(truths, st.floats(0.01, 100.0), chains)
def test_scaling_all_times_leaves_break_even_alone(truth, scale, steps):
    scaled = Truth(*(scale * getattr(truth, name) for name in truth.__dataclass_fields__))
    spec, load = SpecConfig(steps, 1, steps + 1), Workload(3)
    answers = [break_even(model_of(t), spec, load, "s") for t in (truth, scaled)]
    assert answers[0].cost_ratio == pytest.approx(answers[1].cost_ratio, rel=1e-7)


@given(truths, st.randoms(use_true_random=False), chains)
def test_order_of_runs_changes_nothing(truth, random, steps):
    runs = phase_runs(truth, (2, 4, 7), (1, 4), lognormal(5, 0.02))
    shuffled = runs.copy()
    random.shuffle(shuffled)
    spec, load = SpecConfig(steps, 1, steps + 1), Workload(3)
    answers = [break_even(fit(each).model, spec, load, "s") for each in (runs, shuffled)]
    assert answers[0].cost_ratio == pytest.approx(answers[1].cost_ratio, rel=1e-9)
    assert answers[0].interval == pytest.approx(answers[1].interval, rel=1e-7)


@given(truths, st.integers(0, 2**32 - 1))
def test_model_file_round_trip(tmp_path_factory, truth, seed):
    path = tmp_path_factory.mktemp("models") / "model.json"
    model = fit(phase_runs(truth, (2, 4, 7), (1, 4), lognormal(seed, 0.02))).model
    model.save(path)
    assert CostModel.load(path) == model


@given(truths, st.lists(chains, min_size=1, max_size=5), st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_arrays_agree_with_scalars(truth, steps, batches):
    model = fit(phase_runs(truth, (2, 4, 7), (1, 4), lognormal(3, 0.02))).model
    depth, load = np.array(steps)[:, None], np.array(batches)[None, :]
    together = break_even(model, SpecConfig(depth, 1, depth + 1), Workload(load), "s", accept_length=1.5)
    rates = predict(model, SpecConfig(depth, 1, depth + 1), Workload(load), 1.5, "s")
    assert together.cost_ratio.shape == (len(steps), len(batches))
    for i, s in enumerate(steps):
        for j, b in enumerate(batches):
            alone = break_even(model, SpecConfig(s, 1, s + 1), Workload(b), "s", accept_length=1.5)
            assert together.cost_ratio[i, j] == pytest.approx(alone.cost_ratio, rel=1e-12)
            assert together.interval[1][i, j] == pytest.approx(alone.interval[1], rel=1e-9)
            assert together.verdict.verdict[i, j] == alone.verdict.verdict
            assert together.verdict.probability_pays[i, j] == pytest.approx(alone.verdict.probability_pays, abs=1e-9)
            assert rates.output_tok_s[i, j] == pytest.approx(
                predict(model, SpecConfig(s, 1, s + 1), Workload(b), 1.5, "s").output_tok_s, rel=1e-12
            )


@given(truths, chains, st.floats(1.0, 2.0))
def test_speedup_is_length_over_break_even(truth, steps, length):
    model, spec = model_of(truth), SpecConfig(steps, 1, steps + 1)
    ratio = break_even(model, spec, Workload(2), "s").cost_ratio
    assert predict(model, spec, Workload(2), length, "s").speedup == pytest.approx(length / ratio, rel=1e-12)


@given(truths, chains)
def test_phases_add_up_to_the_cycle(truth, steps):
    times = predict(model_of(truth), SpecConfig(steps, 1, steps + 1), Workload(2), 1.0, "s").times
    assert times.verify_ms + times.draft_ms + times.extend_ms + times.other_ms == pytest.approx(
        times.cycle_ms, rel=1e-12
    )


@given(st.floats(0.0, 1.0), st.integers(0, 40))
def test_accept_rate_round_trip(rate, steps):
    length = chain_accept_length(rate, steps)
    assert 1 <= length <= steps + 1 + 1e-12
    back = required_accept_rate(min(length, steps + 1), steps)
    assert chain_accept_length(back, steps) == pytest.approx(length, rel=1e-12)


def test_intervals_cover_at_the_nominal_rate():
    """500 noisy campaigns: the 90% intervals hold the truth 87 to 93% of the time."""
    # far enough from the bounds that the sign of a coefficient is never in doubt, as the nominal rate assumes
    truth, spec, load = (
        Truth(other_ms=6.0, draft_fixed_ms=2.0, draft_per_token_ms=0.4),
        SpecConfig(5, 1, 6),
        Workload(2),
    )
    true_ratio = truth.cycle(2, 6) / truth.decode(2)
    hits, lines = np.zeros(3), 0
    for seed in range(500):
        model = fit(phase_runs(truth, (2, 4, 7), (1, 4), lognormal(10_000 + seed, 0.02))).model
        low, high = break_even(model, spec, load, "s").interval
        cycle_low, cycle_high = predict(model, spec, load, 1.0, "s").times.cycle_interval
        slope = model.coefficient("verify_per_token_ms", "s")
        reach = student_t.ppf(0.95, model.noise.residual_dof) * slope.standard_error
        lines += model.form == "line"
        hits += [
            low <= true_ratio <= high,
            cycle_low <= truth.cycle(2, 6) <= cycle_high,
            abs(slope.value - truth.verify_per_token_ms) <= reach,
        ]
    assert ((hits >= 0.87 * 500) & (hits <= 0.93 * 500)).all(), hits / 500
    assert lines >= 0.98 * 500  # what is a line is not taken for more


def test_assumed_noise_covers_when_it_is_right():
    """With as many coefficients as figures the interval rests on the assumed noise, and holds when that is true."""
    truth, spec, load = Truth(), SpecConfig(5, 1, 6), Workload(1)
    hits = 0
    for seed in range(500):
        model = fit(phase_runs(truth, (6,), (1,), lognormal(seed, 0.01)), noise=0.01).model
        assert model.noise.assumed
        low, high = break_even(model, spec, load, "s").interval
        hits += low <= truth.cycle(1, 6) / truth.decode(1) <= high
    assert 0.87 * 500 <= hits <= 0.93 * 500
