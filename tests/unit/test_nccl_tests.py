"""Reading all-reduce tables: nccl-tests in both layouts, our own CSV, and what is wrong with either."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.runs.allreduce_files import load_allreduce, load_published
from specsim.runs.formats.allreduce_csv import ALLREDUCE_FIELDS
from specsim.runs.formats.nccl_tests import parse_nccl_tests

NEW = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        2048           512     float     sum      -1    14.69    0.14    0.21      0    13.94    0.15    0.22      0
       65536         16384     float     sum      -1    18.45    3.55    5.33      0    17.75    3.69    5.54      0
      524288        131072     float     sum      -1    84.93    6.17    9.26      0    82.35    6.37    9.55      0
     1048576        262144     float     sum      -1    102.1   10.27   15.40      0    102.1   10.28   15.41      0
"""
"""Four rows of gardenlinux/gardenlinux#4556, 2026: four GPUs, since busbw is 1.5 times algbw."""

OLD = """\
#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)              (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
       32768          4096   float    13.39    1.22    1.22  0e+00    11.85    1.38    1.38  0e+00
     1048576        131072   float    47.38   11.06   11.06  0e+00    46.84   11.19   11.19  0e+00
"""
"""Two rows of NVIDIA/nccl-tests#44: two 2080 Ti with an NVLink bridge, the layout without redop and root."""


def rows(text: str, in_place: bool):
    found, _ = parse_nccl_tests(text, "default", "t.txt")
    return [(row.message_bytes, row.time_us) for row in found if row.in_place is in_place]


def test_the_new_layout_gives_both_places_in_microseconds():
    assert rows(NEW, False) == [(2048, 14.69), (65536, 18.45), (524288, 84.93), (1048576, 102.1)]
    assert rows(NEW, True) == [(2048, 13.94), (65536, 17.75), (524288, 82.35), (1048576, 102.1)]


def test_the_old_layout_reads_too():
    assert rows(OLD, False) == [(32768, 13.39), (1048576, 47.38)]
    assert rows(OLD, True) == [(32768, 11.85), (1048576, 46.84)]


def test_ranks_follow_from_bus_over_algorithm_bandwidth_or_are_listed():
    assert {row.ranks for row in parse_nccl_tests(NEW, "s", "t")[0]} == {4}
    assert {row.ranks for row in parse_nccl_tests(OLD, "s", "t")[0]} == {2}
    listed = "".join(f"#  Rank  {n} Group  0 Pid  28307 on      host device  {n} [0x16] GPU\n" for n in range(8))
    assert {row.ranks for row in parse_nccl_tests(listed + NEW, "s", "t")[0]} == {8}


@pytest.mark.parametrize(
    "line",
    [
        "  131072   32768   float   sum   -1   27.31   4.80",  # cut off
        "  131072   32768   float   sum   -1   27.31    4.80    7.20      7    26.93    4.87    7.30      0",  # wrong
        "  131072   32768   float   sum   -1     nan    4.80    7.20      0     -1.0    4.87    7.30      0",
        "  131 KB   32768   float   sum   -1   27.31    4.80    7.20      0    26.93    4.87    7.30      0",
        "node1:17:21 [0] NCCL INFO Connected all rings",
    ],
)
def test_malformed_lines_are_counted_never_fatal(line):
    found, notes = parse_nccl_tests(f"{NEW}{line}\n", "s", "t.txt")
    assert len(found) == 8
    assert notes == ("t.txt: 1 lines are no rows of a table and were dropped",)


def test_unchecked_results_and_one_bad_place_are_kept():
    unchecked = NEW.replace("      0", "    N/A")
    assert len(parse_nccl_tests(unchecked, "s", "t")[0]) == 8
    half = NEW.replace("    18.45", "      nan")
    assert len(parse_nccl_tests(half, "s", "t")[0]) == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NEW.splitlines()[0], "has no row that can be read"),
        ("# nThread 1 nGpus 8\n", "has no header line"),
        ("# Collective test starting: all_gather_perf\n" + NEW, "is a table of all_gather_perf"),
    ],
)
def test_nothing_usable_is_an_error_that_says_so(text, said):
    with pytest.raises(InputError, match=said):
        parse_nccl_tests(text, "s", "t.txt")


