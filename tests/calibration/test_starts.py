"""One start of the processes of an all-reduce after the other."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import allreduce_starts
from benchmarks.allreduce_starts import SETTINGS, main
from specsim.errors import SpecsimError

MODEL = Path(__file__).parents[2] / "calibration" / "models" / "llama-3.1-8b.json"


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The file that is written, and what it held when each start began; the third of the default fails."""
    path, found = tmp_path / "starts.csv", []

    def measured(work, way):
        with path.open(encoding="utf-8") as file:
            found.append([(row["start"], row["nccl"]) for row in csv.DictReader(file)])
        if len(found) > 2 * len(SETTINGS):
            raise SpecsimError("lost")
        return [{"nccl": way.nccl, "tokens": tokens} for tokens in work.tokens[:1]]

    monkeypatch.setattr(allreduce_starts, "measured", measured)
    return path, found


def test_each_start_is_on_disk_before_the_next_and_settings_take_turns(started):
    path, found = started
    with pytest.raises(SpecsimError, match="lost"):
        main(MODEL, path, 60)
    order = [("1", "default"), ("1", "nop2p"), ("2", "default"), ("2", "nop2p")]
    assert found == [order[:count] for count in range(5)]


def test_none_begins_when_the_time_is_up(started):
    path, found = started
    main(MODEL, path, -1)
    assert found == []
    assert path.read_text(encoding="utf-8").startswith("start,nccl,")
