"""Logs and metrics of real servers (tests/unit/data), with figures worked out by hand from their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.runs.formats.sglang_log import parse_decode_line
from specsim.runs.importing import import_files

DATA = Path(__file__).parent / "data"


def imported(*names: str, **stated: str):
    return import_files([DATA / name for name in names], stated)


def written(tmp_path, *lines: str, name: str = "server.log") -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def why(found) -> dict[str, int]:
    """How many lines were left out, by reason."""
    return {each.left_out.why: each.left_out.count for each in found.left_out}


# -- SGLang ---------------------------------------------------------------------------------------------------------


def test_sglang_steady_intervals_are_one_run_of_their_lines():
    found = imported("sglang_decode_v0.5.3_eagle3.log", num_draft_tokens="4")
    (row,), (run,) = found.rows, found.runs
    assert (row["batch_size"], row["cuda_graph"], row["engine"]) == (1, True, "sglang")
    assert row["output_tok_s"] == [178.86, 165.41, 188.68, 165.59]
    assert row["accept_length"] == [1.95, 1.8, 2.05, 1.8]
    assert row["cycle_ms"] == pytest.approx([10.9024, 10.8821, 10.8650, 10.8702], abs=1e-4)  # 1000·L/R at batch 1
    assert row["context_len"] == 299  # (186 + 258 + 340 + 412)/4
    assert row["source"] == "sglang_decode_v0.5.3_eagle3.log, lines 3–6"
    assert run.figures["cycle_ms"].implied
    assert "accept rate counts the bonus, as in SGLang 0.5.3 and 0.5.8" in row["note"]
    assert why(found) == {"prefill line": 1, "interval with a prefill in it": 1}


def test_without_a_configuration_a_run_is_kept_and_the_option_named():
    found = imported("sglang_decode_v0.5.3_eagle3.log")
    (run,) = found.runs
    assert run.speculative
    assert run.spec is None
    assert run.excluded
    assert any("--set num_draft_tokens=N" in line for line in found.missing)
    # 1.95/0.49 lies in 3.93 to 4.03, 1.80/0.45 in 3.95 to 4.06; (1.95 − 1)/0.49 in 1.91 to 1.97, so no whole number
    assert any("imply num_draft_tokens 4 if the rate counts the bonus" in line for line in found.missing)
    assert not any("0.5.11" in line for line in found.missing)


def test_sglang_first_interval_is_kept_apart_and_graphs_are_not_mixed():
    found = imported("sglang_decode_disabled_spec_48req.log")
    eager, graph = found.rows
    assert (eager["cuda_graph"], eager["output_tok_s"], eager["cycle_ms"]) == (False, 5399.46, pytest.approx(8.88978))
    assert (graph["cuda_graph"], graph["output_tok_s"], graph["cycle_ms"]) == (True, 6138.6, pytest.approx(7.81937))
    assert "begins before the log does" in graph["exclude"]
    assert why(found) == {"interval that begins before the log does": 1}
    assert any("num_draft_tokens 9" in line for line in found.missing)  # 1.00/0.11 lies in 8.65 to 9.57


def test_sglang_0_4_5_has_neither_rate_nor_graph():
    (row,) = imported("sglang_decode_v0.4.5_plain.log").rows
    assert (row["batch_size"], row["accept_length"], row["output_tok_s"]) == (32, 2.54, 39.33)
    assert "cuda_graph" not in row
    assert "accept_rate" not in row


SHAPES = {
    "0.4.6": "Decode batch. #running-req: 8, #token: 9120, token usage: 0.03, accept len: 2.91, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0",
    "0.5.5": "Decode batch, #running-req: 8, #token: 9120, token usage: 0.03, accept len: 2.91, accept rate: 0.73, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0, ",
    "counted": "Decode batch [12345], #running-req: 8, #token: 9120, token usage: 0.03, accept len: 2.91, accept rate: 0.64, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0",
    "swa": "Decode batch, #running-req: 8, #full token: 9120, full token usage: 0.03, #swa token: 512, swa token usage: 0.01, accept len: 2.91, accept rate: 0.64, npu graph: True, gen throughput (token/s): 812.40, #queue-req: 0",
    "mamba": "Decode batch, #running-req: 8, #token: 9120, token usage: 0.03, mamba num: 12, mamba usage: 0.10, accept len: 2.91, accept rate: 0.64, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0",
    "dspark": "Decode batch, #running-req: 8, #token: 9120, token usage: 0.03, accept len: 2.91, accept rate: 0.64, cap len: 2.10, block accept len: 3.02, pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 812.40, #queue-req: 0, est. decode TFLOPS/s (per GPU): 12.3, est. read BW (GB/s per GPU): 800.1, est. write BW (GB/s per GPU): 1.0",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_lines_of_every_version_read_by_key(shape):
    found = parse_decode_line(f"[2026-11-01 10:00:00 DP1 TP4] {SHAPES[shape]}")
    assert found is not None
    assert (found.running, found.length, found.rate_tok_s, found.graph) == (8, 2.91, 812.4, True)
    assert found.rate == {"0.4.6": None, "0.5.5": 0.73}.get(shape, 0.64)
    assert found.cached == (None if shape == "swa" else 9120)


def decode(second: int, running: int, tokens: int, length: str, rate: str, speed: str, rank: str = "TP0") -> str:
    return (
        f"[2026-11-01 10:00:{second:02d} {rank}] Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.01,"
        f" accept len: {length}, accept rate: {rate}, cuda graph: True, gen throughput (token/s): {speed}, #queue-req: 0"
    )


ARGUMENTS = (
    "server_args=ServerArgs(model_path='org/target', tp_size=4, speculative_algorithm='EAGLE3',"
    " speculative_draft_model_path='org/head', speculative_num_steps=3, speculative_eagle_topk=1,"
    " speculative_num_draft_tokens={width}, speculative_accept_threshold_single=1.0)"
)


def test_server_arguments_state_the_configuration(tmp_path):
    log = (ARGUMENTS.format(width=6), *(decode(s, 2, 100 + 240 * s, "3.00", "0.67", "400.0") for s in range(3)))
    (row,) = import_files([written(tmp_path, *log)], {}).rows
    said = {"model": "org/target", "tensor_parallel": 4, "method": "eagle3", "drafter": "org/head", "num_steps": 3}
    assert said.items() <= row.items()
    assert (row["topk"], row["num_draft_tokens"]) == (1, 4)  # the engine itself sets the draft tokens to steps + 1
    assert row["cycle_ms"] == [15.0, 15.0]  # 2·3/400; the first interval begins before the log
    assert "accept rate does not count the bonus, as in SGLang 0.5.11" in row["note"]  # (3 − 1)/3 = 0.67


def test_a_rate_that_its_version_would_count_otherwise_is_said(tmp_path):
    log = written(tmp_path, *(decode(s, 2, 100 + 240 * s, "3.00", "0.67", "400.0") for s in range(3)))
    (row,) = import_files([log], {"num_draft_tokens": "4", "engine_version": "0.5.8"}).rows
    assert "does not go with accept len" in row["note"]  # 0.5.8 would print 3/4 = 0.75


def test_ranks_and_batches_are_told_apart(tmp_path):
    log = [
        decode(1, 2, 100, "3.00", "0.67", "400.0", "DP0 TP0"),
        decode(1, 4, 100, "3.00", "0.67", "600.0", "DP1 TP0"),
        decode(2, 2, 340, "3.00", "0.67", "400.0", "DP0 TP0"),
        "[2026-11-01 10:00:02 DP1 TP0] Prefill batch, #new-seq: 1, #new-token: 253, input throughput (token/s): 9.0",
        decode(3, 4, 580, "3.00", "0.67", "610.0", "DP1 TP0"),
        decode(3, 2, 580, "3.00", "0.67", "400.0", "DP0 TP0"),
        decode(4, 4, 900, "3.00", "0.67", "620.0", "DP1 TP0"),
        decode(5, 4, 300, "3.00", "0.67", "630.0", "DP1 TP0"),
        decode(6, 3, 310, "3.00", "0.67", "640.0", "DP1 TP0"),
        decode(7, 0, 0, "3.00", "0.67", "0.0", "DP1 TP0"),
        "[2026-11-01 10:00:08 DP1 TP0] Decode batch, #running-req: x, gen throughput (token/s): 1",
    ]
    found = import_files([written(tmp_path, *log)], {"num_draft_tokens": "4"})
    assert [(row["batch_size"], row["output_tok_s"]) for row in found.rows] == [(2, [400.0, 400.0]), (4, 620.0)]
    assert why(found) == {
        "interval that begins before the log does": 1,
        "prefill line": 1,
        "interval with a prefill in it": 1,
        "interval in which a request ended (fewer tokens in the KV cache)": 1,
        "interval in which the batch changed": 1,
        "idle interval": 1,
        "decode line that cannot be read": 1,
    } | {"interval that begins before the log does": why(found)["interval that begins before the log does"]}
    bad = next(each.left_out for each in found.left_out if "cannot be read" in each.left_out.why)
    assert (bad.first, bad.last) == (11, 11)
    assert "#running-req: x" in bad.example


def test_adaptive_steps_make_runs_of_their_own(tmp_path):
    log = [ARGUMENTS.format(width=4), *(decode(s, 1, 100 + 120 * s, "3.00", "0.67", "300.0") for s in range(3))]
    log += ["[2026-11-01 10:00:03 TP0] Adaptive spec params updated: steps 3 -> 5 (ema_accept_len=2.81)"]
    log += [decode(s, 1, 100 + 160 * s, "4.00", "1.00", "350.0") for s in range(4, 7)]
    found = import_files([written(tmp_path, *log)], {})
    assert [(row["num_draft_tokens"], row["accept_length"]) for row in found.rows] == [(4, [3.0, 3.0]), (6, [4.0, 4.0])]
    assert why(found)["interval in which adaptive speculation changed its steps"] == 1


# -- vLLM -----------------------------------------------------------------------------------------------------------


def test_vllm_log_adds_up_to_the_servers_own_counters():
    """The log of a server's whole life and its counters at the end: 21 windows printed with three decimals, one truth."""
    log, metrics = imported("vllm_0.24_h200_eagle3_k3.log"), imported("vllm_0.24_h200_metrics_k3.prom")
    counted = {"cycles": 67138, "accepted_drafts": 103448, "proposed_drafts": 201414, "num_draft_tokens": 4}
    for found in (log, metrics):
        (row,), (run,) = found.rows, found.runs
        assert counted.items() <= row.items()
        assert run.figures["accept_length"].best == pytest.approx(2.54083, abs=1e-5)  # 1 + 103448/67138
    assert metrics.rows[0]["accept_histogram"] == [19987, 14046, 9913, 23192]  # 67138 − 47151, 47151 − 33105, …
    assert log.rows[0]["accept_histogram"] == pytest.approx(metrics.rows[0]["accept_histogram"], abs=10)
    assert why(log) == {
        "first interval of an engine: idle time may be in it (its time; its drafts are counted)": 1,
        "interval with a prefill in it (its time; its drafts are counted)": 20,
    }


