"""Sweeps under a law that is itself uncertain: margins, ties, what cancels, and what the output says of it."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

import specsim.sweep as module
from specsim.acceptance import TreeLaw
from specsim.breakeven import break_even
from specsim.cli.main import main
from specsim.errors import ConfigurationError
from specsim.fitting import fit
from specsim.fitting.acceptance import CHAIN_ERROR, TREE_ERROR, LengthObservation, fit_acceptance
from specsim.grid import Cells, Columns
from specsim.prediction import cycle_cost, predict
from specsim.quantities import Setup, SpecConfig, Workload
from specsim.report.sweep import sweep_record, sweep_text
from specsim.runs.files import load_campaign
from specsim.runs.run import Figure, Run
from specsim.sweep import Axes, law_from, sweep
from specsim.uncertainty import quantile
from tests.unit.test_sweep import AXES, same, same_within_rounding, synthetic_runs

LENGTHS = [LengthObservation(3, 1, 4, 1.35), LengthObservation(5, 1, 6, 1.45), LengthObservation(3, 4, 12, 1.5)]


@pytest.fixture(scope="module")
def model():
    return fit(synthetic_runs()).model


@pytest.fixture(scope="module")
def fitted():
    return fit_acceptance(LENGTHS)


def shrunk(fitted, factor):
    """The fit with every error of the law smaller, so that the law is straight over its interval."""
    return replace(fitted, covariance=fitted.covariance * factor**2, misfit=fitted.misfit * factor)


def scale_of(law):
    return np.array([np.log(law.rate / (1 - law.rate)), np.log(law.decay), np.log(law.rank_exponent)])


def law_of(theta):
    return TreeLaw(1 / (1 + np.exp(-theta[0])), np.exp(theta[1]), np.exp(theta[2]))


def counts(spec):
    return spec.num_steps, spec.topk, spec.num_draft_tokens


def slopes(law, spec):
    """d log L/dθ of every configuration by central differences, shape (n, 3)."""
    middle, columns = scale_of(law), []
    for step in 1e-5 * np.eye(3):
        ends = [np.log(law_of(middle + side * step).accept_length(*counts(spec))) for side in (1, -1)]
        columns.append((ends[0] - ends[1]) / 2e-5)
    return np.stack(columns, axis=1)


def own_errors(fitted, spec):
    return fitted.misfit * np.where(spec.topk == 1, CHAIN_ERROR, TREE_ERROR) * (spec.num_steps > 0)


def score_of(model, fitted, found, place, *, cancels=True):
    """Shortfalls of log throughput from the best's in half-widths of their difference, pair by pair."""
    setting, batch = place
    cost = cycle_cost(
        model, found.spec, Workload(found.axes.batch_size[batch]), found.axes.nccl[setting], found.accept_length.shape
    )
    best, log = found.columns.best[place], np.log(found.accept_length / cost.total.value)
    relative = cost.total.gradient / cost.total.value[:, None]
    slope, own = slopes(fitted.law, found.spec), own_errors(fitted, found.spec)
    squares = []
    for index in range(log.size):
        of_cost = relative[index] - relative[best]
        of_law = [slope[index] - slope[best]] if cancels else [slope[index], slope[best]]
        law = sum(each @ fitted.covariance @ each for each in of_law)
        law += (own[index] ** 2 + own[best] ** 2) * (index != best)
        spread = quantile(model.noise.residual_dof) ** 2 * (of_cost @ model.covariance_matrix @ of_cost)
        squares.append(spread + quantile(0) ** 2 * law)
    short, reach = log[best] - log, np.sqrt(squares)
    return np.divide(short, reach, out=np.zeros_like(short), where=short > 0)


def test_ties_rest_on_the_difference_under_the_law_too(model, fitted):
    fitted = shrunk(fitted, 0.2)
    found, known = sweep(model, fitted, AXES), sweep(model, fitted.law, AXES)
    checked = {True: 0, False: 0}
    for place in product(range(2), range(5)):
        score = score_of(model, fitted, found, place)
        sure = abs(score - 1) > 0.01  # the law is not quite straight
        np.testing.assert_array_equal(found.tied[place][sure], score[sure] < 1)
        for tied in checked:
            checked[tied] += int(((score[sure] < 1) == tied).sum())
    assert min(checked.values()) > 100
    assert found.tied.sum() > known.tied.sum() + 20


def test_a_common_error_of_the_law_cancels(model, fitted):
    """Ties if it did not cancel would be far more: each length's own interval says nothing of their order."""
    fitted = replace(shrunk(fitted, 0.0), covariance=np.diag([0.3**2, 0.0, 0.0]))
    found = sweep(model, fitted, AXES)
    apart = sum(int((score_of(model, fitted, found, (0, b), cancels=False) < 1).sum()) for b in range(5))
    assert apart > 1.3 * found.tied[0].sum()


