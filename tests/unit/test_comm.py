"""`specsim comm`: the campaign's story, tables, priors, plots, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specsim import CostModel, Setup, SpecConfig, Workload, fit, predict
from specsim.runs.allreduce_files import load_allreduce
from tests.synthetic import Truth, phase_runs
from tests.unit.test_nccl_tests import NEW

TABLE = ("nccl,implementation,bytes,time_us", "default,,1024,40", "default,,1048576,60", "LL,,1024,10", "LL,,1048576,50",
         ",one-shot,1024,4", ",one-shot,1048576,100")  # fmt: skip
MODEL = ("--layers", 10, "--hidden-size", 512)


def as_json(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_campaigns_difference_is_spread_over_its_all_reduces(run_cli):
    record = as_json(run_cli("comm", "--json"))
    assert (record["all_reduces"], record["token_bytes"]) == (122, 14336)
    gained = 1000 / 62.9 - 1000 / 88.8  # 4.637 ms at one token; 28.7 − 21.7 at six
    per_token = (7.0 - gained) / 5 / 122 * 1000
    assert record["difference"]["per_token_us"] == pytest.approx(per_token)
    assert record["difference"]["fixed_us"] == pytest.approx(gained / 122 * 1000 - per_token)
    default, tuned = record["whole_step"]
    assert default["at_most_us"] == pytest.approx([1e6 / 62.9 / 122, 28700 / 122])
    assert tuned["at_most_us"] == pytest.approx([1e6 / 88.8 / 122, 21700 / 122])


def test_the_story_says_what_published_hosts_and_the_prior_are_worth(run_cli):
    out = " ".join(run_cli("comm").stdout.split())
    for said in ("34 µs each plus 3.9 µs per 14,336-byte token", "38 to 130 µs", "longer than a whole step here",
                 "PRIOR: NCCL's own latency model", "205 µs", "EXTRAPOLATED", "sglang#34528"):  # fmt: skip
        assert said in out


def test_hosts_are_judged_by_the_bounds_of_whole_steps(run_cli):
    verdicts = {row["label"]: row["could_be"] for row in as_json(run_cli("comm", "--json"))["elsewhere"]}
    assert verdicts["NCCL, 8 PCIe GPUs, two sockets"] == "longer than a whole step here"  # 222 µs · 122 > 15.9 ms
    assert verdicts["NCCL, 4 V100 on a PCIe switch"] == "could be LL-Ring-SYS"  # 22 µs, less than the difference of 38
    assert verdicts["prior:Ring-Simple"] == "could be default or LL-Ring-SYS"


def tables(folder, **settings):
    """Files by name, each with two messages of every setting in it."""
    paths = []
    for name, labels in settings.items():
        rows = [f"{label},{size},40" for label in labels.split() for size in (1024, 1048576)]
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text("\n".join(["nccl,bytes,time_us", *rows]) + "\n", encoding="utf-8")
    return paths


def mixed(run_cli, *arguments):
    return [
        note for note in as_json(run_cli("comm", *arguments, *MODEL, "--json"))["notes"] if note.startswith("MIXED")
    ]


def test_medians_over_unlike_tables_are_labelled_where_they_are_compared(run_cli, tmp_path):
    a, b = tables(tmp_path, a="x y z", b="x y")
    (note,) = mixed(run_cli, a, b)
    assert f": all-reduces of x are of {a}, {b}, those of z of {a}, so that" in note
    (note,) = mixed(run_cli, a, b, "--from", "z", "--to", "y")
    assert f": all-reduces of z are of {a}, those of y of {a}, {b}, so that" in note
    assert not mixed(run_cli, a, b, "--to", "y")
    assert not mixed(run_cli, a)


def test_settings_in_a_file_each_are_no_unlike_medians(run_cli, tmp_path):
    """As nccl-tests writes them, repeats too; but for one that shares a file with another's repeats."""
    x, again, y, both = tables(tmp_path, x="x", again="x", y="y", both="y z")
    assert not mixed(run_cli, x, y)
    assert not mixed(run_cli, x, again, y)
    assert len(mixed(run_cli, x, again, both, "--from", "x", "--to", "z")) == 1


