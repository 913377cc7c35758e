"""Do two benchmarks differ: against textbook sample sizes, scipy's own tests, and many simulated benchmarks."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from specsim.acceptance import ConstantRate
from specsim.errors import ConfigurationError
from specsim.quantities import SpecConfig
from specsim.simulation import Benchmark, CycleTime, Drawer, simulate_requests
from specsim.simulation.comparison import (
    Measured,
    compare,
    paired_prompts_needed,
    plan,
    prompts_needed,
    within_spread,
)


def by_prompt(values, name: str = "a") -> Measured:
    return Measured.of_prompts(name, {f"{name}{at}": float(value) for at, value in enumerate(values)})


def paired(values) -> Measured:
    return Measured.of_prompts("x", {str(at): float(value) for at, value in enumerate(values)})


# -- the tests ---------------------------------------------------------------------------------------------------------


def test_the_campaigns_five_prompts_by_hand():
    """log(56.7/53.2) over √(2·.4²/5) is .2519; Student's t with 8 degrees of freedom, by its closed form."""
    found = compare(Measured("a", 53.2, 5, 0.4), Measured("b", 56.7, 5, 0.4))
    score = math.log(56.7 / 53.2) / math.sqrt(2 * 0.16 / 5)
    sine, square = score / math.sqrt(8 + score**2), 8 / (8 + score**2)
    confidence = sine * (1 + square / 2 + 3 * square**2 / 8 + 5 * square**3 / 16)
    assert found.dof == pytest.approx(8)
    assert found.confidence == pytest.approx(confidence)
    assert found.verdict == "not_distinguishable"
    assert found.probability_second_faster == pytest.approx((1 + confidence) / 2)
    # (1.960 + .8416)²·2·.16/log(56.7/53.2)² = 618.7, and one or two more because the spread is estimated
    assert found.prompts_needed in (620, 621)


def test_single_prompts_are_held_against_each_other_as_scipy_does():
    generator = np.random.default_rng(7)
    one, other = np.exp(generator.normal(4, 0.3, 9)), np.exp(generator.normal(4.2, 0.5, 14))
    found = compare(by_prompt(one, "a"), by_prompt(other, "b"))
    wanted = stats.ttest_ind(np.log(other), np.log(one), equal_var=False)
    assert (found.test, found.same_prompts) == ("welch", 0)
    assert found.confidence == pytest.approx(1 - wanted.pvalue)
    assert found.dof == pytest.approx(wanted.df)
    np.testing.assert_allclose(np.log(found.ratio_interval), tuple(wanted.confidence_interval(0.95)))


def test_the_same_prompts_are_paired_as_scipy_does():
    generator = np.random.default_rng(7)
    prompts = np.exp(generator.normal(4, 0.4, 12))
    changed = prompts * np.exp(generator.normal(0.05, 0.03, 12))
    found = compare(paired(prompts), paired(changed))
    wanted = stats.ttest_rel(np.log(changed), np.log(prompts))
    assert (found.test, found.same_prompts, found.verdict) == ("paired", 12, "different")
    assert found.confidence == pytest.approx(1 - wanted.pvalue)
    np.testing.assert_allclose(np.log(found.ratio_interval), tuple(wanted.confidence_interval(0.95)))
    apart = compare(by_prompt(prompts, "a"), by_prompt(changed, "b"))
    assert apart.verdict == "not_distinguishable"  # the prompts hide what pairing shows
    assert apart.prompts_needed > 20 * found.prompts_needed


def test_prompts_of_one_side_only_are_left_out_by_name():
    first = Measured.of_prompts("a", {"p": 50.0, "q": 60.0, "r": 55.0})
    second = Measured.of_prompts("b", {"q": 63.0, "p": 51.0, "s": 1.0})
    found = compare(first, second)
    assert found.unpaired == ("r", "s")
    assert found.ratio == pytest.approx(math.sqrt(51 / 50 * 63 / 60))


