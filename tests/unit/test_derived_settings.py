"""NCCL settings that were never run: a fitted model moved by an all-reduce table (eq. 17)."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from specsim import CostModel, Setup, SpecConfig, Workload, break_even, fit, predict
from specsim.cli.main import main
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.derived import ACROSS, IN_FORWARDS, DerivedSetting
from specsim.cost.step_change import Shape
from specsim.errors import ConfigurationError, UnknownSettingError
from specsim.questions import Asked
from specsim.report.plots import drawings
from specsim.sweep import Axes, assumed_law, sweep
from tests.synthetic import Truth, phase_runs, run

TARGET, DRAFT = Shape(10, 1000), Shape(1, 1000)  # 20 and 2 all-reduces of 2,000 bytes a token
SIZES = (1000.0, 1e6)


def curve(label, slowest_us, us):
    """Flat in size, so that a change is the same at every message; a table of two sizes."""
    return MeasuredCurve(label, SIZES, (us, us), (us, slowest_us), (1, 1))


def derived(label="fast", before=100.0, after=40.0, draft=DRAFT, base="s"):
    """An all-reduce that is 60 µs shorter: 1.2 ms a forward of the target, 0.12 ms one of the drafter."""
    return DerivedSetting(label, base, curve(base, before, before), curve(label, after, after), TARGET, draft)


@pytest.fixture(scope="module")
def model():
    return fit(phase_runs(Truth(), (2, 4, 6), (1, 2, 8))).model


def test_every_phase_that_communicates_is_moved(model):
    moved = model.with_setting(derived())
    own, fast = (predict(moved, SpecConfig(3, 1, 4), Workload(2), 2.0, nccl).times for nccl in ("s", "fast"))
    assert fast.verify_ms == pytest.approx(own.verify_ms - 1.2)
    assert fast.draft_ms == pytest.approx(own.draft_ms - 3 * 0.12)  # three forwards, as no engine is stated
    assert fast.other_ms == own.other_ms
    assert fast.cycle_ms == pytest.approx(Truth().cycle(2, 4) - 1.2 - 0.36)
    answer = break_even(moved, SpecConfig(3, 1, 4), Workload(2), "fast")
    assert answer.cost_ratio == pytest.approx((Truth().cycle(2, 4) - 1.56) / (Truth().decode(2) - 1.2))
    assert any("NCCL fast was never run" in note for note in moved.notes)


def test_settings_that_are_told_alike_share_a_sentence(model):
    moved = model
    for label in ("a", "b", "c"):
        moved = moved.with_setting(derived(label))
    alone = moved.with_setting(in_forwards(derived("felt")))
    said = [note for note in alone.notes if "never run" in note]
    assert [note.split(":")[0] for note in said] == ["NCCL a, b and c were never run", "NCCL felt was never run"]
    assert len(alone.notes) == len(model.notes) + 2


def test_messages_are_those_of_the_graph_that_a_run_had():
    """Three requests of six tokens: 18, and six to a draft step, in vLLM 0.24; 17 of seven are 126. Run eagerly, as they are."""
    setup = Setup(engine="vllm", engine_version="0.24.0", cuda_graph=True)
    runs = [replace(run, setup=setup) for run in phase_runs(Truth(), (2, 4, 6), (1, 2, 8))]
    moved = fit(runs).model.with_setting(derived())
    padded = [moved.cycle(SpecConfig(5, 1, 6), Workload(3), graphs) for graphs in (None, True, False)]
    assert [(c.padded_verify[0], c.padded_draft[0], c.eager[0]) for c in padded] == [(18, 6, 0), (18, 6, 0), (18, 3, 1)]
    wide = [moved.cycle(SpecConfig(6, 1, 7), Workload(17), graphs).padded_verify[0] for graphs in (True, False)]
    assert wide == [126, 119]


def test_without_a_split_drafter_only_the_target_is_moved(model):
    moved = model.with_setting(derived(draft=None))
    assert moved.rest(moved.cycle(SpecConfig(3, 1, 4), Workload(2)), "fast").value == pytest.approx(
        model.rest(model.cycle(SpecConfig(3, 1, 4), Workload(2)), "s").value
    )


def test_intervals_reach_from_the_tables_change_to_what_tables_fall_short_by(model):
    moved = model.with_setting(derived())
    own = predict(model, SpecConfig(3, 1, 4), Workload(2), 2.0, "s").times.cycle_interval
    low, high = predict(moved, SpecConfig(3, 1, 4), Workload(2), 2.0, "fast").times.cycle_interval
    assert high == pytest.approx(own[1] - 0.36 - 0.75 * 1.2)
    assert low == pytest.approx(own[0] - 0.36 - 2.2 * 1.2)


def test_however_small_a_change_an_all_reduce_may_be_microseconds_off(model):
    """0.02 ms of verify and 0.006 of drafts; 20 all-reduces of 5.5 µs are 0.11 ms, of 2 µs in forwards 0.04."""
    own = predict(model, SpecConfig(3, 1, 4), Workload(2), 2.0, "s").times.cycle_interval
    for setting, off in ((derived(after=99.0), 0.11), (in_forwards(derived(after=99.0)), 0.04)):
        moved = model.with_setting(setting)
        found = predict(moved, SpecConfig(3, 1, 4), Workload(2), 2.0, "fast").times.cycle_interval
        assert found == pytest.approx((own[0] - 0.026 - off, own[1] - 0.026 + off))


def test_logits_that_are_gathered_beyond_the_table_are_flagged_by_name(model):
    """Logits of 100,000 bytes a position: eight of them, ten are the table's end, twelve."""
    wide = replace(derived(draft=None), target=Shape(10, 1000, vocab_size=50_000))
    moved = model.with_setting(wide)
    for width, flagged in ((4, False), (5, False), (6, True)):
        times = predict(moved, SpecConfig(width - 1, 1, width), Workload(2), 1.0, "fast").times
        assert ("logits_bytes" in times.extrapolated_in and bool(times.extrapolated_in["logits_bytes"])) is flagged
        assert not np.any(times.extrapolated_in.get("message_bytes", False))
    alone = model.with_setting(replace(wide, gathered=False))
    assert "logits_bytes" not in predict(alone, SpecConfig(5, 1, 6), Workload(2), 1.0, "fast").times.extrapolated_in


