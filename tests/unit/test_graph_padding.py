from __future__ import annotations

import numpy as np
import pytest

from specsim.cost.graph_padding import padded_draft_tokens, padded_requests, padded_tokens

# -- SGLang: requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "speculative", "plain"),
    [
        (1, 1, 1), (2, 2, 2), (3, 3, 4), (5, 5, 8), (8, 8, 8), (9, 10, 12), (12, 12, 12), (13, 14, 16), (17, 18, 24),
        (31, 32, 32), (33, 40, 40), (41, 44, 48), (61, 64, 64), (65, 72, 72), (129, 136, 136), (249, 256, 256),
        (257, 272, 272), (273, 288, 288), (497, 512, 512), (512, 512, 512), (513, 513, 513),
    ],
)  # fmt: skip
def test_sglangs_two_lists(batch, speculative, plain):
    assert padded_requests(batch, 4, "SGLang") == speculative
    assert padded_tokens(batch, 4, "sglang", "0.5.23") == 4 * speculative
    assert padded_requests(batch, 1, "sglang", speculative=False) == plain
    assert padded_tokens(batch, 1, "sglang", speculative=False) == plain


def test_sglangs_lists_go_on_where_more_is_captured():
    """Steps of 16 from 272 on with speculation; of 32 from 512 on without."""
    assert padded_requests(513, 4, "sglang", largest=1024) == 528
    assert padded_requests(513, 1, "sglang", speculative=False, largest=1024) == 544


def test_the_largest_batch_is_captured_itself_by_the_newest_sglang_alone():
    batches = np.array([47, 48, 49, 50, 51])
    assert padded_requests(batches, 4, "sglang", largest=50).tolist() == [48, 48, 50, 50, 51]
    assert padded_requests(batches, 4, "sglang", "0.5.19", largest=50).tolist() == [48, 48, 49, 50, 51]


# -- vLLM: tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "padded"),
    [
        (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (17, 24), (100, 104), (241, 248), (249, 256), (257, 272),
        (300, 304), (497, 512), (512, 512), (513, 513), (700, 700),
    ],
)  # fmt: skip
def test_vllms_list_without_speculation(tokens, padded):
    assert padded_tokens(tokens, 1, "vllm", speculative=False) == padded
    assert padded_tokens(tokens, 1, "vllm", "0.11.0", speculative=False) == padded


@pytest.mark.parametrize(
    ("batch", "newest", "before"),
    [
        # sizes 1 2 4 8 16 24 32 40 48 …; strides of 5: 5 10 20 40 80; rounded: 5 10 20 25 35 40 50 60 (of 56) …
        (1, 5, 5), (2, 10, 10), (3, 16, 20), (4, 20, 20), (5, 32, 25), (6, 32, 35), (7, 40, 35), (8, 40, 40),
        (9, 48, 50), (10, 56, 50), (11, 56, 60), (16, 80, 80), (17, 88, 90), (50, 256, 250), (64, 320, 320),
        (100, 512, 500), (101, 512, 505), (102, 512, 510), (103, 515, 515),
    ],
)  # fmt: skip
def test_vllm_with_four_drafts_by_version(batch, newest, before):
    """By hand. The largest of 512 rounds to 515 and so is not captured: 505 and 510 tokens ran eagerly."""
    assert padded_tokens(batch, 5, "vllm") == newest
    assert padded_tokens(batch, 5, "vllm", "0.33.0") == newest
    assert padded_tokens(batch, 5, "vllm", "0.19.0") == before


@pytest.mark.parametrize(
    ("batch", "newest", "before"),
    [(1, 1, 5), (3, 4, 5), (5, 5, 5), (6, 8, 10), (16, 16, 20), (17, 20, 20), (600, 600, 600)],
)
def test_vllms_draft_steps_run_in_the_smallest_graph_that_was_captured_for_verifies(batch, newest, before):
    """By hand, of the sizes above; sizes that were rounded hold whole verifies of five tokens."""
    assert padded_draft_tokens(batch, 1, 5, "vllm") == newest
    assert padded_draft_tokens(batch, 1, 5, "vllm", "0.24.0") == before


def test_sglangs_draft_steps_have_a_verifys_requests():
    assert padded_draft_tokens([3, 9, 11], 4, 8, "sglang").tolist() == [12, 40, 48]
    assert padded_draft_tokens([3, 9], 4, 8, None).tolist() == [12, 36]


def test_vllms_exact_stride_stops_at_the_largest():
    """128 requests of 5 have a stride of 640: beyond 512, so that 640 tokens run as they are; up to 1024 they have a graph."""
    assert padded_tokens(120, 5, "vllm") == 600
    assert padded_tokens(120, 5, "vllm", largest=1024) == 608
    assert padded_tokens(126, 5, "vllm", largest=1024) == 640


def test_vllm_pads_no_requests():
    assert padded_requests([3, 9], 5, "vllm").tolist() == [3, 9]


# -- the rest ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [None, "", "tensorrt-llm", "llama.cpp", "another"])
def test_no_other_engine_pads(engine):
    assert padded_requests([3, 9], 5, engine).tolist() == [3, 9]
    assert padded_tokens([3, 9], 5, engine).tolist() == [15, 45]


@pytest.mark.parametrize("engine", ["sglang", "vllm", None])
def test_shapes_broadcast_and_arguments_stay_as_they_are(engine):
    batch, width = np.array([[3], [9]]), np.array([2, 5, 6])
    together = padded_tokens(batch, width, engine)
    assert together.shape == padded_requests(batch, width, engine).shape == (2, 3)
    assert together.dtype == float
    for row, b in enumerate((3, 9)):
        for column, n in enumerate((2, 5, 6)):
            assert together[row, column] == padded_tokens(b, n, engine)
    assert batch.tolist() == [[3], [9]]
    padded_requests(given := np.array([3.0, 9.0]), 1, engine)[:] = 0
    assert given.tolist() == [3.0, 9.0]
