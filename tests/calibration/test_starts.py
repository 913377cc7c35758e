"""One start of the processes of an all-reduce after the other."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import allreduce_starts, drafting_cycles
from benchmarks.allreduce_starts import SETTINGS, main, start_in_turn
from calibration.shapes import read_shape
from specsim.errors import SpecsimError
from specsim.runs.allreduce_files import load_allreduce

MODEL = Path(__file__).parents[2] / "calibration" / "models" / "llama-3.1-8b.json"
ROW = {"bytes": 8192, "with_ms": 3.6, "without_ms": 3.0, "drafting_ms": 3.7, "launch_us": 3.1, "cuda_graph": True}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The file that is written, and what it held when each start began; the third of the default fails."""
    path, found = tmp_path / "starts.csv", []

    def measured(work, way):
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []
        found.append([(row["start"], row["nccl"]) for row in rows])
        if len(found) > 2 * len(SETTINGS):
            raise SpecsimError("lost")
        return [ROW | {"nccl": way.nccl, "implementation": way.implementation, "tokens": 1}]

    monkeypatch.setattr(allreduce_starts, "measured", measured)
    return path, found


def run(path, seconds):
    start_in_turn(read_shape(MODEL), path, seconds, "a command")


def test_each_start_is_on_disk_before_the_next_and_settings_take_turns(started):
    path, found = started
    with pytest.raises(SpecsimError, match="lost"):
        run(path, 60)
    order = [("1", "default"), ("1", "nop2p"), ("2", "default"), ("2", "nop2p")]
    assert found == [order[:count] for count in range(5)]
    settings = load_allreduce([(None, path.with_name("starts-in-forward.csv"))]).settings()
    assert [(each.label, each.curve.repeats) for each in settings] == [("default", (2,)), ("nop2p", (2,))]
    assert all(each.curve.drafting is not None for each in settings)


def test_none_begins_when_the_time_is_up(started):
    path, found = started
    run(path, -1)
    assert found == []
    assert not path.exists()


@pytest.mark.parametrize("name", ["starts.csv", "starts-in-forward.csv"])
def test_what_is_there_is_not_written_over(started, name):
    path, found = started
    path.with_name(name).write_text("kept", encoding="utf-8")
    with pytest.raises(SpecsimError, match=f"{name} is there already"):
        run(path, 60)
    assert found == []
    assert path.with_name(name).read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("arguments", [[], ["none.json", "a.csv", "1"], [str(MODEL), "a.csv", "soon"]])
def test_what_cannot_be_measured_ends_with_2_and_a_word(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("here", "word"), [(SimpleNamespace(on_gpu=True, count=1), "takes 2 GPUs"), (None, "torch is not installed")]
)
def test_it_takes_two_gpus_and_torch(started, here, word, monkeypatch, capsys):
    path, found = started

    def asked():
        if here is None:
            raise ImportError
        return here

    monkeypatch.setattr(allreduce_starts.Machine, "here", asked)
    with pytest.raises(SystemExit) as ended:
        main([str(MODEL), str(path), "60"])
    assert ended.value.code == 2
    assert word in capsys.readouterr().err
    assert found == []


def test_cycles_too_are_on_disk_start_by_start_and_nothing_is_written_over(tmp_path, monkeypatch):
    path, found = tmp_path / "cycles.csv", []

    def measured(work, way):
        found.append((work.kind, work.cycles == drafting_cycles.CYCLES, way.nccl))
        if len(found) > 3:
            raise SpecsimError("lost")
        return [{"nccl": way.nccl, "drafts": 3, "batch_size": 1, "verify_ms": 4.0, "else": 1}]

    monkeypatch.setattr(drafting_cycles, "measured", measured)
    with pytest.raises(SpecsimError, match="lost"):
        drafting_cycles.cycles_in_turn(read_shape(MODEL), path, 60, "a command")
    assert found == [("cycle", True, nccl) for nccl in ("default", "nop2p", "default", "nop2p")]
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [(row["start"], row["nccl"], row["verify_ms"]) for row in rows] == [
        ("1", "default", "4.0"), ("1", "nop2p", "4.0"), ("2", "default", "4.0")
    ]  # fmt: skip
    with pytest.raises(SpecsimError, match="is there already"):
        drafting_cycles.cycles_in_turn(read_shape(MODEL), path, 60, "a command")
    drafting_cycles.cycles_in_turn(read_shape(MODEL), tmp_path / "none.csv", -1, "a command")
    assert not (tmp_path / "none.csv").exists()