def test_beside_a_bare_benchmark_single_prompts_count_as_tokens_over_time():
    found = compare(by_prompt([30.0, 60.0]), Measured("b", 40.0, 5, 0.3))
    assert found.ratio == pytest.approx(1.0)  # 2/(1/30 + 1/60)
    assert found.prompts_needed is None
    assert found.probability_second_faster == 0.5


def test_figures_without_any_scatter():
    assert compare(paired([50, 60]), paired([55, 66])).confidence == 1.0
    assert compare(paired([50, 60]), paired([50, 60])).verdict == "not_distinguishable"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Measured("a", 50.0, 1, 0.4), "it takes 2"),
        (lambda: by_prompt([50.0]), "it takes 2"),
        (lambda: Measured("a", 0.0, 5, 0.4), "above 0"),
        (lambda: plan(0.0, 0.4, None, None, ()), "above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


# -- how many would tell -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "two_samples", "one_sample"), [(1.0, 17, 10), (0.5, 64, 34), (0.2, 394, 199)])
def test_sample_sizes_of_textbooks(effect, two_samples, one_sample):
    """80% power at 5% two-sided by effect in standard deviations: Cohen's tables, R's power.t.test."""
    assert prompts_needed(effect, 1.0, 1.0) == two_samples
    assert paired_prompts_needed(effect, 1.0) == one_sample


def test_a_difference_too_small_for_any_number_of_prompts():
    assert prompts_needed(1e-10, 1.0, 1.0) is None
    assert paired_prompts_needed(1e-10, 1.0) is None


BENCHMARKS = 4000


def found_different(shift: float, prompts: int, spreads: tuple[float, float], pair: bool) -> float:
    """Share of many pairs of log-normal benchmarks that are called different."""
    generator = np.random.default_rng(prompts)
    names = ("x", "x") if pair else ("a", "b")
    common = generator.normal(0, 0.5, (BENCHMARKS, prompts)) if pair else np.zeros((BENCHMARKS, prompts))
    one, other = (
        np.exp(4 + common + move + generator.normal(0, spread, common.shape))
        for move, spread in zip((0, shift), spreads, strict=True)
    )
    verdicts = [
        compare(by_prompt(first, names[0]), by_prompt(second, names[1])).verdict
        for first, second in zip(one, other, strict=True)
    ]
    return verdicts.count("different") / BENCHMARKS


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("prompts", [5, 20])
def test_equal_benchmarks_are_called_different_once_in_twenty(prompts, pair):
    assert abs(found_different(0.0, prompts, (0.3, 0.3), pair) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / BENCHMARKS)


def test_unequal_spreads_do_not_mislead_welch():
    assert abs(found_different(0.0, 8, (0.1, 0.5), False) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / BENCHMARKS)


@pytest.mark.parametrize("pair", [True, False])
def test_the_prompts_needed_find_the_difference_four_times_in_five(pair):
    shift, spreads = 0.2, (0.2, 0.3)
    variances = (spreads[0] ** 2, spreads[1] ** 2)
    needed = paired_prompts_needed(shift, sum(variances)) if pair else prompts_needed(shift, *variances)
    assert needed is not None
    slack = 4 * math.sqrt(0.8 * 0.2 / BENCHMARKS)
    assert 0.8 - slack < found_different(shift, needed, spreads, pair) < 0.82 + slack  # up to a prompt too many


def told_by_totals(shift: float, prompts: int, *spreads_of: float) -> float:
    """The same of benchmarks of which only tokens over time and the spread of their prompts' rates are told."""
    generator, squares = np.random.default_rng(prompts), np.log1p(np.square(spreads_of))[:, None]
    moved = squares / 2 + [[0.0], [shift]]  # harmonic means are the same without a shift
    rates = np.exp(np.sqrt(squares) * generator.standard_normal((BENCHMARKS, 2, prompts)) + moved)
    totals, spreads = prompts / (1 / rates).sum(axis=2), rates.std(axis=2, ddof=1) / rates.mean(axis=2)
    verdicts = [
        compare(Measured("a", total[0], prompts, wide[0]), Measured("b", total[1], prompts, wide[1])).verdict
        for total, wide in zip(totals.tolist(), spreads.tolist(), strict=True)
    ]
    return verdicts.count("different") / BENCHMARKS


@pytest.mark.parametrize("prompts", [5, 80])
def test_equal_benchmarks_told_by_their_totals_are_called_different_once_in_twenty(prompts):
    """A total scatters by more than a geometric mean does, by a sixth in variance where rates spread by 60%."""
    assert abs(told_by_totals(0.0, prompts, 0.6, 0.6) - 0.05) < 4 * math.sqrt(0.05 * 0.95 / BENCHMARKS)


def test_five_rates_that_skew_tell_their_own_spread_badly():
    """As docs/simulation.md says: beside a spread five times as small, equal totals of five prompts differ too often."""
    assert 0.065 < told_by_totals(0.0, 5, 0.1, 0.5) < 0.085


def test_the_prompts_needed_find_the_difference_of_totals_four_times_in_five():
    needed = prompts_needed(0.2, 0.16, 0.16)
    assert needed is not None
    assert abs(told_by_totals(0.2, needed, 0.4, 0.4) - 0.8) < 4 * math.sqrt(0.8 * 0.2 / BENCHMARKS)


def test_drawn_benchmarks_told_by_their_totals_are_called_different_once_in_twenty():
    """Not log-normal: every cycle drawn, prompts by log-odds, one server measured twice on prompts of its own."""
    drawer = Drawer.of(ConstantRate(0.6), SpecConfig(3, 1, 4), between_prompts=0.25)
    rows = simulate_requests(Benchmark(drawer, CycleTime(20.0), 10, 128), 2 * BENCHMARKS, np.random.default_rng(6))
    spreads = rows.tok_s_per_user.std(axis=1, ddof=1) / rows.tok_s_per_user.mean(axis=1)
    told = [Measured("x", *each) for each in zip(rows.output_tok_s, [10] * 2 * BENCHMARKS, spreads, strict=True)]
    wrong = sum(compare(*pair).verdict == "different" for pair in zip(told[::2], told[1::2], strict=True))
    assert abs(wrong / BENCHMARKS - 0.05) < 4 * math.sqrt(0.05 * 0.95 / BENCHMARKS)


# -- cycles are draws (eq. 23) -----------------------------------------------------------------------------------------

CHAIN = SpecConfig(3, 1, 4)


def test_the_spread_that_cycles_make_by_hand():
    """One step accepted with chance a: 2 tokens take 1 or 2 cycles, E = 2 − a, var = a(1 − a)."""
    assert within_spread(np.array([0.4]), 2) == pytest.approx(math.sqrt(0.24) / 1.6)
    length, second = 2.176, 0.4 + 0.24 * 4 + 0.144 * 9 + 0.216 * 16
    long_run = math.sqrt((second - length**2) / length)  # var N ≈ m·var J/L³, over (m/L)²
    for output_len in (4096, 1_000_000):
        seen = within_spread(ConstantRate(0.6).survival(3), output_len)
        assert seen == pytest.approx(long_run / math.sqrt(output_len), rel=2e-3)


def test_simulated_benchmarks_spread_as_the_two_sources_say():
    drawer = Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.1)
    rows = simulate_requests(Benchmark(drawer, CycleTime(20.0), 8, 128), 20_000, np.random.default_rng(4))
    logs = np.log(rows.tok_s_per_user)
    lengths = np.log(1 + drawer.survival.sum(axis=1))
    within = within_spread(drawer.survival, 128)
    assert logs.var() == pytest.approx(lengths.var() + within**2, rel=0.03)
    assert within**2 > 0.2 * lengths.var()  # neither source is small
    averages = logs.mean(axis=1)
    assert averages.std() == pytest.approx(math.sqrt((lengths.var() + within**2) / 8), rel=0.03)


