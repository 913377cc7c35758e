"""What simulated serving says: metrics by hand, warm-up, saturation, crossovers, many scenarios at once."""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from specsim import SpecConfig, fit
from specsim.acceptance import ConstantRate, TreeLaw
from specsim.cost.terms import PLAIN
from specsim.errors import ConfigurationError, InputError, NotIdentifiedError
from specsim.metrics import Latency, RequestRows, Slo, goodput, mser5, output_tok_s, steady_window
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import (
    ClosedLoad,
    Lengths,
    LogNormalLengths,
    PoissonLoad,
    TraceLoad,
    Traffic,
    UniformLengths,
    read_trace,
)
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes
from specsim.simulation.requests import Benchmark, CycleTime, simulate_requests
from specsim.simulation.scenarios import Scenario, capacity, crossover, load_sweep
from specsim.simulation.serving import Server, simulate
from specsim.simulation.study import Limits, Question, rates, servers, study
from specsim.simulation.summary import Summary, saturated
from tests.synthetic import Truth, phase_runs
from tests.unit.test_context_and_host import many_contexts
from tests.unit.test_serving import POLICIES, server

K3 = SpecConfig(3, 1, 4)


def rows(*requests: tuple[float, float, float, int]) -> RequestRows:
    """Of (arrival, first token, finish, output length)."""
    arrival, first, finish, output = (np.array(column) for column in zip(*requests, strict=True))
    return RequestRows(arrival, arrival, first, finish, np.ones_like(output), output, output - 1)


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_latencies_by_hand():
    three = rows((0.0, 10.0, 110.0, 11), (50.0, 90.0, 90.0, 1), (60.0, 100.0, 150.0, 6))
    assert three.ttft_ms.tolist() == [10.0, 40.0, 40.0]
    assert three.e2e_ms.tolist() == [110.0, 40.0, 90.0]
    assert three.tpot_ms[[0, 2]].tolist() == [10.0, 10.0]
    assert math.isnan(three.tpot_ms[1])  # nothing comes after the first token
    told = Latency.of(three.e2e_ms)
    assert (told.mean, told.percentiles[50]) == (80.0, 90.0)
    assert Latency.of(three.tpot_ms).mean == 10.0


def test_goodput_counts_requests_within_every_limit():
    three = rows((0.0, 10.0, 110.0, 11), (50.0, 90.0, 90.0, 1), (60.0, 100.0, 150.0, 6))
    assert Slo(ttft_ms=40.0).met(three).tolist() == [True, True, True]
    assert Slo(ttft_ms=39.0, tpot_ms=10.0).met(three).tolist() == [True, False, False]
    assert Slo(tpot_ms=9.0).met(three).tolist() == [False, True, False]
    assert goodput(three, Slo(e2e_ms=100.0), 500.0) == 4.0
    with pytest.raises(ConfigurationError, match="above 0"):
        Slo(ttft_ms=0.0)


def test_throughput_of_a_window_counts_tokens_as_if_emitted_evenly():
    """From 50 to 100 ms: half of the ten tokens of the first, the one of the second, of the third its first at 60 alone."""
    three = rows((0.0, 0.0, 100.0, 11), (50.0, 90.0, 90.0, 1), (50.0, 60.0, 140.0, 9))
    assert output_tok_s(three, 50.0, 100.0) == pytest.approx((5 + 1 + 1 + 4) / 0.05)
    assert output_tok_s(three, 0.0, 1000.0) == pytest.approx(21.0)


def test_mser5_leaves_out_what_rises_and_keeps_what_is_steady():
    noise = np.random.default_rng(0).normal(size=1000)
    assert 95 <= mser5(np.concatenate([np.linspace(-20, 0, 100), noise])) <= 110
    assert mser5(np.concatenate([np.full(50, 9.0), np.tile([0.0, 1.0], 100)])) == 50
    assert mser5(np.arange(19.0)) == 0  # too few to say


