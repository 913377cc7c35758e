"""Any policy, limits and load: the simulator is the plain one, step by step, and nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specsim import SpecConfig
from specsim.cost.terms import PLAIN
from specsim.metrics import mser5, steady_window
from specsim.simulation.arrivals import ClosedLoad, PoissonLoad, UniformLengths
from specsim.simulation.policies import Policy
from specsim.simulation.serving import simulate
from specsim.simulation.summary import Summary
from tests.unit.test_serving import StepByStep, same, server

POLICIES = st.one_of(
    st.just(Policy.fixed(PLAIN)),
    st.integers(1, 7).map(lambda steps: Policy.fixed(SpecConfig(steps, 1, steps + 1))),
    st.integers(1, 6).map(lambda batch: Policy.off_above(SpecConfig(3, 4, 9), batch)),
    st.lists(st.tuples(st.integers(2, 8), st.integers(0, 7)), max_size=4, unique_by=lambda row: row[0]).flatmap(
        lambda rows: st.integers(0, 7).map(lambda steps: Policy.steps_by_batch([(1, steps), *rows]))
    ),
)
LENGTHS = st.tuples(st.integers(1, 80), st.integers(0, 150)).map(lambda ends: UniformLengths(ends[0], sum(ends)))


@given(
    POLICIES, st.booleans(), st.integers(1, 8), st.floats(1, 200), LENGTHS, LENGTHS, st.integers(0, 99), st.booleans()
)
def test_every_server_is_the_step_by_step_one(policy, chunked, most, rate, prompts, outputs, seed, closed):
    load = ClosedLoad(5, 40, prompts, outputs, 0.3) if closed else PoissonLoad(rate, 40, prompts, outputs)
    traffic = load.traffic(np.random.default_rng(seed))
    served = server_of(policy, chunked, most)
    run = simulate(served, traffic, np.random.default_rng(seed))
    same(run, StepByStep(served, traffic, seed).run())
    assert (run.rows.admitted_ms >= run.rows.arrival_ms).all()
    told = Summary.of(served, run, open_loop=load.open_loop)
    assert told.requests + told.warm_up + told.cool_down == 40


@given(POLICIES, st.booleans(), st.integers(250, 700), st.integers(0, 99))
def test_a_small_cache_is_kept_and_read_step_by_step(policy, chunked, kv_tokens, seed):
    """Nothing is ever accepted, so that a request's cache grows by one token a cycle, while drafts still need room."""
    traffic = PoissonLoad(60.0, 40, UniformLengths(20, 100), UniformLengths(5, 100)).traffic(
        np.random.default_rng(seed)
    )
    served = server_of(policy, chunked, 8, kv_tokens)
    run, plain = simulate(served, traffic, np.random.default_rng(seed)), StepByStep(served, traffic, seed).run()
    same(run, plain)
    assert run.preemptions == plain.evicted
    assert plain.largest_cache <= kv_tokens


def server_of(policy: Policy, chunked: bool, most: int, kv_tokens: int | None = None):
    full = {} if kv_tokens is None else {"rate": 0.0, "kv_ms": 0.01, "kv_tokens": kv_tokens}
    return server(policy, chunked_prefill=chunked, max_batch_size=most, max_batched_tokens=120, **full)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_mser5_never_leaves_out_more_than_half(values):
    assert mser5(np.array(values)) <= len(values) / 2


@given(st.integers(1, 60), st.integers(0, 99))
def test_a_window_keeps_some_requests_and_counts_all(count, seed):
    traffic = PoissonLoad(30.0, count, UniformLengths(5, 50), UniformLengths(1, 50)).traffic(
        np.random.default_rng(seed)
    )
    rows = simulate(server_of(Policy.fixed(PLAIN), True, 4), traffic, np.random.default_rng(seed)).rows
    window = steady_window(rows)
    assert window.steady.sum() + window.warm_up + window.cool_down == count
    assert window.steady.any()
    assert window.start_ms < window.end_ms
