from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from specsim import fit
from specsim.cost.model import Alternative
from specsim.next_run import departures, next_run
from specsim.questions import Asked
from tests.synthetic import at_noise, run

PLAIN = run("p", 1, None, decode_ms=15.9)


def straight(slope: float, widths=(2, 4, 6)):
    return fit([*(run(f"{n}", 1, n, cycle_ms=20.0 + slope * n) for n in widths), PLAIN]).model


def beside(winner, other, name: str = "another form", noise: float = 0.01):
    """A model, and beside it a form that its runs cannot exclude."""
    return replace(at_noise(winner, noise), alternatives=(Alternative(name, 1.0, 0.01, at_noise(other, noise)),))


# -- two widths -------------------------------------------------------------------------------------------------------


def test_the_line_departs_from_a_curve_through_two_widths_by_hand():
    """1 − 2^−T is 1/2, 3/4, 7/8 at 1, 2, 3: through 1 and 2 it reaches 1.5 of their gap at 3, where a line reaches 2."""
    half = partial(lambda share, tokens: 1 - (1 - share) ** tokens, 0.5)
    apart = departures(np.array([1.0, 2.0, 3.0]), (1.0, 2.0), half)
    assert apart[-1] == pytest.approx([0.0, 0.0, 0.5])


def test_the_form_that_was_fitted_is_no_alternative_to_itself():
    share = partial(lambda share, tokens: 1 - (1 - share) ** tokens, 2 / 8)
    tokens = np.arange(2.0, 17.0)
    assert not departures(tokens, (3.0, 7.0))[-1].any()
    apart = departures(tokens, (3.0, 7.0), share)
    assert not apart[2].any()
    assert apart[-1].any()


# -- forms that the runs cannot exclude ---------------------------------------------------------------------------------


def test_the_width_that_tells_two_forms_apart_is_asked_first():
    """Both are 20 + T up to 6; beyond, the other takes T − 6 more: 2 ms of 28 at the asked 8, 10 ms at 16, twice that."""
    widths = (2, 3, 4, 5, 6, 7, 8, 9, 10)
    bent = fit([*(run(f"{n}", 1, n, cycle_ms=20.0 + n + max(n - 6, 0)) for n in widths), PLAIN]).model
    assert "knee at 6" in bent.form
    model = beside(straight(1.0, (2, 3, 4, 5, 6)), bent, bent.form)
    assert not any(each.checks_form for each in next_run(model, Asked(num_draft_tokens=6)).next)  # no answer changes
    plan = next_run(model, Asked(num_draft_tokens=8))
    first = plan.next[0]
    assert (first.kind, first.spec.num_draft_tokens, first.checks_form) == ("cycle", 16, True)
    assert "these runs ask for line and cannot exclude line + knee at 6 tokens" in first.why
    assert "(the answer changes by +7.1%); at 16 tokens that predicts +10.00 ms" in first.why
    assert not any(each.checks_form for each in plan.next[1:])


def test_a_form_that_no_single_run_tells_is_not_asked_about():
    """0.04·T is 1.5% of 32 ms at the asked 12, and 1.8% at 16: inside 1.645 times 1% and the line's own doubt, but not of 0.1%."""
    asked = Asked(num_draft_tokens=12)
    assert not any(each.checks_form for each in next_run(beside(straight(1.0), straight(1.04)), asked).next)
    assert next_run(beside(straight(1.0), straight(1.04), noise=0.001), asked).next[0].checks_form


def test_a_small_change_counts_where_it_lies_beyond_the_answers_interval():
    """0.02·T is 0.24 ms of 32 at 12 tokens, 0.75%: inside an interval at 1% of noise, outside one at 0.1%."""
    asked = Asked(num_draft_tokens=12)
    for noise, counts in ((0.001, True), (0.01, False)):
        plan = next_run(beside(straight(1.0), straight(1.02), noise=noise), asked)
        assert (plan.half_width_pct_now < 0.75) == counts
        assert plan.next[0].checks_form == counts


def test_a_form_that_does_not_know_its_own_prediction_is_not_told_by_one_run():
    """0.2·T is 2.4 ms at 12 tokens, fifteen times 0.1% of noise there; a form known to a tenth of its times predicts all that."""
    other, asked = straight(1.2), Asked(num_draft_tokens=12)
    sure, unsure = beside(straight(1.0), other, noise=0.001), at_noise(other, 0.1)
    assert next_run(sure, asked).next[0].checks_form
    (alternative,) = sure.alternatives
    open_ = replace(sure, alternatives=(replace(alternative, model=unsure),))
    assert not any(each.checks_form for each in next_run(open_, asked).next)


def test_a_run_there_decides_between_the_forms():
    """Runs of a saturating truth that a line fits as well; measured where asked, the line is no longer in doubt or in favour."""
    generator = np.random.default_rng(4)

    def truth(width: int) -> float:
        return 20 + 15 * (1 - (1 - 8 / 128) ** width)

    noisy = [(n, k, truth(n) * np.exp(generator.normal(0, 0.003))) for n in (2, 3, 4, 5, 6, 8) for k in range(2)]
    runs = [*(run(f"{n}-{k}", 1, n, cycle_ms=time) for n, k, time in noisy), PLAIN]
    model = fit(runs).model
    assert model.form == "line"
    assert model.alternatives
    first = next_run(model, Asked(num_draft_tokens=12)).next[0]
    assert first.checks_form
    width = int(first.spec.num_draft_tokens)
    curved = fit([*runs, run("new", 1, width, cycle_ms=truth(width))]).model
    line = model.coefficient("verify_fixed_ms", "s").value + model.coefficient("verify_per_token_ms", "s").value * width
    straight_on = fit([*runs, run("new", 1, width, cycle_ms=line)]).model
    assert "coverage" in curved.form
    assert all("coverage" not in each.form for each in straight_on.alternatives)