def test_of_two_places_the_files_of_the_one_that_is_asked_are_told(run_cli, tmp_path):
    (a, b), head = (tmp_path / "a.csv", tmp_path / "b.csv"), "nccl,bytes,time_us,in_place\n"
    both = "".join(
        f"{each},{size},40,{place}\n" for each in "xy" for size in (1024, 2048) for place in ("true", "false")
    )
    a.write_text(head + both, encoding="utf-8")
    b.write_text(head + "x,1024,40,false\nx,2048,40,false\n" + both[len(both) // 2 :], encoding="utf-8")
    assert not mixed(run_cli, a, b)
    assert len(mixed(run_cli, a, b, "--in-place")) == 1


def test_gathers_over_unlike_tables_are_labelled(run_cli, tmp_path):
    (table,) = tables(tmp_path, a="x y")
    gathers = [tmp_path / "g.csv", tmp_path / "h.csv"]
    for path, labels in zip(gathers, ("xy", "x"), strict=True):
        rows = [f"{each},{size},20,gather of logits" for each in labels for size in (1024, 1048576)]
        path.write_text("\n".join(["nccl,bytes,time_us,pattern", *rows]) + "\n", encoding="utf-8")
    (note,) = mixed(run_cli, table, *gathers, "--vocab-size", 512)
    assert f"gathers of x are of {gathers[0]}, {gathers[1]}, those of y of {gathers[0]}" in note
    assert not mixed(run_cli, table, gathers[0], "--vocab-size", 512)


def test_a_saved_model_says_what_was_mixed_in_its_settings(run_cli, tmp_path):
    a, b = tables(tmp_path, a="x y", b="x")
    runs = [replace(each, nccl="x") for each in phase_runs(Truth(), (2, 4, 6), (1, 2, 8))]
    fit(runs).model.save(tmp_path / "m.json")
    more = ("--from", "x", *MODEL, "--model", tmp_path / "m.json", "--save-model", tmp_path / "s.json")
    assert run_cli("comm", a, b, *more).exit_code == 0
    assert sum(note.startswith("MIXED") for note in CostModel.load(tmp_path / "s.json").notes) == 1
    assert run_cli("comm", a, *more).exit_code == 0
    assert not any(note.startswith("MIXED") for note in CostModel.load(tmp_path / "s.json").notes)


@pytest.mark.parametrize("arguments", [(), ("--link", "pcie", "--ranks", 8, *MODEL)])
def test_text_and_json_carry_the_same_labels(run_cli, arguments):
    text, record = run_cli("comm", *arguments).stdout, as_json(run_cli("comm", *arguments, "--json"))
    flat = " ".join(text.split())
    for said in (*record["notes"], *record.get("findings", [])):
        assert " ".join(said.split()) in flat


def test_tables_give_changes_by_setting_batch_and_width(run_cli, csv):
    asked = ("comm", csv(*TABLE), *MODEL, "--batch-size", "1,4", "--num-draft-tokens", "1-2", "--from", "default")
    record = as_json(run_cli(*asked, "--to", "LL", "--json"))
    assert [(r["batch_size"], r["num_draft_tokens"], r["message_bytes"]) for r in record["rows"]] == [
        (1, 1, 1024), (1, 2, 2048), (4, 1, 4096), (4, 2, 8192),
    ]  # fmt: skip
    first = record["rows"][0]
    assert first["verify_change_ms"] == first["decode_change_ms"] == pytest.approx(20 * -30e-3)
    assert first["to_all_reduce_ms"] == pytest.approx(20 * 10e-3)
    assert (first["draft_change_ms"], first["extrapolated"]) == (0, False)
    assert {r["setting"] for r in as_json(run_cli(*asked, "--json"))["rows"]} == {"LL", "one-shot"}


def test_the_drafter_counts_where_it_is_split(run_cli, csv):
    asked = ("comm", csv(*TABLE), *MODEL, "--num-draft-tokens", "2", "--to", "LL", "--draft-layers", 1)
    record = as_json(run_cli(*asked, "--engine", "sglang", "--json"))
    row = record["rows"][0]
    assert record["draft_all_reduces"] == 2
    assert row["draft_change_ms"] == pytest.approx(2 * (row["to_us"] - row["from_us"]) / 1000)  # the re-extend alone
    assert row["cycle_change_ms"] == pytest.approx(row["verify_change_ms"] + row["draft_change_ms"])


def test_custom_all_reduces_leave_nccl_settings_without_effect_and_other_kernels_with_one(run_cli, csv):
    asked = ("comm", csv(*TABLE), *MODEL, "--engine", "sglang", "--link", "nvlink", "--ranks", 8)
    record = as_json(run_cli(*asked, "--json"))
    changes = {row["setting"]: (row["verify_change_ms"], row["custom_all_reduce"]) for row in record["rows"]}
    assert changes["LL"] == (0, True)
    assert changes["one-shot"][0] != 0
    assert "CUSTOM" in run_cli(*asked).stdout
    pcie = (*asked[:-3], "pcie", "--ranks", 8)
    assert "no custom all-reduce that is known" in " ".join(run_cli(*pcie).stdout.split())


def test_outside_a_table_is_marked(run_cli, csv):
    out = run_cli("comm", csv(*TABLE), "--layers", 1, "--hidden-size", 256).stdout
    assert "512 B ¹" in out
    assert "EXTRAPOLATED" in out


def test_a_table_that_falls_is_told_of(run_cli, csv):
    path = csv("nccl,bytes,time_us", "a,1024,40", "a,4096,10", "b,1024,5", "b,4096,6")
    assert "a: the table falls with size" in run_cli("comm", path, *MODEL).stdout


def test_tables_of_different_ranks_are_labelled_mixed(run_cli, csv):
    path = csv("nccl,bytes,time_us,ranks,hardware", "a,1024,8,2,H200", "b,1024,9,4,H200", "b,4096,9,4,")
    out = " ".join(run_cli("comm", path, *MODEL).stdout.split())
    assert "MIXED, not like for like: the tables differ in ranks: 2, 4" in out
    assert "differ in hardware" not in out


def test_one_setting_alone_says_that_there_is_nothing_to_compare(run_cli, tmp_path):
    path = tmp_path / "LL.txt"
    path.write_text(NEW + "garbage\n", encoding="utf-8")
    out = " ".join(run_cli("comm", f"mine={path}", *MODEL).stdout.split())
    assert "compared with itself" in out
    assert "1 lines are no rows" in out
    assert "mine" in out


@pytest.mark.parametrize("asked", [(), ("--link", "pcie", "--ranks", 8, *MODEL)])
def test_plots_are_written_and_others_refused(run_cli, tmp_path, asked):
    for form in ("png", "svg"):
        path = tmp_path / f"comm.{form}"
        assert run_cli("comm", *asked, "-o", path).exit_code == 0
        assert path.stat().st_size > 10_000
    refused = run_cli("comm", *asked, "-o", tmp_path / "comm.pdf")
    assert (refused.exit_code, "png or svg" in refused.stderr) == (2, True)


def test_the_plot_holds_the_records_changes(run_cli, csv):
    from specsim.report.comm_plots import comm_figure

    asked = ("comm", csv(*TABLE), *MODEL, "--draft-layers", 1, "--to", "LL", "--json")
    record = as_json(run_cli(*asked))
    lines = {line.get_label(): line.get_xydata() for line in comm_figure(record).axes[0].get_lines()}
    assert lines["LL, batch 1"][:, 0].tolist() == [1, 2, 4, 6, 8]
    assert lines["LL, batch 1"][:, 1] == pytest.approx([row["verify_change_ms"] for row in record["rows"]])
    whole = lines["whole cycle, drafter included"]
    assert whole[:, 1] == pytest.approx([row["cycle_change_ms"] for row in record["rows"]])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--layers", 61), "state both"),
        (("none.csv", *MODEL), "none.csv: cannot be read"),
        (MODEL, "without a TABLE, --link and --ranks"),
        (("--link", "pcie", "--ranks", 8, *MODEL, "--from", "LL"), "unknown NCCL setting 'LL'; known here: prior"),
        (("--link", "pcie", "--ranks", 1, *MODEL), "1 ranks"),
        (("--link", "pcie", "--ranks", 8, "--layers", 0, "--hidden-size", 8), "layers must be at least 1"),
        (("--link", "pcie", "--ranks", 8, *MODEL, "--draft-layers", 0), "layers must be at least 1"),
        (("--link", "pcie", "--ranks", 8, *MODEL, "--batch-size", "0"), "batch_size must be at least 1"),
        (("--link", "pcie", "--ranks", 8, *MODEL, "--topk", 4), "needs --num-steps"),
        (("--link", "pcie", "--ranks", 8, *MODEL, "--num-draft-tokens", "x"), "neither a whole number"),
        (("--from", "x"), "state both"),
        (("none.csv", *MODEL, "--bus-gb-s", 5), "leave one of them out"),
    ],
)
def test_bad_input_exits_with_2_and_says_what_is_wrong(run_cli, arguments, said):
    result = run_cli("comm", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_tables_of_one_label_are_told_apart_by_the_user(run_cli, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text(
            f"nccl,implementation,bytes,time_us\n{'x' if name == 'a' else ''},{'' if name == 'a' else 'x'},1024,5\n"
        )
    out = run_cli("comm", tmp_path / "a" / "t.csv", tmp_path / "b" / "t.csv", *MODEL, "--json")
    assert {s["label"] for s in as_json(out)["settings"]} == {"x, nccl", "x, x"}


def test_a_split_vocabulary_is_counted_or_said_to_be_left_out(run_cli, csv):
    """Flat 40 and 10 µs: 20 all-reduces of two layers each, one more and half of one for a vocabulary."""
    table = csv("nccl,bytes,time_us", "default,1,40", "default,1000000000,40", "LL,1,10", "LL,1000000000,10")
    asked = ("comm", table, *MODEL, "--draft-layers", 1, "--num-draft-tokens", 2, "--engine", "vllm", "--json")
    without, counted = as_json(run_cli(*asked)), as_json(run_cli(*asked, "--vocab-size", 100, "--draft-vocab-size", 10))
    assert [r["rows"][0]["decode_change_ms"] for r in (without, counted)] == pytest.approx([-0.6, -0.03 * 21.5])
    assert [r["rows"][0]["draft_change_ms"] for r in (without, counted)] == pytest.approx([-0.06, -0.03 * 3.5])
    assert [any("--vocab-size" in note for note in r["notes"]) for r in (without, counted)] == [True, False]


def test_logits_are_shown_flagged_and_nccls(run_cli, csv):
    """A kernel that only reduces changes 21 all-reduces of 30 µs, and nothing of a gather."""
    table = csv("nccl,implementation,bytes,time_us", "default,,1,40", "default,,1000,40", "LL,,1,10", "LL,,1000,10",
                ",one-shot,1,10", ",one-shot,1000,10")  # fmt: skip
    asked = ("comm", table, "--layers", 10, "--hidden-size", 4, "--vocab-size", 300, "--num-draft-tokens", "1,2")
    rows = as_json(run_cli(*asked, "--json"))["rows"]
    ll, one_shot = ([row for row in rows if row["setting"] == name] for name in ("LL", "one-shot"))
    assert [row["decode_change_ms"] for row in (ll[0], one_shot[0])] == pytest.approx([-0.03 * 21.5, -0.03 * 21])
    assert [(row["logits_bytes"], row["logits_extrapolated"]) for row in ll] == [(600, False), (1200, True)]
    assert (ll[1]["from_gather_ms"], ll[1]["to_gather_ms"]) == pytest.approx((0.02, 0.005))
    text = run_cli(*asked).stdout
    assert "gather" in text
    assert "0.01 ³" in text  # half of 10 µs
    assert {row[name] for row in one_shot for name in ("from_gather_ms", "to_gather_ms")} == {None}
    assert "not counted between implementations" in " ".join(text.split())
    assert "EXTRAPOLATED at rows marked ³" in text


GATHERS = ("nccl,bytes,time_us,cuda_graph,pattern,ranks", "default,600,9,true,gather of logits,2", "default,1200,11,true,gather of logits,2",
           "default,600,90,false,gather of logits,2", "LL,600,5,true,gather of logits,2", "LL,1200,6,true,gather of logits,2",
           "LL,600,50,true,gather of logits,8", "Tree,600,1,true,gather of logits,2", "Ring,600,1,false,gather of logits,2")  # fmt: skip


def test_gathers_go_with_the_all_reduces_of_their_setting_ranks_and_graphs(run_cli, csv, tmp_path):
    table = csv("nccl,bytes,time_us,cuda_graph,ranks", *(f"{name},{size},{us},true,2" for name, us in (("default", 40), ("LL", 10), ("Ring", 10))
                                                         for size in (1, 1000)))  # fmt: skip
    gathers = tmp_path / "gathers.csv"
    gathers.write_text("\n".join(GATHERS) + "\n", encoding="utf-8")
    asked = (
        "comm",
        table,
        gathers,
        "--layers",
        10,
        "--hidden-size",
        4,
        "--vocab-size",
        300,
        "--num-draft-tokens",
        "1,2,4",
    )
    record = as_json(run_cli(*asked, "--json"))
    assert [setting["label"] for setting in record["settings"]] == ["default", "LL", "Ring"]
    ll, ring = ([row for row in record["rows"] if row["setting"] == name] for name in ("LL", "Ring"))
    assert [row["to_gather_ms"] for row in ll[:2]] == pytest.approx([0.005, 0.006])
    assert [row["from_gather_ms"] for row in ll[:2]] == pytest.approx([0.009, 0.011])
    assert [(row["gather_measured"], row["logits_extrapolated"]) for row in ll] == [
        (True, False),
        (True, False),
        (True, True),
    ]
    assert {(row["from_gather_ms"], row["gather_measured"]) for row in ring} == {(0.02, False)}
    said = " ".join(run_cli(*asked).stdout.split())
    for note in ("logits' gathers are measured ones, made back to back, to LL", "half an all-reduce to Ring: not measured under both settings",
                 "gathers of Tree, Ring are not used", "by a size outside the table of gathers"):  # fmt: skip
        assert note in said, said


def gathered(run_cli, csv, tmp_path, columns, all_reduce, gathers, *more):
    """Settings by label with what a gather of 600 bytes takes under each [µs]; None where half an all-reduce stands for it."""
    table, beside = csv("nccl,bytes,time_us" + columns, *all_reduce), tmp_path / "g.csv"
    beside.write_text(
        "\n".join(["nccl,bytes,time_us,pattern,cuda_graph,in_place,hardware", *gathers]) + "\n", encoding="utf-8"
    )
    found = load_allreduce([(None, Path(table)), (None, beside)]).settings(*more)
    return {each.label: each.curve.gather and round(each.curve.gather.time_us(600.0), 6) for each in found}


def test_gathers_of_unlike_conditions_are_never_blended(run_cli, csv, tmp_path):
    """Where the all-reduces leave the mode unstated graphs' gathers count, where they leave the hardware unstated none of two."""
    both = ("a,600,9,Gather of logits,true,,", "a,600,90,gather of logits,false,,")
    assert gathered(run_cli, csv, tmp_path, "", ("a,1,40", "a,1000,40"), both) == {"a": 9.0}
    rows = ("a,1,40,H", "a,1,50,A")
    two = ("a,600,9,gather of logits,,,H", "a,600,90,gather of logits,,,A")
    assert gathered(run_cli, csv, tmp_path, ",hardware", rows, two) == {"a, H": 9.0, "a, A": 90.0}
    assert gathered(run_cli, csv, tmp_path, "", ("a,1,40",), two) == {"a": None}
    places = ("a,600,9,gather of logits,,false,", "a,600,90,gather of logits,,true,")
    for in_place, us in ((False, 9.0), (True, 90.0)):
        assert gathered(run_cli, csv, tmp_path, "", ("a,1,40",), places, in_place) == {"a": us}


def test_an_engines_version_decides_its_graphs_and_a_models_stands_for_it(run_cli, csv, tmp_path):
    """One request with five drafts: a draft step of vLLM 0.24 has six tokens of 1 KiB, of the newest one."""
    table = csv("nccl,bytes,time_us", "default,1024,10", "default,1048576,10", "LL,1024,11", "LL,1048576,1034")
    asked = (
        "comm",
        table,
        *MODEL,
        "--draft-layers",
        1,
        "--num-draft-tokens",
        6,
        "--engine",
        "vllm",
        "--from",
        "default",
        "--json",
    )
    steps = {version: as_json(run_cli(*asked, *version))["rows"][0]["draft_change_ms"]
             for version in ((), ("--engine-version", "0.24.0"), ("--engine-version", "0.33.0"))}  # fmt: skip
    assert steps[()] == steps["--engine-version", "0.33.0"] < steps["--engine-version", "0.24.0"]
    setup = Setup(engine="vllm", engine_version="0.24.0")
    runs = [replace(run, setup=setup) for run in phase_runs(Truth(), (2, 4, 6), (1, 2, 8))]
    fit(runs).model.save(tmp_path / "m.json")
    told = as_json(run_cli(*asked, "--model", tmp_path / "m.json", "--save-model", tmp_path / "n.json"))
    assert told["engine_version"] == "0.24.0"
    assert told["rows"][0]["draft_change_ms"] == steps["--engine-version", "0.24.0"]
    moved = CostModel.load(tmp_path / "n.json")
    times = {nccl: predict(moved, SpecConfig(5, 1, 6), Workload(1), 1.0, nccl).times.draft_ms for nccl in ("s", "LL")}
    assert times["LL"] - times["s"] == pytest.approx(told["rows"][0]["draft_change_ms"])


def test_gathers_alone_are_no_table(run_cli, csv):
    result = run_cli("comm", csv(*GATHERS), *MODEL)
    assert result.exit_code == 2
    assert "row 2, pattern: is 'gather of logits' in every row" in result.stderr
    assert "give a table of all-reduces beside it" in result.stderr


BESIDE_DRAFTS = ("nccl,implementation,bytes,time_us,pattern",
                 *(f"{name},{size},{us},{pattern}" for size in (64, 65536)
                   for name, us, pattern in (("default,", 40, "in a forward"), ("default,", 43, "In a forward beside drafts"),
                                             ("default,", 3, "single launch beside drafts"), ("default,own", 10, "in a forward"),
                                             ("default,own", 9, "in a forward beside drafts"),
                                             ("default,own", 1, "single launch beside drafts"))))  # fmt: skip
SPLIT = ("--layers", 10, "--hidden-size", 32, "--draft-layers", 1, "--num-draft-tokens", "1,4")


def test_what_was_measured_beside_drafts_tells_cycles_that_draft(run_cli, csv):
    """20 all-reduces in a forward, 2 in each of three draft forwards, 49 launches in vLLM's cycle; another engine's are not counted."""
    table = csv(*BESIDE_DRAFTS)
    record = as_json(run_cli("comm", table, *SPLIT, "--engine", "vllm", "--json"))
    assert [setting["label"] for setting in record["settings"]] == ["default", "own"]
    plain, drafts = record["rows"]
    assert [row["drafts_measured"] for row in (plain, drafts)] == [False, True]
    assert [row[name] for row in (plain, drafts) for name in ("from_us", "to_us")] == pytest.approx([40, 10, 43, 9])
    assert drafts["to_all_reduce_ms"] == pytest.approx(0.18)
    assert (plain["verify_change_ms"], plain["launch_change_ms"]) == (pytest.approx(-0.6), 0.0)
    assert (drafts["verify_change_ms"], drafts["decode_change_ms"]) == (pytest.approx(-0.68), pytest.approx(-0.6))
    assert drafts["launch_change_ms"] == pytest.approx(-0.098)
    assert drafts["cycle_change_ms"] == pytest.approx(-0.68 + drafts["draft_change_ms"] - 0.098)
    text = " ".join(run_cli("comm", table, *SPLIT, "--engine", "vllm").stdout.split())
    assert "verify draft launches cycle decode" in text
    assert "measured between a drafter's graphs, to own" in text
    assert "not measured beside drafts" not in text
    assert "MIXED" not in text
    assert "launches cycle" not in " ".join(run_cli("comm", table, *SPLIT, "--engine", "sglang").stdout.split())
    other = as_json(run_cli("comm", table, *SPLIT, "--engine", "sglang", "--json"))["rows"][1]
    assert (other["launch_change_ms"], other["verify_change_ms"]) == (0.0, pytest.approx(-0.68))


def test_between_implementations_that_were_not_measured_beside_drafts_it_is_said(run_cli, csv):
    """And rows beside drafts without a forward's are said to be unused."""
    alone = [row for row in BESIDE_DRAFTS if "own" not in row or row.endswith(",in a forward")]
    said = " ".join(as_json(run_cli("comm", csv(*alone), *SPLIT, "--json"))["notes"])
    assert "told to own by all-reduces that were not measured beside drafts under both settings" in said
    other = [
        row.replace("in a forward", "back to back") if "default" in row and row.endswith(",in a forward") else row
        for row in alone
    ]
    said = " ".join(as_json(run_cli("comm", csv(*other), *SPLIT, "--json"))["notes"])
    assert "rows 'in a forward beside drafts' of default are not used" in said
    nccl = csv("nccl,bytes,time_us", "default,64,40", "LL,64,10")
    assert "beside drafts" not in run_cli("comm", nccl, *SPLIT).stdout


def test_what_was_measured_beside_drafts_and_is_not_used_is_said(run_cli, csv):
    """Without a split drafter, with a lookup (whose verify has no drafts beside it), and between NCCL's settings of which one lacks it, too."""
    whole = csv(*BESIDE_DRAFTS)
    unsplit = ("--layers", 10, "--hidden-size", 32, "--num-draft-tokens", "1,4")
    lookup = (*SPLIT, "--method", "ngram", "--engine", "vllm")
    for asked in (unsplit, lookup):
        found = as_json(run_cli("comm", whole, *asked, "--json"))
        notes = " ".join(found["notes"])
        assert "what default, own takes beside drafts is not used" in notes
        assert "beside drafts 64 B" not in notes
        changes = [row["verify_change_ms"] for row in found["rows"]]
        assert changes == pytest.approx([-0.6] * len(changes))
    rows = [
        row.replace("default,own", "LL,") for row in BESIDE_DRAFTS if "own" not in row or row.endswith(",in a forward")
    ]
    assert (
        "told to LL by all-reduces that were not measured beside drafts"
        in run_cli("comm", csv(*rows), *SPLIT, "--json").stdout
    )
    used = run_cli("comm", csv(*BESIDE_DRAFTS), *SPLIT, "--json").stdout
    assert "not used" not in used
    others = ("nccl,implementation,bytes,time_us,pattern", *(f"default,{name},{size},{us},in a forward" for size in (64, 65536)
                                                             for name, us in (("own", 10), ("one-shot", 12))))  # fmt: skip
    assert "beside drafts" not in run_cli("comm", csv(*others), *SPLIT, "--json").stdout  # NCCL carries nothing


def of_kind(rows, kind):
    """The rows as they are, or with whole cycles where there were other drafts."""
    return [re.sub("in a forward beside drafts", kind, row, flags=re.I) for row in rows]


WHOLE_CYCLE, OTHER_DRAFTS = "in a forward in a whole cycle", "in a forward beside drafts"


def test_whole_cycles_go_before_what_was_measured_beside_other_drafts(run_cli, csv):
    """Of a setting that has both, which is said; alone they are read without a word on it."""
    whole = of_kind(BESIDE_DRAFTS, WHOLE_CYCLE)
    others = [f"default,own,{size},11,{OTHER_DRAFTS}" for size in (64, 65536)]
    alone, both = (as_json(run_cli("comm", csv(*rows), *SPLIT, "--json")) for rows in (whole, (*whole, *others)))
    assert [found["rows"][1]["to_us"] for found in (alone, both)] == pytest.approx([9.0, 9.0])
    for found in (alone, both):
        assert any("told by all-reduces in whole cycles, measured" in note for note in found["notes"])
        assert "MIXED" not in " ".join(found["notes"])
    assert "not used" not in " ".join(alone["notes"])
    assert any(f"rows '{OTHER_DRAFTS}' of own are not used" in note for note in both["notes"])


def test_settings_between_drafts_of_unlike_kinds_are_mixed(run_cli, csv, tmp_path):
    """In text, JSON and a saved model; not where the drafter communicates nothing, nor to settings that are not asked for."""
    beside = [row for row in BESIDE_DRAFTS if "own" in row]
    default = [row for row in BESIDE_DRAFTS if "own" not in row]
    own, other = of_kind(beside, WHOLE_CYCLE), [row.replace("own", "two") for row in beside]
    table = csv(*default, *own, *other)
    said = "MIXED, not like for like: cycles that draft are told by all-reduces beside drafts of default and all-reduces in whole cycles of own"
    for how in ((), ("--json",)):
        assert said in " ".join(run_cli("comm", table, *SPLIT, *how).stdout.replace("*", "").split())
    for asked in ((*SPLIT, "--to", "two"), (*SPLIT[:4], "--num-draft-tokens", "1,4")):
        assert "MIXED" not in " ".join(as_json(run_cli("comm", table, *asked, "--json"))["notes"])
    fit(phase_runs(Truth(), (2, 4, 6), (1, 2, 8))).model.save(tmp_path / "m.json")
    asked = ("--model", tmp_path / "m.json", "--to", "own", "--save-model", tmp_path / "own.json")
    assert run_cli("comm", table, *SPLIT, *asked).exit_code == 0
    assert said in (tmp_path / "own.json").read_text(encoding="utf-8")


def test_launches_alone_are_said_to_be_unused(run_cli, csv):
    rows = [row for row in BESIDE_DRAFTS if not row.endswith("beside drafts") or "single" in row]
    assert (
        "rows 'single launch beside drafts' of default, own are not used"
        in run_cli("comm", csv(*rows), *SPLIT, "--json").stdout
    )


def test_where_a_custom_all_reduce_carries_messages_launches_do_not_change(run_cli, csv):
    rows = [row.replace("default,own", "LL,") for row in BESIDE_DRAFTS]
    wired = ("--engine", "vllm", "--link", "nvlink", "--arch", "sm90", "--ranks", 2)
    drafts = as_json(run_cli("comm", csv(*rows), *SPLIT, *wired, "--json"))["rows"][1]
    assert (drafts["custom_all_reduce"], drafts["verify_change_ms"], drafts["launch_change_ms"]) == (True, 0.0, 0.0)


def test_halves_of_all_reduces_stand_for_gathers_as_they_are_alone_in_cycles_that_draft_too(run_cli, csv):
    """20 + 1 all-reduces of 9 − 43 µs beside drafts, half of 10 − 40 for the logits; what is shown adds up to what is told."""
    rows = [row.replace("default,own", "LL,") for row in BESIDE_DRAFTS]
    drafts = as_json(run_cli("comm", csv(*rows), *SPLIT, "--vocab-size", 100, "--json"))["rows"][1]
    assert drafts["to_gather_ms"] - drafts["from_gather_ms"] == pytest.approx(-0.015)
    assert drafts["verify_change_ms"] == pytest.approx(21 * -0.034 - 0.015)


def test_spans_beside_drafts_are_named(run_cli, csv):
    """Alone the tables end at 64 KiB, beside drafts at 64 bytes: a verify of four tokens lies beyond, one of one does not."""
    rows = [row for row in BESIDE_DRAFTS if not ("beside drafts" in row and "65536" in row)]
    record = as_json(run_cli("comm", csv(*rows), *SPLIT, "--json"))
    assert [row["extrapolated"] for row in record["rows"]] == [False, True]
    assert "default, beside drafts 64 B to 64 B" in " ".join(record["notes"])


def test_a_model_moved_by_what_was_measured_beside_drafts_is_the_table_s(run_cli, csv, tmp_path):
    """A fit of whole cycles has no term of its own for what lies between forwards: the change is whole all the same."""
    setup = Setup(engine="vllm", engine_version="0.24.0", cuda_graph=True)
    whole = [run for run in phase_runs(Truth(), (2, 4, 6), (1, 2, 8)) if {"cycle_ms", "decode_ms"} & set(run.figures)]
    runs = [replace(run, setup=setup, figures={name: figure for name, figure in run.figures.items() if name in ("cycle_ms", "decode_ms")})
            for run in whole]  # fmt: skip
    fit(runs).model.save(tmp_path / "m.json")
    asked = ("comm", csv(*BESIDE_DRAFTS), *SPLIT, "--engine", "vllm", "--model", tmp_path / "m.json")
    told = as_json(run_cli(*asked, "--save-model", tmp_path / "n.json", "--json"))["rows"][1]
    moved = CostModel.load(tmp_path / "n.json")
    times = {nccl: predict(moved, SpecConfig(3, 1, 4), Workload(1), 1.0, nccl).times.cycle_ms for nccl in ("s", "own")}
    assert times["own"] - times["s"] == pytest.approx(told["cycle_change_ms"])


def test_a_plot_leaves_markers_hollow_where_logits_are_beyond_the_tables(run_cli, csv):
    """600 bytes of logits lie inside, 1,200 do not; without a vocabulary nothing is beyond."""
    from specsim.report.comm_plots import comm_figure

    table = csv("nccl,bytes,time_us", "default,1,40", "default,1000,40", "LL,1,10", "LL,1000,10")
    asked = ("comm", table, "--layers", 10, "--hidden-size", 4, "--num-draft-tokens", "1,2", "--json")
    figures = [comm_figure(as_json(run_cli(*asked, *more))) for more in ((), ("--vocab-size", 300))]
    hollow = [[line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
              for figure in figures]  # fmt: skip
    assert hollow == [[], [[2]]]


def test_options_of_a_drafter_that_is_not_split_are_refused(run_cli, csv):
    for option in ("--draft-vocab-size", "--draft-hidden-size"):
        refused = run_cli("comm", csv(*TABLE), *MODEL, option, 10)
        assert refused.exit_code == 2
        assert f"{option} is of a drafter that is split" in refused.stderr


def test_only_tables_made_alone_are_said_to_be_that(run_cli, csv):
    rows = ("nccl,bytes,time_us,pattern", "default,1024,40,in a forward", "LL,1024,10,in a forward")
    alone = (*rows[:2], "LL,1024,10,back to back")
    said = [any("made back to back" in note for note in as_json(run_cli("comm", csv(*table), *MODEL, "--json"))["notes"])
            for table in (rows, alone)]  # fmt: skip
    assert said == [False, True]
    unstated = (*rows[:2], "LL,1024,10,")
    for table in (alone, unstated):
        mixed = as_json(run_cli("comm", csv(*table), *MODEL, "--json"))["notes"]
        assert any("MIXED" in note and "pattern" in note for note in mixed)
    assert not any("MIXED" in note for note in as_json(run_cli("comm", csv(*rows), *MODEL, "--json"))["notes"])


def test_of_many_faults_of_a_table_none_is_lost(run_cli, csv):
    refused = run_cli("comm", csv("bytes,time_us", *["0,1"] * 30), *MODEL)
    assert refused.exit_code == 2
    assert "row 21, bytes" in refused.stderr
    assert "and 10 more faults" in refused.stderr


def test_labels_that_hold_commas_are_told_apart_in_a_list(run_cli, csv):
    table = csv("nccl,bytes,time_us,cuda_graph,ranks", "a,1,2,true,2", "a,1,3,false,4", "b,1,2,true,2")
    refused = run_cli("comm", table, *MODEL, "--to", "c")
    assert "known here: a, graph, 2 ranks; a, eager, 4 ranks; b" in refused.stderr


def test_a_models_engine_and_graphs_are_those_of_a_comparison(run_cli, csv, tmp_path):
    """What is printed is what is saved: engine and graph mode are the model's, another engine is refused."""
    for graphs, launched in ((True, True), (False, False)):
        setup = Setup(engine="vLLM", engine_version="0.24.0", cuda_graph=graphs)
        fit([replace(run, setup=setup) for run in phase_runs(Truth(), (2, 4, 6), (1, 2, 8))]).model.save(
            tmp_path / "m.json"
        )
        asked = (
            "comm",
            csv(*BESIDE_DRAFTS),
            *SPLIT,
            "--model",
            tmp_path / "m.json",
            "--save-model",
            tmp_path / "n.json",
        )
        told = as_json(run_cli(*asked, "--json"))["rows"][1]
        assert (told["launch_change_ms"] != 0, told["drafts_measured"]) == (launched, launched)
        moved = CostModel.load(tmp_path / "n.json")
        times = {
            nccl: predict(moved, SpecConfig(3, 1, 4), Workload(1), 1.0, nccl).times.cycle_ms for nccl in ("s", "own")
        }
        assert times["own"] - times["s"] == pytest.approx(told["cycle_change_ms"])
        assert as_json(run_cli(*asked, "--engine", "vllm", "--json"))["rows"][1] == told
        refused = run_cli(*asked, "--engine", "sglang")
        assert refused.exit_code == 2
        assert "--model's runs were made on vLLM" in refused.stderr
