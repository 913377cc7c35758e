"""Held-out error of trees' cycles from chains and one tree, with and without bare forwards, as a markdown table.

Run: python -m benchmarks.accuracy_trees
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from benchmarks.accuracy_bare import HARNESS, SGLANG, floors_of, harness_served, parted
from benchmarks.held_out import Held, predicted, summed_up
from specsim import BareForwards, Run, load_runs
from specsim.runs.run import RunSet

SHAPES = {"llama-3.1-8b": "8B", "qwen3-1.7b": "1.7B", "qwen3-30b-a3b": "MoE 30B"}
_WIDE = 32  # tokens of a request; the forwards that stand below have at most 16


def tree_table() -> str:
    """Cycles of trees by the harness and by SGLang, from chains and one tree, each tree in turn."""
    lines = [
        "| cycles | bare forwards | trees of at most 32 tokens | median | p95 | largest | of 60 tokens | median | p95 | largest |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    cycles = [(title, shape, load_runs(HARNESS / f"h200_cycle_{shape}.json")) for shape, title in SHAPES.items()]
    for title, shape, runs in (*cycles, ("8B, SGLang", "llama-3.1-8b", harness_served(SGLANG))):
        for floor, bare in floors_of(shape).items():
            held = from_one_tree(runs, bare)
            wide = {run.id for run in runs.runs if run.spec is not None and run.spec.num_draft_tokens > _WIDE}
            parts = ([h for h in held if (h.run in wide) is is_wide] for is_wide in (False, True))
            cells = " | ".join(f"{len(part)} | {summed_up(h.error for h in part)}" for part in parts)
            lines.append(f"| {title} | {floor} | {cells} |")
    return "\n".join(lines)


def from_one_tree(runs: RunSet, bare: BareForwards | None) -> list[Held]:
    """Every tree's cycles by fits to plain decode, chains and one other tree."""
    trees = dict.fromkeys(tree for run in runs.runs if (tree := _tree(run)) is not None)
    held = []
    for tree in trees:
        seen, unseen = parted(runs, lambda run, t=tree: _tree(run) in (None, t))
        held += predicted(seen, tuple(map(_whole_cycle, unseen)), bare)
    return held


def _whole_cycle(run: Run) -> Run:
    """A run with its cycle as the only figure: its tok/s are the same cycles by another clock."""
    return replace(run, figures={"cycle_ms": run.figures["cycle_ms"]})


def _tree(run: Run) -> Hashable:
    spec = run.spec
    return None if spec is None or spec.topk == 1 else (spec.num_steps, spec.topk, spec.num_draft_tokens)


if __name__ == "__main__":
    print(tree_table())
