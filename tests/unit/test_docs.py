"""The documents' examples run and their figures are regenerated."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from specsim import fit, load_bare_forwards, load_runs
from specsim.cost.derived import ACROSS, ALONE, IN_FORWARDS
from specsim.cost.graph_padding import single_launches

REPO = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    text = (REPO / document).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_readmes_example_prints_what_it_says():
    (code,), (said,) = blocks("README.md", "python"), blocks("README.md", "text")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == said


def test_the_readme_begins_with_two_commands_that_ci_runs_as_they_stand():
    first, second = blocks("README.md", "bash")[:2]
    assert first.strip().endswith(".venv/bin/specsim break-even")
    assert second.strip().endswith(".venv/bin/pytest -n auto --dist loadfile")
    assert all(line.startswith("python3 -m venv .venv && ") for line in (first, second))
    script = (REPO / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_command 0" in script
    assert "readme_command 1" in script


@pytest.mark.parametrize("document", ["README.md", "docs/data-format.md"])
def test_example_run_files_load_and_fit(document, tmp_path):
    for language in ("csv", "json"):
        for number, text in enumerate(blocks(document, language)):
            path = tmp_path / f"{number}.{language}"
            path.write_text(text, encoding="utf-8")
            fit(load_runs([path]))


def test_the_formats_table_of_bare_forwards_loads(tmp_path):
    (text,) = [block for block in blocks("docs/data-format.md", "text") if block.startswith("tokens")]
    path = tmp_path / "bare.csv"
    path.write_text(text, encoding="utf-8")
    assert load_bare_forwards(path).tokens == (1, 128, 256)


def test_the_readmes_shell_examples_run(run_cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text(blocks("README.md", "csv")[0], encoding="utf-8")
    lines = [line.partition("#")[0].split() for block in blocks("README.md", "bash")[2:] for line in block.splitlines()]
    assert len(lines) == 10
    for line in lines:
        assert line[0] == "specsim"
        assert run_cli(*line[1:]).exit_code == 0


def test_the_simulation_pages_examples_run(run_cli):
    (code,), (said,) = blocks("docs/simulation.md", "python"), blocks("docs/simulation.md", "text")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/simulation.md", "exec"), {})
    assert out.getvalue() == said
    lines = blocks("docs/simulation.md", "bash")[0].splitlines()
    assert len(lines) == 3
    for line in lines:
        assert run_cli(*line.split()[1:]).exit_code == 0


def test_the_serving_pages_examples_run(run_cli, tmp_path, monkeypatch):
    (code,), (said,) = blocks("docs/serving.md", "python"), blocks("docs/serving.md", "text")
    out = io.StringIO()
    monkeypatch.chdir(REPO)
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/serving.md", "exec"), {})
    assert out.getvalue() == said
    monkeypatch.chdir(tmp_path)
    (lines,) = (block.splitlines() for block in blocks("docs/serving.md", "bash"))
    assert len(lines) == 3
    for line in lines:
        assert run_cli(*line.split()[1:]).exit_code == 0


def test_every_column_of_the_format_is_documented():
    from specsim.runs.schema import RUN_FIELDS

    text = (REPO / "docs" / "data-format.md").read_text(encoding="utf-8")
    assert {name for name in RUN_FIELDS if f"`{name}`" not in text} == set()


def test_the_accuracy_page_is_what_its_command_gives():
    from benchmarks.accuracy import PAGE, page

    assert page() == PAGE.read_text(encoding="utf-8")


def test_the_model_page_states_the_constants_of_eq_17():
    """Launches beside graphs and what intervals allow for, as the code has them."""
    page = " ".join((REPO / "docs" / "model.md").read_text(encoding="utf-8").split())
    one, two = single_launches(np.array([1.0, 2.0]), "vllm")
    assert f"ℓ is {one:g} + {two - one:g}·(F − 1)" in page
    assert f"{ALONE.least:g} to {ALONE.most:g} times the change by a table made alone or {ALONE.us:g} µs" in page
    assert f"made in forwards for {IN_FORWARDS.least:g} to {IN_FORWARDS.most:g} times or {IN_FORWARDS.us:g} µs" in page
    assert f"for {ACROSS.least:g} to {ACROSS.most:g} times or {ACROSS.us:g} µs" in page


def test_every_format_that_an_import_reads_is_documented():
    from specsim.runs.recognition import FORMATS

    rows = [
        line
        for line in (REPO / "docs" / "importing.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(FORMATS) <= named


def test_every_finding_of_a_diagnosis_is_documented():
    import inspect

    from specsim.live import diagnosis

    rows = (REPO / "docs" / "live.md").read_text(encoding="utf-8").partition("## Diagnosis")[2].splitlines()
    named = {row.split("|")[1].strip() for row in rows if row.startswith("| ")} - {"finding", "---"}
    assert named == set(re.findall(r'Finding\(\s*"([^"]+)"', inspect.getsource(diagnosis)))


def test_every_engine_that_is_asked_is_documented():
    from specsim.live.probe import _ADAPTERS

    text = (REPO / "docs" / "live.md").read_text(encoding="utf-8")
    (head,) = [line for line in text.splitlines() if line.startswith("| | SGLang")]
    assert {name.strip().lower() for name in head.split("|")[2:-1]} == set(_ADAPTERS)


def test_the_calibration_page_shows_what_its_command_prints():
    from benchmarks.calibration_gap import summary, table

    page = (REPO / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert table() in page
    assert summary() in " ".join(page.split())


def test_the_calibration_pages_commands_over_several_gpus_tell_a_setting_that_was_not_served(
    run_cli, tmp_path, monkeypatch
):
    """What a server without peer access needed at 3 drafts and 16 requests (1.73) lies in the interval, by another machine's tables."""
    data = REPO / "calibration" / "data"
    served = json.loads((data / "h200x2j_served_llama-3.1-8b.json").read_text(encoding="utf-8"))
    runs = [each for each in served["runs"] if each["nccl"] == "default"]
    (tmp_path / "served.json").write_text(json.dumps(served | {"runs": runs}), encoding="utf-8")
    for name, kind in {
        "forward": "forward_llama-3.1-8b",
        "in-forward": "in_forward_allreduce",
        "gather": "gather",
    }.items():
        shutil.copy(data / f"h200x2p_{kind}.csv", tmp_path / f"allreduce-{name}.csv")
    monkeypatch.chdir(tmp_path)
    (block,) = [each for each in blocks("docs/calibration.md", "bash") if "specsim comm" in each]
    lines = [line.split() for line in block.replace("\\\n", "").splitlines() if line.startswith("specsim")]
    assert len(lines) == 3
    for line in lines[:2]:
        assert run_cli(*line[1:]).exit_code == 0
    row = json.loads(run_cli(*lines[2][1:], "--json").output)
    times = {(each.get("num_draft_tokens"), each["nccl"]): each for each in served["runs"] if each["batch_size"] == 16}
    needed = times[4, "nop2p"]["cycle_ms"]["value"] / times[None, "nop2p"]["decode_ms"]["value"]
    assert row["interval"][0] <= needed <= row["interval"][1]
    assert row["cost_ratio"] == pytest.approx(needed, abs=0.05)
