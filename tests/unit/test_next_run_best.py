from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specsim import SpecConfig, Workload, fit
from specsim.acceptance import ConstantRate
from specsim.cost.model import Alternative
from specsim.cost.terms import Cycle
from specsim.errors import ConfigurationError, UnknownSettingError
from specsim.fitting.acceptance import LengthObservation, fit_acceptance
from specsim.next_run import next_run_for_best
from specsim.questions import Asked
from specsim.runs.run import Figure
from specsim.sweep import Axes, assumed_law, law_from, sweep
from specsim.uncertainty import ratio_interval
from tests.synthetic import Truth, at_noise, lognormal, phase_runs, run

BASE = run("p", 1, None, decode_ms=15.9)
LINE = [run("6", 1, 6, cycle_ms=30.0), run("3", 1, 3, cycle_ms=27.0)]


def with_length(made, length: float, error: float | None = None):
    """A run with an accept length; its standard error is that of two repeats so far from their mean."""
    repeats = () if error is None else (length - error, length + error)
    return replace(made, figures=made.figures | {"accept_length": Figure(length, repeats=repeats)})


def under(label: str, runs, factor: float = 1.0):
    """The same runs under another NCCL setting, every time longer by a factor."""
    scaled = [
        {name: Figure(f.best * (factor if name.endswith("_ms") else 1)) for name, f in r.figures.items()} for r in runs
    ]
    return [replace(r, id=f"{label}{r.id}", nccl=label, figures=f) for r, f in zip(runs, scaled, strict=True)]


def widths(rivals) -> list[int | None]:
    return [None if each.spec is None else int(each.spec.num_draft_tokens) for each in rivals]


# -- the ratio's interval ---------------------------------------------------------------------------------------------


def test_the_ratio_of_two_measured_cycles_by_hand():
    """30 ms for 2.4 tokens against 27 ms for 2: 12.5/13.5 = 0.92593, each time known to 1% by itself.

    Fieller with z·s = 0.01644854 and g = 2.70554e-4: (1 ± 0.01644854·√(2 − g))/(1 − g) = 0.977004 and 1.023537.
    """
    model = fit([with_length(LINE[0], 2.4), with_length(LINE[1], 2.0)]).model
    plan = next_run_for_best(model)
    contest = plan.about
    assert widths([contest.best, *contest.rivals]) == [6, 3]
    assert contest.best.output_tok_s == pytest.approx(80.0)
    assert contest.rival.time_ratio == pytest.approx(12.5 / 13.5)
    assert plan.interval_now == pytest.approx((0.92593 * 0.977004, 0.92593 * 1.023537), rel=1e-5)
    assert plan.half_width_pct_now == pytest.approx(50 * (1.023537 - 0.977004), rel=1e-4)
    assert contest.rival.told_apart


def test_a_measured_lengths_error_joins_in_squares_by_hand():
    """An error of 0.05 of 2 tokens is 0.04112 in logs at 90%; the times' part is log 1.023537 = 0.02326: together 0.04724."""
    model = fit([with_length(LINE[0], 2.4), with_length(LINE[1], 2.0, error=0.05)]).model
    plan = next_run_for_best(model)
    assert plan.about.lengths_apart == pytest.approx(1.644854 * 0.05 / 2)
    assert plan.interval_now[1] == pytest.approx(12.5 / 13.5 * np.exp(0.047248), rel=1e-5)
    assert not plan.about.lengths_apart > 0.05


def test_what_both_lengths_owe_to_the_law_cancels():
    """With one law for both, what their lengths do not know together is less than what each does not know alone."""
    law = fit_acceptance([LengthObservation(5, 1, 6, 2.1, standard_error=0.05)])
    plan = next_run_for_best(fit([*LINE, BASE]).model, Asked(num_draft_tokens=7), law)
    lengths = {
        int(each.spec.num_draft_tokens): each.length for each in (plan.about.best, *plan.about.rivals) if each.spec
    }
    six, seven = lengths[6], lengths[7]
    assert {each.origin for each in lengths.values()} == {"law"}
    steps, one, width = np.array([5, 6]), np.ones(2, dtype=int), np.array([6, 7])
    known = law.lengths(steps, one, width)
    assert six.apart(seven) == pytest.approx(float(known.square_apart(np.array(0), np.array(1))) ** 0.5)
    alone = np.hypot(*(np.log(each.interval[1] / each.value) for each in (six, seven)))
    assert six.apart(seven) < alone
    assert six.apart(six) == 0


