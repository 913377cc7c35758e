"""Sweeps: what is left out, what is best, what cannot be told apart, and how the work is cut up."""

from __future__ import annotations

import csv
import io
import json
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import specsim.sweep as module
from specsim.breakeven import break_even
from specsim.cli.main import main
from specsim.cli.progress import Progress
from specsim.cost.terms import TERMS, Cycle
from specsim.errors import ConfigurationError, NotIdentifiedError, UnknownSettingError
from specsim.fitting import fit
from specsim.flags import engine_flags
from specsim.grid import LISTED, Cells, Columns
from specsim.prediction import cycle_cost, predict
from specsim.quantities import Setup, SpecConfig, Workload, is_legal
from specsim.report.sweep import sweep_record, sweep_text
from specsim.runs.files import load_campaign, load_runs
from specsim.runs.run import Figure, Run
from specsim.sweep import Axes, assumed_law, break_even_map, heat_map, law_from, sweep, totals
from specsim.uncertainty import quantile
from tests.synthetic import run as timed_run


@dataclass(frozen=True)
class FakeTree:
    """A law that rewards branches and width, without any claim to be right."""

    def accept_length(self, num_steps, topk, num_draft_tokens):
        coverage = 1 - 0.4 * np.asarray(topk, dtype=float) ** -0.6
        reach = np.minimum(num_steps, np.log2(num_draft_tokens))
        return 1 + 1.2 * (1 - np.exp(-coverage * reach))


@dataclass(frozen=True)
class Level:
    """A law whose lengths rise about as the synthetic server's cycles do at batch 1, so that much is close to the best."""

    def accept_length(self, num_steps, topk, num_draft_tokens):
        return np.minimum(
            np.asarray(num_steps) + 1, 1 + 0.003 * np.asarray(num_draft_tokens) + 0.0187 * np.asarray(num_steps)
        )


def synthetic_runs(noise=0.02, seed=3, settings=("default", "tuned"), batches=(1, 4, 16)):
    """Runs of a server with known costs: two settings, plain decode and four configurations at three batch sizes."""
    random = np.random.default_rng(seed)

    def timed(value):
        return Figure(value=float(value * (1 + noise * random.standard_normal())))

    runs = []
    for number, (nccl, batch) in enumerate(product(settings, batches)):
        faster, setup = 1 - 0.2 * (nccl == "tuned"), Setup(engine="sglang")
        runs.append(
            Run(
                f"plain{number}",
                setup,
                nccl,
                Workload(batch),
                False,
                figures={"decode_ms": timed(14 * faster + 0.08 * batch)},
            )
        )
        for steps, topk, width in ((2, 1, 3), (5, 1, 6), (3, 4, 12), (6, 4, 32)):
            verify, draft = (
                16 * faster + 0.05 * batch * width,
                0.2 + 0.3 * (steps - 1) + 0.002 * batch * topk * (steps - 1),
            )
            figures = {"verify_ms": timed(verify), "draft_ms": timed(draft), "cycle_ms": timed(verify + draft + 0.5)}
            spec = SpecConfig(steps, topk, width, "eagle3")
            runs.append(Run(f"spec{number}-{width}", setup, nccl, Workload(batch), True, spec=spec, figures=figures))
    return runs


@pytest.fixture(scope="module")
def model():
    return fit(synthetic_runs()).model


AXES = Axes((0, 1, 2, 3, 5), (1, 2, 4), tuple(range(1, 20)), (1, 2, 4, 9, 16), ("default", "tuned"))


def brute_force_legal(axes):
    """Every legal combination, by building each one; without drafts every topk is the same cycle."""
    found = []
    for steps, topk, width in product(axes.num_steps, axes.topk, axes.num_draft_tokens):
        try:
            SpecConfig(steps, topk, width, "eagle3")
        except ConfigurationError:
            continue
        if steps == 0 and topk != min(axes.topk):
            continue
        found.append((steps, topk, width))
    return found


def configurations(found):
    return list(
        zip(found.spec.num_steps.tolist(), found.spec.topk.tolist(), found.spec.num_draft_tokens.tolist(), strict=True)
    )


def same(left, right, kind):
    for field in fields(kind):
        np.testing.assert_array_equal(getattr(left, field.name), getattr(right, field.name), err_msg=field.name)


def test_illegal_combinations_are_left_out_and_counted(model):
    found, expected = sweep(model, FakeTree(), AXES), brute_force_legal(AXES)
    assert sorted(configurations(found)) == sorted(expected)
    assert found.illegal == 5 * 3 * 19 - len(expected)
    assert found.evaluated == len(expected) * 5 * 2


