from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specsim import Setup, fit
from specsim.errors import MixedSetupError, NotIdentifiedError
from specsim.evaluation import Accuracy, evaluate
from specsim.runs.run import Figure
from tests.synthetic import Truth, lognormal, phase_runs, run

PAIR = [run("6", 1, 6, verify_ms=28.7), run("3", 1, 3, verify_ms=25.6)]


def test_a_held_out_width_beside_its_prediction():
    """22.5 + 3.1/3·4 = 26.633 ms against 27.0 measured: -1.36%."""
    found = evaluate(fit(PAIR).model, [run("4", 1, 4, verify_ms=27.0)])
    (row,) = found.compared
    assert row.predicted == pytest.approx(22.5 + 3.1 / 3 * 4)
    assert row.difference_pct == pytest.approx(100 * (row.predicted / 27.0 - 1))
    assert (row.in_fit, row.extrapolated_in, row.mixed_in) == (False, (), ())


def test_the_interval_is_that_of_a_new_measurement():
    """At 6 tokens the line passes through a point known to 1%; a new one adds another 1%: √2·1%, z = 1.645."""
    (row,) = evaluate(fit(PAIR).model, [run("again", 1, 6, verify_ms=28.7)]).compared
    assert row.interval[1] - 28.7 == pytest.approx(1.6448536 * 2**0.5 * 0.01 * 28.7, rel=1e-6)
    four = run("repeats", 1, 6)
    four = replace(four, figures={"verify_ms": Figure(repeats=(28.7,) * 4)})
    (row,) = evaluate(fit(PAIR).model, [four]).compared
    assert row.interval[1] - 28.7 == pytest.approx(1.6448536 * 1.25**0.5 * 0.01 * 28.7, rel=1e-6)


def test_throughput_is_compared_at_the_rows_own_accept_length():
    """C = 30 ms at 6 tokens, so 2 requests and 2.5 tokens a cycle give 166.7 tok/s."""
    model = fit([run("a", 2, 6, cycle_ms=30.0), run("b", 2, 3, cycle_ms=27.0), run("p", 2, None, decode_ms=15.0)]).model
    rows = evaluate(model, [run("c", 2, 6, accept_length=2.5, output_tok_s=160.0), run("q", 2, None, output_tok_s=130)])
    assert [c.predicted for c in rows.compared] == [pytest.approx(2 * 2.5 / 0.030), pytest.approx(2 / 0.015)]
    for row in rows.compared:
        assert row.interval[0] < row.predicted < row.interval[1]


def test_a_bare_target_forward_is_a_row_of_one_token():
    (row,) = evaluate(fit(PAIR).model, [run("bare", 1, 1, verify_ms=23.0)]).compared
    assert row.predicted == pytest.approx(22.5 + 3.1 / 3)
    assert row.extrapolated_in == ("verify_tokens",)


def test_rows_that_were_fitted_are_told_from_those_held_out():
    model = fit([*PAIR, run("p", 1, None, decode_ms=15.0)]).model
    moved = run("6", 2, 6, verify_ms=36.0)  # the name of a fitted run, another batch size
    found = evaluate(model, [PAIR[0], run("p", 1, None, decode_ms=15.0), run("4", 1, 4, verify_ms=27.0)])
    assert [c.in_fit for c in found.compared] == [True, True, False]
    assert [c.run for c in found.held_out] == ["4"]
    assert not evaluate(model, [moved]).compared[0].in_fit


def test_the_summary_by_hand():
    """Differences of -1, +2 and +4%: median 2, p95 3.8 (between 2 and 4), bias 5/3."""
    model = fit(PAIR, noise=0.001).model
    times = [model.verify(_cycle(6), "s").point.value[0] / (1 + d) for d in (-0.01, 0.02, 0.04)]
    found = Accuracy.of(evaluate(model, [run(str(i), 1, 6, verify_ms=t) for i, t in enumerate(times)]).compared)
    assert (found.count, found.coverage) == (3, 0.0)
    assert (found.median_abs_pct, found.p95_abs_pct, found.max_abs_pct) == (
        pytest.approx(2.0), pytest.approx(3.8), pytest.approx(4.0),
    )  # fmt: skip
    assert found.bias_pct == pytest.approx(5 / 3)


