"""Every row of the campaign's table but the last (eager, a simulator's question): reproduced or corrected.

Expected figures are worked out by hand from the campaign's own, beside each assertion.
"""

from __future__ import annotations

import pytest

from specsim import SpecConfig, Workload, break_even, predict
from specsim.errors import MixedSetupError
from specsim.report.story import corrections

ONE = Workload(1)
SIX, THREE = SpecConfig.of(num_draft_tokens=6), SpecConfig.of(num_draft_tokens=3)
TUNED = "LL-Ring-SYS"


def near(value: float, rel: float = 1e-9):
    return pytest.approx(value, rel=rel)


@pytest.fixture(scope="module")
def figures(campaign, campaign_model):
    return {c["claim"]: c["figures"] for c in corrections(campaign, campaign_model)}


def test_two_point_split_is_exact(campaign_model):
    assert campaign_model.coefficient("verify_per_token_ms", "default").value == near((28.7 - 25.6) / 3)
    assert campaign_model.coefficient("verify_fixed_ms", "default").value == near(22.5)


def test_two_runs_leave_nothing_to_judge_the_fit_by(campaign_model):
    assert campaign_model.noise.residual_dof == 0
    assert campaign_model.noise.assumed
    assert any("assumed timing noise of 1.0%" in note for note in campaign_model.notes)


def test_fixed_share_is_78_not_89_percent(figures):
    found = figures["about 89% of verify time is fixed"]
    assert found["share_at_6"] == near(22.5 / 28.7)
    assert found["share_at_3"] == near(22.5 / 25.6)
    assert found["ratio"] == near(25.6 / 28.7)
    assert f"{found['share_at_6']:.1%} {found['share_at_3']:.1%} {found['ratio']:.1%}" == "78.4% 87.9% 89.2%"


def test_proportional_guess(figures):
    found = figures["verify at 3 tokens was expected to take half of its time at 6"]
    assert (found["guess_ms"], found["measured_ms"]) == (near(14.35), 25.6)


def test_first_profile_shares_stand_beside_the_fit(figures, campaign_fit):
    found = figures["the first profile at 6 tokens"]
    assert found["other_ms"] == near(31.74 - 28.45 - 2.18)
    shares = [f"{found[name]:.1%}" for name in ("verify_share", "draft_share", "other_share")]
    assert shares == ["89.6%", "6.9%", "3.5%"]
    assert "profile-6-first" in {run.id for run in campaign_fit.left_out}
    assert "profile-6-first" not in {run for c in campaign_fit.model.coefficients for run in c.runs}


def test_draft_and_other(campaign_model):
    times = predict(campaign_model, SIX, ONE, 2.1, "default").times
    assert times.draft_ms == near(1.07)
    assert predict(campaign_model, THREE, ONE, 2.1, "default").times.draft_ms == near(0.69)
    assert times.other_ms == near(30.29 - 28.7 - 1.07)
    assert campaign_model.coefficient("draft_per_forward_ms").value == near((1.07 - 0.69) / 3)
    assert campaign_model.coefficient("draft_per_forward_ms").implied


def test_stated_break_even_mixes_settings(campaign_model):
    with pytest.raises(MixedSetupError, match="nccl"):
        break_even(campaign_model, SIX, ONE, "default", baseline_nccl=TUNED)
    mixed = break_even(campaign_model, SIX, ONE, "default", baseline_nccl=TUNED, allow_mixed=True)
    assert mixed.break_even_accept_length == near(30.29 * 88.8 / 1000)
    assert round(mixed.break_even_accept_length, 2) == 2.69
    assert mixed.mixed == ("nccl",)


def test_break_even_like_for_like(campaign_model):
    default, tuned = (break_even(campaign_model, SIX, ONE, nccl) for nccl in ("default", TUNED))
    assert default.break_even_accept_length == near(30.29 * 62.9 / 1000)  # 1.905
    assert tuned.break_even_accept_length == near((21.7 + 1.59) * 88.8 / 1000)  # 2.068
    assert default.mixed == tuned.mixed == ()


