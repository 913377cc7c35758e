"""The cost model on own measured cycles that its fit did not see; budgets a fifth to a half above what was found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.accuracy_bare import (
    FEW_OF_THE_MIXTURE,
    MIXTURE,
    SGLANG,
    SMALL,
    experts,
    harness,
    harness_served,
    load_scatter,
    parted,
    stack,
)
from benchmarks.accuracy_trees import from_one_tree
from benchmarks.groups import DENSE, MOE
from benchmarks.held_out import batch_size, configuration, constant_ratio, held_out, predicted, shape
from specsim import fit


@pytest.mark.parametrize(
    ("part", "rows", "inside", "median", "largest"),
    [(configuration, 30, 26, 0.008, 0.09), (batch_size, 30, 22, 0.008, 0.09), (shape, 21, 7, 0.006, 0.03)],
)
def test_left_out_cycles_are_predicted(part, rows, inside, median, largest):
    held = held_out(DENSE.runs, part)
    errors = [h.error for h in held if not h.extrapolated]
    assert (len(held), len(errors)) == (rows, inside)
    assert np.median(errors) < median
    assert max(errors) < largest
    outside = [h.error for h in held if h.extrapolated]
    assert max(outside) > max(errors)  # what is far off is flagged


@pytest.mark.parametrize(
    ("bare", "part", "median", "p95", "largest"),
    [
        (stack(), batch_size, 0.008, 0.036, 0.05),
        (stack(), shape, 0.011, 0.042, 0.047),
        (stack("p10_ms"), batch_size, 0.008, 0.033, 0.045),
        (harness("llama-3.1-8b"), batch_size, 0.011, 0.029, 0.044),
        (harness("llama-3.1-8b"), shape, 0.011, 0.04, 0.044),
    ],
    ids=["stack, batch", "stack, depth", "fast repeats, batch", "harness, batch", "harness, depth"],
)
def test_bare_forwards_know_the_knees_that_are_left_out(bare, part, median, p95, largest):
    """Extrapolated rows are among them, on which a fit without is off by up to 14%."""
    errors = [h.error for h in held_out(DENSE.runs, part, bare)]
    assert len(errors) in (21, 30)
    assert np.median(errors) < median
    assert np.quantile(errors, 0.95) < p95
    assert max(errors) < largest


def test_expert_layers_know_how_plain_decode_of_a_mixture_grows():
    errors = [h.error for h in held_out(MOE.runs, batch_size, experts())]
    assert len(errors) == 5
    assert max(errors) < 0.022


@pytest.mark.parametrize(
    ("part", "told", "median", "largest"),
    [(configuration, 24, 0.009, 0.026), (batch_size, 24, 0.013, 0.053), (shape, 18, 0.008, 0.068)],
    ids=["configuration", "batch size", "depth"],
)
def test_a_mixture_with_distinct_drafts_follows_its_expert_layers(part, told, median, largest):
    """Found: median 0.6 to 1.0%, at most 2.1, 4.4 and 5.7%; by the card's share alone at most 3.7, 5.1 and 2.8%."""
    for bare, factor in ((experts(), 1.0), (None, 1.5)):
        errors = [h.error for h in held_out(harness_served(MIXTURE), part, bare)]
        assert len(errors) == told
        assert np.median(errors) < factor * median
        assert max(errors) < factor * largest


@pytest.mark.parametrize(
    ("name", "told", "median", "by_the_card"),
    [(name, *found) for name, found in
     zip(FEW_OF_THE_MIXTURE, ((20, 0.035, 0.28), (18, 0.009, 0.15), (16, 0.046, 0.24)), strict=True)],
)  # fmt: skip
def test_a_few_runs_of_a_mixture_tell_the_rest_over_its_expert_layers(name, told, median, by_the_card):
    """Found: from six corners median 0.7%, at most 1.9%; from one draft, asked for seven, median 2.9 and 3.8%, at most 12%."""
    seen, unseen = parted(harness_served(MIXTURE), FEW_OF_THE_MIXTURE[name])
    errors = [h.error for h in predicted(seen, unseen, experts())]
    assert len(errors) == told
    assert np.median(errors) < median
    assert max(errors) < (0.023 if name.startswith("six") else 0.14)
    others = [h.error for h in predicted(seen, unseen)]
    assert len(others) == told
    assert max(others) < by_the_card


