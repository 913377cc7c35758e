"""The serving simulator against a plain one that takes step after step and token after token, and against queueing theory."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from specsim import SpecConfig
from specsim.acceptance import ConstantRate, TreeLaw
from specsim.cost.terms import PLAIN
from specsim.errors import ConfigurationError
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import ClosedLoad, LogNormalLengths, PoissonLoad, Traffic, UniformLengths
from specsim.simulation.emissions import Emissions
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes
from specsim.simulation.serving import Server, ServingRun, simulate

K3, K7 = SpecConfig(3, 1, 4), SpecConfig(7, 1, 8)
PROMPTS, OUTPUTS = UniformLengths(20, 200), LogNormalLengths(40, 0.8)
POLICIES = {
    "plain": Policy.fixed(PLAIN),
    "fixed": Policy.fixed(K3),
    "off above": Policy.off_above(K3, 3),
    "table": Policy.steps_by_batch([(1, 7), (3, 3), (5, 1), (7, 0)]),
}


def times(policy: Policy, most: int = 64, kv_ms: float = 0.0) -> StepTimes:
    """Cycles of 5 ms, 0.13 more a request and 0.07 a verify token."""
    batch = np.arange(most + 1)
    rows = [5 + 0.13 * batch + 0.07 * batch * spec.num_draft_tokens for spec in policy.configurations]
    fixed = np.array(rows)
    return StepTimes(policy.configurations, fixed, np.full_like(fixed, kv_ms), np.zeros_like(fixed, dtype=bool))


def server(
    policy: Policy, *, rate: float = 0.7, kv_ms: float = 0.0, prefill: Prefill | None = None, **limits
) -> Server:
    deepest = policy.deepest
    law = ConstantRate(rate) if deepest is None or deepest.topk == 1 else TreeLaw(rate, 0.9, 0.6)
    spread = 0.2 if rate > 0 else 0.0
    drawer = None if deepest is None else Drawer.of(law, deepest, between_prompts=spread)
    limits = {"max_batch_size": 8, "max_batched_tokens": 256} | limits
    most = max(64, limits["max_batch_size"])
    return Server(times(policy, most, kv_ms), policy, prefill or Prefill(2.0, 0.03), drawer, **limits)


# -- a plain simulator: one step at a time, every token counted ------------------------------------------------------


class StepByStep:
    """What `Server` says, done naively: no stretch of steps is taken at once, nothing is looked up but the draws."""

    def __init__(self, server: Server, traffic: Traffic, seed: int) -> None:
        self.server, self.traffic = server, traffic
        specs = server.times.specs
        drawn = Emissions.drawn(server.drawer, specs, traffic.output_len, np.random.default_rng(seed))
        self.draws = [drawn.tokens[a:b].tolist() for a, b in zip(drawn.offset[:-1], drawn.offset[1:], strict=True)]
        count = traffic.output_len.size
        self.arrival = traffic.arrival_ms.tolist()
        self.sent = traffic.concurrency or count
        self.now, self.waiting, self.reading, self.running = 0.0, [], {}, []
        self.emitted, self.cycles, self.received = [0] * count, [0] * count, 0
        self.first, self.finish = [math.nan] * count, [math.nan] * count
        self.largest_cache = self.evicted = self.steps = 0

    def width(self, batch: int) -> int:
        return self.spec(batch).num_draft_tokens

    def spec(self, batch: int) -> SpecConfig:
        policy = self.server.policy
        return [s for start, s in zip(policy.from_batch, policy.specs, strict=True) if start <= max(batch, 1)][-1]

    def held(self) -> int:
        return sum(self.traffic.prompt_len[i] + self.emitted[i] for i in [*self.running, *self.reading])

    def run(self) -> StepByStep:
        while np.isnan(self.finish).any():
            while self.received < self.sent and self.arrival[self.received] <= self.now:
                self.waiting.append(self.received)
                self.received += 1
            room = math.inf if self.server.kv_tokens is None else self.server.kv_tokens
            while self.held() + len(self.running) * self.width(len(self.running)) > room:
                self.evict()
            self.admit(room)
            self.steps += bool(self.reading or self.running)
            if self.reading:
                self.prefill()
            elif self.running:
                self.decode(0.0)
            else:
                self.now = self.arrival[self.received]
        return self

    def evict(self) -> None:
        self.evicted += 1
        if self.reading:
            victim = [*self.reading][-1]
            del self.reading[victim]
        else:
            victim = self.running.pop()
        self.waiting.insert(0, victim)

    def admit(self, room: float) -> None:
        server = self.server
        beside = len(self.running) * self.width(len(self.running)) if server.chunked_prefill else 0
        while self.waiting:
            i = self.waiting[0]
            tokens = int(self.traffic.prompt_len[i]) + self.emitted[i]
            budget = server.max_batched_tokens - beside - sum(self.reading.values())
            batch = len(self.running) + len(self.reading) + 1
            written = max(batch * self.width(batch), len(self.running) * self.width(len(self.running)))
            full = batch > server.max_batch_size or self.held() + tokens + written > room
            if full or budget <= 0 or (not server.chunked_prefill and self.reading and tokens > budget):
                return
            self.reading[self.waiting.pop(0)] = tokens

    def prefill(self) -> None:
        chunked = self.server.chunked_prefill
        budget = self.server.max_batched_tokens - len(self.running) * self.width(len(self.running))
        total = 0
        for i in self.reading:
            piece = min(self.reading[i], budget - total) if chunked else self.reading[i]
            self.reading[i] -= piece
            total += piece
        extra = total * self.server.prefill.ms_per_token
        if chunked and self.running:
            self.decode(extra)
        else:
            self.now += self.server.prefill.fixed_ms + extra
        for i in [i for i, left in self.reading.items() if left == 0]:
            del self.reading[i]
            self.running.append(i)
            self.emit(i, 1)

    def decode(self, extra: float) -> None:
        batch, spec = len(self.running), self.spec(len(self.running))
        self.largest_cache = max(self.largest_cache, self.held() + batch * spec.num_draft_tokens)
        at = self.server.times.specs.index(spec)
        self.now += self.server.times.fixed_ms[at, batch] + self.server.times.kv_ms[at, batch] * self.kv() + extra
        for i in self.running[:]:
            tokens = min(self.draws[i][self.cycles[i]], spec.num_steps + 1) if spec.num_steps else 1
            self.cycles[i] += 1
            self.emit(i, tokens)

    def kv(self) -> int:
        return sum(self.traffic.prompt_len[i] + self.emitted[i] for i in self.running)

    def emit(self, i: int, tokens: int) -> None:
        if math.isnan(self.first[i]):
            self.first[i] = self.now
        self.emitted[i] = min(self.emitted[i] + tokens, int(self.traffic.output_len[i]))
        if self.emitted[i] == self.traffic.output_len[i]:
            self.running.remove(i)
            self.finish[i] = self.now
            if self.traffic.concurrency is not None and self.sent < len(self.arrival):
                self.arrival[self.sent] = self.now
                self.sent += 1


def same(run: ServingRun, plain: StepByStep, tolerance: float = 1e-9) -> None:
    assert run.rows.cycles.tolist() == plain.cycles
    np.testing.assert_allclose(run.rows.first_token_ms, plain.first, rtol=tolerance)
    np.testing.assert_allclose(run.rows.finish_ms, plain.finish, rtol=tolerance)
    assert plain.emitted == run.rows.output_len.tolist()


@pytest.mark.parametrize(("policy", "chunked"), [*product(POLICIES, (True, False))])
def test_stretches_of_steps_are_the_steps_one_by_one(policy, chunked):
    for seed, rate in enumerate((2.0, 12.0, 40.0)):  # seldom two at once; queues; past saturation
        traffic = PoissonLoad(rate, 300, PROMPTS, OUTPUTS).traffic(np.random.default_rng(seed))
        served = server(POLICIES[policy], chunked_prefill=chunked)
        same(simulate(served, traffic, np.random.default_rng(seed)), StepByStep(served, traffic, seed).run())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_closed_loop_is_the_steps_one_by_one(policy):
    traffic = ClosedLoad(6, 200, PROMPTS, OUTPUTS, apart_ms=0.25).traffic(np.random.default_rng(3))
    served = server(POLICIES[policy])
    run = simulate(served, traffic, np.random.default_rng(3))
    same(run, StepByStep(served, traffic, 3).run())
    in_flight = (run.rows.arrival_ms[:, None] <= run.rows.arrival_ms) & (
        run.rows.finish_ms[:, None] > run.rows.arrival_ms
    )
    assert in_flight.sum(axis=0)[6:].tolist() == [6] * 194


@pytest.mark.parametrize("chunked", [True, False])
def test_a_full_cache_makes_the_last_ones_wait_and_loses_no_token(chunked):
    """In plain decode a request's cache grows by one token a cycle, so that the plain simulator must agree exactly."""
    traffic = PoissonLoad(40.0, 200, PROMPTS, OUTPUTS).traffic(np.random.default_rng(5))
    served = server(POLICIES["plain"], chunked_prefill=chunked, kv_tokens=600)
    run, plain = simulate(served, traffic, np.random.default_rng(5)), StepByStep(served, traffic, 5).run()
    same(run, plain)
    assert run.preemptions == plain.evicted > 0
    assert 500 < plain.largest_cache <= 600


