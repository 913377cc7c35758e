"""KV reads over contexts, host-bound times with graphs off, the measured curve, and gross outliers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim import Run, Setup, SpecConfig, Workload, break_even, fit, predict
from specsim.errors import MixedSetupError
from specsim.evaluation import evaluate
from specsim.runs.run import Figure
from specsim.sweep import Axes, assumed_law, sweep
from tests.synthetic import Truth, lognormal, phase_runs, run

ONE = SpecConfig(0, 1, 1)


def forward(name, batch, width, context, verify_ms, graphs=True):
    spec = SpecConfig(width - 1, 1, width)
    return Run(
        name, Setup(cuda_graph=graphs), "s", Workload(batch, context), True, spec, {"verify_ms": Figure(verify_ms)}
    )


def plain(name, batch, context, decode_ms):
    return Run(name, Setup(), "s", Workload(batch, context), False, None, {"decode_ms": Figure(decode_ms)})


def coefficient(model, name):
    return next(c for c in model.coefficients if c.name == name)


# -- KV reads ----------------------------------------------------------------------------------------------------------


def device(tokens, kv_tokens):
    """A target forward by hand: 4 ms, 0.02 ms a token, 0.03 ms for a thousand tokens of KV cache."""
    return 4.0 + 0.02 * tokens + 0.03 * kv_tokens / 1000


def many_contexts(noise=lambda: 1.0):
    return [
        forward(f"{batch}x{width}@{context}", batch, width, context, device(batch * width, batch * context) * noise())
        for batch, width in ((1, 4), (8, 4), (16, 8))
        for context in (100, 4000, 16000)
    ]


def test_a_kv_read_is_recovered_and_predicts_contexts_between():
    model = fit(many_contexts()).model
    assert coefficient(model, "verify_kv_read_ms").value == pytest.approx(0.03)
    times = predict(model, SpecConfig(3, 1, 4), Workload(8, 9000), 1.0).times
    assert times.verify_ms == pytest.approx(4.0 + 0.02 * 32 + 0.03 * 72)
    assert "context_len" not in times.extrapolated_in


def test_a_context_beyond_the_measured_is_flagged_in_verify_and_in_decode():
    runs = [*many_contexts(), *(plain(f"p{b}", b, 100, 3.5 + 0.01 * b) for b in (1, 8, 16))]
    model = fit(runs).model
    answer = break_even(model, SpecConfig(3, 1, 4), Workload(8, 30000), "s")
    assert "context_len" in answer.times.extrapolated_in
    assert "decode_context_len" in answer.decode_extrapolated_in
    assert any("what a longer context costs plain decode is not told" in note for note in model.notes)
    near = break_even(model, SpecConfig(3, 1, 4), Workload(8, 150), "s")
    assert not near.times.extrapolated_in
    assert not near.decode_extrapolated_in


def test_a_question_without_a_context_is_priced_at_the_middle_and_says_so():
    model = fit(many_contexts()).model
    silent, stated = (predict(model, SpecConfig(3, 1, 4), Workload(8, c), 1.0).times for c in (None, 8050))
    assert silent.verify_ms == stated.verify_ms
    assert any("priced at 8050 tokens" in note for note in model.notes)
    asked = dataclasses.replace(model, asked_context=100)
    assert predict(asked, SpecConfig(3, 1, 4), Workload(8), 1.0).times.verify_ms == pytest.approx(device(32, 800))


def test_a_sweep_flags_a_context_beyond_the_measured():
    model = fit(many_contexts()).model
    for context, beyond in ((4000, False), (30000, True)):
        asked = dataclasses.replace(model, asked_context=context)
        found = sweep(asked, assumed_law(0.6), Axes.chains(asked, num_steps=(3, 7), batch_size=(8,)))
        assert found.extrapolated.all() == found.extrapolated.any() == beyond


@pytest.mark.parametrize("contexts", [(100, 8000, 16000), (100, None, 16000)])
def test_contexts_that_nothing_tells_from_tokens_are_refused(contexts):
    runs = [
        forward(f"{width}", 1, width, context, 4.0 + width) for width, context in zip((2, 4, 6), contexts, strict=True)
    ]
    with pytest.raises(MixedSetupError, match="context_len"):
        fit(runs)
    assert "context_len" in fit(runs, allow_mixed=True).model.mixed


def test_short_drafts_do_not_hide_what_a_context_costs():
    runs = [
        dataclasses.replace(r, figures={**r.figures, "draft_ms": Figure(0.05 * width)})
        for width in (2, 4, 8)
        for context in (500, 8000, 16000)
        for r in [forward(f"{width}@{context}", 1, width, context, device(width, context))]
    ]
    assert coefficient(fit(runs[::2]).model, "verify_kv_read_ms").value == pytest.approx(0.03)


def test_times_that_grow_a_hundredfold_with_the_context_are_told():
    runs = [
        forward(f"{b}x{w}@{c}", b, w, c, 0.01 + 0.03 * b * c / 1000)
        for b in (1, 8)
        for w in (2, 4)
        for c in (1000, 16000)
    ]
    assert coefficient(fit(runs).model, "verify_kv_read_ms").value == pytest.approx(0.03)


def test_a_run_without_a_context_is_not_held_against_times_that_depend_on_it():
    model = fit(many_contexts()).model
    held = evaluate(model, [forward("a", 8, 4, 4000, 5.6), forward("silent", 8, 4, None, 5.6)])
    assert [c.run for c in held.compared] == ["a"]
    assert [(u.run, "context_len" in u.why) for u in held.unevaluated] == [("silent", True)]


@settings(max_examples=25)
@given(st.integers(0, 2**31 - 1))
def test_predictions_never_fall_with_tokens_batch_or_context(seed):
    model = fit(many_contexts(lognormal(seed, 0.05))).model

    def verify(batch, width, context):
        return predict(model, SpecConfig(width - 1, 1, width), Workload(batch, context), 1.0).times.verify_ms

    grid = np.array([[[verify(b, w, c) for c in (0, 500, 40000)] for w in (2, 5, 12)] for b in (1, 3, 40)])
    for axis in range(3):
        assert (np.diff(grid, axis=axis) >= -1e-12).all()


# -- graphs off --------------------------------------------------------------------------------------------------------


def eager(tokens, kv_tokens):
    """The longer of the host's time, 3 ms at 16 tokens and 8 ms above, and of the device's with 0.4 ms of gaps."""
    return max(3.0 if tokens <= 16 else 8.0, device(tokens, kv_tokens) - 2.5 + 0.4)


def eager_runs():
    return [
        forward(f"e{width}@{context}", 8, width, context, eager(8 * width, 8 * context), graphs=False)
        for width in (2, 4, 8, 16)
        for context in (0, 500, 2000, 16000)
    ]


def graph_runs():
    return [
        forward(f"g{batch}@{context}", batch, 1, context, device(batch, batch * context) - 2.5)
        for batch in (1, 4, 16, 64)
        for context in (0, 2000, 16000)
    ]


def test_with_graphs_off_a_phase_takes_the_longer_of_host_and_device():
    fitted = fit(eager_runs())
    assert all(abs(r.relative) < 0.02 for r in fitted.residuals if r.run != "e16@16000")
    model = fitted.model
    for width, context, expected in ((2, 1000, 3.0), (8, 1000, 8.0), (4, 1500, 8.0)):
        times = predict(model, SpecConfig(width - 1, 1, width), Workload(8, context), 1.0).times
        assert times.verify_ms == pytest.approx(expected, rel=0.01)


def hidden(batch, width, context):
    """By hand: the host takes 20 ms; the device 10 ms, 0.02 ms a token and 0.5 ms for a thousand tokens of KV cache."""
    return max(20.0, 10 + 0.02 * batch * width + 0.5 * batch * context / 1000)


def hidden_runs(noise=lambda: 1.0):
    return [
        forward(f"{b}x{w}@{c}", b, w, c, hidden(b, w, c) * noise(), graphs=False)
        for b in (1, 4, 8)
        for w in (2, 4, 8)
        for c in (100, 500, 1000, 2000, 4000, 8000)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_device_that_reads_weights_too_is_told_where_it_exceeds_the_host(seed):
    fitted = fit(hidden_runs(lognormal(seed, 0.005)))
    assert not fitted.outliers
    for batch, width, context in ((1, 4, 3000), (8, 4, 6000), (8, 4, 16000)):
        times = predict(fitted.model, SpecConfig(width - 1, 1, width), Workload(batch, context), 1.0).times
        assert times.verify_ms == pytest.approx(hidden(batch, width, context), rel=0.03)


@pytest.mark.parametrize("contexts", [(500, 2000), (500, 2000, 8000), (100, 1000, 4000, 8000)])
@pytest.mark.parametrize("widths", [(4,), (2, 4, 8)])
def test_with_graphs_off_times_that_hardly_change_with_the_context_show_no_hidden_device(contexts, widths):
    for seed in range(10):
        noise = lognormal(seed, 0.005)
        runs = [
            forward(f"{w}@{c}", 1, w, c, (20 + 0.1 * w + 0.00002 * c) * noise(), graphs=False)
            for c in contexts
            for w in widths
        ]
        times = predict(fit(runs).model, SpecConfig(3, 1, 4), Workload(1, 2 * contexts[-1]), 1.0).times
        assert times.verify_ms == pytest.approx(20.4, rel=0.1)


def test_whole_cycles_wait_where_their_verify_does():
    """2 ms beside verify, from cycles that hide the device as their verify does."""
    runs = [
        dataclasses.replace(r, figures={**r.figures, "cycle_ms": Figure(r.figures["verify_ms"].best + 2)})
        for r in hidden_runs()
    ]
    model = fit(runs).model
    assert coefficient(model, "other_fixed_ms").value == pytest.approx(2)
    assert coefficient(model, "verify_kv_read_ms").value == pytest.approx(0.5)


def test_every_setting_has_a_host_of_its_own():
    runs = [
        dataclasses.replace(r, id=f"{r.id} {nccl}", nccl=nccl, figures={"verify_ms": Figure(time)})
        for nccl, less in (("a", 0), ("b", 8))
        for r in hidden_runs()
        for time in [r.figures["verify_ms"].best - less]
    ]
    model = fit(runs).model
    for nccl, less in (("a", 0), ("b", 8)):
        for context in (1000, 6000):
            times = predict(model, SpecConfig(3, 1, 4), Workload(8, context), 1.0, nccl).times
            assert times.verify_ms == pytest.approx(hidden(8, 4, context) - less, rel=0.02)


def test_graph_mode_is_refused_as_a_mixture_unless_allowed_and_then_both_are_told():
    runs = eager_runs() + graph_runs()
    with pytest.raises(MixedSetupError, match="cuda_graph"):
        fit(runs)
    model = fit(runs, allow_mixed=True).model
    assert coefficient(model, "verify_kv_read_ms").value == pytest.approx(0.03, rel=1e-3)
    assert coefficient(model, "verify_eager_ms").value == pytest.approx(0.4, rel=1e-2)
    new = [
        forward("eager", 8, 2, 9000, eager(16, 72000), graphs=False),
        forward("host", 8, 8, 9000, eager(64, 72000), graphs=False),
        forward("graph", 8, 2, 9000, device(16, 72000) - 2.5),
    ]
    assert all(abs(c.difference_pct) < 1 for c in evaluate(model, new, allow_mixed=True).compared)


def test_graphs_off_at_one_context_stays_a_line():
    runs = [forward(f"{w}", 1, w, 500, 20 + 0.5 * w, graphs=False) for w in (2, 4, 8)]
    assert {c.name for c in fit(runs).model.coefficients} == {"verify_fixed_ms", "verify_per_token_ms"}


def test_with_graphs_off_a_device_that_never_waits_adds_its_kv_reads():
    """As on a laptop's GPU: 15 ms and 0.06 ms a token over 16, and 0.6 ms for a thousand tokens of KV cache."""
    runs = [
        forward(f"{w}@{c}", 8, w, c, 15 + 0.06 * max(8 * w - 16, 0) + 0.6 * 8 * c / 1000, graphs=False)
        for w in (2, 4, 8, 32)
        for c in (0, 500, 2000, 8000)
    ]
    model = fit(runs).model
    assert coefficient(model, "verify_kv_read_ms").value == pytest.approx(0.6, rel=1e-3)
    assert not [c for c in model.coefficients if "host" in c.name]