def _cycle(width):
    from specsim import SpecConfig, Workload
    from specsim.cost.terms import Cycle

    return Cycle.of(SpecConfig.of(num_draft_tokens=width), Workload(1), None)


def test_what_cannot_be_compared_is_listed_with_its_reason():
    model = fit([run("a", 1, 6, cycle_ms=30.0), run("p", 1, None, decode_ms=15.0)]).model
    runs = [
        run("a", 1, 6, cycle_ms=30.0),
        run("other", 1, 6, nccl="NVLS", cycle_ms=30.0),
        run("open", 1, 3, cycle_ms=27.0),
        run("phase", 1, 6, verify_ms=28.0, draft_ms=1.0, output_tok_s=70.0),
        run("batch", 4, None, decode_ms=16.0),
        run("length", 1, 6, accept_length=2.0),
        replace(run("left", 1, 6, cycle_ms=30.0), excluded="cold start"),
    ]
    found = evaluate(model, runs)
    said = {(each.run, each.figures): each.why for each in found.unevaluated}
    assert [c.run for c in found.compared] == ["a"]
    assert "unknown NCCL setting 'NVLS'; known here: s" in said["other", ()]
    assert "measure a second width" in said["open", ("cycle_ms",)]
    assert "only whole cycles" in said["phase", ("verify_ms",)]
    assert "timed draft alone" in said["phase", ("draft_ms",)]
    assert "without an accept length" in said["phase", ("output_tok_s",)]
    assert "measure it at that batch_size" in said["batch", ("decode_ms",)]
    assert "no time" in said["length", ()]
    assert said["left", ()] == "excluded: cold start"


def test_lower_bounds_are_not_held_against_whole_cycles():
    with pytest.raises(NotIdentifiedError, match="lower bounds: draft, extend, other"):
        evaluate(fit(PAIR).model, [run("c", 1, 6, cycle_ms=30.0)])


def test_another_setup_is_refused_or_labelled():
    h100, b200 = Setup(hardware="H100"), Setup(hardware="B200")
    model = fit([replace(each, setup=h100) for each in PAIR]).model
    same, other = (
        replace(run("x", 1, 4, verify_ms=27.0), setup=h100),
        replace(run("y", 1, 4, verify_ms=9.0), setup=b200),
    )
    with pytest.raises(MixedSetupError, match="its hardware is not the model's") as caught:
        evaluate(model, [other])
    assert caught.value.fields == ("hardware",)
    found = evaluate(model, [same, other])
    assert [each.run for each in found.unevaluated] == ["y"]
    mixed = evaluate(model, [same, other], allow_mixed=True)
    assert [c.mixed_in for c in mixed.compared] == [(), ("hardware",)]
    assert mixed.mixed == ("hardware",)


def test_runs_that_differ_where_the_model_is_silent_are_refused():
    runs = [replace(run(name, 1, 4, verify_ms=27.0), setup=Setup(hardware=name)) for name in ("H100", "B200")]
    with pytest.raises(MixedSetupError, match="differ in hardware, which the model does not state"):
        evaluate(fit(PAIR).model, runs)
    assert evaluate(fit(PAIR).model, runs, allow_mixed=True).mixed == ("hardware",)


def test_another_environment_under_the_same_label_is_not_like_for_like():
    model = fit([replace(each, nccl_env={"NCCL_PROTO": "LL"}) for each in PAIR]).model
    with pytest.raises(MixedSetupError, match="nccl_env of s"):
        evaluate(model, [replace(PAIR[0], id="n", nccl_env={"NCCL_PROTO": "Simple"})])


def test_intervals_hold_nine_of_ten_new_measurements():
    """500 held-out rows, 25 fits of their own: nominal 90%, binomial standard error 1.3%."""
    truth, draw = Truth(), lognormal(7, 0.02)
    found = []
    for _ in range(25):
        model = fit(phase_runs(truth, (2, 4, 6, 8), (1, 4), draw)).model
        fresh = [run(f"n{n}", 2, n, verify_ms=truth.verify(2, n) * draw()) for n in range(2, 9)]
        fresh += [run(f"c{n}", 1, n, cycle_ms=truth.cycle(1, n) * draw()) for n in range(2, 9)]
        fresh += [run(f"d{n}", n, None, decode_ms=truth.decode(n) * draw()) for n in range(1, 5)]
        fresh += [run("r", 1, 4, accept_length=2.0, output_tok_s=2000.0 / (truth.cycle(1, 4) * draw()))]
        fresh += [run("b", 1, 1, verify_ms=truth.verify(1, 1) * draw())]
        found += evaluate(model, fresh).held_out
    assert len(found) == 500
    assert 0.87 <= np.mean([c.inside for c in found]) <= 0.93