@pytest.mark.parametrize(
    ("name", "width", "cycles", "accepted", "histogram"),
    [
        # three windows of 1460/5 = 292 cycles: .880·292 = 257, .788·292 = 230 …, each adding up to what was accepted
        ("vllm_v0.20_dflash_n5.log", 6, 876, 2873, [100, 99, 117, 93, 74, 393]),
        ("vllm_dflash15_low_accept.log", 16, 65, 89, [26, 14, 11, 7, 3, 4, *[0] * 10]),
        ("vllm_mtp1_qwen0.8b_pair.log", 2, 652, 630, [22, 630]),
    ],
)
def test_vllm_positions_are_counts(name, width, cycles, accepted, histogram):
    (row,) = imported(name).rows
    assert (row["num_draft_tokens"], row["cycles"], row["accepted_drafts"]) == (width, cycles, accepted)
    assert row["accept_histogram"] == histogram


def test_vllm_two_lines_join_by_time_not_by_order():
    found = imported("vllm_mtp1_qwen0.8b_pair.log")
    assert found.rows[0]["source"].endswith("lines 2–3")
    assert why(found)["engine line without a SpecDecoding line of its interval"] == 1


def test_vllm_v0_totals_count_what_was_emitted():
    (row,) = imported("vllm_v0_speculative_metrics.log").rows
    # the last line: 15 drafts in cycles of 5, 3 tokens emitted, so none of them accepted before a rejection
    assert (row["cycles"], row["accepted_drafts"], row["proposed_drafts"], row["num_draft_tokens"]) == (3, 0, 15, 6)


