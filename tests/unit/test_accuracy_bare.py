"""The bare-forwards report's own arithmetic, on runs whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks import accuracy_bare
from benchmarks.accuracy_bare import client_tok_s, missed, of_powers_of_two, scatter
from benchmarks.accuracy_trees import from_one_tree
from benchmarks.groups import DENSE
from benchmarks.held_out import Held
from specsim import BareForwards, Run, Setup, SpecConfig, Workload
from specsim.runs.run import Figure, RunSet


def held(name: str, predicted: float) -> Held:
    return Held(name, "cycle", 100.0, predicted, True, False)


def test_missed_rows_stand_worst_first_with_their_sign():
    rows = [held("dense8b a", 102.9), held("dense8b b", 96.0), held("moe30b c", 110.0)]
    assert missed(rows) == "c +10.0%, b -4.0%"
    assert missed(rows[:1]) == "–"
    assert missed([held(str(n), 104.0 + n) for n in range(6)]).endswith("and 2 more")


def run(steps: int, topk: int, width: int, **figures: float) -> Run:
    spec = SpecConfig(steps, topk, width)
    return Run(
        f"{steps}/{topk}/{width}", Setup(), "s", Workload(1), True, spec, {k: Figure(v) for k, v in figures.items()}
    )


def test_each_tree_is_predicted_from_chains_and_each_other_tree():
    """10 ms and 0.1 a token, 0.2 a step; tok/s that contradict them are not looked at."""

    def timed(steps: int, topk: int, width: int) -> Run:
        verify, draft = 10 + 0.1 * width, 0.2 * steps
        times = {"verify_ms": verify, "draft_ms": draft, "cycle_ms": verify + draft + 0.3}
        return run(steps, topk, width, **times, output_tok_s=1.0, accept_length=1.5)

    chains = [timed(steps, 1, steps + 1) for steps in (1, 2, 3, 5, 7)]
    trees = [timed(3, 4, 8), timed(5, 4, 16), timed(6, 2, 12)]
    found = from_one_tree(RunSet((*chains, *trees)), None)
    assert sorted(h.run for h in found) == sorted(2 * [t.id for t in trees])
    assert max(h.error for h in found) < 1e-6


def test_coarse_curves_and_scatter_are_those_of_the_table(monkeypatch):
    rows = [
        {"kind": "dense8b_stack", "tokens": str(t), "p50_ms": str(ms), "p10_ms": str(ms - low), "p90_ms": str(ms + 0.1)}
        for t, ms, low in ((1, 4.0, 0.1), (2, 4.0, 0.1), (3, 5.0, 0.4), (4, 5.0, 0.1), (8, 6.0, 0.2))
    ] + [{"kind": "dense8b_lmhead", "tokens": "3", "p50_ms": "1", "p10_ms": "0.1", "p90_ms": "9"}]
    monkeypatch.setattr(accuracy_bare, "_table", lambda name: rows)
    assert of_powers_of_two() == "3 (-10.0%)"
    assert scatter(1, 2) == pytest.approx(0.05)
    assert scatter(3, 8) == pytest.approx(0.1)


def test_answers_are_held_against_the_client_and_the_measured_ratio():
    by_name = dict.fromkeys(("none", "stack"))
    by_name["none"] = accuracy_bare.answers(DENSE.runs, client_tok_s(), None)
    by_name["stack"] = accuracy_bare.answers(DENSE.runs, client_tok_s(), accuracy_bare.stack())
    for found in by_name.values():
        assert (len(found.rates), len(found.lengths)) == (28, 21)  # 30 rows, two of which the client limits; 21 cycles
    assert max(by_name["stack"].rates) < 0.06 < max(by_name["none"].rates)
    assert max(by_name["stack"].lengths) < 0.08 < max(by_name["none"].lengths)


def test_a_curve_of_its_own_truth_leaves_no_error():
    """The rates that measured cycles give are the client's but for its own clock: within 4%."""
    assert max(accuracy_bare.rates_by_measured_cycles(DENSE.runs, client_tok_s())) < 0.04
    assert isinstance(accuracy_bare.experts(), BareForwards)
    assert accuracy_bare.experts().times_ms[0] == pytest.approx(6 * 0.2512)
