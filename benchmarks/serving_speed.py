"""How fast serving is simulated: one hour at 20 requests a second, on one core, by policy.

    python -m benchmarks.serving_speed

Times stand beside that of `python -c "import numpy"` in the same run, so that figures of different machines compare, and
the rate beside that of a plain simulator that takes one step after another (the one that the tests compare with).
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

import numpy as np

from benchmarks.groups import DENSE
from benchmarks.sweep_speed import ONE_THREAD, shell_seconds
from specsim import SpecConfig, fit
from specsim.acceptance import ConstantRate
from specsim.cost.terms import PLAIN
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import PoissonLoad, UniformLengths
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes
from specsim.simulation.serving import Server, simulate
from specsim.simulation.summary import Summary
from tests.unit.test_serving import StepByStep

RATE, HOUR_S = 20.0, 3600
PROMPT, OUTPUT = UniformLengths(128, 128), UniformLengths(256, 256)
K3 = SpecConfig(3, 1, 4, "eagle3")
POLICIES = {
    "plain decode": Policy.fixed(PLAIN),
    "three drafts": Policy.fixed(K3),
    "three drafts, off above 12": Policy.off_above(K3, 12),
    "seven, three, one, none by batch": Policy.steps_by_batch([(1, 7), (8, 3), (20, 1), (40, 0)], "eagle3"),
}


def main() -> None:
    """One process a policy, for its peak memory and for speed per core."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], float(sys.argv[2]))
        return
    numpy = shell_seconds("import numpy")
    print(f'python -c "import numpy": {numpy * 1000:.0f} ms, the unit of what follows')
    for name in POLICIES:
        command = [sys.executable, "-m", "benchmarks.serving_speed", name, str(numpy)]
        subprocess.run(command, env={**os.environ, **ONE_THREAD}, check=True)


def measure(name: str, numpy: float) -> None:
    """Simulate an hour under a policy, its statistics included, and a minute step by step."""
    server, hour = server_of(POLICIES[name]), load(HOUR_S)
    start = time.process_time()
    traffic = hour.traffic(np.random.default_rng(0))
    run = simulate(server, traffic, np.random.default_rng(1))
    told = Summary.of(server, run)
    seconds = time.process_time() - start
    steps = int(np.maximum(run.steps.cycles, 1).sum())
    plain = step_by_step(server)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)
    print(
        f"{name}: {traffic.arrival_ms.size:,} requests, {steps:,} steps at a mean batch of {told.mean_batch_size:.1f} in"
        f" {seconds:.2f} s = {seconds / numpy:.0f} × numpy, {HOUR_S / seconds:,.0f} × real time;"
        f" {steps / seconds / plain:.0f} × step by step; peak {peak:.0f} MiB"
    )


def step_by_step(server: Server) -> float:
    """Steps a second of a plain Python loop over steps and requests, over a minute of the same load."""
    start = time.process_time()
    simulator = StepByStep(server, load(60).traffic(np.random.default_rng(0)), seed=1).run()
    return simulator.steps / (time.process_time() - start)


def server_of(policy: Policy) -> Server:
    """The measured 8B server under a policy."""
    model = fit(DENSE.runs).model
    deepest = policy.deepest
    drawer = None if deepest is None else Drawer.of(ConstantRate(0.7), deepest)
    return Server(StepTimes.of(model, policy, 64, (128.0, 384.0)), policy, Prefill.of(model), drawer, 64)


def load(seconds: int) -> PoissonLoad:
    """So long a load."""
    return PoissonLoad(RATE, round(RATE * seconds), PROMPT, OUTPUT)


if __name__ == "__main__":
    main()
