"""What the maps hold, read back from their artists."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from specsim.errors import ConfigurationError, NotIdentifiedError
from specsim.fitting import fit
from specsim.report.maps import break_even_map_figure, drawings, speedup_map_figure
from specsim.report.plots import save
from specsim.sweep import Axes, assumed_law, best_topk_map, break_even_map, law_from, sweep
from tests.unit.test_sweep import AXES, FakeTree, synthetic_runs


@pytest.fixture(scope="module")
def model():
    return fit(synthetic_runs()).model


def shown(axes):
    """The heat map's values, by (row, column); NaN where nothing is drawn."""
    (mesh,) = [each for each in axes.collections if type(each).__name__ == "QuadMesh"]
    return np.ma.filled(mesh.get_array(), np.nan), mesh


def by_id(axes, name):
    return [artist for artist in axes.findobj() if artist.get_gid() == name]


def cell_texts(axes):
    inside = [text for text in axes.texts if text.get_transform() == axes.transData]
    return {(round(text.get_position()[1]), round(text.get_position()[0])): text for text in inside}


def words(axes):
    return " ".join(axes.texts[-1].get_text().split())


def edges(axes):
    (line,) = by_id(axes, "even black")
    return {tuple(sorted((tuple(a), tuple(b)))) for a, b in line.get_segments()}


def borders(pays, known):
    """Edges between neighbours of which one pays, cell by cell."""
    found = set()
    for row, column in np.argwhere(known).tolist():
        for down, right in ((1, 0), (0, 1)):
            there = (row + down, column + right)
            inside = there[0] < known.shape[0] and there[1] < known.shape[1] and known[there]
            if inside and pays[row, column] != pays[there]:
                start = (column - 0.5 + right, row - 0.5 + down)
                found.add((start, (start[0] + down, start[1] + right)))
    return found


def best_by_hand(found, setting, batch, quantity):
    """{(steps, width): (value, topk)} of the best topk, by going through every cell."""
    best = {}
    spec = zip(*(getattr(found.spec, n).tolist() for n in ("num_steps", "topk", "num_draft_tokens")), strict=True)
    for index, (steps, topk, width) in enumerate(spec):
        value = getattr(found, quantity)[setting, batch, index]
        if (steps, width) not in best or value > best[steps, width][0]:
            best[steps, width] = (value, topk)
    return best


def test_the_map_holds_the_best_topk_of_each(model):
    found = sweep(model, FakeTree(), AXES)
    figure = speedup_map_figure(model, found, nccl="tuned", batch_size=16)
    axes = figure.axes[0]
    values, mesh = shown(axes)
    expected = best_by_hand(found, 1, 4, "speedup")
    drawn = best_topk_map(found, "speedup", nccl="tuned", batch_size=16)
    for row, steps in enumerate(drawn.num_steps):
        for column, width in enumerate(drawn.num_draft_tokens):
            value, topk = expected.get((steps, width), (np.nan, 0))
            assert values[row, column] == pytest.approx(value, nan_ok=True)
            assert drawn.topk[row, column] == topk
            text = cell_texts(axes).get((row, column))
            assert (text.get_text() if text else "0") == str(topk)
    assert [t.get_text() for t in axes.get_yticklabels()] == [str(steps) for steps in drawn.num_steps]
    assert [t.get_text() for t in axes.get_xticklabels()] == [str(width) for width in drawn.num_draft_tokens]
    assert "NCCL tuned, batch size 16" in axes.get_title()
    assert edges(axes) == borders(values >= 1, np.isfinite(values))
    assert edges(axes)
    lightness = mesh.to_rgba(np.sort(values[np.isfinite(values)]))[:, 0]
    assert (np.diff(lightness) >= 0).all()
    assert lightness[-1] > lightness[0] + 0.5


def test_the_map_marks_the_best_and_its_ties(model):
    found = sweep(model, FakeTree(), AXES)
    axes = speedup_map_figure(model, found).axes[0]
    best, steps = found.cell(*found.best, found.columns.best[found.best]), np.unique(found.spec.num_steps)
    widths = np.unique(found.spec.num_draft_tokens)
    (frame,) = by_id(axes, "best")
    at = (round(frame.get_y() + 0.5), round(frame.get_x() + 0.5))
    assert (steps[at[0]], widths[at[1]]) == (best.spec.num_steps, best.spec.num_draft_tokens)
    dots = {(round(dot.get_ydata()[0] - 0.34), round(dot.get_xdata()[0] - 0.36)) for dot in by_id(axes, "tied")}
    spec = np.stack([found.spec.num_steps, found.spec.num_draft_tokens], axis=1)[found.tied[found.best]]
    assert {(steps[row], widths[column]) for row, column in dots} == {tuple(each) for each in spec.tolist()}
    label = axes.get_legend().get_texts()[0].get_text()
    assert f"{best.spec.num_steps}/{best.spec.topk}/{best.spec.num_draft_tokens}" in label
    assert f"{found.speedup[(*found.best, found.columns.best[found.best])]:.3f}" in label


