from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from specsim.cli.main import _COMMANDS, main
from tests.unit.test_import_logs import decode

PAIR = ("nccl,batch_size,num_draft_tokens,verify_ms,draft_ms,cycle_ms,decode_ms,accept_length",
        "a,1,6,28.7,1.07,30.29,,2.1", "a,1,3,25.6,0.69,,,", "a,1,,,,,15.9,")  # fmt: skip


def as_json(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_break_even_without_arguments_tells_the_campaign(run_cli):
    out = run_cli("break-even").stdout
    for said in ("2.69", "1.905", "2.068", "78.4%", "-24.4%", "undecided", "assumed", "Kimi-K2.5"):
        assert said in out


def test_text_and_json_carry_the_same_labels(run_cli):
    text, record = run_cli("break-even").stdout, as_json(run_cli("break-even", "--json"))
    flat = " ".join(text.split())
    for note in record["notes"]:
        assert " ".join(note.split()) in flat
    for correction in record["corrections"]:
        assert " ".join(correction["finding"].split()) in flat


def test_fit_json_has_the_promised_names(run_cli, csv):
    record = as_json(run_cli("fit", csv(*PAIR), "--json"))
    assert record["verify_fixed_ms"] == pytest.approx(22.5)
    assert record["verify_per_token_ms"] == pytest.approx(3.1 / 3)
    assert (record["residual_dof"], record["noise_assumed"]) == (0, True)


def test_predict_json_has_the_promised_names(run_cli, csv):
    record = as_json(run_cli("predict", csv(*PAIR), "--num-draft-tokens", 6, "--accept-length", 2.1, "--json"))
    assert record["cycle_ms"] == pytest.approx(30.29)
    assert record["verify_ms"] == pytest.approx(28.7)
    assert record["output_tok_s"] == pytest.approx(2.1 / 0.03029)
    assert record["speedup"] == pytest.approx(2.1 * 15.9 / 30.29)
    assert record["extrapolated"] is False
    beyond = as_json(run_cli("predict", csv(*PAIR), "--num-draft-tokens", 8, "--accept-length", 2.1, "--json"))
    assert beyond["extrapolated"] is True
    assert "verify_tokens outside the measured 3 to 6" in beyond["extrapolated_in"]


def test_break_even_json_has_the_promised_names(run_cli, csv):
    record = as_json(run_cli("break-even", csv(*PAIR), "--num-steps", 5, "--nccl", "a", "--json"))
    assert record["break_even_accept_length"] == pytest.approx(30.29 / 15.9)
    low, high = record["interval"]
    assert low < 30.29 / 15.9 < high
    assert (record["max_accept_length"], record["feasible"], record["mixed_setup"]) == (6, True, False)
    assert (record["decode_ms"], record["cycle_ms"]) == (pytest.approx(15.9), pytest.approx(30.29))
    assert record["rows"][0]["break_even_accept_length"] == record["break_even_accept_length"]


def test_the_mixed_break_even_is_labelled(run_cli):
    refused = run_cli("break-even", "--nccl", "default", "--baseline-nccl", "LL-Ring-SYS")
    assert refused.exit_code == 2
    assert "differ in nccl" in refused.stderr
    asked = ("--nccl", "default", "--baseline-nccl", "LL-Ring-SYS", "--num-draft-tokens", 6, "--allow-mixed")
    record = as_json(run_cli("break-even", *asked, "--json"))
    assert round(record["break_even_accept_length"], 2) == 2.69
    assert (record["mixed_setup"], record["mixed_fields"]) == (True, ["nccl"])
    assert "MIXED" in run_cli("break-even", *asked).stdout


def test_an_infeasible_break_even_says_so(run_cli, csv):
    path = csv("nccl,batch_size,num_draft_tokens,cycle_ms,decode_ms", "a,1,3,34,", "a,1,2,31,", "a,1,,,10")
    out = run_cli("break-even", path).stdout
    assert "no accept length breaks even: needs 3.40, at most 3 possible" in out
    record = as_json(run_cli("break-even", path, "--num-draft-tokens", 3, "--json"))
    assert (record["feasible"], record["break_even_accept_length"]) == (False, None)
    assert record["cost_ratio"] == pytest.approx(3.4)


def test_a_model_file_answers_as_its_runs_do(run_cli, csv, tmp_path):
    path, model = csv(*PAIR), tmp_path / "model.json"
    assert run_cli("fit", path, "-o", model).exit_code == 0
    for command in ("break-even", "predict"):
        assert as_json(run_cli(command, "--model", model, "--accept-length", 2, "--json")) == as_json(
            run_cli(command, path, "--accept-length", 2, "--json")
        )


def test_a_smaller_noise_narrows_the_interval(run_cli, csv):
    def width(noise: float) -> float:
        low, high = as_json(run_cli("break-even", csv(*PAIR), "--noise", noise, "--json"))["interval"]
        return high - low

    assert width(0.001) < width(0.01) < width(0.05)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("predict", "--nccl", "NVLS"), "unknown NCCL setting 'NVLS'; known here: default, LL-Ring-SYS"),
        (("predict", "--num-draft-tokens", "4"), "no accept length was measured at num_draft_tokens 4"),
        (("predict", "--num-draft-tokens", "4", "--accept-length", "5"), "allowed is 1 to 4"),
        (("break-even", "--num-draft-tokens", "1", "--topk", "3"), "needs num_steps, topk and num_draft_tokens"),
        (("break-even", "--num-steps", "2", "--topk", "4", "--num-draft-tokens", "99"), "verifies 2 to 21 tokens"),
        (("break-even", "--num-draft-tokens", "6", "--batch-size", "0"), "batch_size must be"),
        (("break-even", "--batch-size", "8"), "measured at batch_size 1, asked is 8"),
        (("break-even", "--model", "none.json"), "none.json: cannot be read"),
        (("break-even", "none.csv"), "none.csv: cannot be read"),
        (("fit", "--noise", "2"), "fraction between 0 and 1"),
        (("fit", "-o", "no/such/folder/m.json"), "cannot be written"),
        (("plot", "-o", "one.png"), "name one KIND"),
        (("plot", "none.csv"), "none.csv: cannot be read"),
        (("plot", "throughputt"), "did you mean 'throughput'?"),
        (("plot", "cycle", "-o", "figure.pdf"), "png or svg"),
        (("plot", "throughput", "--num-draft-tokens", "1"), "no curve to draw"),
        (("break-even", "--model", "m.json", "runs.csv"), "give one or the other"),
        (("frobnicate",), "No such command"),
    ],
)
def test_bad_input_is_told_on_stderr_with_exit_code_2(run_cli, arguments, said):
    result = run_cli(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "schema: is missing"),
        ('{"schema": "specsim-model/9"}', "allowed: 'specsim-model/1'"),
        ('{"schema": "specsim-model/1"}', "coefficients: Field required"),
    ],
)
def test_a_bad_model_file_names_file_and_field(run_cli, tmp_path, body, said):
    path = tmp_path / "model.json"
    path.write_text(body, encoding="utf-8")
    result = run_cli("predict", "--model", path)
    assert result.exit_code == 2
    assert f"specsim: {path}" in result.stderr
    assert said in result.stderr


