"""Which figure is had how, and how a measurement is written so that it is read back as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specsim.live.counters import CountedLength
from specsim.live.facts import Counters, ServerFacts
from specsim.live.measured import Made, measured, product, run_counts, run_row
from specsim.live.window import Reading, Stream, steady_window
from specsim.quantities import Setup, SpecConfig
from specsim.runs.files import checked_run

CHAIN = SpecConfig(3, 1, 4)


def window_of(per_chunk: int, chunks: int = 200):
    """Two requests in step, 20 ms from chunk to chunk, so many tokens in each."""
    times = 1.0 + 0.02 * np.arange(chunks + 1)
    return steady_window([Stream(0.0, times, 1.0 + per_chunk * np.arange(chunks + 1), 10, None)] * 2, 2)


def test_a_chunk_of_as_many_tokens_as_the_counted_length_is_a_cycle():
    found = measured(window_of(2), CHAIN, CountedLength(2.01, 0.01, "drafts over cycles"))
    assert found.figures["cycle_ms"].value == pytest.approx(20.0)
    assert found.figures["accept_length"] == Reading(2.01, 0.01, 1000)
    assert found.figures["output_tok_s"].value == pytest.approx(2 * 2 / 0.020)
    assert found.derived == ()


def test_where_a_chunk_is_a_token_the_cycle_is_time_per_token_times_length():
    found = measured(window_of(1), CHAIN, CountedLength(2.5, 0.05, "drafts over cycles"))
    assert found.figures["cycle_ms"].value == pytest.approx(20.0 * 2.5)
    assert found.figures["cycle_ms"].error == pytest.approx(50.0 * 0.02, rel=1e-6)  # the length's 2%; chunks are exact
    assert found.derived == ("cycle_ms",)


def test_without_counters_tokens_a_chunk_are_the_length_and_one_token_tells_none():
    assert measured(window_of(3), CHAIN, None).figures["accept_length"].value == pytest.approx(3.0)
    found = measured(window_of(1), CHAIN, None)
    assert set(found.figures) == {"output_tok_s"}
    assert "a chunk of 1.00 tokens is none" in found.missing[0]
    several = measured(window_of(5), CHAIN, None)  # 4 are the most that a cycle of 4 tokens gives
    assert set(several.figures) == {"output_tok_s"}


def test_a_client_late_by_more_than_the_steady_part_timed_nothing():
    """200 gaps of 20 ms are 4 s; what a halted client reads at once arrived over a longer time than it saw."""
    counted = CountedLength(2.01, 0.01, "drafts over cycles")
    assert measured(window_of(2), CHAIN, counted, late_s=3.9).figures.keys() > {"cycle_ms", "output_tok_s"}
    late = measured(window_of(2), CHAIN, counted, late_s=4.1)
    assert late.figures == {"accept_length": Reading(2.01, 0.01, 1000)}
    assert "4.10 s late, longer than the steady part of 4.00 s" in late.missing[0]
    assert dict(measured(window_of(2), CHAIN, None, late_s=4.1).figures) == {}
    made = Made("run", "s", CHAIN, 64, 160, "")
    row = run_row(
        ServerFacts("http://x", Setup(engine="vllm"), "m", CHAIN, True, None, None), made, window_of(2), late, {}
    )
    assert set(checked_run(row, "x.json", "run").figures) == {"accept_length"}


def test_a_lifetime_average_stands_back_behind_chunks():
    lifetime = CountedLength(1.5, None, "over its life")
    assert measured(window_of(3), CHAIN, lifetime).figures["accept_length"].value == pytest.approx(3.0)
    only = measured(window_of(1), CHAIN, lifetime).figures["accept_length"]
    assert only.value == 1.5
    assert np.isnan(only.error)


def test_a_product_adds_relative_errors_in_squares():
    found = product(Reading(10.0, 0.3, 31), Reading(2.0, 0.08, 7))
    assert (found.value, found.error, found.dof) == pytest.approx((20.0, 20.0 * 0.05, 7))


# -- as a run ----------------------------------------------------------------------------------------------------------


def written(counted: CountedLength, counts: dict | None = None, spec: SpecConfig = CHAIN):
    facts = ServerFacts("http://x", Setup(engine="vllm"), "m", spec, True, "eagle", "a head")
    window = window_of(2)
    made = Made("one", "s", spec, 512, 160, "as it was")
    return checked_run(run_row(facts, made, window, measured(window, spec, counted), counts or {}), "x", "x")


def test_a_standard_error_is_read_back_as_it_was_written():
    run = written(CountedLength(2.01, 0.004, ""))
    assert run.figures["accept_length"].best == 2.01
    assert run.accept_length_error == pytest.approx(0.004, rel=1e-3)
    assert (run.drafter, run.workload.batch_size, run.workload.output_len) == ("a head", 2, 512)
    assert run.workload.context_len == pytest.approx(10 + 1 + 2 * 99.5, abs=1)


def test_an_error_beyond_what_a_length_can_be_is_cut_there():
    assert written(CountedLength(2.01, 5.0, "")).figures["accept_length"].high == 4.0


def test_an_accept_length_that_the_configuration_cannot_have_is_no_row_to_fit():
    run = written(CountedLength(4.6, 0.1, ""))
    assert "accept_length" not in run.figures
    assert "4.60 is not possible with 4 draft tokens" in run.excluded


def test_counts_by_position_become_a_histogram():
    before, after = Counters(0, 100, 150, 300, (80, 50, 20)), Counters(9, 300, 510, 900, (240, 180, 90))
    counts = run_counts(before, after, CHAIN)
    # 200 cycles more, of which 160, 130 and 70 accepted at least 1, 2 and 3 drafts
    assert counts == {"cycles": 200, "proposed_drafts": 600, "accept_histogram": [40, 30, 60, 70]}
    run = written(CountedLength(2.8, 0.1, ""), counts)
    assert run.figures["accept_length"].best == pytest.approx(1 + 360 / 200)


@pytest.mark.parametrize(
    "after",
    [
        Counters(9, 300, 999, None, (240, 180, 90)),  # positions that do not add up
        Counters(9, 300, 510, None, ()),
        Counters(9, 300, None, None, (40, 180, 90)),  # a count that fell
    ],
)
def test_counts_that_do_not_agree_are_cycles_alone(after):
    assert run_counts(Counters(0, 100, 150, 300, (80, 50, 20)), after, CHAIN) == {"cycles": 200}


def test_no_cycle_counted_is_no_count():
    still = Counters(0, 100, 150, 300)
    assert run_counts(still, replace(still, time_s=9), CHAIN) == {}
