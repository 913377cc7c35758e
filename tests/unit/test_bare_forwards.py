"""Bare forwards under a served fit: what they tell where nothing was served, how they are labelled, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specsim import (
    BareForwards,
    CostModel,
    Setup,
    SpecConfig,
    Workload,
    break_even,
    evaluate,
    fit,
    load_bare_forwards,
    predict,
)
from specsim.cost.allreduce import MeasuredCurve
from specsim.cost.derived import DerivedSetting
from specsim.cost.step_change import Shape
from specsim.errors import ConfigurationError, InputError, MixedSetupError
from specsim.fitting.least_squares import solve
from specsim.report.records import fit_record
from specsim.report.tables import fit_text
from specsim.runs.run import Run
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import StepTimes
from specsim.sweep import Axes, assumed_law, sweep
from tests.synthetic import lognormal, run

TOKENS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512)


def alone(tokens: float) -> float:
    """A forward that is flat to 128 tokens and steep beyond, as kernels' tiles make it, with a jump after 256."""
    return 4.5 + 0.005 * tokens + 0.02 * max(tokens - 128, 0) + 0.5 * (tokens > 256)


BARE = BareForwards.of(TOKENS, [alone(t) for t in TOKENS], "bench")


def cycle(batch: int, width: int) -> float:
    return alone(batch * width) + 0.3 + 0.01 * batch + 0.27 * (width - 1)


def decode(batch: int, factor: float = 1.0) -> float:
    return factor * alone(batch) + 0.25 + 0.008 * batch


def served(widths=(2, 4, 8), batches=(1, 4, 16), noise=None, factor: float = 1.0) -> list[Run]:
    """Cycles of at most 128 tokens: none that the knee touches."""
    draw = noise or (lambda: 1.0)
    drafted = [run(f"{b}x{w}", b, w, cycle_ms=cycle(b, w) * draw()) for b in batches for w in widths]
    return drafted + [run(f"plain {b}", b, None, decode_ms=decode(b, factor) * draw()) for b in batches]


def at(model: CostModel, batch: int, width: int):
    return predict(model, SpecConfig.of(num_draft_tokens=width), Workload(batch), 1.0).times


# -- what it tells ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "width"), [(64, 4), (64, 8), (48, 8), (64, 3)])
def test_a_knee_that_no_served_run_covers_is_known_from_bare_forwards(batch, width):
    over, without = (at(fit(served(), bare_forwards=bare).model, batch, width).cycle_ms for bare in (BARE, None))
    assert over == pytest.approx(cycle(batch, width), rel=1e-6)
    assert without < 0.9 * cycle(batch, width)


def test_what_served_runs_take_beside_it_is_recovered():
    model = fit(served(), bare_forwards=BARE).model
    found = {c.name: c.value for c in model.coefficients}
    assert found == pytest.approx(
        {
            "verify_bare_forwards": 1.0,
            "decode_bare_forwards": 1.0,
            "verify_fixed_ms": 0.3,
            "verify_per_request_ms": 0.01,
            "draft_per_forward_ms": 0.27,
            "decode_fixed_ms": 0.25,
            "decode_per_token_ms": 0.008,
        },
        rel=1e-5,
    )
    assert model.form == "line"


def test_one_served_cycle_tells_every_width_of_its_batch_and_depth_apart_from_drafts():
    runs = [run("4x4", 4, 4, verify_ms=alone(16) + 0.4), run("plain", 4, None, decode_ms=decode(4))]
    times = predict(fit(runs, bare_forwards=BARE).model, SpecConfig.of(num_draft_tokens=48), Workload(4), 1.0).times
    assert times.verify_ms == pytest.approx(alone(192) + 0.4)
    assert "verify_tokens" in times.extrapolated_in


def test_intervals_hold_the_truth_beyond_the_served_runs():
    inside = []
    for seed in range(120):
        model = fit(served(noise=lognormal(7_000 + seed, 0.01)), bare_forwards=BARE).model
        low, high = at(model, 64, 8).cycle_interval
        inside.append(low <= cycle(64, 8) <= high)
    assert 0.82 <= np.mean(inside) <= 0.97  # 90%, within three standard errors


def test_no_knees_are_searched_where_the_curve_has_them():
    noisy = fit(served((2, 3, 4, 6, 8), (1, 2, 4, 8, 16, 32, 64), lognormal(1, 0.01)), bare_forwards=BARE).model
    assert not any(c.parameters for c in noisy.coefficients)