# -- a measured curve --------------------------------------------------------------------------------------------------

LEVELS = {1: 2.0, 8: 2.02, 16: 2.4, 24: 2.42, 32: 2.9, 40: 2.91}


def stairs(noise=lambda: 1.0):
    return [
        forward(f"{batch}@{context}", batch, 1, context, (level + 0.03 * batch * context / 1000) * noise())
        for batch, level in LEVELS.items()
        for context in (100, 1000, 4000, 8000)
    ]


def test_stairs_become_a_curve_where_tokens_repeat():
    model = fit(stairs(lognormal(3, 0.002))).model
    assert model.form == "measured curve over tokens in verify"
    found = [predict(model, ONE, Workload(b, 2000), 1.0).times.verify_ms - 0.06 * b for b in LEVELS]
    assert found == pytest.approx(list(LEVELS.values()), rel=0.005)


def test_a_curve_never_falls():
    falling = {8: 3.0, 16: 2.6, 24: 3.4, 32: 3.3}
    runs = [
        forward(f"{b}@{c}", b, 1, c, level + 0.01 * b * c / 1000)
        for b, level in falling.items()
        for c in (0, 1000, 9000)
    ]
    model = fit(runs).model
    times = [predict(model, ONE, Workload(b, 500), 1.0).times.verify_ms for b in range(8, 41)]
    assert (np.diff(times) >= -1e-12).all()