def test_gathers_are_the_models_too_and_bound_what_is_flagged(model, tmp_path):
    """Gathers of 20 and 15 µs to 1,000,000 bytes beside all-reduces to 1,000,000: ten positions of 100,000 bytes lie inside."""
    wide = replace(derived(draft=None), target=Shape(10, 1000, vocab_size=50_000))
    before, after = (
        replace(each, gather=MeasuredCurve("g", (1000.0, most), (us, us), (us, us), (1, 1)))
        for each, us, most in ((wide.before, 20.0, 2e6), (wide.after, 15.0, 1e6))
    )
    moved, path = model.with_setting(replace(wide, before=before, after=after)), tmp_path / "model.json"
    moved.save(path)
    for known in (moved, CostModel.load(path)):
        own, fast = (predict(known, SpecConfig(3, 1, 4), Workload(2), 1.0, nccl).times for nccl in ("s", "fast"))
        assert fast.verify_ms == pytest.approx(own.verify_ms - 21 * 0.06 - 0.005)
        assert known.span("logits_bytes", "fast") == (1000.0, 1e6)
        assert known.span("message_bytes", "fast") == SIZES
    beyond = predict(moved, SpecConfig(5, 1, 6), Workload(2), 1.0, "fast").times.extrapolated_in
    assert np.all(beyond["logits_bytes"])
    assert not np.any(beyond.get("message_bytes", False))


def test_all_reduces_in_a_forward_are_trusted_to_a_fifth_or_a_quarter_of_their_change(model, tmp_path):
    """1.2 ms of verify, 0.36 of drafts; a table measured alone beside one in a forward is one measured alone."""
    moved = model.with_setting(in_forwards(derived()))
    own = predict(model, SpecConfig(3, 1, 4), Workload(2), 2.0, "s").times.cycle_interval
    path = tmp_path / "model.json"
    moved.save(path)
    for known in (moved, CostModel.load(path)):
        low, high = predict(known, SpecConfig(3, 1, 4), Workload(2), 2.0, "fast").times.cycle_interval
        assert (low, high) == pytest.approx((own[0] - 1.56 - 0.3, own[1] - 1.56 + 0.24))  # of verify's 1.2
    assert replace(in_forwards(derived()), before=curve("s", 100.0, 100.0)).allowed == derived().allowed


