from __future__ import annotations

from dataclasses import replace

import pytest

from specsim import Setup, SpecConfig, SpecsimError, Workload, break_even, fit, load_runs, predict
from specsim.errors import MixedSetupError, NotIdentifiedError, UnknownSettingError
from tests.synthetic import Truth, phase_runs, run

ONE = Workload(1)


def chain(width: int) -> SpecConfig:
    return SpecConfig.of(num_draft_tokens=width)


def test_two_verify_times_split_exactly():
    model = fit([run("6", 1, 6, verify_ms=28.7), run("3", 1, 3, verify_ms=25.6)]).model
    assert model.coefficient("verify_fixed_ms", "s").value == pytest.approx(22.5, rel=1e-12)
    assert model.coefficient("verify_per_token_ms", "s").value == pytest.approx(3.1 / 3, rel=1e-12)
    assert (model.noise.assumed, model.noise.residual_dof, model.noise.relative) == (True, 0, 0.01)


def test_assumed_noise_scales_the_interval():
    runs = [run("6", 1, 6, verify_ms=28.7), run("3", 1, 3, verify_ms=25.6)]
    wide, narrow = (fit(runs, noise=n).model.coefficient("verify_fixed_ms", "s").standard_error for n in (0.02, 0.01))
    assert wide == pytest.approx(2 * narrow)
    for wrong in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(SpecsimError, match="fraction between 0 and 1"):
            fit(runs, noise=wrong)


def test_throughput_and_accept_length_give_a_cycle():
    """C = B·L/R: 4 requests, 2.5 tokens a cycle, 200 tok/s are 50 ms."""
    a = run("a", 4, 6, accept_length=2.5, output_tok_s=200.0)
    b = run("b", 4, 3, accept_length=2.0, output_tok_s=200.0)
    model = fit([a, b]).model
    assert predict(model, chain(6), Workload(4), 2.5, "s").times.cycle_ms == pytest.approx(50.0)
    assert predict(model, chain(3), Workload(4), 2.0, "s").output_tok_s == pytest.approx(200.0)
    assert model.measured_phases == ()


def test_whole_cycles_give_no_verify_of_their_own():
    model = fit([run("a", 1, 6, cycle_ms=30.0), run("b", 1, 3, cycle_ms=27.0), run("p", 1, None, decode_ms=15.0)]).model
    assert "verify" not in model.measured_phases
    assert any("only whole cycles" in note for note in model.notes)
    assert break_even(model, chain(6), ONE, "s").cost_ratio == pytest.approx(2.0)


def test_phases_never_measured_make_a_lower_bound_and_say_so():
    model = fit(
        [run("a", 1, 6, verify_ms=30.0), run("b", 1, 3, verify_ms=27.0), run("p", 1, None, decode_ms=15.0)]
    ).model
    assert model.unmeasured_phases == ("draft", "extend", "other")
    assert any("lower bounds" in note for note in model.notes)
    assert break_even(model, chain(6), ONE, "s").cost_ratio == pytest.approx(2.0)


def test_one_width_answers_there_and_nowhere_else():
    model = fit([run("a", 1, 6, verify_ms=28.7), run("p", 1, None, decode_ms=15.0)]).model
    assert predict(model, chain(6), ONE, 1.0, "s").times.verify_ms == pytest.approx(28.7)
    with pytest.raises(NotIdentifiedError, match=r"6 verify tokens .* cannot say what 3 tokens take.*second width"):
        predict(model, chain(3), ONE, 1.0, "s")


def test_draft_at_one_depth_is_taken_as_proportional_and_flagged():
    model = fit([run("a", 1, 6, verify_ms=28.0, draft_ms=1.0), run("b", 1, 3, verify_ms=25.0)]).model
    answer = predict(model, chain(3), ONE, 1.0, "s")
    assert answer.times.draft_ms == pytest.approx(1.0 * 2 / 5)
    assert any("draft_fixed_ms cannot be told" in note for note in model.notes)


def test_a_cycle_that_is_the_sum_of_its_parts_is_counted_once():
    parts = {"verify_ms": 28.45, "draft_ms": 2.18, "other_ms": 1.11}
    model = fit([run("a", 1, 6, **parts, cycle_ms=31.74), run("b", 1, 3, verify_ms=25.6)]).model
    assert model.noise.residual_dof == 0
    off = fit([run("a", 1, 6, **parts, cycle_ms=40.0), run("b", 1, 3, verify_ms=25.6)]).model
    assert any("its phases add up to -20." in note for note in off.notes)