# -- gross outliers ----------------------------------------------------------------------------------------------------


def with_one_wrong(factor, name="4x4", seed=5):
    runs = phase_runs(Truth(), (2, 3, 4, 6, 8), (1, 2, 4, 8), lognormal(seed, 0.004))
    wrong = [i for i, r in enumerate(runs) if r.id == name]
    for i in wrong:
        figures = dict(runs[i].figures)
        figures["verify_ms"] = Figure(figures["verify_ms"].best * factor)
        figures.pop("cycle_ms")  # else the row would contradict itself
        runs[i] = dataclasses.replace(runs[i], figures=figures)
    return runs


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.5, 10.0])
def test_a_gross_outlier_is_reported_and_not_fitted(factor):
    fitted = fit(with_one_wrong(factor))
    truth = Truth()
    assert [(o.run, o.phases) for o in fitted.outliers] == [("4x4", ("verify",))]
    assert fitted.outliers[0].relative == pytest.approx(factor - 1, abs=0.05)
    assert coefficient(fitted.model, "verify_per_token_ms").value == pytest.approx(truth.verify_per_token_ms, rel=0.02)
    assert coefficient(fitted.model, "verify_fixed_ms").value == pytest.approx(truth.verify_fixed_ms, rel=0.02)
    assert any("GROSS OUTLIER, not fitted: verify of 4x4" in note for note in fitted.model.notes)