def test_illegal_combinations_never_reach_the_law(model):
    class Picky:
        def accept_length(self, num_steps, topk, num_draft_tokens):
            SpecConfig(num_steps, topk, num_draft_tokens)
            return np.ones(np.shape(num_steps))

    assert sweep(model, Picky(), AXES).illegal > 0


def test_methods_without_depth_take_any_width():
    assert is_legal(1, 1, 7, "ngram")
    assert not is_legal(1, 1, 7, "eagle")


def test_nothing_legal_says_so(model):
    with pytest.raises(ConfigurationError, match="none of the 2 combinations"):
        sweep(model, FakeTree(), Axes((5,), (1,), (2, 3), (1,), ("default",)))


@pytest.mark.parametrize("bad", [{"num_steps": ()}, {"topk": (0,)}, {"batch_size": (1.5,)}, {"nccl": ()}])
def test_axes_refuse_what_cannot_be(bad):
    with pytest.raises(ConfigurationError):
        replace(AXES, **bad)


def test_unknown_setting(model):
    with pytest.raises(UnknownSettingError):
        sweep(model, FakeTree(), replace(AXES, nccl=("other",)))


def test_a_law_beyond_the_depth_is_refused(model):
    class Long:
        def accept_length(self, num_steps, topk, num_draft_tokens):
            return np.asarray(num_steps) + 1.5

    with pytest.raises(ConfigurationError, match="the law gives an accept length of"):
        sweep(model, Long(), AXES)


def test_best_and_regret_are_those_of_a_loop(model):
    present = SpecConfig(3, 4, 12, "eagle3")
    found = sweep(model, FakeTree(), AXES, present=present)
    for setting, batch in product(range(2), range(5)):
        rates = found.output_tok_s[setting, batch].tolist()
        assert found.columns.best[setting, batch] == max(range(len(rates)), key=rates.__getitem__)
        assert found.columns.regret[setting, batch] == pytest.approx(1 - rates[found.present] / max(rates), abs=1e-12)
    assert configurations(found)[found.present] == (3, 4, 12)
    setting, batch = found.best
    gains = found.output_tok_s * np.nanmin(found.decode_ms, axis=0)[None, :, None] / np.array(AXES.batch_size)[:, None]
    assert gains[setting, batch, found.columns.best[setting, batch]] == pytest.approx(np.nanmax(gains), rel=1e-14)
    assert found.tied_with_best[found.best]


def test_a_present_setting_off_the_axes_is_compared_too(model):
    found = sweep(model, FakeTree(), replace(AXES, num_draft_tokens=(2, 3)), present=SpecConfig(5, 4, 16, "eagle3"))
    assert (5, 4, 16) in configurations(found)
    assert (found.columns.regret >= 0).all()
    assert (found.columns.regret == 0).any()


def scores(model, found, setting, batch):
    """How far each cell's log throughput is below the best's, in half-widths of the difference by Monte Carlo."""
    workload = Workload(found.axes.batch_size[batch])
    total = cycle_cost(model, found.spec, workload, found.axes.nccl[setting], found.accept_length.shape).total
    draws = np.random.default_rng(1).standard_normal((20_000, len(model.coefficients)))
    root = np.linalg.cholesky(model.covariance_matrix + 1e-18 * np.eye(draws.shape[1]))
    logs = np.log(found.accept_length) - np.log(total.value + 0.1 * draws @ root.T @ total.gradient.T)
    middle = np.log(found.accept_length / total.value)
    best = middle.argmax()
    spread = 10 * (logs - logs[:, [best]]).std(axis=0)  # drawn at a tenth of the noise, where the logarithm is straight
    short = middle[best] - middle
    return np.divide(short, quantile(model.noise.residual_dof) * spread, out=np.zeros_like(short), where=short > 0)


def test_ties_rest_on_the_joint_variance(model):
    found = sweep(model, Level(), AXES)
    checked = {True: 0, False: 0}
    for setting, batch in product(range(2), range(2)):
        score = scores(model, found, setting, batch)
        sure = abs(score - 1) > 0.03  # Monte Carlo error
        np.testing.assert_array_equal(found.kept.tied[setting, batch, sure], score[sure] < 1)
        for tied in checked:
            checked[tied] += int(((score[sure] < 1) == tied).sum())
    assert min(checked.values()) > 8


