"""Laws of padding to captured graphs, over engines, versions, widths and batch sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specsim.cost.graph_padding import padded_requests, padded_tokens

BATCHES = np.arange(1, 601)
engines = st.sampled_from(
    [("sglang", "0.5.8"), ("sglang", None), ("vllm", "0.19.0"), ("vllm", None), ("tensorrt-llm", None), (None, None)]
)
widths, largest = st.integers(1, 20), st.one_of(st.none(), st.integers(1, 1100))


@given(engines, widths, st.booleans(), largest)
def test_padding_never_takes_away_and_never_falls_with_the_batch(engine, width, speculative, most):
    for padded, given_ in (
        (padded_requests(BATCHES, width, *engine, speculative, largest=most), BATCHES),
        (padded_tokens(BATCHES, width, *engine, speculative, largest=most), BATCHES * width),
    ):
        assert (padded >= given_).all()
        assert (np.diff(padded) >= 0).all()


@given(engines, widths, st.booleans(), largest)
def test_what_was_padded_is_not_padded_again(engine, width, speculative, most):
    requests = padded_requests(BATCHES, width, *engine, speculative, largest=most)
    assert (padded_requests(requests, width, *engine, speculative, largest=most) == requests).all()
    tokens = padded_tokens(BATCHES, width, *engine, speculative, largest=most)
    again = padded_tokens(tokens / width, width, *engine, speculative, largest=most)
    assert np.allclose(again, tokens, rtol=1e-12, atol=0)


@given(engines, widths, st.booleans(), st.integers(1, 1100))
def test_above_the_largest_nothing_is_padded_and_below_nothing_passes_it(engine, width, speculative, most):
    name, _ = engine
    padded, counts = (
        (padded_tokens(BATCHES, width, *engine, speculative, largest=most), BATCHES * width)
        if name == "vllm"
        else (padded_requests(BATCHES, width, *engine, speculative, largest=most), BATCHES)
    )
    assert (padded[counts > most] == counts[counts > most]).all()
    assert (padded[counts <= most] <= most).all()


@given(widths, st.integers(1, 1100))
def test_vllms_strides_save_what_rounding_costs_at_powers_of_two(width, most):
    """Where (1 + K)·2^n tokens are captured exactly, no request more is run."""
    batches = 2 ** np.arange(10)
    exact = padded_tokens(batches, width, "vllm", largest=most)
    assert (exact == batches * width).all()