def test_vllm_early_v1_counts_no_cycles_until_the_width_is_stated():
    unstated, stated = (
        imported("vllm_v1_2025-03_specmetrics.log"),
        imported("vllm_v1_2025-03_specmetrics.log", num_draft_tokens="2"),
    )
    assert [row["accept_rate"] for row in unstated.rows] == [1.0, 1.0]
    assert all(run.excluded for run in unstated.runs)
    assert [(row["cycles"], row["accepted_drafts"]) for row in stated.rows] == [(66, 66), (66, 66)]


def engine(second: int, index: int, speed: float, running: int, prompt: float = 0.0) -> str:
    return (
        f"(APIServer pid=7) INFO 11-01 10:00:{second:02d} [loggers.py:340] Engine {index:03d}: Avg prompt throughput: {prompt}"
        f" tokens/s, Avg generation throughput: {speed} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache"
        " usage: 1.9%, Prefix cache hit rate: 0.0%"
    )


def spec(second: int, length: float, accepted: int, drafted: int, positions: str, seconds: float = 10) -> str:
    return (
        f"(APIServer pid=7) INFO 11-01 10:00:{second:02d} [metrics.py:120] SpecDecoding metrics: Mean acceptance length:"
        f" {length}, Accepted throughput: {accepted / seconds:.2f} tokens/s, Drafted throughput: {drafted / seconds:.2f} tokens/s,"
        f" Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {positions}, Avg Draft"
        f" acceptance rate: {accepted / drafted:.1%}"
    )