def test_a_part_by_token_is_taken_where_the_runs_show_one():
    runs = [
        run(f"{b}x{w}", b, w, verify_ms=alone(b * w) + 0.3 + 0.01 * b + 0.02 * b * w)
        for b in (1, 2, 4, 8, 16)
        for w in (2, 4, 6, 8)
    ]
    model = fit(runs, bare_forwards=BARE).model
    assert model.form == "line + verify by token"
    assert model.coefficient("verify_per_token_ms").value == pytest.approx(0.02, rel=1e-6)


def test_each_setting_keeps_its_own_part_by_token():
    runs = [
        run(f"{s} {b}x{w}", b, w, s, verify_ms=alone(b * w) + fixed + slope * b * w)
        for s, fixed, slope in (("fast", 0.5, 0.01), ("slow", 2.0, 0.03))
        for b, w in ((1, 2), (1, 8), (16, 4))
    ]
    model = fit(runs, bare_forwards=BARE).model
    for s, slope in (("fast", 0.01), ("slow", 0.03)):
        assert model.coefficient("verify_per_token_ms", s).value == pytest.approx(slope, rel=1e-6)


def test_a_gross_outlier_is_found_over_a_curve():
    runs = served((2, 3, 4, 6, 8), (1, 2, 4, 8, 16), lognormal(2, 0.003))
    wrong = [run("4x4", 4, 4, cycle_ms=1.4 * cycle(4, 4)) if each.id == "4x4" else each for each in runs]
    assert [o.run for o in fit(wrong, bare_forwards=BARE).outliers] == ["4x4"]


def test_one_figure_below_the_curve_does_not_make_it_no_floor():
    runs = served((2, 3, 4, 6, 8), (1, 2, 4, 8, 16), lognormal(2, 0.003))
    low = [run("4x4", 4, 4, cycle_ms=0.7 * cycle(4, 4)) if each.id == "4x4" else each for each in runs]
    fitted = fit(low, bare_forwards=BARE)
    assert [o.run for o in fitted.outliers] == ["4x4"]
    assert fitted.model.coefficient("verify_bare_forwards").value == 1.0
    assert fitted.model.coefficient("verify_fixed_ms", "s").value == pytest.approx(0.3, abs=0.1)


def test_resamples_leave_the_curve_as_it_is():
    fitted = fit(served(noise=lognormal(3, 0.02)), bare_forwards=BARE)
    draws = fitted.resampled(200, np.random.default_rng(0))
    columns = [index for index, c in enumerate(fitted.model.coefficients) if c.name.endswith("bare_forwards")]
    assert (draws[:, columns] == 1).all()
    assert (draws >= 0).all()
    spread = draws.std(axis=0)
    errors = np.array([c.standard_error for c in fitted.model.coefficients])
    told = [i for i, c in enumerate(fitted.model.coefficients) if c.value > 4 * c.standard_error > 0]
    assert spread[told] == pytest.approx(errors[told], rel=0.35)


def test_a_known_coefficient_is_taken_off_the_times():
    generator = np.random.default_rng(0)
    design, times = generator.uniform(1, 3, (12, 3)), generator.uniform(20, 30, 12)
    known = solve(design, times, np.ones(12), np.array([np.nan, 2.0, np.nan]))
    # what stationarity asks: weighted residuals are orthogonal to the free columns, weights those of the fitted times
    left = times - design @ known.values
    weight = known.residuals / left
    assert known.values[1] == 2.0
    assert weight * (design @ known.values) == pytest.approx(1, rel=1e-3)
    assert (design * weight[:, None])[:, [0, 2]].T @ known.residuals == pytest.approx(0, abs=1e-9)
    assert not known.unit_covariance[1].any()
    assert known.degrees_of_freedom == 10


# -- where it is no floor ----------------------------------------------------------------------------------------------


def test_served_times_below_the_curve_scale_it_and_say_so():
    model = fit(served(batches=(1, 4, 16, 32, 64, 128, 256), widths=(2,), factor=0.6), bare_forwards=BARE).model
    assert model.coefficient("decode_bare_forwards").value == pytest.approx(0.6, rel=1e-5)
    assert model.coefficient("decode_bare_forwards").runs
    assert model.coefficient("verify_bare_forwards").value == 1.0
    assert any("plain decode is shorter here than the BARE FORWARDS" in note for note in model.notes)
    assert any(note.startswith("FROM BARE FORWARDS (bench; 1 to 512 tokens): verify,") for note in model.notes)