def test_one_nccl_setting_is_read_one_way_at_a_time():
    """Both widths under t are read against s: the shift of one is never held against the ratio of the other."""
    model = fit([*LINE, *under("t", [LINE[0]], 0.9)]).model
    contest = next_run_for_best(model, Asked(num_draft_tokens=4, nccl="t"), ConstantRate(0.5)).about
    rival = next(each for each in contest.rivals if widths([each]) == [3])
    assert widths([contest.best]) == [4]

    def reads(width: int):
        return model.verify(Cycle.of(SpecConfig.of(num_draft_tokens=width), Workload(1), None), "t").by_name

    def ends(over, lower):
        pairs = ((over, over), (lower, lower), (over, lower))
        variances = tuple(one.covariance_with(two, model.covariance_matrix) for one, two in pairs)
        return np.concatenate(ratio_interval(over.value, lower.value, variances, 1.6448536)) * factor

    factor = rival.length.value / contest.best.length.value
    four, three = reads(4), reads(3)
    assert set(three) == {"ratio", "shift"}
    alike = np.array([ends(four[name], three[name]) for name in three])
    crossed = np.array([ends(four["ratio"], three["shift"]), ends(four["shift"], three["ratio"])])
    assert rival.interval == pytest.approx((alike[:, 0].min(), alike[:, 1].max()), rel=1e-6)
    assert crossed[:, 1].max() > rival.interval[1] * 1.001


# -- who competes -----------------------------------------------------------------------------------------------------


def test_the_best_and_its_ties_are_the_sweeps():
    """Under a known law the contest at one setting is the sweep's column over the same configurations."""
    law, seen = assumed_law(0.7), set()
    for seed in range(8):
        model = fit(phase_runs(Truth(), (2, 3, 4, 6, 8), (1,), lognormal(seed, 0.03))).model
        contest = next_run_for_best(model, None, law).about
        found = sweep(model, law, Axes.chains(model, num_steps=(1, 2, 3, 5, 7)))
        best, *rivals = [each for each in (contest.best, *contest.rivals) if each.spec is not None]
        assert best.spec == found.cell(0, 0, int(found.columns.best[0, 0])).spec
        assert best.output_tok_s == pytest.approx(float(found.columns.best_output_tok_s[0, 0]))
        tied = found.spec.num_draft_tokens[found.tied[0, 0]].tolist()
        assert best == contest.best
        assert sorted(tied) == sorted(widths([best, *(each for each in rivals if not each.told_apart)]))
        seen |= {len(tied)}
    assert len(seen) > 1


def test_plain_decode_competes_where_its_time_is_told():
    """Plain decode at 10 ms a token beats 30 ms for 2.4: the best setting is not to speculate."""
    runs = [with_length(LINE[0], 2.4), with_length(LINE[1], 2.0), run("p", 1, None, decode_ms=10.0)]
    contest = next_run_for_best(fit(runs).model).about
    assert widths([contest.best]) == [None]
    assert contest.best.output_tok_s == pytest.approx(100.0)
    assert contest.rival.time_ratio == pytest.approx(10.0 / 12.5)
    without = next_run_for_best(fit(runs).model, Asked(batch_size=2)).about
    assert None not in widths([without.best, *without.rivals])
    assert any("no baseline tells it at batch_size 2" in each.why for each in without.left_out)


def test_a_bare_target_forward_is_no_candidate():
    runs = [with_length(LINE[0], 2.4), with_length(LINE[1], 2.0), run("1", 1, 1, cycle_ms=25.0)]
    contest = next_run_for_best(fit(runs).model).about
    assert widths([contest.best, *contest.rivals]) == [6, 3]


def test_a_length_measured_under_one_setting_serves_the_others():
    runs = [with_length(LINE[0], 2.4), *under("t", LINE[:1], 0.98)]
    contest = next_run_for_best(fit(runs).model).about
    assert (contest.best.nccl, contest.rival.nccl) == ("t", "s")
    assert contest.best.length == contest.rival.length
    assert contest.rival.time_ratio == pytest.approx(0.98)
    assert contest.lengths_apart == 0


def test_settings_compare_without_an_accept_length():
    contest = next_run_for_best(fit([LINE[0], *under("t", LINE[:1], 0.98), BASE]).model).about
    assert contest.rival.time_ratio == pytest.approx(0.98)
    assert contest.best.length.origin == "cancels"
    assert np.isnan(contest.best.output_tok_s)
    assert [each.setting for each in contest.left_out] == ["plain decode"]


