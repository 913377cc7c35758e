from __future__ import annotations

import json

import pytest

from specsim import load_runs
from specsim.errors import InputError
from specsim.runs.run import Figure


def faults(*paths) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_runs(paths)
    return str(caught.value).splitlines()


def test_a_csv_row_is_one_run(csv):
    path = csv(
        "id,model,engine,nccl,nccl_env,cuda_graph,batch_size,context_len,num_draft_tokens,verify_ms,draft_ms,accept_length,implied",
        "a,M,vllm,ll,NCCL_PROTO=LL NCCL_ALGO=Ring,on,4,2048,6,28.7,1.07 (0.69..1.07),2.0..2.5,draft_ms",
        "b,M,vllm,ll,,off,4,2048,3,25.5;25.6;25.7,,,",
    )
    a, b = load_runs([path]).runs
    assert (a.id, a.setup.model, a.setup.engine, a.setup.cuda_graph, a.nccl) == ("a", "M", "vllm", True, "ll")
    assert dict(a.nccl_env) == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert (a.workload.batch_size, a.workload.context_len, a.spec.num_steps, a.spec.topk) == (4, 2048, 5, 1)
    assert a.figures["verify_ms"] == Figure(28.7)
    assert a.figures["draft_ms"] == Figure(1.07, 0.69, 1.07, implied=True)
    assert a.figures["accept_length"] == Figure(low=2.0, high=2.5)
    assert b.figures["verify_ms"] == Figure(repeats=(25.5, 25.6, 25.7))
    assert b.setup.cuda_graph is False


def test_a_baseline_has_no_configuration(csv):
    plain, named = load_runs([csv("method,output_tok_s", ",62.9", "none,88.8")]).runs
    assert not plain.speculative
    assert not named.speculative


def test_unstated_things_are_said_to_be(csv):
    (run,) = load_runs([csv("num_draft_tokens,verify_ms", "6,28.7")]).runs
    assert (run.nccl, run.batch_size_stated, run.workload.batch_size) == ("unstated", False, 1)
    assert run.id.endswith("runs.csv:2")


@pytest.mark.parametrize(
    ("header", "row", "field", "said"),
    [
        (
            "num_draft_tokens,verify_ms",
            "6,abc",
            "verify_ms",
            "'abc' is not a number; allowed: a positive number, a range",
        ),
        ("num_draft_tokens,verify_ms", "6,-1", "verify_ms", "greater than or equal to 0.000001"),
        ("num_draft_tokens,verify_ms", "6,1e-300", "verify_ms", "greater than or equal to 0.000001"),
        ("num_draft_tokens,verify_ms", "6,1e200", "verify_ms", "less than or equal to 1000000000"),
        ("num_draft_tokens,verify_ms,batch_size", "6,20,99999999999999999999", "batch_size", "less than or equal to"),
        ("num_steps,verify_ms,draft_ms", "0,20,0.1", "draft_ms", "nothing is drafted"),
        ("decode_ms,other_ms", "15,1", "other_ms", "needs num_draft_tokens"),
        (
            "num_draft_tokens,verify_ms,implied",
            "6,20,cycle_ms",
            "implied",
            "names cycle_ms, which this row does not state",
        ),
        ("num_draft_tokens,verify_ms,nccl", "6,20,\x1b[31mred", "nccl", "match pattern"),
        ("num_draft_tokens,verify_ms", "6,nan", "verify_ms", "'nan' is not a number"),
        ("num_draft_tokens,verify_ms", "6,9..8", "verify_ms", "the range runs backwards, 9 to 8"),
        ("num_draft_tokens,verify_ms", "6,5 (6..7)", "verify_ms", "lies outside its range 6..7"),
        ("num_draft_tokens,verify_ms", "6.5,28", "num_draft_tokens", "integer"),
        ("num_draft_tokens,verify_ms", "0,28", "num_draft_tokens", "greater than or equal to 1"),
        ("verify_ms", "28", "verify_ms", "needs num_draft_tokens"),
        ("num_draft_tokens,accept_length", "6,7", "accept_length", "7 is not possible; allowed: 1 to 6"),
        ("num_draft_tokens,accept_length", "6,0.9", "accept_length", "0.9 is not possible; allowed: 1 to 6"),
        ("num_steps,topk,num_draft_tokens,verify_ms", "2,4,99,28", "num_draft_tokens", "verifies 2 to 21 tokens"),
        ("num_steps,num_draft_tokens,verify_ms", "2,9,28", "num_draft_tokens", "state its topk"),
        ("method,num_draft_tokens,verify_ms", "eagel,6,28", "method", "allowed: none, eagle, eagle3"),
        ("method,num_draft_tokens,verify_ms", "none,6,28", "method", "beside a speculative configuration"),
        ("method,output_tok_s", "eagle3,82", "num_draft_tokens", "cannot be fitted; state num_draft_tokens"),
        ("cuda_graph,output_tok_s", "maybe,82", "cuda_graph", "boolean"),
        ("nccl_env,output_tok_s", "LL,82", "nccl_env", "allowed: 'NAME=VALUE NAME=VALUE'"),
        ("implied,output_tok_s", "speed,82", "implied", "'speed' is wrong"),
    ],
)
def test_a_fault_names_file_row_field_what_and_what_is_allowed(csv, header, row, field, said):
    path = csv(header, row)
    (line,) = faults(path)
    assert line.startswith(f"{path}, row 2, {field}")
    assert said in line