def test_between_implementations_intervals_are_as_between_nccls_settings_once_measured_beside_drafts(model):
    felt = in_forwards(replace(derived(), gathered=False))
    launched = [replace(each, drafting=replace(each, launch_us=2.0)) for each in (felt.before, felt.after)]
    measured = replace(felt, before=launched[0], after=launched[1])
    assert felt.allowed == ACROSS
    assert measured.allowed == IN_FORWARDS
    assert (
        replace(measured, after=replace(felt.after, drafting=felt.after)).allowed == ACROSS
    )  # launches under one alone
    assert replace(measured, draft=None).allowed == ACROSS  # whose cycles do not draft over the GPUs


def in_forwards(setting):
    return replace(
        setting, before=replace(setting.before, in_forward=True), after=replace(setting.after, in_forward=True)
    )


def test_messages_outside_the_table_are_flagged(model):
    short = replace(derived(), after=MeasuredCurve("fast", (1000.0, 10000.0), (40.0, 40.0), (40.0, 40.0), (1, 1)))
    moved = model.with_setting(short)
    inside, outside = (
        predict(moved, SpecConfig(width - 1, 1, width), Workload(1), 1.0, "fast").times for width in (5, 6)
    )
    assert "message_bytes" not in inside.extrapolated_in  # five tokens are 10,000 bytes
    assert "message_bytes" in outside.extrapolated_in


def test_plain_decode_and_drafts_outside_the_table_are_flagged(model):
    """A token is 2,000 bytes of the target's and 200 of the drafter's; the table begins at 3,000 and 600."""
    for least, draft, phase in ((3000.0, None, "decode"), (600.0, Shape(1, 100), "draft")):
        curve = MeasuredCurve("fast", (least, 1e6), (40.0, 40.0), (40.0, 40.0), (1, 1))
        moved = model.with_setting(replace(derived(), after=curve, draft=draft))
        answer = predict(moved, SpecConfig(2, 1, 3), Workload(1), 1.0, "fast")
        assert ("message_bytes" in answer.times.extrapolated_in) == (phase == "draft")
        assert ("decode_message_bytes" in answer.decode_extrapolated_in) == (phase == "decode")


def test_a_table_that_outgrows_the_runs_is_said(model):
    """From 1,000 to 100,000 bytes 20 all-reduces take 10 ms more, while 47 more tokens take 0.5 ms in the runs."""
    steep = MeasuredCurve("s", (1000.0, 1e5), (100.0, 600.0), (100.0, 600.0), (1, 1))
    flat = curve("fast", 40.0, 40.0)
    fitted = fit(phase_runs(replace(Truth(), verify_per_token_ms=0.01), (2, 4, 6), (1, 2, 8))).model
    moved = fitted.with_setting(replace(derived(), before=steep, after=flat))
    (note,) = [note for note in moved.notes if "FALLS with more tokens" in note]
    told = [(int(tokens), float(ms)) for ms, tokens in re.findall(r"([\d.]+) ms at (\d+)", note)]
    assert [tokens for tokens, _ in told] == [2, 48]
    assert "the change from s falls there by more than verify rises" in note
    for tokens, ms in told:
        times = predict(moved, SpecConfig(tokens - 1, 1, tokens), Workload(1), 1.0, "fast").times
        assert times.verify_ms == pytest.approx(ms, rel=1e-3)
    assert not any("FALLS" in note for note in model.with_setting(derived()).notes)