def test_what_arrived_after_the_oldest_in_flight_at_the_end_is_left_out():
    requests = [(10.0 * i, 10.0 * i + 1, 10.0 * i + 5, 3) for i in range(50)]
    requests[40] = (400.0, 401.0, 900.0, 3)  # still running when the last one arrives, at 490
    window = steady_window(rows(*requests))
    assert window.steady.sum() + window.warm_up == 40
    assert window.cool_down == 10
    assert window.end_ms == 400.0


def test_a_run_without_a_steady_part_counts_as_a_whole():
    window = steady_window(rows(*[(0.0, 1.0, 10.0, 5)] * 8))
    assert window.steady.all()
    assert (window.warm_up, window.cool_down, window.end_ms) == (0, 0, 10.0)


# -- summaries -----------------------------------------------------------------------------------------------------------


def summary(rate: float, policy: str = "fixed", count: int = 3000, seed: int = 1, **limits) -> Summary:
    served = server(POLICIES[policy], **limits)
    load = PoissonLoad(rate, count, UniformLengths(20, 60), UniformLengths(30, 50))
    run = simulate(served, load.traffic(np.random.default_rng(seed)), np.random.default_rng(seed + 1))
    return Summary.of(served, run, Slo(e2e_ms=500.0))


def test_a_stable_server_keeps_littles_law_and_its_throughput():
    told = summary(12.0)
    assert not told.saturated
    assert told.in_flight == pytest.approx(told.littles_law, rel=0.03)
    assert told.request_rate == pytest.approx(12.0, rel=0.06)  # 3,000 arrivals: 2% each way
    assert told.output_tok_s == pytest.approx(40 * told.request_rate, rel=0.03)
    assert told.goodput == pytest.approx(told.request_rate, rel=0.01)
    assert told.batch_share.sum() == pytest.approx(1.0)
    assert 1 < told.mean_batch_size < 4
    assert told.accept_length == pytest.approx(1 + 0.7 + 0.49 + 0.343, rel=0.04)  # prompts differ by 20%


def test_past_saturation_the_queue_grows_and_is_said_to():
    """At most 8 together: about 54 requests a second; the rest of 90 piles up."""
    most = capacity(server(POLICIES["fixed"]), 40.0, 40.0)
    told = summary(90.0)
    assert told.saturated
    assert told.backlog_growth == pytest.approx(90.0 - most, rel=0.1)
    longer = summary(90.0, count=6000)
    assert longer.e2e_ms.mean > 1.5 * told.e2e_ms.mean
    assert told.goodput is not None
    assert told.goodput < 0.2 * told.request_rate
    assert told.batch_share[6:].sum() > 0.95  # the seventh or eighth is often still being read


def test_replicas_tell_together_what_none_tells_alone():
    """90 arrivals at 70 a second, 54 a second served: the 45 of the second half outrun what is served by 10, √45 is 7."""
    few = [summary(70.0, count=90, seed=seed) for seed in range(12)]
    assert not any(each.saturated for each in few)
    assert saturated(few)
    assert not saturated([summary(12.0, count=90, seed=seed) for seed in range(12)])


def test_a_closed_loop_is_never_called_saturated():
    served = server(POLICIES["plain"])
    load = ClosedLoad(50, 500, UniformLengths(20, 60), UniformLengths(30, 50))
    run = simulate(served, load.traffic(np.random.default_rng(1)), np.random.default_rng(2))
    told = Summary.of(served, run, open_loop=load.open_loop)
    assert not told.saturated
    assert math.isnan(told.accept_length)
    assert told.goodput is None


def test_capacity_by_hand():
    """Batch 8: 5 + 8·(0.13 + 0.07·4) = 8.28 ms, 2.533 tokens a request (3 drafts at 0.7, all prompts alike).

    A request is in the batch for a step that reads its prompt, where prompts are read beside decoding, and its cycles.
    """
    served = server(POLICIES["fixed"], rate=0.7)
    alike = Server(served.times, served.policy, Prefill(2.0, 0.03), Drawer.of(ConstantRate(0.7), K3), 8, 256)
    assert capacity(alike, 40.0, 41.0) == pytest.approx(1000 / (1.2 + (40 / 2.533 + 1) * 8.28 / 8))
    whole = replace(alike, chunked_prefill=False)
    assert capacity(whole, 40.0, 41.0) == pytest.approx(1000 / (1.2 + 40 / 2.533 * 8.28 / 8))


