"""The laws against explicit trees, built path by path and judged by recursion or by drawing cycles."""

import itertools

import numpy as np
import pytest

from specsim.acceptance import (
    ConstantRate,
    DecayingRate,
    PerPosition,
    TreeLaw,
    chain_accept_length,
    required_accept_rate,
)
from specsim.errors import ConfigurationError
from specsim.quantities import tree_limit

# a drafter as published, a strong one, one so weak that its candidates are held to the first's worth, one that rises
LAWS = [TreeLaw(0.53, 0.83, 0.64), TreeLaw(0.9, 0.97, 1.5), TreeLaw(0.2, 0.5, 1.0), TreeLaw(0.6, 1.2, 0.3)]

Path = tuple[int, ...]


def worth_of_rank(law: TreeLaw, depth: int, rank: int) -> float:
    """P(candidate `rank`, from 1, is the accepted one), from the coverage formula and the order of the ranks."""
    first = min(1.0, law.rate * law.decay**depth)

    def coverage(candidates: int) -> float:
        return 1 - (1 - first) * candidates**-law.rank_exponent if candidates else 0.0

    return min(coverage(r) - coverage(r - 1) for r in range(1, rank + 1))


def worth(law: TreeLaw, path: Path) -> float:
    value = 1.0
    for depth, rank in enumerate(path):
        value *= worth_of_rank(law, depth, rank)
    return value


def engine_tree(law: TreeLaw, num_steps: int, topk: int, num_draft_tokens: int) -> set[Path]:
    """The paths an EAGLE-2 style engine verifies, root left out; parents come before children of equal worth."""
    pool: list[Path] = []
    kept: list[Path] = [()]
    for _ in range(num_steps):
        level = [(*path, rank) for path in kept for rank in range(1, topk + 1)]
        pool += level
        kept = sorted(level, key=lambda path: -worth(law, path))[:topk]
    return set(sorted(pool, key=lambda path: (-worth(law, path), len(path)))[: num_draft_tokens - 1])


def expected_length(law: TreeLaw, tree: set[Path], at: Path = ()) -> float:
    """One token here, and with the chance that a drafted child is the accepted one, that child's tokens too."""
    children = [path for path in tree if len(path) == len(at) + 1 and path[: len(at)] == at]
    return 1.0 + sum(worth_of_rank(law, len(at), path[-1]) * expected_length(law, tree, path) for path in children)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("topk", [2, 3, 4])