def test_a_fall_between_two_sizes_is_told_from_its_peak(model):
    """Under a base whose all-reduces jump at 4 tokens, of 2,000 bytes each, and are flat before and after."""
    jump = MeasuredCurve(
        "s", (1000.0, 8000.0, 9000.0, 1e5), (50.0, 50.0, 500.0, 500.0), (50.0, 50.0, 500.0, 500.0), (1,) * 4
    )
    steep = fit(phase_runs(replace(Truth(), verify_per_token_ms=0.1), (2, 4, 6), (1, 2, 8))).model
    (note,) = [n for n in steep.with_setting(replace(derived(), before=jump)).notes if "FALLS" in n]
    assert re.findall(r"ms at (\d+)", note) == ["4", "5"]


def test_a_base_with_baselines_alone_learns_of_a_setting():
    plain = fit([run(f"{b}", b, None, decode_ms=20.0 + 0.1 * b) for b in (1, 2, 4, 8)]).model
    moved = plain.with_setting(derived())
    assert [s.label for s in moved.settings] == ["s", "fast"]


def test_a_sweep_flags_what_single_questions_flag(model):
    short = MeasuredCurve("fast", (1000.0, 10000.0), (40.0, 40.0), (40.0, 40.0), (1, 1))
    moved = model.with_setting(replace(derived(), after=short))
    axes = Axes.chains(moved, num_steps=(1, 3, 4, 5, 6), batch_size=(1,), nccl=("s", "fast"))
    found = sweep(moved, assumed_law(0.6), axes)
    for setting, nccl in enumerate(axes.nccl):
        alone = predict(moved, found.spec, Workload(1), 1.0, nccl).times.extrapolated
        assert found.extrapolated[setting, 0].tolist() == alone.tolist()


def test_a_sweep_agrees_with_single_questions(model):
    moved = model.with_setting(derived())
    axes = Axes((1, 2, 4), (1, 2), (2, 3, 5), (1, 8), ("s", "fast"))
    found = sweep(moved, assumed_law(0.6), axes)
    for setting, nccl in enumerate(axes.nccl):
        for row, batch in enumerate(axes.batch_size):
            alone = predict(moved, found.spec, Workload(batch), 1.0, nccl).times.cycle_ms
            assert found.cells.cycle_ms[setting, row] == pytest.approx(alone)


VLLM = Setup(engine="vllm", engine_version="0.24.0", cuda_graph=True)


def beside_drafts(draft=DRAFT):
    """60 µs less an all-reduce alone and 70 between drafts, launches 2 µs less: 1.4 ms of verify, 0.14 of a draft forward."""
    setting = derived(draft=draft)
    before, after = (replace(each, in_forward=True, drafting=replace(curve("d", us, us), launch_us=launch))
                     for each, us, launch in ((setting.before, 110.0, 3.0), (setting.after, 40.0, 1.0)))  # fmt: skip
    return replace(setting, before=before, after=after)


def vllm_runs(truth=None, figures=("verify_ms", "draft_ms", "cycle_ms", "decode_ms")):
    """Phases and cycles of vLLM, of which some figures are kept."""
    return [replace(run, setup=VLLM, figures={name: each for name, each in run.figures.items() if name in figures})
            for run in phase_runs(truth or Truth(), (2, 4, 6), (1, 2, 8))]  # fmt: skip


FIGURES = (("verify_ms", "draft_ms", "cycle_ms", "decode_ms"), ("cycle_ms", "decode_ms"), ("verify_ms", "cycle_ms", "decode_ms"),
           ("verify_ms", "decode_ms"))  # fmt: skip


@pytest.mark.parametrize("figures", FIGURES)
def test_a_sweep_agrees_with_single_questions_beside_drafts_and_without_any(figures):
    moved = fit(vllm_runs(figures=figures)).model.with_setting(beside_drafts())
    axes = Axes((0, 1, 3, 5), (1,), (1, 2, 4, 6), (1, 2, 8), ("s", "fast"))
    found = sweep(moved, assumed_law(0.6), axes)
    assert (np.asarray(found.spec.num_steps) == 0).any()
    for setting, nccl in enumerate(axes.nccl):
        for row, batch in enumerate(axes.batch_size):
            alone = predict(moved, found.spec, Workload(batch), 1.0, nccl).times.cycle_ms
            assert found.cells.cycle_ms[setting, row] == pytest.approx(alone)


