"""The cost model on own measured cycles that its fit did not see; budgets a fifth to a half above what was found."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy_cost import MOE_CARD, batch_size, configuration, constant_ratio, depth, held_out, runs_of
from specsim import fit
from specsim.runs.run import RunSet


@pytest.mark.parametrize(
    ("part", "rows", "inside", "median", "largest"),
    [(configuration, 30, 26, 0.008, 0.09), (batch_size, 30, 22, 0.008, 0.09), (depth, 21, 7, 0.006, 0.03)],
)
def test_left_out_cycles_are_predicted(part, rows, inside, median, largest):
    held = list(held_out(runs_of("Llama"), part, {}))
    errors = [h.error for h in held if not h.extrapolated]
    assert (len(held), len(errors)) == (rows, inside)
    assert np.median(errors) < median
    assert max(errors) < largest
    outside = [h.error for h in held if h.extrapolated]
    assert max(outside) > max(errors)  # what is far off is flagged


def test_better_than_a_constant_cost_ratio():
    ours = {h.run: h.error for h in held_out(runs_of("Llama"), configuration, {})}
    instead = list(constant_ratio(runs_of("Llama")))
    assert np.median([ours[h.run] for h in instead]) < 0.5 * np.median([h.error for h in instead])


def test_the_dense_model_asks_for_its_knees():
    model = fit(runs_of("Llama")).model
    knees = {c.name: c.parameters[0] for c in model.coefficients if c.name.endswith("knee_ms")}
    assert set(knees) == {"verify_knee_ms", "decode_knee_ms"}
    assert all(128 <= knee <= 256 for knee in knees.values())
    assert any(c.name == "verify_per_request_ms" for c in model.coefficients)


def test_plain_decode_of_experts_follows_their_coverage():
    """Five batch sizes: a line misses by up to a third, coverage with a small slope is within 1.2%."""
    fitted = fit(RunSet(runs_of("Qwen"), model_card=MOE_CARD))
    assert fitted.model.form == "line + expert coverage in decode"
    assert max(abs(r.relative) for r in fitted.residuals) < 0.012
    line = fit(runs_of("Qwen"))
    assert line.model.form == "line"
    assert max(abs(r.relative) for r in line.residuals) > 0.25
