"""The fit finds the law that made the data, says what it could not tell, and its intervals hold what they say."""

import numpy as np
import pytest

from specsim.acceptance import TreeLaw
from specsim.acceptance.conversions import counts_from_histogram, counts_from_vllm
from specsim.errors import ConfigurationError, NotIdentifiedError
from specsim.fitting.acceptance import (
    CHAIN_ERROR,
    PARAMETERS,
    PRIOR_MEDIAN,
    PRIOR_SPREAD,
    TREE_ERROR,
    LengthObservation,
    SurvivalObservation,
    fit_acceptance,
)
from specsim.quantities import LEVEL

CHAINS = [(1, 1, 2), (2, 1, 3), (4, 1, 5), (7, 1, 8)]
TREES = [(3, 3, 8), (5, 4, 16), (8, 8, 60)]


def lengths(law: TreeLaw, configs: list[tuple[int, int, int]], cycles: int | None = None) -> list[LengthObservation]:
    return [LengthObservation(*config, law.accept_length(*config), cycles) for config in configs]


@pytest.mark.parametrize("law", [TreeLaw(0.55, 0.85, 0.6), TreeLaw(0.8, 0.97, 0.3), TreeLaw(0.9, 0.75, 1.2)])
def test_exact_lengths_give_the_law_back(law: TreeLaw) -> None:
    """The prior pulls towards its medians, so within the stated interval and a few percent, not exactly."""
    fitted = fit_acceptance(lengths(law, CHAINS + TREES))
    for name in PARAMETERS:
        low, high = fitted.intervals[name]
        assert low < getattr(law, name) < high
    assert fitted.not_identified == ()
    assert fitted.misfit == 1.0
    for config in (*CHAINS, *TREES, (6, 1, 7), (6, 2, 20)):
        assert fitted.predict(*config)[0] == pytest.approx(law.accept_length(*config), rel=0.01)


def test_survival_of_a_large_sample_gives_rate_and_decay_back() -> None:
    law = TreeLaw(0.7, 0.9, 0.5)
    fitted = fit_acceptance([SurvivalObservation(5, 1, 6, tuple(law.survival(5)), cycles=10**7)])
    assert fitted.law.rate == pytest.approx(0.7, rel=0.01)
    assert fitted.law.decay == pytest.approx(0.9, rel=0.01)
    assert fitted.not_identified == ("rank_exponent",)


def test_survival_of_a_tree_tells_the_exponent() -> None:
    law = TreeLaw(0.6, 0.9, 0.9)
    config = (4, 4, 24)
    fitted = fit_acceptance(
        [
            SurvivalObservation(*config, tuple(law.tree_survival(*config)), 10**7),
            SurvivalObservation(4, 1, 5, tuple(law.survival(4)), 10**7),
        ]
    )
    assert fitted.law.rank_exponent == pytest.approx(0.9, rel=0.05)
    assert fitted.not_identified == ()


def test_one_chain_length_cannot_tell_rate_from_decay() -> None:
    fitted = fit_acceptance([LengthObservation(5, 1, 6, 2.6)])
    assert fitted.not_identified == ("decay", "rank_exponent")
    assert fitted.predict(5, 1, 6)[0] == pytest.approx(2.6, rel=0.01)
    assert fitted.law.rank_exponent == pytest.approx(PRIOR_MEDIAN[2])
    decay, exponent = fitted.notes
    assert fitted.law.decay == pytest.approx(PRIOR_MEDIAN[1], rel=0.05)
    assert decay.startswith("decay is not identified: 0.")
    assert "runs at further num_steps" in decay
    assert "runs with topk above 1 would tell" in exponent
    low, high = fitted.intervals["rank_exponent"]
    assert high / low == pytest.approx(np.exp(2 * 1.6449 * PRIOR_SPREAD[2]), rel=1e-3)


def test_lengths_at_two_depths_tell_the_decay_and_a_tree_the_exponent() -> None:
    law = TreeLaw(0.75, 0.85, 0.5)
    assert fit_acceptance(lengths(law, CHAINS)).not_identified == ("rank_exponent",)
    assert fit_acceptance(lengths(law, [(3, 3, 8)])).not_identified != ()
    assert fit_acceptance(lengths(law, CHAINS + TREES[:1])).not_identified == ()