@pytest.mark.parametrize("other_ms", [0.0, 0.01, 0.05, 1.0])
def test_a_change_of_what_a_fit_has_in_anothers_terms_counts_whole(other_ms):
    """Verify 1.4, three drafts 0.42 and 49 launches 0.098 ms, whether the rest of a cycle is large, small or not told apart."""
    for figures in FIGURES[:3]:
        moved = fit(vllm_runs(replace(Truth(), other_ms=other_ms), figures)).model.with_setting(beside_drafts())
        own, fast = (
            predict(moved, SpecConfig(3, 1, 4), Workload(1), 2.0, nccl).times.cycle_ms for nccl in ("s", "fast")
        )
        assert fast == pytest.approx(own - 1.4 - 0.42 - 0.098)


def test_what_no_run_timed_is_not_saved_of():
    """Runs of verify alone: their cycles are lower bounds, and a faster drafter takes nothing off them."""
    moved = fit(vllm_runs(figures=FIGURES[3])).model.with_setting(beside_drafts())
    own, fast = (predict(moved, SpecConfig(3, 1, 4), Workload(1), 2.0, nccl).times for nccl in ("s", "fast"))
    assert fast.lower_bound
    assert fast.cycle_ms == pytest.approx(own.cycle_ms - 1.4)


def test_a_table_that_leaves_nothing_of_a_whole_cycle_is_refused():
    """A verify of 1.5 ms loses 1.4, a cycle of 1.51 with its draft and launches 1.6."""
    small = Truth(verify_fixed_ms=1.5, verify_per_token_ms=0.001, draft_per_forward_ms=0.01, draft_fixed_ms=0.0,
                  draft_per_token_ms=0.0, other_ms=0.0, decode_fixed_ms=5.0)  # fmt: skip
    with pytest.raises(ConfigurationError, match="a cycle under 'fast' would take no time"):
        fit(vllm_runs(small, FIGURES[1])).model.with_setting(beside_drafts())


def test_no_depth_makes_a_cycle_shorter_than_its_savings_where_it_was_run():
    """Whole cycles of three drafts alone: the fit has no time for a further draft, so that none is saved of it."""
    runs = [run for run in vllm_runs(figures=FIGURES[1]) if run.spec is None or run.spec.num_steps == 3]
    moved = fit(runs).model.with_setting(beside_drafts())
    for steps, saved in ((3, 1.4 + 0.42 + 0.098), (30, 1.4 + 0.42), (300, 1.4 + 0.42)):
        own, fast = (
            predict(moved, SpecConfig(steps, 1, steps + 1), Workload(1), 2.0, nccl).times.cycle_ms
            for nccl in ("s", "fast")
        )
        assert own - fast == pytest.approx(saved, abs=0.12)
        assert fast > 0.5 * own


def test_deep_drafts_are_never_saved_more_than_they_take():
    """Whole cycles in which a draft forward takes 0.05 ms; by the table each saves 0.14: 84 ms in 600 of them, of 52 in all."""
    truth = Truth(
        verify_per_token_ms=0.0001, draft_per_forward_ms=0.05, draft_fixed_ms=0.0, draft_per_token_ms=0.0, other_ms=1.0
    )
    moved = fit(vllm_runs(truth, FIGURES[1])).model.with_setting(beside_drafts())
    for steps in (5, 60, 600):
        own, fast = (
            predict(moved, SpecConfig(steps, 1, steps + 1), Workload(1), 2.0, nccl).times.cycle_ms
            for nccl in ("s", "fast")
        )
        assert truth.verify_fixed_ms - 1.4 - 1.0 < fast < own - 1.4


def test_a_table_that_leaves_nothing_of_drafts_that_were_timed_is_refused():
    """Drafts of 0.09 ms and 0.02 beside them, of which 0.42 and 0.098 would be saved."""
    small = Truth(draft_per_forward_ms=0.03, draft_fixed_ms=0.0, draft_per_token_ms=0.0, other_ms=0.02)
    with pytest.raises(ConfigurationError, match="what a cycle has beside verify under 'fast' would take no time"):
        fit(vllm_runs(small)).model.with_setting(beside_drafts())


