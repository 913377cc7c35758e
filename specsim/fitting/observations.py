"""What runs say about a cycle, one equation per measured figure: a sum of phases equals a time (eq. 12)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from specsim.cost.terms import PHASES, PLAIN, Cycle
from specsim.quantities import SpecConfig
from specsim.runs.run import Figure, Run

_SUM_OF_PARTS = 0.02
"""How far two figures of one run that should agree may lie apart before they count as two."""


@dataclass(frozen=True)
class Observation:
    """One equation: the phases in `phases` of this cycle took `time_ms`, known to `relative_spread` at best.

    `reading` is the number as it was stated, of which `kind` ("time" or "rate") the digits tell the resolution.
    `context_len` is the run's, None where it states none; `host_bound` says that the device waited for the host.
    """

    run: str
    phases: tuple[str, ...]
    cycle: Cycle
    nccl: str
    time_ms: float
    relative_spread: float
    implied: bool
    reading: float
    kind: str
    context_len: int | None = None
    host_bound: bool = False

    @property
    def verify_tokens(self) -> float:
        """T = B·N of the observed cycle."""
        return float(self.cycle.verify_tokens[0])


def observations(runs: Iterable[Run], engine: str | None) -> tuple[Observation, ...]:
    """Every equation that the runs give, in a stable order; draft forwards as one engine counts them for all."""
    return tuple(o for run in runs for o in (_spec_equations if run.speculative else _decode_equations)(run, engine))


def resolution(seen: Iterable[Observation]) -> float:
    """Relative standard deviation, root mean square, that rounding to the digits as stated leaves in readings.

    Readings of a kind count as printed with as many decimals as the longest of them.
    """
    seen = tuple(seen)
    decimals = {kind: max(_decimals(o.reading) for o in seen if o.kind == kind) for kind in {o.kind for o in seen}}
    shares = [0.5 * 10.0 ** -decimals[o.kind] / 3**0.5 / o.reading for o in seen]
    return float((sum(share**2 for share in shares) / len(shares)) ** 0.5)


def _decimals(number: float) -> int:
    exponent = Decimal(repr(float(number))).normalize().as_tuple().exponent
    return max(-int(exponent), 0)


def step_time(run: Run) -> Figure | None:
    """A baseline's decode step: measured, or B/R from its throughput (eq. 6 at L = 1)."""
    return run.figures.get("decode_ms") or time_from_rate(run)


def cycle_time(run: Run) -> Figure | None:
    """A speculative run's cycle: measured, or C = B·L/R from throughput and accept length (eq. 6)."""
    return run.figures.get("cycle_ms") or time_from_rate(run)


def time_from_rate(run: Run) -> Figure | None:
    """B·L/R (eq. 6), L = 1 for plain decode; None where throughput or, with speculation, accept length is missing."""
    rate, length = run.figures.get("output_tok_s"), run.figures.get("accept_length")
    if not run.speculative:
        length = Figure(1.0)
    if rate is None or length is None:
        return None
    tokens = float(run.workload.batch_size) * length.best * 1000.0
    implied = rate.implied or length.implied
    spread = (length.relative_spread**2 + rate.relative_spread**2) ** 0.5
    if spread:
        middle, half = tokens / rate.best, tokens / rate.best * spread * 3**0.5
        return Figure(low=middle - half, high=middle + half, implied=implied)
    return Figure(repeats=tuple(tokens / r for r in rate.readings), implied=implied)


def _decode_equations(run: Run, engine: str | None) -> Iterator[Observation]:
    if (figure := step_time(run)) is not None:
        yield from _equations(run, ("decode",), _cycle(run, PLAIN, engine), figure)


def _cycle(run: Run, spec: SpecConfig, engine: str | None) -> Cycle:
    cycle = Cycle.of(spec, run.workload, engine, eager=run.setup.cuda_graph is False)
    return cycle.captured(engine, run.setup.engine_version)


def _spec_equations(run: Run, engine: str | None) -> Iterator[Observation]:
    if run.spec is None:
        return
    cycle = _cycle(run, run.spec, engine)
    for phase in PHASES:
        if (figure := run.figures.get(f"{phase}_ms")) is not None:
            yield from _equations(run, (phase,), cycle, figure)
    if (whole := cycle_time(run)) is not None and not _is_sum_of_parts(run):
        yield from _equations(run, PHASES, cycle, whole)
    if "decode_ms" in run.figures:  # the same server's plain decode, written into the speculative row
        yield from _equations(run, ("decode",), _cycle(run, PLAIN, engine), run.figures["decode_ms"])


def _equations(run: Run, phases: tuple[str, ...], cycle: Cycle, figure: Figure) -> Iterator[Observation]:
    stated = figure in run.figures.values()
    readings = figure.readings if stated else run.figures["output_tok_s"].readings
    times = figure.readings
    for index, time in enumerate(times):
        reading = readings[min(index, len(readings) - 1)]
        yield Observation(
            run.id, phases, cycle, run.nccl, time, figure.relative_spread, figure.implied, reading,
            "time" if stated else "rate", run.workload.context_len,
        )  # fmt: skip


# -- figures of one run that should agree ---------------------------------------------------------------------------


def sum_of_parts(run: Run) -> float | None:
    """The stated phases of a run added up; None where none is stated."""
    parts = [run.figures[f"{phase}_ms"].best for phase in PHASES if f"{phase}_ms" in run.figures]
    return sum(parts) if parts else None


def _is_sum_of_parts(run: Run) -> bool:
    """Whether the phases leave nothing for the cycle to say: all are stated, or they add up to it without extend."""
    stated = [phase for phase in PHASES if f"{phase}_ms" in run.figures]
    whole, parts = run.figures.get("cycle_ms"), sum_of_parts(run)
    if len(stated) == len(PHASES):
        return True
    without_extend = set(PHASES) - set(stated) == {"extend"}
    return without_extend and whole is not None and parts is not None and abs(parts / whole.best - 1) <= _SUM_OF_PARTS


def contradictions(run: Run) -> Iterator[str]:
    """Sentences on figures of a run that do not agree with each other, or that nothing uses."""
    whole, parts = run.figures.get("cycle_ms"), sum_of_parts(run)
    if whole is not None and parts is not None:
        complete = all(f"{phase}_ms" in run.figures for phase in PHASES)
        gap = parts / whole.best - 1
        if gap > _SUM_OF_PARTS or (complete and gap < -_SUM_OF_PARTS):
            used = "the phases are fitted" if complete else "both are fitted, and pull against each other"
            yield f"{run.id}: its phases add up to {gap:+.1%} of its stated cycle; {used}"
    direct = run.figures.get("cycle_ms" if run.speculative else "decode_ms")
    derived = time_from_rate(run)
    if direct is not None and derived is not None and abs(derived.best / direct.best - 1) > _SUM_OF_PARTS:
        yield (
            f"{run.id}: its throughput would be a time of {derived.best:.2f} ms, {direct.best:g} ms is stated and fitted;"
            " the throughput is not used"
        )
    if run.speculative and derived is None and "output_tok_s" in run.figures:
        yield f"{run.id}: its throughput says nothing of the cycle without an accept length, and is not used"
