"""Conversions by hand-worked and published examples; every contradiction between counters is named."""

import numpy as np
import pytest

from specsim.acceptance.conversions import (
    AcceptanceCounts,
    accept_length_from_histogram,
    accept_length_from_rate,
    accept_length_from_survival,
    conditional_acceptance,
    counts_from_histogram,
    counts_from_llama_cpp,
    counts_from_sglang,
    counts_from_tensorrt_llm,
    counts_from_vllm,
    histogram_from_survival,
    rate_meaning,
    survival_from_conditional,
    survival_from_histogram,
)
from specsim.errors import ConfigurationError, InputError, NotIdentifiedError
from specsim.quantities import SpecConfig

# -- ratios --------------------------------------------------------------------------------------------------------


def test_ten_cycles_counted_by_hand() -> None:
    """Of 10 cycles 2 accept nothing, 3 one draft, 1 two, 4 three: 3 + 2 + 12 = 17 drafts and 10 bonus tokens."""
    histogram = [2, 3, 1, 4]
    np.testing.assert_allclose(survival_from_histogram(histogram), [0.8, 0.5, 0.4])
    np.testing.assert_allclose(conditional_acceptance([0.8, 0.5, 0.4]), [0.8, 0.625, 0.8])
    np.testing.assert_allclose(survival_from_conditional([0.8, 0.625, 0.8]), [0.8, 0.5, 0.4])
    np.testing.assert_allclose(histogram_from_survival([0.8, 0.5, 0.4]), [0.2, 0.3, 0.1, 0.4])
    assert accept_length_from_survival([0.8, 0.5, 0.4]) == pytest.approx(2.7)
    assert accept_length_from_histogram(histogram) == pytest.approx(27 / 10)
    assert type(accept_length_from_histogram(histogram)) is float


def test_rows_are_converted_one_by_one() -> None:
    histograms = np.array([[2, 3, 1, 4], [1, 1, 0, 0]])
    survival = survival_from_histogram(histograms)
    np.testing.assert_allclose(survival, [[0.8, 0.5, 0.4], [0.5, 0, 0]])
    np.testing.assert_allclose(accept_length_from_survival(survival), [2.7, 1.5])
    np.testing.assert_allclose(conditional_acceptance(survival)[1], [0.5, 0, 0])


@pytest.mark.parametrize(
    ("convert", "values"),
    [
        (conditional_acceptance, [0.5, 0.6]),
        (accept_length_from_survival, [1.2, 0.5]),
        (histogram_from_survival, [0.5, -0.1]),
        (accept_length_from_survival, [0.5, float("nan")]),
        (survival_from_conditional, [0.5, 1.2]),
        (survival_from_histogram, []),
        (survival_from_histogram, [0, 0]),
        (survival_from_histogram, [3, -1]),
    ],
)
def test_shares_that_cannot_be_are_refused(convert: object, values: list[float]) -> None:
    with pytest.raises(ConfigurationError):
        convert(values)  # type: ignore[operator]


# -- counts --------------------------------------------------------------------------------------------------------


def test_vllm_counters_as_published() -> None:
    """vllm-project/vllm#24344: 2189 drafts of 3 tokens, 3187 accepted, printed mean acceptance length 2.46."""
    counts = counts_from_vllm(2189, 6567, 3187)
    assert round(counts.accept_length, 2) == 2.46
    assert counts.draft_accept_rate == pytest.approx((counts.accept_length - 1) / 3)
    with pytest.raises(NotIdentifiedError, match="do not tell positions apart"):
        _ = counts.survival


def test_positions_and_histogram_are_the_same_counts() -> None:
    by_position = counts_from_vllm(10, 30, 17, [8, 5, 4])
    by_histogram = counts_from_sglang(10, 17, [2, 3, 1, 4], 30)
    assert by_position.histogram == (2, 3, 1, 4)
    assert by_histogram.at_least == (8, 5, 4)
    np.testing.assert_allclose(by_position.survival, by_histogram.survival)
    assert by_position.accept_length == by_histogram.accept_length == pytest.approx(2.7)
    assert counts_from_sglang(10, 17).accept_length == pytest.approx(2.7)