def test_repeats_judge_the_noise(csv):
    path = csv("num_draft_tokens,batch_size,verify_ms", "6,1,28.6;28.8", "3,1,25.5;25.7")
    model = fit(load_runs([path])).model
    assert (model.noise.assumed, model.noise.residual_dof) == (False, 2)
    # residuals ±0.1/28.7 twice and ±0.1/25.6 twice over two degrees of freedom, by hand
    assert model.noise.relative == pytest.approx(((0.1 / 28.7) ** 2 + (0.1 / 25.6) ** 2) ** 0.5, rel=0.02)


def test_a_bare_range_counts_less_than_a_reading(csv):
    path = csv("num_draft_tokens,batch_size,verify_ms", "6,1,28.7", "6,1,20..30", "3,1,25.6")
    model = fit(load_runs([path])).model
    assert predict(model, chain(6), ONE, 1.0).times.verify_ms == pytest.approx(28.7, abs=0.1)


def test_a_gap_that_would_be_negative_is_held_at_zero_and_said():
    model = fit([run("a", 1, 6, verify_ms=30.0, cycle_ms=29.0), run("b", 1, 3, verify_ms=27.0)]).model
    assert model.coefficient("other_fixed_ms").value == 0.0
    assert any("other_fixed_ms came out at its bound" in note for note in model.notes)


def test_excluded_runs_are_kept_beside_the_fit():
    runs = [run("a", 1, 6, verify_ms=30.0), run("b", 1, 3, verify_ms=27.0)]
    odd = replace(run("odd", 1, 6, verify_ms=99.0), excluded="another instrument")
    fitted = fit([*runs, odd])
    assert fitted.left_out == (odd,)
    assert predict(fitted.model, chain(6), ONE, 1.0).times.verify_ms == pytest.approx(30.0)


def test_setups_that_differ_are_refused_by_name_and_labelled_when_allowed():
    on, off = Setup(model="M", cuda_graph=True), Setup(model="M", cuda_graph=False)
    runs = [
        replace(run("a", 1, 6, verify_ms=30.0), setup=on),
        replace(run("b", 1, 3, verify_ms=27.0), setup=on),
        replace(run("p", 1, None, decode_ms=15.0), setup=off),
    ]
    with pytest.raises(MixedSetupError, match=r"cuda_graph: True \(a, b\), False \(p\)") as caught:
        fit(runs)
    assert caught.value.fields == ("cuda_graph",)
    model = fit(runs, allow_mixed=True).model
    assert (model.mixed, model.setup) == (("cuda_graph",), Setup(model="M"))
    assert break_even(model, chain(6), ONE, "s").mixed == ("cuda_graph",)


@pytest.mark.parametrize(("gap", "alike"), [(128, True), (129, False)])
def test_contexts_count_as_alike_within_the_tolerance(gap, alike):
    runs = [
        replace(run("a", 1, 6, verify_ms=30.0), workload=Workload(1, 1000 + gap)),
        replace(run("p", 1, None, decode_ms=15.0), workload=Workload(1, 1000)),
    ]
    if alike:
        assert fit(runs).model.mixed == ()
    else:
        with pytest.raises(MixedSetupError, match="context_len"):
            fit(runs)


def test_a_run_set_without_times_is_refused():
    with pytest.raises(NotIdentifiedError, match="no run states a time"):
        fit([run("a", 1, 6, accept_length=2.0)])


def test_provenance_names_the_runs_behind_each_coefficient():
    model = fit(phase_runs(Truth(), (2, 6), (1,))).model
    slope = model.coefficient("verify_per_token_ms", "s")
    assert set(slope.runs) == {"1x2", "1x6"}
    assert slope.verify_tokens == (2.0, 6.0)
    assert model.coefficient("decode_fixed_ms", "s").runs == ("plain 1",)


# -- NCCL settings -------------------------------------------------------------------------------------------------


def two_settings(*extra, wide: float = 30.0):
    return fit(
        [
            run("6", 1, 6, "slow", verify_ms=wide),
            run("3", 1, 3, "slow", verify_ms=27.0),
            run("p", 1, None, "slow", decode_ms=16.0),
            *extra,
        ]
    ).model


def test_an_unknown_setting_lists_the_known_ones():
    model = two_settings(run("q", 1, None, "fast", decode_ms=12.0))
    with pytest.raises(UnknownSettingError, match="unknown NCCL setting 'quick'; known here: slow, fast"):
        predict(model, chain(6), ONE, 1.0, "quick")