def test_drafts_need_room_in_the_cache():
    """Ten tokens of output after a prompt of 90 fit into 100 without drafts, into 107 with seven of them."""
    traffic = Traffic(np.zeros(1), np.array([90]), np.array([10]))
    assert simulate(server(POLICIES["plain"], kv_tokens=101), traffic, np.random.default_rng(0)).preemptions == 0
    with pytest.raises(ConfigurationError, match="108 tokens, drafts included, never fits into 107"):
        simulate(server(Policy.fixed(K7), kv_tokens=107), traffic, np.random.default_rng(0))


@pytest.mark.parametrize("policy", POLICIES)
def test_with_speculation_a_full_cache_still_serves_everyone(policy):
    traffic = PoissonLoad(40.0, 400, PROMPTS, OUTPUTS).traffic(np.random.default_rng(5))
    run = simulate(server(POLICIES[policy], kv_tokens=600, kv_ms=1e-4), traffic, np.random.default_rng(5))
    assert run.preemptions > 0
    assert (run.rows.finish_ms >= run.rows.first_token_ms).all()
    assert run.tokens_by_cycles == traffic.output_len.sum()


def test_reading_the_cache_counts_as_if_requests_grew_evenly():
    traffic = PoissonLoad(12.0, 300, PROMPTS, OUTPUTS).traffic(np.random.default_rng(0))
    served = server(POLICIES["fixed"], kv_ms=0.002)  # 1,000 tokens of cache take 2 ms of about 8
    run, plain = simulate(served, traffic, np.random.default_rng(0)), StepByStep(served, traffic, 0).run()
    assert np.mean(run.rows.e2e_ms) == pytest.approx(np.mean(np.array(plain.finish) - traffic.arrival_ms), rel=2e-3)
    exact = server(POLICIES["plain"], kv_ms=0.002)  # one token a cycle: evenly indeed
    same(simulate(exact, traffic, np.random.default_rng(0)), StepByStep(exact, traffic, 0).run())


