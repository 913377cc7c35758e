"""Importers under damaged input: nothing raises but InputError, and no line is lost without a count."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specsim.errors import InputError
from specsim.runs.formats.positions import histogram_of, position_counts
from specsim.runs.importing import import_files
from specsim.runs.lines import matching_lines
from specsim.runs.readings import Repeats
from tests.unit.test_import_logs import (
    AFTER,
    ARGUMENTS,
    BEFORE,
    SGLANG_METRICS,
    SHAPES,
    decode,
    engine,
    iteration,
    spec,
    step,
)

DATA = Path(__file__).parents[1] / "unit" / "data"
SAMPLES = sorted(path for path in DATA.iterdir() if path.name != "README.md")
LINES = [
    *(f"[2026-11-01 10:00:00 TP0] {shape}" for shape in SHAPES.values()),
    decode(1, 2, 100, "3.00", "0.67", "400.0"), decode(2, 2, 340, "3.00", "0.67", "400.0"),
    "[2026-11-01 10:00:02 TP0] Prefill batch, #new-seq: 1, #new-token: 253, input throughput (token/s): 9.0",
    ARGUMENTS.format(width=4), "Adaptive spec params updated: steps 3 -> 5 (ema_accept_len=2.81)",
    engine(10, 0, 250.0, 2), engine(20, 0, 260.0, 2), spec(20, 2.6, 1600, 2000, "0.900, 0.700"),
    iteration(1, 0, 4, 16, 14.21), step(1, 8, 32, "N/A"), step(2, 8, 32, "9.4ms"),
    *BEFORE, *AFTER, *SGLANG_METRICS.splitlines(),
]  # fmt: skip
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


NOBODYS = ["-1", "0", "nan", "inf", "1e400", "9" * 30, "0.000", "٣", "1_0", "1e-30", "999999999"]
"""Numbers that nobody measures."""


@st.composite
def damaged_line(draw, lines: list[str]):
    """A line with a piece cut out, put in, or its numbers replaced."""
    line = draw(st.sampled_from(lines))
    start = draw(st.integers(0, len(line)))
    return draw(
        st.sampled_from(
            [
                line,
                line[:start] + line[draw(st.integers(start, len(line))) :],
                line[:start] + draw(TEXT) + line[start:],
                re.sub(r"\d+(\.\d+)?", draw(st.sampled_from(NOBODYS)), line, count=draw(st.integers(1, 6))),
                line[:start] + re.sub(r"\d+(\.\d+)?", draw(st.sampled_from(NOBODYS)), line[start:], count=1),
            ]
        )
    )


def damaged(lines: list[str]):
    """Several damaged lines; the same one may come twice."""
    return st.lists(damaged_line(lines), min_size=1, max_size=12).map("\n".join)


def check_import(path: Path, text: str, **stated: str):
    """Import a text; None where it is refused, which is the one error that there may be."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return import_files([path], stated)
    except InputError:
        return None


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(text=damaged(LINES), width=st.sampled_from([{}, {"num_draft_tokens": "4"}, {"batch_size": "2"}]))
def test_damaged_logs_are_read_or_refused(tmp_path, text, width):
    check_import(tmp_path / "server.log", text, **width)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_of_every_kind_are_read_or_refused(tmp_path, sample, data):
    text = data.draw(damaged(sample.read_text(encoding="utf-8").splitlines()))
    check_import(tmp_path / sample.name, text)


@FUZZ
@given(text=damaged([line for line in LINES if "Decode batch" in line or "Prefill batch" in line]))
def test_every_decode_line_is_in_a_run_or_counted(tmp_path, text):
    lines = sum(
        "Decode batch" in line or "Prefill batch" in line
        for line in text.encode().decode("ascii", "replace").split("\n")
    )
    found = check_import(tmp_path / "server.log", text)
    if found is None:
        return
    used = sum(int(re.match(r"(\d+) log interval", str(row["note"]))[1]) for row in found.rows)
    assert (
        used + sum(each.left_out.count for each in found.left_out if "possible run" not in each.left_out.why) <= lines
    )
    refused = [each for each in found.left_out if "possible run" in each.left_out.why]
    if not refused:
        assert used + sum(each.left_out.count for each in found.left_out) == lines


@given(
    st.lists(st.sampled_from([b"key", b"other", b"nothing", b"k", b"keykey other", b""]), max_size=30),
    st.integers(4, 40),
    st.booleans(),
)
def test_blocks_find_what_a_loop_over_lines_finds(pieces, block, ended):
    import specsim.runs.lines as module

    text = b"\n".join(pieces) + (b"\n" if ended else b"")
    before = module._BLOCK
    module._BLOCK = block
    try:
        found = list(matching_lines(io.BytesIO(text), [b"key", b"other"]))
    finally:
        module._BLOCK = before
    assert found == [(n, line) for n, line in enumerate(text.split(b"\n"), 1) if b"key" in line or b"other" in line]


@given(st.lists(st.floats(1, 1e3), min_size=1, max_size=300))
def test_repeats_keep_the_mean_and_stay_few(values):
    repeats = Repeats()
    for value in values:
        repeats.add(value)
    column = repeats.column(0)
    assert len(column) < Repeats.most or len(values) <= Repeats.most
    assert repeats.count == len(values)
    full, over = divmod(len(values), repeats.each)
    weights = [repeats.each] * (full - 1) + [repeats.each + over] if full else [over]
    assert sum(w * c for w, c in zip(weights, column, strict=True)) == pytest.approx(sum(values), rel=1e-6)


@given(st.lists(st.integers(0, 400), min_size=2, max_size=8).filter(any))
def test_printed_positions_give_their_counts_back_exactly_below_a_thousand_cycles(histogram):
    cycles = sum(histogram)
    at_least = [sum(histogram[i:]) for i in range(1, len(histogram))]
    printed = [round(count / cycles, 3) for count in at_least]
    found = position_counts(printed, cycles, sum(at_least), 5e-4)
    assert found is not None
    assert sum(found) == sum(at_least)
    if cycles < 1000:
        assert list(found) == at_least
        assert histogram_of(cycles, found) == histogram
    assert all(abs(a - b) <= 0.5 + 5e-4 * cycles + 1 for a, b in zip(found, at_least, strict=True))