def test_ties_hold_the_best_and_shrink_with_the_noise():
    sizes = []
    for noise in (0.05, 0.02, 0.001):
        fitted = fit(synthetic_runs(noise=noise)).model
        found = sweep(fitted, Level(), AXES)
        best = np.take_along_axis(found.kept.tied, found.columns.best[..., None], axis=2)
        assert best.all()
        sizes.append(int(found.columns.tied_count.sum()))
    assert sizes[0] > sizes[1] > sizes[2] >= 10


def test_the_same_model_with_less_noise_ties_a_subset(model):
    less = replace(model, covariance=tuple(tuple(v / 25 for v in row) for row in model.covariance))
    wide, narrow = (sweep(m, Level(), AXES).kept.tied for m in (model, less))
    assert (narrow <= wide).all()
    assert narrow.sum() < wide.sum()


def test_listed_ties_are_the_fastest_of_all(model):
    found = sweep(model, Level(), AXES)
    for setting, batch in product(range(2), range(5)):
        tied = np.flatnonzero(found.kept.tied[setting, batch])
        order = tied[np.argsort(-found.output_tok_s[setting, batch, tied], kind="stable")][:LISTED]
        listed = found.columns.tied[setting, batch]
        assert listed[listed >= 0].tolist() == order.tolist()
        assert found.columns.tied_count[setting, batch] == tied.size
        assert listed[0] == found.columns.best[setting, batch]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_CELLS", 1)


