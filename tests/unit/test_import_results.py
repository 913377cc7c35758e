"""Results of benchmarks and requests (tests/unit/data, and the documented shapes), with figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specsim.errors import InputError
from specsim.runs.importing import import_files

DATA = Path(__file__).parent / "data"


def imported(*names: str, **stated: str):
    return import_files([DATA / name for name in names], stated)


def of_json(tmp_path, *bodies: object, **stated: str):
    """Import objects as JSONL, or one object as JSON over several lines."""
    path = tmp_path / "result.json"
    lines = [json.dumps(body) for body in bodies]
    path.write_text(json.dumps(bodies[0], indent=2) if len(bodies) == 1 else "\n".join(lines), encoding="utf-8")
    return import_files([path], stated)


def has(row, **fields) -> bool:
    return {name: row.get(name) for name in fields} == fields


# -- llama.cpp --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cycles", "accepted", "proposed", "cycle_ms"),
    [
        # cycles = predicted_n − 1 − draft_n_accepted; predicted_ms covers all tokens but the first
        ("llamacpp_native_completion.json", 9, 14, 24, 205.692 / 9),
        ("llamacpp_server_timings.json", 134, 65, 347, 11082.606 / 134),
        ("llamacpp_stream_sse.txt", 8, 15, 19, 177.25 / 8),
        ("llamacpp_server_eval_with_acceptance.log", 407, 1376, 2433, 134418.90 / 407),
    ],
)
def test_llama_cpp_requests_count_cycles(name, cycles, accepted, proposed, cycle_ms):
    found = imported(name, num_draft_tokens="17")
    (row,), (run,) = found.rows, found.runs
    assert has(row, cycles=cycles, accepted_drafts=accepted, proposed_drafts=proposed, engine="llama.cpp")
    assert row["cycle_ms"] == pytest.approx(cycle_ms, rel=1e-6)
    assert run.figures["accept_length"].best == pytest.approx(1 + accepted / cycles)
    assert run.figures["cycle_ms"].implied


def test_llama_cpp_requests_without_drafts_are_steps_and_unequal_ones_are_not_fitted():
    (row,) = imported("llamacpp_server_repeat_cached.log").rows
    assert row["decode_ms"] == pytest.approx([9432.51 / 439, 2626.82 / 439, 2629.31 / 439], rel=1e-6)
    assert "differ 3.6-fold" in row["exclude"]


def test_llama_cpp_newer_log_lines_of_two_slots(tmp_path):
    log = [
        "slot print_timing: id  0 | task 7 | prompt eval time =     100.00 ms /    10 tokens ( 10.00 ms per token, 100.00 tokens per second)",
        "slot print_timing: id  0 | task 7 |        eval time =    1190.00 ms /   120 tokens ( 10.00 ms per token,  100.00 tokens per second)",
        "slot print_timing: id  1 | task 8 |        eval time =     990.00 ms /   100 tokens ( 10.00 ms per token,  100.00 tokens per second)",
        "slot print_timing: id  0 | task 7 | draft acceptance = 0.61250 (   49 accepted /    80 generated), mean len =  1.70",
        "slot print_timing: id  2 | task 9 | draft acceptance = 0.61250 (   49 accepted /    80 generated), mean len =  2.53",
        "statistics draft-mtp: #calls(b,g,a) = 1 20 19, #gen drafts = 19, #acc drafts = 15, #gen tokens = 55, #acc tokens = 31, dur(b,g,a) = 0.006, 400.000, 0.110 ms",
        "statistics draft-mtp: #calls(b,g,a) = 1 40 38, #gen drafts = 38, #acc drafts = 30, #gen tokens = 110, #acc tokens = 62, #mean acc len = 2.63, dur(b,g,a) = 0.006, 812.400, 0.210 ms",
        "llama_print_timings:        eval time = 27360.44 ms /   214 runs   (  127.85 ms per token,     7.82 tokens per second)",
    ]
    path = tmp_path / "llama.log"
    path.write_text("\n".join(log), encoding="utf-8")
    found = import_files([path], {"num_draft_tokens": "4"})
    drafted, steps, drafting = found.rows
    assert has(drafted, cycles=70, accepted_drafts=49, cycle_ms=17.0)  # 120 − 1 − 49; 1190/70
    assert drafted["source"].endswith("lines 2–4")
    assert has(drafting, method="mtp", draft_ms=20.31)  # 812.4/40, the last line
    reasons = {each.left_out.why: each.left_out.count for each in found.left_out}
    assert reasons["draft acceptance line without its eval line"] == 1
    assert has(steps, method="none", num_draft_tokens=None)  # what is stated of drafts is not said of it
    assert steps["decode_ms"] == pytest.approx([990 / 99, 27360.44 / 214], rel=1e-6)


@pytest.mark.parametrize(
    ("line", "drafter", "draft_ms"),
    [
        ("statistics draft: #calls = 40, #gen drafts = 38, #acc drafts = 30, #gen tokens = 110, #acc tokens = 62, dur = 812.400 ms", "draft", 20.31),
        ("statistics ngram_mod: #calls = 810, #gen drafts = 15, #acc drafts = 15, #gen tokens = 960, #acc tokens = 730, dur(b,g,a) = 0.149, 8.100, 0.005 ms", "ngram-mod", 0.01),
    ],
)  # fmt: skip
def test_older_statistics_of_llama_cpp_drafters(tmp_path, line, drafter, draft_ms):
    path = tmp_path / "llama.log"
    path.write_text(f"{line}\nstatistics draft: #calls = 10, #gen drafts = 10, #acc drafts = 10\n", encoding="utf-8")
    found = import_files([path], {"num_draft_tokens": "17"})
    (row,) = found.rows
    assert row["draft_ms"] == draft_ms  # 812.4/40, 8.1/810
    assert row["note"].startswith(drafter)
    reasons = {each.left_out.why: each.left_out.count for each in found.left_out}
    assert reasons == {"statistics line without calls and durations of drafting": 1}


def test_llama_speculative_of_2023():
    (row,) = imported("llamacpp_speculative_cli_2023.txt").rows
    assert has(
        row, cycles=81, accepted_drafts=47, proposed_drafts=132, num_draft_tokens=9, output_tok_s=0.519, batch_size=1
    )


def test_table_of_llama_cpp_requests():
    found = imported("llamacpp_mtp_bench_nmax4.txt", num_draft_tokens="5", batch_size="1")
    counts = [(row["cycles"], row["accepted_drafts"], row["proposed_drafts"]) for row in found.rows]
    assert counts == [(45, 146, 180), (55, 136, 216), (57, 134, 224), (13, 39, 52),
                      (50, 141, 196), (8, 13, 32), (67, 124, 264), (48, 143, 192)]  # fmt: skip
    assert [row["output_tok_s"] for row in found.rows] == [31.3, 22.7, 22.3, 33.3, 29.2, 19.4, 20.7, 30.7]
    assert [row["note"] for row in found.rows][:2] == ["code_python", "code_cpp"]


def test_a_recorded_vllm_stream_tells_a_length_only_as_far_as_chunks_are_cycles():
    (row,) = imported("vllm_eagle3_stream_sse.txt").rows
    assert row["accept_length"] == pytest.approx(23 / 7, rel=1e-6)  # 24 tokens in 8 chunks, the first the prefill's
    assert has(row, engine="vllm", engine_version="0.32.0", implied=["accept_length"])
    assert "does not tell whether the server drafted" in row["exclude"]


# -- printed tables ---------------------------------------------------------------------------------------------------


def test_printed_vllm_benchmark_with_one_request_in_flight():
    (row,) = imported("vllm_bench_serve_spec_section_c1.txt").rows
    assert has(row, engine="vllm", batch_size=1, cycle_ms=8.23, output_tok_s=371.88, accept_rate=0.3116)
    assert has(row, prompts=60, output_len=300)
    assert "does not say how many tokens" in row["exclude"]
    (stated,) = imported("vllm_bench_serve_spec_section_c1.txt", num_draft_tokens="9").runs
    assert not stated.excluded


def test_printed_vllm_counters_go_before_the_printed_length(tmp_path):
    """As vLLM 0.14 and later print them: 1 + 1600/1000 = 2.6, where the rounded line says another length."""
    path = tmp_path / "bench.txt"
    path.write_text(
        "============ Serving Benchmark Result ============\nSuccessful requests:                     60\n"
        "Failed requests:                         0\nMaximum request concurrency:             1\n"
        "Mean TPOT (ms):                          2.50\nMean ITL (ms):                           6.40\n"
        "---------------Speculative Decoding---------------\nAcceptance rate (%):                     53.33\n"
        "Acceptance length:                       2.70\nDrafts:                                  1000\n"
        "Draft tokens:                            3000\nAccepted tokens:                         1600\n"
        "Per-position acceptance (%):\n  Position 0:                            80.00\n"
        "  Position 1:                            50.00\n  Position 2:                            30.00\n",
        encoding="utf-8",
    )
    (row,) = import_files([path], {}).rows
    assert has(row, cycles=1000, accepted_drafts=1600, proposed_drafts=3000, num_draft_tokens=4, accept_length=None)
    assert row["accept_histogram"] == [200, 300, 200, 300]  # 1000 − 800, 800 − 500, 500 − 300, 300
    assert has(row, cycle_ms=6.5, implied=["cycle_ms"])  # 2.5·2.6


def test_printed_sglang_benchmark_tells_neither_drafts_nor_batch():
    name = "sglang_bench_serving_dflash_conc10.txt"
    (row,), (run,) = imported(name).rows, imported(name).runs
    assert "output_tok_s" not in row
    assert "does not tell whether the server drafted" in run.excluded
    assert "10 requests in flight" in row["note"]
    (plain,) = imported(name, method="none", batch_size="10").runs
    assert (plain.excluded, plain.speculative, plain.figures["output_tok_s"].best) == ("", False, 68.67)
    (drafted,) = imported(name, method="dflash", num_draft_tokens="8", batch_size="10", accept_length="3").runs
    assert (drafted.excluded, drafted.speculative) == ("", True)


def test_printed_task_summary():
    (row,) = imported("sglang_humaneval_summary.txt", batch_size="8", num_draft_tokens="4").rows
    assert has(row, output_tok_s=1103.382, accept_length=1.0, batch_size=8)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_markdown_tables_by_batch_and_by_configuration():
    found = imported("specforge339_sweep.md")
    plain, drafted = found.rows[:6], found.rows[6:]
    assert [(row["batch_size"], row["output_tok_s"]) for row in plain] == [
        (1, 222.47), (4, 566.21), (8, 733.61), (16, 1012.96), (32, 1077.55), (64, 1073.69)]  # fmt: skip
    assert all(row["method"] == "none" for row in plain)
    assert has(
        drafted[1], batch_size=1, num_steps=3, topk=3, num_draft_tokens=8, output_tok_s=172.99, accept_length=2.2
    )
    assert has(
        drafted[5], batch_size=1, num_steps=8, topk=8, num_draft_tokens=60, output_tok_s=177.5, accept_length=3.2
    )
    assert drafted[0]["source"] == "specforge339_sweep.md, line 12"
    assert len(drafted) == 8


def test_specforge_csv():
    found = imported("specforge_bench_eagle3_sweep.csv")
    assert len(found.rows) == 13
    assert has(found.rows[0], tensor_parallel=4, batch_size=1, output_tok_s=218.89, method="none", accept_length=None)
    shape = {"num_steps": 7, "topk": 10, "num_draft_tokens": 64}
    assert has(found.rows[8], batch_size=1, output_tok_s=193.31, accept_length=3.034, **shape)
    assert [run.speculative for run in found.runs] == [False] * 5 + [True] * 8


def test_grid_of_configurations_by_batch_size():
    found = imported("autospec_static_table.md")
    assert len(found.rows) == 42
    assert has(found.rows[0], num_steps=1, topk=1, num_draft_tokens=2, batch_size=1, output_tok_s=162.0)
    assert has(found.rows[-1], num_steps=6, topk=1, num_draft_tokens=7, batch_size=64, output_tok_s=3054.0)
    assert any("42 runs whose throughput tells no cycle" in line for line in found.missing)


def test_lengths_and_times_by_number_of_drafts():
    found = imported("vllm20780_al_tpot.csv")
    plain, first, second = found.rows[:3]
    assert has(first, drafter="eagle1", num_draft_tokens=3, accept_length=2.1)
    assert first["cycle_ms"] == pytest.approx(2.1 * 4.37)
    assert has(second, drafter="eagle3", num_draft_tokens=3, accept_length=2.36)
    assert second["cycle_ms"] == pytest.approx(2.36 * 4.32)
    assert has(plain, method="none", decode_ms=7.07, source="vllm20780_al_tpot.csv, lines 2–7")  # measured once
    assert len(found.rows) == 13


def test_plain_times_that_differ_by_row_are_measurements_each(tmp_path):
    path = tmp_path / "by_k.csv"
    path.write_text("K,al_eagle,tpot_vanilla_ms,tpot_eagle_ms\n2,2.0,7.0,4.0\n3,2.5,7.2,4.0\n", encoding="utf-8")
    rows = import_files([path], {}).rows
    assert [row.get("decode_ms") for row in rows] == [None, 7.0, None, 7.2]


def test_golden_lengths_in_flow_and_in_block_style(tmp_path):
    found = imported("golden_al_qwen3.5.yaml")
    lengths = [(row["note"], row["num_draft_tokens"], row["accept_length"]) for row in found.rows]
    assert lengths[:2] == [("thinking_on", 2, 1.93), ("thinking_on", 3, 2.73)]
    assert lengths[8:10] == [("thinking_off", 2, 1.92), ("thinking_off", 3, 2.7)]
    assert lengths[-1] == ("thinking_off", 9, 4.71)
    assert {row["model"] for row in found.rows} == {"qwen3.5-397b-a17b-nvfp4"}
    path = tmp_path / "block.yaml"
    path.write_text(
        "# golden\nm3:\n  thinking_on:\n    1: 1.78\n    2: 2.38  # two drafts\n    x: 1\n", encoding="utf-8"
    )
    block = import_files([path], {})
    assert [(row["num_draft_tokens"], row["accept_length"]) for row in block.rows] == [(2, 1.78), (3, 2.38)]
    assert sum(each.left_out.count for each in block.left_out) == 1


def test_dspark_statistics_count_without_the_bonus():
    found = imported("ds4_dspark_stats.txt", num_draft_tokens="6")
    first, second = found.rows
    assert has(first, cycles=135, accepted_drafts=112, proposed_drafts=135)
    assert has(second, cycles=205, accept_length=2.41)  # 1.410 drafts a cycle, and the bonus
    assert sum(each.left_out.count for each in found.left_out) == 4


@pytest.mark.parametrize("name", ["nccl_tests_4rank_2026.txt", "nccl_tests_old_format_2080ti.txt"])
def test_all_reduce_tables_are_sent_to_their_command(name):
    with pytest.raises(
        InputError, match="all-reduce times of nccl-tests, which are no run: specsim comm FILE reads them"
    ):
        imported(name)


# -- JSON results, in their documented shapes -----------------------------------------------------------------------------


def test_bench_speculative(tmp_path):
    plain = {"batch_size": 4, "steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0, "step_time": 0.0125,
             "speed": 80.0, "completion_tokens": 512.0}  # fmt: skip
    drafted = {
        **plain,
        "steps": 3,
        "topk": 1,
        "num_draft_tokens": 4,
        "acc_length": 2.5,
        "step_time": 0.02,
        "speed": 125.0,
    }
    found = of_json(tmp_path, plain, drafted, {**drafted, "step_time": None})
    assert has(found.rows[0], batch_size=4, decode_ms=12.5, method="none", output_len=512)
    assert has(found.rows[1], num_steps=3, topk=1, num_draft_tokens=4, cycle_ms=20.0, accept_length=2.5)
    assert found.rows[1]["source"] == "result.json, line 2"
    assert [(each.left_out.count, each.left_out.first) for each in found.left_out] == [(1, 3)]


SERVER_INFO = {"model_path": "org/target", "version": "0.5.12", "tp_size": 8, "speculative_algorithm": "EAGLE3",
               "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}  # fmt: skip
SERVING = {"backend": "sglang", "dataset_name": "random", "duration": 60.0, "completed": 100, "total_output_tokens": 51200,
           "output_throughput": 640.0, "mean_tpot_ms": 6.0, "max_concurrency": 4}  # fmt: skip


def test_bench_serving_takes_its_configuration_from_the_server(tmp_path):
    row = {**SERVING, "accept_length": 2.5, "server_info": SERVER_INFO}
    waiting, stated = of_json(tmp_path, row), of_json(tmp_path, row, batch_size="4")
    setup = {"model": "org/target", "engine_version": "0.5.12", "tensor_parallel": 8, "method": "eagle3"}
    assert has(waiting.rows[0], num_steps=3, topk=1, num_draft_tokens=4, accept_length=2.5, prompts=100, **setup)
    assert "cycle_ms" not in waiting.rows[0]
    assert has(stated.rows[0], cycle_ms=15.0, output_tok_s=640.0, output_len=512, implied=["cycle_ms"])  # 6·2.5


def test_bench_serving_without_speculation_is_plain_decode(tmp_path):
    row = {
        **SERVING,
        "max_concurrency": 1,
        "accept_length": None,
        "server_info": {**SERVER_INFO, "speculative_algorithm": None},
    }
    (plain,) = of_json(tmp_path, row).rows
    assert has(plain, batch_size=1, decode_ms=6.0, method="none", num_draft_tokens=None)


def test_bench_one_batch_server(tmp_path):
    row = {"run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 256, "latency": 5.0, "output_throughput": 900.0,
           "overall_throughput": 4000.0, "last_gen_throughput": 950.0, "acc_length": 2.2, "last_ttft": 0.4}  # fmt: skip
    steady = {**row, "acc_length": -1, "steady_state_output_throughput": 1000.0}
    drafted, plain = (
        of_json(tmp_path, row, steady, num_draft_tokens="4").rows[0],
        of_json(tmp_path, row, steady).rows[1],
    )
    assert has(drafted, batch_size=16, output_tok_s=900.0, accept_length=2.2, context_len=1152, output_len=256)
    assert has(plain, output_tok_s=1000.0, method="none", accept_length=None)


VLLM_BENCH = {"date": "20261101-100000", "endpoint_type": "openai", "model_id": "org/target", "duration": 48.4, "completed": 60,
              "total_output_tokens": 18000, "output_throughput": 371.88, "mean_tpot_ms": 2.5, "max_concurrency": 1}  # fmt: skip


def test_vllm_bench_serve_counts(tmp_path):
    spec = {"spec_decode_num_drafts": 1000, "spec_decode_draft_tokens": 3000, "spec_decode_accepted_tokens": 1600,
            "spec_decode_acceptance_rate": 53.33, "spec_decode_acceptance_length": 2.6,
            "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.3]}  # fmt: skip
    (row,) = of_json(tmp_path, {**VLLM_BENCH, **spec}).rows
    assert has(
        row, engine="vllm", model="org/target", batch_size=1, num_draft_tokens=4, cycles=1000, accepted_drafts=1600
    )
    assert row["accept_histogram"] == [200, 300, 200, 300]
    assert has(row, cycle_ms=6.5, output_tok_s=371.88)  # 2.5·(1 + 1600/1000)


def test_vllm_bench_serve_without_draft_counters_does_not_count_as_plain(tmp_path):
    unsure, plain = of_json(tmp_path, VLLM_BENCH), of_json(tmp_path, VLLM_BENCH, method="none")
    assert "does not tell whether the server drafted" in unsure.rows[0]["exclude"]
    assert has(plain.rows[0], decode_ms=2.5, exclude=None)
    drafted = of_json(tmp_path, VLLM_BENCH, num_draft_tokens="4").rows[0]
    assert has(drafted, decode_ms=None, num_draft_tokens=4)  # its time per token is no plain step


def test_aiperf_pools_its_histogram_before_averages(tmp_path):
    export = {
        "schema_version": "1.4", "aiperf_version": "0.13.0", "input_config": {"loadgen": {"concurrency": 1}},
        "inter_token_latency": {"unit": "ms", "avg": 4.0}, "output_token_throughput": {"unit": "tokens/sec", "avg": 250.0},
        "spec_decode_acceptance_length": {"unit": "tokens", "avg": 2.9},
        "pooled_spec_decode_acceptance_histogram": {"0": 200, "1": 300, "3": 500},
    }  # fmt: skip
    (row,) = of_json(tmp_path, export, num_draft_tokens="4").rows
    assert has(row, accept_histogram=[200, 300, 0, 500], batch_size=1, output_tok_s=250.0)
    assert row["cycle_ms"] == pytest.approx(11.2)  # 4·(1 + (300 + 1500)/1000)
    del export["pooled_spec_decode_acceptance_histogram"]
    export["spec_decode_token_weighted_acceptance_length"] = 2.5
    assert of_json(tmp_path, export, num_draft_tokens="4").rows[0]["accept_length"] == 2.5


def test_specforge_results_and_benchmark(tmp_path):
    entry = {"batch_size": 4, "steps": 3, "topk": 1, "num_draft_tokens": 4, "num_samples": 80,
             "metrics": [{"latency": 9.0, "output_throughput": 450.0, "accept_length": 1.9},
                         {"latency": 9.1, "output_throughput": 446.0, "accept_length": 1.8}]}  # fmt: skip
    plain = {**entry, "steps": 0, "topk": 0, "num_draft_tokens": 0}
    found = of_json(tmp_path, {"model": "org/target", "mtbench": [entry, plain, {"steps": 1}]})
    assert has(found.rows[0], model="org/target", output_tok_s=[450.0, 446.0], accept_length=[1.9, 1.8], num_steps=3)
    assert has(found.rows[1], method="none", batch_size=4, accept_length=None)
    assert len(found.left_out) == 1
    total = {"backend": "sglang", "dataset": "gsm8k", "average_acceptance_length": 2.7, "samples": 10, "output_tokens": 2600,
             "latency_seconds": 13.0, "throughput_tokens_per_second": 200.0, "spec_verify_count": 1000}  # fmt: skip
    assert has(
        of_json(tmp_path, total, num_draft_tokens="4").rows[0],
        accept_length=2.6,
        implied=["accept_length"],
        cycles=1000,
    )


def test_step_tables_by_tokens_and_by_parts(tmp_path):
    by_tokens = {"sample_batch_tokens": [4, 8, 10], "sample_steps_per_sec": [100.0, 80.0, 75.0], "max_batch_tokens": 10}
    found = of_json(tmp_path, by_tokens, num_draft_tokens="4")
    assert [(row["batch_size"], row["cycle_ms"]) for row in found.rows] == [(1, 10.0), (2, 12.5)]
    assert [each.left_out.example for each in found.left_out] == ["10 tokens"]
    with pytest.raises(InputError, match="--set num_draft_tokens=N, or batch_size=N"):
        of_json(tmp_path, by_tokens)
    by_parts = {"bias_seconds": 0.004, "bs_probes": [1, 2], "alpha_seconds": [0.001, 0.002], "m_probes": [2, 4, 5],
                "theta_seconds": [0.003, 0.005, 0.006]}  # fmt: skip
    cells = [(row["batch_size"], row["num_draft_tokens"], row["cycle_ms"]) for row in of_json(tmp_path, by_parts).rows]
    assert cells == [(1, 2, 8.0), (1, 4, 10.0), (1, 5, 11.0), (2, 2, 11.0)]


def trt(
    iteration: int,
    context: int,
    requests: int,
    drafts: int,
    accepted: int,
    drafting: int,
    time_ms: float,
    rank: int = 0,
):
    return {"iter": iteration, "iterLatencyMS": time_ms, "attentionDpRank": rank,
            "inflightBatchingStats": {"numContextRequests": context, "numGenRequests": requests},
            "specDecodingStats": {"numDraftTokens": drafts, "numAcceptedTokens": accepted,
                                  "numRequestsWithDraftTokens": drafting}}  # fmt: skip


def test_tensorrt_llm_metrics_add_up_counts_before_lengths(tmp_path):
    path = tmp_path / "metrics.json"
    rows = [trt(1, 0, 8, 24, 12, 8, 20.0), trt(2, 0, 8, 24, 16, 8, 22.0), trt(3, 1, 8, 24, 8, 8, 90.0),
            trt(3, 0, 8, 24, 24, 8, 1.0, rank=1), trt(4, 0, 4, 9, 3, 3, 15.0)]  # fmt: skip
    path.write_text(json.dumps(rows), encoding="utf-8")
    counted, timed = import_files([path], {}).rows
    assert has(counted, num_draft_tokens=4, cycles=27, accepted_drafts=39, proposed_drafts=81)  # 8 + 8 + 8 + 3 requests
    assert has(timed, batch_size=8, num_draft_tokens=4, cycle_ms=[20.0, 22.0])
    assert sum(each.left_out.count for each in import_files([path], {}).left_out) == 3


def test_a_log_of_json_lines_is_read_as_a_log(tmp_path):
    decode = "Decode batch, #running-req: 2, #token: {}, token usage: 0.01, cuda graph: True, gen throughput (token/s): 100.0, #queue-req: 0"
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"level": "INFO", "msg": decode.format(tokens)}) for tokens in (100, 180, 260)]
    path.write_text("\n".join(lines), encoding="utf-8")
    (row,) = import_files([path], {}).rows
    assert has(row, batch_size=2, output_tok_s=[100.0, 100.0])


def test_broken_json_is_shown_not_lost(tmp_path):
    path = tmp_path / "output.jsonl"
    good = json.dumps(
        {"batch_size": 4, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 2.5, "step_time": 0.02}
    )
    path.write_text(f'{good}\n{{"batch_size": 4, "ste\n[1]\n{{"other": 1}}\n', encoding="utf-8")
    found = import_files([path], {})
    assert len(found.rows) == 1
    assert {(each.left_out.why, each.left_out.first) for each in found.left_out} == {
        ("line that is not JSON", 2),
        ("JSON that is no object", 3),
        ("object of no known kind of result", 4),
    }
