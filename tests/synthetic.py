"""Runs made from a known cost model, for recovery and laws; the arithmetic here shares no code with specsim."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specsim import Run, Setup, SpecConfig, Workload
from specsim.cost.model import CostModel
from specsim.runs.run import Figure


@dataclass(frozen=True)
class Truth:
    verify_fixed_ms: float = 20.0
    verify_per_token_ms: float = 0.8
    draft_per_forward_ms: float = 0.4
    other_ms: float = 0.7
    decode_fixed_ms: float = 14.0
    decode_per_token_ms: float = 0.3
    draft_fixed_ms: float = 0.3
    draft_per_token_ms: float = 0.1

    def verify(self, batch: int, width: int) -> float:
        return self.verify_fixed_ms + self.verify_per_token_ms * batch * width

    def draft(self, batch: int, width: int) -> float:
        steps = width - 1  # a chain; llama.cpp's count, one forward of a token a request and step
        return self.draft_fixed_ms + (self.draft_per_forward_ms + self.draft_per_token_ms * batch) * steps

    def cycle(self, batch: int, width: int) -> float:
        return self.verify(batch, width) + self.draft(batch, width) + self.other_ms

    def decode(self, batch: int) -> float:
        return self.decode_fixed_ms + self.decode_per_token_ms * batch


def run(name: str, batch: int, width: int | None, nccl: str = "s", **times: float) -> Run:
    spec = None if width is None else SpecConfig(width - 1, 1, width)
    figures = {key: Figure(value) for key, value in times.items()}
    return Run(name, Setup(), nccl, Workload(batch), spec is not None, spec, figures)


def phase_runs(truth: Truth, widths: tuple[int, ...], batches: tuple[int, ...], noise=None) -> list[Run]:
    """Verify, draft and whole-cycle times at each width and batch, a baseline at each batch; noise multiplies."""
    draw = (lambda: 1.0) if noise is None else (lambda: float(noise()))
    runs = [
        run(
            f"{batch}x{width}",
            batch,
            width,
            verify_ms=truth.verify(batch, width) * draw(),
            draft_ms=truth.draft(batch, width) * draw(),
            cycle_ms=truth.cycle(batch, width) * draw(),
        )
        for batch in batches
        for width in widths
    ]
    return runs + [run(f"plain {b}", b, None, decode_ms=truth.decode(b) * draw()) for b in batches]


def at_noise(model: CostModel, noise: float) -> CostModel:
    """The model with another noise, its covariance scaled along, and the quantile of an assumed one."""
    factor = (noise / model.noise.relative) ** 2
    covariance = tuple(tuple(value * factor for value in row) for row in model.covariance)
    return replace(model, covariance=covariance, noise=replace(model.noise, relative=noise, residual_dof=0))


def lognormal(seed: int, sigma: float):
    generator = np.random.default_rng(seed)
    return lambda: np.exp(generator.normal(0.0, sigma))