def test_two_outliers_do_not_hide_each_other():
    runs = with_one_wrong(3.0)
    figures = dict(next(r for r in runs if r.id == "2x6").figures)
    figures["verify_ms"] = Figure(figures["verify_ms"].best * 3)
    figures.pop("cycle_ms")
    runs = [dataclasses.replace(r, figures=figures) if r.id == "2x6" else r for r in runs]
    assert {o.run for o in fit(runs).outliers} == {"4x4", "2x6"}


@settings(max_examples=40)
@given(st.integers(0, 2**31 - 1), st.sampled_from([0.002, 0.01, 0.05]))
def test_honest_noise_is_no_outlier(seed, noise):
    assert not fit(phase_runs(Truth(), (2, 3, 4, 6, 8), (1, 2, 4, 8), lognormal(seed, noise))).outliers


@pytest.mark.parametrize(("width", "factor"), [(2, 3.0), (2, 0.3), (8, 3.0), (8, 0.5)])
def test_an_outlier_at_the_edge_is_one_where_no_knee_is_like_that(width, factor):
    generator = lognormal(11, 0.004)
    runs = [
        run(f"{w}", 1, w, verify_ms=(20 + 0.5 * w) * generator() * (factor if w == width else 1)) for w in range(2, 9)
    ]
    fitted = fit(runs)
    assert [o.run for o in fitted.outliers] == [f"{width}"]
    assert coefficient(fitted.model, "verify_per_token_ms").value == pytest.approx(0.5, rel=0.25)


