"""Three public projects' measurements under their own protocols, as a page; their files are given, not kept here.

Run: python -m benchmarks.accuracy --peers FOLDER
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.held_out import batch_size, splits
from specsim import (
    CostModel,
    Run,
    Setup,
    SpecConfig,
    SpecsimError,
    Workload,
    chain_accept_length,
    evaluate,
    fit,
    predict,
)
from specsim.errors import MixedSetupError
from specsim.evaluation import Comparison
from specsim.runs.run import UNSTATED, Figure, RunSet

FILES = {
    "forwards": "adixg_h100_e1_e5.csv",
    "laptop": "adixg_laptop_e1.csv",
    "passes": "sathvik_pass_latency_battery.csv",
    "depths": "sathvik_speedup_vs_k_battery.csv",
    "throughput": "adfusco_throughput.csv",
}

Row = dict[str, str]


def read(folder: Path, name: str) -> list[Row]:
    """The rows of one of the peers' files; raises SpecsimError where it is not there."""
    path = folder / FILES[name]
    if not path.is_file():
        raise SpecsimError(f"{path} is not there: the folder holds {', '.join(FILES.values())}")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _run(name: str, setup: Setup, load: Workload, spec: SpecConfig | None, **figures: Figure) -> Run:
    return Run(name, setup, UNSTATED, load, spec is not None, spec, figures)


# -- A: a bare forward of the target, by shape and context -------------------------------------------------------------

TESTED_CONTEXTS = (1024, 4096)  # split_E4 of the H100 file; the laptop's states none


@dataclass(frozen=True)
class Forwards:
    """Forwards of one machine that are fitted, and those that are predicted."""

    seen: tuple[Run, ...]
    unseen: tuple[Run, ...]

    def of(self, graph: bool) -> Forwards:
        """Those with CUDA graphs, or those without."""
        return Forwards(*(tuple(r for r in runs if r.setup.cuda_graph is graph) for runs in (self.seen, self.unseen)))


def forwards(rows: Iterable[Row]) -> Forwards:
    """Each row as a bare forward: num_reqs requests that verify tokens_per_req tokens, nothing drafted at one."""
    runs = [(_forward(row), int(row["context_len"]) in TESTED_CONTEXTS) for row in rows]
    return Forwards(tuple(r for r, unseen in runs if not unseen), tuple(r for r, unseen in runs if unseen))


def _forward(row: Row) -> Run:
    batch, width, context = int(row["num_reqs"]), int(float(row["tokens_per_req"])), int(row["context_len"])
    graph = row["graph_mode"] == "graph"
    setup = Setup(model=row["model"], hardware=row["gpu"], engine="vllm", cuda_graph=graph)
    name = f"{row['graph_mode']} {batch}x{width} at {context}"
    spec = SpecConfig.of(num_draft_tokens=width)
    return _run(name, setup, Workload(batch, context), spec, verify_ms=Figure(float(row["step_ms_median"])))


def forward_errors(split: Forwards, allow_mixed: bool = False) -> tuple[Comparison, ...]:
    """The unseen forwards beside what a fit to the seen ones says; raises SpecsimError where that refuses."""
    model = fit(split.seen, allow_mixed=allow_mixed).model
    return evaluate(model, split.unseen, allow_mixed=allow_mixed).compared