# -- labels ------------------------------------------------------------------------------------------------------------


def test_every_output_says_where_the_curve_is_from():
    fitted = fit(served(), bare_forwards=BARE)
    record = fit_record(fitted)
    assert record["bare_forwards"]["source"] == "bench"
    assert record["bare_forwards"]["tokens"] == TOKENS
    assert "FROM BARE FORWARDS (bench; 1 to 512 tokens)" in fit_text(record)
    assert "bare forwards, as they are" in fit_text(record)
    assert fit_record(fit(served()))["bare_forwards"] is None


def test_what_lies_outside_the_curve_is_flagged():
    bare = BareForwards.of(TOKENS[2:10], [alone(t) for t in TOKENS[2:10]], "bench")  # 4 to 128 tokens
    model = fit(served(), bare_forwards=bare).model
    assert "bare_forward_tokens" in at(model, 16, 12).extrapolated_in
    assert "bare_forward_tokens" not in at(model, 16, 8).extrapolated_in
    answer = predict(model, SpecConfig.of(num_draft_tokens=8), Workload(1), 1.0)
    assert "decode_bare_forward_tokens" in answer.decode_extrapolated_in
    assert any("runs at 1, 2 tokens lie beyond the bare forwards" in note for note in model.notes)
    (text,) = [m for m in at(model, 64, 12).extrapolated_in if m == "bare_forward_tokens"]
    assert model.span(text, None) == (4, 128)


def test_a_curve_that_was_bent_says_how_far():
    bare = BareForwards.of((1, 2, 4, 8), (5.0, 4.0, 6.0, 6.5), "bench")
    assert bare.times_ms == pytest.approx((4.5, 4.5, 6.0, 6.5))
    assert bare.largest_correction == pytest.approx(0.125)
    assert any("moved them by up to 12%" in note for note in fit(served((2,), (1, 2)), bare_forwards=bare).model.notes)


def test_the_curve_is_the_least_straight_between_and_sloped_beyond():
    bare = BareForwards.of([4, 1, 2, 4, 8], [5.2, 4.0, 4.4, 5.0, 7.0], "bench")
    assert bare.tokens == (1, 2, 4, 8)
    asked = np.array([0.5, 1, 3, 4, 6, 16])
    assert bare.time_ms(asked) == pytest.approx([4.0, 4.0, 4.7, 5.0, 6.0, 7.0 + 8 * 0.5])
    assert bare.beyond(asked).tolist() == [True, False, False, False, False, True]
    assert bare.scaled(6).time_ms(asked) == pytest.approx(6 * bare.time_ms(asked))
    assert bare.scaled(6).source == "bench × 6"


# -- everything that asks a model --------------------------------------------------------------------------------------


def test_saved_and_loaded_it_answers_alike(tmp_path):
    model = fit(served(noise=lognormal(4, 0.01)), bare_forwards=BARE).model
    model.save(tmp_path / "model.json")
    loaded = CostModel.load(tmp_path / "model.json")
    assert loaded == model
    spec, load = SpecConfig.of(num_draft_tokens=8), Workload(64)
    assert break_even(loaded, spec, Workload(16)).interval == break_even(model, spec, Workload(16)).interval
    assert predict(loaded, spec, load, 2.0).output_tok_s == predict(model, spec, load, 2.0).output_tok_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda body: body.update(bare_forwards=None), "without bare_forwards"),
        (lambda body: body["bare_forwards"].update(times_ms=[1.0, 2.0]), "one time for each count"),
        (
            lambda body: body["bare_forwards"].update(times_ms=list(body["bare_forwards"]["times_ms"][::-1])),
            "never fall",
        ),
        (lambda body: body["bare_forwards"].update(tokens=list(body["bare_forwards"]["tokens"][::-1])), "rise"),
    ],
)
def test_a_damaged_model_file_is_named(tmp_path, change, said):
    path = tmp_path / "model.json"
    fit(served(), bare_forwards=BARE).model.save(path)
    body = json.loads(path.read_text())
    change(body)
    path.write_text(json.dumps(body))
    with pytest.raises(InputError, match=said):
        CostModel.load(path)