def test_a_single_step_tells_the_rate_alone() -> None:
    fitted = fit_acceptance([LengthObservation(1, 1, 2, 1.8, standard_error=0.0)])
    assert fitted.not_identified == ("decay", "rank_exponent")
    assert fitted.law.rate == pytest.approx(0.8, abs=0.002)


def test_a_larger_sample_weighs_more() -> None:
    few, many = LengthObservation(3, 1, 4, 2.0, cycles=20), LengthObservation(3, 1, 4, 2.4, cycles=20_000)
    length = fit_acceptance([few, many]).predict(3, 1, 4)[0]
    assert 2.38 < length < 2.40
    mirrored = [LengthObservation(3, 1, 4, 2.0, 20_000), LengthObservation(3, 1, 4, 2.4, 20)]
    assert 2.0 < fit_acceptance(mirrored).predict(3, 1, 4)[0] < 2.02


def test_the_spread_of_cycles_is_that_of_drawn_ones() -> None:
    """A constant rate of .7, six steps: the standard deviation of 500 cycles' mean length, drawn and stated."""
    rng = np.random.default_rng(8)
    drafts = np.minimum(rng.geometric(0.3, size=(20_000, 500)) - 1, 6)
    drawn = drafts.mean(axis=1)
    stated = LengthObservation(6, 1, 7, 1 + drawn.mean(), cycles=500).spread[0]
    assert np.hypot(drawn.std(), CHAIN_ERROR * (1 + drawn.mean())) == pytest.approx(stated, rel=0.02)
    assert LengthObservation(6, 1, 7, 2.5, standard_error=0.1).spread[0] == pytest.approx(np.hypot(0.1, 0.025))
    assert LengthObservation(6, 2, 9, 2.5).spread[0] == pytest.approx(2.5 * TREE_ERROR)


def test_counters_and_histograms_become_observations() -> None:
    by_position = SurvivalObservation.of(counts_from_vllm(10, 30, 17, [8, 5, 4]), 3, 1, 4)
    by_histogram = SurvivalObservation.of(counts_from_histogram([2, 3, 1, 4, 0, 0]), 3, 1, 4)
    assert by_position == by_histogram
    assert by_position.cycles == 10
    assert LengthObservation.of(counts_from_vllm(10, 30, 17), 3, 1, 4) == LengthObservation(3, 1, 4, 2.7, 10)
    np.testing.assert_allclose(by_position.measured, [0.8, 0.625, 0.8])
    with pytest.raises(ConfigurationError, match="more drafts than num_steps 2"):
        SurvivalObservation.of(counts_from_histogram([2, 3, 1, 4]), 2, 1, 3)
    with pytest.raises(NotIdentifiedError, match="totals alone"):
        SurvivalObservation.of(counts_from_vllm(10, 30, 17), 3, 1, 4)


def test_positions_that_no_cycle_came_to_tell_nothing() -> None:
    observation = SurvivalObservation(4, 1, 5, (0.5, 0.0, 0.0, 0.0), 100)
    np.testing.assert_array_equal(observation.measured, [0.5, 0.0])
    assert fit_acceptance([observation]).law.survival(2)[1] < 0.1


def test_observations_far_from_any_law_widen_the_intervals() -> None:
    law = TreeLaw(0.75, 0.9, 0.5)
    bent = [
        LengthObservation(s, 1, s + 1, law.accept_length(s, 1, s + 1) * f) for s, f in ((2, 1.1), (4, 0.9), (6, 1.1))
    ]
    plain, misfit = fit_acceptance(lengths(law, [(2, 1, 3), (4, 1, 5), (6, 1, 7)])), fit_acceptance(bent)
    assert plain.misfit == 1.0
    assert misfit.misfit > 3
    _, low, high = plain.predict(5, 1, 6)
    _, lower, higher = misfit.predict(5, 1, 6)
    assert higher - lower > 2 * (high - low)


