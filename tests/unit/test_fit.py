from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsim import Setup, SpecConfig, SpecsimError, Workload, break_even, fit, load_runs, predict
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError, UnknownSettingError
from tests.synthetic import Truth, lognormal, phase_runs, run

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
    whole = {**parts, "extend_ms": 1.0}
    off = fit([run("a", 1, 6, **whole, cycle_ms=40.0), run("b", 1, 3, verify_ms=25.6)]).model
    assert any("its phases add up to -18.1% of its stated cycle; the phases are fitted" in note for note in off.notes)


def test_a_cycle_says_what_an_unstated_re_extend_took():
    model = fit([run("a", 1, 6, verify_ms=20.0, draft_ms=1.0, other_ms=1.0, cycle_ms=30.0)]).model
    assert predict(model, chain(6), ONE, 1.0, "s").times.cycle_ms == pytest.approx(30.0, rel=0.01)
    assert model.unmeasured_phases == ()


def test_repeats_judge_the_noise(csv):
    path = csv("num_draft_tokens,batch_size,verify_ms", "6,1,28.6;28.8", "3,1,25.5;25.7")
    model = fit(load_runs([path])).model
    assert (model.noise.assumed, model.noise.residual_dof) == (False, 2)
    # residuals ±0.1/28.7 twice and ±0.1/25.6 twice over two degrees of freedom, by hand
    assert model.noise.relative == pytest.approx(((0.1 / 28.7) ** 2 + (0.1 / 25.6) ** 2) ** 0.5, rel=1e-6)


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


@pytest.mark.parametrize(("gap", "alike"), [(160, True), (161, False)])
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


# -- what the runs say in different words ---------------------------------------------------------------------------


def test_draft_forwards_are_counted_one_way_for_all_runs():
    """One run states the engine, the other does not; both are of one server."""
    stated = replace(run("a", 1, 6, verify_ms=28.7, draft_ms=1.07), setup=Setup(engine="sglang"))
    model = fit([stated, run("b", 1, 3, verify_ms=25.6, draft_ms=0.69)]).model
    assert predict(model, chain(3), ONE, 1.0, "s").times.draft_ms == pytest.approx(0.69)
    assert predict(model, chain(6), ONE, 1.0, "s").times.draft_ms == pytest.approx(1.07)


def test_the_reference_does_not_depend_on_the_order_of_runs():
    def runs(first: str, second: str):
        slopes = {"A": 1.0, "B": 0.5}
        both = [run(f"{n}{w}", 1, w, n, verify_ms=20 + slopes[n] * w) for n in (first, second) for w in (3, 6)]
        return [*both, run("c", 1, 6, "C", verify_ms=18.0), run("p", 1, None, "C", decode_ms=12.0)]

    one, other = (fit(runs(*order)).model for order in (("A", "B"), ("B", "A")))
    assert one.reference == other.reference
    ratios = [break_even(model, chain(3), ONE, "C").cost_ratio for model in (one, other)]
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-12)


def test_one_label_for_two_environments_is_refused():
    low, simple = ({"NCCL_PROTO": name} for name in ("LL", "Simple"))
    runs = [
        replace(run("a", 1, 6, verify_ms=28.0), nccl_env=low),
        replace(run("b", 1, 3, verify_ms=25.0), nccl_env=simple),
    ]
    with pytest.raises(MixedSetupError, match="nccl_env of s: NCCL_PROTO=LL"):
        fit(runs)


@pytest.mark.parametrize("field", ["drafter", "method", "instrument"])
def test_what_else_must_be_alike(field):
    runs = [
        replace(run(n, 1, w, verify_ms=20.0 + w), **{field: value}) for n, w, value in (("a", 6, "x"), ("b", 3, "y"))
    ]
    with pytest.raises(MixedSetupError, match=f"differ in {field}"):
        fit(runs)
    assert fit([replace(runs[0], **{field: None}), runs[1]]).model.mixed == ()


def test_rounded_readings_are_not_free_of_noise(csv):
    """Equal readings only say that the noise is below their last digit: 28.7 twice is ±0.05, uniform, over √3."""
    model = fit(load_runs(csv("batch_size,num_draft_tokens,verify_ms", "1,6,28.7;28.7"))).model
    assert model.noise.relative == pytest.approx(0.05 / 3**0.5 / 28.7)


def test_readings_rounded_to_whole_milliseconds_still_cover():
    truth, hits = Truth(), 0
    for seed in range(300):
        noise = lognormal(20_000 + seed, 0.01)
        at = [float(round(truth.verify(1, 6) * noise())) for _ in range(2)]
        model = fit([run(f"r{i}", 1, 6, verify_ms=value) for i, value in enumerate(at)]).model
        low, high = predict(model, chain(6), ONE, 1.0, "s").times.cycle_interval
        hits += low <= truth.verify(1, 6) <= high
    assert hits >= 0.85 * 300


