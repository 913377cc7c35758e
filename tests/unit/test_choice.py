"""Which terms the runs ask for: recovered where they are there, not invented where they are not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from specsim import CostModel, Run, Setup, SpecConfig, Workload, fit, predict
from specsim.fitting.choice import choose
from specsim.fitting.columns import base_columns, features, told_apart
from specsim.fitting.least_squares import solve
from specsim.fitting.observations import observations
from specsim.report.records import fit_record
from specsim.runs.run import Figure, RunSet
from tests.synthetic import Truth, lognormal, phase_runs, run

WIDTHS, BATCHES = (2, 3, 4, 6, 8), (1, 2, 4, 8, 16, 32)


def chain(width: int) -> SpecConfig:
    return SpecConfig.of(num_draft_tokens=width)


def measured(verify, decode, noise=None):
    """Verify times at every width and batch, baselines at every batch, from formulas in T and B."""
    draw = noise or (lambda: 1.0)
    runs = [run(f"{b}x{w}", b, w, verify_ms=verify(b, w) * draw()) for b in BATCHES for w in WIDTHS]
    return runs + [run(f"p{b}", b, None, decode_ms=decode(b) * draw()) for b in BATCHES]


def line(b: int, w: int) -> float:
    return 20 + 0.05 * b * w


@pytest.mark.parametrize("noise", [None, lognormal(4, 0.003)])
def test_a_knee_is_found_where_it_is(noise):
    model = fit(measured(lambda b, w: line(b, w) + 0.1 * max(b * w - 64, 0), lambda b: 15 + 0.02 * b, noise)).model
    (knee,) = [c for c in model.coefficients if c.name == "verify_knee_ms"]
    assert knee.parameters == (64.0,)
    assert knee.value == pytest.approx(0.1, rel=0.1)
    assert predict(model, chain(6), Workload(32), 1.0, "s").times.verify_ms == pytest.approx(
        20 + 0.05 * 192 + 12.8, rel=0.01
    )
    assert "knee at 64 tokens" in model.form


def test_expert_coverage_is_found_by_its_share():
    def covered(tokens: int) -> float:
        return 1 - (1 - 1 / 16) ** tokens

    model = fit(
        measured(lambda b, w: 5 + 12 * covered(b * w) + 0.01 * b * w, lambda b: 4 + 12 * covered(b) + 0.01 * b)
    ).model
    found = {c.name: c for c in model.coefficients}
    assert found["verify_coverage_ms"].parameters == found["decode_coverage_ms"].parameters == (1 / 16,)
    assert found["verify_coverage_ms"].value == pytest.approx(12, rel=1e-3)


def test_requests_cost_beyond_their_tokens():
    model = fit(measured(lambda b, w: line(b, w) + 0.03 * b, lambda b: 15 + 0.1 * b, lognormal(5, 0.001))).model
    (per_request,) = [c for c in model.coefficients if c.name == "verify_per_request_ms"]
    assert per_request.value == pytest.approx(0.03, rel=0.15)


def test_a_model_card_tells_coverage_from_a_line_with_few_points():
    """Plain decode of 8 of 128 experts at five batch sizes: a line misses, and there are too few points for an AICc."""
    runs = [run(f"p{b}", b, None, decode_ms=4 + 17 * (1 - (1 - 1 / 16) ** b)) for b in (1, 4, 16, 64, 256)]
    with_card = fit(RunSet(tuple(runs), model_card={"experts": 128, "experts_per_token": 8})).model
    assert with_card.form == "expert coverage instead of a line in decode"
    assert fit(runs).model.form == "line"


def test_two_widths_cannot_tell_a_line_from_coverage_and_say_by_how_much(campaign_model):
    (other,) = campaign_model.alternatives
    assert other.form == "expert coverage instead of a line in verify"
    times = predict(campaign_model, chain(16), Workload(1), 1.0, "default").times
    share = 8 / 384
    slope = 3.1 / ((1 - share) ** 3 - (1 - share) ** 6)
    coverage = 25.6 + slope * ((1 - share) ** 3 - (1 - share) ** 16)
    rest = 0.52 + 0.69 + 13 * 0.38 / 3
    assert times.by_form == {other.form: pytest.approx(coverage + rest)}
    assert times.cycle_ms == pytest.approx(22.5 + 16 * 3.1 / 3 + rest)
    assert predict(campaign_model, chain(6), Workload(1), 1.0, "default").times.by_form[other.form] == pytest.approx(
        30.29
    )


def few_of_a_mixture(experts, wide):
    """Whole cycles of two tokens and plain decode at two batch sizes, 3 ms and 14 times the experts touched."""
    share = 8 / experts

    def time(tokens):
        return 3 + 14 * (1 - (1 - share) ** tokens)

    runs = [run(f"{b}", b, 2, cycle_ms=time(2 * b)) for b in (1, wide)]
    runs += [run(f"p{b}", b, None, decode_ms=time(b)) for b in (1, wide)]
    return fit(RunSet(tuple(runs), model_card={"experts": experts, "experts_per_token": 8})).model, time


def test_where_few_runs_touch_most_experts_their_coverage_is_presumed_and_the_line_named():
    model, time = few_of_a_mixture(128, 16)
    assert model.form == "expert coverage instead of a line in verify and decode"
    assert "line" in [other.form for other in model.alternatives]
    times = predict(model, chain(2), Workload(64), 1.0, "s")
    assert times.times.cycle_ms == pytest.approx(time(128))
    assert times.decode_ms == pytest.approx(time(64))


def test_where_few_runs_touch_a_few_experts_a_line_stands_in():
    """8 of 384 at 8 tokens and 4: touched is within a fifth of as many as would be without overlap."""
    model, _ = few_of_a_mixture(384, 4)
    assert model.form == "line"
    assert model.alternatives


def test_what_is_a_line_stays_one():
    for seed in range(20):
        assert fit(phase_runs(Truth(), WIDTHS, (1, 2, 4, 8), lognormal(60_000 + seed, 0.02))).model.form == "line"


def test_held_out_error_is_that_of_refitting_without_each_configuration():
    seen = observations(measured(line, lambda b: 15 + 0.1 * b, lognormal(6, 0.01)), None)
    columns, _ = told_apart(base_columns(seen), seen, 0.01)
    form, _ = choose(columns, seen, ())
    design, times = features(columns, seen), np.array([o.time_ms for o in seen])
    fitted = design @ solve(design, times, np.ones(len(seen))).values
    keys = [(o.phases, o.verify_tokens, float(o.cycle.batch_size[0])) for o in seen]
    squares = []
    for key in dict.fromkeys(keys):
        out = np.array([k == key for k in keys])
        theta = np.linalg.lstsq(design[~out] / fitted[~out, None], times[~out] / fitted[~out], rcond=None)[0]
        squares += list(((times[out] - design[out] @ theta) / fitted[out]) ** 2)
    assert form.held_out == pytest.approx(np.mean(squares) ** 0.5, rel=1e-6)


def test_a_model_with_shapes_and_alternatives_survives_its_file(tmp_path, campaign_model):
    knee = fit(measured(lambda b, w: line(b, w) + 0.1 * max(b * w - 64, 0), lambda b: 15 + 0.02 * b)).model
    for model in (campaign_model, knee):
        model.save(tmp_path / "model.json")
        assert CostModel.load(tmp_path / "model.json") == model


def test_more_tokens_never_cost_less_whatever_the_form():
    """Every feature rises with tokens and requests, and no coefficient is negative."""
    model = fit(measured(lambda b, w: line(b, w) + 0.1 * max(b * w - 64, 0) + 0.03 * b, lambda b: 15 + 0.02 * b)).model
    steps = np.arange(1, 200)
    times = predict(model, SpecConfig(steps, 1, steps + 1), Workload(4), 1.0, "s").times.cycle_ms
    assert (np.diff(times) >= 0).all()
    batches = predict(model, chain(4), Workload(np.arange(1, 300)), 1.0, "s").times.cycle_ms
    assert (np.diff(batches) >= 0).all()


def test_settings_share_what_does_not_communicate():
    runs = measured(lambda b, w: line(b, w) + 0.1 * max(b * w - 64, 0), lambda b: 15 + 0.02 * b)
    tuned = [replace(r, id=f"t{r.id}", nccl="t") for r in runs if r.spec is None or r.spec.num_draft_tokens in (2, 6)]
    knees = [c for c in fit([*runs, *tuned]).model.coefficients if c.name == "verify_knee_ms"]
    assert [c.nccl for c in knees] == [None]


def test_routing_overlap_within_a_request_is_found():
    """8 of 128 experts, of a further token's experts half touched already: T counts as B·(1 + (N − 1)/2)."""

    def verify(batch, width):
        return 6 + 12 * (1 - (1 - 1 / 16) ** (batch * (1 + (width - 1) / 2)))

    runs = [
        run(f"{b}x{n}", b, n, verify_ms=verify(b, n) * factor)
        for (b, n), factor in zip(
            product((1, 2, 4, 8, 16), (2, 4, 8)), np.exp(np.random.default_rng(1).normal(0, 0.001, 15)), strict=True
        )
    ]
    model = fit(runs).model
    assert model.form == "line + expert coverage 0.0625 with 50% overlap"
    assert predict(model, SpecConfig(5, 1, 6), Workload(3), 1.0).times.verify_ms == pytest.approx(
        verify(3, 6), rel=0.01
    )


