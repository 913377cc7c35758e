"""The accuracy report's own arithmetic, on groups whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import accuracy, accuracy_break_even, accuracy_cost, accuracy_peers
from benchmarks.accuracy_break_even import Asked
from benchmarks.groups import Group
from benchmarks.held_out import (
    Held,
    Roofline,
    batch_size,
    configuration,
    constant_ratio,
    countable,
    covered,
    held_out,
    inside_the_range,
    instead,
    octave,
    plain_steps,
    proportional,
    shape,
    summed_up,
)
from specsim import SpecsimError
from specsim.breakeven import IMPOSSIBLE, LOSES, PAYS, UNDECIDED
from specsim.runs.run import Figure, RunSet
from tests.synthetic import Truth, phase_runs, run

TRUTH = Truth()


def exact() -> RunSet:
    return RunSet(tuple(phase_runs(TRUTH, (2, 4, 6, 8), (1, 4))))


# -- what is left out, and how far off it is -----------------------------------------------------------------------------


def test_a_known_truth_is_predicted_and_what_the_rest_leaves_open_is_counted():
    """8 configurations × verify, draft, cycle; one plain batch size does not tell the other."""
    held = held_out(exact(), configuration)
    assert (len(held), countable(exact(), configuration)) == (24, 26)
    assert max(h.error for h in held) < 1e-9
    assert {h.kind for h in held} == {"verify", "draft", "cycle"}
    assert {h.run for h in held if h.extrapolated and h.kind == "verify"} == {"1x2", "4x8"}  # 2 and 32 tokens


def test_a_run_that_is_a_tenth_slow_is_off_by_a_tenth_of_itself():
    """1/1.1 − 1 = −9.1%, since no other run changes; its interval, without any scatter, leaves it outside."""
    slow = [r if r.id != "1x6" else _slower(r) for r in exact().runs]
    held = {(h.run, h.kind): h for h in held_out(RunSet(tuple(slow)), configuration)}
    assert held["1x6", "cycle"].error == pytest.approx(1 - 1 / 1.1)
    assert not held["1x6", "cycle"].inside
    assert held["1x6", "cycle"].measured_ms == pytest.approx(1.1 * TRUTH.cycle(1, 6))


def _slower(r):
    return replace(r, figures={name: Figure(1.1 * figure.best) for name, figure in r.figures.items()})


def test_a_throughput_counts_as_the_time_of_its_cycle():
    """2 requests × 2.5 tokens at 160 tok/s are 31.25 ms; the line through 10 and 40 ms has 30 there."""
    runs = (
        run("a", 2, 2, cycle_ms=10.0),
        run("b", 2, 8, cycle_ms=40.0),
        run("c", 2, 6, output_tok_s=160.0, accept_length=2.5),
    )
    held = {h.run: h for h in held_out(RunSet(runs), configuration)}
    assert held["c"].measured_ms == pytest.approx(31.25)
    assert held["c"].predicted_ms == pytest.approx(30.0)
    assert held["c"].error == pytest.approx(0.04)


def test_plain_decode_stays_where_a_depth_or_an_octave_is_left_out():
    plain, cycle = run("p", 4, None, decode_ms=15.0), run("c", 4, 3, cycle_ms=20.0)
    assert (shape(plain), octave(plain), batch_size(plain)) == (None, None, 4)
    assert (shape(cycle), octave(cycle)) == ((2, 1, 3), 3)  # 12 tokens lie in 8 to 15
    assert countable(exact(), shape) == 24


def test_excluded_runs_are_in_neither_part():
    runs = RunSet((*exact().runs, replace(run("x", 1, 16, cycle_ms=1.0), excluded="cold")))
    assert countable(runs, configuration) == 26
    assert "x" not in {h.run for h in held_out(runs, configuration)}


# -- what a user would use instead ---------------------------------------------------------------------------------------


def test_the_proportional_guess_by_hand():
    """Four tokens are four plain steps of that batch size; without them, 8 tokens cost four times what 2 do."""
    plain = (run("p", 2, None, decode_ms=14.0), run("q", 2, None, decode_ms=16.0))
    asked, other = run("c", 2, 4, cycle_ms=20.0), run("d", 8, 4, cycle_ms=20.0)
    runs = RunSet((*plain, asked, other))
    assert plain_steps(runs) == {2: 15.0}
    assert proportional(runs)(asked, "cycle") == 60.0
    assert proportional(runs)(other, "cycle") is None  # no plain step at that batch size
    narrow, wide = run("n", 1, 2, verify_ms=10.0), run("w", 2, 4, verify_ms=12.0)
    guess = proportional(RunSet((wide, narrow)))
    assert (guess(wide, "verify"), guess(narrow, "verify"), guess(narrow, "draft")) == (40.0, None, None)


def test_a_constant_ratio_by_hand():
    """24 ms at three drafts over a step of 15: a fifth of a step each; five drafts at batch 4 take 16·2."""
    known, deep = run("k", 1, 4, cycle_ms=24.0), run("d", 4, 6, cycle_ms=30.0)
    runs = RunSet((run("p", 1, None, decode_ms=15.0), run("q", 4, None, decode_ms=16.0), deep, known))
    guess = constant_ratio(runs)
    assert guess(deep, "cycle") == pytest.approx(32.0)
    assert guess(known, "cycle") is None
    forwards = (run("1", 1, 1, verify_ms=7.0), run("2", 1, 2, verify_ms=8.0))
    flat = constant_ratio(RunSet(forwards))
    assert (flat(forwards[1], "verify"), flat(forwards[0], "verify")) == (7.0, None)


def test_the_roofline_by_hand():
    """16 GB at 4 TB/s are 4 ms; 500 tokens × 2 × 8e9 operations at 1e15 are 8. Of 30 units two tokens in ten touch 5.7."""
    dense = Roofline(8e9, 8e9, 1.0, 2.0, 4e12, 1e15)
    assert (dense.forward_ms(1), dense.forward_ms(500)) == (pytest.approx(4.0), pytest.approx(8.0))
    experts = Roofline(30e9, 3e9, 0.1, 2.0, 1e12, 1e18)
    assert (experts.forward_ms(1), experts.forward_ms(2)) == (pytest.approx(6.0), pytest.approx(11.4))
    assert dense.guess(run("c", 4, 3, cycle_ms=9.0), "cycle") == dense.forward_ms(12)
    assert dense.guess(run("c", 4, 3, cycle_ms=9.0), "draft") is None


# -- cells ---------------------------------------------------------------------------------------------------------------


def test_the_cells_by_hand():
    """Errors of 1, 2 and 4%: median 2, p95 between 2 and 4 at nine tenths, 3.8; two of three inside, one flagged."""
    held = [
        Held("a", "cycle", 100.0, 101.0, inside=True, extrapolated=False),
        Held("b", "cycle", 100.0, 98.0, inside=True, extrapolated=False),
        Held("c", "cycle", 100.0, 104.0, inside=False, extrapolated=True),
    ]
    assert summed_up(h.error for h in held) == "2.0% | 3.8% | 4.0%"
    assert summed_up([]) == "– | – | –"
    assert covered(held) == "67%"
    assert (covered([]), inside_the_range([])) == ("–", "0 | – | –")
    assert inside_the_range(held) == "2 | 1.5% | 2.0%"
    runs = RunSet(tuple(run(name, 1, 2, cycle_ms=100.0) for name in "abc"))
    guess = {"a": 110.0, "b": None, "c": 80.0}
    assert instead(runs, held, lambda r, kind: guess[r.id]) == "2 | 15.0% | 2.5%"
    assert instead(runs, held, None) == "– | – | –"


def group(tmp_path, lines: list[str]) -> Group:
    path = tmp_path / "group.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Group("made up", str(path), {"a configuration": configuration})


def test_a_group_file_becomes_lines_of_the_tables(tmp_path):
    """Cycles 20 + 2·N at widths 2 to 8, a step of 15 ms: all but the one baseline is predicted, exactly."""
    rows = [f"c{n},1,{n},{20 + 2 * n},,{length}" for n, length in ((2, 1.9), (4, 1.5), (6, 2.0), (8, 4.0))]
    made = group(tmp_path, ["id,batch_size,num_draft_tokens,cycle_ms,decode_ms,accept_length", *rows, "p,1,,,15,"])
    (result,) = accuracy_cost.results([made])
    table, instead_ = accuracy_cost.held_table([result]), accuracy_cost.instead_table([result])
    assert table.splitlines()[-1].startswith("| made up | a configuration | 4 of 5 | 0.0% | 0.0% | 0.0% |")
    # proportional: 30, 60, 90 and 120 ms for 24, 28, 32 and 36; a constant ratio from 28 ms at three drafts: 13/45 a draft
    off = [30 / 24 - 1, 60 / 28 - 1, 90 / 32 - 1, 120 / 36 - 1]
    flat = [1 - 15 * (1 + 13 / 45) / 24, 15 * (1 + 5 * 13 / 45) / 32 - 1, 15 * (1 + 7 * 13 / 45) / 36 - 1]
    expected = f"| made up | 4 | {np.median(off):.1%} | 0.0% | 3 | {np.median(flat):.1%} | 0.0% | – | – | – |"
    assert instead_.splitlines()[-1] == expected
    assert "Of all 4 times" in accuracy_cost.together([result])


# -- break-even ----------------------------------------------------------------------------------------------------------


def test_a_break_even_of_a_known_truth(tmp_path):
    """C/t = (20 + 2·N)/15: 1.6, 1.87, 2.13, 2.4. Lengths of 1.9 and 4.0 pay, 1.5 and 1.6 do not."""
    rows = [f"c{n},1,{n},{20 + 2 * n},,{length}" for n, length in ((2, 1.9), (4, 1.5), (6, 1.6), (8, 4.0))]
    made = group(tmp_path, ["id,batch_size,num_draft_tokens,cycle_ms,decode_ms,accept_length", *rows, "p,1,,,15,"])
    found = {each.run: each for each in accuracy_break_even.asked(made)}
    assert [found[f"c{n}"].predicted_ratio for n in (2, 4, 6, 8)] == pytest.approx([24 / 15, 28 / 15, 32 / 15, 36 / 15])
    assert [found[f"c{n}"].pays for n in (2, 4, 6, 8)] == [True, False, False, True]
    assert [found[f"c{n}"].verdict for n in (2, 4, 6, 8)] == [PAYS, LOSES, LOSES, PAYS]
    assert found["c4"].constant_ratio is None  # the known run
    cells = accuracy_break_even.table([made]).splitlines()[-1]
    # 13/45 a draft: 1.29 for c2 (pays, right), 2.44 for c6 (loses, right), 3.02 for c8 (pays, right)
    assert cells == "| all | 4 of 4 | 2 | 0.0% | 0.0% | 4 of 4 | 0 | 4 of 4 | 3 of 3 |"


def test_signs_and_verdicts_by_hand():
    wrong = Asked("w", 2.0, 1.9, 2.1, UNDECIDED, 1.95)
    assert (wrong.pays, wrong.sign_right, wrong.decided, wrong.decided_right) == (True, False, False, False)
    assert wrong.constant_ratio_right
    assert wrong.error == pytest.approx(0.2 / 1.9)
    never = Asked("n", 2.0, 3.1, 3.2, IMPOSSIBLE, None)
    assert (never.pays, never.sign_right, never.decided, never.decided_right) == (False, True, True, True)
    bold = Asked("b", 2.0, 2.1, 1.5, PAYS, 1.0)
    assert (bold.decided, bold.decided_right, bold.constant_ratio_right) == (True, False, False)
    line = accuracy_break_even.line("x", [wrong, never, bold], 4)
    assert line == "| x | 3 of 4 | 1 | 10.5% | 28.6% | 1 of 3 | 1 | 1 of 2 | 1 of 2 |"


# -- the peers' protocols, on made-up rows in the form of their files ------------------------------------------------------


def forward(graph: str, batch: int, width: int, context: int, ms: float) -> dict[str, str]:
    return {
        "model": "M", "gpu": "G", "graph_mode": graph, "num_reqs": str(batch), "tokens_per_req": f"{width:.1f}",
        "context_len": str(context), "step_ms_median": str(ms),
    }  # fmt: skip


def test_a_row_of_forwards_is_a_bare_forward_of_the_target():
    split = accuracy_peers.forwards([forward("graph", 4, 1, 512, 2.0), forward("eager", 8, 16, 1024, 8.0)])
    (plain,), (wide,) = split.seen, split.unseen
    assert (plain.spec.num_steps, plain.spec.num_draft_tokens, plain.workload.batch_size) == (0, 1, 4)
    assert (wide.spec.num_draft_tokens, wide.workload.context_len, wide.setup.cuda_graph) == (16, 1024, False)
    assert (split.of(True).seen, split.of(True).unseen) == ((plain,), ())
    assert {name: figure.best for name, figure in wide.figures.items()} == {"verify_ms": 8.0}


def test_forwards_by_hand():
    """1 + 0.5·T ms; the unseen ones read 2.1 for 2.0 and 3.0 for 3.0: 0.07 ms rms, 2.4% on average, 4.8% at most."""
    rows = [forward("graph", t, 1, 960, 1 + 0.5 * t) for t in (1, 3, 5, 8)]
    rows += [forward("graph", 2, 1, 1024, 2.1), forward("graph", 4, 1, 1024, 3.0)]
    split = accuracy_peers.forwards(rows)
    table = accuracy_peers.forwards_table(split, split).splitlines()
    assert table[2].startswith(
        f"| graph rows | 2 of 2 | {0.1 / 2**0.5:.3f} ms | {0.1 / 2.1 / 2:.2%} | {0.1 / 2.1:.2%} |"
    )
    assert "refused" in table[3]  # no eager row at all
    assert table[4].replace("the two fits together", "graph rows") == table[2]


def test_what_a_fit_refuses_is_said_in_the_table():
    rows = [forward("eager", b, 2, 960, 2.0 + b) for b in (1, 2)] + [forward("eager", 3, 2, 1024, 5.0)]
    split = accuracy_peers.forwards(rows)
    mixed = replace(split.seen[0], setup=replace(split.seen[0].setup, hardware="H"))
    compared, why = accuracy_peers._tried(replace(split, seen=(mixed, *split.seen[1:])), allow_mixed=False)
    assert (compared, why) == ((), "refused: the runs differ in hardware")


def test_speedups_by_depth_of_a_known_truth():
    """V = 40 + 10·N, a draft 5 ms, 7 ms of other: what one run with one draft says of two and of four is exact."""
    passes = [_pass(accuracy_peers.TARGET, n, 40.0 + 10 * n) for n in (1, 2, 3, 5, 9)] + [_pass("D", 1, 5.0)]
    rates = {1: 0.6, 2: 0.7, 4: 0.5}
    speedups = {k: sum(rates[k] ** i for i in range(k + 1)) * 50.0 / (40 + 10 * (k + 1) + 5 * k + 7) for k in rates}
    runs = [
        {"scope": "pooled", "draft": "D", "k": str(k), "p_at_k": str(rates[k]), "measured_speedup": str(speedups[k]),
         "peer_one_depth_pred": str(speedups[k] + 0.01), "one_depth_err_using_p_at_k1": "-0.02"}
        for k in rates
    ]  # fmt: skip
    found = accuracy_peers.depths(passes, [*runs, {**runs[0], "scope": "copy"}])
    assert [(each.draft, each.depth) for each in found] == [("D", 2), ("D", 4)]
    for each in found:
        assert each.own_acceptance == pytest.approx(each.measured, rel=1e-9)
    two = sum(0.6**i for i in range(3)) * 50.0 / (70 + 10 + 7)  # the acceptance of the run with one draft
    assert found[0].first_acceptance == pytest.approx(two, rel=1e-9)
    table = accuracy_peers.depths_table(found).splitlines()
    assert table[2].split("|")[3].strip() == "0.0000"
    assert table[2].split("|")[5].strip() == "0.0100"
    assert table[3].split("|")[5].strip() == "0.0200"


def _pass(model: str, tokens: int, ms: float) -> dict[str, str]:
    return {"model": model, "tokens_in_pass": str(tokens), "median_ms": str(ms), "q1_ms": str(ms), "q3_ms": str(ms)}


def served(batch: int, cycle: float, step: float, gpu: str = "A100", length: float = 2.0) -> dict[str, str]:
    return {
        "model": "M", "gpu": gpu, "dtype": "bf16", "dataset": "d", "max_num_seqs": str(batch), "k": "3", "isl_mean": "500",
        "osl_mean": "100", "base_out_tok_s": str(1000 * batch / step), "accept_len": str(length),
        "eagle_out_tok_s": str(1000 * batch * length / cycle), "speedup_overall": str(length * step / cycle),
        "formula_model_recomputed": str(1.1 * length * step / cycle),
    }  # fmt: skip


def test_served_speedups_of_a_known_truth():
    """C = 20 + 0.3·B and t = 10 + 0.1·B at three batch sizes: every one follows from the other two, wherever it lies."""
    rows = [served(b, 20 + 0.3 * b, 10 + 0.1 * b) for b in (16, 32, 64)]
    found = accuracy_peers.served(rows)
    assert [(each.batch_size, each.inside) for each in found] == [(16, False), (32, True), (64, False)]
    for each in found:
        assert each.ours == pytest.approx(each.measured, rel=1e-6)
    assert found[2].nearest == pytest.approx(2 * (10 + 3.2) / (20 + 9.6))
    line = accuracy_peers.served_table(found).splitlines()[2]
    assert line.startswith("| A100, batch sizes between others | 1 | 0.0% | 0.0% | 10.0% | 10.0% |")


def test_one_other_batch_size_tells_nothing():
    found = accuracy_peers.served([served(b, 20 + 0.3 * b, 10 + 0.1 * b) for b in (16, 32)])
    assert [each.ours for each in found] == [None, None]
    assert (
        accuracy_peers.served_table(found)
        .splitlines()[4]
        .startswith("| A100, all that the peer predicts | 2 | – | – |")
    )


def test_a_folder_without_the_files_is_said(tmp_path, capsys, monkeypatch):
    with pytest.raises(SpecsimError, match=r"adixg_h100_e1_e5\.csv is not there"):
        accuracy_peers.page(tmp_path)
    for name in ("PAGE", "PEERS_PAGE"):
        monkeypatch.setattr(accuracy, name, tmp_path / name)
    with pytest.raises(SystemExit) as left:
        accuracy.main(["--peers", str(tmp_path)])
    assert left.value.code == 2
    assert "is not there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_both_pages(tmp_path, monkeypatch):
    for name in ("PAGE", "PEERS_PAGE"):
        monkeypatch.setattr(accuracy, name, tmp_path / name)
    monkeypatch.setattr(accuracy, "page", lambda: "the page")
    monkeypatch.setattr(accuracy_peers, "page", lambda folder: f"the page of {folder.name}")
    accuracy.main(["--peers", "somewhere"])
    assert (tmp_path / "PAGE").read_text() == "the page"
    assert (tmp_path / "PEERS_PAGE").read_text() == "the page of somewhere"
