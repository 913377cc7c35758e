from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specsim import SpecConfig, Workload, break_even, fit
from specsim.errors import ConfigurationError, UnknownSettingError
from specsim.next_run import WIDTHS, Knowledge, departures, next_run
from specsim.questions import Asked
from specsim.recipes import commands
from tests.synthetic import Truth, phase_runs, run

BASE = run("p", 1, None, decode_ms=15.9)
LINE = [run("6", 1, 6, cycle_ms=30.0), run("3", 1, 3, cycle_ms=27.0)]


def unit(*entries: float) -> np.ndarray:
    return np.array(entries, dtype=float)


# -- the update of eq. 15 ----------------------------------------------------------------------------------------------


def test_one_more_measurement_of_one_coefficient_by_hand():
    """Variances 4 and 1 of two readings of the same thing leave 4·1/(4 + 1) = 0.8."""
    then = Knowledge(np.array([[4.0]]), np.zeros((0, 1))).after(unit(1.0), 1.0)
    assert then.covariance == pytest.approx(0.8)


def test_an_open_direction_becomes_as_certain_as_its_measurement():
    """a is known to variance 4, b is open; a + b measured to 1: b = m - a, so var b = 1 + 4, cov(a, b) = -4."""
    known = Knowledge(np.diag([4.0, 0.0]), unit(0.0, 1.0)[None])
    assert not known.tells(unit(0.0, 1.0))
    then = known.after(unit(1.0, 1.0), 1.0)
    assert then.tells(unit(0.0, 1.0))
    assert then.covariance == pytest.approx(np.array([[4.0, -4.0], [-4.0, 5.0]]))


def test_the_blind_update_is_the_limit_of_the_rank_one_formula():
    generator = np.random.default_rng(3)
    root = generator.normal(size=(4, 4))
    known = Knowledge(root @ root.T, generator.normal(size=(2, 4)))
    seen = generator.normal(size=4)
    asked = np.linalg.svd(np.vstack([known.after(seen, 0.3).blind]))[2][1:]  # told after, whatever is still open
    big = Knowledge(known.covariance + 1e9 * known.blind.T @ known.blind, np.zeros((0, 4))).after(seen, 0.3)
    exact = known.after(seen, 0.3)
    for row in asked:
        assert row @ exact.covariance @ row == pytest.approx(row @ big.covariance @ row, rel=1e-4)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_the_update_is_what_a_refit_with_one_more_row_gives(width):
    runs = phase_runs(Truth(), (3, 6), (1, 2))
    model = fit(runs).model
    spec = SpecConfig.of(num_draft_tokens=width)
    from specsim.cost.terms import Cycle

    estimate = model.phase("verify", Cycle.of(spec, Workload(1), None), "s")
    again = fit([*runs, run("new", 1, width, verify_ms=float(estimate.value[0]))]).model
    known = Knowledge(model.covariance_matrix / model.noise.relative**2, np.zeros((0, len(model.coefficients))))
    then = known.after(estimate.gradient[0], float(estimate.value[0]) ** 2)
    assert then.covariance == pytest.approx(again.covariance_matrix / again.noise.relative**2, rel=1e-6, abs=1e-9)


# -- what is recommended ------------------------------------------------------------------------------------------------


def test_today_is_what_break_even_says(campaign_model):
    for label in ("default", "LL-Ring-SYS"):
        for width in (3, 6):
            plan = next_run(campaign_model, Asked(num_draft_tokens=width, nccl=label))
            answer = break_even(campaign_model, SpecConfig.of(num_draft_tokens=width), Workload(1), label)
            assert plan.interval_now == pytest.approx(answer.interval)


def test_two_runs_ask_for_a_third_width_and_say_which():
    plan = next_run(fit([*LINE, BASE]).model)
    first = plan.next[0]
    assert first.checks_form
    assert first.kind == "cycle"
    assert first.spec.num_draft_tokens not in (3, 6)
    assert f"at {first.spec.num_draft_tokens} tokens" in first.why
    assert "test nothing of its shape" in first.why
    assert not any(each.checks_form for each in plan.next[1:])


def test_two_bare_runs_ask_for_a_third_width_the_rest_and_the_baseline():
    plan = next_run(fit([run("6", 1, 6, verify_ms=28.7), run("3", 1, 3, verify_ms=25.6)]).model)
    assert plan.interval_now is None
    assert len(plan.missing) == 2
    assert (plan.next[0].kind, plan.next[0].checks_form) == ("verify", True)
    assert {each.kind for each in plan.next[1:]} == {"cycle", "decode"}
    assert all(each.ratio is None for each in plan.next)


def test_three_widths_need_no_check_of_form():
    plan = next_run(fit([*LINE, run("9", 1, 9, cycle_ms=33.0), BASE]).model)
    assert not any(each.checks_form for each in plan.next)


def test_the_alternatives_touch_the_line_where_it_was_measured():
    apart = departures(np.array([3.0, 6.0, 4.0, 12.0]), (3.0, 6.0))
    assert apart[:, :2] == pytest.approx(0.0, abs=1e-12)
    assert (apart[0, 2:] > 0).all()


def test_a_knee_by_hand():
    """A knee at 6 is flat on 3 to 6, so that at 12 it stands 6 above its line."""
    tokens = np.array([4.0, 12.0])
    apart = departures(tokens, (3.0, 6.0))
    knee_at_six = apart[3 + [3.0, 4.0, 6.0, 12.0].index(6.0)]
    assert knee_at_six == pytest.approx([0.0, 6.0])