def test_what_a_tree_adds_to_each_step_of_drafting_is_found():
    """Chains draft at 0.4 ms a forward of one token, trees at 0.15 ms a step more."""
    shapes = ((1, 1, 2), (3, 1, 4), (5, 1, 6), (7, 1, 8), (2, 2, 4), (3, 4, 8), (5, 4, 8), (5, 2, 8), (7, 4, 16))

    def drafting(steps, topk, batch):
        return 0.3 + (0.4 + 0.001 * batch * topk) * steps + 0.15 * steps * (topk > 1)

    draw = lognormal(7, 0.002)
    runs = [
        Run(f"{s}/{k}/{n} {b}", Setup(), "s", Workload(b), True, SpecConfig(s, k, n),
            {"verify_ms": Figure((20 + 0.5 * b * n) * draw()), "draft_ms": Figure(drafting(s, k, b) * draw())})
        for s, k, n in shapes
        for b in (1, 4)
    ]  # fmt: skip
    model = fit(runs).model
    found = {c.name: c.value for c in model.coefficients}
    assert found["draft_tree_step_ms"] == pytest.approx(0.15, rel=0.05)
    assert predict(model, SpecConfig(6, 4, 12), Workload(2), 1.0).times.draft_ms == pytest.approx(
        drafting(6, 4, 2), rel=0.02
    )


def test_coverage_without_a_fixed_part_is_a_model():
    model = fit([run(f"{w}", 1, w, verify_ms=20 * (1 - (31 / 32) ** w)) for w in (2, 3, 4, 6, 8, 12, 16, 24, 32)]).model
    assert "expert coverage" in model.form
    assert predict(model, chain(5), Workload(1), 1.0).times.verify_ms == pytest.approx(20 * (1 - (31 / 32) ** 5))


def test_the_fixed_share_is_that_of_all_that_verify_takes():
    fitted = fit(measured(lambda b, w: line(b, w) + 0.1 * max(b * w - 64, 0), lambda b: 15 + 0.02 * b))
    (share,) = [s["share"] for s in fit_record(fitted)["verify_fixed_share"] if s["verify_tokens"] == 128]
    assert share == pytest.approx(20 / (20 + 0.05 * 128 + 0.1 * 64))
    by_request = fit(measured(lambda b, w: line(b, w) + 0.4 * b, lambda b: 15 + 0.2 * b))
    assert not fit_record(by_request)["verify_fixed_share"]