def test_a_knee_at_the_edge_is_no_outlier():
    widths = (2, 3, 4, 5, 6, 7, 8)
    runs = [run(f"{w}", 1, w, verify_ms=20 + 0.5 * w + (9 if w == 8 else 0)) for w in widths]
    assert not fit(runs).outliers


# -- padding to captured graphs ----------------------------------------------------------------------------------------


def padded_runs(engine, cost):
    """SGLang, two draft tokens: batches of 9, 11, 13 … 31 requests run as 10, 12, 14 … 32."""
    batches = (1, 4, 8, 9, 10, 13, 16, 21, 27, 31, 32)
    setup = Setup(engine=engine, cuda_graph=True)
    spec = SpecConfig(1, 1, 2)
    return [
        Run(f"{b}", setup, "s", Workload(b), True, spec, {"verify_ms": Figure(cost(b) * n)})
        for b, n in zip(batches, np.exp(np.random.default_rng(4).normal(0, 0.001, len(batches))), strict=True)
    ]


def captured(batch):
    return batch if batch <= 8 else batch + batch % 2


def test_padding_is_found_where_the_runs_show_it():
    model = fit(padded_runs("sglang", lambda b: 5 + 0.5 * 2 * captured(b))).model
    assert model.form == "line over tokens padded to graphs in verify"
    times = [predict(model, SpecConfig(1, 1, 2), Workload(b), 1.0).times.verify_ms for b in (11, 12)]
    assert times == pytest.approx([17.0, 17.0], rel=2e-3)


@pytest.mark.parametrize(("engine", "cost"), [("sglang", lambda b: 5 + 0.5 * 2 * b), (None, lambda b: 5 + captured(b))])
def test_padding_is_not_assumed(engine, cost):
    assert "padded" not in fit(padded_runs(engine, cost)).model.form


# -- what intervals promise --------------------------------------------------------------------------------------------


def inside_of_500(runs_of, ask):
    """Share of 500 fits whose 90% interval of verify holds the truth; `ask` gives configuration, workload and truth."""
    hits = []
    for seed in range(500):
        model = fit(runs_of(lognormal(seed, 0.01))).model
        spec, workload, truth = ask
        low, high = predict(model, spec, workload, 1.0).times.cycle_interval
        hits.append(low <= truth <= high)
    return float(np.mean(hits))


def test_intervals_of_a_kv_read_cover_as_they_say():
    ask = SpecConfig(3, 1, 4), Workload(8, 9000), device(32, 72000)
    assert 0.87 <= inside_of_500(many_contexts, ask) <= 0.93


def test_intervals_of_a_curve_cover_as_they_say():
    ask = ONE, Workload(16, 2000), LEVELS[16] + 0.03 * 32
    assert 0.87 <= inside_of_500(lambda draw: stairs(lambda: draw() ** 0.2), ask) <= 0.93


def test_a_baseline_whose_context_nothing_tells_decides_nothing():
    runs = [*many_contexts(), *(plain(f"p{b}", b, 100, 3.5 + 0.01 * b) for b in (1, 8, 16))]
    model = fit(runs).model
    near, far = (
        break_even(model, SpecConfig(3, 1, 4), Workload(8, c), "s", accept_length=1.1).verdict for c in (100, 9000)
    )
    assert near.verdict == "does not pay"
    assert far.verdict == "undecided"


def test_a_baseline_that_is_all_kv_read_is_none_at_context_0():
    runs = [*many_contexts(), *(plain(f"p{c}", 8, c, 0.03 * 8 * c / 1000) for c in (2000, 8000, 16000))]
    model = fit(runs).model
    answer = predict(model, SpecConfig(3, 1, 4), Workload(8, 0), 2.0)
    assert np.isnan(answer.decode_ms)
    assert "comes out at 0 ms there" in answer.no_baseline
    assert np.isfinite(predict(model, SpecConfig(3, 1, 4), Workload(8, 4000), 2.0).decode_ms)