# -- the request simulator ---------------------------------------------------------------------------------------------------


def test_one_request_at_a_time_is_what_the_request_simulator_says():
    """Cycles of the 59 tokens after the first: the same distribution; where every draft is accepted, the same number."""
    drawer = Drawer.of(ConstantRate(0.7), K3, between_prompts=0.2)
    traffic = ClosedLoad(1, 4000, UniformLengths(9, 9), UniformLengths(60, 60)).traffic(np.random.default_rng(0))
    cycles = simulate(server(POLICIES["fixed"]), traffic, np.random.default_rng(1)).rows.cycles
    told = simulate_requests(Benchmark(drawer, CycleTime(5.41), 4000, 59), 1, np.random.default_rng(2))
    error = math.hypot(cycles.std(), told.cycles.std()) / math.sqrt(4000)
    assert abs(cycles.mean() - told.cycles.mean()) < 3 * error
    assert cycles.std() == pytest.approx(told.cycles.std(), rel=0.06)

    certain = Drawer.of(ConstantRate(1.0), K3)
    served = server(POLICIES["fixed"])
    sure = Server(served.times, served.policy, served.prefill, certain, 8, 256)
    run = simulate(sure, Traffic(np.zeros(1), np.array([9]), np.array([60])), np.random.default_rng(0))
    alone = simulate_requests(Benchmark(certain, CycleTime(5.41), 1, 59), 1, np.random.default_rng(0))
    assert run.rows.finish_ms[0] - run.rows.first_token_ms[0] == pytest.approx(alone.time_ms[0, 0])


# -- scenarios ---------------------------------------------------------------------------------------------------------------


def test_scenarios_through_an_executor_are_those_in_this_process():
    compared = [server(POLICIES[name]) for name in ("fixed", "plain")]
    loads = [PoissonLoad(rate, 200, UniformLengths(20, 60), UniformLengths(30, 50)) for rate in (5.0, 20.0)]
    seen: list[tuple[int, int]] = []
    here = load_sweep(compared, loads, replicas=2, seed=3, progress=lambda *at: seen.append(at))
    assert seen[-1] == (8, 8)
    with ProcessPoolExecutor(2) as executor:
        there = load_sweep(compared, loads, replicas=2, seed=3, executor=executor)
    for at in (0, 1):
        mean = here.values(at, lambda s: s.e2e_ms.mean)
        assert mean.shape == (2, 2)
        assert np.array_equal(mean, there.values(at, lambda s: s.e2e_ms.mean))
        assert (mean[0] != mean[1]).all()
    assert load_sweep(compared, loads, replicas=1, seed=4).summaries[0][0][0].e2e_ms != here.summaries[0][0][0].e2e_ms
    with pytest.raises(ConfigurationError, match="at least one"):
        load_sweep([], loads)


def test_servers_are_compared_on_the_same_requests():
    def traffic(policy: str, rate: float) -> RequestRows:
        load = PoissonLoad(rate, 50, UniformLengths(20, 60), UniformLengths(30, 50))
        return Scenario(server(POLICIES[policy]), load, seed=7, replica=2).run().rows

    one, other, faster = traffic("fixed", 5.0), traffic("plain", 5.0), traffic("fixed", 10.0)
    assert np.array_equal(one.arrival_ms, other.arrival_ms)
    assert np.array_equal(one.output_len, other.output_len)
    np.testing.assert_allclose(faster.arrival_ms, one.arrival_ms / 2)


def test_the_crossover_lies_where_the_ratio_passes_one():
    rates_, plain = np.array([1.0, 2.0, 4.0]), np.full((3, 4), 100.0)
    ratio = np.array([0.5, 0.8, 1.25])[:, None] * np.array([0.98, 0.99, 1.01, 1.02])
    found = crossover(rates_, plain * ratio, plain)
    assert found.request_rate == pytest.approx(3.0, abs=0.01)  # log 0.8 = −log 1.25
    low, high = found.interval or (None, None)
    assert low is not None
    assert high is not None
    assert 2.9 < low < 3.0 < high < 3.1
    assert found.ahead
    assert found.pays_until == 2.0


