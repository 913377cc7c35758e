"""The steady window on synthetic arrivals whose cycle time and accept length are known."""

from __future__ import annotations

import numpy as np
import pytest

from specsim.live.requests import ended
from specsim.live.window import Stream, batch_means, clear_intervals, steady_window, tokens_so_far


def cycles_of(rng, *, requests, tokens, cycle_s, survival, told=True, waves=3, prefill_s=0.5, jitter=0.02):
    """Waves of requests that start together: one prefill, then cycles of about `cycle_s` shared by all of a wave."""
    streams, now = [], 0.0
    for _ in range(waves):
        counts = [np.array([1.0]) for _ in range(requests)]
        times = [now + prefill_s]
        while any(count[-1] < tokens for count in counts):
            times.append(times[-1] + cycle_s * (1 + jitter * rng.standard_normal()))
            for i, count in enumerate(counts):
                if count[-1] < tokens:
                    accepted = int((rng.random() < np.cumprod([1.0, *survival])).sum())
                    counts[i] = np.append(count, min(count[-1] + accepted, tokens))
        for count in counts:
            arrivals = np.array(times[: count.size])
            streams.append(Stream(now, arrivals, count if told else np.full(count.size, np.nan), 20, int(count[-1])))
        now = times[-1] + 0.1
    return streams


@pytest.mark.parametrize("told", [True, False])
def test_known_cycle_time_and_accept_length_are_recovered(told):
    rng = np.random.default_rng(5)
    streams = cycles_of(rng, requests=8, tokens=400, cycle_s=0.030, survival=[0.8, 0.7, 0.6], told=told)
    window = steady_window(streams, 8)
    # 1 + .8 + .8·.7 + .8·.7·.6, by one uniform draw a cycle against the products
    length = 1 + 0.8 + 0.56 + 0.336
    assert window.tokens_told is told
    assert window.chunk_ms.value == pytest.approx(30.0, abs=4 * window.chunk_ms.error)
    assert window.tokens_per_chunk.value == pytest.approx(length, abs=4 * window.tokens_per_chunk.error)
    assert window.token_ms.value == pytest.approx(30.0 / length, rel=0.03)
    assert window.output_tok_s.value == pytest.approx(8 * 1000 * length / 30.0, rel=0.03)
    assert 0 < window.chunk_ms.error < 0.3


def test_prefill_ramp_and_tail_are_left_out_and_said():
    # Two requests decode at 10 ms; a third one's prefill of 1 s, from 0.5 s on, stalls the others for that second.
    first = np.concatenate([0.1 + 0.01 * np.arange(41), [1.5], 1.5 + 0.01 * np.arange(1, 51)])
    late = 1.5 + 0.01 * np.arange(51)
    streams = [
        Stream(0.0, first, 1.0 + np.arange(first.size), 10, first.size),
        Stream(0.0, 0.1 + 0.01 * np.arange(41), 1.0 + np.arange(41), 10, 41),
        Stream(0.5, late, 1.0 + np.arange(51), 10, 51),
    ]
    window = steady_window(streams, 2)
    assert window.chunk_ms.value == pytest.approx(10.0)
    assert window.clear_s == pytest.approx(0.4 + 0.5)
    assert (window.ramp_s, window.between_s, window.tail_s) == pytest.approx((0.1, 1.0, 0.0))
    assert window.intervals == 2
    assert window.chunks == 40 + 40 + 50 + 50
    # contexts: prompts of 10 and 1 … 40 tokens twice, 43 − 1 … and 1 … 50 after the stall
    counts = [*range(1, 41), *range(1, 41), *range(42, 92), *range(1, 51)]
    assert window.context_len == pytest.approx(10 + np.mean(counts))


def test_prompts_of_requests_that_have_not_ended_count_as_the_average_of_those_that_have():
    times = 0.1 + 0.01 * np.arange(51)
    ended = Stream(0.0, times, 1.0 + np.arange(51), 30, 51)
    window = steady_window([ended, Stream(0.0, times, 1.0 + np.arange(51), None, None)], 2)
    assert window.context_len == pytest.approx(30 + 25.5)


def test_more_requests_than_the_server_runs_leave_no_steady_part():
    # the third request is served only when the first two have ended: never three at once
    streams = [
        Stream(0.0, 0.1 + 0.01 * np.arange(50), 1.0 + np.arange(50), 10, 50),
        Stream(0.0, 0.1 + 0.01 * np.arange(50), 1.0 + np.arange(50), 10, 50),
        Stream(0.0, 0.7 + 0.01 * np.arange(50), 1.0 + np.arange(50), 10, 50),
    ]
    window = steady_window(streams, 3)
    assert window.most_running == 2
    assert window.chunks == 0
    assert np.isnan(window.chunk_ms.value)