# -- files and settings ------------------------------------------------------------------------------------------------


def test_tables_are_told_apart_by_content_and_labelled(tmp_path, csv):
    (tmp_path / "LL.txt").write_text(NEW, encoding="utf-8")
    own = csv("nccl,bytes,time_us", "Simple,2048,30", "Simple,2048,32", "Simple,4096,33")
    table = load_allreduce([(None, tmp_path / "LL.txt"), ("old", tmp_path / "LL.txt"), (None, own)])
    assert [s.label for s in table.settings()] == ["LL", "old", "Simple"]
    assert table.settings()[2].curve.times_us == (31.0, 33.0)
    assert table.settings(in_place=True)[0].curve.times_us[0] == 13.94
    assert table.settings(in_place=True)[2].curve.times_us == (31.0, 33.0)  # its place is unstated


def test_rows_under_other_conditions_are_no_repeats(csv):
    path = csv("nccl,bytes,time_us,cuda_graph,ranks", "a,1024,8.8,true,2", "a,1024,41,false,2", "b,1024,9,true,2")
    assert [(s.label, s.curve.times_us) for s in load_allreduce([(None, path)]).settings()] == [
        ("a, graph", (8.8,)), ("a, eager", (41.0,)), ("b", (9.0,)),
    ]  # fmt: skip


def test_an_implementation_beside_nccl_goes_by_its_own_name(csv):
    path = csv("nccl,implementation,bytes,time_us", "a,NCCL,1024,8.8", ",one-shot,1024,4", ",,1024,9")
    found = load_allreduce([(None, path)]).settings()
    assert [(s.label, s.implementation) for s in found] == [
        ("a", "nccl"), ("one-shot", "one-shot"), ("unstated", "nccl"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("nccl,byte,time_us", "a,1,1"), r"header, byte: is not a known column; did you mean 'bytes'\?"),
        (("nccl,bytes", "a,1"), "header, time_us: is missing"),
        (("bytes,bytes,time_us", "1,1,1"), "bytes: stands twice"),
        (("bytes,time_us", "0,1"), "row 2, bytes: '0' is wrong; input should be greater than or equal to 1"),
        (("bytes,time_us", "8,-1"), "row 2, time_us: '-1' is wrong"),
        (("bytes,time_us", "8,nan"), "row 2, time_us: 'nan' is wrong"),
        (("bytes,time_us", "8,"), "row 2, time_us: is empty"),
        (("bytes,time_us", "8,1,3"), "row 2: has more cells"),
        (("bytes,time_us", "8"), "row 2: has fewer cells"),
        (("bytes,time_us,in_place", "8,1,perhaps"), "row 2, in_place: 'perhaps' is wrong"),
        (("bytes,time_us",), "has no rows"),
        (("bytes,time_us", '8,"1'), "is not CSV"),
        (("",), "is empty"),
        (("no table at all",), "is no all-reduce table"),
    ],
)
def test_faults_name_file_row_field_and_what_is_allowed(csv, lines, said):
    with pytest.raises(InputError, match=said):
        load_allreduce([(None, csv(*lines))])


def test_faults_of_all_files_are_listed_together(csv, tmp_path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe,\x00")
    with pytest.raises(InputError) as raised:
        load_allreduce([(None, csv("bytes,time_us", "0,0")), (None, tmp_path / "none"), (None, tmp_path / "b.csv")])
    assert len(raised.value.faults) == 4


def test_published_times_have_a_source_each():
    settings = load_published().settings()
    assert len(settings) == 5
    assert all(s.sources and s.hardware for s in settings)


def test_every_column_is_documented_and_in_the_glossary():
    docs = Path(__file__).parents[2] / "docs"
    for page in ("data-format.md", "glossary.md"):
        text = (docs / page).read_text(encoding="utf-8")
        assert {name for name in ALLREDUCE_FIELDS if f"`{name}`" not in text} == set(), page


def test_the_documents_example_reads(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "data-format.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL) if "time_us" in block]
    path = tmp_path / "t.csv"
    path.write_text(example, encoding="utf-8")
    assert [s.label for s in load_allreduce([(None, path)]).settings()] == ["default", "LL-Ring-SYS", "one-shot"]
