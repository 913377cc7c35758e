"""Continuous batching under load: arrivals, prefill, cycles of the whole batch, retirements (eq. 24).

One event is one engine step, priced from a table. Between two events that change the batch, steps are taken together:
what every cycle emits is drawn beforehand, so that it is known after how many cycles a request ends.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, final

import numpy as np

from specsim.errors import ConfigurationError
from specsim.metrics import RequestRows
from specsim.quantities import FloatArray, IntArray
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import Traffic
from specsim.simulation.emissions import Emissions
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes

_ROUNDING = 1e-6  # tokens: of a sum of many


@final
@dataclass(frozen=True)
class Server:
    """A server to simulate: what its steps take, what it drafts when, and its limits.

    `drawer` draws the cycles of the policy's deepest configuration, None where nothing drafts. `max_batch_size`
    requests run together. With `chunked_prefill` prompts are read beside the cycles of running requests, in pieces that
    fill a step to `max_batched_tokens` (vLLM); without, whole prompts have steps of their own, before any decoding, up
    to that many tokens (SGLang's default). `kv_tokens` is the KV cache's size, None for one that is never full: a step
    needs room for every token that it may write, drafts included, and the request that came last makes way if there is
    none, to be prefilled again. Raises ConfigurationError for limits that nothing fits in.
    """

    times: StepTimes
    policy: Policy
    prefill: Prefill
    drawer: Drawer | None = None
    max_batch_size: int = 256
    max_batched_tokens: int = 8192
    chunked_prefill: bool = True
    kv_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_batch_size <= self.times.max_batch_size:
            raise ConfigurationError(f"max_batch_size is from 1 to the {self.times.max_batch_size} that are priced")
        deepest = self.policy.deepest
        most = None if deepest is None else int(deepest.max_accept_length)
        if (None if self.drawer is None else self.drawer.max_accept_length) != most:
            raise ConfigurationError("the drawer is not that of the policy's deepest configuration")
        if self.max_batched_tokens <= self.most_cycle_tokens:
            raise ConfigurationError(
                f"max_batched_tokens {self.max_batched_tokens} leaves no prompt any room beside a full batch, which"
                f" verifies {self.most_cycle_tokens} tokens: allow more, or a smaller max_batch_size"
            )

    @property
    def most_cycle_tokens(self) -> int:
        """The most tokens that one cycle can verify."""
        by_batch = self.policy.by_batch(self.max_batch_size)
        widths = np.array([int(spec.num_draft_tokens) for spec in self.times.specs])
        return int((np.arange(self.max_batch_size + 1) * widths[by_batch]).max())


@final
@dataclass(frozen=True)
class Steps:
    """What the engine did, in order: stretches of equal steps, columns of shape (stretches,).

    Times [ms]; `cycles` decode cycles of `decoding` requests (0 in a step that only reads prompts) under the
    configuration of that index, `prefilling` requests and `prompt_tokens` read beside them.
    """

    start_ms: FloatArray
    duration_ms: FloatArray
    cycles: IntArray
    decoding: IntArray
    configuration: IntArray
    prefilling: IntArray
    prompt_tokens: IntArray


@final
@dataclass(frozen=True)
class ServingRun:
    """What a simulated server did: one row a request, what the engine ran, and cycles by what they emitted.

    `accepted_drafts[c]` counts the cycles of single requests under configuration c that accepted 0, 1 … drafts;
    `cut_tokens` were emitted by last cycles beyond the requests' ends, `prefills` prompts were read to their end.
    `preemptions` times a request had to make way, and waited again, `away_ms` in all.
    """

    rows: RequestRows
    steps: Steps
    accepted_drafts: tuple[IntArray, ...]
    cut_tokens: int
    prefills: int
    preemptions: int
    away_ms: float

    def __post_init__(self) -> None:
        if self.tokens_by_cycles != int(self.rows.output_len.sum()):
            raise AssertionError(f"{self.tokens_by_cycles} tokens emitted, {self.rows.output_len.sum()} asked for")
        by_rows, by_steps = self.in_service_ms
        if not math.isclose(by_rows, by_steps, rel_tol=1e-6, abs_tol=1e-3):
            raise AssertionError(f"Little's law: requests were in service for {by_rows} ms, the batch held {by_steps}")

    @property
    def tokens_by_cycles(self) -> int:
        """Tokens emitted, counted by cycles and prefills: conservation says that they are the outputs' lengths."""
        cycles = sum(int((counts * np.arange(1, counts.size + 1)).sum()) for counts in self.accepted_drafts)
        return cycles + self.prefills - self.cut_tokens

    @property
    def in_service_ms(self) -> tuple[float, float]:
        """Time in service summed over requests, and the batch summed over time: equal by Little's law."""
        by_rows = (self.rows.finish_ms - self.rows.admitted_ms).sum() - self.away_ms
        batch = self.steps.decoding + self.steps.prefilling
        return float(by_rows), float((batch * self.steps.duration_ms).sum())


def simulate(server: Server, traffic: Traffic, generator: np.random.Generator) -> ServingRun:
    """Serve all requests of a traffic until the last is done (eq. 24).

    Raises ConfigurationError where one of them can never be served.
    """
    return _Engine(server, traffic, generator).run()


class _Engine:
    """The state between two events. Lists, not arrays, hold what is read one element at a time."""

    def __init__(self, server: Server, traffic: Traffic, generator: np.random.Generator) -> None:
        self.server, self.traffic, self.count = server, traffic, traffic.arrival_ms.size
        specs = server.times.specs
        self.emissions = Emissions.drawn(server.drawer, specs, traffic.output_len, generator)
        self.width = [int(spec.num_draft_tokens) for spec in specs]
        self.fixed_ms, self.kv_ms = server.times.fixed_ms.tolist(), server.times.kv_ms.tolist()
        self.by_batch: list[int] = server.policy.by_batch(server.max_batch_size).tolist()
        self.room: float = math.inf if server.kv_tokens is None else server.kv_tokens
        self._require_room()
        self.prompt: list[int] = traffic.prompt_len.tolist()
        self.output: list[int] = traffic.output_len.tolist()
        start = self.emissions.offset[:-1]
        self.fresh = [self.emissions.cycles(at, start, traffic.output_len - 1).tolist() for at in range(len(specs))]
        self.used = [np.zeros(self.emissions.offset[-1] + 1, dtype=np.int8) for _ in specs]

        self.now, self.cycle, self.configuration = 0.0, 0, self.by_batch[1]
        self.arrival = traffic.arrival_ms.tolist()
        self.sent = self.count if traffic.concurrency is None else traffic.concurrency
        self.received = self.done = self.cut = self.preemptions = self.prefills = self.admissions = 0
        self.away_ms = 0.0
        self.away_since: dict[int, float] = {}
        self.waiting: deque[int] = deque()
        self.ends: list[tuple[int, int]] = []  # (cycle after which a running request is done, request)
        self.reading: list[int] = []  # requests whose prompts this and the next steps read, in order
        self.left = [0] * self.count  # of a prompt
        self.kv = self.kv_growth = 0.0  # of the running requests: tokens, and tokens a cycle
        zeros = [0] * self.count
        self.emitted, self.since, self.cycles = zeros[:], zeros[:], zeros[:]
        self.position: list[int] = start.tolist()
        self.growth = [0.0] * self.count
        self.admitted, self.first, self.finish = ([math.nan] * self.count for _ in range(3))
        self.order = zeros[:]  # of admission
        self.log: list[tuple[float, float, int, int, int, int, int]] = []

    def _require_room(self) -> None:
        most = self.traffic.prompt_len + self.traffic.output_len + max(self.width)
        if most.max() > self.room:
            raise ConfigurationError(
                f"a request of {most.max()} tokens, drafts included, never fits into {self.room:g} tokens of KV cache"
            )

    def run(self) -> ServingRun:
        while self.done < self.count:
            self.receive()
            self.make_room()
            self.admit()
            if self.reading:
                self.step_with_prefill()
            elif self.ends:
                self.decode(self.stretch())
            else:
                self.now = max(self.now, self.arrival[self.received])
        return self.result()

    # -- queue -----------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Queue what has arrived by now."""
        while self.received < self.sent and self.arrival[self.received] <= self.now:
            self.waiting.append(self.received)
            self.received += 1

    def admit(self) -> None:
        """Admit requests in order while the batch, the KV cache and the step have room."""
        budget = self.budget() - sum(self.left[i] for i in self.reading)
        while self.waiting and budget > 0:
            i = self.waiting[0]
            tokens = self.prompt[i] + self.emitted[i]
            running = len(self.ends) + len(self.reading) + 1
            if running > self.server.max_batch_size or not self.fits(tokens, running):
                return
            if not self.server.chunked_prefill and self.reading and tokens > budget:
                return
            self.waiting.popleft()
            self.reading.append(i)
            self.left[i] = tokens
            self.order[i] = self.admissions = self.admissions + 1
            budget -= tokens
            if i in self.away_since:
                self.away_ms += self.now - self.away_since.pop(i)
            else:
                self.admitted[i] = self.now

    def budget(self) -> int:
        """Prompt tokens that the next step can read."""
        beside = len(self.ends) * self.width[self.configuration] if self.server.chunked_prefill else 0
        return self.server.max_batched_tokens - beside

    def fits(self, tokens: int, running: int) -> bool:
        """Whether the cache holds so many more tokens, and what a cycle may write: of those running now, then of all."""
        now: int = len(self.ends) * self.width[self.configuration]
        written = max(now, running * self.width[self.by_batch[running]])
        return self.held() + tokens + written <= self.room

    def held(self) -> float:
        """Tokens in the KV cache; a prompt that is being read holds all of its place."""
        return self.kv + sum(self.prompt[i] + self.emitted[i] for i in self.reading)

    # -- steps -----------------------------------------------------------------------------------------------------

    def step_with_prefill(self) -> None:
        """One step that reads prompts: beside a cycle of the running requests where prefill is chunked, else alone."""
        budget, tokens = self.budget(), 0
        whole = not self.server.chunked_prefill
        for i in self.reading:
            piece = self.left[i] if whole else min(self.left[i], budget - tokens)
            self.left[i] -= piece
            tokens += piece
        extra = tokens * self.server.prefill.ms_per_token
        prefilling = self.reading[:]
        self.reading = [i for i in prefilling if self.left[i]]
        if self.ends and not whole:
            self.decode(1, extra, len(prefilling), tokens)
        else:
            self.advance(self.server.prefill.fixed_ms + extra, 0, len(self.ends), len(prefilling), tokens)
        for i in prefilling:
            if not self.left[i]:
                self.start(i)
        self.settle()

    def stretch(self) -> int:
        """How many cycles the batch stays as it is: to the next end, arrival that can be admitted, or full cache."""
        most = self.ends[0][0] - self.cycle
        batch = len(self.ends)
        if self.kv_growth > 0 and self.room < math.inf:
            spare = self.room - batch * self.width[self.configuration] - self.kv + _ROUNDING
            most = min(most, max(int(spare // self.kv_growth), 0) + 1)
        if self.received < self.sent and batch < self.server.max_batch_size and not self.waiting:
            first, rise = self.cost()
            most = min(most, _steps_until(self.arrival[self.received] - self.now, first, rise))
        return most

    def cost(self) -> tuple[float, float]:
        """What the next cycle takes, and by how much each further one takes longer [ms]."""
        batch = len(self.ends)
        per_token = self.kv_ms[self.configuration][batch]
        return self.fixed_ms[self.configuration][batch] + per_token * self.kv, per_token * self.kv_growth

    def decode(self, cycles: int, extra: float = 0.0, prefilling: int = 0, tokens: int = 0) -> None:
        """Run so many cycles of the batch, and retire what ends with the last of them."""
        first, rise = self.cost()
        duration = cycles * first + rise * (cycles * (cycles - 1) / 2) + extra
        self.cycle += cycles
        self.kv += cycles * self.kv_growth
        self.advance(duration, cycles, len(self.ends), prefilling, tokens)
        ended = False
        while self.ends and self.ends[0][0] == self.cycle:
            self.retire(heappop(self.ends)[1])
            ended = True
        if ended and not prefilling:
            self.settle()

    def advance(self, duration: float, cycles: int, decoding: int, prefilling: int, tokens: int) -> None:
        self.log.append((self.now, duration, cycles, decoding, self.configuration, prefilling, tokens))
        self.now += duration

    # -- requests ----------------------------------------------------------------------------------------------------

    def start(self, i: int) -> None:
        """A prompt has been read, which gives the next token: the request joins the batch, or is done."""
        again = self.emitted[i] > 0
        if not again:
            self.first[i] = self.now
        self.emitted[i] += 1
        self.prefills += 1
        remaining = self.output[i] - self.emitted[i]
        if remaining == 0:
            self.finished(i)
            return
        cycles = self.fresh[self.configuration][i]
        if again:
            cycles = int(self.emissions.cycles(self.configuration, self.position[i], remaining))
        self.since[i] = self.cycle
        self.growth[i] = remaining / cycles
        self.kv += self.prompt[i] + self.emitted[i]
        self.kv_growth += self.growth[i]
        heappush(self.ends, (self.cycle + cycles, i))

    def retire(self, i: int) -> None:
        """A running request has emitted its last token."""
        cycles = self.cycle - self.since[i]
        start = self.position[i]
        self.mark(start, start + cycles)
        emitted = self.emitted[i] + int(self.emissions.emitted(self.configuration, start, start + cycles))
        self.cut += emitted - self.output[i]
        self.cycles[i] += cycles
        self.kv_growth -= self.growth[i]
        self.kv -= self.prompt[i] + self.output[i]
        if not self.ends:
            self.kv = self.kv_growth = 0.0  # no rounding is carried on
        self.finished(i)

    def finished(self, i: int) -> None:
        self.finish[i] = self.now
        self.done += 1
        if self.traffic.concurrency is not None and self.sent < self.count:
            self.arrival[self.sent] = self.now
            self.sent += 1

    def mark(self, start: Any, end: Any) -> None:
        """Cycles start … end − 1 of the stream have run under this configuration."""
        used = self.used[self.configuration]
        used[start] += 1
        used[end] -= 1

    def make_room(self) -> None:
        """Let what was admitted last make way, until the cache has room for what a cycle may write."""
        while self.held() + len(self.ends) * self.width[self.configuration] > self.room + _ROUNDING:
            if self.reading:
                i = self.reading.pop()
            else:
                at = max(range(len(self.ends)), key=lambda at: self.order[self.ends[at][1]])
                i = self.ends.pop(at)[1]
                heapify(self.ends)
                self.kv -= self.prompt[i] + self.emitted[i] + self.growth[i] * (self.cycle - self.since[i])
                self.kv_growth -= self.growth[i]
                self.bring_up_to_date(np.array([i]))
            self.waiting.appendleft(i)
            self.away_since[i] = self.now
            self.preemptions += 1
            self.settle()

    def settle(self) -> None:
        """Go over to the configuration of this batch size, and see after how many of its cycles each request ends."""
        configuration = self.by_batch[len(self.ends)]
        if configuration == self.configuration:
            return
        if not self.ends:
            self.configuration = configuration
            return
        requests = np.array([i for _, i in self.ends])
        self.bring_up_to_date(requests)
        self.configuration = configuration
        emitted, position = (np.array([of[i] for i in requests]) for of in (self.emitted, self.position))
        remaining = self.traffic.output_len[requests] - emitted
        cycles = self.emissions.cycles(configuration, position, remaining)
        growth = remaining / cycles
        self.kv = float((self.traffic.prompt_len[requests] + emitted).sum())
        self.kv_growth = float(growth.sum())
        for i, each in zip(requests.tolist(), growth.tolist(), strict=True):
            self.growth[i] = each
        self.ends = list(zip((self.cycle + cycles).tolist(), requests.tolist(), strict=True))
        heapify(self.ends)

    def bring_up_to_date(self, requests: IntArray) -> None:
        """Count what running requests have emitted by now, and go on from there."""
        start = np.array([self.position[i] for i in requests])
        end = start + self.cycle - np.array([self.since[i] for i in requests])
        run = end > start
        self.mark(start[run], end[run])
        emitted = self.emissions.emitted(self.configuration, start, end)
        for i, tokens, at, cycles in zip(*(a.tolist() for a in (requests, emitted, end, end - start)), strict=True):
            self.emitted[i] += tokens
            self.position[i] = at
            self.since[i] = self.cycle
            self.cycles[i] += cycles

    # -- the end -----------------------------------------------------------------------------------------------------

    def result(self) -> ServingRun:
        columns = [np.array(column) for column in zip(*self.log, strict=True)]
        arrival, admitted, first, finish = map(np.array, (self.arrival, self.admitted, self.first, self.finish))
        lengths = self.traffic.prompt_len, self.traffic.output_len
        rows = RequestRows(arrival, admitted, first, finish, *lengths, np.array(self.cycles))
        counts = self.cut, self.prefills, self.preemptions, self.away_ms
        return ServingRun(rows, Steps(*columns), self._histograms(), *counts)

    def _histograms(self) -> tuple[IntArray, ...]:
        """Cycles by accepted drafts, by configuration: from which cycles of the stream ran, not from the rows."""
        counts = []
        for spec, used, running in zip(self.server.times.specs, self.used, self.emissions.running, strict=True):
            ran = np.cumsum(used[:-1], dtype=np.int8).astype(bool)
            if running is None:
                counts.append(np.array([ran.sum()]))
                continue
            most = int(spec.max_accept_length)
            tokens = np.minimum(self.emissions.tokens[ran], most)
            counts.append(np.bincount(tokens, minlength=most + 1)[1:])
        return tuple(counts)


def _steps_until(wait: float, first: float, rise: float) -> int:
    """The least number of steps that take at least `wait`, where the first takes `first` and each further `rise` more."""
    if rise * wait < 1e-9 * first * first:
        steps = wait / first
    else:
        half = rise / 2
        steps = (half - first + math.sqrt((first - half) ** 2 + 4 * half * wait)) / (2 * half)
    return max(math.ceil(steps - 1e-9), 1)