def test_predictions_take_the_shape_of_what_is_asked() -> None:
    fitted = fit_acceptance([LengthObservation(3, 1, 4, 2.4)])
    assert all(type(value) is float for value in fitted.predict(4, 2, 8))
    length, low, high = fitted.predict(np.array([[2], [3]]), 2, np.array([3, 5, 6]))
    assert length.shape == low.shape == high.shape == (2, 3)
    assert (length[1, 2], low[1, 2], high[1, 2]) == pytest.approx(fitted.predict(3, 2, 6))
    assert fitted.predict(0, 1, 1) == (1.0, 1.0, 1.0)
    with pytest.raises(ConfigurationError, match="verifies exactly"):
        fitted.predict(3, 1, 9)


def test_extrapolation_is_told() -> None:
    fitted = fit_acceptance([LengthObservation(3, 1, 4, 2.4), LengthObservation(2, 2, 6, 2.2)])
    assert fitted.is_extrapolated(3, 2, 5) is False
    for deeper, wider, shallower, larger, smaller in [((4, 1, 5), (3, 3, 5), (1, 1, 5), (3, 2, 7), (3, 2, 3))]:
        for beyond in (deeper, wider, shallower, larger, smaller):
            assert fitted.is_extrapolated(*beyond) is True
    assert fitted.is_extrapolated(np.array([2, 5]), np.array([[1], [3]]), 5).tolist() == [[False, True], [True, True]]


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Drafters drawn from the prior, lengths off their law and sampled as assumed, predicted where none was seen."""
    rng = np.random.default_rng(15)
    seen, unseen = [(2, 1, 3), (4, 1, 5), (4, 3, 12)], [(6, 1, 7), (3, 1, 4), (6, 4, 24), (5, 2, 10)]
    centre = [np.log(PRIOR_MEDIAN[0] / (1 - PRIOR_MEDIAN[0])), np.log(PRIOR_MEDIAN[1]), np.log(PRIOR_MEDIAN[2])]
    parameters, predictions = [], []
    for _ in range(300):
        score = rng.normal(centre, PRIOR_SPREAD)
        law = TreeLaw(float(1 / (1 + np.exp(-score[0]))), float(np.exp(score[1])), float(np.exp(score[2])))
        observed = []
        for config in seen:
            true = LengthObservation(*config, law.accept_length(*config), cycles=2000)
            drawn = rng.normal(true.accept_length, true.spread[0])
            observed.append(LengthObservation(*config, float(np.clip(drawn, 1, config[0] + 1)), cycles=2000))
        fitted = fit_acceptance(observed)
        parameters += [low < getattr(law, name) < high for name, (low, high) in fitted.intervals.items()]
        for config in unseen:
            error = CHAIN_ERROR if config[1] == 1 else TREE_ERROR
            truth = np.clip(law.accept_length(*config) * (1 + rng.normal(0, error)), 1, config[0] + 1)
            _, low, high = fitted.predict(*config)
            predictions.append(low <= truth <= high)
    # 900 and 1200 draws, three and four to a drafter: a standard error near 1.5%; the misfit only ever widens
    assert LEVEL - 0.03 < np.mean(parameters) < LEVEL + 0.06
    assert LEVEL - 0.03 < np.mean(predictions) < LEVEL + 0.06


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthObservation(3, 1, 4, 0.8), "includes the bonus token"),
        (lambda: LengthObservation(3, 1, 4, 4.2), "outside 1 to 4"),
        (lambda: LengthObservation(3, 1, 5, 2.0), "verifies exactly 4"),
        (lambda: LengthObservation(0, 1, 1, 1.0), "from num_steps 1 on"),
        (lambda: LengthObservation(3, 1, 4, 2.0, cycles=0), "at least 1"),
        (lambda: LengthObservation(3, 1, 4, 2.0, standard_error=-0.1), "at least 0"),
        (lambda: SurvivalObservation(3, 1, 4, (0.5, 0.6)), "never rises"),
        (lambda: SurvivalObservation(1, 1, 2, (0.5, 0.4)), "2 positions of survival at num_steps 1"),
        (lambda: SurvivalObservation(2, 1, 3, (0.5, 0.4), cycles=0), "at least 1"),
    ],
)
def test_observations_that_cannot_be_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]


def test_nothing_to_fit_is_said() -> None:
    with pytest.raises(NotIdentifiedError, match="give at least one"):
        fit_acceptance([])