def test_a_model_file_that_was_cut_is_refused(run_cli, tmp_path):
    path = tmp_path / "model.json"
    run_cli("fit", "-o", path)
    body = json.loads(path.read_text(encoding="utf-8"))
    body["covariance"] = body["covariance"][:-1]
    path.write_text(json.dumps(body), encoding="utf-8")
    result = run_cli("predict", "--model", path)
    assert result.exit_code == 2
    assert "covariance" in result.stderr


@pytest.mark.parametrize("name", [name for name in _COMMANDS if name != "check"])  # its own test has the server
def test_every_command_has_an_example_that_runs(name, tmp_path, monkeypatch):
    runner = CliRunner()
    text = runner.invoke(main, [name, "--help"]).output
    example = re.search(r"Example:\n +specsim (.*)\n", text).group(1).split()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text("\n".join(PAIR), encoding="utf-8")
    intervals = (decode(s, 2, 100 + 240 * s, "3.00", "0.67", "400.0") for s in range(3))
    (tmp_path / "server.log").write_text("\n".join(intervals), encoding="utf-8")
    result = runner.invoke(main, example, catch_exceptions=False)
    assert result.exit_code == 0, result.output


def test_the_first_help_lists_every_command(run_cli):
    out = run_cli("--help").stdout
    assert all(name in out for name in _COMMANDS)


def test_plot_writes_png_and_svg_and_says_where(run_cli, tmp_path):
    record = as_json(run_cli("plot", "-o", tmp_path / "plots", "--json"))
    names = {"break_even", "cycle", "throughput"}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {f"{n}.{f}" for n in names for f in ("png", "svg")}
    assert len(record["files"]) == 6
    for path in (tmp_path / "plots").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_one_kind_into_one_file(run_cli, tmp_path, csv):
    target = tmp_path / "figure.svg"
    assert run_cli("plot", "throughput", csv(*PAIR), "-o", target).exit_code == 0
    assert "<svg" in target.read_text(encoding="utf-8")


DAMAGE = {
    "coefficients.0.name": ("verify_cubic_ms", "no term of this model"),
    "coefficients.0.value": (-1.0, "at least 0"),
    "covariance.0.0": (-1.0, "negative variance"),
    "noise.relative": (-0.1, "noise must be finite"),
    "noise.residual_dof": (-1, "noise must be finite"),
    "reference": ("nobody", "hold the reference"),
    "settings.0.decode_batches": ([0.0], "measured at 0.0"),
    "ranges.batch_size": ([8.0, 1.0], "from low to high"),
    "measured.0.num_draft_tokens": (99, "no legal configuration"),
    "measured.0.accept_length": (99.0, "accept_length 99.0"),
    "measured.0.nccl": ("nobody", "setting of this model"),
    "surprise": (1, "surprise"),
    "covariance.0": ([1.0], "covariance"),
}