def test_a_stated_length_is_the_named_configurations():
    runs = [with_length(LINE[0], 2.4), LINE[1], BASE]
    contest = next_run_for_best(fit(runs).model, Asked(num_draft_tokens=3, accept_length=2.9)).about
    found = {int(r.spec.num_draft_tokens): r.length for r in (contest.best, *contest.rivals) if r.spec}
    assert (found[3].value, found[3].origin) == (2.9, "stated")
    assert (found[6].value, found[6].origin) == (2.4, "measured")


def test_an_assumed_rate_counts_for_all_and_a_fitted_law_where_nothing_was_measured(campaign_model):
    def origins(law):
        contest = next_run_for_best(campaign_model, None, law).about
        return {int(r.spec.num_draft_tokens): r.length.origin for r in (contest.best, *contest.rivals) if r.spec}

    assert origins(assumed_law(0.6)) == {3: "law", 6: "law"}
    assert origins(law_from(campaign_model)) == {3: "law", 6: "measured"}
    assert origins(None) == {6: "measured"}


def test_the_least_decided_batch_size_is_answered():
    """At batch 1 the widths are 20% apart, at batch 8 nearly equal, since there tokens cost more."""
    runs = [run(f"{b}x{n}", b, n, cycle_ms=20.0 + 0.5 * b * n) for b in (1, 8) for n in (3, 6)]
    runs = [with_length(each, {3: 2.0, 6: 2.6}[int(each.spec.num_draft_tokens)]) for each in runs]
    plan = next_run_for_best(at_noise(fit(runs).model, 0.01))
    assert (plan.questions, plan.about.best.batch_size) == (2, 8)
    asked = next_run_for_best(at_noise(fit(runs).model, 0.01), Asked(batch_size=1))
    assert (asked.questions, asked.about.best.batch_size) == (1, 1)
    assert asked.about.rival.told_apart


# -- what is recommended ----------------------------------------------------------------------------------------------


def test_two_runs_ask_for_a_third_width_first():
    plan = next_run_for_best(fit([with_length(LINE[0], 2.4), with_length(LINE[1], 2.3), BASE]).model)
    assert plan.next[0].checks_form
    assert plan.next[0].spec.num_draft_tokens not in (3, 6)
    ratios = [each.ratio for each in plan.next[1:]]
    assert ratios == sorted(ratios)
    assert ratios[0] < 1


def test_a_rival_whose_time_no_run_tells_is_the_least_decided():
    """One width under s alone: of the asked width 4 nothing is known, however far ahead the measured one is."""
    plan = next_run_for_best(fit([with_length(LINE[0], 2.9), BASE]).model, Asked(num_draft_tokens=4, accept_length=1.2))
    assert widths([plan.about.best, plan.about.rival]) == [6, 4]
    assert plan.missing == ("the cycle at 4 draft tokens under NCCL s",)
    assert plan.interval_now is None
    assert plan.next[0].makes_answerable
    assert np.isnan(plan.about.rival.output_tok_s)


def test_cycles_that_lack_a_phase_are_answered_by_one_whole_cycle():
    runs = [with_length(run(f"{n}", 1, n, verify_ms=20.0 + n), 2.0 + n / 10) for n in (3, 6)]
    plan = next_run_for_best(fit(runs).model)
    assert len(plan.missing) == 2
    assert all("were never timed" in name for name in plan.missing)
    first = next(each for each in plan.next if not each.checks_form)
    assert (first.kind, first.makes_answerable) == ("cycle", True)


def test_a_form_that_puts_another_first_leaves_it_undecided():
    """By the line 6 wins over 3 by 7% and over plain decode by 1%; by a form that is not excluded, 3 is the best."""
    lengths = [with_length(LINE[0], 2.4), with_length(LINE[1], 2.0), run("p", 1, None, decode_ms=12.6)]
    steep = [with_length(run("6", 1, 6, cycle_ms=36.0), 2.4), lengths[1], run("p", 1, None, decode_ms=14.0)]
    model = at_noise(fit(lengths).model, 0.001)
    assert widths([next_run_for_best(model).about.rival]) == [None]
    model = replace(model, alternatives=(Alternative("a steep line", 1.0, 0.01, at_noise(fit(steep).model, 0.001)),))
    rival = next_run_for_best(model).about.rival
    assert widths([rival]) == [3]
    assert rival.first_by == ("a steep line",)
    assert rival.interval[1] < 1
    assert not rival.told_apart