def test_lengths_apart_are_those_of_draws(fitted):
    """Half-widths of log(L_i/L_j) by Monte Carlo over the parameters and each configuration's own error."""
    fitted = shrunk(fitted, 0.2)
    spec = SpecConfig(np.array([1, 3, 5, 5, 3, 6]), np.array([1, 1, 1, 2, 4, 4]), np.array([2, 4, 6, 9, 12, 30]))
    random = np.random.default_rng(5)
    thetas = scale_of(fitted.law) + random.multivariate_normal(np.zeros(3), fitted.covariance, 4000)
    logs = np.log([law_of(theta).accept_length(*counts(spec)) for theta in thetas])
    logs = logs + own_errors(fitted, spec) * random.standard_normal(logs.shape)
    lengths = fitted.lengths(*counts(spec))
    for one, other in product(range(6), repeat=2):
        drawn = quantile(0) * np.std(logs[:, one] - logs[:, other])
        assert np.sqrt(lengths.square_apart(one, other)) == pytest.approx(drawn, rel=0.05)


def test_the_margins_interval_is_that_of_draws(model, fitted):
    """Standard deviation of L − C/t by Monte Carlo over costs and law, at small errors of both."""
    fitted, factor = shrunk(fitted, 0.2), 0.2
    model = replace(model, covariance=tuple(tuple(v * factor**2 for v in row) for row in model.covariance))
    found = sweep(model, fitted, replace(AXES, batch_size=(4,), nccl=("default",)))
    random = np.random.default_rng(6)
    thetas = scale_of(fitted.law) + random.multivariate_normal(np.zeros(3), fitted.covariance, 3000)
    lengths = np.array([law_of(theta).accept_length(*counts(found.spec)) for theta in thetas])
    lengths = lengths * (1 + own_errors(fitted, found.spec) * random.standard_normal(lengths.shape))
    moves = random.multivariate_normal(np.zeros(len(model.coefficients)), model.covariance_matrix, 3000, method="svd")
    cost = cycle_cost(model, found.spec, Workload(4), "default", found.accept_length.shape).total
    decode = model.decode(model.plain_cycle(np.array([4.0])), "default")
    ratios = (cost.value + moves @ cost.gradient.T) / (decode.value + moves @ decode.gradient.T)
    # cost and law have quantiles of their own, so each is drawn alone and they are joined as independent
    of_cost = quantile(model.noise.residual_dof) * ratios.std(axis=0)
    expected = np.hypot(of_cost, quantile(0) * lengths.std(axis=0))
    np.testing.assert_allclose((found.margin - found.kept.margin_low)[0, 0], expected, rtol=0.08)
    np.testing.assert_allclose((found.kept.margin_high - found.margin)[0, 0], expected, rtol=0.08)
    assert (expected > 1.2 * of_cost).sum() > 20


def test_the_margins_sides_are_each_lengths_own(model, fitted):
    """Both sides cell by cell, from `predict` of the fit and `break_even` of the model, which are lopsided."""
    found = sweep(model, fitted, replace(AXES, batch_size=(2,)))
    for setting, index in product(range(2), range(found.accept_length.size)):
        cell = found.cell(setting, 0, index)
        length, low, high = fitted.predict(*counts(cell.spec))
        need = break_even(model, cell.spec, Workload(2), cell.nccl)
        down = ((length - low) ** 2 + (need.interval[1] - need.cost_ratio) ** 2) ** 0.5
        up = ((high - length) ** 2 + (need.cost_ratio - need.interval[0]) ** 2) ** 0.5
        assert cell.accept_interval == pytest.approx((low, high))
        assert found.kept.margin_low[setting, 0, index] == pytest.approx(length - need.cost_ratio - down)
        assert found.kept.margin_high[setting, 0, index] == pytest.approx(length - need.cost_ratio + up)


def test_a_certain_fit_is_its_law(model, fitted):
    sure = replace(fitted, covariance=np.zeros((3, 3)), misfit=0.0)
    found, known = sweep(model, sure, AXES), sweep(model, sure.law, replace(AXES))
    inside = ~found.lengths.extrapolated  # outside what the law was fitted to a fit says so, a bare law cannot
    np.testing.assert_array_equal(found.extrapolated[..., inside], known.extrapolated[..., inside])
    np.testing.assert_allclose(found.kept.margin_low, known.kept.margin_low, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.kept.margin_high, known.kept.margin_high, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.kept.tied, known.kept.tied)
    np.testing.assert_array_equal(found.tied_with_best, known.tied_with_best)


