"""The accept length between two readings, its error, and readings that do not go together."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from specsim.errors import NotIdentifiedError, ServerError
from specsim.live.counters import LIFETIME, accept_length_between, difference
from specsim.live.facts import Counters

BEFORE = Counters(
    10.0, cycles=100, accepted=150, drafted=300, accepted_at=(80, 50, 20), output_tokens=260, how="counted"
)
AFTER = Counters(
    16.0, cycles=300, accepted=500, drafted=900, accepted_at=(250, 170, 80), output_tokens=820, running=4, how="counted"
)


def test_length_and_error_of_cycles_by_what_they_accepted():
    """200 cycles, of which 30, 50, 60 and 60 accepted 0 to 3 drafts: Σa = 350, Σa² = 50 + 240 + 540."""
    length = accept_length_between(BEFORE, AFTER)
    assert length.accept_length == 2.75
    assert length.error == pytest.approx(sqrt((830 / 200 - 1.75**2) / 199))
    assert length.how == "counted"


@pytest.mark.parametrize(("cycles", "error"), [(19, None), (20, 0.0)])
def test_fewer_than_20_cycles_know_no_error(cycles, error):
    """An n-gram's first cycles draft nothing, all alike: that is no certainty."""
    none = Counters(0.0, cycles=0, accepted=0, accepted_at=(0, 0, 0))
    assert accept_length_between(none, replace(none, cycles=cycles)) == (1.0, error, "")


def test_what_one_reading_lacks_is_in_no_difference():
    counted = difference(replace(BEFORE, drafted=None), AFTER)
    assert (counted.time_s, counted.cycles, counted.accepted, counted.drafted) == (6.0, 200, 350, None)
    assert (counted.accepted_at, counted.output_tokens, counted.prompt_tokens) == ((170, 120, 60), 560, None)
    assert counted.running == 4


def test_positions_may_begin_with_the_first_draft():
    """llama.cpp lists none before."""
    before = replace(BEFORE, cycles=0, accepted=0, accepted_at=())
    assert difference(before, AFTER).accepted_at == (250, 170, 80)
    assert accept_length_between(before, AFTER).error is not None


@pytest.mark.parametrize("torn", [(250, 170, 81), (350, 70, 80), ()])
def test_positions_that_do_not_go_with_the_totals_tell_no_error(torn):
    length = accept_length_between(BEFORE, replace(AFTER, accepted_at=torn))
    assert (length.accept_length, length.error) == (2.75, None)


@pytest.mark.parametrize(
    "restarted",
    [
        replace(AFTER, cycles=99),
        replace(AFTER, accepted=100),
        replace(AFTER, output_tokens=0),
        replace(AFTER, accepted_at=(250, 170, 10)),
        replace(AFTER, life="2"),
    ],
)
def test_a_restart_in_between_is_refused(restarted):
    with pytest.raises(ServerError, match="restarted"):
        accept_length_between(replace(BEFORE, life="1"), restarted)


def test_a_reading_that_does_not_tell_its_life_is_no_restart():
    assert accept_length_between(replace(BEFORE, life="1"), AFTER).accept_length == 2.75


def test_counts_of_another_kind_are_refused():
    with pytest.raises(ServerError, match="counts otherwise"):
        accept_length_between(BEFORE, replace(AFTER, how="another"))


@pytest.mark.parametrize("ended", [False, True])
def test_without_a_cycle_there_is_no_length(ended):
    with pytest.raises(NotIdentifiedError, match="no cycle was counted") as caught:
        accept_length_between(BEFORE, replace(BEFORE, time_s=11.0, at_request_end=ended))
    assert ("when the request ends" in str(caught.value)) is ended


def test_a_lifetime_average_stands_in_only_where_nothing_is_counted_and_says_so():
    bare = Counters(1.0, lifetime_accept_length=2.9)
    assert accept_length_between(bare, bare) == (2.9, None, LIFETIME)
    assert accept_length_between(BEFORE, replace(AFTER, lifetime_accept_length=9.0)).accept_length == 2.75
    with pytest.raises(NotIdentifiedError, match="counts neither"):
        accept_length_between(Counters(1.0), Counters(2.0))