def test_a_sweep_prices_the_curve_as_a_prediction_does():
    model = fit(served(noise=lognormal(5, 0.01)), bare_forwards=BARE).model
    axes = Axes.chains(model, num_steps=(1, 5, 7), batch_size=(1, 16, 70))
    found = sweep(model, assumed_law(0.7), axes, keep_cells=True)
    for i, batch in enumerate((1, 16, 70)):
        for j, steps in enumerate((1, 5, 7)):
            times = at(model, batch, steps + 1)
            assert found.kept.cycle_ms[0, i, j] == pytest.approx(times.cycle_ms, rel=1e-12)
            assert bool(found.kept.extrapolated[0, i, j]) == times.extrapolated


def test_a_simulation_prices_the_curve_as_a_prediction_does():
    policy = Policy.fixed(SpecConfig.of(num_draft_tokens=8))
    steps = StepTimes.of(fit(served(), bare_forwards=BARE).model, policy, 64, (100.0, 200.0))
    assert steps.fixed_ms[0, [1, 16, 64]] == pytest.approx([cycle(b, 8) for b in (1, 16, 64)], rel=1e-6)


def test_a_setting_that_was_never_run_moves_what_stands_on_the_curve():
    flat = {us: MeasuredCurve("table", (1000.0, 1e6), (us, us), (us, us), (1, 1)) for us in (100.0, 40.0)}
    faster = DerivedSetting("fast", "s", flat[100.0], flat[40.0], Shape(10, 1000))  # 20 all-reduces: 1.2 ms a forward
    model = fit(served(), bare_forwards=BARE).model.with_setting(faster)
    spec, load = SpecConfig.of(num_draft_tokens=8), Workload(16)
    answer = break_even(model, spec, load, "fast")
    assert predict(model, spec, load, 1.0, "fast").times.cycle_ms == pytest.approx(cycle(16, 8) - 1.2, rel=1e-6)
    assert answer.cost_ratio == pytest.approx((cycle(16, 8) - 1.2) / (decode(16) - 1.2), rel=1e-6)


def test_an_evaluation_holds_unseen_runs_against_it():
    unseen = [run("64x8", 64, 8, cycle_ms=cycle(64, 8)), run("plain 256", 256, None, decode_ms=decode(256))]
    (one, two) = evaluate(fit(served(), bare_forwards=BARE).model, unseen).compared
    assert one.predicted == pytest.approx(one.measured, rel=1e-6)
    assert two.predicted == pytest.approx(two.measured, rel=1e-6)


# -- like for like -----------------------------------------------------------------------------------------------------


def test_forwards_made_otherwise_are_refused_by_name_or_labelled():
    eager = BareForwards.of(TOKENS, BARE.times_ms, "eager bench", Setup(cuda_graph=False, hardware="H200"))
    runs = [
        Run(r.id, Setup(cuda_graph=True, hardware="NVIDIA H200"), r.nccl, r.workload, r.speculative, r.spec, r.figures)
        for r in served()
    ]
    with pytest.raises(MixedSetupError, match=r"eager bench.* cuda_graph False, the runs True"):
        fit(runs, bare_forwards=eager)
    model = fit(runs, bare_forwards=eager, allow_mixed=True).model
    assert model.mixed == ("cuda_graph of bare forwards",)
    assert any(note.startswith("MIXED") for note in model.notes)
    elsewhere = BareForwards.of(TOKENS, BARE.times_ms, "another", Setup(hardware="A100"))
    with pytest.raises(MixedSetupError, match="hardware A100, the runs NVIDIA H200"):
        fit(runs, bare_forwards=elsewhere)


def test_forwards_given_as_served_runs_are_refused_with_what_they_are_for():
    bare = run("bare", 1, 4, verify_ms=alone(4))
    runs = [*(replace(r, instrument="server") for r in served()), replace(bare, instrument="bench")]
    with pytest.raises(MixedSetupError, match=r"instrument.*\n.*forwards timed alone go under .* --bare-forwards"):
        fit(runs)


# -- files -------------------------------------------------------------------------------------------------------------

RUNS = """model,hardware,cuda_graph,context_len,batch_size,num_draft_tokens,verify_ms,decode_ms,draft_ms
m,G,true,128,1,,,4.5,
m,G,true,128,4,,,4.7,
m,G,true,128,2,2,4.6;4.8,,
m,G,true,128,1,3,,,0.2
m,G,true,4096,8,2,7.0,,
"""