def test_contradicting_figures_widen_an_assumed_noise():
    """Phases of 30 ms in a cycle of 20: nothing fits both, and the interval says so."""
    model = fit([run("a", 1, 6, verify_ms=30.0, cycle_ms=20.0)]).model
    assert model.noise.relative > 0.1
    assert any("its phases add up to +50.0% of its stated cycle" in note for note in model.notes)


def test_figures_that_nothing_uses_are_named():
    both = run("a", 1, 6, cycle_ms=30.0, output_tok_s=20.0, accept_length=2.1)
    plain = run("p", 1, None, decode_ms=16.0, output_tok_s=20.0)
    alone = run("b", 1, 3, cycle_ms=28.0, output_tok_s=40.0)
    notes = " ".join(fit([both, plain, alone]).model.notes)
    assert "a: its throughput would be a time of 105.00 ms, 30 ms is stated" in notes
    assert "p: its throughput would be a time of 50.00 ms, 16 ms is stated" in notes
    assert "b: its throughput says nothing of the cycle without an accept length" in notes


def test_a_bound_does_not_make_its_coefficient_certain():
    """Where the slope is held at zero, what lies far beyond is no better known than without the bound."""
    hits, truth = 0, Truth(verify_per_token_ms=0.05)
    for seed in range(300):
        noise = lognormal(30_000 + seed, 0.01)
        runs = [run(str(w), 1, w, verify_ms=truth.verify(1, w) * noise()) for w in (3, 6)]
        low, high = predict(fit(runs).model, chain(32), ONE, 1.0, "s").times.cycle_interval
        hits += low <= truth.verify(1, 32) <= high
    assert hits >= 0.87 * 300


def test_a_setting_timed_whole_and_one_timed_in_part_are_told_apart():
    model = fit(
        [
            run("a3", 1, 3, "A", verify_ms=25.0), run("a6", 1, 6, "A", verify_ms=28.0), run("b6", 1, 6, "B", cycle_ms=30.0),
            run("pa", 1, None, "A", decode_ms=16.0), run("pb", 1, None, "B", decode_ms=14.0),
        ]
    ).model  # fmt: skip
    part, whole = (break_even(model, chain(6), ONE, nccl) for nccl in ("A", "B"))
    assert (part.times.lower_bound, whole.times.lower_bound) == (True, False)
    assert whole.times.cycle_ms == pytest.approx(30.0)


def test_a_lower_bound_can_lose_but_not_pay():
    model = fit(
        [run("a", 1, 6, verify_ms=30.0), run("b", 1, 3, verify_ms=27.0), run("p", 1, None, decode_ms=15.0)]
    ).model
    verdicts = [break_even(model, chain(6), ONE, "s", accept_length=length).verdict.verdict for length in (1.5, 3.0)]
    assert verdicts == ["does not pay", "undecided"]


# -- where the runs end ------------------------------------------------------------------------------------------------


def test_plain_decode_outside_its_batches_is_extrapolated():
    runs = [run("a", 1, 6, cycle_ms=30.0), run("b", 64, 6, cycle_ms=60.0)]
    runs += [run(f"p{b}", b, None, decode_ms=15.0 + b / 2) for b in (1, 2)]
    model = fit(runs).model
    assert break_even(model, chain(6), Workload(64), "s").decode_extrapolated_in
    assert predict(model, chain(6), Workload(64), 2.0, "s").decode_extrapolated_in
    assert not break_even(model, chain(6), Workload(2), "s").decode_extrapolated_in


def test_widths_of_another_setting_are_no_measurement_of_this_one():
    runs = [run(f"A{w}", 1, w, "A", verify_ms=20.0 + w) for w in (3, 6)]
    runs += [run(f"B{w}", 1, w, "B", verify_ms=18.0 + w) for w in (3, 6, 48)]
    model = fit(runs).model
    assert "verify_tokens" in predict(model, chain(48), ONE, 1.0, "A").times.extrapolated_in
    assert "verify_tokens" not in predict(model, chain(48), ONE, 1.0, "B").times.extrapolated_in


def test_steps_beyond_those_drafted_are_extrapolated():
    runs = [
        run("3", 1, 3, verify_ms=23.0),
        run("48", 1, 48, verify_ms=68.0),
        run("6", 1, 6, verify_ms=26.0, draft_ms=1.0),
    ]
    assert "num_steps" in predict(fit(runs).model, chain(48), ONE, 1.0, "s").times.extrapolated_in