def test_one_width_and_another_asked_becomes_answerable():
    """Cycle known at 6 only, to 1%; the asked width 4 is open until a second width is measured."""
    model = fit([LINE[0], BASE]).model
    plan = next_run(model, Asked(num_draft_tokens=4))
    first = plan.next[0]
    assert plan.interval_now is None
    assert plan.missing == ("the whole cycle",)
    assert (first.kind, first.makes_answerable, first.ratio) == ("cycle", True, 0.0)
    assert first.interval_after is not None
    itself = next(each for each in plan.next if each.spec and each.spec.num_draft_tokens == 4)
    # measured itself, cycle and baseline to 1% each: about 1.645·√2 %
    assert itself.half_width_pct_after == pytest.approx(1.6449 * 2**0.5, rel=2e-3)


def test_no_baseline_is_answered_in_percent_where_nothing_places_it():
    plan = next_run(fit(LINE).model, Asked(num_draft_tokens=6))
    (first,) = [each for each in plan.next if each.makes_answerable]
    assert (first.kind, first.batch_size, first.spec) == ("decode", 1, None)
    assert first.interval_after is None
    assert first.half_width_pct_after == pytest.approx(1.6449 * 2**0.5, rel=2e-3)


def test_a_baseline_of_another_setting_places_the_answer():
    runs = [*LINE, BASE, *(replace(each, id=f"t{each.id}", nccl="t") for each in LINE)]
    plan = next_run(fit(runs).model, Asked(num_draft_tokens=6, nccl="t"))
    answers = [each for each in plan.next if each.makes_answerable]
    assert [(each.kind, each.nccl) for each in answers] == [("decode", "t")]
    low, high = answers[0].interval_after
    assert low < 30.0 / 15.9 < high


def test_readings_give_way_to_a_measurement(campaign_model):
    plan = next_run(campaign_model)
    assert (plan.about.nccl, plan.about.spec.num_draft_tokens, plan.questions) == ("LL-Ring-SYS", 3, 4)
    best = next(each for each in plan.next if not each.checks_form)
    assert (best.kind, best.nccl) == ("cycle", "LL-Ring-SYS")
    assert best.ratio < 0.3
    assert "in place of the readings" in best.why


def test_unknown_settings_and_impossible_configurations_are_refused(campaign_model):
    with pytest.raises(UnknownSettingError):
        next_run(campaign_model, Asked(nccl="NVLS"))
    with pytest.raises(ConfigurationError):
        next_run(campaign_model, Asked(num_draft_tokens=0))


# -- how to make it -----------------------------------------------------------------------------------------------------


def test_commands_force_one_token_a_cycle():
    chain = SpecConfig.of(num_draft_tokens=4, method="eagle3")
    (sglang,) = commands(chain, 2, "SGLang", {"NCCL_PROTO": "LL"})
    assert sglang.startswith("NCCL_PROTO=LL SGLANG_RECORD_STEP_TIME=1 SGLANG_SIMULATE_ACC_LEN=1 ")
    assert "--max-running-requests 2 --speculative-algorithm EAGLE3 --speculative-num-steps 3" in sglang
    (vllm,) = commands(chain, 2, "vllm", {})
    given = json.loads(vllm.split("'")[1])
    assert given == {
        "method": "eagle3", "num_speculative_tokens": 3, "model": "YOUR_DRAFTER",
        "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0,
    }  # fmt: skip
    assert len(commands(chain, 1, None, {})) == 2
    assert commands(None, 4, "vllm", {}) == ["vllm serve YOUR_FLAGS --max-num-seqs 4"]
    assert commands(SpecConfig(3, 4, 16), 1, "vllm", {}) == []
    assert "TOKEN_MODE=fixed" in commands(SpecConfig(1, 1, 6, "ngram"), 1, "sglang", {})[0]


# -- the command -----------------------------------------------------------------------------------------------------------

HEADER = "nccl,batch_size,num_draft_tokens,verify_ms,cycle_ms,decode_ms"
ROWS = (HEADER, "a,1,6,28.7,30.29,", "a,1,3,25.6,,", "a,1,,,,15.9")


def test_json_has_the_promised_names(run_cli, csv):
    record = json.loads(run_cli("next-run", csv(*ROWS), "--json").stdout)
    assert record["next"]
    for each in record["next"]:
        assert {
            "kind", "num_draft_tokens", "batch_size", "nccl", "interval_now", "interval_after", "ratio", "why", "commands",
        } <= set(each)  # fmt: skip
        assert each["commands"]
        assert each["ratio"] <= 1
    text = " ".join(run_cli("next-run", csv(*ROWS)).stdout.split())
    for note in (*record["notes"], *(each["why"] for each in record["next"])):
        assert " ".join(note.split()) in text


def test_a_model_file_plans_as_its_runs_do(run_cli, csv, tmp_path):
    path, model = csv(*ROWS), tmp_path / "model.json"
    run_cli("fit", path, "-o", model)
    asked = ("--num-draft-tokens", 8, "--json")
    assert run_cli("next-run", "--model", model, *asked).stdout == run_cli("next-run", path, *asked).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--nccl", "NVLS"), "unknown NCCL setting"), (("--num-draft-tokens", 0), "at least 1"), (("none.csv",), "cannot be read")],
)  # fmt: skip
def test_bad_input_exits_with_2(run_cli, arguments, said):
    result = run_cli("next-run", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_baselines_alone_need_a_configuration(run_cli, csv):
    path = csv(HEADER, "a,1,,,,15.9")
    assert run_cli("next-run", path).exit_code == 2
    record = json.loads(run_cli("next-run", path, "--num-draft-tokens", 4, "--json").stdout)
    assert record["next"][0]["kind"] == "cycle"
    assert record["next"][0]["makes_answerable"]


def test_widths_are_those_an_engine_can_be_started_with():
    assert (WIDTHS[0], WIDTHS[-1]) == (2, 16)
