"""Laws of sweeps, over random servers: every cell is what the single-cell functions say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specsim.breakeven import break_even
from specsim.errors import MixedSetupError, NotIdentifiedError
from specsim.fitting import fit
from specsim.fitting.acceptance import LengthObservation, fit_acceptance
from specsim.prediction import predict
from specsim.quantities import Setup, SpecConfig, Workload
from specsim.runs.run import Figure, Run
from specsim.sweep import Axes, assumed_law, sweep


@dataclass(frozen=True)
class FakeTree:
    rate: float

    def accept_length(self, num_steps, topk, num_draft_tokens):
        return 1 + np.minimum(
            num_steps, self.rate * np.sqrt(np.asarray(num_draft_tokens) - 1.0) * np.asarray(topk) ** 0.1
        )


@st.composite
def models(draw):
    """A model fitted to runs of a random server: some settings timed fully, some at one width, some not at all."""
    cost = st.floats(0.01, 1.0)
    engine = draw(st.sampled_from(["sglang", "vllm", "tensorrt-llm", None]))
    fixed, token, draft = draw(cost) * 30 + 5, draw(cost), draw(cost)
    base, noise = draw(cost) * 20 + 3, draw(cost) * 0.1
    random, runs = np.random.default_rng(draw(st.integers(0, 1000))), []

    def timed(value):
        return Figure(value=float(value * (1 + noise * random.uniform(-1, 1))))

    def run(name, nccl, batch, spec=None, **times):
        figures = {field: timed(value) for field, value in times.items()}
        return Run(name, Setup(engine=engine), nccl, Workload(batch), spec is not None, spec=spec, figures=figures)

    for nccl in ("a", "b"):
        factor = 1.0 if nccl == "a" else draw(st.floats(0.5, 1.2))
        batches = draw(st.sampled_from([(), (1,), (1, 8)])) if nccl == "b" else (1, 8)
        runs += [run(f"{nccl}{batch}", nccl, batch, decode_ms=base * factor + 0.1 * batch) for batch in batches]
        chosen = [(1, 1, 2), (4, 1, 5), (3, 4, 10)]
        kept = chosen if nccl == "a" else chosen[: draw(st.integers(0 if batches else 1, 3))]
        for number, (steps, topk, width) in enumerate(kept):
            for batch in (1, 8) if nccl == "a" else (1,):
                verify, drafted = (fixed + token * batch * width) * factor, draft * steps + 0.01 * batch * topk
                times = {"verify_ms": verify, "cycle_ms": verify + drafted + 1}
                if draw(st.booleans()):
                    times["draft_ms"] = drafted
                runs.append(run(f"{nccl}{batch}-{number}", nccl, batch, SpecConfig(steps, topk, width), **times))
    return fit(runs).model


axes = st.builds(
    Axes,
    num_steps=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(lambda v: (*v, 2)),
    topk=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(lambda v: (*v, 1)),
    num_draft_tokens=st.lists(st.integers(1, 30), min_size=1, max_size=5).map(lambda v: (*v, 3)),
    batch_size=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    nccl=st.just(("a", "b")),
)
laws = st.one_of(st.builds(assumed_law, st.floats(0, 1)), st.builds(FakeTree, st.floats(0.05, 1.0)))


@settings(max_examples=150)
@given(models(), laws, axes, st.booleans())
def test_every_cell_is_what_single_questions_answer(model, law, axes, allow_mixed):
    found = sweep(model, law, axes, allow_mixed=allow_mixed)
    for index in np.ndindex(found.cycle_ms.shape):
        cell = found.cell(*index)
        work = Workload(cell.batch_size)
        try:
            told = predict(model, cell.spec, work, cell.accept_length, cell.nccl)
        except NotIdentifiedError:
            assert np.isnan(found.cycle_ms[index])
            continue
        np.testing.assert_allclose(found.cycle_ms[index], told.times.cycle_ms, rtol=1e-9)
        np.testing.assert_allclose(found.output_tok_s[index], told.output_tok_s, rtol=1e-9)
        assert found.kept.extrapolated[index] == told.times.extrapolated
        try:
            need = break_even(model, cell.spec, work, cell.nccl, allow_mixed=allow_mixed)
        except MixedSetupError:
            assert np.isnan([found.margin[index], found.kept.margin_low[index], found.speedup[index]]).all()
            continue
        np.testing.assert_allclose(found.speedup[index], cell.accept_length / need.cost_ratio, rtol=1e-9)
        np.testing.assert_allclose(found.cost_ratio[index], need.cost_ratio, rtol=1e-9)
        assert found.feasible[index] == need.feasible
        ends = cell.accept_length - need.interval[1], cell.accept_length - need.interval[0]
        mine = found.kept.margin_low[index], found.kept.margin_high[index]
        np.testing.assert_allclose(mine, ends, rtol=1e-6, atol=1e-6)


@settings(max_examples=150)
@given(models(), laws, axes, st.sampled_from([(2, 1, 3), (3, 2, 7), (6, 4, 25)]))
def test_best_regret_and_ties(model, law, axes, present):
    found = sweep(model, law, axes, present=SpecConfig(*present))
    rates = np.nan_to_num(found.output_tok_s, nan=-1.0)
    best = found.columns.best
    some = best >= 0
    assert (some == (rates.max(axis=2) > 0)).all()
    chosen = np.take_along_axis(rates, best[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(chosen[some], rates.max(axis=2)[some], rtol=1e-14)
    assert np.take_along_axis(found.kept.tied, best[..., None], axis=2)[..., 0][some].all()
    answered = ~np.isnan(found.columns.regret)
    assert (found.columns.regret[answered] >= 0).all()
    assert found.kept.tied[..., found.present].tolist() == found.columns.present_tied.tolist()
    assert (found.kept.tied.sum(axis=2) == found.columns.tied_count).all()
    assert not found.kept.tied[np.isnan(found.cycle_ms)].any()
    if found.best is not None:
        with np.errstate(invalid="ignore"):
            plain = np.where(np.isnan(found.decode_ms), np.inf, found.decode_ms).min(axis=0)
        sizes = np.array(found.axes.batch_size)[None, :, None]
        own = np.isfinite(found.decode_ms)[..., None]  # a setting without a baseline of its own takes no part
        gains = np.where(own, found.output_tok_s * plain[None, :, None] / sizes, np.nan)
        assert gains[(*found.best, best[found.best])] >= np.nanmax(gains) * (1 - 1e-14)


observations = st.tuples(st.sampled_from([(1, 1, 2), (3, 1, 4), (3, 2, 7), (6, 4, 25)]), st.floats(0.02, 0.9)).map(
    lambda seen: LengthObservation(*seen[0], 1 + seen[1] * seen[0][0])
)
fits = st.lists(observations, min_size=1, max_size=3).map(fit_acceptance)


@given(models(), fits, axes)
def test_what_the_law_does_not_know_only_widens(model, fitted, axes):
    doubtful, known = sweep(model, fitted, axes), sweep(model, fitted.law, axes)
    np.testing.assert_array_equal(doubtful.columns.best, known.columns.best)
    np.testing.assert_allclose(doubtful.cycle_ms, known.cycle_ms)
    assert (known.tied <= doubtful.tied).all()
    assert (known.tied_with_best <= doubtful.tied_with_best).all()
    ends = ~np.isnan(known.kept.margin_low)
    assert (doubtful.kept.margin_low <= known.kept.margin_low + 1e-9)[ends].all()
    assert (doubtful.kept.margin_high >= known.kept.margin_high - 1e-9)[ends].all()


@given(fits, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.floats(0, 1)), min_size=3, max_size=3))
def test_the_distance_of_two_lengths_is_a_distance(fitted, drawn):
    """Symmetric, 0 from itself and never longer than a way round: what a sweep's first selection rests on."""
    chosen = [(s, k, s + 1 if k == 1 or s == 0 else 2 + round(x * (k + (s - 1) * k**2 - 1))) for s, k, x in drawn]
    lengths = fitted.lengths(*np.array(chosen).T)
    each = np.arange(3)
    apart = np.sqrt(lengths.square_apart(each[:, None], each))
    np.testing.assert_array_equal(apart, apart.T)
    assert (np.diag(apart) == 0).all()
    assert apart[0, 2] <= apart[0, 1] + apart[1, 2] + 1e-12