def test_tensorrt_llm_length_includes_the_bonus() -> None:
    assert counts_from_tensorrt_llm(40, 68, 120, acceptance_length=2.7).accept_length == pytest.approx(2.7)
    with pytest.raises(InputError, match=r"acceptanceLength: 1\.7 is not .* = 2\.7"):
        counts_from_tensorrt_llm(40, 68, 120, acceptance_length=1.7)
    with pytest.raises(NotIdentifiedError, match="count of drafted tokens"):
        _ = counts_from_tensorrt_llm(40, 68).draft_accept_rate


def test_llama_cpp_cycles_are_what_the_tokens_leave() -> None:
    """28 tokens: the prefill's, then 10 cycles that emit one each beside 17 accepted drafts."""
    counts = counts_from_llama_cpp(predicted_n=28, draft_n=30, draft_n_accepted=17)
    assert counts.cycles == 10
    assert counts.accept_length == pytest.approx(2.7)
    with pytest.raises(InputError, match="predicted_n: 18 leaves 0 cycles beside 17"):
        counts_from_llama_cpp(18, 30, 17)


@pytest.mark.parametrize(
    ("read", "faults"),
    [
        (lambda: counts_from_sglang(9, 17, [2, 3, 1, 4]), ["its sum is 10, spec_verify_ct is 9"]),
        (lambda: counts_from_sglang(10, 27, [2, 3, 1, 4]), ["its sum of j·h_j is 17, spec_num_correct_drafts is 27"]),
        (lambda: counts_from_histogram([1, -2, 1.5]), ["-2 cycles accept 1 drafts", "1.5 cycles accept 2 drafts"]),
        (lambda: counts_from_histogram([]), ["no cycle was counted"]),
        (lambda: counts_from_vllm(10, 30, 17, [5, 8, 4]), ["8 at position 1 follows 5"]),
        (lambda: counts_from_vllm(7, 30, 17, [8, 5, 4]), ["8 at position 0 follows 7"]),
        (lambda: counts_from_vllm(10, 30, 18, [8, 5, 4]), ["positions add up to 17"]),
        (lambda: counts_from_vllm(10, 16, 17), ["17 accepted of 16 drafted"]),
        (lambda: counts_from_vllm(10, 16, 17, [9, 9, 9]), ["17 accepted of 16 drafted", "positions add up to 27"]),
        (lambda: AcceptanceCounts(0, 0), ["no cycle was counted"]),
        (lambda: AcceptanceCounts(10, 2.5), ["2.5 is not a count"]),
        (lambda: AcceptanceCounts(10, True), ["True is not a count"]),
        (lambda: AcceptanceCounts(10, -1), ["-1 is not a count"]),
    ],
)
def test_counters_that_contradict_each_other_are_refused(read: object, faults: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        read()  # type: ignore[operator]
    assert len(caught.value.faults) == len(faults)
    for fault, expected in zip(caught.value.faults, faults, strict=True):
        assert expected in str(fault)


# -- accept rates --------------------------------------------------------------------------------------------------

# What each engine shows for a length of 3.1 from a tree of 5 steps, 8 tokens: worked out by hand from its source.
SHOWN = [
    ("sglang", "0.5.3.post3", False, 3.1 / 6),
    ("sglang", "0.5.5", False, 3.1 / 6),
    ("sglang", "0.5.8", False, 3.1 / 8),
    ("sglang", "0.5.10.post1", False, 3.1 / 8),
    ("SGLang", "v0.5.11", False, 2.1 / 7),
    ("sglang", "0.5.23", False, 2.1 / 7),
    ("sglang", "0.5.5.post2", True, 2.1 / 5),
    ("sglang", "0.5.9", True, 2.1 / 7),
    ("vllm", "0.11.0", False, 2.1 / 7),
    ("vllm", "0.33.0+cu130", True, 2.1 / 7),
    ("tensorrt-llm", "", False, 2.1 / 7),
]


@pytest.mark.parametrize(("engine", "version", "per_request", "shown"), SHOWN)
def test_a_rate_means_what_its_release_counts(engine: str, version: str, per_request: bool, shown: float) -> None:
    spec = SpecConfig(5, 2, 8)
    length = accept_length_from_rate(shown, spec, engine, version, per_request=per_request)
    assert length == pytest.approx(3.1)
    assert rate_meaning(engine, version, per_request=per_request).accept_rate(3.1, spec) == pytest.approx(shown)


@pytest.mark.parametrize(("length", "rate"), [(2.17, 0.54), (1.95, 0.49), (1.80, 0.45), (2.05, 0.51), (1.57, 0.39)])
def test_sglang_log_lines_as_published(length: float, rate: float) -> None:
    """sgl-project/sglang#11948: accept len and accept rate side by side, SGLang 0.5.3.post3, 3 steps, topk 1."""
    assert rate_meaning("sglang", "0.5.3.post3").accept_rate(length, SpecConfig(3, 1, 4)) == pytest.approx(
        rate, abs=0.005
    )


@pytest.mark.parametrize(
    ("engine", "version", "per_request"),
    [
        ("sglang", "0.5.1", False),  # shows none
        ("sglang", "0.5.7", False),  # between two meanings, unread
        ("sglang", "0.5.3", True),
        ("sglang", "", False),
        ("sglang", "main", False),
        ("vllm", "0.9.1", False),
        ("vllm", "0.19.0", True),
        ("llama.cpp", "b5000", False),  # divides by drafts that vary from cycle to cycle
        ("lmdeploy", "1.0", False),
    ],
)
def test_a_rate_that_nobody_can_read_is_refused(engine: str, version: str, per_request: bool) -> None:
    with pytest.raises(ConfigurationError, match=r"is not known .*give the accept length or the counters"):
        rate_meaning(engine, version, per_request=per_request)


def test_a_rate_that_gives_no_possible_length_was_counted_otherwise() -> None:
    with pytest.raises(ConfigurationError, match="counted otherwise"):
        accept_length_from_rate(0.1, SpecConfig(3, 1, 4), "sglang", "0.5.5")  # 0.4 tokens a cycle, bonus included
    with pytest.raises(ConfigurationError, match="counted otherwise"):
        accept_length_from_rate(0.9, SpecConfig(2, 4, 16), "vllm", "0.11")  # 14.5 tokens from two steps
    with pytest.raises(ConfigurationError, match="divide a percentage by 100"):
        accept_length_from_rate(51.4, SpecConfig(3, 1, 4), "vllm", "0.33.0")
    with pytest.raises(ConfigurationError, match="a cycle with drafts"):
        accept_length_from_rate(0.0, SpecConfig(0, 1, 1), "vllm", "0.33.0")
    with pytest.raises(ConfigurationError, match="between 1"):
        rate_meaning("vllm", "0.33.0").accept_rate(4.2, SpecConfig(3, 1, 4))


def test_a_rounded_rate_at_the_end_of_the_range_is_no_contradiction() -> None:
    assert accept_length_from_rate(0.12, SpecConfig(7, 1, 8), "sglang", "0.5.8") == 1.0  # 1/8 printed as 0.12


def test_rates_broadcast() -> None:
    chains = SpecConfig(np.array([[3], [5]]), 1, np.array([[4], [6]]))
    lengths = rate_meaning("vllm", "0.33").accept_length(np.array([0.2, 0.4]), chains)
    np.testing.assert_allclose(lengths, [[1.6, 2.2], [2.0, 3.0]])


def test_a_block_drafter_is_bounded_by_its_width() -> None:
    """Its num_steps is a dummy 1: 0.4 of 7 drafts are 3.8 tokens a cycle."""
    assert accept_length_from_rate(0.4, SpecConfig(1, 1, 8, "dflash"), "sglang", "0.5.12") == pytest.approx(3.8)