def test_chunked_is_unchunked(model, monkeypatch):
    whole = sweep(model, FakeTree(), AXES, present=SpecConfig(2, 1, 3))
    monkeypatch.setattr(module, "_CHUNK_CELLS", 1)
    seen = []
    chunked = sweep(model, FakeTree(), AXES, present=SpecConfig(2, 1, 3), progress=lambda *done: seen.append(done))
    same_within_rounding(whole, chunked)
    assert [done for done, _ in seen] == [whole.evaluated * n // 5 for n in range(1, 6)]


def same_within_rounding(left, right):
    for kind, part in ((Cells, "cells"), (Columns, "columns")):
        for field in fields(kind):
            values = (getattr(getattr(each, part), field.name) for each in (left, right))
            np.testing.assert_allclose(*values, rtol=1e-9, atol=1e-9, err_msg=field.name)
    assert left.best == right.best
    np.testing.assert_array_equal(left.tied_with_best, right.tied_with_best)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", [ProcessPoolExecutor, ThreadPoolExecutor])
def test_executors_give_the_same(model, kind):
    here = sweep(model, FakeTree(), AXES)
    with kind(max_workers=2) as pool:
        there = sweep(model, FakeTree(), AXES, executor=pool)
    same(here.cells, there.cells, Cells)
    same(here.columns, there.columns, Columns)


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")  # the cluster's own
@pytest.mark.usefixtures("small_chunks")
def test_a_dask_cluster_gives_the_same(model):
    from dask.distributed import Client, LocalCluster

    here = sweep(model, FakeTree(), AXES)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        there = sweep(model, FakeTree(), AXES, executor=client.get_executor())
    same(here.cells, there.cells, Cells)
    same(here.columns, there.columns, Columns)


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")  # the cluster's own
def test_the_documented_cluster_example_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(compile(code, "docs/sweeps.md", "exec"), {})
    model = fit(load_campaign()).model
    alone = sweep(model, law_from(model), Axes.completed(model, batch_size=range(1, 65)))
    assert capsys.readouterr().out == f"{alone.evaluated:,} cells\n"


@pytest.mark.usefixtures("small_chunks")
def test_without_cells_the_columns_are_the_same(model):
    kept, dropped = (sweep(model, FakeTree(), AXES, keep_cells=keep) for keep in (True, False))
    same(kept.columns, dropped.columns, Columns)
    assert totals(kept) == totals(dropped)
    with pytest.raises(ConfigurationError, match="kept no cells"):
        dropped.speedup  # noqa: B018


def test_totals_count_the_cells(model):
    found = sweep(model, FakeTree(), AXES)
    counts, cells = totals(found), found.kept
    assert counts["pays"] == (cells.margin_low > 0).sum() > 0
    assert counts["loses"] == (cells.margin_high < 0).sum() > 0
    assert counts["infeasible"] == (~found.feasible).sum() > 0
    assert counts["extrapolated"] == cells.extrapolated.sum() > 0
    assert counts["pays"] + counts["loses"] + counts["undecided"] == found.evaluated
    assert counts["without_baseline"] == counts["not_identified"] == 0


# -- what the runs leave open ----------------------------------------------------------------------------------------


def test_one_width_leaves_the_other_widths_open():
    runs = [r for r in synthetic_runs(settings=("default",)) if r.workload.batch_size == 1]
    runs = [r for r in runs if r.spec is None or r.spec.num_draft_tokens == 6]
    found = sweep(fit(runs).model, FakeTree(), replace(AXES, batch_size=(1, 2), nccl=("default",)))
    six = np.asarray(found.spec.num_draft_tokens) == 6
    three = np.asarray(found.spec.num_draft_tokens) == 3
    assert np.isfinite(found.cycle_ms[0, 0, six]).all()
    assert np.isfinite(found.cycle_ms[0, 1, three]).all()
    assert np.isnan(found.cycle_ms[0, 0, ~six]).all()
    assert not found.kept.tied[0, 0, ~six].any()
    assert "one width does not split" in found.unanswered[0].why
    assert "measured at batch_size 1" in found.no_baseline["default"]
    assert totals(found)["not_identified"] == 2 * six.size - six.sum() - three.sum()
    assert totals(found)["without_baseline"] == three.sum()


def test_another_settings_width_is_read_where_the_reference_has_it():
    """One width under the reference, only baselines under the other: just that width can be read across."""
    runs = [r for r in synthetic_runs() if r.workload.batch_size == 1]
    runs = [r for r in runs if r.spec is None or (r.nccl == "default" and r.spec.num_draft_tokens == 6)]
    fitted = fit(runs).model
    found = sweep(fitted, FakeTree(), replace(AXES, batch_size=(1,), nccl=("tuned",)))
    for index, width in enumerate(found.spec.num_draft_tokens):
        assert np.isfinite(found.cycle_ms[0, 0, index]) == (width == 6)
    six = int(found.columns.best[0, 0])
    told = predict(fitted, found.cell(0, 0, six).spec, Workload(1), float(found.accept_length[six]), "tuned")
    assert found.cycle_ms[0, 0, six] == pytest.approx(told.times.cycle_ms)
    assert len(told.times.verify_by_reading) == 2


def log_speedups(model, cell):
    """Log of a cell's throughput over the fastest plain decode, by reading, and its gradient by differences."""

    def by_reading(fitted):
        spec, work = cell.spec, Workload(cell.batch_size)
        need = break_even(fitted, spec, work, cell.nccl)
        plain = Cycle.of(SpecConfig(0, 1, 1), work, None)
        fastest = min(fitted.decode(plain, s.label).value[0] for s in fitted.settings if s.decode_batches)
        own = need.by_reading or {"measured": need.cost_ratio}
        ratios = {name: ratio * need.decode_ms / fastest for name, ratio in own.items()}
        return {name: np.log(cell.accept_length / ratio) for name, ratio in ratios.items()}

    base, slopes = by_reading(model), []
    for at, coefficient in enumerate(model.coefficients):
        moved = list(model.coefficients)
        moved[at] = replace(coefficient, value=coefficient.value + 1e-6)
        other = by_reading(replace(model, coefficients=tuple(moved)))
        slopes.append({name: (other[name] - base[name]) / 1e-6 for name in base})
    return {name: (base[name], np.array([slope[name] for slope in slopes])) for name in base}


@pytest.mark.parametrize("noise", [0.01, 0.0001])
def test_the_best_of_all_is_told_apart_by_reading(noise):
    fitted = fit(load_campaign(), noise=noise).model
    law = assumed_law(0.55)
    found = sweep(fitted, law, Axes((2, 3, 4, 5), (1,), (3, 4, 5, 6), (1,), ("default", "LL-Ring-SYS")))
    top = log_speedups(fitted, found.cell(*found.best, found.columns.best[found.best]))
    for setting in range(2):
        here = log_speedups(fitted, found.cell(setting, 0, found.columns.best[setting, 0]))
        same_setting = setting == found.best[0]
        gaps = [
            (a - b, np.sqrt((da - db) @ fitted.covariance_matrix @ (da - db)))
            for (one, (a, da)), (two, (b, db)) in product(top.items(), here.items())
            if not same_setting or one == two
        ]
        expected = any(gap <= quantile(fitted.noise.residual_dof) * spread + 1e-12 for gap, spread in gaps)
        assert found.tied_with_best[setting, 0] == expected


def read_model():
    """Two settings, the second timed at one width only, so that its other widths are read in three ways."""
    runs = [
        r for r in synthetic_runs(noise=0.01) if r.nccl == "default" or r.spec is None or r.spec.num_draft_tokens == 6
    ]
    return fit([r for r in runs if r.nccl == "default" or r.workload.batch_size == 1 or r.spec is None]).model


@pytest.mark.parametrize("law", [Level(), FakeTree()])
def test_ties_rest_on_every_reading(law):
    """Pairwise from the single-cell estimates: tied by any reading, both cells read alike."""
    fitted = read_model()
    found = sweep(fitted, law, replace(AXES, batch_size=(1, 4), nccl=("tuned",)))
    several = 0
    for batch in range(2):
        shape = found.accept_length.shape
        cost = cycle_cost(fitted, found.spec, Workload(found.axes.batch_size[batch]), "tuned", shape)
        best, expected, by_reading = found.columns.best[0, batch], np.zeros(shape, dtype=bool), []
        for reading in cost.readings.values():
            relative = reading.gradient / reading.value[:, None]
            gap = np.log(reading.value / found.accept_length)
            difference = relative - relative[best]
            spread = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", difference, fitted.covariance_matrix, difference), 0))
            by_reading.append(gap - gap[best] <= quantile(fitted.noise.residual_dof) * spread + 1e-12)
            expected |= by_reading[-1]
        np.testing.assert_array_equal(found.kept.tied[0, batch], expected)
        several += sum((expected != one).any() for one in by_reading)
    assert several >= 2


def test_one_setting_is_read_one_way_at_a_time():
    """The best of all and its rivals under the same setting share a reading: pairs of different ones count for nothing."""
    runs = synthetic_runs(noise=1e-4, batches=(1, 6, 16))
    tuned = [r for r in runs if r.nccl == "tuned" and r.workload.batch_size >= 6 and r.spec is None]
    pair = [
        r for r in runs if r.nccl == "tuned" and r.workload.batch_size == 1 and r.spec and r.spec.num_draft_tokens == 6
    ]
    fitted = fit([*(r for r in runs if r.nccl == "default"), *tuned, *pair]).model
    axes = Axes((2, 3), (1, 4), (19,), (6, 7, 8, 16), ("tuned",))
    found = sweep(fitted, FakeTree(), axes)
    top = log_speedups(fitted, found.cell(*found.best, found.columns.best[found.best]))
    crossed = []
    for batch in range(4):
        here = log_speedups(fitted, found.cell(0, batch, found.columns.best[0, batch]))
        tied = {
            (one, two): a - b
            <= quantile(fitted.noise.residual_dof) * np.sqrt((da - db) @ fitted.covariance_matrix @ (da - db)) + 1e-12
            for (one, (a, da)), (two, (b, db)) in product(top.items(), here.items())
        }
        assert found.tied_with_best[0, batch] == any(value for (one, two), value in tied.items() if one == two)
        crossed.append(any(tied.values()) != found.tied_with_best[0, batch])
    assert any(crossed)


def test_settings_that_cannot_be_told_apart_are_all_named():
    """Settings of the same cost, measured with noise, are tied; so is a speed-up just short of the best, and no other."""
    found = sweep(fit(synthetic_runs(noise=0.03)).model, Level(), AXES)
    best = np.take_along_axis(found.speedup, found.columns.best[..., None], axis=2)[..., 0]
    assert found.tied_with_best.sum() > 1
    assert not found.tied_with_best.all()
    assert best[found.tied_with_best].min() > best[~found.tied_with_best].max() - 0.1


def test_nothing_answered_is_an_error():
    runs = [r for r in synthetic_runs(settings=("default",)) if r.spec is None]
    with pytest.raises(NotIdentifiedError, match="no cycle was measured"):
        sweep(fit(runs).model, FakeTree(), replace(AXES, nccl=("default",)))


def test_without_any_baseline_throughput_is_still_ranked():
    runs = [r for r in synthetic_runs(settings=("default",)) if r.spec is not None]
    found = sweep(fit(runs).model, FakeTree(), replace(AXES, nccl=("default",)))
    assert found.best is None
    assert (found.columns.best >= 0).all()
    assert totals(found)["without_baseline"] == found.evaluated


@pytest.mark.parametrize("term", [t for t in TERMS if t.phase in ("draft", "extend", "other")], ids=lambda t: t.name)
def test_terms_beside_verify_are_affine_in_the_batch(term):
    """What the tables rest on: R₀ + B·R₁."""
    spec = SpecConfig(np.array([0, 1, 4]), np.array([1, 1, 4]), np.array([1, 2, 20]))
    one, two, nine = (term.feature(Cycle.of(spec, Workload(b), "vllm")) for b in (1, 2, 9))
    np.testing.assert_allclose(nine, one + 8 * (two - one))


# -- laws ------------------------------------------------------------------------------------------------------------


def test_the_campaigns_law_goes_through_its_one_chain():
    fitted = law_from(fit(load_campaign()).model)
    assert fitted.law.accept_length(5, 1, 6) == pytest.approx(2.1, rel=0.01)
    assert fitted.not_identified == ("decay", "rank_exponent")


def test_no_length_no_law():
    runs = [r for r in load_campaign().runs if "accept_length" not in r.figures]
    with pytest.raises(NotIdentifiedError, match="--accept-rate"):
        law_from(fit(runs).model)


# -- maps ------------------------------------------------------------------------------------------------------------


def test_heat_map_puts_cells_in_place(model):
    found = sweep(model, FakeTree(), AXES)
    drawn = heat_map(found, "speedup", nccl="tuned", batch_size=4, topk=2)
    for row, steps in enumerate(drawn.num_steps):
        for column, width in enumerate(drawn.num_draft_tokens):
            known = (steps, 2, width) in configurations(found)
            value = drawn.values[row, column]
            assert (
                np.isnan(value)
                if not known
                else value == found.speedup[1, 2, configurations(found).index((steps, 2, width))]
            )
    with pytest.raises(ConfigurationError, match="topk 3 is not on"):
        heat_map(found, "speedup", nccl="tuned", batch_size=4, topk=3)


def test_break_even_map_agrees_with_break_even(model):
    drawn = break_even_map(sweep(model, FakeTree(), AXES), nccl="default")
    assert drawn.num_steps == (1, 2, 3, 5)
    for row, batch in enumerate(drawn.batch_size):
        for column, steps in enumerate(drawn.num_steps):
            one = break_even(model, SpecConfig(steps, 1, steps + 1, "eagle3"), Workload(batch), "default")
            assert drawn.cost_ratio[row, column] == pytest.approx(one.cost_ratio)
            assert drawn.required_accept_rate[row, column] == pytest.approx(one.required_accept_rate, nan_ok=True)


# -- flags -----------------------------------------------------------------------------------------------------------


def test_flags_count_drafts_as_each_engine_does():
    flags = {each.engine: each for each in engine_flags(SpecConfig(5, 1, 6, "eagle3"))}
    assert (
        "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6" in flags["sglang"].flags
    )
    assert '"num_speculative_tokens": 5' in flags["vllm"].flags
    assert "max_draft_len: 5" in flags["tensorrt-llm"].flags
    assert flags["llama.cpp"].flags == "--spec-type draft-eagle3 --spec-draft-n-max 5"


def test_engines_without_trees_say_so():
    flags = {each.engine: each for each in engine_flags(SpecConfig(3, 4, 12, "eagle3"))}
    assert "--speculative-eagle-topk 4 --speculative-num-draft-tokens 12" in flags["sglang"].flags
    assert "max_total_draft_tokens: 11" in flags["tensorrt-llm"].flags
    for engine in ("vllm", "llama.cpp"):
        assert flags[engine].flags == ""
        assert "chain" in flags[engine].why_not
    wide = {each.engine: each for each in engine_flags(SpecConfig(3, 4, 20, "eagle3"))}
    assert wide["tensorrt-llm"].flags == ""
    assert "3 to 12" in wide["tensorrt-llm"].why_not


def test_blocks_are_counted_as_each_engine_does():
    flags = {each.engine: each.flags for each in engine_flags(SpecConfig(1, 1, 8, "dspark"))}
    assert flags["sglang"] == "--speculative-algorithm DSPARK --speculative-dspark-block-size 7"
    assert '"num_speculative_tokens": 7' in flags["vllm"]
    blocks = {each.engine: each.flags for each in engine_flags(SpecConfig(1, 1, 8, "dflash"))}
    assert blocks["sglang"] == "--speculative-algorithm DFLASH --speculative-dflash-block-size 8"


def test_no_drafting_needs_no_flags():
    assert all(not each.flags and "without speculation" in each.why_not for each in engine_flags(SpecConfig(0, 1, 1)))


def test_a_method_that_an_engine_lacks_gets_no_flags():
    flags = {each.engine: each for each in engine_flags(SpecConfig(1, 1, 7, "suffix"))}
    assert '"method": "suffix"' in flags["vllm"].flags
    assert flags["sglang"].flags == ""
    assert "suffix" in flags["sglang"].why_not


# -- record, text, CSV and command -----------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(main, ["sweep", *arguments])


def record_of(*arguments):
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


CHAINS = ("--num-steps", "1-8", "--topk", "1", "--accept-rate", "0.55", "--nccl", "default")


def test_the_record_is_the_sweep():
    record, fitted = record_of(*CHAINS, "--present", "5/1/6"), fit(load_campaign()).model
    found = sweep(
        fitted, assumed_law(0.55), Axes.completed(fitted, topk=(1,), nccl=("default",)), present=SpecConfig(5, 1, 6)
    )
    best = int(found.columns.best[0, 0])
    assert (record["num_steps"], record["topk"], record["num_draft_tokens"]) == configurations(found)[best]
    assert record["output_tok_s"] == pytest.approx(found.output_tok_s[0, 0, best])
    assert record["margin"] == pytest.approx(found.margin[0, 0, best])
    assert record["margin_interval"] == pytest.approx(
        [found.kept.margin_low[0, 0, best], found.kept.margin_high[0, 0, best]]
    )
    assert record["regret_of_present"] == pytest.approx(found.columns.regret[0, 0])
    assert record["cells"] == {"evaluated": 8, "illegal_combinations": 240, **totals(found)}
    assert record["rows"][0]["role"] == "best"
    assert any(row["present"] for row in record["rows"])
    assert record["noise_assumed"] is True


def test_text_and_record_carry_the_same_labels():
    record, text = (
        record_of(*CHAINS, "--batch-size", "1,4"),
        " ".join(run(*CHAINS, "--batch-size", "1,4").stdout.split()),
    )
    for reason in {reason for row in record["rows"] for reason in row["extrapolated_in"]}:
        assert reason in text
    for note in (*record["notes"], *record["no_baseline_by_nccl"].values()):
        assert " ".join(note.split()) in text
    assert "EXTRAPOLATED" in text
    assert record["law_known"]
    assert "rate 0.55, decay 1.00" in text
    assert "they count as known" in text
    for flags in record["flags"]:
        assert flags["flags"] in text


def test_mixed_baselines_are_allowed_only_when_asked():
    plain, mixed = record_of(*CHAINS, "--batch-size", "4"), record_of(*CHAINS, "--batch-size", "4", "--allow-mixed")
    assert plain["margin"] is None
    assert plain["best_of_all"] == "output_tok_s"
    assert "batch_size" in plain["no_baseline_by_nccl"]["default"]
    assert mixed["margin"] is not None
    assert mixed["mixed_fields"] == ["batch_size"]
    assert "MIXED" in run(*CHAINS, "--batch-size", "4", "--allow-mixed").stdout


def test_csv_holds_every_cell(tmp_path):
    done = run("--csv", str(tmp_path / "cells.csv"), "--accept-rate", "0.5", "--batch-size", "1,4")
    assert done.exit_code == 0
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text(encoding="utf-8").splitlines()))
    fitted = fit(load_campaign()).model
    found = sweep(fitted, assumed_law(0.5), Axes.completed(fitted, batch_size=(1, 4)))
    assert len(rows) == found.evaluated
    for row, index in zip(rows, np.ndindex(found.cycle_ms.shape), strict=True):
        assert float(row["cycle_ms"]) == found.cycle_ms[index]
        assert row["nccl"] == found.axes.nccl[index[0]]
        assert int(row["num_steps"]) == found.spec.num_steps[index[2]]
        assert (float(row["margin"]) == found.margin[index]) if row["margin"] else np.isnan(found.margin[index])
        assert row["feasible"] == ("" if np.isnan(found.margin[index]) else str(bool(found.feasible[index])))
        assert row["tied"] == str(bool(found.kept.tied[index]))
    assert sum(row["best"] == "True" for row in rows) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-steps", "1-x"), "neither a whole number nor a range"),
        (("--num-steps", "8-1"), "runs backwards"),
        (("--present", "3/1"), "is not num_steps/topk/num_draft_tokens"),
        (("--present", "4/1/4"), "verifies exactly 5 tokens"),
        (("--nccl", "other"), "unknown NCCL setting"),
        (("--accept-rate", "1.5"), "0<=x<=1"),
        (("--topk", "0"), "at least 1"),
    ],
)
def test_faults_are_one_line_and_exit_2(arguments, message):
    done = run(*arguments)
    assert done.exit_code == 2
    assert message in done.output


