"""Laws of all-reduce curves (eq. 16) and of step changes (eq. 17), and a parser that nothing breaks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim import SpecConfig, Workload
from specsim.cost.allreduce import LINKS, measured_curve, nccl_priors
from specsim.cost.step_change import Shape, forward_change_ms, forward_ms, step_change
from specsim.cost.terms import Cycle
from specsim.errors import InputError
from specsim.fitting.allreduce import fit_affine
from specsim.runs.formats.nccl_tests import parse_nccl_tests
from tests.unit.test_nccl_tests import NEW, OLD

times = st.floats(0.5, 5000)
tables = st.lists(st.tuples(st.integers(1, 10**9), times), min_size=1, max_size=12)
sizes = st.lists(st.floats(1, 1e11), min_size=2, max_size=20)


def curve(rows, label="s"):
    return measured_curve(label, np.array([float(m) for m, _ in rows]), np.array([t for _, t in rows]))


@given(tables, sizes)
def test_curves_never_fall_and_stay_positive_and_finite(rows, asked):
    found = np.asarray(curve(rows).time_us(np.sort(asked)))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert (np.diff(found) >= -1e-9 * found[:-1]).all()


@given(tables)
def test_curves_are_exact_at_their_sizes_and_stay_between_the_extremes(rows):
    found = curve(rows)
    assert found.time_us(np.array(found.sizes)) == pytest.approx(found.times_us, rel=1e-9)
    assert min(found.raw_us) * (1 - 1e-9) <= min(found.times_us)
    assert max(found.times_us) <= max(found.raw_us) * (1 + 1e-9)


@given(tables, st.floats(0.1, 10), sizes)
def test_times_scale_and_the_order_of_rows_does_not_matter(rows, factor, asked):
    plain, scaled = curve(rows), curve([(m, t * factor) for m, t in reversed(rows)])
    inside = np.clip(asked, plain.sizes[0], plain.sizes[-1])
    assert scaled.time_us(inside) == pytest.approx(np.asarray(plain.time_us(inside)) * factor, rel=1e-9)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 10**7), times), min_size=1, max_size=9), sizes)
def test_fitted_forms_never_fall(rows, asked):
    form = fit_affine(curve(rows))
    found = np.asarray(form.time_us(np.sort(asked)))
    assert (found >= 0).all()
    assert (np.diff(found) >= -1e-9 * np.abs(found[:-1])).all()


@given(st.sampled_from(LINKS), st.integers(2, 64), st.floats(1, 900), sizes)
def test_priors_rise_with_size_and_with_ranks(link, ranks, bus, asked):
    for one, more in zip(nccl_priors(link, ranks, bus), nccl_priors(link, ranks + 1, bus), strict=True):
        found = np.asarray(one.time_us(np.sort(asked)))
        assert (np.diff(found) >= 0).all()
        assert (np.asarray(more.time_us(np.sort(asked))) >= found * (1 - 1e-12)).all()


@given(tables, tables, st.integers(1, 100), st.integers(1, 200))
def test_changes_are_antisymmetric_additive_in_layers_and_zero_between_equals(a, b, layers, tokens):
    before, after, shape = curve(a, "a"), curve(b, "b"), Shape(layers, 4096)
    there = forward_change_ms(before, after, shape, tokens)
    assert forward_change_ms(after, before, shape, tokens) == pytest.approx(-there)
    assert forward_change_ms(before, before, shape, tokens) == 0
    assert forward_change_ms(before, after, Shape(2 * layers, 4096), tokens) == pytest.approx(2 * there)
    assert there == pytest.approx(forward_ms(after, shape, tokens) - forward_ms(before, shape, tokens))


def measured(rows, drafting, launch_us):
    """A curve, and where there are such rows what was measured between drafts beside it."""
    beside = replace(curve(drafting), launch_us=launch_us) if drafting else None
    return replace(curve(rows), drafting=beside)


settings_measured = st.builds(measured, tables, st.one_of(st.none(), tables), st.one_of(st.none(), st.floats(0.5, 50)))


@given(settings_measured, settings_measured, st.integers(1, 32), st.sampled_from(["sglang", "vllm", None]))
def test_a_step_takes_arrays_as_it_takes_each_cell(before, after, batch, engine):
    target, draft, widths = Shape(8, 4096), Shape(1, 2048), np.array([1, 2, 5])
    together = Cycle.of(SpecConfig(widths - 1, 1, widths), Workload(batch), engine).captured(engine, None)
    all_of_them = step_change(before, after, together, target, draft, 1)
    for at, width in enumerate(widths.tolist()):
        alone = Cycle.of(SpecConfig.of(num_draft_tokens=width), Workload(batch), engine).captured(engine, None)
        assert step_change(before, after, alone, target, draft, 1).cycle_ms == pytest.approx(all_of_them.cycle_ms[at])
    assert all_of_them.draft_ms[0] == all_of_them.extend_ms[0] == all_of_them.launch_ms[0] == 0  # no drafts at width 1


@given(settings_measured, settings_measured, settings_measured, st.integers(1, 32))
def test_a_step_there_and_back_changes_nothing_and_steps_add_up_where_all_were_measured_alike(a, b, c, batch):
    cycle = Cycle.of(SpecConfig(3, 1, 4), Workload(batch), "vllm").captured("vllm", None)

    def change(before, after):
        return step_change(before, after, cycle, Shape(8, 4096), Shape(1, 2048)).cycle_ms[0]

    assert change(a, a) == 0
    assert change(a, b) == pytest.approx(-change(b, a))
    beside = [
        (each.drafting is not None, each.drafting is not None and each.drafting.launch_us is not None)
        for each in (a, b, c)
    ]
    if len(set(beside)) == 1:
        assert change(a, b) + change(b, c) == pytest.approx(change(a, c), abs=1e-6)


# -- the parser -----------------------------------------------------------------------------------------------------------

line_edits = st.one_of(
    st.text(max_size=80),
    st.sampled_from(["", "#", "nan", "-1", "1e400", "0x10", "# size time", "#wrong", "[1,0]<stdout>:"]),
)


@settings(deadline=None)
@given(st.sampled_from([NEW, OLD]), st.data())
def test_mutated_tables_give_rows_or_an_input_error(text, data):
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        cells = lines[at].split()
        kind = data.draw(st.sampled_from(["replace", "drop", "repeat", "cell", "cut"]))
        if kind == "cell" and cells:
            cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(line_edits)
        new = {"replace": [data.draw(line_edits)], "drop": [], "repeat": [lines[at]] * 2, "cell": [" ".join(cells)],
               "cut": [lines[at][: data.draw(st.integers(0, len(lines[at])))]]}[kind]  # fmt: skip
        lines[at : at + 1] = new or [""]
    try:
        rows, notes = parse_nccl_tests("\n".join(lines), "s", "t.txt")
    except InputError:
        return
    assert rows
    for row in rows:
        assert np.isfinite(row.time_us)
        assert row.time_us > 0
        assert row.message_bytes >= 1
    assert len(notes) <= 1


@given(st.text())
def test_any_text_gives_rows_or_an_input_error(text):
    with pytest.raises(InputError):
        parse_nccl_tests(text, "s", "t.txt")