def test_no_crossover_where_one_side_is_always_ahead_or_the_end_is_a_tie():
    rates_, plain = np.array([1.0, 2.0, 4.0]), np.full((3, 4), 100.0)
    scatter = np.array([0.98, 0.99, 1.01, 1.02])
    ahead = crossover(rates_, plain * np.array([0.5, 0.6, 0.7])[:, None] * scatter, plain)
    assert (ahead.request_rate, ahead.ahead, ahead.pays_until) == (None, True, 4.0)
    behind = crossover(rates_, plain * np.array([1.5, 1.6, 1.7])[:, None] * scatter, plain)
    assert (behind.request_rate, behind.ahead, behind.pays_until) == (None, False, None)
    tied = crossover(rates_, plain * np.array([0.5, 0.9, 1.001])[:, None] * scatter, plain)
    assert (tied.request_rate, tied.ahead, tied.pays_until) == (None, True, 2.0)
    slow = crossover(rates_, plain * np.array([1.001, 1.002, 1.3])[:, None] * scatter, plain)
    assert (slow.request_rate, slow.ahead, slow.pays_until, slow.behind_from) == (None, None, None, 4.0)
    one = crossover(rates_, plain[:, :1] * np.array([0.9, 1.1, 1.3])[:, None], plain[:, :1])
    assert (one.request_rate, one.ahead, one.behind_from) == (pytest.approx(1.5, abs=0.05), True, 2.0)


def test_a_replica_that_never_crosses_leaves_the_interval_open():
    rates_, plain = np.array([1.0, 2.0, 4.0]), np.full((3, 3), 100.0)
    ratio = np.array([[0.5, 0.5, 0.5], [0.9, 0.92, 0.9], [1.3, 1.2, 0.99]])
    shifted = ratio.copy()
    shifted[2, 2] = 1.1
    assert crossover(rates_, plain * shifted, plain).interval[1] is not None
    shifted[2, 2] = 0.999
    wide = np.vstack([shifted, [1.5, 1.5, 1.4]])
    found = crossover(np.array([1.0, 2.0, 4.0, 8.0]), np.full((4, 3), 100.0) * wide, np.full((4, 3), 100.0))
    assert found.interval is not None
    alone = crossover(rates_, 100 * ratio[:, :1], plain[:, :1])
    assert alone.request_rate is not None
    assert alone.interval is None


# -- policies, loads, prices -----------------------------------------------------------------------------------------------


def test_policies_by_batch_size():
    table = Policy.steps_by_batch([(8, 3), (1, 7), (32, 0)])
    chosen = [table.configurations[at].num_steps for at in table.by_batch(40)[[0, 1, 7, 8, 31, 32, 40]]]
    assert chosen == [7, 7, 7, 3, 3, 0, 0]
    assert table.deepest == SpecConfig(7, 1, 8)
    assert str(table) == "7/1/8, 8+: 3/1/4, 32+: plain decode"
    assert Policy.off_above(K3, 16).by_batch(17).tolist() == [0] * 17 + [1]
    assert Policy.fixed(PLAIN).deepest is None
    tree = Policy.off_above(SpecConfig(3, 4, 16), 8)  # a tree or nothing needs no two depths of one draw
    assert [spec.num_draft_tokens for spec in tree.configurations] == [16, 1]


@pytest.mark.parametrize(
    ("starts", "specs", "message"),
    [
        ((2,), (K3,), "start at 1"),
        ((1, 1), (K3, PLAIN), "ascend"),
        ((1,), (K3, PLAIN), "one a configuration"),
        ((1, 4), (SpecConfig(3, 4, 16), K3), "chains"),
        ((1, 4), (K3, SpecConfig(1, 1, 2, "mtp")), "one method"),
    ],
)
def test_tables_that_are_no_policy_are_refused(starts, specs, message):
    with pytest.raises(ConfigurationError, match=message):
        Policy(starts, specs)