def test_run_files_give_their_forwards_at_the_shortest_context(tmp_path):
    path = tmp_path / "forward.csv"
    path.write_text(RUNS)
    bare = load_bare_forwards(path)
    assert (bare.tokens, bare.raw_ms) == ((1, 4), (4.5, pytest.approx(4.7)))
    assert bare.source == "forward.csv: m on G at 128 tokens of context"
    assert bare.setup == Setup(model="m", hardware="G", cuda_graph=True)


def test_a_table_gives_its_forwards(tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text("tokens, ms, source\n1, 4.4, my bench\n8, 4.6, my bench\n8, 4.5, my bench\n")
    assert load_bare_forwards(path) == BareForwards((1, 8), (4.4, 4.5), (4.4, 4.5), "my bench")
    path.write_text("tokens,ms\n1,4.4\n")
    assert load_bare_forwards(path).source == str(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokens,mz\n1,2\n", "header, mz: is not a known column; did you mean 'ms'"),
        ("tokens,ms\n1,fast\n", "row 2, ms: 'fast' is wrong"),
        ("tokens,ms\n0,4\n", "row 2, tokens: '0' is wrong"),
        ("tokens,ms\n4,\n", "row 2, ms: is empty; every row needs tokens and ms"),
        ("tokens,ms\n", "has no rows"),
        ("batch_size,num_draft_tokens,cycle_ms\n1,4,6\n", "has no bare forwards; allowed: runs with verify_ms"),
        ("", "is empty"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path, run_cli, text, said):
    path = tmp_path / "bare.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_bare_forwards(path)
    result = run_cli("fit", "--bare-forwards", str(path))
    assert result.exit_code == 2
    assert str(path) in result.stderr


PARALLEL = """\
nccl,implementation,tokens,bytes,with_ms,without_ms,drafting_ms,launch_us,spread_us,cuda_graph,ranks,hardware,nccl_version,source
default,nccl,1,8192,3.4,2.8,3.5,3.2,6,True,2,NVIDIA H200,2.28.9,harness
default,nccl,64,524288,3.9,3.0,4.0,3.2,6,True,2,NVIDIA H200,2.28.9,harness
nop2p,nccl,1,8192,3.6,2.8,3.7,3.2,6,True,2,NVIDIA H200,2.28.9,harness
default,vllm,1,8192,3.1,2.8,3.1,1.9,6,True,2,NVIDIA H200,2.28.9,harness
"""
"""Forwards over two GPUs under two NCCL settings, and by another implementation."""


@pytest.fixture
def parallel(tmp_path):
    path = tmp_path / "forward.csv"
    path.write_text(PARALLEL)
    return path


def test_forwards_over_several_gpus_are_those_of_the_runs_setting(parallel):
    bare = load_bare_forwards(parallel, made_under={"default"})
    assert (bare.tokens, bare.times_ms) == ((1, 64), (3.4, 3.9))
    assert bare.source == f"{parallel}: default over 2 GPUs"
    assert bare.setup == Setup(hardware="NVIDIA H200", gpus=2, tensor_parallel=2, cuda_graph=True)
    assert load_bare_forwards(parallel, "vllm", made_under={"default"}).times_ms == (3.1,)


def test_an_implementation_is_nccl_in_any_case_and_where_it_is_not_stated(parallel):
    for written in ("NCCL", ""):
        parallel.write_text(PARALLEL.replace("default,nccl", f"default,{written}"))
        assert load_bare_forwards(parallel, made_under={"default"}).times_ms == (3.4, 3.9)


def test_of_one_setting_forwards_go_under_runs_that_state_none(parallel):
    parallel.write_text("".join(PARALLEL.splitlines(keepends=True)[:3]))
    assert load_bare_forwards(parallel, made_under={"unstated"}).times_ms == (3.4, 3.9)
    with pytest.raises(InputError, match=r"has forwards under default, of which none is the runs' nop2p"):
        load_bare_forwards(parallel, made_under={"nop2p"})


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"made_under": {"engine-own"}}, "under default, nop2p, vllm, of which none is the runs' engine-own"),
        ({"made_under": ()}, "under default, nop2p, vllm, of which none is stated by the runs"),
        ({"made_under": {"unstated"}}, "of which none is stated by the runs"),
        ({"nccl": "Ring"}, "of which none is Ring"),
        ({"made_under": {"nop2p", "default"}}, "under one setting each, and the runs are of default, nop2p; fit the runs of one"),
        ({"nccl": "default", "made_under": {"nop2p", "default"}}, "the runs are of default, nop2p"),
    ],
)  # fmt: skip
def test_a_table_that_leaves_the_setting_open_says_what_it_has(parallel, asked, said):
    with pytest.raises(InputError) as caught:
        load_bare_forwards(parallel, **asked)
    assert said in str(caught.value)


