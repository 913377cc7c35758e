"""`specsim import` as a command: what it prints and writes, what it refuses, and that nothing is lost on the way."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from specsim import fit, load_runs
from specsim.runs.lines import matching_lines
from specsim.runs.readings import Repeats

DATA = Path(__file__).parent / "data"
SGLANG = DATA / "sglang_decode_v0.5.3_eagle3.log"
VLLM = DATA / "vllm_v0.20_dflash_n5.log"


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_what_is_written_reads_back_and_fits(run_cli, tmp_path, suffix):
    path = tmp_path / f"runs.{suffix}"
    printed = run_cli("import", SGLANG, VLLM, "--set", "num_draft_tokens=6", "-o", path, "--json")
    assert printed.exit_code == 0, printed.output
    record = json.loads(printed.stdout)
    runs = load_runs(path).runs
    assert [run.id for run in runs] == [row["id"] for row in record["runs"]]
    timed, counted = runs
    assert timed.figures["cycle_ms"].readings == tuple(record["runs"][0]["cycle_ms"])
    assert timed.figures["cycle_ms"].implied
    assert timed.source == "sglang_decode_v0.5.3_eagle3.log, lines 3–6"
    assert counted.counts is not None
    assert counted.counts.histogram == (100, 99, 117, 93, 74, 393)
    assert fit(load_runs(path), allow_mixed=True).residuals


def test_the_printed_json_is_a_runs_file_itself(run_cli, tmp_path):
    path = tmp_path / "printed.json"
    path.write_text(run_cli("import", SGLANG, "--json").stdout, encoding="utf-8")
    (run,) = load_runs(path).runs
    assert run.figures["output_tok_s"].readings == (178.86, 165.41, 188.68, 165.59)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert [(each["count"], each["lines"]) for each in record["left_out"]] == [(1, [1, 1]), (1, [2, 2])]


def test_text_says_file_lines_and_everything_that_json_says(run_cli):
    text, record = run_cli("import", SGLANG).stdout, json.loads(run_cli("import", SGLANG, "--json").stdout)
    flat = " ".join(text.split())
    for line in (*record["missing"], *(each["why"] for each in record["left_out"])):
        assert " ".join(line.split()) in flat
    assert "sglang_decode_v0.5.3_eagle3.log, lines 3–6" in text


def test_what_is_stated_goes_over_what_was_read_and_says_so(run_cli):
    record = json.loads(
        run_cli("import", VLLM, "--set", "num_draft_tokens=8", "--set", "source=a blog", "--json").stdout
    )
    (row,) = record["runs"]
    assert row["num_draft_tokens"] == 8
    assert "num_draft_tokens 8 was stated, 6 read" in row["note"]
    assert row["source"] == "a blog (vllm_v0.20_dflash_n5.log, lines 1–3)"


def test_a_run_that_is_not_possible_is_left_out_with_the_reason(run_cli):
    refused = run_cli("import", SGLANG, "--set", "num_draft_tokens=1")
    assert refused.exit_code == 2
    assert "not a possible run: accept_length 2.05 is not possible" in refused.stderr


@pytest.mark.parametrize(
    ("cell", "stated"), [("28.7", 28.7), ("28.6;28.8", [28.6, 28.8]), ("2..3", (2, 3)), ("2.5 (2..3)", 2.5)]
)
def test_a_stated_figure_is_written_as_it_was_stated(run_cli, tmp_path, cell, stated):
    path = tmp_path / "runs.csv"
    assert run_cli("import", VLLM, "--set", f"draft_ms={cell}", "-o", path).exit_code == 0
    figure = load_runs(path).runs[0].figures["draft_ms"]
    assert stated in (figure.value, list(figure.repeats), (figure.low, figure.high))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.log",), "none.log: cannot be read"),
        ((SGLANG, "--set", "num_draft_token=4"), "did you mean 'num_draft_tokens'?"),
        ((SGLANG, "--set", "num_draft_tokens"), "is not FIELD=VALUE"),
        ((SGLANG, "--set", "batch_size=none"), "--set, batch_size"),
        (
            (SGLANG, "--format", "vllm-log"),
            "looked for: vLLM engine and SpecDecoding lines",
        ),
        ((SGLANG, "-o", "runs.txt"), "runs are written as .csv or .json"),
        ((SGLANG, "-o", "no/such/folder/runs.csv"), "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_with_exit_code_2(run_cli, arguments, said):
    result = run_cli("import", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_a_file_with_nothing_known_says_what_was_looked_for(run_cli, tmp_path):
    path = tmp_path / "access.log"
    path.write_text("GET /health 200\n" * 3, encoding="utf-8")
    result = run_cli("import", SGLANG, path)
    assert result.exit_code == 2
    assert "access.log: holds nothing that is known here; looked for:" in result.stderr
    for what in ("SGLang decode lines", "vLLM engine and SpecDecoding lines", "Prometheus text"):
        assert what in result.stderr


def test_a_log_whose_lines_are_all_left_out_says_why(run_cli, tmp_path):
    path = tmp_path / "prefill.log"
    path.write_text("Prefill batch, #new-seq: 1\nDecode batch, #running-req: 0\n", encoding="utf-8")
    result = run_cli("import", path)
    assert result.exit_code == 2
    assert "prefill line (line 1); decode line that cannot be read (line 2)" in result.stderr


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_an_imported_file_is_not_imported_again(run_cli, tmp_path, suffix):
    path = tmp_path / f"runs.{suffix}"
    run_cli("import", SGLANG, "--set", "num_draft_tokens=4", "-o", path)
    again = run_cli("import", path)
    assert again.exit_code == 2
    assert "runs in specsim's own form: its commands read them as they are" in again.stderr


def test_columns_that_are_not_read_are_named(run_cli):
    record = json.loads(run_cli("import", DATA / "specforge_bench_eagle3_sweep.csv", "--json").stdout)
    assert [(each["why"], each["example"]) for each in record["left_out"]] == [
        ("columns that are not read", "ep, latency")
    ]


# -- reading in blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", ""])
def test_matching_lines_have_their_numbers_across_blocks(monkeypatch, end):
    monkeypatch.setattr("specsim.runs.lines._BLOCK", 16)
    lines = ["key one", "nothing to see here at all, on a long line", "", "two key", "kéy", "key key"]
    stream = io.BytesIO(("\n".join(lines) + end).encode())
    told: list[int] = []
    found = [(number, line.decode()) for number, line in matching_lines(stream, [b"key", b"two"], told.append)]
    assert found == [(1, "key one"), (4, "two key"), (6, "key key")]
    assert sum(told) == len("\n".join(lines).encode()) + len(end)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("specsim.runs.lines._BLOCK", 16)
    monkeypatch.setattr("specsim.runs.lines._LONGEST", 64)
    found = list(matching_lines(io.BytesIO(b"x" * 1000 + b"\nkey"), [b"key"]))
    assert found == [(2, b"key")]


def test_repeats_are_means_of_equal_stretches():
    repeats = Repeats()
    for value in range(100):
        repeats.add(float(value))
    assert (repeats.count, repeats.each) == (100, 4)
    assert repeats.column(0) == [4 * stretch + 1.5 for stretch in range(25)]
    repeats.add(120.0)  # a stretch that is not full counts with the last: (96 + 97 + 98 + 99 + 120)/5
    assert repeats.column(0)[-1] == 102.0