def test_without_a_card_that_states_experts_a_few_runs_are_a_line():
    """Four runs of a target of which nothing is known: over half too long at batch 32."""
    four = next(iter(FEW_OF_THE_MIXTURE))
    seen, unseen = parted(replace(harness_served(MIXTURE), model_card={}), FEW_OF_THE_MIXTURE[four])
    assert max(h.error for h in predicted(seen, unseen)) > 0.5


def test_experts_that_plain_decode_asks_for_are_verifys_too():
    """Does not reach 1%, but a line is no form for it: found median 23%, at most 30%, seven drafts known at two batch sizes."""

    def seen_of(run):
        return run.spec is None or (run.spec.num_draft_tokens == 8 and run.workload.batch_size in (1, 64))

    seen, unseen = parted(harness_served(MIXTURE), seen_of)
    assert {c.name for c in fit(seen).model.coefficients} >= {"verify_coverage_ms", "decode_coverage_ms"}
    errors = [h.error for h in predicted(seen, unseen)]
    assert len(errors) == 16
    assert np.median(errors) < 0.27
    assert max(errors) < 0.35


@pytest.mark.parametrize(
    ("name", "floor", "least", "most"), [(SMALL, SMALL, 0.02, 0.06), (SGLANG, "llama-3.1-8b", 0.015, 0.04)]
)
def test_loads_that_scatter_by_percents_are_not_told_to_one(name, floor, least, most):
    """Found: a configuration left out median 4.3 and 2.6% (over the harness's forwards 4.8 and 2.8), of loads that scatter by 1.6 and 1.9%."""
    usual, _ = load_scatter(name)
    assert usual > 0.01
    for bare in (None, harness(floor)):
        errors = [h.error for h in held_out(harness_served(name), configuration, bare)]
        assert len(errors) in (18, 24)
        assert least < np.median(errors) < most
        assert max(errors) < 0.18


def test_sglangs_trees_from_its_chain_and_one_tree():
    """Does not reach 1%. Found: median 4.8%, over the harness's forwards 6.0%, and at most 38 and 14%."""
    for bare, median, largest in ((None, 0.06, 0.42), (harness("llama-3.1-8b"), 0.075, 0.17)):
        errors = [h.error for h in from_one_tree(harness_served(SGLANG), bare)]
        assert len(errors) == 36  # three batch sizes of the three other trees, by each of four
        assert np.median(errors) < median
        assert max(errors) < largest


def test_better_than_a_constant_cost_ratio():
    guess = constant_ratio(DENSE.runs)
    held = [(h, guess(DENSE.runs.run(h.run), h.kind)) for h in held_out(DENSE.runs, configuration)]
    pairs = [(h.error, abs(time / h.measured_ms - 1)) for h, time in held if time is not None]
    assert len(pairs) == 20  # 21 cycles, of which one is known
    ours, theirs = zip(*pairs, strict=True)
    assert np.median(ours) < 0.5 * np.median(theirs)


def test_the_dense_model_asks_for_its_knees():
    model = fit(DENSE.runs).model
    knees = {c.name: c.parameters[0] for c in model.coefficients if c.name.endswith("knee_ms")}
    assert set(knees) == {"verify_knee_ms", "decode_knee_ms"}
    assert all(128 <= knee <= 256 for knee in knees.values())
    assert any(c.name == "verify_per_request_ms" for c in model.coefficients)


def test_plain_decode_of_experts_follows_their_coverage():
    """Five batch sizes: a line misses by up to a third, coverage with a small slope is within 1.2%."""
    fitted = fit(MOE.runs)
    assert fitted.model.form == "line + expert coverage in decode"
    assert max(abs(r.relative) for r in fitted.residuals) < 0.012
    line = fit(MOE.runs.runs)
    assert line.model.form == "line"
    assert max(abs(r.relative) for r in line.residuals) > 0.25
