"""Accept lengths from run files to answers: observations, expectations, mixes, training samples, the command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specsim import SpecConfig, load_runs
from specsim.acceptance.mix import mixed_accept_length
from specsim.errors import ConfigurationError, InputError, MixedSetupError, NotIdentifiedError
from specsim.expected import expected_lengths, fitted_part, mixed_length
from specsim.fitting.acceptance import LengthObservation, SurvivalObservation
from specsim.fitting.lengths import acceptance_observations, scaling_points

CHAIN3 = SpecConfig.of(num_steps=3)


def observe(csv, *lines):
    return acceptance_observations(load_runs([csv(*lines)]).runs)


def part(csv, *lines, name="runs.csv"):
    return fitted_part(name, load_runs([csv(*lines, name=name)]))


def test_counts_come_before_lengths(csv):
    (o,), _ = observe(csv, "num_steps,accept_length,cycles,accepted_drafts", "3,2.9,1000,1500")
    assert o == LengthObservation(3, 1, 4, 2.5, 1000)


def test_a_histogram_gives_survival(csv):
    (o,), _ = observe(csv, "num_steps,accept_histogram", "3,400;300;200;100")
    assert o == SurvivalObservation(3, 1, 4, (0.6, 0.3, 0.1), 1000)


def test_rates_by_position_are_survival(csv):
    (o,), _ = observe(csv, "num_steps,survival,cycles", "3,0.8;0.5;0.25,")
    assert o == SurvivalObservation(3, 1, 4, (0.8, 0.5, 0.25))


def test_a_range_and_repeats_carry_their_error(csv):
    ranged, repeated = observe(csv, "num_steps,accept_length", "3,2.0..2.6", "3,2.2;2.4")[0]
    assert ranged.standard_error == pytest.approx(0.3 / 3**0.5)
    assert repeated.standard_error == pytest.approx(0.1)  # ±0.1 about 2.3: s = 0.1414, over √2


def test_a_rate_is_used_only_where_engine_and_version_say_what_it_means(csv):
    """SGLang 0.5.11 on: drafts over drafts, so 0.4 of 3 drafts is a length of 2.2."""
    header = "num_steps,engine,engine_version,accept_rate,accept_length"
    seen, notes = observe(csv, header, "3,sglang,0.5.12,0.4,", "3,sglang,,0.4,", "3,,,,2.0")
    assert [o.accept_length for o in seen] == [pytest.approx(2.2), 2.0]
    assert len(notes) == 1
    assert "different things by engine and version" in notes[0]


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("num_steps,accept_histogram,cycles", "3,400;300;200;100,999", "accept_histogram"),
        ("num_steps,accept_histogram,accepted_drafts", "3,400;300;200;100,7", "accept_histogram"),
        ("num_steps,accepted_drafts", "3,100", "state cycles"),
        ("num_steps,survival", "3,0.5;0.8", "survival"),
        ("num_steps,survival", "3,1.5", "less than or equal to 1"),
        ("num_steps,accept_histogram", "3,1;2;3;4;5", "deeper than the 3 drafts"),
        ("num_steps,cycles,accepted_drafts,proposed_drafts", "3,100,200,150", "accepted_drafts"),
        ("survival", "0.5;0.2", "needs num_draft_tokens"),
    ],
)
def test_counts_that_contradict_each_other_are_refused_at_the_border(csv, header, row, said):
    path = csv(header, row)
    with pytest.raises(InputError) as caught:
        load_runs([path])
    assert str(caught.value).startswith(f"{path}, row 2")
    assert said in str(caught.value)


def test_two_drafters_make_no_law(csv):
    with pytest.raises(MixedSetupError, match="drafter: a, b"):
        part(csv, "drafter,num_steps,accept_length", "a,3,2.0", "b,3,2.4")


def test_runs_without_acceptance_are_refused(csv):
    with pytest.raises(NotIdentifiedError, match="no run states an accept length"):
        part(csv, "num_steps,verify_ms", "3,20")


def test_measured_survival_answers_shallower_chains_without_a_law(csv):
    rows = expected_lengths(part(csv, "num_steps,accept_histogram", "3,400;300;200;100"), [SpecConfig.of(num_steps=2)])
    assert rows[0].measured_survival
    assert rows[0].accept_length == pytest.approx(1 + 0.6 + 0.3)
    # drafts accepted of at most 2: 0 in 40%, 1 in 30%, 2 in 30%: variance 0.69, over 1000 cycles
    low, high = rows[0].interval
    assert (high - low) / 2 == pytest.approx(1.6449 * (0.69 / 1000) ** 0.5, rel=1e-4)


def test_a_deeper_chain_than_measured_is_extrapolated(csv):
    fitted = part(csv, "num_steps,accept_length", "2,1.9", "3,2.2")
    shallow, deep = expected_lengths(fitted, [CHAIN3, SpecConfig.of(num_steps=7)])
    assert (shallow.extrapolated, deep.extrapolated) == (False, True)
    assert deep.interval[1] - deep.interval[0] > shallow.interval[1] - shallow.interval[0]


def test_a_target_tells_the_rate_it_needs(csv):
    """A chain of 3 steps reaches 1 + .5 + .25 + .125 at a constant rate of one half."""
    row = expected_lengths(part(csv, "num_steps,accept_length", "3,2.2"), [CHAIN3], target=1.875)[0]
    assert row.required_accept_rate == pytest.approx(0.5)
    assert row.required_first_rate == pytest.approx(0.5, abs=0.1)
    impossible = expected_lengths(part(csv, "num_steps,accept_length", "3,2.2"), [CHAIN3], target=4.5)[0]
    assert np.isnan(impossible.required_accept_rate)
    assert np.isnan(impossible.required_first_rate)
    with pytest.raises(ConfigurationError, match="at least 1"):
        expected_lengths(part(csv, "num_steps,accept_length", "3,2.2"), [CHAIN3], target=0.5)


def test_a_mix_averages_cycles_not_ratios():
    """Half the tokens at 2 a cycle and half at 4: 100 tokens take 25 + 12.5 cycles, 2.667 a cycle, not 3."""
    length, error = mixed_accept_length(np.array([2.0, 4.0]), np.array([0.1, 0.0]), np.array([1.0, 1.0]))
    assert length == pytest.approx(100 / 37.5)
    moved, _ = mixed_accept_length(np.array([2.0001, 4.0]), np.zeros(2), np.array([1.0, 1.0]))
    assert error == pytest.approx(0.1 * (moved - length) / 0.0001, rel=1e-3)


def test_a_mix_agrees_with_drawn_tokens():
    generator = np.random.default_rng(3)
    lengths, shares = np.array([1.8, 2.6, 3.4]), np.array([0.5, 0.3, 0.2])
    kinds = generator.choice(3, size=200_000, p=shares)
    assert mixed_accept_length(lengths, np.zeros(3), shares)[0] == pytest.approx(
        1 / np.mean(1 / lengths[kinds]), rel=2e-3
    )


def test_weights_of_a_mix_are_positive():
    for wrong in ([1.0, 0.0], [1.0, -1.0], [1.0, np.inf], []):
        with pytest.raises(ConfigurationError, match="weights"):
            mixed_accept_length(np.full(len(wrong), 2.0), np.zeros(len(wrong)), np.array(wrong))


def test_a_mix_of_equals_is_itself(csv):
    parts = [part(csv, "num_steps,accept_length", "3,2.2", name=f"{n}.csv") for n in "ab"]
    alone = expected_lengths(parts[0], [CHAIN3])[0]
    mixed = mixed_length(parts, CHAIN3)
    assert mixed.accept_length == pytest.approx(alone.accept_length)
    assert mixed.interval == pytest.approx(alone.interval)  # their errors are the same prior's, so they do not cancel


def test_training_samples_come_from_runs_and_from_the_list(csv, campaign):
    runs = load_runs([csv("training_samples,accept_length", "10000,2.1", "40000,2.4")])
    assert [(p.samples, p.accept_length) for p in scaling_points(runs)] == [(10_000, 2.1), (40_000, 2.4)]
    assert [p.samples for p in scaling_points(campaign)] == [10_000, 37_000, 1_400_000]


# -- the command -----------------------------------------------------------------------------------------------------


def record(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_accept_json_has_the_promised_names(run_cli, csv):
    path = csv("num_steps,topk,num_draft_tokens,accept_length", "3,1,4,1.86", "3,3,8,2.2", "7,4,16,2.52")
    found = record(run_cli("accept", path, "--num-steps", 6, "--topk", 4, "--num-draft-tokens", 12, "--json"))
    assert found["interval"][0] < found["accept_length"] < found["interval"][1]
    assert found["accept_length"] == pytest.approx(2.42, rel=0.05)  # what the same source measured there
    assert set(found["law"]) == {"name", "rate", "decay", "rank_exponent"}
    assert found["not_identified"] == ["decay"] or found["not_identified"] == []


def test_one_chain_length_names_what_it_cannot_tell(run_cli):
    found = record(run_cli("accept", "--num-steps", 2, "--json"))
    assert found["not_identified"] == ["decay", "rank_exponent"]
    text = run_cli("accept", "--num-steps", 2).stdout
    assert "decay is not identified" in text
    assert "mostly the default prior" in " ".join(text.split())


def test_samples_print_a_range_and_the_caveat(run_cli):
    found = record(run_cli("accept", "--samples", "100000", "--json"))
    assert found["interval"][1] - found["interval"][0] > 1
    (target,) = [t for t in found["targets"] if "LL-Ring-SYS" in t["target"]]
    assert target["interval"] == [0.0, None]
    assert "not a law" in " ".join(run_cli("accept", "--samples").stdout.split())


def test_mix_on_the_command_line(run_cli, csv):
    chat, code = (csv("num_steps,accept_length", f"3,{length}", name=f"{length}.csv") for length in (2.0, 3.0))
    found = record(run_cli("accept", "--mix", f"{chat}=0.5", "--mix", f"{code}=0.5", "--num-steps", 3, "--json"))
    assert found["accept_length"] == pytest.approx(2.4, rel=0.02)  # 2/(1/2 + 1/3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mix", "a.csv", "--num-steps", "3"), "RUNS=SHARE"),
        (("--mix", "a.csv=-1", "--num-steps", "3"), "RUNS=SHARE"),
        (("--mix", "a.csv=1"), "needs a configuration"),
        (("--mix", "a.csv=1", "--num-steps", "3"), "a.csv: cannot be read"),
        (("--samples", "runs.csv"), "run files come before --samples"),
        (("--samples", "0"), "above 0"),
        (("--num-steps", "2", "--topk", "4"), "needs num_steps, topk and num_draft_tokens"),
        (("--num-steps", "2", "--target-length", "0"), "at least 1"),
    ],
)
def test_bad_questions_exit_with_2(run_cli, arguments, said):
    result = run_cli("accept", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


# -- what a review found ------------------------------------------------------------------------------------------------


def test_cycles_alone_are_a_sample_size(csv):
    few, many = (part(csv, "num_steps,accept_length,cycles", f"3,2.4,{n}", name=f"{n}.csv") for n in (30, 3000))
    wide, narrow = (expected_lengths(each, [CHAIN3])[0].interval for each in (few, many))
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    counted = part(csv, "num_steps,cycles,accepted_drafts", "3,30,42", name="c.csv")
    assert expected_lengths(counted, [CHAIN3])[0].interval == pytest.approx(wide)


def test_survival_with_cycles_is_as_good_as_its_histogram(csv):
    shares = part(csv, "num_steps,survival,cycles", "3,0.8;0.5;0.1,1000", name="s.csv")
    counted = part(csv, "num_steps,accept_histogram", "3,200;300;400;100", name="h.csv")
    rows = [expected_lengths(each, [CHAIN3])[0] for each in (shares, counted)]
    assert rows[0].interval == pytest.approx(rows[1].interval)
    assert rows[0].measured == rows[1].measured == pytest.approx(2.4)


def test_survival_and_length_that_disagree_are_refused(csv):
    with pytest.raises(InputError, match=r"survival adds up to 2\.4"):
        load_runs(csv("num_steps,accept_length,survival", "3,2.9,0.8;0.5;0.1"))


def test_a_deeper_chain_is_not_worth_less_than_what_was_counted(csv):
    fitted = part(csv, "num_steps,accept_histogram", "3,200;300;400;100")
    counted, deeper = expected_lengths(fitted, [CHAIN3, SpecConfig.of(num_steps=5)])
    assert deeper.interval[0] >= counted.interval[0]
    assert deeper.accept_length >= counted.interval[0]


def test_lengths_that_fit_no_law_say_so(run_cli, csv):
    path = csv("num_steps,accept_length", "3,1.1", "3,3.9")
    assert "as far from the law as assumed" in " ".join(run_cli("accept", path).stdout.split())


def test_accept_and_sweep_use_one_law(run_cli, csv):
    header = "batch_size,num_steps,cycle_ms,decode_ms,accept_histogram"
    path = csv(header, "1,3,20,,200;300;400;100", "1,6,23,,", "1,,,12,")
    accepted = record(run_cli("accept", path, "--num-steps", 3, "--json"))["law"]
    assert record(run_cli("sweep", path, "--json"))["law"] == accepted


def test_training_samples_of_other_models_share_no_line(csv):
    rows = "model,training_samples,accept_length", "A,1000,2.0", "B,9000,3.0"
    with pytest.raises(MixedSetupError, match="several models"):
        scaling_points(load_runs(csv(*rows)))


def test_samples_take_the_needs_own_interval_and_bound(run_cli, csv):
    header = "batch_size,num_steps,verify_ms,decode_ms,accept_length,training_samples"
    rows = ["1,3,24,,2.0,", "1,6,26,,,", "1,,,10,,", ",3,,,2.0..2.1,1000", ",3,,,2.5..2.6,100000"]
    (target,) = record(run_cli("accept", csv(header, *rows), "--samples", "--json"))["targets"]
    assert target["accept_length_interval"][1] is None  # verify alone is a lower bound of the cycle
    assert target["interval"][1] is None


def test_equal_points_are_not_free_of_error(run_cli, csv):
    path = csv("training_samples,accept_length", "1000,2.0;2.0", "100000,2.5;2.5")
    found = record(run_cli("accept", path, "--samples", "10000", "--json"))
    assert found["error_assumed"]
    assert found["interval"][0] < 2.25 < found["interval"][1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--samples", "1000", "--num-steps", "3"), "question of its own"),
        (("--mix", "a.csv=1", "--num-steps", "3", "--target-length", "2"), "leave out --mix"),
        (("--num-steps", "2", "--target-length", "nan"), "at least 1"),
        (("--num-steps", "5", "--topk", "100000", "--num-draft-tokens", "70000"), "no engine drafts or verifies more"),
    ],
)
def test_options_without_a_use_are_refused(run_cli, arguments, said):
    result = run_cli("accept", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_target_that_cannot_be_had_says_what_can(run_cli):
    assert "cannot be had: at most 3 at 2 steps" in " ".join(
        run_cli("accept", "--num-steps", 2, "--target-length", 4.5).stdout.split()
    )


def test_a_wide_tree_of_few_tokens_costs_little():
    from specsim.acceptance import TreeLaw

    law = TreeLaw(0.7, 0.9, 0.5)
    assert law.accept_length(3, 10_000, 4) == pytest.approx(law.accept_length(3, 3, 4))