def test_a_plan_with_the_same_prompts_finds_the_difference_in_simulated_benchmarks():
    """Two servers, one 2% slower a cycle, the same prompts on both: the planned number finds it four times in five."""
    drawer = Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2)
    survival = ConstantRate(0.6).survival(3)
    (planned,) = plan(0.02, 0.2, 256, survival, (256,))
    assert planned.same_prompts_least
    assert planned.same_prompts_needed is not None
    generator = np.random.default_rng(9)
    found = 0
    for _ in range(600):
        kinds = drawer.prompts(planned.same_prompts_needed, generator)
        slow, fast = (
            simulate_requests(Benchmark(drawer, CycleTime(time), kinds, 256), 1, generator).tok_s_per_user[0]
            for time in (20.4, 20.0)
        )
        found += compare(paired(slow), paired(fast)).verdict == "different"
    assert abs(found / 600 - 0.8) < 4 * math.sqrt(0.16 / 600)


def test_a_plan_splits_the_spread_and_keeps_what_prompts_make_of_it():
    survival = ConstantRate(0.6).survival(3)
    short, seen, long = plan(0.03, 0.4, 256, survival, (64, 256, 4096))
    assert seen.spread == pytest.approx(0.4)
    assert seen.between == short.between == long.between
    for row in (short, seen, long):
        assert row.within == within_spread(survival, row.output_len)
        assert math.log1p(row.spread**2) == pytest.approx(math.log1p(row.between**2) + row.within**2)
        # the normal approximation, (1.960 + .8416)²·2·var/log(1.03)²
        assert row.prompts_needed == pytest.approx(15.698 * row.spread**2 / math.log(1.03) ** 2, rel=2e-3)
    assert short.prompts_needed > seen.prompts_needed > long.prompts_needed
    # twice the cycles' variance over log(1.03)², and a prompt or two because it is estimated
    assert 1 <= short.same_prompts_needed - 7.849 * 2 * short.within**2 / math.log(1.03) ** 2 <= 3