def test_two_widths_under_a_setting_need_no_reading():
    model = two_settings(run("f6", 1, 6, "fast", verify_ms=24.0), run("f3", 1, 3, "fast", verify_ms=22.0))
    times = predict(model, chain(9), ONE, 1.0, "fast").times
    assert times.verify_ms == pytest.approx(26.0)
    assert times.verify_by_reading == {}
    assert times.extrapolated


def test_without_both_baselines_there_are_two_readings():
    model = two_settings(run("f6", 1, 6, "fast", verify_ms=24.0))
    times = predict(model, chain(3), ONE, 1.0, "fast").times
    assert times.verify_by_reading == {"ratio": pytest.approx(27 * 0.8), "shift": pytest.approx(21.0)}
    assert times.verify_ms == pytest.approx((27 * 0.8 + 21.0) / 2)


def test_baselines_alone_carry_a_setting_over():
    model = two_settings(run("q", 1, None, "fast", decode_ms=12.0))
    times = predict(model, chain(6), ONE, 1.0, "fast").times
    assert times.verify_by_reading == {"ratio": pytest.approx(30 * 12 / 16), "shift": pytest.approx(26.0)}


def test_the_readings_meet_where_the_setting_was_measured():
    model = two_settings(run("f6", 1, 6, "fast", verify_ms=24.0), run("q", 1, None, "fast", decode_ms=12.0))
    times = predict(model, chain(6), ONE, 1.0, "fast").times
    assert (times.verify_ms, times.verify_by_reading) == (pytest.approx(24.0), {})


def test_readings_recover_settings_of_their_own_kind():
    """If the faster setting really saves a line in tokens, the affine reading is exact; likewise the other two."""
    saved = {"affine": lambda t: 3.0 + 0.5 * t, "shift": lambda _: 4.0}
    for name, save in saved.items():
        model = two_settings(
            run("f6", 1, 6, "fast", verify_ms=30 - save(6)), run("q", 1, None, "fast", decode_ms=16 - save(1))
        )
        times = predict(model, chain(12), ONE, 1.0, "fast").times
        assert times.verify_by_reading[name] == pytest.approx(36 - save(12))


def test_a_baseline_at_another_batch_size_is_refused_by_name():
    model = two_settings()
    with pytest.raises(MixedSetupError, match="batch_size 1, asked is 4") as caught:
        break_even(model, chain(6), Workload(4), "slow")
    assert caught.value.fields == ("batch_size",)
    allowed = break_even(model, chain(6), Workload(4), "slow", allow_mixed=True)
    assert allowed.mixed == ("batch_size",)
    assert allowed.decode_ms == pytest.approx(16.0)
    assert "batch_size" in predict(model, chain(6), Workload(4), 1.0, "slow").no_baseline


def test_infeasible_is_an_answer_not_a_number():
    model = fit(
        [run("6", 1, 6, verify_ms=30.0), run("2", 1, 2, verify_ms=29.0), run("p", 1, None, decode_ms=9.0)]
    ).model
    answer = break_even(model, chain(2), ONE, "s", accept_length=2.0)
    assert not answer.feasible
    assert answer.break_even_accept_length != answer.break_even_accept_length
    assert answer.cost_ratio == pytest.approx(29 / 9)
    assert answer.max_accept_length == 2
    assert answer.verdict.verdict == "no accept length breaks even"


def test_budget_form_of_the_break_even():
    """Eq. 10: a length affords a cycle of L·t, and a verify of what draft and other leave of it."""
    model = fit(phase_runs(Truth(), (2, 4, 7), (1, 4))).model
    verdict = break_even(model, chain(4), Workload(4), "s", accept_length=2.5).verdict
    truth = Truth()
    assert verdict.affordable_cycle_ms == pytest.approx(2.5 * truth.decode(4))
    assert verdict.affordable_verify_ms == pytest.approx(2.5 * truth.decode(4) - truth.draft(4, 4) - truth.other_ms)


def test_extrapolation_names_what_lies_outside():
    model = fit(phase_runs(Truth(), (2, 4, 7), (1, 4))).model
    inside = predict(model, chain(5), Workload(2), 1.0, "s").times
    outside = predict(model, chain(9), Workload(8), 1.0, "s").times
    assert (inside.extrapolated, inside.extrapolated_in) == (False, {})
    assert outside.extrapolated
    assert set(outside.extrapolated_in) == {"verify_tokens", "batch_size", "num_steps"}
