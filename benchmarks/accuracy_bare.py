"""Held-out error of served fits with and without bare forwards under them, as markdown tables.

Run: python -m benchmarks.accuracy_bare
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.groups import DATA, DENSE, LONG, MOE
from benchmarks.held_out import (
    Held,
    Part,
    batch_size,
    configuration,
    covered,
    held_out,
    measured,
    plain_steps,
    predicted,
    scatters,
    shape,
    splits,
    summed_up,
)
from specsim import BareForwards, CostModel, Run, break_even, fit, load_bare_forwards, load_runs, predict
from specsim.cost.terms import PLAIN
from specsim.runs.run import RunSet

HARNESS = Path(__file__).parents[1] / "calibration" / "data"

TARGET, TARGET_TOKENS = 0.03, 0.03
"""What a cycle's time may be off by, as a share (95% of rows), and a break-even length, in tokens."""

_MOST_CONCURRENCY = 64  # above it the client of these runs is what limits
_EXPERT_LAYERS, _LAYERS = 8, 48  # timed together, and what the model has

Floors = dict[str, BareForwards | None]


@dataclass(frozen=True)
class Line:
    """A line of a table: what was predicted, from what, over which bare forwards, and how it came out."""

    rows: str
    fitted_to: str
    bare: str
    held: list[Held]


# -- bare forwards -------------------------------------------------------------------------------------------------------


def _table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def stack(figure: str = "p50_ms") -> BareForwards:
    """The 8B model's bare stack, by a percentile of its repeats."""
    rows = [row for row in _table("h200_bare_8b.csv") if row["kind"] == "dense8b_stack"]
    return BareForwards.of([int(row["tokens"]) for row in rows], [float(row[figure]) for row in rows], "bare stack")


def experts() -> BareForwards:
    """The mixture's expert layers, eight of them timed, scaled to the model's."""
    rows = _table("h200_experts_30b.csv")
    timed = BareForwards.of([int(row["tokens"]) for row in rows], [float(row["p50_ms"]) for row in rows], "experts")
    return timed.scaled(_LAYERS / _EXPERT_LAYERS)


def harness(shape: str) -> BareForwards:
    """What `python -m calibration forward` measured of a shape."""
    return load_bare_forwards(HARNESS / f"h200_forward_{shape}.json")


def floors_of(shape: str) -> Floors:
    """A shape's own forwards by the harness, or none."""
    return {"none": None, "harness": harness(shape)}


def floors_of_8b() -> Floors:
    """What may stand under the 8B model's served runs, by name."""
    return {
        "none": None,
        "bare stack": stack(),
        "bare stack, fast repeats": stack("p10_ms"),
        "harness": harness("llama-3.1-8b"),
    }


# -- cycles --------------------------------------------------------------------------------------------------------------


def _dense(floors: Floors) -> Iterator[Line]:
    for name, part in DENSE.parts.items():
        for floor, bare in floors.items():
            yield Line("dense 8B", f"all but {name}", floor, held_out(DENSE.runs, part, bare))


SIX = tuple(f"dense8b K{drafts} B{batch}" for drafts in (0, 1, 7) for batch in (1, 64))
"""A short session: plain decode, one draft and seven, alone and at 64 requests."""


def _six(floors: Floors) -> Iterator[Line]:
    seen, unseen = parted(DENSE.runs, lambda run: run.id in SIX)
    for floor, bare in floors.items():
        yield Line("dense 8B", "six runs: 0, 1, 7 drafts at batch 1, 64", floor, predicted(seen, unseen, bare))


def _long(floors: Floors) -> Iterator[Line]:
    """The long prompts from the two of one batch size, and all short ones."""
    for batch in (1, 4, 64):
        seen, unseen = parted(LONG.runs, lambda run, b=batch: not _is_long(run) or run.workload.batch_size == b)
        for floor in ("none", "bare stack", "harness"):
            held = predicted(seen, unseen, floors[floor])
            yield Line("8B, long prompts", f"short ones and two at batch {batch}", floor, held)


def _is_long(run: Run) -> bool:
    return (run.workload.context_len or 0) > 1000


def _moe() -> Iterator[Line]:
    floors: Floors = {"none": None, "expert layers": experts(), "harness": harness("qwen3-30b-a3b")}
    for floor, bare in floors.items():
        yield Line("MoE 30B, plain", "all but a batch size", floor, held_out(MOE.runs, batch_size, bare))
    floors = floors_of_the_mixture()
    for name, is_seen in FEW_OF_THE_MIXTURE.items():
        for floor, bare in floors.items():
            seen, unseen = parted(harness_served(MIXTURE), is_seen)
            yield Line("MoE 30B, distinct drafts", name, floor, predicted(seen, unseen, bare))
    yield from _served("MoE 30B, distinct drafts", MIXTURE, floors)