def test_an_asked_context_that_was_not_measured_is_flagged():
    stated = replace(run("a", 1, 6, verify_ms=30.0), workload=Workload(1, 1000))
    for runs, context, flagged in (
        ([stated], 1100, False),
        ([stated], 9000, True),
        ([run("a", 1, 6, verify_ms=30.0)], 900, True),
    ):
        times = predict(fit(runs).model, chain(6), Workload(1, context), 1.0, "s").times
        assert ("context_len" in times.extrapolated_in) == flagged


def test_elements_without_a_baseline_do_not_take_the_others_with_them():
    model = fit(phase_runs(Truth(), (2, 6), (1,))).model
    load = Workload(np.array([1, 2]))
    together, alone = break_even(model, chain(6), load, "s"), break_even(model, chain(6), ONE, "s")
    assert together.cost_ratio[0] == pytest.approx(alone.cost_ratio)
    assert np.isnan(together.cost_ratio[1])
    assert "asked is 2" in together.no_baseline
    assert np.isnan(predict(model, chain(6), load, 2.0, "s").speedup).tolist() == [False, True]
    mixed = break_even(model, chain(6), load, "s", accept_length=2.0, allow_mixed=True)
    assert mixed.mixed_in["batch_size"].tolist() == [False, True]


def test_a_batch_between_measured_ones_takes_the_nearest_when_mixing():
    runs = [run("a", 3, 6, cycle_ms=30.0), run("p1", 1, None, decode_ms=15.0)]
    model = fit([*runs, run("q8", 8, None, "other", decode_ms=19.0)]).model
    assert break_even(model, chain(6), Workload(3), "s", allow_mixed=True).decode_ms == pytest.approx(15.0)


def test_elements_that_are_open_do_not_take_the_others_with_them():
    model = fit([run("a", 1, 6, verify_ms=28.7), run("p", 1, None, decode_ms=15.0)]).model
    answer = break_even(model, SpecConfig(np.array([5, 2]), 1, np.array([6, 3])), ONE, "s", accept_length=2.0)
    assert np.isfinite(answer.cost_ratio).tolist() == [True, False]
    assert answer.verdict.verdict.tolist()[1] == "not told by these runs"
    assert "one width does not split" in answer.times.open_because


@pytest.mark.parametrize("length", [0.5, -1.0, 6.01, float("inf"), float("nan")])
def test_impossible_accept_lengths_are_refused_everywhere(length):
    model = fit(phase_runs(Truth(), (2, 6), (1,))).model
    for ask in (
        lambda: predict(model, chain(6), ONE, length, "s"),
        lambda: break_even(model, chain(6), ONE, "s", accept_length=length),
    ):
        with pytest.raises(ConfigurationError, match="not possible"):
            ask()


def test_an_error_of_the_accept_length_softens_the_verdict():
    """L·t − C over the root of its variance: with C and t nearly exact only the length's error is left."""
    model = fit([run("a", 1, 6, cycle_ms=30.0), run("p", 1, None, decode_ms=15.0)], noise=1e-6).model
    chances = [
        break_even(model, chain(6), ONE, "s", accept_length=2.1, accept_length_error=e).verdict.probability_pays
        for e in (0.1, np.array([0.1, 0.2]))
    ]
    assert chances[0] == pytest.approx(0.8413, abs=1e-3)  # one standard error above 2.0
    assert chances[1] == pytest.approx([0.8413, 0.6915], abs=1e-3)
    with pytest.raises(ConfigurationError, match="standard error"):
        break_even(model, chain(6), ONE, "s", accept_length=2.1, accept_length_error=-1.0)


def test_decode_pairs_at_several_batches_allow_the_affine_reading():
    runs = [run(f"r{w}", 1, w, "slow", verify_ms=20.0 + w) for w in (3, 6)]
    for batch in (1, 8):
        runs += [run(f"s{batch}", batch, None, "slow", decode_ms=16.0 + batch)]
        runs += [run(f"f{batch}", batch, None, "fast", decode_ms=13.0 + batch / 2)]
    times = predict(fit(runs).model, chain(6), ONE, 1.0, "fast").times
    assert times.verify_by_reading["affine"] == pytest.approx(26.0 - (3.0 + 6 / 2))  # saves 3 + T/2
    assert times.verify_by_reading["shift"] == pytest.approx(26.0 - 7.0)  # as at the widest common batch, 8