def test_a_plan_takes_what_pairs_were_measured_to_differ_by():
    survival = ConstantRate(0.6).survival(3)
    own = 2 * within_spread(survival, 256) ** 2
    apart, alike = (plan(0.03, 0.4, 256, survival, (256,), variance)[0] for variance in (own + 0.01, own / 2))
    assert not apart.same_prompts_least
    assert apart.same_prompts_needed == paired_prompts_needed(math.log(1.03), own + 0.01)
    assert alike.same_prompts_needed == paired_prompts_needed(math.log(1.03), own)
    (bare,) = plan(0.03, 0.4, None, None, (), 0.01)
    assert bare.same_prompts_needed == paired_prompts_needed(math.log(1.03), 0.01)
    assert bare.within is None


# -- the command -------------------------------------------------------------------------------------------------------


def test_five_prompts_do_not_tell(run_cli):
    done = run_cli("compare", "--tok-s", 53.2, 56.7, "--prompts", 5, "--spread", "40%", "--json")
    record = json.loads(done.stdout)
    assert done.exit_code == 0
    assert record["verdict"] == "not_distinguishable"
    assert 0.19 < record["confidence"] < 0.21
    assert record["prompts_needed"] in (620, 621)
    assert (record["significance"], record["power"], record["interval_level"]) == (0.05, 0.8, 0.95)
    text = run_cli("compare", "--tok-s", 53.2, 56.7, "--prompts", 5, "--spread", "0.4").stdout
    assert "NOT DISTINGUISHABLE" in text
    assert f"{record['prompts_needed']} prompts in each" in text


def test_without_anything_it_is_the_campaigns_question(run_cli):
    record = json.loads(run_cli("compare", "--json").stdout)
    assert [each["name"] for each in record["benchmarks"]] == ["eager-5", "eager-16"]
    assert record["prompts_needed"] in (620, 621)
    assert any("eager-5 is ASSUMED" in note for note in record["notes"])
    assert record["same_prompts_needed"] < 10  # the five prompts might have told, one by one