def test_the_best_of_all_is_told_apart_under_the_law_too(model, fitted):
    """Gains of the best cells over the fastest plain decode at their batch size, pair by pair."""
    fitted = shrunk(fitted, 0.3)
    axes = replace(AXES, batch_size=tuple(range(1, 17)))
    found, known = sweep(model, fitted, axes), sweep(model, fitted.law, axes)
    slope, own = slopes(fitted.law, found.spec), own_errors(fitted, found.spec)

    def log_speedup(place):
        best, label = int(found.columns.best[place]), axes.nccl[place[0]]
        work = Workload(axes.batch_size[place[1]])
        cost = cycle_cost(model, found.cell(*place, best).spec, work, label, ()).total
        plain = model.plain_cycle(np.array([float(work.batch_size)]))
        decode = min((model.decode(plain, other) for other in axes.nccl), key=lambda each: each.value[0])
        value = np.log(found.accept_length[best] * decode.value / cost.value)[0]
        return best, value, (decode.gradient / decode.value[:, None] - cost.gradient / cost.value[:, None])[0]

    top, most, gradient = log_speedup(found.best)
    expected = np.zeros(found.tied_with_best.shape, dtype=bool)
    for place in np.ndindex(expected.shape):
        best, value, other = log_speedup(place)
        apart = slope[best] - slope[top]
        law = apart @ fitted.covariance @ apart + (own[best] ** 2 + own[top] ** 2) * (best != top)
        cost = (gradient - other) @ model.covariance_matrix @ (gradient - other)
        reach = np.sqrt(quantile(model.noise.residual_dof) ** 2 * cost + quantile(0) ** 2 * law)
        expected[place] = most - value <= reach + 1e-12
    np.testing.assert_array_equal(found.tied_with_best, expected)
    assert expected.sum() > known.tied_with_best.sum()
    assert not expected.all()


def test_chunks_and_processes_give_the_same(model, fitted, monkeypatch):
    whole = sweep(model, fitted, AXES)
    monkeypatch.setattr(module, "_CHUNK_CELLS", 1)
    here = sweep(model, fitted, AXES)
    same_within_rounding(whole, here)
    with ProcessPoolExecutor(max_workers=2) as pool:
        there = sweep(model, fitted, AXES, executor=pool)
    same(here.cells, there.cells, Cells)
    same(here.columns, there.columns, Columns)


def test_beyond_what_the_law_was_fitted_to_is_extrapolated(model):
    shallow = fit_acceptance(LENGTHS[:1])
    found, known = sweep(model, shallow, AXES), sweep(model, shallow.law, AXES)
    (seen,) = [residual.observation for residual in shallow.residuals]
    names = ("num_steps", "topk", "num_draft_tokens")
    beyond = np.any([np.asarray(getattr(found.spec, n)) != getattr(seen, n) for n in names], axis=0)
    np.testing.assert_array_equal(found.extrapolated, known.extrapolated | beyond)
    assert (found.extrapolated > known.extrapolated).any()
    assert "what its law was fitted to" in " ".join(sweep_text(sweep_record(model, found)).split())


# -- drafters whose steps are dummies ----------------------------------------------------------------------------------


def block_runs(lengths=((8, 3.1), (16, 3.9)), method="dflash"):
    runs = [Run("plain", Setup(), "s", Workload(1), False, figures={"decode_ms": Figure(14.0)})]
    for width, length in lengths:
        spec = SpecConfig(1, 1, width, method)
        figures = {"cycle_ms": Figure(18.0 + 0.1 * width), "accept_length": Figure(length)}
        runs.append(Run(f"{width}", Setup(), "s", Workload(1), True, spec=spec, figures=figures))
    return runs


@pytest.mark.parametrize("method", ["dflash", "ngram"])
def test_dummy_steps_are_a_chain_as_deep_as_the_width(method):
    model = fit(block_runs(method=method)).model
    law = law_from(model)
    assert law.law.accept_length(7, 1, 8) == pytest.approx(3.1, rel=0.02)
    found = sweep(
        model, law, Axes.completed(model, num_draft_tokens=(1, 4, 8, 16)), present=SpecConfig(1, 1, 5, method)
    )
    assert found.spec.num_draft_tokens.tolist() == [1, 4, 5, 8, 16]
    assert found.spec.num_steps.tolist() == [1] * 5
    for width, length in zip(found.spec.num_draft_tokens, found.accept_length, strict=True):
        assert length == pytest.approx(law.law.accept_length(width - 1, 1, width))
    assert found.extrapolated[0, 0].tolist() == [True, True, True, False, False]
    assert f"steps and topk of {method} are dummies" in " ".join(sweep_record(model, found)["notes"])