def test_one_settings_forwards_are_not_put_under_the_runs_of_several(parallel):
    parallel.write_text("".join(PARALLEL.splitlines(keepends=True)[:3]))
    with pytest.raises(InputError, match="the runs are of default, nop2p"):
        load_bare_forwards(parallel, made_under={"default", "nop2p"})


def test_runs_that_a_fit_does_not_time_do_not_say_the_setting(tmp_path, parallel, run_cli):
    """One excluded, one of another setting that has only an accept length."""
    runs = tmp_path / "runs.csv"
    rows = [f"default,{batch},,,{3.5 + 0.01 * batch},,\n" for batch in (1, 4, 16, 64)]
    rows += ["nop2p,1,,,4.0,,a late host\n", "Ring,1,3,4,,2.5,\n"]
    runs.write_text("nccl,batch_size,num_steps,num_draft_tokens,decode_ms,accept_length,exclude\n" + "".join(rows))
    record = json.loads(run_cli("fit", runs, "--bare-forwards", parallel, "--json").output)
    assert record["bare_forwards"]["source"] == f"{parallel}: default over 2 GPUs"
    assert "NCCL Ring: its runs state no time, so that the model knows nothing of it" in record["notes"]


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path, parallel, run_cli):
    runs, named = tmp_path / "runs.csv", tmp_path / "vllm=forward.csv"
    runs.write_text("nccl,batch_size,decode_ms\n" + "".join(f"default,{b},{3.5 + 0.01 * b}\n" for b in (1, 4, 16)))
    parallel.rename(named)
    record = json.loads(run_cli("fit", runs, "--bare-forwards", named, "--json").output)
    assert record["bare_forwards"]["source"] == f"{named}: default over 2 GPUs"
    assert run_cli("fit", runs, "--bare-forwards", f"={named}").exit_code == 0  # no setting is stated
    unread = run_cli("fit", runs, "--bare-forwards", "x=" + "a" * 400)
    assert unread.exit_code == 2
    assert "aaa: cannot be read" in unread.output


def test_the_command_takes_the_runs_setting_or_the_one_that_is_named(tmp_path, parallel, run_cli):
    rows = "".join(f"default,{batch},{3.5 + 0.01 * batch}\n" for batch in (1, 4, 16, 64))
    runs, own = tmp_path / "runs.csv", tmp_path / "own.csv"
    runs.write_text(f"nccl,batch_size,decode_ms\n{rows}")
    own.write_text(runs.read_text().replace("default", "engine-own"))
    for file, word, name in ((runs, parallel, "default"), (own, f"vllm={parallel}", "vllm")):
        record = json.loads(run_cli("fit", file, "--bare-forwards", word, "--json").output)
        assert record["bare_forwards"]["source"] == f"{parallel}: {name} over 2 GPUs"
    refused = run_cli("fit", own, "--bare-forwards", parallel)
    assert refused.exit_code == 2
    assert "name the one that the runs were made under: SETTING=FILE" in refused.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("3.9,3.0", "-3.9,3.0"), "row 3, with_ms: '-3.9' is wrong"),
        (("64,524288,3.9,3.0,4.0,3.2,6,True,2", "64,524288,3.9,3.0,4.0,3.2,6,True,4"), "row 3, ranks: is 4, and 2 in default's first row"),
        (("64,524288,3.9,3.0,4.0,3.2,6,True", "64,524288,3.9,3.0,4.0,3.2,6,False"), "row 3, cuda_graph: is False, and True"),
        (("64,524288,3.9,3.0,4.0,3.2,6,True,2,NVIDIA H200", "64,524288,3.9,3.0,4.0,3.2,6,True,2,A100"), "row 3, hardware: is A100, and NVIDIA H200"),
        (("NVIDIA H200,2.28.9,harness\nnop2p", "NVIDIA H200,2.27,harness\nnop2p"), "row 3, nccl_version: is 2.27, and 2.28.9"),
        (("nop2p,nccl,1", "nop2p,vllm,1"), "row 5, nccl: is default, and nop2p in vllm's first row"),
        (("with_ms", "wth_ms"), "header, wth_ms: is not a known column; did you mean 'with_ms'"),
        (("tokens", "tokns"), "header, tokns: is not a known column; did you mean 'tokens'"),
        (("nccl,implementation", "ncl,implementation"), "header, ncl: is not a known column; did you mean 'nccl'"),
    ],
)  # fmt: skip
def test_faults_of_such_a_table_are_named(parallel, change, said):
    parallel.write_text(PARALLEL.replace(*change, 1))
    with pytest.raises(InputError) as caught:
        load_bare_forwards(parallel, made_under={"default"})
    assert said in str(caught.value)