def test_prompts_spreads_and_lengths_of_each_side(run_cli):
    record = json.loads(
        run_cli("compare", "--tok-s", 50, 60, "--prompts", "5,80", "--spread", "40%,10%", "--json").stdout
    )
    assert [each["prompts"] for each in record["benchmarks"]] == [5, 80]
    assert record["standard_error"] == pytest.approx(math.sqrt(0.16 / 5 + 0.01 / 80))


def test_files_of_single_prompts_are_paired(run_cli, csv):
    one = csv("prompt,tok_s,output_len", "p,50,100", "q,60,300", "r,55,200", name="one.csv")
    other = csv("gpu,prompt, tok_s", "h,q,63", "h,p,52", "h,r,57", "h,r,58", "h,z,40", name="other.csv")
    record = json.loads(run_cli("compare", one, other, "--json").stdout)
    assert (record["test"], record["same_prompts"], record["unpaired"]) == ("paired", 3, ["z"])
    assert record["ratio"] == pytest.approx((63 / 60 * 52 / 50 * math.sqrt(57 * 58) / 55) ** (1 / 3))
    assert record["benchmarks"][0]["output_len"] == 200
    notes = " ".join(record["notes"])
    assert "columns not read: gpu" in notes
    assert "repeats of a prompt count once, by their geometric mean: r" in notes
    assert "left out of the ratio, because in one benchmark only: z" in run_cli("compare", one, other).stdout


def test_run_files_of_one_run_and_of_one_prompt_each(run_cli, csv):
    first = csv("id,output_tok_s,prompts,between_prompt_spread,hardware,num_draft_tokens,survival,output_len",
                "a,50,20,0.2,H200,3,.6;.3,64", name="first.csv")  # fmt: skip
    second = csv("id,output_tok_s,prompts,hardware", "p,60,1,B200", "q,70,1,B200", "r,80,1,B200", name="second.csv")
    record = json.loads(run_cli("compare", first, second, "--json").stdout)
    assert [each["prompts"] for each in record["benchmarks"]] == [20, 3]
    assert record["benchmarks"][0]["within"] == within_spread(np.array([0.6, 0.3]), 64)
    third = csv("id,output_tok_s,prompts,hardware,output_len", "c,50,20,B200,128", name="third.csv")
    record = json.loads(run_cli("compare", first, third, "--json").stdout)
    assert record["differing"] == ["hardware", "output_len"]
    assert any("spread between prompts of third.csv is not stated" in note for note in record["notes"])
    assert "MIXED" in run_cli("compare", first, third).stdout


def test_a_plan_says_what_to_run(run_cli, csv):
    options = ("--spread", "40%", "--output-len", 256, "--accept-length", 2.1, "--num-steps", 3)
    record = json.loads(run_cli("compare", "--plan", "3%", *options, "--json").stdout)
    assert (record["difference"], record["output_len"], record["spread"]) == (0.03, 256, pytest.approx(0.4))
    assert record["prompts_needed"] == next(row for row in record["rows"] if row["output_len"] == 256)["prompts_needed"]
    text = run_cli("compare", "--plan", "3%", *options).stdout
    assert f"run {record['prompts_needed']:,} prompts of 256 tokens in each benchmark" in text
    bare = json.loads(run_cli("compare", "--plan", "0.03", "--spread", "0.4", "--json").stdout)
    assert bare["prompts_needed"] == record["prompts_needed"]
    assert bare["same_prompts_needed"] is None
    campaign = json.loads(run_cli("compare", "--plan", "3%", "--json").stdout)
    assert campaign["output_len"] == 1024
    one = csv("prompt,tok_s", "p,50", "q,60", "r,55", name="one.csv")
    other = csv("prompt,tok_s", "p,51", "q,66", "r,56", name="other.csv")
    both = json.loads(run_cli("compare", one, other, "--plan", "3%", "--json").stdout)
    changes = np.log([51 / 50, 66 / 60, 56 / 55])
    assert both["same_prompts_needed"] == paired_prompts_needed(math.log(1.03), changes.var(ddof=1))
    assert not both["same_prompts_least"]