class Terminal(io.StringIO):
    """A stderr that says whether someone watches."""

    def __init__(self, watched):
        super().__init__()
        self.watched = watched

    def isatty(self):
        return self.watched


@pytest.mark.parametrize(("watched", "slow", "drawn"), [(True, True, True), (True, False, False), (False, True, False)])
def test_progress_is_drawn_for_what_takes_long_on_a_terminal(monkeypatch, watched, slow, drawn):
    clock = iter(range(100) if slow else [0.01 * tick for tick in range(100)])
    monkeypatch.setattr("specsim.cli.progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("sys.stderr", terminal := Terminal(watched))
    progress = Progress("sweep")
    for done in (25, 50, 100):
        progress(done, 100)
    assert ("100%" in terminal.getvalue()) == drawn


@pytest.mark.parametrize("left_to_the_command", [False, True])
def test_a_bar_that_work_leaves_early_gives_the_cursor_back(monkeypatch, left_to_the_command):
    monkeypatch.setattr("specsim.cli.progress.time.monotonic", iter(range(100)).__next__)
    monkeypatch.setattr("sys.stderr", terminal := Terminal(True))
    with click.Context(click.Command("check")):
        progress = Progress("check")
        progress(25, 100)
        if not left_to_the_command:
            progress.finish()
            assert terminal.getvalue().endswith(CURSOR_AND_LINE)
    assert terminal.getvalue().count(CURSOR_AND_LINE) == 1
    Progress("none").finish()  # of which nothing was drawn


CURSOR_AND_LINE = "\033[?25h\n"


# -- what a review found ------------------------------------------------------------------------------------------------


def test_a_setting_without_a_baseline_of_its_own_is_not_the_best_of_all():
    """B is faster by far but its plain decode was not measured at batch 8: it might be faster still."""
    runs = [timed_run(f"{n}{w}", 1, w, n, cycle_ms=base + w) for n, base in (("A", 20.0), ("B", 12.0)) for w in (3, 6)]
    runs += [timed_run("A1", 1, None, "A", decode_ms=14.0), timed_run("A8", 8, None, "A", decode_ms=16.0)]
    runs += [timed_run("B1", 1, None, "B", decode_ms=11.0)]
    found = sweep(fit(runs).model, assumed_law(0.6), Axes((2, 5), (1,), (3, 6), (8,), ("A", "B")))
    assert np.isnan(found.decode_ms[:, 0]).tolist() == [False, True]
    assert found.columns.best_output_tok_s[1, 0] > found.columns.best_output_tok_s[0, 0]
    assert found.best == (0, 0)


def test_lower_bounds_do_not_pay(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("batch_size,num_draft_tokens,verify_ms,decode_ms,accept_length\n1,4,20,,2.5\n1,8,24,,\n1,,,15,\n")
    model = fit(load_runs(path)).model
    found = sweep(model, law_from(model), Axes.completed(model, topk=(1,)))
    assert totals(found)["pays"] == 0
    text = " ".join(sweep_text(sweep_record(model, found)).split())
    assert "at most" in text
    assert "≤ " in text


def test_a_sweep_that_gains_nothing_says_so():
    model = fit(load_campaign()).model
    found = sweep(model, assumed_law(0.05), Axes.completed(model))
    assert "plain decode is faster than every configuration here" in " ".join(
        sweep_text(sweep_record(model, found)).split()
    )


def test_too_many_combinations_are_refused_before_they_fill_the_memory():
    model = fit(load_campaign()).model
    with pytest.raises(ConfigurationError, match="narrow an axis"):
        sweep(
            model,
            assumed_law(0.5),
            Axes.completed(model, num_steps=range(1, 1001), topk=range(1, 9), num_draft_tokens=range(2, 513)),
        )


def test_records_leave_no_place_out(model):
    found = sweep(model, FakeTree(), replace(AXES, batch_size=tuple(range(1, 41))))
    record = sweep_record(model, found)
    assert {(row["nccl"], row["batch_size"]) for row in record["rows"]} == set(product(AXES.nccl, range(1, 41)))
    assert record["rows_left_out"] == 0


def test_an_engine_that_drafts_chains_is_offered_chains():
    runs = [replace(r, setup=replace(r.setup, engine="vllm")) for r in synthetic_runs()]
    assert Axes.completed(fit(runs).model).topk == (1,)