def test_vllm_engines_interleaved_are_joined_by_their_throughput(tmp_path):
    log = [
        engine(0, 0, 100.0, 2), engine(0, 1, 300.0, 4),
        engine(10, 0, 250.0, 2), engine(10, 1, 500.0, 4),  # both engines before both of their drafts
        spec(10, 2.5, 3000, 4000, "0.900, 0.600"), spec(10, 2.5, 1500, 2000, "0.900, 0.600"),
        engine(20, 0, 260.0, 2), spec(20, 2.6, 1600, 2000, "0.900, 0.700"),
    ]  # fmt: skip
    found = import_files([written(tmp_path, *log)], {})
    four, two = found.rows
    assert (four["batch_size"], four["cycles"], four["output_tok_s"]) == (4, 2000, 500.0)
    assert four["cycle_ms"] == pytest.approx(1000 * 4 * 2.5 / 500)
    assert (two["batch_size"], two["cycles"], two["output_tok_s"]) == (2, 2000, [250.0, 260.0])
    assert two["cycle_ms"] == pytest.approx([1000 * 2 * 2.5 / 250, 1000 * 2 * 2.6 / 260])
    assert two["accept_histogram"] == [
        200,
        500,
        1300,
    ]  # 900 + 900 of 2000 got past the first draft, 600 + 700 past the second


def test_vllm_idle_intervals_of_a_server_that_drafts_are_counted_as_idle(tmp_path):
    log = [engine(0, 0, 10.0, 2), engine(10, 0, 250.0, 2), spec(10, 2.5, 1500, 2000, "0.900, 0.600"),
           engine(20, 0, 0.0, 0), engine(30, 0, 0.0, 0)]  # fmt: skip
    assert why(import_files([written(tmp_path, *log)], {})) == {
        "idle interval": 2,
        "engine line without a SpecDecoding line of its interval": 1,
    }