def test_measured_length_already_broke_even(campaign_model):
    tuned, default = (predict(campaign_model, SIX, ONE, 2.1, nccl) for nccl in (TUNED, "default"))
    assert (round(tuned.output_tok_s, 1), round(tuned.baseline_tok_s, 1)) == (90.2, 88.8)
    assert (round(default.output_tok_s, 1), round(default.baseline_tok_s, 1)) == (69.3, 62.9)
    verdict = break_even(campaign_model, SIX, ONE, TUNED, accept_length=2.1).verdict
    assert verdict.verdict == "undecided"
    assert 0.5 < verdict.probability_pays < 0.95


def test_nccl_tuning_gains(figures):
    found = figures["tuning NCCL cut verify time by 27%"]
    assert f"{found['baseline_change']:+.1%}" == "+41.2%"
    assert f"{found['verify_change']:+.1%}" == "-24.4%"


def test_nccl_effect_by_tokens(figures):
    found = figures["what the NCCL setting saves, by tokens (if decode and verify communicate alike)"]
    at_one = 1000 / 62.9 - 1000 / 88.8
    slope = (28.7 - 21.7 - at_one) / 5
    assert found["fixed_ms"] == near(at_one - slope)
    assert found["per_token_ms"] == near(slope)
    assert found["all_reduces"] == 122
    assert (round(found["fixed_us"]), round(found["per_token_us"], 1)) == (34, 3.9)


def test_tuned_setting_at_three_tokens_is_bracketed(campaign_model):
    times = predict(campaign_model, THREE, ONE, 2.0, TUNED).times
    at_one = 1000 / 62.9 - 1000 / 88.8
    slope = (7.0 - at_one) / 5
    assert times.verify_by_reading == {
        "ratio": near(25.6 * 21.7 / 28.7),
        "shift": near(25.6 - 7.0),
        "affine": near(25.6 - (at_one + 2 * slope)),
    }
    low, high = times.cycle_interval
    rest = 0.69 + 0.52
    assert low < min(times.verify_by_reading.values()) + rest
    assert high > max(times.verify_by_reading.values()) + rest
    assert times.verify_ms == near(25.6 * 21.7 / 28.7)  # the middle of the three


def test_every_figure_of_the_source_is_kept(campaign):
    by_id = {run.id: run for run in campaign.runs}
    assert set(by_id) == {
        "base-default", "base-tuned", "base-early", "profile-6-first", "verify-6", "verify-3", "verify-6-tuned",
        "eager-16", "eager-5", "eager-other-drafter", "graphs-on",
    }  # fmt: skip
    rates = {name: run.figures["output_tok_s"].best for name, run in by_id.items() if "output_tok_s" in run.figures}
    assert rates == {
        "base-default": 62.9, "base-tuned": 88.8, "base-early": 90.0, "eager-16": 56.7, "eager-5": 53.2,
        "eager-other-drafter": 50.5, "graphs-on": 82.3,
    }  # fmt: skip
    ranges = {
        n: (r.figures["accept_length"].low, r.figures["accept_length"].high)
        for n, r in by_id.items()
        if n.startswith("eager")
    }
    assert ranges == {"eager-16": (2.0, 2.5), "eager-5": (2.0, 2.2), "eager-other-drafter": (1.8, 2.1)}
    assert (by_id["verify-3"].figures["draft_ms"].low, by_id["verify-3"].figures["draft_ms"].high) == (0.69, 1.07)
    assert by_id["eager-5"].figures["between_prompt_spread"].best == 0.40
    assert (by_id["eager-5"].figures["accept_rate"].low, by_id["eager-5"].figures["accept_rate"].high) == (0.41, 0.45)
    assert (by_id["eager-16"].prompts, by_id["eager-16"].workload.output_len) == (5, 1024)
    assert campaign.claim("break-even").figures == {
        "num_draft_tokens": 6,
        "baseline_tok_s": 88.8,
        "accept_length": 2.69,
    }
    assert [samples for samples, _, _ in campaign.data_scaling] == [10_000, 37_000, 1_400_000]
    assert campaign.model_card["layers"] == 61