def test_lengths_as_stated():
    draws = np.random.default_rng(0)
    assert set(Lengths.parsed("512").draw(10, draws)) == {512}
    uniform = Lengths.parsed("100-103").draw(4000, draws)
    assert set(uniform) == {100, 101, 102, 103}
    spread = Lengths.parsed("400~0.5").draw(100_000, draws)
    assert spread.mean() == pytest.approx(400, rel=0.01)
    assert spread.std() == pytest.approx(200, rel=0.02)
    assert (Lengths.parsed("100-103").mean, Lengths.parsed("400~0.5").mean) == (101.5, 400.0)
    for text in ("", "x", "5-", "9-3", "0", "100~", "100~0", "0.5~1"):
        with pytest.raises(ConfigurationError):
            Lengths.parsed(text)


def test_a_trace_is_read_in_order_of_arrival(csv):
    path = csv("arrival_ms,prompt_len,output_len", "1500,30,4", "1000,20,3")
    read = TraceLoad(read_trace(path)).traffic(np.random.default_rng(0))
    assert read.arrival_ms.tolist() == [0.0, 500.0]
    assert read.prompt_len.tolist() == [20, 30]
    assert read.output_len.tolist() == [3, 4]


def test_a_trace_as_spreadsheets_write_it(csv):
    path = csv("\ufeffarrival_ms, prompt_len , output_len,user", "5, 20,3,x", "9,30,4,y")
    assert read_trace(path).prompt_len.tolist() == [20, 30]


def test_every_fault_of_a_trace_is_named(csv, tmp_path):
    path = csv("arrival_ms,prompt_len,output_len", "1500,30,4", "-1,x,2.5")
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert [(fault.where.rpartition(", ")[2], fault.field) for fault in caught.value.faults] == [
        ("row 3", "arrival_ms"),
        ("row 3", "prompt_len"),
        ("row 3", "output_len"),
    ]
    long = csv("arrival_ms,prompt_len,output_len", "1,2,3,4", *["0,0,1"] * 30, name="long.csv")
    with pytest.raises(InputError, match=r"row 2: has more cells than the header.*(?s:.*)and 11 more faults"):
        read_trace(long)
    with pytest.raises(InputError, match="no column output_len"):
        read_trace(csv("arrival_ms,prompt_len", "1,2", name="short.csv"))
    with pytest.raises(InputError, match="no rows"):
        read_trace(csv("arrival_ms,prompt_len,output_len", name="empty.csv"))
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    "wrong",
    [
        {"arrival_ms": np.array([1.0, 0.0])},
        {"prompt_len": np.array([0, 1])},
        {"output_len": np.array([1])},
        {"concurrency": 0},
    ],
)
def test_traffic_that_cannot_be_is_refused(wrong):
    right = {"arrival_ms": np.zeros(2), "prompt_len": np.ones(2, int), "output_len": np.ones(2, int)}
    with pytest.raises(ConfigurationError):
        Traffic(**(right | wrong))


@pytest.fixture(scope="module")
def model():
    return fit(phase_runs(Truth(), (2, 4, 8), (1, 4, 16))).model


def test_steps_are_priced_by_the_model(model):
    truth = Truth()
    times = StepTimes.of(model, Policy.off_above(K3, 8), 16, (100.0, 200.0))
    expected = [[truth.cycle(batch, 4) for batch in range(1, 17)], [truth.decode(batch) for batch in range(1, 17)]]
    np.testing.assert_allclose(times.fixed_ms[:, 1:], expected, rtol=1e-6)
    assert (times.kv_ms == 0).all()
    assert not times.extrapolated.any()
    assert StepTimes.of(model, Policy.fixed(K3), 20, (1, 2)).extrapolated[0].tolist() == [False] * 17 + [True] * 4