def test_engine_tree_is_the_one_built_path_by_path(law: TreeLaw, topk: int) -> None:
    for num_steps in (1, 2, 4):
        for width in {2, 3, num_steps + 1, 8, int(tree_limit(num_steps, topk))}:
            if 2 <= width <= tree_limit(num_steps, topk):
                tree = engine_tree(law, num_steps, topk, width)
                assert law.accept_length(num_steps, topk, width) == pytest.approx(expected_length(law, tree), rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_best_tree_is_the_best_of_all_trees(law: TreeLaw) -> None:
    for num_steps, nodes in ((1, 4), (2, 4), (3, 4), (2, 5)):
        trees = {frozenset[Path]()}
        for _ in range(nodes):
            trees = {
                tree | {(*parent, rank)}
                for tree in trees
                for parent in ((), *tree)
                for rank in range(1, nodes + 1)
                if len(parent) < num_steps and (*parent, rank) not in tree
            }
        best = max(expected_length(law, set(tree)) for tree in trees)
        assert law.best_tree_length(num_steps, nodes + 1) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("config", [(8, 8, 60), (6, 10, 64), (16, 4, 150)])
def test_large_trees_against_drawn_cycles(law: TreeLaw, config: tuple[int, int, int]) -> None:
    num_steps, topk, width = config
    tree = engine_tree(law, num_steps, topk, width)
    rng = np.random.default_rng(20)
    cycles = 200_000
    alive, code = np.ones(cycles, dtype=bool), np.zeros(cycles, dtype=np.int64)
    survived = []
    for depth in range(num_steps):
        chances = [worth_of_rank(law, depth, rank) for rank in range(1, topk + 1)]
        rank = 1 + np.searchsorted(np.cumsum(chances), rng.random(cycles), side="right")  # topk + 1: none of them
        code = code * (topk + 2) + rank
        nodes = [sum(r * (topk + 2) ** (depth - i) for i, r in enumerate(p)) for p in tree if len(p) == depth + 1]
        alive &= np.isin(code, nodes)
        survived.append(alive.mean())
    assert law.accept_length(*config) == pytest.approx(1 + sum(survived), rel=0.005)
    np.testing.assert_allclose(law.tree_survival(*config), survived, atol=0.005)


def test_tree_survival_is_by_depth_of_the_verified_paths() -> None:
    law, config = LAWS[0], (4, 3, 12)
    tree = engine_tree(law, *config)
    by_depth = [sum(worth(law, path) for path in tree if len(path) == depth) for depth in (1, 2, 3, 4)]
    np.testing.assert_allclose(law.tree_survival(*config), by_depth, rtol=1e-12)
    np.testing.assert_allclose(law.tree_survival(3, 1, 4), law.survival(3))
    assert law.tree_survival(0, 1, 1).size == 0


def test_candidates_cover_what_the_formula_says_until_the_first_is_worth_less() -> None:
    strong, weak = TreeLaw(0.7, 1.0, 0.8), TreeLaw(0.1, 1.0, 0.8)
    np.testing.assert_allclose(np.cumsum(strong.rank_acceptance(1, 6)[0]), 1 - 0.3 * np.arange(1, 7) ** -0.8)
    worth_by_rank = weak.rank_acceptance(1, 6)[0]
    assert worth_by_rank[1] == 0.1  # the formula would give the second candidate .9·(1 − 2^−.8) = .38
    assert (np.diff(worth_by_rank) <= 0).all()


def test_a_higher_rank_exponent_can_shorten_where_candidates_are_held() -> None:
    flat, steep = TreeLaw(0.1, 1.0, 1.0), TreeLaw(0.1, 1.0, 5.0)
    assert steep.accept_length(1, 8, 9) < flat.accept_length(1, 8, 9)
    # one level: .1 for the first, then .9·((r−1)^−b − r^−b), held to .1
    assert flat.accept_length(1, 8, 9) == pytest.approx(1.1 + sum(min(0.1, 0.9 / (r * (r - 1))) for r in range(2, 9)))


def test_chains_follow_the_closed_forms() -> None:
    depths = np.arange(9)
    np.testing.assert_allclose(
        ConstantRate(0.8).accept_length(depths, 1, depths + 1), chain_accept_length(0.8, depths), rtol=1e-14
    )
    np.testing.assert_allclose(DecayingRate(0.8, 0.9).survival(3), [0.8, 0.8 * 0.72, 0.8 * 0.72 * 0.648])
    np.testing.assert_array_equal(DecayingRate(0.9, 1.1).conditional_acceptance(3), [0.9, 0.9 * 1.1, 1.0])
    np.testing.assert_array_equal(DecayingRate(0.5, 50.0).survival(500)[-1:], [0.5])  # the power overflows: rate 1
    np.testing.assert_array_equal(DecayingRate(0.0, 2.0).survival(2), [0.0, 0.0])


def test_measured_survival_is_returned_and_its_last_rate_held() -> None:
    law = PerPosition((0.8, 0.6, 0.3))
    np.testing.assert_allclose(law.survival(5), [0.8, 0.6, 0.3, 0.15, 0.075])
    assert law.accept_length(2, 1, 3) == pytest.approx(2.4)
    assert not law.is_extrapolated(3)
    assert law.is_extrapolated(4)
    assert law.is_extrapolated(np.array([2, 9])).tolist() == [False, True]
    np.testing.assert_array_equal(PerPosition((0.5, 0.0, 0.0)).survival(4), [0.5, 0, 0, 0])


def test_scalars_give_floats_and_arrays_their_broadcast_shape() -> None:
    law = LAWS[0]
    assert type(law.accept_length(3, 2, 6)) is float
    assert type(law.best_tree_length(3, 6)) is float
    assert type(ConstantRate(0.5).accept_length(2, 1, 3)) is float
    steps, width = np.array([[3], [5]]), np.array([2, 4, 7])
    lengths = law.accept_length(steps, 3, width)
    best = law.best_tree_length(steps, width)
    assert lengths.shape == best.shape == (2, 3)
    for (i, s), (j, n) in itertools.product(enumerate((3, 5)), enumerate((2, 4, 7))):
        assert lengths[i, j] == law.accept_length(s, 3, n)
        assert best[i, j] == law.best_tree_length(s, n)


def test_many_configurations_are_each_their_own() -> None:
    rng = np.random.default_rng(4)
    steps, topk = rng.integers(0, 13, 5000), rng.integers(1, 9, 5000)
    widest = np.where((topk == 1) | (steps == 0), steps + 1, tree_limit(steps, topk))
    width = np.where((topk == 1) | (steps == 0), steps + 1, 2 + rng.integers(0, 10**6, 5000) % (widest - 1).clip(1))
    together = LAWS[0].accept_length(steps, topk, width)
    for at in range(0, 5000, 50):
        alone = LAWS[0].accept_length(int(steps[at]), int(topk[at]), int(width[at]))
        assert together[at] == pytest.approx(alone, rel=1e-14)


def test_a_rate_for_a_length_is_the_constant_law_turned_round() -> None:
    rate = required_accept_rate(2.5, 4)
    assert ConstantRate(rate).accept_length(4, 1, 5) == pytest.approx(2.5)


@pytest.mark.parametrize("law", [ConstantRate(0.7), DecayingRate(0.7, 0.9), PerPosition((0.7, 0.5))])
def test_a_tree_needs_a_tree_law(law: ConstantRate | DecayingRate | PerPosition) -> None:
    with pytest.raises(ConfigurationError, match="needs a TreeLaw"):
        law.accept_length(np.array([3, 3]), np.array([1, 2]), np.array([4, 6]))
    assert law.accept_length(0, 4, 1) == 1.0  # no draft is made: not a tree


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstantRate(1.2), "between 0 and 1"),
        (lambda: DecayingRate(0.5, 0.0), "decay is a number above 0"),
        (lambda: TreeLaw(-0.1, 0.9, 0.5), "between 0 and 1"),
        (lambda: TreeLaw(0.5, float("nan"), 0.5), "decay is a number above 0"),
        (lambda: TreeLaw(0.5, 0.9, float("inf")), "rank_exponent is a number above 0"),
        (lambda: PerPosition(()), "at least one position"),
        (lambda: PerPosition((0.5, 0.6)), "never rises with depth; 0.6 follows 0.5"),
        (lambda: PerPosition((1.1,)), "between 0 and 1"),
        (lambda: LAWS[0].accept_length(3, 1, 5), "verifies exactly 4 tokens"),
        (lambda: LAWS[0].accept_length(2, 2, 8), "verifies 2 to 7 tokens"),
        (lambda: LAWS[0].tree_survival(2, 2, 8), "verifies 2 to 7 tokens"),
        (lambda: LAWS[0].best_tree_length(-1, 3), "num_steps ≥ 0"),
        (lambda: LAWS[0].best_tree_length(2, 1.5), "whole numbers"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()  # type: ignore[operator]