PARTS: dict[str, Part] = {"a configuration": configuration, "a batch size": batch_size, "a depth or width": shape}


def _served(rows: str, name: str, floors: Floors) -> Iterator[Line]:
    """Runs that the harness served: each part of them left out in turn, and a third drawn at random."""
    runs = harness_served(name)
    drawn = np.random.default_rng(0).permutation(len(runs.runs))[: len(runs.runs) // 3]
    third = tuple(runs.runs[at].id for at in drawn)
    for floor, bare in floors.items():
        seen, unseen = parted(runs, lambda run: run.id not in third)
        yield Line(rows, "two thirds, drawn at random", floor, predicted(seen, unseen, bare))
    for part, of in PARTS.items():
        for floor, bare in floors.items():
            yield Line(rows, f"all but {part}", floor, held_out(runs, of, bare))


MIXTURE, SMALL, SGLANG = "qwen3-30b-a3b", "qwen3-1.7b", "sglang_llama-3.1-8b"
"""What the harness served: a mixture whose drafts differ, a small dense model, and SGLang's chains and trees."""


@cache
def harness_served(name: str) -> RunSet:
    """Runs that the harness served, each by its time alone: its tok/s are the same cycles."""
    loaded = load_runs(HARNESS / f"h200_served_{name}.json")
    kept = ("decode_ms", "cycle_ms", "accept_length")
    timed = [
        replace(run, figures={name: run.figures[name] for name in kept if name in run.figures}) for run in loaded.runs
    ]
    return replace(loaded, runs=tuple(timed))


def floors_of_the_mixture() -> Floors:
    """What may stand under the mixture's served runs: the harness's forwards have other kernels, and are none."""
    return {"none": None, "expert layers": experts()}


def _is_corner(run: Run) -> bool:
    drafts = 0 if run.spec is None else int(run.spec.num_steps)
    return drafts in (0, 1, 7) and run.workload.batch_size in (1, 64)


FEW_OF_THE_MIXTURE: dict[str, Part] = {
    "four runs: plain, one draft at batch 1 and 16": lambda run: (
        run.workload.batch_size in (1, 16) and (run.spec is None or run.spec.num_draft_tokens == 2)
    ),
    "six runs: 0, 1, 7 drafts at batch 1, 64": _is_corner,
    "plain decode, and one draft at batch 1 and 64": lambda run: (
        run.spec is None or (run.spec.num_draft_tokens == 2 and run.workload.batch_size in (1, 64))
    ),
}


def parted(runs: RunSet, is_seen: Part) -> tuple[RunSet, tuple[Run, ...]]:
    """The runs that are seen, and the others."""
    seen = tuple(run for run in runs.runs if is_seen(run))
    return RunSet(seen, model_card=runs.model_card), tuple(run for run in runs.runs if not is_seen(run))


HEAD = """\
| rows | fitted to | bare forwards | predicted | median | p95 | largest | in the 90% interval | off by more than 3% |
|---|---|---|--:|--:|--:|--:|--:|---|"""


def cycle_table() -> str:
    """Every split of the served runs, over each of the bare forwards."""
    floors = floors_of_8b()
    found = [*_dense(floors), *_six(floors), *_long(floors), *_moe(), *_served("dense 1.7B", SMALL, floors_of(SMALL)),
             *_served("8B, SGLang", SGLANG, floors_of("llama-3.1-8b"))]  # fmt: skip
    return "\n".join([HEAD, *map(_cells, found)])


def _cells(line: Line) -> str:
    errors = summed_up(held.error for held in line.held)
    return f"| {line.rows} | {line.fitted_to} | {line.bare} | {len(line.held)} | {errors} | {covered(line.held)} | {missed(line.held)} |"


def missed(held: Iterable[Held]) -> str:
    """The rows beyond the target, worst first: at most four, and how many more."""
    far = sorted((each for each in held if each.error > TARGET), key=lambda each: -each.error)
    shown = [f"{_short(each.run)} {each.predicted_ms / each.measured_ms - 1:+.1%}" for each in far[:4]]
    return ", ".join(shown) + (f" and {len(far) - 4} more" if len(far) > 4 else "") or "–"


def _short(name: str) -> str:
    return name.removeprefix("dense8b ").removeprefix("moe30b ").replace(" default ", " ").removesuffix("x128")


# -- what people ask -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """Errors of what a fit says that saw nothing of a batch size: of tok/s, relative, and of L* [tokens]."""

    rates: tuple[float, ...]
    lengths: tuple[float, ...]


def answers(runs: RunSet, told: dict[str, float], bare: BareForwards | None) -> Answers:
    """tok/s given the accept length beside those `told`, and break-even lengths, of every batch size left out in turn."""
    plain = plain_steps(runs)
    rates, lengths = [], []
    for rest, unseen in splits(runs, batch_size):
        model = fit(rest, bare_forwards=bare).model
        for run in unseen:
            if run.id in told:
                length = 1.0 if run.spec is None else run.figures["accept_length"].best
                rate = (
                    predict(model, run.spec, run.workload, length).output_tok_s
                    if run.spec
                    else _plain_tok_s(model, run)
                )
                rates.append(abs(float(rate) / told[run.id] - 1))
            if run.spec is not None:
                ratio = float(break_even(model, run.spec, run.workload).cost_ratio)
                lengths.append(abs(ratio - measured(run)["cycle"] / plain[int(run.workload.batch_size)]))
    return Answers(tuple(rates), tuple(lengths))


def _plain_tok_s(model: CostModel, run: Run) -> float:
    cycle = model.cycle(PLAIN, run.workload)
    return float(cycle.batch_size[0] * 1000.0 / model.decode(cycle, model.reference).value[0])


@cache
def client_tok_s() -> dict[str, float]:
    """What the client counted, where it is not what limits."""
    rows = _table("h200_vllm_served.csv")
    return {row["id"]: float(row["output_tok_s"]) for row in rows if int(row["concurrency"]) <= _MOST_CONCURRENCY}


def rates_of_harness(name: str) -> dict[str, float]:
    """What the harness's client counted of the runs that it served."""
    return {run.id: run.figures["output_tok_s"].best for run in load_runs(HARNESS / f"h200_served_{name}.json").runs}


def rates_by_measured_cycles(runs: RunSet, told: dict[str, float]) -> list[float]:
    """Error of B·L/C with the measured cycle itself: what no cost model can better."""
    found = []
    for run in runs.runs:
        if run.id in told:
            (time,) = measured(run).values()
            length = 1.0 if run.spec is None else run.figures["accept_length"].best
            found.append(abs(float(run.workload.batch_size) * length * 1000.0 / time / told[run.id] - 1))
    return found


def answers_table() -> str:
    """Errors of tok/s and of break-even lengths, over each of the bare forwards."""
    lines = [
        "| rows | bare forwards | tok/s: median | p95 | largest | L*: median [tokens] | p95 | largest | within 0.03 |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for title, runs, told, floors in (
        ("dense 8B", DENSE.runs, client_tok_s(), floors_of_8b()),
        (
            "MoE 30B, distinct drafts",
            harness_served(MIXTURE),
            rates_of_harness(MIXTURE),
            floors_of_the_mixture(),
        ),
        ("dense 1.7B", harness_served(SMALL), rates_of_harness(SMALL), floors_of(SMALL)),
    ):
        for floor, bare in floors.items():
            found = answers(runs, told, bare)
            lengths = np.array(found.lengths)
            cells = f"{np.median(lengths):.3f} | {np.quantile(lengths, 0.95):.3f} | {lengths.max():.3f}"
            within = f"{(lengths <= TARGET_TOKENS).sum()} of {lengths.size}"
            lines.append(f"| {title} | {floor} | {summed_up(found.rates)} | {cells} | {within} |")
        by_cycles = summed_up(rates_by_measured_cycles(runs, told))
        lines.append(f"| {title} | (the measured cycle) | {by_cycles} | – | – | – | – |")
    return "\n".join(lines)


# -- why -----------------------------------------------------------------------------------------------------------------


def of_powers_of_two() -> str:
    """How far a curve through powers of two alone lies from the bare stack at other counts, where by more than 1.5%."""
    whole = stack()
    counts, times = np.array(whole.tokens), np.array(whole.raw_ms)
    kept = np.isin(counts, 2 ** np.arange(16))
    coarse = BareForwards.of(counts[kept], times[kept], "powers of two").time_ms(counts)
    off = [(int(t), e) for t, e in zip(counts, coarse / times - 1, strict=True) if abs(e) > 0.015]
    return ", ".join(f"{tokens} ({error:+.1%})" for tokens, error in off)


def load_scatter(name: str) -> tuple[float, float]:
    """Relative standard deviation of the harness's loads: median and largest."""
    spreads = list(scatters(harness_served(name).runs).values())
    return float(np.median(spreads)), max(spreads)


def scatter(low: int, high: int) -> float:
    """Largest spread of the bare stack's repeats between two counts of tokens, 10th to 90th percentile."""
    rows = [
        row
        for row in _table("h200_bare_8b.csv")
        if row["kind"] == "dense8b_stack" and low <= int(row["tokens"]) <= high
    ]
    return max((float(row["p90_ms"]) - float(row["p10_ms"])) / float(row["p50_ms"]) for row in rows)


if __name__ == "__main__":
    print(cycle_table(), answers_table(), of_powers_of_two(), sep="\n\n")
    print(scatter(1, 144), scatter(192, 512))