def test_nothing_seen_is_an_empty_window():
    window = steady_window([Stream(0.0, np.empty(0), np.empty(0))], 1)
    assert (window.chunks, window.clear_s, window.most_running) == (0, 0.0, 0)
    assert window.context_len is None


def test_clear_intervals_by_hand():
    streams = [Stream(0, np.array(times), np.array(times)) for times in ([1.0, 5.0], [2.0, 6.0], [5.0, 9.0])]
    starts, ends, most = clear_intervals(streams, 2)
    assert (list(starts), list(ends), most) == ([2.0, 5.0], [5.0, 6.0], 2)


def test_tokens_spread_over_chunks_where_no_server_told_them():
    nan = np.full(5, np.nan)
    ended = Stream(0.0, np.arange(5.0), nan, None, 13)  # the prefill's one token, then 12 over 4 chunks
    running = Stream(0.0, np.arange(3.0), nan[:3], None, None)
    alone = Stream(0.0, np.arange(3.0), nan[:3], None, None)
    assert [list(count) for count in tokens_so_far([ended, running])] == [[1, 4, 7, 10, 13], [1, 4, 7]]
    assert list(tokens_so_far([alone])[0]) == [1, 2, 3]


def test_three_short_requests_do_not_know_their_error():
    streams = cycles_of(np.random.default_rng(1), requests=3, tokens=30, cycle_s=0.03, survival=[0.8], waves=1)
    window = steady_window(streams, 3)
    assert window.chunk_ms.value == pytest.approx(30.0, rel=0.05)
    assert np.isnan(window.chunk_ms.error)


# -- errors of means -------------------------------------------------------------------------------------------------


def error_against_truth(draw, trials=400, count=3200):
    """The spread of a mean over many draws, and the root mean square of the error that batch means state for it."""
    rng = np.random.default_rng(11)
    found = [batch_means(draw(rng, count), np.ones(count), count) for _ in range(trials)]
    return np.std([f.value for f in found]), np.mean([f.error**2 for f in found]) ** 0.5


def test_batch_means_state_the_spread_of_independent_values():
    spread, stated = error_against_truth(lambda rng, count: 10 + rng.standard_normal(count))
    assert stated == pytest.approx(spread, rel=0.12)


def test_batch_means_are_joined_where_neighbours_go_together():
    def walk(rng, count):  # autoregressive over 50 values: batches of 100 are not independent
        noise, x = rng.standard_normal(count), np.empty(count)
        x[0] = noise[0]
        for i in range(1, count):
            x[i] = 0.98 * x[i - 1] + noise[i]
        return 100 + x

    spread, stated = error_against_truth(walk, trials=150)
    assert 0.75 * spread < stated < 1.4 * spread


def test_values_of_one_cycle_count_once():
    """64 requests that share each cycle's time know it no better than one does."""
    rng = np.random.default_rng(3)
    steps = 0.02 + 0.001 * rng.standard_normal(320)
    alone = batch_means(steps, np.ones(320), 320)
    together = batch_means(np.repeat(steps, 64), np.ones(320 * 64), 320)
    assert together.error == pytest.approx(alone.error, rel=1e-9)


def test_prompts_that_accept_differently_widen_the_error():
    """Accept lengths of 1.5 and 3.5 by request: over time nothing varies, the requests do."""
    rng = np.random.default_rng(2)
    streams = []
    for i in range(16):
        gained = np.where(rng.random(400) < 0.5, 1, 2) if i % 2 else np.where(rng.random(400) < 0.5, 3, 4)
        streams.append(Stream(0.0, 0.1 + 0.02 * np.arange(401), np.cumsum([1, *gained]).astype(float), 10, None))
    length = steady_window(streams, 16).tokens_per_chunk
    assert length.value == pytest.approx(2.5, abs=0.05)
    assert length.error == pytest.approx(1.0 / 15**0.5, rel=0.05)  # 16 requests at 1 above or below the mean


def test_ended_requests_are_rows_of_the_same_metrics_as_simulated_ones():
    """Sent at 2 s, first chunk 0.1 s later, 5 tokens over 0.2 s after it; one was cut off, of one no count was told."""
    times = np.array([2.1, 2.2, 2.3])
    told = np.array([1.0, 4.0, 6.0])
    whole = Stream(2.0, times, told, 20, 6)
    rows = ended([Stream(1.0, times, told, 20, None), whole, Stream(2.5, times + 1, np.full(3, np.nan), None, None)])
    assert rows.arrival_ms.tolist() == [1000.0]  # since the first was sent
    assert rows.ttft_ms == pytest.approx([100.0])
    assert rows.tpot_ms == pytest.approx([40.0])
    assert rows.e2e_ms == pytest.approx([300.0])
    assert (rows.prompt_len.tolist(), rows.output_len.tolist(), rows.cycles.tolist()) == ([20], [6], [3])
    assert np.isnan(rows.admitted_ms).all()
    assert ended([]).output_len.size == 0
