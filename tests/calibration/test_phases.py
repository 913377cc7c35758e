"""Marks in a vLLM server: what is marked, and the phases that marks are read as."""

import json

import pytest

from calibration.vllm_phases import COLUMNS, between, cycles, main, medians, replayed


def cycle(start, drafts, tokens, step=10.0):
    """A cycle's marks, each `step` after the one before it, but graphs, which take 100."""
    names = [f"verify{tokens}", "gather", *[f"wide{tokens}"] * (drafts > 0), *["narrow6"] * (drafts - 1)]
    marks, at = [], start
    for name in names:
        took = 3 * step if name == "gather" else 100.0
        marks += [(name + "+", at), (name + "-", at + took)]
        at += took + step
    return marks, at


def many(count, drafts, tokens):
    marks, at = [], 0.0
    for _ in range(count):
        more, at = cycle(at, drafts, tokens)
        marks += more
    return marks


@pytest.mark.parametrize(("drafts", "tokens", "batch"), [(0, 4, 4), (1, 8, 4), (3, 16, 4), (5, 6, 1)])
def test_a_cycle_is_parted_at_its_marks(drafts, tokens, batch):
    found = list(cycles(many(4, drafts, tokens)))
    assert len(found) == 3  # the last is cut
    assert {(of, requests) for of, requests, _ in found} == {(drafts, batch)}
    phases = found[0][2]
    expected = {"verify graph": 100.0, "head": 10.0, "gather": 30.0, "to the next verify": 10.0}
    expected |= {"sampling and inputs": 10.0, "wide draft graph": 100.0} if drafts else {}
    expected |= {"between draft graphs": 10.0, "narrow draft graph": 100.0} if drafts > 1 else {}
    whole = phases.pop("cycle")
    assert phases == expected
    steps = max(drafts - 1, 0)
    repeated = sum(phases.get(name, 0.0) for name in ("between draft graphs", "narrow draft graph"))
    assert whole == pytest.approx(sum(phases.values()) + (steps - 1) * repeated if steps else sum(phases.values()))


def test_cycles_that_ran_otherwise_are_left_out():
    """One without a draft graph among those of three drafts: it drafted eagerly."""
    marks = many(3, 3, 16)
    without = [mark for mark in marks[:10] if not mark[0].startswith("wide")]
    assert len(list(cycles(without + marks[10:]))) == 1


def test_medians_are_of_enough_cycles():
    lines = [json.dumps(many(101, 3, 16)), json.dumps(many(60, 3, 16)), json.dumps(many(100, 0, 4))]
    rows = list(medians(lines))
    assert {(row["drafts"], row["batch_size"], row["cycles"]) for row in rows} == {(3, 4, 159)}
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert {row["median_us"] for row in rows if row["phase"] == "narrow draft graph"} == {100.0}
    assert len(list(medians(lines, least=1))) == len(rows) + 5


def test_a_method_is_marked_before_and_after_and_gives_what_it_gave():
    class DecodeSpeculatorCudaGraphManager:
        def run(self, graph):
            seen.append("ran")
            return 7

    class Graph:
        num_tokens = 6

    seen = []
    marked = between(DecodeSpeculatorCudaGraphManager.run, seen.append, replayed)
    assert marked(DecodeSpeculatorCudaGraphManager(), Graph()) == 7
    assert seen == ["narrow6+", "ran", "narrow6-"]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (None, "No such file"),
        ("{", "give one file of marks"),
        ("[1, 2]", "give one file of marks"),
        ("", "not 150 whole cycles"),
    ],
)
def test_what_is_no_file_of_marks_is_said(written, says, tmp_path, monkeypatch, capsys):
    path = tmp_path / "marks-0.jsonl"
    if written is not None:
        path.write_text(written, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["vllm_phases", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_medians_are_printed_as_csv(tmp_path, monkeypatch, capsys):
    path = tmp_path / "marks-0.jsonl"
    path.write_text(json.dumps(many(200, 3, 16)) + "\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["vllm_phases", str(path)])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert "3,4,verify graph,100.0,100.0,100.0,199" in lines
