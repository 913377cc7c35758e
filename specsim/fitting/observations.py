"""What runs say about a cycle, one equation per measured figure: a sum of phases equals a time (eq. 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specsim.cost.terms import PHASES, Cycle
from specsim.quantities import SpecConfig
from specsim.runs.run import Figure, Run

_SUM_OF_PARTS = 0.02
"""How far a stated cycle may lie from the sum of its stated phases before it is reported."""


@dataclass(frozen=True)
class Observation:
    """One equation: the phases in `phases` of this cycle took `time_ms`, known to `relative_spread` at best."""

    run: str
    phases: tuple[str, ...]
    cycle: Cycle
    nccl: str
    time_ms: float
    relative_spread: float
    implied: bool

    @property
    def verify_tokens(self) -> float:
        """T = B·N of the observed cycle."""
        return float(self.cycle.verify_tokens[0])


def observations(runs: Iterable[Run]) -> tuple[Observation, ...]:
    """Every equation that the runs give, in a stable order."""
    return tuple(o for run in runs for o in (_cycle_equations(run) if run.speculative else _decode_equations(run)))


def plain_cycle(run: Run) -> Cycle:
    """The counts of a plain decode step at the run's batch size."""
    return Cycle.of(SpecConfig(0, 1, 1), run.workload, run.setup.engine)


def spec_cycle(run: Run) -> Cycle:
    """The counts of a run's speculative cycle."""
    assert run.spec is not None
    return Cycle.of(run.spec, run.workload, run.setup.engine)


def step_time(run: Run) -> Figure | None:
    """A baseline's decode step: measured, or B/R from its throughput (eq. 6 at L = 1)."""
    if "decode_ms" in run.figures:
        return run.figures["decode_ms"]
    return _times_from_rate(run, Figure(1.0))


def cycle_time(run: Run) -> Figure | None:
    """A speculative run's cycle: measured, or C = B·L/R from throughput and accept length (eq. 6)."""
    if "cycle_ms" in run.figures:
        return run.figures["cycle_ms"]
    length = run.figures.get("accept_length")
    return _times_from_rate(run, length) if length else None


def _times_from_rate(run: Run, length: Figure) -> Figure | None:
    rate = run.figures.get("output_tok_s")
    if rate is None:
        return None
    tokens = float(run.workload.batch_size) * length.best * 1000.0
    implied = rate.implied or length.implied
    spread = (length.relative_spread**2 + rate.relative_spread**2) ** 0.5
    if spread:
        middle, half = tokens / rate.best, tokens / rate.best * spread * 3**0.5
        return Figure(low=middle - half, high=middle + half, implied=implied)
    return Figure(repeats=tuple(tokens / r for r in rate.readings), implied=implied)


def _decode_equations(run: Run) -> Iterator[Observation]:
    if (figure := step_time(run)) is not None:
        yield from _equations(run, ("decode",), plain_cycle(run), figure)


def _cycle_equations(run: Run) -> Iterator[Observation]:
    cycle = spec_cycle(run)
    for phase in PHASES:
        if (figure := run.figures.get(f"{phase}_ms")) is not None:
            yield from _equations(run, (phase,), cycle, figure)
    if (whole := cycle_time(run)) is not None and not _is_sum_of_parts(run):
        yield from _equations(run, PHASES, cycle, whole)
    if "decode_ms" in run.figures:  # the same server's plain decode, written into the speculative row
        yield from _equations(run, ("decode",), plain_cycle(run), run.figures["decode_ms"])


def _is_sum_of_parts(run: Run) -> bool:
    """With verify, draft and other all stated, a cycle is their sum and no measurement of its own."""
    return all(f"{phase}_ms" in run.figures for phase in ("verify", "draft", "other"))


def sum_mismatch(run: Run) -> float | None:
    """Relative gap between a stated cycle and the sum of its stated phases, where it is worth a word."""
    if "cycle_ms" not in run.figures or not _is_sum_of_parts(run):
        return None
    whole = run.figures["cycle_ms"].best
    parts = sum(run.figures[f"{phase}_ms"].best for phase in PHASES if f"{phase}_ms" in run.figures)
    gap = parts / whole - 1
    return gap if abs(gap) > _SUM_OF_PARTS else None


def _equations(run: Run, phases: tuple[str, ...], cycle: Cycle, figure: Figure) -> Iterator[Observation]:
    for time in figure.readings:
        yield Observation(run.id, phases, cycle, run.nccl, time, figure.relative_spread, figure.implied)