def test_a_setting_of_a_file_that_states_none_is_refused(tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text("tokens,ms\n1,4.4\n")
    with pytest.raises(InputError, match="states no settings, and none is Ring"):
        load_bare_forwards(path, "Ring")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        load_bare_forwards(tmp_path / "none.csv")


def test_forwards_that_differ_among_themselves_are_refused(tmp_path):
    path = tmp_path / "forward.csv"
    path.write_text(RUNS.replace("m,G,true,128,4", "m,G,false,128,4"))
    with pytest.raises(MixedSetupError, match="cuda_graph"):
        load_bare_forwards(path)


@pytest.mark.parametrize(("tokens", "times"), [([], []), ([0, 1], [1, 2]), ([1, 2], [0, 1]), ([1], [float("nan")])])
def test_what_is_no_curve_is_refused(tokens, times):
    with pytest.raises(ConfigurationError):
        BareForwards.of(tokens, times, "bench")


# -- commands ----------------------------------------------------------------------------------------------------------

CSV = "batch_size,num_draft_tokens,cycle_ms,decode_ms,accept_length\n" + "".join(
    [f"{b},{w},{cycle(b, w):.6g},,2\n" for b in (1, 4, 16) for w in (2, 4, 8)]
    + [f"{b},,,{decode(b):.6g},\n" for b in (1, 4, 16)]
)


@pytest.fixture
def files(tmp_path):
    runs, bare = tmp_path / "runs.csv", tmp_path / "bare.csv"
    runs.write_text(CSV)
    bare.write_text("tokens,ms\n" + "".join(f"{t},{alone(t):.6g}\n" for t in TOKENS))
    return str(runs), "--bare-forwards", str(bare)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--num-draft-tokens", "8", "--batch-size", "64", "--accept-length", "2"),
        ("break-even", "--num-draft-tokens", "8", "--batch-size", "16"),
        ("next-run", "--num-draft-tokens", "8", "--batch-size", "16"),
        ("sweep", "--num-steps", "1-7", "--batch-size", "1,16"),
        ("simulate", "--num-draft-tokens", "4", "--request-rate", "2", "--requests", "40", "--accept-rate", "0.6"),
        ("evaluate",),
        ("fit",),
    ],
)
def test_commands_take_bare_forwards_and_label_them(run_cli, files, command):
    text, record = run_cli(*command, *files), run_cli(*command, *files, "--json")
    assert (text.exit_code, record.exit_code) == (0, 0), text.output
    assert "FROM BARE FORWARDS" in text.output
    assert any("FROM BARE FORWARDS" in note for note in json.loads(record.stdout)["notes"])


def test_the_curve_reaches_the_answer(run_cli, files):
    asked = ("predict", "--num-draft-tokens", "8", "--batch-size", "64", "--accept-length", "2", "--json")
    told = json.loads(run_cli(*asked, *files).stdout)["rows"][0]
    assert told["cycle_ms"] == pytest.approx(cycle(64, 8), rel=1e-4)


def test_plots_take_them_too(run_cli, files, tmp_path):
    result = run_cli("plot", "break-even", *files, "-o", str(tmp_path / "plot.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_model_has_its_own(run_cli, files, tmp_path, command):
    model = str(tmp_path / "model.json")
    assert run_cli("fit", *files, "-o", model).exit_code == 0
    extra = (files[0],) if command == "evaluate" else ()
    result = run_cli(command, "--model", model, *files[1:], *extra)
    assert result.exit_code == 2
    assert "bare forwards" in result.output