@pytest.mark.parametrize(
    ("runs", "asked", "said"),
    [
        ([*LINE, BASE], Asked(), "none of the 2 configurations has an accept length"),
        ([*LINE, BASE], Asked(accept_length=2.0), "one accept length for 2 configurations"),
        ([with_length(LINE[0], 2.4)], Asked(), "one candidate has no rival"),
        ([LINE[0], BASE], Asked(accept_length=9.0), "accept_length 9 is not possible"),
        ([run("1", 1, 1, cycle_ms=25.0), BASE], Asked(), "no configuration that drafts"),
        ([BASE], Asked(), "no speculative run"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs, asked, said):
    with pytest.raises(ConfigurationError, match=said):
        next_run_for_best(fit(runs).model, asked)


def test_unknown_settings_are_refused(campaign_model):
    with pytest.raises(UnknownSettingError):
        next_run_for_best(campaign_model, Asked(nccl="NVLS"))


# -- the command -------------------------------------------------------------------------------------------------------

HEADER = "nccl,batch_size,num_draft_tokens,verify_ms,cycle_ms,decode_ms,accept_length"
ROWS = (HEADER, "a,1,6,28.7,30.29,,2.1", "a,1,3,25.6,,,", "a,1,,,,15.9,")
BEST = ("--question", "best-setting")


def test_json_has_the_plans_names_and_its_own(run_cli, csv):
    record = json.loads(run_cli("next-run", csv(*ROWS), *BEST, "--json").stdout)
    assert record["asks"] == "best-setting"
    assert {
        "best", "rival", "rivals", "told_apart", "left_out", "interval_now", "half_width_pct_now", "missing", "questions",
        "interval_level", "noise_relative", "mixed_setup", "notes",
    } <= set(record)  # fmt: skip
    for each in record["next"]:
        assert {"kind", "interval_now", "interval_after", "ratio", "decides", "why", "commands"} <= set(each)
        low, high = each["interval_after"]
        assert each["decides"] == (high < 1 or low > 1)
        assert each["commands"]
    assert record["rival"] in record["rivals"]
    text = " ".join(run_cli("next-run", csv(*ROWS), *BEST).stdout.split())
    for note in (*record["notes"], *(each["why"] for each in record["next"])):
        assert " ".join(note.split()) in text


def test_the_break_even_is_the_default_and_says_what_it_asks(run_cli, csv):
    path = csv(*ROWS)
    record = json.loads(run_cli("next-run", path, "--json").stdout)
    assert record["asks"] == "break-even"
    assert (
        run_cli("next-run", path, "--question", "break-even", "--json").stdout
        == run_cli("next-run", path, "--json").stdout
    )


def test_doubt_of_lengths_is_said_not_to_yield_to_timing(run_cli, csv):
    """The law's length at 3 tokens is known to several percent, more than what parts it from 6."""
    record = json.loads(run_cli("next-run", csv(*ROWS), *BEST, "--json").stdout)
    said = " ".join(record["notes"])
    assert record["half_width_pct_of_lengths"] > 1
    assert "which no timing narrows" in said
    assert "a run with real acceptance at 3 draft tokens would" in said
    assert "no accept length was measured at 3 draft tokens" in said


def test_lengths_that_are_lacking_are_named_with_what_to_state(run_cli, csv):
    rows = (HEADER, "a,1,6,,30.29,,", "a,1,3,,27.0,,", "a,1,,,,15.9,")
    result = run_cli("next-run", csv(*rows), *BEST)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "state --accept-rate" in result.stderr
    record = json.loads(
        run_cli("next-run", csv(*rows), *BEST, "--num-draft-tokens", 6, "--accept-length", 2.2, "--json").stdout
    )
    assert [each["setting"] for each in record["left_out"]] == ["3 draft tokens"]
    assert any("not compared: 3 draft tokens" in note for note in record["notes"])


def test_extrapolation_is_labelled(run_cli, csv):
    asked = (*BEST, "--num-draft-tokens", 12, "--accept-rate", 0.9)
    record = json.loads(run_cli("next-run", csv(*ROWS), *asked, "--json").stdout)
    wide = next(each for each in (record["best"], *record["rivals"]) if each["num_draft_tokens"] == 12)
    assert wide["extrapolated"]
    assert "verify_tokens outside the measured 3 to 6" in wide["extrapolated_in"]
    assert "EXTRAPOLATED: verify_tokens outside the measured 3 to 6" in run_cli("next-run", csv(*ROWS), *asked).stdout


@pytest.mark.parametrize("option", [("--accept-length", 2.0), ("--accept-rate", 0.6)])
def test_lengths_have_no_part_in_a_break_even(run_cli, option):
    result = run_cli("next-run", *option)
    assert result.exit_code == 2
    assert "--question best-setting" in result.stderr