def test_vllm_without_drafts_is_plain_decode(tmp_path):
    log = [engine(0, 0, 10.0, 2), engine(10, 0, 100.0, 2), engine(20, 0, 102.0, 2), engine(30, 0, 90.0, 2, prompt=5.0)]
    found = import_files([written(tmp_path, *log)], {})
    (row,), (run,) = found.rows, found.runs
    assert not run.speculative
    assert (row["batch_size"], row["output_tok_s"]) == (2, [100.0, 102.0])
    assert sum(why(found).values()) == 2


def iteration(number: int, context: int, requests: int, tokens: int, time_ms: float) -> str:
    return (
        f"(EngineCore pid=9) INFO 11-01 10:00:00 [core.py:300] Engine 000: Iteration({number}): {context} context requests, 0"
        f" context tokens, {requests} generation requests, {tokens} generation tokens, iteration elapsed time: {time_ms} ms,"
        " GPU KV cache usage: 1.9%"
    )


def test_vllm_iterations_are_cycles_by_batch_and_width(tmp_path):
    log = [iteration(1, 0, 4, 16, 14.21), iteration(2, 0, 4, 16, 14.25), iteration(3, 1, 4, 16, 40.0),
           iteration(4, 0, 4, 15, 14.0), iteration(5, 0, 2, 2, 9.0), iteration(6, 0, 0, 0, 0.1),
           "Engine 000: Iteration(7): 0 context requests"]  # fmt: skip
    found = import_files([written(tmp_path, *log)], {})
    (row,) = found.rows
    assert (row["batch_size"], row["num_draft_tokens"], row["cycle_ms"]) == (4, 4, [14.21, 14.25])
    assert sum(why(found).values()) == 5
    plain = import_files([written(tmp_path, iteration(5, 0, 2, 2, 9.0))], {})
    assert (plain.rows[0]["decode_ms"], plain.runs[0].speculative) == (9.0, False)


# -- TensorRT-LLM -----------------------------------------------------------------------------------------------------


def step(number: int, requests: int, tokens: int, before: str, context: int = 0, rank: int = 0) -> str:
    return (
        f"[11/01/2026-10:00:00] [TRT-LLM] [I] [_torch][RANK {rank}] iter = {number}, global_rank = {rank}, rank = {rank},"
        f" num_scheduled_requests = {requests}, kv_cache_util = 0.12, currank_total_requests = 3/8, host_step_time = 9.8ms,"
        f" prev_device_step_time = {before}, timestamp = 2026-11-01 10:00:00, states = {{'num_ctx_requests': {context},"
        f" 'num_ctx_tokens': 0, 'num_generation_tokens': {tokens}, 'cached_kv_tokens': 63821}}"
    )


def test_tensorrt_llm_device_times_belong_to_the_line_before(tmp_path):
    log = [
        step(1, 8, 32, "N/A"),  # timed by line 2
        step(2, 8, 32, "9.4ms"),  # timed by line 3
        step(3, 4, 16, "9.6ms"),  # timed by line 5; line 4 is of another rank
        step(3, 4, 16, "7.0ms", rank=1),
        step(4, 4, 16, "7.5ms", context=1),  # a prefill
        step(5, 0, 0, "80.0ms"),  # idle
        step(6, 8, 32, "0.1ms"),  # the next line is missing
        step(9, 8, 32, "9.9ms"),  # the last
        "iter = 10, prev_device_step_time = 9.9ms",
    ]
    found = import_files([written(tmp_path, *log)], {})
    four, eight = found.rows
    assert (eight["batch_size"], eight["num_draft_tokens"], eight["cycle_ms"]) == (8, 4, [9.4, 9.6])
    assert (four["batch_size"], four["num_draft_tokens"], four["cycle_ms"]) == (4, 4, 7.5)
    assert four["engine"] == "tensorrt-llm"
    assert sum(why(found).values()) == 6