def test_several_faults_are_listed_together(csv, tmp_path):
    one = csv("num_draft_tokens,verify_ms", "6,abc", "x,25", name="one.csv")
    two = csv("num_draft_tokens,verify_ms", "6,0", name="two.csv")
    lines = faults(one, two, tmp_path / "none.csv")
    assert [line.split(":")[0] for line in lines] == [
        f"{one}, row 2, verify_ms",
        f"{one}, row 3, num_draft_tokens",
        f"{two}, row 2, verify_ms",
        str(tmp_path / "none.csv"),
    ]


def test_an_unknown_column_suggests_the_nearest_name(csv):
    (line,) = faults(csv("num_draft_token,verify_ms", "6,28.7"))
    assert line.endswith("num_draft_token: is not a known column; did you mean 'num_draft_tokens'?")


def test_a_flood_of_faults_is_cut_and_counted(csv):
    lines = faults(csv("num_draft_tokens,verify_ms", *("6,x" for _ in range(30))))
    assert len(lines) == 21
    assert lines[-1].startswith("and 10 more faults")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("num_draft_tokens,verify_ms\n", "has no runs"),
        ("{", "is not JSON"),
        ('{"schema": "specsim-runs/9", "runs": []}', "schema"),
        ('{"schema": "specsim-runs/1", "runs": []}', "has no runs"),
        ('{"schema": "specsim-runs/1", "runs": [{"verify": 3}]}', "did you mean 'verify_ms'?"),
        ('[{"num_draft_tokens": 6, "verify_ms": true}]', "True is not a number"),
        ('[{"num_draft_tokens": 6, "verify_ms": {"min": 3}}]', "a range needs both ends"),
        ("[3]", "is not an object"),
        ('{"num_draft_tokens": 6}\n{nope}', "row 2: is not JSON"),
        ("num_draft_tokens,verify_ms\n6,28,9\n", "more cells than the header"),
        ("num_draft_tokens,verify_ms\n6\n", "fewer cells than the header"),
        ("num_draft_tokens;verify_ms\n6;28\n", "columns are parted by ';'"),
        ("num_draft_tokens,verify_ms,\n6,28,\n", "column 3 has no name"),
        ('[{"num_draft_tokens": 6, "verify_ms": 28, "verify_ms": 29}]', "the key 'verify_ms' stands twice"),
        ('[{"num_draft_tokens": 6, "verify_ms": 28, "batch_size": true}]', "True is not a number"),
        ("[" * 5000, "nested too deeply"),
        ("verify_ms,verify_ms\n6,28\n", "stands twice"),
        ("id,output_tok_s\na,1\na,2\n", "stands already"),
    ],
)
def test_what_is_no_run_file_is_one_line(tmp_path, text, said):
    path = tmp_path / "runs"
    path.write_text(text, encoding="utf-8")
    (line,) = faults(path)
    assert line.startswith(str(path))
    assert said in line


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    (line,) = faults(path)
    assert "is not text in UTF-8" in line


def test_the_three_forms_say_the_same(tmp_path, csv):
    rows = [
        {"id": "a", "nccl": "x", "num_draft_tokens": 6, "verify_ms": 28.7},
        {"id": "b", "nccl": "x", "decode_ms": 15.9},
    ]
    as_csv = csv("id,nccl,num_draft_tokens,verify_ms,decode_ms", "a,x,6,28.7,", "b,x,,,15.9")
    as_jsonl, as_json, bare = (tmp_path / name for name in ("r.jsonl", "r.json", "bare.json"))
    as_jsonl.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    bare.write_text(json.dumps(rows), encoding="utf-8")
    shared = {"schema": "specsim-runs/1", "defaults": {"nccl": "x"}}
    as_json.write_text(
        json.dumps(shared | {"runs": [{k: v for k, v in r.items() if k != "nccl"} for r in rows]}), encoding="utf-8"
    )
    kept = [
        [(r.id, r.nccl, r.spec, dict(r.figures)) for r in load_runs([p]).runs]
        for p in (as_csv, as_jsonl, as_json, bare)
    ]
    assert kept[0] == kept[1] == kept[2] == kept[3]


def test_a_byte_order_mark_and_spaces_do_no_harm(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_text("num_draft_tokens, verify_ms\n 6, 28.7\n\n", encoding="utf-8-sig")
    (run,) = load_runs([path]).runs
    assert run.figures["verify_ms"].best == 28.7


def test_a_row_with_several_faults_lists_them_all(csv):
    lines = faults(csv("num_draft_tokens,verify_ms,accept_length,accepted_drafts,implied", "6,28,9,40,cycle_ms"))
    assert [line.split(", ")[2].split(":")[0] for line in lines] == ["implied", "accepted_drafts", "accept_length"]


def test_blank_rows_are_no_runs(csv):
    assert len(load_runs(csv("num_draft_tokens,verify_ms", "6,28.7", ",", "3,25.6")).runs) == 2


def test_one_path_is_a_file_not_its_letters(csv):
    (run,) = load_runs(str(csv("num_draft_tokens,verify_ms", "6,28.7"))).runs
    assert run.figures["verify_ms"].best == 28.7


def test_null_in_json_is_unstated(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(
        '{"num_steps": null, "num_draft_tokens": 4, "batch_size": null, "cycles": null, "cycle_ms": 30}',
        encoding="utf-8",
    )
    (run,) = load_runs(path).runs
    assert run.spec is not None
    assert (run.spec.num_draft_tokens, run.batch_size_stated, run.cycles) == (4, False, None)


def test_a_shape_that_no_drafter_has_is_refused(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text(
        '{"num_steps": 999999999, "topk": 999999999, "num_draft_tokens": 4, "cycle_ms": 30}', encoding="utf-8"
    )
    with pytest.raises(InputError, match="num_steps: 999999999 is wrong; input should be less than or equal to 100000"):
        load_runs(path)
