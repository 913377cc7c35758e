"""Laws of a fit over bare forwards, whatever the curve and the served times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim import BareForwards, CostModel, SpecConfig, Workload, break_even, fit, predict
from tests.synthetic import lognormal, run

COUNTS = (1, 2, 4, 8, 16, 32, 64)
steps_up = st.lists(st.floats(0.0, 3.0), min_size=len(COUNTS) - 1, max_size=len(COUNTS) - 1)
firsts = st.floats(1.0, 20.0)
rests = st.tuples(*(st.floats(0.05, 2.0) for _ in range(4)))
seeds = st.integers(0, 2**32 - 1)


def curve(first: float, ups: list[float]) -> BareForwards:
    return BareForwards.of(COUNTS, first + np.concatenate([[0.0], np.cumsum(ups)]), "drawn")


def served(bare: BareForwards, rest: tuple[float, ...], noise=None, scale: float = 1.0):
    """Cycles and plain steps at batch 1, 2 and 8, from a curve and what stands beside it."""
    draw = noise or (lambda: 1.0)
    fixed, by_request, drafting, plain = rest

    def alone(tokens: int) -> float:
        return float(np.interp(tokens, bare.tokens, bare.times_ms))

    drafted = [
        run(f"{b}x{w}", b, w, cycle_ms=scale * draw() * (alone(b * w) + fixed + by_request * b + drafting * (w - 1)))
        for b in (1, 2, 8)
        for w in (2, 4, 8)
    ]
    return drafted + [run(f"plain {b}", b, None, decode_ms=scale * draw() * (alone(b) + plain)) for b in (1, 2, 8)]


@given(firsts, steps_up, rests)
def test_what_stands_beside_a_curve_is_recovered(first, ups, rest):
    bare = curve(first, ups)
    model = fit(served(bare, rest), bare_forwards=bare).model
    found = [model.coefficient(name, "s" if name.endswith("fixed_ms") else None).value for name in (
        "verify_fixed_ms", "verify_per_request_ms", "draft_per_forward_ms", "decode_fixed_ms"
    )]  # fmt: skip
    assert found == pytest.approx(rest, rel=1e-5, abs=1e-6)


@given(firsts, steps_up, rests, seeds)
def test_no_cycle_gets_cheaper_with_tokens_requests_or_depth(first, ups, rest, seed):
    bare = curve(first, ups)
    model = fit(served(bare, rest, lognormal(seed, 0.03)), bare_forwards=bare).model
    steps, batches = np.arange(1, 12)[:, None], np.array([1, 2, 3, 5, 8, 16, 40])
    times = predict(model, SpecConfig(steps, 1, steps + 1), Workload(batches), 1.0).times.cycle_ms
    assert (np.diff(times, axis=0) >= -1e-9 * times[1:]).all()
    assert (np.diff(times, axis=1) >= -1e-9 * times[:, 1:]).all()


@given(firsts, steps_up, rests, seeds, st.floats(0.01, 100.0))
def test_scaling_all_times_leaves_break_even_alone(first, ups, rest, seed, scale):
    bare = curve(first, ups)
    spec, load = SpecConfig(5, 1, 6), Workload(2)
    one, other = (
        break_even(
            fit(served(bare, rest, lognormal(seed, 0.02), factor), bare_forwards=bare.scaled(factor)).model, spec, load
        )
        for factor in (1.0, scale)
    )
    assert one.cost_ratio == pytest.approx(other.cost_ratio, rel=1e-7)
    assert one.interval == pytest.approx(other.interval, rel=1e-6)


@given(firsts, steps_up, rests, seeds)
def test_model_file_round_trip(tmp_path_factory, first, ups, rest, seed):
    path = tmp_path_factory.mktemp("models") / "model.json"
    bare = curve(first, ups)
    model = fit(served(bare, rest, lognormal(seed, 0.02)), bare_forwards=bare).model
    model.save(path)
    assert CostModel.load(path) == model


@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0.01, 1000.0)), min_size=1, max_size=30), st.floats(0.1, 10))
def test_a_curve_never_falls_and_never_leaves_its_readings(readings, factor):
    tokens, times = zip(*readings, strict=True)
    bare = BareForwards.of(tokens, times, "drawn")
    asked = np.arange(1, 6000)
    priced = bare.time_ms(asked)
    assert (np.diff(priced) >= -1e-9).all()
    within = ~bare.beyond(asked)
    assert (priced[within] >= min(times) - 1e-9).all()
    assert (priced[within] <= max(times) + 1e-9).all()
    assert bare.scaled(factor).time_ms(asked) == pytest.approx(factor * priced)
