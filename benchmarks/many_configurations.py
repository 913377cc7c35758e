"""A million configurations in one call, beside a Python loop over the same functions, in one run.

python benchmarks/many_configurations.py
"""

from __future__ import annotations

import time

import numpy as np

from specsim import SpecConfig, Workload, break_even, fit, load_campaign, predict

MANY, FEW = 1_000_000, 200


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    model = fit(load_campaign()).model
    steps = np.random.default_rng(0).integers(1, 16, MANY)
    for name, ask in (("predict", lambda s: predict(model, s, Workload(1), 1.0, "default")),
                      ("break_even", lambda s: break_even(model, s, Workload(1), "default"))):  # fmt: skip
        together = timed(lambda ask=ask: ask(SpecConfig(steps, 1, steps + 1))) / MANY
        alone = timed(lambda ask=ask: [ask(SpecConfig(int(s), 1, int(s) + 1)) for s in steps[:FEW]]) / FEW
        print(
            f"{name}: {together * MANY:.2f} s for {MANY:,} configurations, {alone / together:.0f} times a loop's rate"
        )


if __name__ == "__main__":
    main()