def test_prefill_is_verifys_slope_unless_stated(model):
    assumed = Prefill.of(model)
    assert assumed.fixed_ms == pytest.approx(14.3)  # plain decode of one request
    assert assumed.ms_per_token == pytest.approx(0.8)
    assert "ASSUMED are 800 ms per 1,000 tokens, verify's slope from 64 to 128 tokens, too few" in assumed.assumed
    stated = Prefill.of(model, None, 40.0)
    assert (stated.ms_per_token, stated.assumed) == (0.04, "")


def test_a_cache_that_is_read_costs_by_its_tokens():
    """4 ms, 0.02 ms a token and 0.03 ms for a thousand tokens of cache, by hand in test_context_and_host."""
    reading = fit(many_contexts()).model
    times = StepTimes.of(reading, Policy.fixed(K3), 16, (1000.0, 3000.0))
    np.testing.assert_allclose(times.kv_ms[0, 1:], 3e-5, rtol=1e-6)
    np.testing.assert_allclose(times.fixed_ms[0, 1:], 4 + 0.02 * 4 * np.arange(1, 17), rtol=1e-6)
    assert not times.extrapolated[0, 1:].any()
    assert StepTimes.of(reading, Policy.fixed(K3), 16, (1000.0, 30000.0)).extrapolated[0, 1:].all()
    asked = StepTimes.of(replace(reading, asked_context=2000), Policy.fixed(K3), 16, (1000.0, 3000.0))
    np.testing.assert_allclose(asked.fixed_ms[0, 1:], 4 + (0.08 + 0.06) * np.arange(1, 17), rtol=1e-6)
    assert (asked.kv_ms == 0).all()


def test_a_batch_without_a_baseline_is_refused_by_name(campaign_model):
    with pytest.raises(NotIdentifiedError, match=r"measured at batch_size 1, asked is 2.*max_batch_size"):
        StepTimes.of(campaign_model, Policy.fixed(PLAIN), 4, (100, 200))


# -- a question --------------------------------------------------------------------------------------------------------------


def test_a_question_is_completed_from_the_runs(model):
    question = Question(Policy.off_above(K3, 8), TreeLaw(0.7, 1.0, 0.6), 50.0, 30.0)
    compared, why = servers(model, question)
    assert [str(each.policy) for each in compared] == ["3/1/4, 9+: plain decode", "3/1/4", "plain decode"]
    assert why == ""
    assert {each.max_batch_size for each in compared} == {16}  # the largest measured
    loads = rates(compared, UniformLengths(50, 50), UniformLengths(30, 30), 100)
    most = max(capacity(each, 50.0, 30.0) for each in compared)
    assert loads[-1].request_rate == pytest.approx(most, rel=0.01)
    assert [
        load.request_rate for load in rates(compared, UniformLengths(5, 5), UniformLengths(5, 5), 9, [3.0, 1.0])
    ] == [1, 3]


def test_without_a_baseline_the_policy_is_simulated_alone(model):
    bare = replace(model, settings=tuple(replace(s, decode_batches=()) for s in model.settings))
    question = Question(Policy.fixed(K3), ConstantRate(0.7), 20.0, 30.0, Limits(max_batch_size=4), 0.0, 30.0)
    load = PoissonLoad(1.0, 60, UniformLengths(20, 20), UniformLengths(30, 30))
    done = study(bare, question, lambda _: [load], replicas=2)
    assert done.plain is None
    assert "no plain-decode baseline" in done.no_baseline
    assert done.crossover(0) is None


def test_contexts_that_the_runs_do_not_tell_of_are_said():
    runs = phase_runs(Truth(), (2, 4, 8), (1, 4))
    runs = [replace(run, workload=replace(run.workload, context_len=200)) for run in runs]
    question = Question(Policy.fixed(K3), ConstantRate(0.7), 4000.0, 30.0, Limits(), 0.0, 30.0)
    load = PoissonLoad(0.5, 20, UniformLengths(4000, 4000), LogNormalLengths(30, 0.1))
    done = study(fit(runs).model, question, lambda _: [load], replicas=1)
    assert any("EXTRAPOLATED: requests hold 4000 to 4030" in note for note in done.notes)