def test_half_of_what_tells_how_cycles_scatter_is_not_passed_over(run_cli):
    options = ("--prompts", 9, "--spread", "1%", "--accept-length", 2)
    done = run_cli("compare", "--tok-s", 50, 51, *options)
    assert "not all three are known" in " ".join(done.stdout.split())


def test_cycles_that_scatter_more_than_was_seen_are_pointed_out(run_cli):
    options = ("--prompts", 9, "--spread", "1%", "--output-len", 32, "--accept-length", 2, "--num-steps", 3)
    assert "more than the 1.0% seen" in " ".join(run_cli("compare", "--tok-s", 50, 51, *options).stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tok-s", 50, 60), "state --prompts"),
        (("--tok-s", 50, 60, "--prompts", 5), "state --spread"),
        (("--tok-s", 50, 60, "--prompts", 1, "--spread", "40%"), "it takes 2"),
        (("--tok-s", 50, 60, "--prompts", "5,6,7", "--spread", "40%"), "two of them with a comma"),
        (("--tok-s", 50, 60, "--prompts", 5, "--spread", "40"), "such as 40%"),
        (("--tok-s", 50, -60, "--prompts", 5, "--spread", "40%"), "x>0"),
        (("--tok-s", 50, "nan", "--prompts", 5, "--spread", "40%"), "above 0"),
        (("--prompts", 5, "--spread", "40%"), "give two files"),
        (("one.csv",), "give two files"),
        (("one.csv", "two.csv"), "cannot be read"),
        (("one.csv", "--tok-s", 50, 60), "stands instead of files"),
        (("--plan", "3%", "--output-len", 5), "state --spread"),
        (("--plan", "3%", "--prompts", 5, "--spread", "40%"), "no --prompts"),
        (("--plan", "3%", "--spread", "40%,10%"), "one value each"),
        (("--plan", "x"), "such as 3%"),
        (("--plan", "3%", "--tok-s", 50, 60), "rests on a spread"),
        (("--plan", "3%", "--spread", ".4", "--output-len", 9, "--accept-length", 9, "--num-steps", 3), "1 to 4"),
    ],
)
def test_bad_input_is_said_in_a_line(run_cli, arguments, message):
    done = run_cli("compare", *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_every_fault_of_a_file_is_said(run_cli, csv):
    good = csv("prompt,tok_s", "p,50", "q,60", name="good.csv")
    bad = csv("prompt,tok_s,output_len", "a,-1,5", ",3,5", "b", "c,x,0", "d,,", "e,1e30,5", name="bad.csv")
    done = run_cli("compare", bad, good)
    assert done.exit_code == 2
    for fault in ("row 2, tok_s: '-1'", "row 3, prompt: is empty", "row 4: has more or fewer cells", "row 5, tok_s: 'x'",
                  "row 5, output_len: '0'", "row 6, tok_s: is empty", "row 7, tok_s: '1e30'"):  # fmt: skip
        assert fault in done.output
    headless = csv("name,tok_s", "p,50", name="headless.csv")
    assert "lacks the column prompt" in run_cli("compare", headless, good).output
    empty = csv("prompt,tok_s", name="empty.csv")
    assert "a header alone is not a measurement" in run_cli("compare", empty, good).output
    two = csv("id,output_tok_s,prompts", "a,50,5", "b,60,5", name="two.csv")
    assert "has 2 runs with a throughput" in run_cli("compare", two, good).output
    assert "leave out --prompts and --spread" in run_cli("compare", good, good, "--spread", "4%").output
    run = csv("id,output_tok_s,prompts,between_prompt_spread", "a,50,5,.2", name="run.csv")
    assert "is 5 in the run, 6 was stated" in run_cli("compare", run, good, "--prompts", "6").output