@pytest.mark.parametrize("where", list(DAMAGE))
def test_a_damaged_model_file_is_refused_by_name(run_cli, tmp_path, where):
    path = tmp_path / "model.json"
    run_cli("fit", "-o", path)
    body = json.loads(path.read_text(encoding="utf-8"))
    value, said = DAMAGE[where]
    *parents, last = where.split(".")
    target = body
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[int(last) if isinstance(target, list) else last] = value
    path.write_text(json.dumps(body), encoding="utf-8")
    for command in ("predict", "break-even"):
        result = run_cli(command, "--model", path)
        assert result.exit_code == 2
        assert str(path) in result.stderr
        assert said in result.stderr


def test_an_excluded_run_that_the_fit_cannot_speak_of_is_no_failure(run_cli, csv):
    path = csv("id,batch_size,num_draft_tokens,verify_ms,exclude", "a,1,6,28,", "b,1,3,25,other instrument")
    result = run_cli("fit", path)
    assert result.exit_code == 0
    assert "not fitted: b (other instrument)" in result.stdout


def test_whole_cycles_are_called_the_cycle_in_text_and_json(run_cli, csv):
    path = csv("batch_size,num_draft_tokens,cycle_ms", "1,6,30", "1,3,27")
    record = as_json(run_cli("fit", path, "--json"))
    assert (record["verify_fixed_ms"], record["cycle_fixed_ms"]) == (None, pytest.approx(24.0))
    assert {c["name"] for c in record["coefficients"] if c["runs"]} == {"cycle_fixed_ms", "cycle_per_token_ms"}
    assert "verify_fixed_ms" not in run_cli("fit", path).stdout


def test_a_length_from_elsewhere_says_so(run_cli):
    record = as_json(run_cli("break-even", "--nccl", "LL-Ring-SYS", "--num-draft-tokens", 6, "--json"))
    assert record["accept_length_elsewhere"] is True
    assert "² measured under another NCCL setting" in run_cli("break-even", "--nccl", "LL-Ring-SYS").stdout


def test_bounds_of_block_drafters_are_not_made_up(run_cli, csv):
    header = "method,batch_size,num_draft_tokens,cycle_ms,decode_ms,accept_length"
    path = csv(header, "dflash,1,8,20,,2.4", "dflash,1,4,18,,1.9", ",1,,,12,")
    record = as_json(run_cli("break-even", path, "--num-draft-tokens", 6, "--json"))
    assert (record["accept_length_bounds"], record["verdict"]) == (None, "not measured")


def test_bounds_of_several_depths_are_taken_together(run_cli, csv):
    """2.0 at 2 steps leaves 2.0 to 3.0 at 4, and 2.2 at 8 leaves 1.6 to 2.2: together 2.0 to 2.2."""
    header = "batch_size,num_steps,cycle_ms,decode_ms,accept_length"
    path = csv(header, "1,2,20,,2.0", "1,8,26,,2.2", "1,,,12,")
    bounds = as_json(run_cli("break-even", path, "--num-steps", 4, "--json"))["accept_length_bounds"]
    assert (bounds["low"], bounds["high"]) == (pytest.approx(2.0), pytest.approx(2.2))


def test_bounds_decide_only_outside_the_whole_interval(run_cli, csv):
    """2.4 at 5 steps leaves 1.56 to 2.4 at 2; a need far below or above is decided, one between is not."""
    header = "batch_size,num_steps,cycle_ms,decode_ms,accept_length"
    verdicts = [
        as_json(
            run_cli("break-even", csv(header, "1,5,30,,2.4", f"1,2,{cycle},,", "1,,,10,"), "--num-steps", 2, "--json")
        )["verdict"]
        for cycle in (14, 20, 27)
    ]
    assert verdicts == ["pays", "not measured", "does not pay"]


def test_repeats_and_ranges_of_a_length_carry_their_error(run_cli, csv):
    header = "batch_size,num_steps,cycle_ms,decode_ms,accept_length"
    errors = []
    for length in ("2.1", "2.0;2.2", "2.0..2.2"):
        record = as_json(run_cli("break-even", csv(header, f"1,5,20,,{length}", "1,,,10,"), "--json"))
        errors.append((record["accept_length_error"], record["accept_length_error_known"]))
    # two repeats ±0.1: s = 0.1414, over √2; a uniform law of half-width 0.1: 0.1/√3
    assert errors == [(0.0, False), (pytest.approx(0.1), True), (pytest.approx(0.1 / 3**0.5), True)]