def test_few_columns_have_numbers_and_words_stand_out(model):
    found = sweep(model, FakeTree(), Axes.completed(model, num_draft_tokens=range(2, 10), num_steps=(1, 2, 3)))
    axes = speedup_map_figure(model, found).axes[0]
    values, mesh = shown(axes)
    texts = cell_texts(axes)
    assert len(texts) == np.isfinite(values).sum() > 8
    for place, text in texts.items():
        assert text.get_text().split("\n")[0] == f"{values[place]:.2f}"
        assert abs(mesh.to_rgba(values[place])[0] - to_rgba(text.get_color())[0]) > 0.4


def test_without_a_baseline_the_map_is_of_throughput(campaign_model):
    found = sweep(campaign_model, law_from(campaign_model), Axes.completed(campaign_model, batch_size=(4,)))
    axes = speedup_map_figure(campaign_model, found, nccl="default").axes[0]
    values, _ = shown(axes)
    assert np.nanmax(values) == pytest.approx(found.columns.best_output_tok_s[0, 0])
    assert axes.get_title().startswith("Throughput")
    assert f"no speed-up: {found.no_baseline['default']}" in words(axes)
    assert not by_id(axes, "even black")


def test_the_map_says_what_it_rests_on(campaign_model):
    found = sweep(campaign_model, law_from(campaign_model), Axes.completed(campaign_model))
    said = words(speedup_map_figure(campaign_model, found).axes[0])
    for note in found.law_notes:
        assert note in said
    assert f"rate {found.law.law.rate:.2f}" in said
    assert "90% intervals" in said
    assert "EXTRAPOLATED" in said
    assert "timing noise 1.0%, assumed" in said
    known = sweep(campaign_model, assumed_law(0.5), Axes.completed(campaign_model))
    said = words(speedup_map_figure(campaign_model, known).axes[0])
    assert "they count as known" in said
    assert "default prior's rank_exponent" in said


def test_a_place_off_the_axes_is_refused(model):
    found = sweep(model, FakeTree(), AXES)
    with pytest.raises(ConfigurationError, match="batch_size 3 is not on"):
        speedup_map_figure(model, found, batch_size=3)
    with pytest.raises(ConfigurationError, match="nccl 'other' is not on"):
        break_even_map_figure(model, found, nccl="other")


def test_nothing_answered_is_no_map():
    """One width at one batch size: no other number of tokens is identified, and 7 requests cannot verify 6."""
    runs = [r for r in synthetic_runs(settings=("default",)) if r.workload.batch_size == 1]
    narrow = fit([r for r in runs if r.spec is None or r.spec.num_draft_tokens == 6]).model
    found = sweep(narrow, FakeTree(), Axes.completed(narrow, num_draft_tokens=(6, 7), batch_size=(1, 7)))
    with pytest.raises(NotIdentifiedError, match="batch size 7: no cell is answered"):
        speedup_map_figure(narrow, found, batch_size=7)
    values, _ = shown(speedup_map_figure(narrow, found, batch_size=1).axes[0])
    assert np.isfinite(values).any(axis=0).tolist() == [True, False]


# -- break-even --------------------------------------------------------------------------------------------------------


def test_the_break_even_map_holds_what_chains_need(campaign_model):
    law = law_from(campaign_model)
    axes_asked = Axes.chains(campaign_model, num_steps=(1, 2, 3, 5, 7), batch_size=(1, 2, 4, 8))
    found = sweep(campaign_model, law, axes_asked, allow_mixed=True)
    figure = break_even_map_figure(campaign_model, found)
    for axes, label in zip(figure.axes, found.axes.nccl, strict=False):
        drawn, (values, mesh) = break_even_map(found, nccl=label), shown(axes)
        setting = found.axes.nccl.index(label)
        hatched = {(round(p.get_y() + 0.5), round(p.get_x() + 0.5)) for p in by_id(axes, "infeasible")}
        texts = {place: text.get_text() for place, text in cell_texts(axes).items()}
        for row, column in np.ndindex(4, 5):
            index = (setting, row, _chain(found, drawn.num_steps[column]))
            steps, ratio = drawn.num_steps[column], found.cost_ratio[index]
            if ratio > steps + 1:
                assert (row, column) in hatched
                assert np.isnan(values[row, column])
                continue
            rate = values[row, column]
            assert sum(rate**i for i in range(steps + 1)) == pytest.approx(ratio)
            doubt = found.kept.margin_low[index] < 0 < found.kept.margin_high[index]
            assert texts[row, column] == f"{rate:.2f}" + ("?" if doubt else "")
        pays = found.margin[setting][:, [_chain(found, s) for s in drawn.num_steps]] >= 0
        assert edges(axes) == borders(pays, np.ones_like(pays))
        assert edges(axes)
        assert hatched
        lightness = mesh.to_rgba(np.sort(values[np.isfinite(values)]))[:, 0]
        assert (np.diff(lightness) <= 0).all()
    last = figure.axes[len(found.axes.nccl) - 1]
    has = [float(t.get_text().split("\n")[1]) for t in last.get_xticklabels()]
    for rate, steps in zip(has, (1, 2, 3, 5, 7), strict=True):
        length = sum(rate**i for i in range(steps + 1))
        assert length == pytest.approx(law.law.accept_length(steps, 1, steps + 1), abs=0.03)
    assert all(f"MIXED, NCCL {label}: the baseline" in words(last) for label in found.axes.nccl)
    assert "?: the law's length" in words(last)