# -- one request ---------------------------------------------------------------------------------------------------------


def test_one_request_is_its_prefill_and_its_cycles():
    """Cycles of one request take 5 + 0.13 + 0.07·4 = 5.41 ms, its prompt of 100 tokens 2 + 3 ms."""
    traffic = Traffic(np.zeros(1), np.array([100]), np.array([60]))
    run = simulate(server(POLICIES["fixed"]), traffic, np.random.default_rng(11))
    draws = np.random.default_rng(11)
    drawer = Drawer.of(ConstantRate(0.7), K3, between_prompts=0.2)
    kind = drawer.prompts(1, draws)
    emitted = np.cumsum(drawer.draw(np.repeat(kind, 60), draws))
    cycles = int(np.argmax(emitted >= 59)) + 1
    assert run.rows.cycles.tolist() == [cycles]
    assert run.rows.ttft_ms[0] == pytest.approx(5.0)
    assert run.rows.e2e_ms[0] == pytest.approx(5.0 + 5.41 * cycles)
    assert run.cut_tokens == emitted[cycles - 1] - 59
    assert run.accepted_drafts[0].sum() == cycles


# -- queueing theory -------------------------------------------------------------------------------------------------------


def waits(load: PoissonLoad, served: Server, replicas: int) -> np.ndarray:
    """Mean time until a request's prompt is read, by replica, the first tenth left out."""
    means = []
    for seed in range(replicas):
        run = simulate(served, load.traffic(np.random.default_rng([seed, 0])), np.random.default_rng([seed, 1]))
        late = slice(load.count // 10, None)
        means.append(np.mean((run.rows.admitted_ms - run.rows.arrival_ms)[late]))
    return np.array(means)


def one_step_time(dt: float, most: int, **limits) -> Server:
    """Plain decode whose steps take the same whatever the batch."""
    policy = POLICIES["plain"]
    steps = StepTimes(
        (PLAIN,), np.full((1, most + 1), dt), np.zeros((1, most + 1)), np.zeros((1, most + 1), dtype=bool)
    )
    return Server(steps, policy, Prefill(0.0, 0.0), max_batch_size=most, max_batched_tokens=10_000, **limits)


def test_one_at_a_time_with_outputs_of_one_length_is_m_d_1():
    """Pollaczek and Khinchine: W = ρ·s/(2·(1 − ρ)); s = 100 ms, ρ = 0.7 give 116.67 ms."""
    load = PoissonLoad(7.0, 10_000, UniformLengths(1, 1), UniformLengths(101, 101))
    measured = waits(load, one_step_time(1.0, 1), 10)
    error = measured.std(ddof=1) / math.sqrt(measured.size)
    assert error < 0.02 * 116.67
    assert abs(measured.mean() - 0.7 * 100 / (2 * 0.3)) < 3 * error


class GeometricLengths:
    """1 + a geometric number: exponential service, in steps."""

    def __init__(self, mean: float) -> None:
        self.mean = mean

    def draw(self, count: int, generator: np.random.Generator) -> np.ndarray:
        return 1 + generator.geometric(1 / self.mean, count)


def test_a_batch_whose_steps_cost_the_same_is_m_m_c():
    """Erlang's C: four servers of 200 ms at ρ = 0.8 let a request wait P·s/(c·(1 − ρ)) = 149.1 ms, P = 0.5964.

    A request joins at the end of a step, half a millisecond late on average.
    """
    offered = 3.2
    tail = offered**4 / math.factorial(4) / (1 - 0.8)
    wait = tail / (sum(offered**k / math.factorial(k) for k in range(4)) + tail) * 200 / (4 * 0.2)
    assert wait == pytest.approx(149.1, abs=0.1)
    load = PoissonLoad(16.0, 20_000, UniformLengths(1, 1), GeometricLengths(200))
    measured = waits(load, one_step_time(1.0, 4), 10)
    error = measured.std(ddof=1) / math.sqrt(measured.size)
    assert error < 0.04 * wait
    assert abs(measured.mean() - 0.5 - wait) < 3 * error


# -- what never changes ----------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_rows():
    def run(seed: int) -> ServingRun:
        traffic = PoissonLoad(10.0, 100, PROMPTS, OUTPUTS).traffic(np.random.default_rng([seed, 0]))
        return simulate(server(POLICIES["table"]), traffic, np.random.default_rng([seed, 1]))

    one, again, other = run(1), run(1), run(2)
    assert np.array_equal(one.rows.finish_ms, again.rows.finish_ms)
    assert not np.array_equal(one.rows.finish_ms, other.rows.finish_ms)


def test_an_account_that_does_not_add_up_is_refused():
    traffic = PoissonLoad(10.0, 50, PROMPTS, OUTPUTS).traffic(np.random.default_rng(0))
    run = simulate(server(POLICIES["fixed"]), traffic, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="tokens emitted"):
        replace(run, cut_tokens=run.cut_tokens + 1)
    with pytest.raises(AssertionError, match="Little"):
        replace(run, steps=replace(run.steps, decoding=run.steps.decoding + 1))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_batch_size": 65}, "from 1 to the 64 that are priced"),
        ({"max_batched_tokens": 32}, "verifies 32 tokens"),
    ],
)
def test_limits_that_nothing_fits_in_are_refused(limits, message):
    with pytest.raises(ConfigurationError, match=message):
        Server(
            times(POLICIES["fixed"]),
            POLICIES["fixed"],
            Prefill(0, 0),
            Drawer.of(ConstantRate(0.7), K3),
            **({"max_batch_size": 8} | limits),
        )


def test_a_drawer_of_another_configuration_is_refused():
    with pytest.raises(ConfigurationError, match="deepest"):
        Server(times(POLICIES["fixed"]), POLICIES["fixed"], Prefill(0, 0), Drawer.of(ConstantRate(0.7), K7), 8)