def test_without_graphs_nothing_was_measured_beside_drafts(model):
    """A model of runs with graphs off is moved by all-reduces alone, as far as intervals are concerned, too."""
    eager = [replace(run, setup=replace(VLLM, cuda_graph=False)) for run in vllm_runs()]
    moved = fit(eager).model.with_setting(replace(beside_drafts(), gathered=False))
    own, fast = (predict(moved, SpecConfig(3, 1, 4), Workload(1), 2.0, nccl).times.cycle_ms for nccl in ("s", "fast"))
    assert own - fast == pytest.approx(1.2 + 0.36)
    (setting,) = moved.derived
    assert setting.allowed == ACROSS


def test_a_saved_model_keeps_what_was_measured_beside_drafts(tmp_path):
    moved = fit(vllm_runs()).model.with_setting(beside_drafts())
    moved.save(tmp_path / "m.json")
    assert CostModel.load(tmp_path / "m.json") == moved


def test_spans_of_cycles_are_those_beside_drafts_and_of_decode_those_alone():
    short = beside_drafts()
    short = replace(
        short, before=replace(short.before, drafting=replace(short.before.drafting, sizes=(1000.0, 5000.0)))
    )
    moved = fit(vllm_runs()).model.with_setting(short)
    assert moved.span("message_bytes", "fast") == (1000.0, 5000.0)
    assert moved.span("decode_message_bytes", "fast") == SIZES


def test_a_bar_of_phases_ends_at_its_cycle():
    """Also where a setting that was never run changes what the fit has no term of its own for."""
    moved = fit(vllm_runs(figures=("verify_ms", "draft_ms", "decode_ms"))).model.with_setting(beside_drafts())
    ((_, draw),) = drawings(moved, Asked(3, 1, 4, nccl="fast"), ["cycle"])
    axes = draw().axes[0]
    ends: dict[float, float] = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0.0), bar.get_x() + bar.get_width())
    assert {f"{end:.2f}" for end in ends.values()} <= {text.get_text() for text in axes.texts}
    whole = float(predict(moved, SpecConfig(3, 1, 4), Workload(1), 1.0, "fast").times.cycle_ms)
    assert any(end == pytest.approx(whole) for end in ends.values())


def test_a_saved_model_keeps_its_settings(model, tmp_path):
    moved = model.with_setting(derived())
    moved.save(tmp_path / "m.json")
    assert CostModel.load(tmp_path / "m.json") == moved


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (derived("s"), ConfigurationError, "was run"),
        (derived(before=2000.0), ConfigurationError, "is the table of this machine"),
        (derived(base="other"), UnknownSettingError, "other"),
    ],
)
def test_what_cannot_be_is_refused(model, change, error, says):
    with pytest.raises(error, match=says):
        model.with_setting(change)


def test_the_command_gives_a_model_its_table(model, tmp_path):
    table, fitted, moved = tmp_path / "t.csv", tmp_path / "m.json", tmp_path / "moved.json"
    rows = [f"{label},{size},{us}" for label, us in (("s", 100), ("fast", 40)) for size in (1000, 1000000)]
    table.write_text("\n".join(["nccl,bytes,time_us", *rows]), encoding="utf-8")
    model.save(fitted)
    command = ["comm", str(table), "--layers", "10", "--hidden-size", "1000", "--from", "s"]
    done = CliRunner().invoke(main, [*command, "--model", str(fitted), "--save-model", str(moved)])
    assert done.exit_code == 0, done.output
    asked = ["predict", "--model", str(moved), "--num-draft-tokens", "4", "--batch-size", "1", "--accept-length", "2"]
    rows = json.loads(CliRunner().invoke(main, [*asked, "--json"]).stdout)["rows"]
    times = {row["nccl"]: row["verify_ms"] for row in rows}
    assert times["fast"] == pytest.approx(times["s"] - 1.2)
    assert "NCCL fast was never run" in " ".join(CliRunner().invoke(main, asked).stdout.split())
    lonely = CliRunner().invoke(main, [*command, "--model", str(fitted)])
    assert lonely.exit_code == 2
    assert "--save-model" in lonely.output