def test_readings_that_disagree_on_the_sign_leave_the_verdict_open():
    model = two_settings(run("f6", 1, 6, "fast", verify_ms=20.0), run("q", 1, None, "fast", decode_ms=14.0), wide=30.0)
    answer = break_even(model, chain(3), ONE, "fast")
    needs = sorted(answer.by_reading.values())
    between = break_even(model, chain(3), ONE, "fast", accept_length=(needs[0] + needs[-1]) / 2).verdict
    assert between.verdict == "undecided"
    assert between.probability_pays == pytest.approx(0.5)
    least = min(abs(n - needs[-1] - 0.1) for n in needs)
    above = break_even(model, chain(3), ONE, "fast", accept_length=needs[-1] + 0.1).verdict.probability_pays
    alone = fit([run("6", 1, 3, "x", cycle_ms=needs[-1] * 14), run("p", 1, None, "x", decode_ms=14.0)]).model
    sharper = break_even(alone, chain(3), ONE, "x", accept_length=needs[-1] + 0.1).verdict.probability_pays
    assert least == pytest.approx(0.1)
    assert above <= sharper  # the least decided reading speaks


# -- resampling --------------------------------------------------------------------------------------------------------


def test_resamples_spread_as_the_covariance_says_away_from_the_bound():
    runs = phase_runs(Truth(), (2, 3, 4, 6, 8, 12), (1, 2, 4, 8, 16), lognormal(2, 0.01))
    fitted = fit(runs)
    drawn = fitted.resampled(4000, np.random.default_rng(0))
    values = np.array([c.value for c in fitted.model.coefficients])
    errors = np.array([c.standard_error for c in fitted.model.coefficients])
    assert drawn.std(axis=0) == pytest.approx(errors, rel=0.15)
    assert (np.abs(drawn.mean(axis=0) - values) < 0.1 * errors).all()


def test_resamples_keep_the_bound_and_the_seed():
    truth = replace(Truth(), decode_per_token_ms=0.0)
    fitted = fit(phase_runs(truth, (2, 4, 8), (1, 2, 4), lognormal(5, 0.02)))
    one, same, other = (fitted.resampled(300, np.random.default_rng(seed)) for seed in (1, 1, 2))
    column = [c.name for c in fitted.model.coefficients].index("decode_per_token_ms")
    assert (one >= 0).all()
    assert (one[:, column] == 0).mean() > 0.2
    assert (one == same).all()
    assert (one != other).any()


def test_resamples_without_residuals_spread_by_the_assumed_noise():
    runs = [run("a", 1, 3, verify_ms=25.6), run("b", 1, 6, verify_ms=28.7)]
    drawn = fit(runs, noise=0.02).resampled(5000, np.random.default_rng(0))
    verify_at_3 = drawn[:, 0] + 3 * drawn[:, 1]
    assert verify_at_3.std() / 25.6 == pytest.approx(0.02, rel=0.1)


def test_drafting_never_takes_all_of_a_cycle():
    """Cycles of 2 ms a forward: the split of time between verify and drafts is the runs' to tell, and they do not."""
    runs = [run(f"{w}", 1, w, cycle_ms=2.0 * (w - 1)) for w in (2, 3, 5)]
    fitted = fit(runs)
    assert all(c.phase == "verify" for c in fitted.model.coefficients)
    assert any("draft_per_forward_ms cannot be told" in note for note in fitted.model.notes)
    forward = predict(fitted.model, SpecConfig(0, 1, 1), Workload(1), 1.0)
    assert forward.times.cycle_ms > 0


def test_a_reading_that_leaves_no_time_makes_no_negative_prediction():
    """Verify 20 + 1·T against 30 ms at 64 tokens under another setting: shifted by −54 ms, 8 tokens would take −26."""
    runs = [run(f"{w}", 1, w, verify_ms=20.0 + w) for w in (4, 16, 64)]
    model = fit([*runs, run("fast", 1, 64, "fast", verify_ms=30.0)]).model
    widths = np.arange(2, 80)
    times = predict(model, SpecConfig(widths - 1, 1, widths), Workload(1), 1.0, "fast").times
    assert (times.verify_ms > 0).all()
    assert (np.diff(times.verify_ms) >= 0).all()
    assert (times.cycle_interval[0] <= times.cycle_ms).all()
    assert (times.cycle_ms <= times.cycle_interval[1]).all()


def test_baselines_of_two_settings_tell_no_cycle_of_either():
    model = fit([run("p", 8, None, decode_ms=4.6), run("q", 8, None, "fast", decode_ms=4.4)]).model
    for nccl in ("s", "fast"):
        with pytest.raises(NotIdentifiedError, match="no cycle was measured"):
            predict(model, SpecConfig(3, 1, 4), Workload(8), 2.0, nccl)
