from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim import SpecConfig, Workload
from specsim.errors import ConfigurationError


def pool(steps: int, topk: int) -> int:
    """Candidates of an EAGLE-2 tree counted level by level: k at the first, k·k at each further one."""
    return sum(topk if level == 0 else topk * topk for level in range(steps))


@pytest.mark.parametrize(("steps", "topk"), list(product(range(5), range(1, 5))))
def test_legal_widths_are_chains_and_trees_that_the_pool_can_fill(steps, topk):
    legal = set()
    for width in range(60):
        try:
            SpecConfig(steps, topk, width)
        except ConfigurationError:
            continue
        legal.add(width)
    chain = topk == 1 or steps == 0
    assert legal == ({steps + 1} if chain else set(range(2, pool(steps, topk) + 2)))


def test_an_illegal_configuration_says_the_legal_range():
    with pytest.raises(ConfigurationError, match=r"5 steps verifies exactly 6 tokens"):
        SpecConfig(5, 1, 7)
    with pytest.raises(ConfigurationError, match=r"2 steps and topk 4 verifies 2 to 21 tokens"):
        SpecConfig(2, 4, 22)
    with pytest.raises(ConfigurationError, match=r"num_steps 3, topk 1, num_draft_tokens 9"):
        SpecConfig(np.array([1, 3]), 1, np.array([2, 9]))
    with pytest.raises(ConfigurationError, match="num_draft_tokens is at least 1"):
        SpecConfig.of(num_draft_tokens=0)
    with pytest.raises(ConfigurationError, match="num_steps is at least 0"):
        SpecConfig(-1, 1, 3)
    with pytest.raises(ConfigurationError, match="do not broadcast"):
        SpecConfig([1, 2], 1, [2, 3, 4])
    with pytest.raises(ConfigurationError, match="whole number"):
        SpecConfig(1.5, 1, 2)
    with pytest.raises(ConfigurationError, match="known: eagle"):
        SpecConfig(1, 1, 2, "telepathy")


@given(st.integers(1, 30))
def test_a_chain_follows_from_either_count(steps):
    assert (
        SpecConfig.of(num_steps=steps) == SpecConfig.of(num_draft_tokens=steps + 1) == SpecConfig(steps, 1, steps + 1)
    )


def test_a_tree_needs_all_three_counts():
    assert SpecConfig.of(num_steps=3, topk=4, num_draft_tokens=16).max_accept_length == 4
    for stated in ({"topk": 4}, {"topk": 4, "num_steps": 3}, {"topk": 4, "num_draft_tokens": 9}, {}):
        with pytest.raises(ConfigurationError):
            SpecConfig.of(**stated)
    with pytest.raises(ConfigurationError, match="state its topk"):
        SpecConfig.of(num_steps=3, num_draft_tokens=16)


def test_dummy_steps_do_not_bound_block_and_lookup_drafters():
    assert SpecConfig.of(num_draft_tokens=12, topk=10, method="ngram").max_accept_length == 12
    assert SpecConfig.of(num_draft_tokens=16, method="dflash").max_accept_length == 16
    with pytest.raises(ConfigurationError, match="num_draft_tokens is at least 1"):
        SpecConfig(1, 1, 0, "ngram")
    with pytest.raises(ConfigurationError, match="ngram needs num_draft_tokens"):
        SpecConfig.of(num_steps=3, method="ngram")


def test_batch_size_is_a_positive_whole_number():
    for wrong in (0, -3, 1.5):
        with pytest.raises(ConfigurationError, match="batch_size"):
            Workload(wrong)


def test_lists_and_small_integers_are_taken_as_whole_numbers():
    spec = SpecConfig([2, 5], 1, [3, 6])
    assert spec.max_accept_length.tolist() == [3, 6]
    assert SpecConfig(np.uint8(8), np.uint8(16), np.uint8(60)).max_accept_length == 9  # 1 + 16 + 7·256 overflows uint8
