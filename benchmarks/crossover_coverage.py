"""How often the interval of a crossover holds the crossover of a far longer run, by requests a replica.

Run: python -m benchmarks.crossover_coverage (7 minutes of processor time)
"""

from __future__ import annotations

from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace

import numpy as np

from specsim.quantities import LEVEL, FloatArray
from specsim.simulation.arrivals import PoissonLoad, UniformLengths
from specsim.simulation.scenarios import Crossover, crossover, load_sweep
from tests.unit.test_serving import POLICIES, server

RATES = np.array([20.0, 26.0, 29.0, 30.5, 32.0, 33.5, 35.0, 37.0, 40.0, 50.0])
PROMPTS, OUTPUTS = UniformLengths(20, 60), UniformLengths(30, 50)
REPLICAS, STUDIES, LONG = 5, 60, 20_000
REQUESTS = (400, 1000, 2000, 4000)


def times(count: int, replicas: int, seed: int, executor: Executor) -> tuple[FloatArray, FloatArray]:
    """Mean end-to-end times with three drafts and in plain decode, each of shape (rates, replicas).

    A draft costs 0.75 ms more a request and cycle than in the tests, so that it stops paying at 34 a second.
    """
    limits = {"max_batch_size": 64, "max_batched_tokens": 1024}
    drafts, plain = (server(POLICIES[name], **limits) for name in ("fixed", "plain"))
    dear = drafts.times.fixed_ms + 0.75 * np.arange(drafts.times.fixed_ms.shape[1])
    servers = [replace(drafts, times=replace(drafts.times, fixed_ms=dear)), plain]
    loads = [PoissonLoad(rate, count, PROMPTS, OUTPUTS) for rate in RATES.tolist()]
    found = load_sweep(servers, loads, replicas=replicas, seed=seed, executor=executor)
    return found.values(0, lambda s: s.e2e_ms.mean), found.values(1, lambda s: s.e2e_ms.mean)


def holds(found: Crossover, rate: float) -> bool | None:
    """Whether its interval holds a rate, None where it has none."""
    if found.interval is None:
        return None
    low, high = found.interval
    return (low is None or low <= rate) and (high is None or rate <= high)


def main() -> None:
    with ProcessPoolExecutor() as executor:
        long = crossover(RATES, *times(LONG, REPLICAS, 10**6, executor)).request_rate
        if long is None:
            raise SystemExit("no crossover in the long run")
        print(f"crossover of {REPLICAS} replicas of {LONG:,} requests: {long:.2f} a second")
        for count in REQUESTS:
            ours, theirs = (
                each.reshape(-1, STUDIES, REPLICAS) for each in times(count, STUDIES * REPLICAS, 7, executor)
            )
            studies = [crossover(RATES, ours[:, at], theirs[:, at]) for at in range(STUDIES)]
            held = [told for each in studies if (told := holds(each, long)) is not None]
            mean = np.mean([each.request_rate for each in studies if each.request_rate is not None])
            print(
                f"{count:,} requests a replica: {sum(held)} of {len(held)} intervals at {LEVEL:.0%} hold it"
                f" ({STUDIES - len(held)} studies have none); crossovers are {mean:.2f} on average"
            )


if __name__ == "__main__":
    main()
