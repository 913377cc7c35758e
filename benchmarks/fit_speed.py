"""How long a fit of 200 figures takes, and 1,000 resamples of it, beside numpy solving the same least squares.

Run: python -m benchmarks.fit_speed
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from specsim import fit
from tests.synthetic import Truth, lognormal, phase_runs

WIDTHS, BATCHES = (2, 3, 4, 6, 8, 12, 16, 20), (1, 2, 4, 8, 12, 16, 24, 32)
RESAMPLES, REPEATS = 1000, 5


def seconds(work: Callable[[], object]) -> float:
    """The least of a few wall times."""
    times = []
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    """Print the times and their ratios to one plain least-squares solution of as many rows."""
    runs = phase_runs(Truth(), WIDTHS, BATCHES, lognormal(1, 0.01))
    figures = sum(len(run.figures) for run in runs)
    fitted = fit(runs)
    columns = len(fitted.model.coefficients)
    generator = np.random.default_rng(0)
    design, times = generator.random((figures, columns)), generator.random(figures)
    plain = seconds(lambda: np.linalg.lstsq(design, times, rcond=None))
    for name, took in (
        (f"fit of {figures} figures, forms chosen", seconds(lambda: fit(runs))),
        (f"{RESAMPLES} resamples of it", seconds(lambda: fitted.resampled(RESAMPLES, np.random.default_rng(0)))),
    ):
        print(f"{name}: {took * 1000:.0f} ms, {took / plain:.0f} times one numpy lstsq of {figures} × {columns}")


if __name__ == "__main__":
    main()
