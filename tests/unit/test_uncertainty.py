from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from specsim.quantities import LEVEL
from specsim.uncertainty import probability_positive, quantile, ratio_interval


def test_quantiles_are_those_of_printed_tables():
    assert quantile(0) == pytest.approx(NormalDist().inv_cdf((1 + LEVEL) / 2), rel=1e-15)
    assert quantile(0) == pytest.approx(1.6449, abs=5e-5)
    assert quantile(1) == pytest.approx(6.3138, abs=5e-5)
    assert quantile(10) == pytest.approx(1.8125, abs=5e-5)


def test_probabilities_agree_between_one_number_and_many():
    many = probability_positive(np.array([-1.0, 0.0, 1.6448536]), 0)
    assert many == pytest.approx([0.158655, 0.5, 0.95], abs=1e-6)
    assert [probability_positive(z, 0) for z in (-1.0, 0.0, 1.6448536)] == pytest.approx(many.tolist(), abs=1e-12)
    assert probability_positive(6.3138, 1) == pytest.approx(0.95, abs=1e-5)


def test_fieller_covers_a_ratio_by_monte_carlo():
    generator = np.random.default_rng(7)
    cov = np.array([[0.6, 0.2], [0.2, 0.5]])
    drawn = generator.multivariate_normal([12.0, 8.0], cov, 40_000)
    ones = np.ones(len(drawn))
    low, high = ratio_interval(drawn[:, 0], drawn[:, 1], (0.6 * ones, 0.5 * ones, 0.2 * ones), 1.6449)
    assert np.mean((low <= 1.5) & (high >= 1.5)) == pytest.approx(0.90, abs=0.005)


def test_a_sure_denominator_gives_the_plain_interval():
    low, high = ratio_interval(np.array([12.0]), np.array([8.0]), (np.array([0.64]), np.zeros(1), np.zeros(1)), 2.0)
    assert (low[0], high[0]) == pytest.approx(((12 - 1.6) / 8, (12 + 1.6) / 8))


def test_a_denominator_that_may_be_zero_leaves_no_upper_end():
    _, high = ratio_interval(np.array([12.0]), np.array([1.0]), (np.array([0.1]), np.array([1.0]), np.zeros(1)), 1.64)
    assert np.isinf(high[0])
