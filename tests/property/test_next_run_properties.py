"""Laws of the next run, over random servers and sets of runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim import SpecConfig, Workload, break_even, fit
from specsim.acceptance import ConstantRate
from specsim.cost.model import CostModel
from specsim.next_run import WIDTHS, next_run, next_run_for_best
from specsim.questions import Asked
from specsim.runs.run import Figure
from tests.synthetic import Truth, at_noise, run


@st.composite
def whole_cycles(draw):
    """Runs of whole cycles, two widths or more, and a baseline, exactly on a line; with the width asked about."""
    truth = Truth(draw(st.floats(5, 30)), draw(st.floats(0.1, 3)), 0.0, 0.0, draw(st.floats(5, 20)), 0.0, 0.0, 0.0)
    widths = draw(st.sets(st.integers(2, 12), min_size=2, max_size=4))
    runs = [run(f"{n}", 1, n, cycle_ms=truth.verify(1, n)) for n in sorted(widths)]
    return truth, [*runs, run("p", 1, None, decode_ms=truth.decode(1))], draw(st.integers(2, 12))


def width_of(model: CostModel, asked: int) -> float:
    low, high = break_even(model, SpecConfig.of(num_draft_tokens=asked), Workload(1), "s").interval
    return high - low


def with_one_more(truth: Truth, runs, kind: str, width: int | None) -> CostModel:
    time = truth.decode(1) if width is None else truth.verify(1, width)
    return at_noise(fit([*runs, run("new", 1, width, **{f"{kind}_ms": time})]).model, 0.01)


@given(whole_cycles())
@settings(max_examples=25)
def test_the_recommended_run_is_the_best_that_refits_find(case):
    truth, runs, asked = case
    model = at_noise(fit(runs).model, 0.01)
    plan = next_run(model, Asked(num_draft_tokens=asked))
    now = width_of(model, asked)
    found = [each for each in plan.next if not each.checks_form]
    refitted = [width_of(with_one_more(truth, runs, "cycle", n), asked) for n in WIDTHS]
    refitted.append(width_of(with_one_more(truth, runs, "decode", None), asked))
    best = found[0]
    width = None if best.spec is None else int(best.spec.num_draft_tokens)
    mine = width_of(with_one_more(truth, runs, best.kind, width), asked)
    checked = [each.ratio for each in plan.next if each.checks_form]
    assert min([mine / now, *checked]) <= min(refitted) / now * (1 + 1e-4)
    assert np.isclose(best.ratio, mine / now, rtol=1e-4)


def in_order(ratios) -> bool:
    """Whether they never fall, but for what ties: intervals alike to six digits are ranked by what a run costs."""
    return all(later >= earlier * (1 - 2e-5) for earlier, later in pairwise(ratios))


@given(whole_cycles())
@settings(max_examples=40)
def test_no_run_widens_and_the_list_is_in_order(case):
    _, runs, asked = case
    plan = next_run(at_noise(fit(runs).model, 0.01), Asked(num_draft_tokens=asked))
    ratios = [each.ratio for each in plan.next]
    ranked = [each.ratio for each in plan.next if not each.checks_form]
    assert all(0 < ratio <= 1 + 1e-9 for ratio in ratios)
    assert in_order(ranked)


# -- the best setting ----------------------------------------------------------------------------------------------------


@st.composite
def two_settings(draw):
    """Noisy whole cycles under two NCCL settings, the second at fewer widths, baselines under one or both, and a rate."""
    _, runs, _ = draw(whole_cycles())
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    factor = draw(st.floats(0.7, 1.3))
    cycles = runs[: draw(st.integers(1, len(runs) - 1))]
    other = [replace(timed(each, factor), id=f"t{each.id}", nccl="t") for each in cycles]
    baseline = [replace(timed(runs[-1], factor), id="tp", nccl="t")] if draw(st.booleans()) else []
    noisy = [timed(each, float(np.exp(generator.normal(0, 0.01)))) for each in (*runs, *other, *baseline)]
    return noisy, ConstantRate(draw(st.floats(0.2, 0.9)))


def timed(made, factor: float):
    """A run whose times are longer by a factor."""
    return replace(made, figures={name: Figure(figure.best * factor) for name, figure in made.figures.items()})


def measured(plan):
    return [(each.kind, each.spec, each.batch_size, each.nccl) for each in plan.next]


@given(two_settings())
@settings(max_examples=40)
def test_no_run_widens_the_doubt_about_the_best(case):
    runs, law = case
    plan = next_run_for_best(fit(runs).model, None, law)
    ratios = [each.ratio for each in plan.next]
    ranked = [each.ratio for each in plan.next if not each.checks_form]
    assert all(0 <= ratio <= 1 + 1e-9 for ratio in ratios)
    assert in_order(ranked)


@given(two_settings(), st.integers(-3, 3))
@settings(max_examples=25)
def test_the_order_of_runs_does_not_depend_on_the_unit_of_time(case, power):
    """Powers of two, so that arithmetic scales exactly and no tie is broken by rounding."""
    runs, law = case
    plan = next_run_for_best(fit(runs).model, None, law)
    scaled = next_run_for_best(fit([timed(each, 2.0**power) for each in runs]).model, None, law)
    assert measured(scaled) == measured(plan)
    assert np.allclose([each.ratio for each in scaled.next], [each.ratio for each in plan.next], rtol=1e-9)
    assert (scaled.about.best.asked, scaled.about.rival.asked) == (plan.about.best.asked, plan.about.rival.asked)
    assert np.allclose(scaled.interval_now, plan.interval_now, rtol=1e-9)


@given(two_settings())
@settings(max_examples=25)
def test_the_best_has_the_highest_throughput_and_its_rival_is_the_least_decided(case):
    runs, law = case
    contest = next_run_for_best(fit(runs).model, None, law).about
    rates = [each.output_tok_s for each in (contest.best, *contest.rivals) if not each.missing]
    assert rates == sorted(rates, reverse=True)
    if not any(each.missing or each.first_by for each in contest.rivals):
        decided = [np.log(each.time_ratio) / np.log(each.interval[1] / each.time_ratio) for each in contest.rivals]
        assert contest.rivals[int(np.argmax(decided))] == contest.rival
