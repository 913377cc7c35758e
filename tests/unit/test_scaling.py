from __future__ import annotations

import numpy as np
import pytest

from specsim.errors import NotIdentifiedError
from specsim.fitting.scaling import ScalingPoint, fit_scaling


def test_two_points_give_the_line_through_them():
    """From 2.0 at 10 K to 3.0 at 1 M: half a token a decade."""
    fitted = fit_scaling([ScalingPoint(10_000, 2.0, 0.05), ScalingPoint(1_000_000, 3.0, 0.05)])
    assert fitted.accept_length(100_000)[0] == pytest.approx(2.5)
    assert fitted.samples_needed(2.5)[0] == pytest.approx(100_000)
    assert fitted.inflation == 1.0


def test_points_that_scatter_widen_their_errors():
    """Residuals of ±e, ∓2e, ±e about a line through equidistant points: χ² = 6e²/σ² over one degree of freedom."""
    points = [ScalingPoint(n, 2 + 0.5 * i + r, 0.1) for i, (n, r) in enumerate([(10, 0.1), (100, -0.2), (1000, 0.1)])]
    assert fit_scaling(points).inflation == pytest.approx(6**0.5)


def test_value_and_inverse_agree():
    fitted = fit_scaling(
        [ScalingPoint(10_000, 2.0, 0.02), ScalingPoint(80_000, 2.6, 0.02), ScalingPoint(10**6, 3.0, 0.02)]
    )
    for samples in (2_000, 50_000, 3_000_000):
        assert fitted.samples_needed(fitted.accept_length(samples)[0])[0] == pytest.approx(samples)


def test_a_flat_pair_says_that_no_number_of_samples_is_known():
    fitted = fit_scaling([ScalingPoint(10_000, 2.1), ScalingPoint(37_000, 2.1)])
    assert fitted.samples_needed(2.69)[1:] == (0.0, np.inf)


def test_points_without_errors_are_said_to_have_assumed_ones():
    assert fit_scaling([ScalingPoint(10_000, 2.1), ScalingPoint(37_000, 2.4, 0.1)]).error_assumed
    assert not fit_scaling([ScalingPoint(10_000, 2.1, 0.1), ScalingPoint(37_000, 2.4, 0.1)]).error_assumed


@pytest.mark.parametrize("points", [[], [ScalingPoint(10, 2.0)], [ScalingPoint(10, 2.0), ScalingPoint(10, 2.1)]])
def test_fewer_than_two_sample_counts_are_refused(points):
    with pytest.raises(NotIdentifiedError, match="two or more points"):
        fit_scaling(points)


def test_intervals_cover_when_the_errors_are_true():
    generator = np.random.default_rng(11)
    samples = np.array([10_000, 40_000, 200_000])
    truth = 0.4 + 0.45 * np.log10(samples)
    hits = np.zeros(2)
    for _ in range(500):
        points = [
            ScalingPoint(int(n), float(x), 0.03) for n, x in zip(samples, generator.normal(truth, 0.03), strict=True)
        ]
        fitted = fit_scaling(points[:2])  # no degrees of freedom: the stated errors carry it
        _, low, high = fitted.accept_length(100_000)
        _, fewest, most = fitted.samples_needed(0.4 + 0.45 * 5)
        hits += [low <= 0.4 + 0.45 * 5 <= high, fewest <= 100_000 <= most]
    assert ((hits >= 0.87 * 500) & (hits <= 0.93 * 500)).all(), hits / 500


def test_the_campaign_does_not_pretend_to_precision(campaign):
    points = [ScalingPoint(n, f.best, f.relative_spread * f.best or None, note) for n, f, note in campaign.data_scaling]
    fitted = fit_scaling(points)
    assert fitted.inflation > 2  # two flat points of one team and a higher one of another are no line
    _, low, high = fitted.accept_length(100_000)
    assert high - low > 1
    assert fitted.samples_needed(2.69)[1:] == (0.0, np.inf)