def forwards_table(h100: Forwards, laptop: Forwards) -> str:
    """Protocol A: graph rows, eager rows, both fits together, one fit of both, and the laptop's."""
    lines = [
        "| fitted | predicted | RMSE | mean error | largest | in the 90% interval |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    apart: list[Comparison] = []
    for name, split in (("graph rows", h100.of(True)), ("eager rows", h100.of(False))):
        compared, why = _tried(split, allow_mixed=False)
        apart += compared
        lines.append(_forwards_line(name, compared, why, len(split.unseen)))
    lines.append(_forwards_line("the two fits together", apart, "see above", len(h100.unseen)))
    for name, split, mixed in (
        ("graph and eager rows in one fit, mixed", h100, True),
        ("RTX 4060 laptop, eager", laptop, False),
    ):
        lines.append(_forwards_line(name, *_tried(split, mixed), len(split.unseen)))
    return "\n".join(lines)


def _tried(split: Forwards, allow_mixed: bool) -> tuple[tuple[Comparison, ...], str]:
    try:
        return forward_errors(split, allow_mixed), ""
    except MixedSetupError as error:
        return (), f"refused: the runs differ in {', '.join(error.fields)}"
    except SpecsimError as error:
        return (), f"refused: {str(error).splitlines()[0]}"


def _forwards_line(name: str, compared: Iterable[Comparison], why: str, of: int) -> str:
    compared = tuple(compared)
    if not compared:
        return f"| {name} | 0 of {of} | {why} | – | – | – |"
    off = np.array([c.predicted - c.measured for c in compared])
    share = np.abs(off) / np.array([c.measured for c in compared])
    inside = np.mean([c.inside for c in compared])
    rmse = float(np.sqrt(np.mean(off**2)))
    return (
        f"| {name} | {len(compared)} of {of} | {rmse:.3f} ms | {share.mean():.2%} | {share.max():.2%} | {inside:.0%} |"
    )


# -- D: from forward times and one run with one draft, the speed-up at deeper drafts -----------------------------------

TARGET = "Qwen2.5-7B-4bit"
WIDTHS = (1, 2, 3, 5, 9)
KNOWN, ASKED = 1, (2, 4)


@dataclass(frozen=True)
class Depth:
    """A speed-up at a depth that the fit had not seen: measured, and predicted by two accept lengths."""

    draft: str
    depth: int
    measured: float
    own_acceptance: float
    first_acceptance: float
    their_own: float
    their_first: float


def depths(passes: list[Row], runs: list[Row]) -> list[Depth]:
    """Protocol D for every draft: five forward times, its one-token time and the run with one draft are known."""
    times = {(row["model"].replace("-Instruct", ""), int(row["tokens_in_pass"])): row for row in passes}
    pooled = [row for row in runs if row["scope"] == "pooled"]
    drafts = dict.fromkeys(row["draft"] for row in pooled)
    return [found for draft in drafts for found in _depths_of(draft, times, pooled)]


def _depths_of(draft: str, times: dict[tuple[str, int], Row], pooled: list[Row]) -> Iterator[Depth]:
    by_depth = {int(row["k"]): row for row in pooled if row["draft"] == draft}
    model = fit(_known_runs(times, draft, by_depth[KNOWN])).model
    first = float(by_depth[KNOWN]["p_at_k"])
    for depth in ASKED:
        row = by_depth[depth]
        measured, own = float(row["measured_speedup"]), _speedup(model, depth, float(row["p_at_k"]))
        their_own = float(row["peer_one_depth_pred"])
        their_first = measured + float(row["one_depth_err_using_p_at_k1"])
        yield Depth(draft, depth, measured, own, _speedup(model, depth, first), their_own, their_first)


def _known_runs(times: dict[tuple[str, int], Row], draft: str, known: Row) -> list[Run]:
    """What the protocol lets one know: each median with its quartiles, and the cycle that the known speed-up implies."""
    step = float(times[TARGET, 1]["median_ms"])
    length = chain_accept_length(float(known["p_at_k"]), KNOWN)
    cycle = Figure(float(length) * step / float(known["measured_speedup"]), implied=True)
    drafted = Figure(KNOWN * float(times[draft, 1]["median_ms"]), implied=True)
    alone, setup = Workload(1), Setup(model=TARGET)
    return [
        *(_run(f"forward {n}", setup, alone, _chain(n - 1), verify_ms=_quartiles(times[TARGET, n])) for n in WIDTHS),
        _run("one draft", setup, alone, _chain(KNOWN), draft_ms=drafted, cycle_ms=cycle),
        _run("plain", setup, alone, None, decode_ms=Figure(step, implied=True)),
    ]


def _chain(depth: int) -> SpecConfig:
    return SpecConfig(depth, 1, depth + 1, "draft_model")


def _quartiles(row: Row) -> Figure:
    return Figure(float(row["median_ms"]), float(row["q1_ms"]), float(row["q3_ms"]))


def _speedup(model: CostModel, depth: int, rate: float) -> float:
    return float(predict(model, _chain(depth), Workload(1), chain_accept_length(rate, depth)).speedup)


def depths_table(found: list[Depth]) -> str:
    """Protocol D: mean and largest error of the speed-up, ours and theirs, by where the acceptance comes from."""
    lines = ["| acceptance from | rows | mean error | largest | theirs: mean | largest |", "|---|--:|--:|--:|--:|--:|"]
    for name, ours, theirs in (
        ("each tested depth", "own_acceptance", "their_own"),
        ("the run with one draft alone", "first_acceptance", "their_first"),
    ):
        errors = [[abs(getattr(each, by) - each.measured) for each in found] for by in (ours, theirs)]
        cells = " | ".join(f"{np.mean(e):.4f} | {max(e):.4f}" for e in errors)
        lines.append(f"| {name} | {len(found)} | {cells} |")
    return "\n".join(lines)


# -- F: throughput with and without drafts by batch size, some of them left out ----------------------------------------


@dataclass(frozen=True)
class Served:
    """A speed-up in throughput: measured, by a fit to the other batch sizes (None: not told), by the peer, by neighbours.

    `inside` is whether the others were measured at smaller and at larger batch sizes.
    """

    setup: str
    batch_size: int
    inside: bool
    measured: float
    ours: float | None
    theirs: float | None
    nearest: float | None


def served(rows: list[Row]) -> list[Served]:
    """Protocol F: within each kind of work, every batch size in turn predicted from the others."""
    measured = [row for row in rows if row["eagle_out_tok_s"]]
    groups: dict[str, list[Row]] = {}
    for row in measured:
        groups.setdefault(f"{row['model']} {row['gpu']}: {row['dataset']}", []).append(row)
    return [found for name, group in groups.items() for found in _served_by_batch(name, group)]


def _served_by_batch(name: str, rows: list[Row]) -> Iterator[Served]:
    by_id = {f"{index} drafts": row for index, row in enumerate(rows)}
    runs = RunSet(tuple(run for index, row in enumerate(rows) for run in _throughputs(index, row)))
    for rest, unseen in splits(runs, batch_size):
        model = _fitted(rest)
        for run in (run for run in unseen if run.spec is not None):
            row, batch = by_id[run.id], int(run.workload.batch_size)
            others = [other for other in rows if int(other["max_num_seqs"]) != batch]
            yield Served(
                name,
                batch,
                _between(batch, others),
                float(row["speedup_overall"]),
                _served_speedup(model, run),
                float(row["formula_model_recomputed"]) if row["formula_model_recomputed"] else None,
                _nearest_speedup(others, batch),
            )


def _throughputs(index: int, row: Row) -> Iterator[Run]:
    """A row as two runs; max_num_seqs is the most that run together, and prefill is inside the throughput."""
    setup = Setup(model=row["model"], hardware=row["gpu"], engine="vllm", precision=row["dtype"])
    mean_context = round(float(row["isl_mean"]) + float(row["osl_mean"]) / 2)
    load = Workload(int(row["max_num_seqs"]), mean_context, round(float(row["osl_mean"])))
    spec = SpecConfig.of(num_steps=int(row["k"]), method="eagle3")
    yield _run(f"{index} plain", setup, load, None, output_tok_s=Figure(float(row["base_out_tok_s"])))
    rate, length = Figure(float(row["eagle_out_tok_s"])), Figure(float(row["accept_len"]))
    yield _run(f"{index} drafts", setup, load, spec, output_tok_s=rate, accept_length=length)


def _fitted(runs: RunSet) -> CostModel | None:
    try:
        return fit(runs).model
    except SpecsimError:
        return None


def _served_speedup(model: CostModel | None, run: Run) -> float | None:
    if model is None:
        return None
    try:
        speedup = float(predict(model, run.spec, run.workload, run.figures["accept_length"].best).speedup)
    except SpecsimError:
        return None
    return speedup if np.isfinite(speedup) else None


def _between(batch: int, others: list[Row]) -> bool:
    batches = [int(row["max_num_seqs"]) for row in others]
    return bool(batches) and min(batches) < batch < max(batches)


def _nearest_speedup(others: list[Row], batch: int) -> float | None:
    if not others:
        return None
    nearest = min(others, key=lambda row: abs(np.log(int(row["max_num_seqs"]) / batch)))
    return float(nearest["speedup_overall"])


def served_table(found: list[Served]) -> str:
    """Protocol F: errors of the speed-up, on the rows that the other batch sizes tell and on all the peer's."""
    a100, h200 = (_peers(found, gpu) for gpu in ("A100", "H200"))
    lines = [
        "| rows | count | ours: mean error | largest | theirs: mean | largest | nearest other batch size: mean | largest |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for gpu, rows in (("A100", a100), ("H200", h200)):
        told = [each for each in rows if each.ours is not None]
        lines += [
            _served_line(f"{gpu}, batch sizes between others", [each for each in told if each.inside]),
            _served_line(f"{gpu}, batch sizes that the others tell", told),
            _served_line(f"{gpu}, all that the peer predicts", rows),
        ]
    return "\n".join(lines)


def _peers(found: list[Served], gpu: str) -> list[Served]:
    """The rows on a GPU that the peer predicts."""
    return [each for each in found if gpu in each.setup and each.theirs is not None]


def _served_line(name: str, rows: list[Served]) -> str:
    cells = [_served_cells(rows, [getattr(each, by) for each in rows]) for by in ("ours", "theirs", "nearest")]
    return f"| {name} | {len(rows)} | {' | '.join(cells)} |"


def _served_cells(rows: list[Served], guesses: list[float | None]) -> str:
    if not rows or None in guesses:
        return "– | –"
    errors = [abs(guess / each.measured - 1) for each, guess in zip(rows, guesses, strict=True)]
    return f"{np.mean(errors):.1%} | {max(errors):.1%}"


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = """\
# Accuracy on three public projects' measurements

Written by `python -m benchmarks.accuracy --peers FOLDER`, FOLDER holding five files of measurements by the GitHub
projects adixg/vllm-specdecode-cost-model, sathvik-vadari/spec-decode-advisor and adfusco/spec-dec-roofline (their names
and columns: `benchmarks/accuracy_peers.py`). No licence is stated for any of the three, so their rows are not kept here,
and no test compares this page. The figures to beat are theirs, on the same rows.

## Forward time of the target (adixg)

Qwen3-1.7B on one H100 in vLLM: {seen} forwards fitted, {unseen} at contexts 1,024 and 4,096 predicted. Each row is a
bare forward: `verify_ms` of num_reqs requests × tokens_per_req tokens. Theirs, a floor looked up for each shape at
context 0 and a slope in the total context (the longer of the two when eager): RMSE 0.049 ms, mean error 0.72%, largest
2.99%. vLLM's own curve from start-up: RMSE 5.78 ms. The same cell differs by 0.3 to 0.9% between sessions there, by 3.4%
between jobs.

{forwards}

Theirs has the smaller RMSE: it is made of eager rows, whose host time falls from 8.5 ms at 32 tokens to 8.2 at 512, which
a curve that never falls does not follow. The laptop's rows (same model, split by the same contexts) have no figure of
theirs to beat.

## Speed-up at deeper drafts (sathvik)

Qwen2.5-7B at 4 bits on an Apple M4, batch 1. Known: forward times of five widths with their quartiles, each draft's
one-token time, and one run with one draft. Asked: the speed-up with two and with four drafts, for three drafts. Errors are
differences of speed-ups.

{depths}

Theirs draws the same kind of line, by unweighted least squares where ours is relative to the fitted time and weighs the
quartiles. Forwards on that machine scatter by several percent around any line (9 tokens slower than it, 5 faster), and
six rows do not tell the two apart from luck; still, theirs is closer.

## Speed-up in offline throughput (adfusco)

vLLM with EAGLE-3, with and without drafts, by max-num-seqs. Theirs computes the speed-up from vendors' constants and the
measured accept length, without any measured time. Ours leaves out one batch size of a kind of work, fits the others, and
uses the row's accept length. max-num-seqs is the most that run together, not the batch size of every step, and prefill is
inside the throughput, which is why each kind of work is a fit of its own.

{served}

A kind of work that was measured at two batch sizes leaves one, which does not tell how cost grows: nothing is predicted
for those. The nearest other batch size's speed-up is what one would take without any model. One cell measured three times
(512 tokens in, 128 out, 32 sequences) has speed-ups of 1.24, 1.33 and 1.34.
"""


def page(folder: Path) -> str:
    """The page's text from the files of a folder; raises SpecsimError where one is not there."""
    h100, laptop = (forwards(read(folder, name)) for name in ("forwards", "laptop"))
    return PAGE.format(
        seen=len(h100.seen),
        unseen=len(h100.unseen),
        forwards=forwards_table(h100, laptop),
        depths=depths_table(depths(read(folder, "passes"), read(folder, "depths"))),
        served=served_table(served(read(folder, "throughput"))),
    )