def test_intervals_hold_where_few_runs_tell_the_noise():
    """500 fits to five runs (3 degrees of freedom), one new measurement each: Student's t carries it."""
    truth, draw, inside = Truth(), lognormal(11, 0.02), []
    for _ in range(500):
        model = fit([run(f"{n}", 1, n, verify_ms=truth.verify(1, n) * draw()) for n in (2, 4, 6, 8, 10)]).model
        inside.append(evaluate(model, [run("new", 1, 7, verify_ms=truth.verify(1, 7) * draw())]).compared[0].inside)
    assert 0.87 <= np.mean(inside) <= 0.93


def test_a_name_that_was_fitted_does_not_make_another_run_fitted():
    model = fit([*PAIR, run("p", 1, None, decode_ms=15.0), run("p4", 4, None, decode_ms=16.0)]).model
    others = [run("p", 2, None, decode_ms=15.3), run("6", 1, 6, accept_length=2.0, verify_ms=28.7)]
    assert [c.in_fit for c in evaluate(model, others).compared] == [False, False]


# -- the command -------------------------------------------------------------------------------------------------------

HEADER = "id,nccl,batch_size,num_draft_tokens,num_steps,verify_ms,draft_ms,cycle_ms,decode_ms,hardware"
FITTED = (HEADER, "6,a,1,6,,28.7,1.07,30.29,,H100", "3,a,1,3,,25.6,0.69,,,H100", "p,a,1,,,,,,15.9,H100")


def test_json_has_the_promised_names(run_cli, csv, tmp_path):
    model = tmp_path / "model.json"
    assert run_cli("fit", csv(*FITTED), "-o", model).exit_code == 0
    path = csv(HEADER, "4,a,1,4,,27,,,,H100", "bare,a,1,1,0,23,,,,H100", "q,b,1,4,,27,,,,H100", name="new.csv")
    record = json.loads(run_cli("evaluate", "--model", model, path, "--json").stdout)
    assert [row["run"] for row in record["rows"]] == ["4", "bare"]
    assert record["count"] == record["held_out"]["count"] == 2
    for name in ("median_abs_pct", "p95_abs_pct", "max_abs_pct", "bias_pct", "coverage"):
        assert isinstance(record[name], float)
    assert [each["run"] for each in record["unanswered"]] == ["q"]
    assert "a new measurement" in record["interval_of"]
    text = " ".join(run_cli("evaluate", "--model", model, path).stdout.split())
    assert "unknown NCCL setting 'b'" in text
    assert record["interval_of"] in text
    for note in record["notes"]:
        assert " ".join(note.split()) in text


def test_nothing_held_out_is_null_and_said(run_cli, csv):
    record = json.loads(run_cli("evaluate", csv(*FITTED), "--json").stdout)
    assert record["held_out"] == {"count": 0, **dict.fromkeys(
        ("median_abs_pct", "p95_abs_pct", "max_abs_pct", "bias_pct", "coverage")
    )}  # fmt: skip
    assert "no run here was held out" in run_cli("evaluate", csv(*FITTED)).stdout


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("id,verify", "a,1"), "did you mean"),
        ((HEADER, "4,a,1,4,,27,,,,B200"), "hardware is not the model's"),
        ((HEADER, "4,b,1,4,,27,,,,"), "unknown NCCL setting"),
    ],
)
def test_bad_files_exit_with_2(run_cli, csv, tmp_path, lines, said):
    model = tmp_path / "model.json"
    run_cli("fit", csv(*FITTED), "-o", model)
    result = run_cli("evaluate", "--model", model, csv(*lines, name="bad.csv"))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert run_cli("evaluate", "--model", tmp_path / "none.json", csv(*FITTED)).exit_code == 2
    assert run_cli("evaluate", "--model", model, "--noise", 0.1, csv(*FITTED)).exit_code == 2