def test_dummy_steps_are_no_axis():
    model = fit(block_runs()).model
    with pytest.raises(ConfigurationError, match="of dflash are dummies"):
        sweep(model, law_from(model), Axes.completed(model, num_steps=(1, 2)))
    with pytest.raises(ConfigurationError, match="no chains by depth"):
        Axes.chains(model)


# -- what the output says ----------------------------------------------------------------------------------------------


def run(*arguments):
    done = CliRunner().invoke(main, ["sweep", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_passes_the_whole_fit():
    record, text = json.loads(run("--json", "--nccl", "default")), " ".join(run("--nccl", "default").split())
    model = fit(load_campaign()).model
    law = law_from(model)
    found = sweep(model, law, Axes.completed(model, nccl=("default",)))
    best = int(found.columns.best[0, 0])
    assert record["margin_interval"] == pytest.approx(
        [found.kept.margin_low[0, 0, best], found.kept.margin_high[0, 0, best]]
    )
    assert record["accept_length_interval"] == pytest.approx([found.lengths.low[best], found.lengths.high[best]])
    assert record["tied_count"] == found.tied[0, 0].sum()
    assert record["law_known"] is False
    assert record["not_identified"] == ["decay", "rank_exponent"]
    assert "count as known" not in text
    for name, (low, high) in law.intervals.items():
        assert record["law_intervals"][name] == pytest.approx([low, high])
        assert f"{name} {getattr(law.law, name):.2f} ({low:.2f} to {high:.2f})" in text
    assert set(law.notes) <= set(record["notes"])
    for note in record["notes"]:
        assert " ".join(note.split()) in text


def test_a_rows_throughput_and_verdict_are_uncertain_with_its_length(model, fitted):
    found = sweep(model, fitted, replace(AXES, batch_size=(4,), nccl=("default",)))
    row = sweep_record(model, found)
    spec = SpecConfig(row["num_steps"], row["topk"], row["num_draft_tokens"], found.spec.method)
    told = predict(model, spec, Workload(4), row["accept_length"], "default")
    length, low, high = fitted.predict(*counts(spec))
    for end, own, mine in zip(told.output_tok_s_interval, (low, high), row["output_tok_s_interval"], strict=True):
        of_cost, of_law = end / told.output_tok_s - 1, own / length - 1
        assert abs(mine / told.output_tok_s - 1) == pytest.approx((of_cost**2 + of_law**2) ** 0.5)
    sure = break_even(model, spec, Workload(4), "default", accept_length=length).verdict.probability_pays
    assert 0.5 < row["probability_pays"] < sure or sure < row["probability_pays"] < 0.5


def test_only_trees_rest_on_the_default_prior():
    trees = json.loads(run("--accept-rate", "0.5", "--json"))
    chains = json.loads(run("--accept-rate", "0.5", "--topk", "1", "--json"))
    said = [any("default prior's rank_exponent" in note for note in each["notes"]) for each in (trees, chains)]
    assert said == [True, False]
    assert trees["law_known"]
    assert trees["accept_length_interval"] is None


def test_the_misfit_is_said(model):
    odd = fit_acceptance([*LENGTHS, LengthObservation(4, 1, 5, 1.9), LengthObservation(2, 1, 3, 1.3)])
    text = " ".join(sweep_text(sweep_record(model, sweep(model, odd, AXES))).split())
    assert odd.misfit > 2
    assert f"lie {odd.misfit:.1f} times as far from the law as assumed" in text


def test_csv_has_the_lengths_intervals(tmp_path):
    run("--csv", str(tmp_path / "cells.csv"), "--nccl", "default")
    law = law_from(fit(load_campaign()).model)
    rows = list(csv.DictReader((tmp_path / "cells.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 300
    for row in rows[::37]:
        told = law.predict(*(int(row[name]) for name in ("num_steps", "topk", "num_draft_tokens")))
        names = ("accept_length", "accept_length_low", "accept_length_high")
        assert [float(row[name]) for name in names] == pytest.approx(told)


def test_every_field_of_lengths_is_by_configuration(fitted):
    lengths = fitted.lengths(*(np.array(each) for each in ((3, 0), (1, 1), (4, 1))))
    assert all(len(getattr(lengths, field.name)) == 2 for field in fields(lengths))
    assert lengths.value[1] == lengths.low[1] == lengths.high[1] == 1
    assert lengths.square_apart(1, 1) == 0