# -- Prometheus -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "engine_name", "width", "cycles", "proposed", "accepted", "histogram", "length"),
    [
        ("vllm_cpu_metrics_synthetic_k3.prom", "vllm", 4, 390, 1170, 782, [82, 47, 48, 213], 3.005128),
        ("llamacpp_metrics.prom", "llama.cpp", 4, 32, 90, 58, [9, 4, 3, 16], 2.8125),
        ("vllm_prometheus_counters_from_totals.prom", "vllm", 9, 104880, 839040, 356839, None, 4.402355),
    ],
)
def test_metrics_are_counts(name, engine_name, width, cycles, proposed, accepted, histogram, length):
    found = imported(name)
    (row,), (run,) = found.rows, found.runs
    assert (row["engine"], row["num_draft_tokens"], row.get("accept_histogram")) == (engine_name, width, histogram)
    assert (row["cycles"], row["proposed_drafts"], row["accepted_drafts"]) == (cycles, proposed, accepted)
    assert run.figures["accept_length"].best == pytest.approx(length, abs=1e-6)


def test_vllm_gap_between_chunks_is_a_cycle_where_the_batch_is_known():
    name = "vllm_cpu_metrics_synthetic_k3.prom"
    assert "cycle_ms" not in imported(name).rows[0]
    assert "cycle_ms whose batch size is not told (--set batch_size=N, if it was always the same)" in why(
        imported(name)
    )
    assert imported(name, batch_size="1").rows[0]["cycle_ms"] == pytest.approx(34.53637, abs=1e-5)  # 13.46918 s / 390


def metrics(
    drafts: int, proposed: int, accepted: int, positions: tuple[int, ...], seconds: float, gaps: int
) -> list[str]:
    label = 'engine="0",model_name="m"'
    counters = {"num_drafts": drafts, "num_draft_tokens": proposed, "num_accepted_tokens": accepted}
    lines = [f"vllm:spec_decode_{name}_total{{{label}}} {value}.0" for name, value in counters.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{at}"}} {value}.0'
        for at, value in enumerate(positions)
    ]
    return [*lines, f"vllm:inter_token_latency_seconds_sum{{{label}}} {seconds}",
            f"vllm:inter_token_latency_seconds_count{{{label}}} {gaps}"]  # fmt: skip


BEFORE = metrics(100, 300, 150, (80, 50, 20), 1.0, 100)
AFTER = metrics(300, 900, 500, (250, 170, 80), 3.4, 300)


def check_difference(found):
    (row,) = found.rows
    assert (row["cycles"], row["proposed_drafts"], row["accepted_drafts"]) == (200, 600, 350)
    assert row["accept_histogram"] == [30, 50, 60, 60]  # 200 − 170, 170 − 120, 120 − 60
    assert row["cycle_ms"] == pytest.approx(12.0)  # 2.4 s over 200 gaps
    assert "counted since before.prom, line 1" in row["note"] or "counted since both.prom, line 1" in row["note"]


def test_two_snapshots_give_a_difference_in_two_files_or_in_one(tmp_path):
    before, after = written(tmp_path, *BEFORE, name="before.prom"), written(tmp_path, *AFTER, name="after.prom")
    check_difference(import_files([before, after], {"batch_size": "2"}))
    check_difference(import_files([written(tmp_path, *BEFORE, *AFTER, name="both.prom")], {"batch_size": "2"}))


def test_gaps_count_the_cycles_in_which_a_lookup_drafted_nothing(tmp_path):
    """Of 211 cycles 33 drafted: accept length and time are both over all of them."""
    found = import_files([written(tmp_path, *metrics(33, 99, 99, (33, 33, 33), 0.422, 211))], {"batch_size": "1"})
    (row,), (run,) = found.rows, found.runs
    assert (row["cycles"], row["num_draft_tokens"], row["accept_histogram"]) == (211, 4, [178, 0, 0, 33])
    assert row["cycle_ms"] == pytest.approx(2.0)
    assert run.figures["accept_length"].best == pytest.approx(1 + 99 / 211)


