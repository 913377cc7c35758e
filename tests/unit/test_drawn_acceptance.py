"""Drawn cycles against the laws, prompts that differ as stated, and trees built by confidence node by node."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from specsim.acceptance import ConstantRate, DecayingRate, PerPosition, TreeLaw
from specsim.errors import ConfigurationError
from specsim.quantities import SpecConfig
from specsim.simulation import Drawer
from specsim.simulation.trees import confident_survival

CHAIN, TREE = SpecConfig(3, 1, 4), SpecConfig(3, 4, 16)
TREE_LAW = TreeLaw(0.53, 0.83, 0.64)
CASES = [(ConstantRate(0.6), CHAIN), (DecayingRate(0.8, 0.8), SpecConfig(6, 1, 7)), (PerPosition((0.8, 0.5)), CHAIN),
         (TREE_LAW, TREE), (TREE_LAW, CHAIN)]  # fmt: skip


@pytest.mark.parametrize(("law", "spec"), CASES)
def test_without_a_spread_every_prompt_is_the_laws(law, spec):
    drawer = Drawer.of(law, spec)
    assert drawer.mean == pytest.approx(law.accept_length(spec.num_steps, spec.topk, spec.num_draft_tokens), rel=1e-12)
    assert drawer.means.shape == (1,)
    assert drawer.max_accept_length == spec.max_accept_length


@pytest.mark.parametrize(("law", "spec"), CASES)
@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_prompts_spread_as_stated_around_the_laws_length(law, spec, spread):
    drawer = Drawer.of(law, spec, between_prompts=spread)
    lengths = 1 + drawer.survival.sum(axis=1)
    assert lengths.std() / lengths.mean() == pytest.approx(spread, rel=1e-6)
    cycles_a_token = np.mean(1 / lengths)  # equally long outputs: cycles are averaged
    assert 1 / cycles_a_token == pytest.approx(law.accept_length(spec.num_steps, spec.topk, spec.num_draft_tokens))
    assert (np.diff(lengths) >= 0).all()


def test_what_a_prompt_moves_is_the_log_odds():
    drawer = Drawer.of(PerPosition((0.8, 0.4, 0.1)), CHAIN, between_prompts=0.15)
    rates = drawer.survival[100] / np.concatenate([[1], drawer.survival[100, :-1]])
    shifts = np.log(rates / (1 - rates)) - np.log([0.8 / 0.2, 0.5 / 0.5, 0.25 / 0.75])
    np.testing.assert_allclose(shifts, shifts[0], atol=2e-3)  # the table between shifts is straight
    assert abs(shifts[0]) > 0.1


def test_an_easier_prompt_has_another_tree():
    """The tree is the engine's for that prompt, not the law's tree with other chances."""
    drawer = Drawer.of(TREE_LAW, SpecConfig(4, 2, 6), between_prompts=0.2)
    rate = TREE_LAW.rate
    shift = 1.0
    easier = TreeLaw(1 / (1 + (1 - rate) / rate * np.exp(-shift)), TREE_LAW.decay, TREE_LAW.rank_exponent)
    wanted = easier.tree_survival(4, 2, 6)
    lengths = 1 + drawer.survival.sum(axis=1)
    at = int(np.argmin(abs(lengths - (1 + wanted.sum()))))
    np.testing.assert_allclose(drawer.survival[at], wanted, atol=0.02)


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_drawn_tokens_have_the_chances_of_their_kind(spread):
    drawer = Drawer.of(TREE_LAW, TREE, between_prompts=spread)
    generator = np.random.default_rng(11)
    kinds = np.array([0, drawer.survival.shape[0] - 1])
    tokens = drawer.draw(kinds, generator, cycles=400_000)
    assert tokens.shape == (400_000, 2)
    for depth in (1, 2, 3):
        for column, kind in enumerate(kinds):
            chance = drawer.survival[kind, depth - 1]
            seen = float((tokens[:, column] >= depth + 1).mean())
            assert abs(seen - chance) <= 4.5 * np.sqrt(max(chance * (1 - chance), 1e-7) / 400_000)
    assert tokens.min() >= 1
    assert tokens.max() <= 4


def test_prompts_are_of_all_kinds_and_a_shape_makes_new_ones():
    drawer = Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2)
    kinds = drawer.prompts((1000, 300), np.random.default_rng(1))
    counts = np.bincount(kinds.ravel(), minlength=drawer.survival.shape[0])
    assert abs(counts / counts.mean() - 1).max() < 0.12  # 2,344 of each, 2.1% at one standard deviation
    tokens = drawer.draw((1000, 300), np.random.default_rng(1))
    assert tokens.shape == (1000, 300)
    assert tokens.mean() == pytest.approx(float((1 + drawer.survival.sum(axis=1)).mean()), rel=0.005)


def test_the_same_seed_draws_the_same():
    drawer = Drawer.of(ConstantRate(0.6), CHAIN)
    one, other = (drawer.draw((50,), np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_measured_survival_of_the_configuration_itself_will_do():
    drawer = Drawer.of(np.array([0.7, 0.4, 0.1]), TREE)
    np.testing.assert_allclose(drawer.survival, [[0.7, 0.4, 0.1]])
    assert Drawer.of(np.array([]), SpecConfig(0, 1, 1)).mean == 1.0


def test_lookup_drafters_are_as_deep_as_they_are_wide():
    assert Drawer.of(ConstantRate(0.5), SpecConfig(1, 1, 4, "ngram")).max_accept_length == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Drawer.of(ConstantRate(0.55), CHAIN, between_prompts=0.6), "is the most"),
        (lambda: Drawer.of(ConstantRate(1.0), CHAIN, between_prompts=0.1), "0% is the most"),
        (lambda: Drawer.of(ConstantRate(0.5), CHAIN, between_prompts=-0.1), "at least 0"),
        (lambda: Drawer.of(ConstantRate(0.5), TREE), "needs a TreeLaw"),
        (lambda: Drawer.of(ConstantRate(0.5), SpecConfig(np.array([1, 2]), 1, np.array([2, 3]))), "one configuration"),
        (lambda: Drawer.of(np.array([0.7, 0.8, 0.1]), CHAIN), "never rise"),
        (lambda: Drawer.of(np.array([0.7]), CHAIN), "3 numbers"),
        (lambda: Drawer(np.array([[0.5, 0.6]])), "never rising"),
        (lambda: Drawer(np.array([0.5])), "a table"),
        (lambda: confident_survival(TREE_LAW, TREE, -1.0, np.random.default_rng(0)), "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


# -- confidence that differs from token to token ---------------------------------------------------------------------


@cache
def centre(rate: float, spread: float) -> float:
    """Where normal log-odds are centred for their mean rate to be this one; by Gauss–Hermite and bisection."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float(weights @ (1 / (1 + np.exp(-(middle + spread * nodes)))) / weights.sum())
        low, high = (middle, high) if mean < rate else (low, middle)
    return low