def _chain(found, steps):
    return int(np.flatnonzero((found.spec.num_steps == steps) & (found.spec.topk == 1))[0])


@pytest.mark.parametrize("rate", [0.0, 0.55, 1.0])
def test_words_count_what_pays_and_the_legend_has_the_line_where_there_is_one(campaign_model, rate):
    asked = Axes.completed(campaign_model, num_steps=(1, 2, 3), topk=(1, 2), nccl=("default",))
    found = sweep(campaign_model, assumed_law(rate), asked)
    axes = [draw().axes[0] for _, draw in drawings(campaign_model, found, ("map", "break-even-map"))]
    best = [value for value, _ in best_by_hand(found, 0, 0, "speedup").values()]
    chains = found.speedup[0, 0][found.spec.topk == 1]
    for each, speedups, said in zip(axes, (best, chains), ("reach speed-up 1", "the law's rate"), strict=True):
        pay = sum(value >= 1 for value in speedups)
        assert f"{pay} of the {len(speedups)} cells" in words(each)
        assert said in words(each)
        lines = [text.get_text() for text in each.get_legend().get_texts()] if each.get_legend() else []
        assert any("lighter" in line for line in lines) == (len(edges(each)) > 0)
        assert (0 < pay < len(speedups)) == (rate == 0.55)


def test_panels_share_their_greys(campaign_model):
    found = sweep(campaign_model, assumed_law(0.6), Axes.chains(campaign_model))
    one, two = (shown(axes)[1] for axes in break_even_map_figure(campaign_model, found).axes[:2])
    assert one.to_rgba(0.6) == two.to_rgba(0.6)
    assert one.norm.vmin == pytest.approx(np.nanmin(np.concatenate([one.get_array(), two.get_array()])))


def test_settings_without_a_baseline_have_no_panel(campaign_model):
    found = sweep(campaign_model, assumed_law(0.6), Axes.chains(campaign_model, batch_size=(4,)))
    with pytest.raises(NotIdentifiedError, match="measured at batch_size 1"):
        break_even_map_figure(campaign_model, found)


def test_trees_have_no_break_even_map(model):
    found = sweep(model, FakeTree(), Axes.completed(model, topk=(2, 4)))
    with pytest.raises(ConfigurationError, match="no chain"):
        break_even_map_figure(model, found)


# -- files and command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "break-even-map"])
def test_the_same_data_give_the_same_bytes(campaign_model, tmp_path, kind):
    found = sweep(campaign_model, assumed_law(0.6), Axes.chains(campaign_model))
    for form in ("png", "svg"):
        files = [tmp_path / f"{n}.{form}" for n in "ab"]
        for path in files:
            ((_, draw),) = drawings(campaign_model, found, (kind,))
            save(draw(), path)
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("kind", ["map", "break-even-map"])
def test_the_command_draws_maps(run_cli, tmp_path, kind):
    done = run_cli("plot", kind, "--num-steps", "1-3", "--nccl", "default", "-o", tmp_path, "--json")
    assert done.exit_code == 0
    record = json.loads(done.stdout)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{kind.replace('-', '_')}.{f}" for f in ("png", "svg")]
    assert any("rank_exponent is not identified" in note for note in record["notes"])
    text = next(tmp_path.glob("*.svg")).read_text(encoding="utf-8")
    assert "NCCL default" in text


def test_a_maps_notes_name_what_is_mixed(run_cli, tmp_path):
    options = ("plot", "break-even-map", "--batch-size", "1,4", "-o", tmp_path, "--json")
    plain, mixed = (json.loads(run_cli(*options, *more).stdout)["notes"] for more in ((), ("--allow-mixed",)))
    assert any(note.startswith("NCCL default: the baseline") for note in plain)
    assert any(note.startswith("MIXED, NCCL default: the baseline") for note in mixed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cycle", "--num-steps", "1-3"), "--num-steps takes one number here"),
        (("--batch-size", "1,2"), "--batch-size takes one number here"),
        (("throughput", "--accept-rate", "0.5"), "--accept-rate is for map and break-even-map"),
        (("map", "--accept-length", "2"), "No such option"),
        (("break-even-map", "--topk", "2"), "is of chains"),
        (("break-even-map", "--num-draft-tokens", "4"), "is of chains"),
        (("map", "--topk", "0"), "at least 1"),
    ],
)
def test_faults_are_one_line_and_exit_2(run_cli, tmp_path, arguments, message):
    done = run_cli("plot", *arguments, "-o", tmp_path)
    assert done.exit_code == 2
    assert message in done.output
