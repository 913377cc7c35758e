"""What the harness plans, reads and writes; nothing here needs torch."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.allreduce import COLUMNS, Table, Way, Work, in_a_forward, ways
from calibration.grids import Point, next_width, points, teaching_order
from calibration.machine import Timing, links, recorded_command
from calibration.quick import model_of
from calibration.results import Results
from calibration.session import Task, measure
from calibration.shapes import ModelShape, read_shape
from specsim import load_runs
from specsim.errors import InputError, SpecsimError
from specsim.runs.allreduce_files import load_allreduce
from specsim.runs.formats.bare_forwards_csv import ParallelForwardForm

SHAPE = ModelShape("m", 2, 8, 4, 2, 2, 16, 32)


# -- shapes ------------------------------------------------------------------------------------------------------------


def config(tmp_path, **fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


DENSE = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip


def test_parameters_of_a_published_shape(tmp_path):
    """Llama-3.1-8B: 32 layers of 4096·(4096·2 + 1024·2) + 3·4096·14336, and a head of 128,256 × 4096: 7.50 billion."""
    shape = read_shape(config(tmp_path, **DENSE).parent)
    assert (shape.head_size, shape.kv_heads) == (128, 8)
    assert shape.parameters == 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336) + 128256 * 4096
    assert shape.drafter().layers == 1
    assert shape.drafter().vocabulary == 32000


def test_a_mixture_counts_its_experts(tmp_path):
    fields = DENSE | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "head_dim": 64}
    shape = read_shape(config(tmp_path, **fields))
    assert (shape.experts, shape.experts_per_token, shape.expert_size, shape.head_size) == (128, 8, 768, 64)
    assert shape.card()["experts"] == 128
    assert shape.drafter().experts == 0


@pytest.mark.parametrize(
    ("fields", "says"), [({"hidden_size": 8}, "num_hidden_layers"), (DENSE | {"vocab_size": "x"}, "vocab_size")]
)
def test_a_shape_that_lacks_something_is_refused_by_name(tmp_path, fields, says):
    with pytest.raises(InputError, match=says):
        read_shape(config(tmp_path, **fields))


def test_no_json_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is not JSON"):
        read_shape(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_shape(tmp_path / "none.json")


def test_a_model_is_split_where_it_divides():
    assert (SHAPE.split(2).heads, SHAPE.split(2).intermediate_size) == (2, 8)
    with pytest.raises(SpecsimError, match="kv_heads"):
        SHAPE.split(4)


# -- order of measuring ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 10_000), min_size=1))
def test_any_beginning_spans_the_values(values):
    order = teaching_order(values)
    assert sorted(order) == sorted(set(values))
    assert set(order[:2]) == {min(values), max(values)}


def test_plain_decode_comes_first_and_corners_before_the_rest():
    order = points((1, 4, 16), (1, 2, 8), (128, 4096), most_tokens=64)
    assert [p.num_draft_tokens for p in order[:6]] == [1] * 6
    assert order[0] == Point(1, 1, 128)
    assert all(p.tokens <= 64 for p in order)
    assert len(order) == 18 - 2  # 16 × 8 is too wide, in both contexts


def test_the_next_width_halves_the_gap_beside_the_sharpest_bend():
    flat_then_steep = {t: 5.0 + 0.05 * max(t - 64, 0) for t in (1, 16, 64, 256, 512)}
    assert next_width(flat_then_steep) in range(17, 256)
    assert next_width({t: 5.0 + 0.05 * t for t in (1, 16, 64)}) is None
    assert next_width({1: 5.0, 2: 9.0, 3: 9.1}) is None  # nothing lies between


@given(st.integers(10, 200))
def test_widths_close_in_on_a_knee(knee):
    def time(tokens):
        return 5.0 + 0.1 * max(tokens - knee, 0)

    known = {t: time(t) for t in (1, 8, 64, 256)}
    for _ in range(12):
        width = next_width(known)
        if width is None:
            break
        known[width] = time(width)
    below, above = (max(t for t in known if t <= knee), min(t for t in known if t >= knee))
    assert above - below <= 0.3 * knee + 2


# -- results -----------------------------------------------------------------------------------------------------------

DEFAULTS = {"model": "m", "hardware": "h", "engine": "calibration", "method": "eagle3"}
RUN = {"batch_size": 1, "num_draft_tokens": 4, "topk": 1, "verify_ms": [1.0, 1.1]}


def results(path, **card):
    return Results(path, "about", DEFAULTS, {"layers": 2, **card})


def test_every_run_is_on_disk_before_the_next_and_a_new_start_goes_on(tmp_path):
    path = tmp_path / "runs.json"
    on_disk = []

    def one(index):
        on_disk.append(len(load_runs(path).runs) if path.exists() else 0)
        return RUN | {"batch_size": index + 1}

    tasks = [Task(f"r{index}", lambda index=index: one(index)) for index in range(3)]
    assert measure(tasks[:2], results(path), 60, "").measured == 2
    again = measure(tasks, results(path), 60, "")
    assert (again.measured, again.earlier) == (1, 2)
    assert on_disk == [0, 1, 2]
    assert [run.id for run in load_runs(path).runs] == ["r0", "r1", "r2"]
    assert not list(tmp_path.glob("*.part"))


def test_each_start_of_a_file_is_stated_with_its_first_run(tmp_path):
    path = tmp_path / "runs.json"
    for start, names in enumerate((("a", "b"), (), ("c", "d"), ("e",))):
        file = results(path, provenance={"started": start})
        for name in names:
            file.add({"id": name, **RUN})
    card = load_runs(path).model_card
    assert card["provenance"] == {"started": 0}
    assert card["gone_on"] == [{"first_run": "c", "started": 2}, {"first_run": "e", "started": 3}]
    assert card["layers"] == 2


def test_a_budget_that_is_spent_leaves_the_rest(tmp_path):
    tasks = [Task("a", lambda: RUN), Task("b", lambda: RUN)]
    assert measure(tasks, results(tmp_path / "r.json"), 0.0, "").left == 2


def test_a_run_that_fails_ends_a_measurement_unless_its_words_are_asked_for(tmp_path):
    def fails():
        raise SpecsimError("out of memory")

    tasks = [Task("a", fails), Task("b", lambda: {"batch_size": 2, "decode_ms": 4.0})]
    kept, failed = results(tmp_path / "r.json"), []
    with pytest.raises(SpecsimError, match="out of memory"):
        measure(tasks, kept, 60, "")
    assert measure(tasks, kept, 60, "", failed).left == 1
    assert failed == ["a: out of memory"]
    assert [run["id"] for run in kept.runs] == ["b"]


def test_another_measurements_file_is_not_gone_on_with(tmp_path):
    path = tmp_path / "r.json"
    results(path).add({"id": "a", **RUN})
    with pytest.raises(InputError, match="of another model"):
        Results(path, "about", DEFAULTS | {"hardware": "else"}, {"layers": 2})
    path.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be gone on with"):
        results(path)


def test_a_timing_is_its_median_and_quartiles():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 100.0))
    assert timing.median_ms == 3.0
    assert timing.spread == pytest.approx((52.0 - 1.5) / 2 / 3)  # quartiles 1.5 and 52 of five, exclusive


def test_a_table_grows_by_settings_and_implementations_and_reads_back(tmp_path):
    path = tmp_path / "t.csv"
    row = {"nccl": "default", "implementation": "nccl", "bytes": 1024, "time_us": 9.0, "pattern": "x"}
    Table(path, COLUMNS["allreduce"]).add(Way("nccl"), [row])
    Table(path, COLUMNS["allreduce"]).add(Way("one-shot"), [row | {"implementation": "one-shot"}])
    table = Table(path, COLUMNS["allreduce"])
    have = [way for way in (Way("nccl"), Way("nccl", "Ring-LL"), Way("one-shot"), Way("vllm")) if table.has(way)]
    assert have == [Way("nccl"), Way("one-shot")]


FORWARD = {"nccl": "default", "implementation": "nccl", "tokens": 1, "with_ms": 2.0, "without_ms": 1.0, "drafting_ms": 2.1,
           "narrow_ms": 0.2, "launch_us": 3.0}  # fmt: skip


def test_what_forwards_are_written_with_is_what_a_fit_reads():
    assert set(COLUMNS["forward"]) <= set(ParallelForwardForm.model_fields)


def test_forwards_of_before_drafts_were_beside_them_are_measured_again(tmp_path):
    path = tmp_path / "t-forward.csv"
    path.write_text(
        "nccl,implementation,tokens,with_ms,without_ms\ndefault,nccl,1,2.0,1.0\nTree,nccl,1,2.0,1.0\n", encoding="utf-8"
    )
    table = Table(path, COLUMNS["forward"])
    assert not table.has(Way("nccl"))
    table.add(Way("nccl"), [FORWARD])
    again = Table(path, COLUMNS["forward"])
    assert again.has(Way("nccl"))
    assert not again.has(Way("nccl", "Tree"))


def test_forwards_of_before_drafts_were_narrow_are_measured_again_and_columns_of_a_file_stay(tmp_path):
    path = tmp_path / "t-forward.csv"
    text = (
        "nccl,implementation,tokens,with_ms,without_ms,drafting_ms,launch_us,drafting_without_ms\n"
        "default,nccl,1,2.0,1.0,2.1,3.0,0.9\nTree,nccl,1,2.0,1.0,2.1,3.0,0.8\n"
    )
    path.write_text(text, encoding="utf-8")
    table = Table(path, COLUMNS["forward"])
    assert not table.has(Way("nccl"))
    table.add(Way("nccl"), [FORWARD | {"else": 1}])
    again = Table(path, COLUMNS["forward"])
    assert again.has(Way("nccl"))
    assert [(row["nccl"], row["drafting_without_ms"]) for row in again.rows] == [("Tree", "0.8"), ("default", "")]
    assert "else" not in again.columns


@pytest.mark.parametrize("text", ["garbage\n", "nccl,bytes\n,1\n", "nccl\na,b\n"])
def test_what_is_no_table_of_all_reduces_is_not_written_over(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecsimError, match="no table of all-reduces; move it away"):
        Table(path, COLUMNS["allreduce"])
    path.write_text("", encoding="utf-8")
    assert Table(path, COLUMNS["allreduce"]).rows == []


def test_a_table_of_before_implementations_were_told_apart_is_nccls(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("nccl,bytes,time_us\ndefault,1024,9.0\n", encoding="utf-8")
    table = Table(path, COLUMNS["allreduce"])
    assert table.has(Way("nccl"))
    assert not table.has(Way("vllm"))
    table.add(Way("vllm"), [{"nccl": "default", "implementation": "vllm", "bytes": 1024, "time_us": 5.0}])
    assert [s.label for s in load_allreduce([(None, path)]).settings()] == ["default", "vllm"]


def test_settings_are_nccls_and_every_other_implementation_is_run_once():
    assert list(map(str, ways(["vllm", "nccl"], ["default", "Ring-LL"]))) == [
        "vllm", "NCCL setting default", "NCCL setting Ring-LL",
    ]  # fmt: skip


def test_work_is_read_as_it_was_written():
    work = Work("forward", 2, (1024,), (1, 2), SHAPE)
    read, way = Work.read(work.written(Way("nccl", "Ring-LL")))
    assert way == Way("nccl", "Ring-LL")
    assert (read.kind, read.ranks, list(read.tokens), read.shape) == ("forward", 2, [1, 2], SHAPE)


# -- provenance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (["-o", "/home/me/out dir/runs 1.json"], "-o 'runs 1.json'"),
        (["--output=/home/me/runs.json"], "--output=runs.json"),
        (["--model", "calibration/models/m.json"], "--model calibration/models/m.json"),
        (["--trees", "3/4/8,5/4/16"], "--trees 3/4/8,5/4/16"),
    ],
)
def test_a_recorded_command_names_no_folder_of_the_machine(typed, recorded):
    """Relative paths and trees stay as they were typed: the command can be given again in the repository."""
    assert recorded_command(["cycle", *typed]) == f"python -m calibration cycle {recorded}"


# -- from runs to a model ----------------------------------------------------------------------------------------------


def test_quick_gives_a_labelled_model_where_runs_do_not_tell_what_contexts_cost(tmp_path):
    """Stopped after one batch size at each context: batch and context grow together."""
    times = {(1, 16): 1.0, (2, 512): 1.4}
    runs = [{"id": f"{b} at {c}", "model": "m", "nccl": "default", "batch_size": b, "context_len": c, "method": "none",
             "decode_ms": ms} for (b, c), ms in times.items()]  # fmt: skip
    file = tmp_path / "forward.json"
    file.write_text(json.dumps({"schema": "specsim-runs/1", "about": "", "runs": runs}), encoding="utf-8")
    made = model_of(file, tmp_path)
    assert made["model"].exists()
    assert any(note.startswith("MIXED in context_len") for note in made["notes"])


def test_all_reduces_in_a_forward_are_what_it_takes_longer_over_their_number():
    """Two layers have four: 0.08 ms are 20 µs each; a forward that is no slower with them says nothing."""
    row = {
        "nccl": "default",
        "tokens": "2",
        "bytes": "32",
        "with_ms": "1.08",
        "without_ms": "1.0",
        "cuda_graph": "True",
    }
    row |= {"spread_us": "4", "implementation": "nccl"}
    (found,) = in_a_forward([row, row | {"tokens": "3", "with_ms": "0.99"}], SHAPE)
    assert (found["bytes"], found["cuda_graph"], found["time_us"]) == ("32", "True", pytest.approx(20.0))
    assert found["spread_us"] == 1.0
    assert set(COLUMNS["allreduce"]) - set(found) == {"ranks", "hardware", "nccl_version", "source"}


def test_forwards_in_cycles_are_told_apart_from_forwards_alone_and_launches_from_both():
    """0.08 ms are 20 µs in each of four all-reduces, 0.12 are 30; a launch is told as it is; noise in cycles says nothing."""
    row = {"nccl": "default", "tokens": "2", "bytes": "32", "with_ms": "1.08", "without_ms": "1.0", "drafting_ms": "1.12",
           "launch_us": "3.1", "spread_us": "4", "drafting_spread_us": "8", "cuda_graph": "True", "implementation": "nccl"}  # fmt: skip
    found = {each["pattern"]: (each["time_us"], each["spread_us"]) for each in in_a_forward([row], SHAPE)}
    assert found == {
        "in a forward": (pytest.approx(20.0), 1.0),
        "in a forward in a whole cycle": (pytest.approx(30.0), 2.0),
        "single launch beside drafts": ("3.1", None),
    }
    quick = [each["pattern"] for each in in_a_forward([row | {"drafting_ms": "0.99"}], SHAPE)]
    assert quick == ["in a forward", "single launch beside drafts"]


TOPOLOGY = """\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tSYS\tPIX\t0-31\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\t0-31\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tSYS\t32-63\t1\t\tN/A
NIC0\tPIX\tSYS\tSYS\t X

Legend:
"""


def test_links_are_read_from_the_drivers_topology():
    assert links(TOPOLOGY, 2) == "NV18"
    assert links(TOPOLOGY, 3) == "NV18/SYS"
    assert links("", 2) == ""


def test_a_setting_that_is_measured_again_takes_the_place_of_its_rows(tmp_path):
    path = tmp_path / "t.csv"
    for time_us in (9.0, 8.0):
        Table(path, COLUMNS["allreduce"]).add(Way("nccl", "LL"), [{"nccl": "LL", "bytes": 1024, "time_us": time_us}])
    Table(path, COLUMNS["allreduce"]).add(Way("nccl", "Simple"), [{"nccl": "Simple", "bytes": 1024, "time_us": 7.0}])
    rows = Table(path, COLUMNS["allreduce"]).rows
    assert [(row["nccl"], row["time_us"]) for row in rows] == [("LL", "8.0"), ("Simple", "7.0")]
