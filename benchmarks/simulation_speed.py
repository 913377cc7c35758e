"""Simulated tokens per second and core, beside a plain Python loop over the same cycles and beside published rates.

Run: python -m benchmarks.simulation_speed
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np

from specsim.acceptance import ConstantRate, TreeLaw
from specsim.quantities import SpecConfig
from specsim.simulation import Benchmark, CycleTime, Drawer, simulate_requests

WANTED = 20e6  # tokens a second and core
PUBLISHED = (0.6e6, 0.19e6)  # tokens a second, as stated of other simulators of speculative decoding
TOKENS, LOOP_TOKENS, REPEATS = 40_000_000, 1_000_000, 3


@dataclass(frozen=True)
class Case:
    """What is simulated, by name."""

    name: str
    drawer: Drawer
    prompts: int
    output_len: int

    def benchmark(self) -> Benchmark:
        """The case as the simulator takes it."""
        return Benchmark(self.drawer, CycleTime(20.0, 0.01, 0.05), self.prompts, self.output_len)


CHAIN, TREE = SpecConfig(3, 1, 4), SpecConfig(8, 8, 60)
CASES = (
    Case("chain of 3, 5 prompts of 1,024 tokens, alike", Drawer.of(ConstantRate(0.6), CHAIN), 5, 1024),
    Case("the same, 20% spread between prompts", Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2), 5, 1024),
    Case("500 prompts of 64 tokens", Drawer.of(ConstantRate(0.6), CHAIN, between_prompts=0.2), 500, 64),
    Case(
        "tree of 8 steps, topk 8, 60 tokens", Drawer.of(TreeLaw(0.53, 0.83, 0.64), TREE, between_prompts=0.2), 5, 1024
    ),
)


def vectorised(case: Case) -> float:
    """Tokens per second of one core: the best of a few."""
    replicas = TOKENS // (case.prompts * case.output_len)
    benchmark, best = case.benchmark(), 0.0
    for repeat in range(REPEATS):
        generator, start = np.random.default_rng(repeat), process_time()
        rows = simulate_requests(benchmark, replicas, generator)
        best = max(best, int(rows.tokens.sum()) / (process_time() - start))
    return best


def plain_loop(case: Case) -> float:
    """Tokens per second of a loop that draws one cycle after another, a comparison a depth, and keeps a histogram."""
    survival = case.drawer.survival.tolist()
    generator, done, start = random.Random(0), 0, perf_counter()
    while done < LOOP_TOKENS:
        chances = survival[generator.randrange(len(survival))]
        left, histogram = case.output_len, [0] * (len(chances) + 1)
        while left > 0:
            luck, accepted = generator.random(), 0
            while accepted < len(chances) and luck < chances[accepted]:
                accepted += 1
            histogram[accepted] += 1
            left -= accepted + 1
        done += case.output_len
    return done / (perf_counter() - start)


def main() -> None:
    for case in CASES:
        fast, loop = vectorised(case), plain_loop(case)
        beside = ", ".join(f"{fast / rate:.0f} times {rate / 1e6:g} M" for rate in PUBLISHED)
        print(
            f"{case.name}: {fast / 1e6:.0f} M tokens/s and core ({fast / WANTED:.1f} times the {WANTED / 1e6:.0f} M wanted);"
            f" {fast / loop:.0f} times a plain loop ({loop / 1e6:.2f} M); {beside}"
        )


if __name__ == "__main__":
    main()