def accepted_in_one_tree(law: TreeLaw, config: tuple[int, int, int], spread: float, generator) -> int:
    """Draft a tree by confidence as the engine does, then walk it: each node's context has a rate of its own."""
    steps, topk, width = config
    ranks: dict[tuple[int, ...], list[float]] = {}
    worth: dict[tuple[int, ...], float] = {(): 1.0}
    kept: list[tuple[int, ...]] = [()]
    for depth in range(steps):
        level = []
        for path in kept:
            odds = centre(law.rate * law.decay**depth, spread) + spread * generator.standard_normal()
            first = 1 / (1 + np.exp(-odds))
            ranks[path] = [first] + [
                min(first, (1 - first) * ((r - 1) ** -law.rank_exponent - r**-law.rank_exponent))
                for r in range(2, topk + 1)
            ]
            for rank, chance in enumerate(ranks[path]):
                worth[*path, rank] = worth[path] * chance
                level.append((*path, rank))
        kept = sorted(level, key=lambda path: -worth[path])[:topk]
    tree = set(sorted((path for path in worth if path), key=lambda path: -worth[path])[: width - 1])
    at: tuple[int, ...] = ()
    while at in ranks:
        rank = int(np.searchsorted(np.cumsum(ranks[at]), generator.random(), side="right"))
        if (*at, rank) not in tree:
            break
        at = (*at, rank)
    return len(at)


def test_trees_by_confidence_against_trees_walked_one_by_one():
    law, config, spread, count = TreeLaw(0.8, 0.9, 0.8), (3, 2, 5), 3.0, 80_000
    generator = np.random.default_rng(3)
    accepted = np.array([accepted_in_one_tree(law, config, spread, generator) for _ in range(count)])
    survival = confident_survival(law, SpecConfig(*config), spread, np.random.default_rng(4))
    for depth, chance in enumerate(survival, 1):
        assert abs((accepted >= depth).mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / count)
    assert abs(survival - law.tree_survival(*config)).max() > 0.02  # the spread shows


def test_confidence_that_does_not_differ_gives_the_laws_tree():
    generator = np.random.default_rng(0)
    np.testing.assert_allclose(confident_survival(TREE_LAW, TREE, 0.0, generator), TREE_LAW.tree_survival(3, 4, 16))
    np.testing.assert_allclose(
        confident_survival(TREE_LAW, TREE, 1e-4, generator, 5000), TREE_LAW.tree_survival(3, 4, 16), atol=1e-4
    )
    np.testing.assert_allclose(confident_survival(TREE_LAW, CHAIN, 2.0, generator), TREE_LAW.survival(3))
