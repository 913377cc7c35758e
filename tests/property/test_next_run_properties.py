"""Laws of the next run, over random servers and sets of runs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim import SpecConfig, Workload, break_even, fit
from specsim.cost.model import CostModel
from specsim.next_run import WIDTHS, next_run
from specsim.questions import Asked
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
@settings(max_examples=25, deadline=None)
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


@given(whole_cycles())
@settings(max_examples=40, deadline=None)
def test_no_run_widens_and_the_list_is_in_order(case):
    _, runs, asked = case
    plan = next_run(fit(runs).model, Asked(num_draft_tokens=asked))
    ratios = [each.ratio for each in plan.next]
    ranked = [each.ratio for each in plan.next if not each.checks_form]
    assert all(0 < ratio <= 1 + 1e-9 for ratio in ratios)
    assert ranked == sorted(ranked)