def test_snapshots_across_a_restart_are_read_each(tmp_path):
    after, restarted = written(tmp_path, *AFTER, name="a.prom"), written(tmp_path, *BEFORE, name="b.prom")
    assert [row["cycles"] for row in import_files([after, restarted], {}).rows] == [300, 100]


def test_a_snapshot_is_not_counted_twice(tmp_path):
    """Two scrapes of an idle server, and a third after 200 cycles: the difference alone, of 300 in all."""
    first, again, last = (
        written(tmp_path, *lines, name=f"{name}.prom") for name, lines in (("1", BEFORE), ("2", BEFORE), ("3", AFTER))
    )
    with pytest.raises(
        InputError, match=r"2\.prom: gives no run: snapshot of a server that has counted nothing since 1"
    ):
        import_files([first, again, last], {})
    both = written(tmp_path, *BEFORE, *BEFORE, *AFTER, name="one.prom")
    found = import_files([both], {})
    assert [row["cycles"] for row in found.rows] == [200]
    assert why(found)["snapshot of a server that has counted nothing since one.prom"] == 1


def test_torn_positions_are_not_used_and_impossible_totals_refused(tmp_path):
    torn = written(tmp_path, *metrics(100, 300, 150, (80, 50, 30), 1.0, 100), name="torn.prom")
    (row,) = import_files([torn], {}).rows
    assert (row["cycles"], row["accepted_drafts"], row.get("accept_histogram")) == (100, 150, None)
    assert "positions add up to 160, spec_decode_num_accepted_tokens is 150" in row["note"]
    wrong = written(tmp_path, *metrics(100, 300, 350, (), 1.0, 100), name="wrong.prom")
    with pytest.raises(InputError, match="350 accepted of 300 drafted"):
        import_files([wrong], {})


SGLANG_METRICS = """# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{model_name="m",tp_rank="0"} 2.9
sglang:spec_num_steps{model_name="m",tp_rank="0"} 3
sglang:spec_num_draft_tokens{model_name="m",tp_rank="0"} 4
sglang:num_running_reqs{model_name="m",tp_rank="0"} 8
sglang:gen_throughput{model_name="m",tp_rank="0"} 812.4
sglang:decode_sum_seq_lens{model_name="m",tp_rank="0"} 9120
sglang:generation_tokens_total{model_name="m",tp_rank="0"} 2600
sglang:spec_verify_calls_total{model_name="m",tp_rank="0"} 1000
sglang:spec_accept_length{model_name="m",tp_rank="1"} 9.9"""


def test_sglang_metrics_tell_counters_and_the_last_interval_apart(tmp_path):
    found = import_files([written(tmp_path, SGLANG_METRICS, name="sglang.prom")], {})
    lifetime, now = found.rows
    assert (lifetime["accept_length"], lifetime["implied"], lifetime["num_draft_tokens"]) == (2.6, ["accept_length"], 4)
    assert (now["batch_size"], now["output_tok_s"], now["accept_length"], now["context_len"]) == (8, 812.4, 2.9, 1140)


def test_vllm_interval_in_which_nothing_was_accepted_counts_its_cycles(tmp_path):
    (row,) = import_files([written(tmp_path, spec(10, 1.0, 0, 300, "0.000, 0.000, 0.000"))], {}).rows
    assert (row["cycles"], row["accepted_drafts"], row["accept_histogram"]) == (100, 0, [100, 0, 0, 0])


def test_vllm_line_whose_positions_contradict_its_totals_is_shown(tmp_path):
    log = [spec(10, 2.5, 1500, 2000, "0.900, 0.600"), spec(20, 2.5, 1500, 2000, "0.900, 0.300")]
    found = import_files([written(tmp_path, *log)], {})
    assert found.rows[0]["cycles"] == 1000
    assert why(found) == {"SpecDecoding line that cannot be read": 1}
