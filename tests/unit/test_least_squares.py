from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from specsim.fitting.least_squares import solve


@given(st.integers(0, 2**32 - 1))
def test_equals_scipys_bounded_solution_where_a_bound_binds(seed):
    generator = np.random.default_rng(seed)
    features = generator.uniform(0, 3, (9, 4))
    times = features @ np.array([2.0, 0.0, 1.0, 0.0]) * generator.uniform(0.5, 1.5, 9) + 0.1
    solution = solve(features, times, np.ones(9))
    fitted = times
    for _ in range(4):
        expected, _ = nnls(features / fitted[:, None], times / fitted)
        fitted = features @ expected
    assert solution.values == pytest.approx(expected, abs=1e-9)
    assert (solution.values >= 0).all()


def test_residuals_are_relative_to_the_fitted_time():
    """Two readings of one constant weigh alike whatever they are, so 10 and 30 give 20, not the 12 that weights of
    1/reading would.
    """
    assert solve(np.ones((2, 1)), np.array([10.0, 30.0]), np.ones(2)).values[0] == pytest.approx(20.0)


def test_weights_follow_the_time():
    """t = 10 and 10.4 at x = 1, 1000 at x = 100 through the origin: a wide relative residual at 1 outweighs none at 100.

    Relative least squares through the origin is the mean of tᵢ/xᵢ.
    """
    solution = solve(np.array([[1.0], [1.0], [100.0]]), np.array([10.0, 10.4, 1000.0]), np.ones(3))
    assert solution.values[0] == pytest.approx((10 + 10.4 + 10) / 3, rel=1e-6)


def test_a_vaguer_row_pulls_less():
    """With noise ratios 3 and 1 the weights are 1/9 and 1: (10/9 + 30)/(1/9 + 1) = 28."""
    vague = solve(np.ones((2, 1)), np.array([10.0, 30.0]), np.array([3.0, 1.0])).values[0]
    assert vague == pytest.approx(28.0)


def test_the_later_of_two_equal_columns_is_folded_into_the_earlier():
    features = np.array([[1.0, 1.0, 2.0], [1.0, 1.0, 5.0], [1.0, 1.0, 9.0]])
    solution = solve(features, np.array([5.0, 8.0, 12.0]), np.ones(3))
    assert solution.kept.tolist() == [True, False, True]
    assert solution.values == pytest.approx([3.0, 0.0, 1.0])
    assert solution.degrees_of_freedom == 1


def test_blind_directions_are_what_no_row_sees():
    features = np.array([[1.0, 6.0, 0.0], [1.0, 6.0, 0.0]])
    blind = solve(features, np.array([5.0, 5.1]), np.ones(2)).blind
    assert blind.shape[0] == 2
    assert features @ blind.T == pytest.approx(np.zeros((2, 2)), abs=1e-12)


def test_covariance_is_that_of_the_textbook():
    """Unweighted by construction (equal times): Σ = (XᵀX)⁻¹ t² for a relative noise of 1."""
    features = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    solution = solve(features, np.full(3, 4.0), np.ones(3))
    assert solution.unit_covariance == pytest.approx(np.linalg.inv(features.T @ features) * 16.0)
