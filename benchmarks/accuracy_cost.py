"""Held-out error of the cost model on measured cycles, beside what a user would use instead, as a markdown table.

Run: python -m benchmarks.accuracy_cost
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specsim import Run, SpecConfig, SpecsimError, Workload, fit, load_runs, predict
from specsim.runs.run import RunSet

DATA = Path(__file__).parents[1] / "tests" / "validation" / "data" / "h200_vllm_cycles.csv"
MOE_CARD = {"experts": 128, "experts_per_token": 8}


@dataclass(frozen=True)
class Held:
    """One measured time that the fit did not see, what it was predicted as, and whether that was flagged as outside."""

    run: str
    measured_ms: float
    predicted_ms: float
    extrapolated: bool

    @property
    def error(self) -> float:
        """|predicted/measured − 1|."""
        return abs(self.predicted_ms / self.measured_ms - 1)


def runs_of(model: str) -> tuple[Run, ...]:
    """The measured rows of one of the two models, "Llama" or "Qwen"."""
    return tuple(run for run in load_runs(DATA).runs if str(run.setup.model).startswith(model))


def measured_ms(run: Run) -> float:
    """The one time that a row states."""
    return run.figures["cycle_ms" if run.speculative else "decode_ms"].best


def held_out(runs: tuple[Run, ...], part: Callable[[Run], object], card: dict[str, int]) -> Iterator[Held]:
    """Leave out each part in turn (a configuration, a batch size, a depth), fit the rest, predict it."""
    for value in dict.fromkeys(map(part, runs)):
        rest = tuple(run for run in runs if part(run) != value)
        model = fit(RunSet(rest, model_card=card)).model
        for run in runs:
            if part(run) == value:
                try:
                    yield _predicted(model, run)
                except SpecsimError:
                    continue  # the rest does not determine it; the rows that remain are counted


def _predicted(model, run: Run) -> Held:
    label = model.settings[0].label
    if run.spec is None:
        cycle = model.plain_cycle(np.array([float(run.workload.batch_size)]))
        time = float(model.decode(cycle, label).value[0])
        return Held(run.id, measured_ms(run), time, bool(model.beyond_decode(cycle, label)["decode_batch_size"][0]))
    times = predict(model, run.spec, Workload(int(run.workload.batch_size)), 1.0, label).times
    return Held(run.id, measured_ms(run), float(times.cycle_ms), bool(times.extrapolated))


# -- what a user would use instead, on the same rows ---------------------------------------------------------------------


def proportional(runs: tuple[Run, ...]) -> Iterator[Held]:
    """Verify grows with its tokens: a cycle is the plain step of one request times the tokens verified."""
    one = next(measured_ms(run) for run in runs if run.spec is None and run.workload.batch_size == 1)
    for run in runs:
        if run.spec is not None:
            width = int(run.spec.num_draft_tokens)
            yield Held(run.id, measured_ms(run), one * width, False)


def constant_ratio(runs: tuple[Run, ...]) -> Iterator[Held]:
    """Leviathan et al.: verify costs a plain step, a draft step a constant share of it, taken from batch 1, K = 3."""
    plain = {int(run.workload.batch_size): measured_ms(run) for run in runs if run.spec is None}
    known = next(
        run for run in runs if run.spec is not None and (run.spec.num_steps, run.workload.batch_size) == (3, 1)
    )
    share = (measured_ms(known) / plain[1] - 1) / 3
    for run in runs:
        if run.spec is not None and run is not known:
            steps, batch = int(run.spec.num_steps), int(run.workload.batch_size)
            yield Held(run.id, measured_ms(run), plain[batch] * (1 + share * steps), False)


# -- the table ----------------------------------------------------------------------------------------------------------


def configuration(run: Run) -> object:
    """One configuration at one batch size."""
    return run.spec, run.workload.batch_size


def batch_size(run: Run) -> object:
    """All configurations of a batch size."""
    return run.workload.batch_size


def depth(run: Run) -> object:
    """All batch sizes of a depth; plain decode is a part of its own."""
    return None if run.spec is None else SpecConfig.of(num_steps=int(run.spec.num_steps))


def tasks() -> Iterator[tuple[str, list[Held]]]:
    """Name and rows of each line of the table."""
    dense, moe = runs_of("Llama"), runs_of("Qwen")
    yield "dense 8B, a configuration left out", list(held_out(dense, configuration, {}))
    yield "dense 8B, a batch size left out", list(held_out(dense, batch_size, {}))
    yield "dense 8B, a depth left out", list(held_out(dense, depth, {}))
    yield "MoE 30B plain decode, a batch size left out", list(held_out(moe, batch_size, MOE_CARD))
    yield "instead: verify in proportion to its tokens", list(proportional(dense))
    yield "instead: a constant cost ratio (Leviathan et al.)", list(constant_ratio(dense))


def table() -> str:
    """The markdown table: rows, those inside the measured range, and the errors of all and of those."""
    lines = [
        "| left out and predicted | rows | median | p95 | largest | rows inside the range | median | largest |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, held in tasks():
        every, inside = [h.error for h in held], [h.error for h in held if not h.extrapolated]
        lines.append(
            f"| {name} | {len(every)} | {np.median(every):.1%} | {np.quantile(every, 0.95):.1%} | {max(every):.1%}"
            f" | {len(inside)} | {np.median(inside):.1%} | {max(inside):.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    for name, held in tasks():
        worst = sorted(held, key=lambda h: -h.error)[:3]
        print(
            name,
            [f"{h.run} {h.predicted_ms / h.measured_ms - 1:+.1%}{' outside' if h.extrapolated else ''}" for h in worst],
        )
