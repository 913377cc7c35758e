"""What one cycle runs, counted by hand from the engines' own descriptions."""

from __future__ import annotations

import pytest

from specsim import SpecConfig, Workload
from specsim.cost.terms import Cycle


@pytest.mark.parametrize(
    ("engine", "spec", "forwards", "tokens"),
    [
        ("sglang", SpecConfig(5, 1, 6), 4, 3 * 4),  # steps − 1 forwards of topk tokens; the first level is carried over
        ("sglang", SpecConfig(3, 4, 16), 2, 3 * 2 * 4),
        ("sglang", SpecConfig(1, 1, 2), 0, 0),
        ("vllm", SpecConfig(5, 1, 6), 5, 3 * (6 + 4)),  # one of K + 1 tokens, K − 1 of one
        ("tensorrt-llm", SpecConfig(3, 1, 4), 3, 3 * (4 + 2)),
        ("llama.cpp", SpecConfig(3, 1, 4), 3, 3 * 3),
        (None, SpecConfig(3, 1, 4), 3, 3 * 3),
        ("sglang", SpecConfig(1, 1, 16, "dflash"), 1, 3 * 16),
        ("vllm", SpecConfig(1, 1, 8, "ngram"), 0, 0),
        ("vllm", SpecConfig(0, 1, 1), 0, 0),
    ],
)
def test_draft_forwards_and_tokens_at_batch_three(engine, spec, forwards, tokens):
    cycle = Cycle.of(spec, Workload(3), engine)
    assert (cycle.draft_forwards[0], cycle.draft_tokens[0]) == (forwards, tokens)
    assert cycle.verify_tokens[0] == 3 * spec.num_draft_tokens
