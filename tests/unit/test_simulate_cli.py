"""`specsim simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import csv as csv_module
import json
import math

import pytest

# Cycles of 5 + 0.2·B + 0.15·B·N and plain steps of 4 + 0.1·B: at batch 1, 5.8 ms for 2.53 tokens against 4.1 ms;
# at batch 64, 56.2 ms against 10.4, so that four tokens a cycle stop paying as the batch grows beyond 9.
BATCHES, WIDTHS = (1, 4, 16, 64), (2, 4)
LINES = [
    "id,model,batch_size,num_draft_tokens,method,accept_length,cycle_ms,decode_ms",
    *(
        f"c{b}x{n},m,{b},{n},eagle3,{ {2: 1.7, 4: 2.533}[n] },{5 + 0.2 * b + 0.15 * b * n},"
        for b in BATCHES
        for n in WIDTHS
    ),
    *(f"p{b},m,{b},,,,,{4 + 0.1 * b}" for b in BATCHES),
]
QUICK = (
    "--requests",
    400,
    "--replicas",
    3,
    "--prompt-len",
    20,
    "--output-len",
    "60-100",
    "--prefill-ms-per-1000-tokens",
    10,
)


@pytest.fixture
def runs(csv):
    return csv(*LINES)


def test_a_crossover_is_found_and_told_in_words_and_json(run_cli, runs):
    options = (runs, "--num-draft-tokens", 4, "--request-rate", "5,15,25,35", *QUICK)
    record = json.loads(run_cli("simulate", *options, "--json").output)
    rate, (low, high) = record["crossover_request_rate"], record["crossover_interval"]
    assert 15 < low < rate < high < 35
    first, last = record["rows"][0], record["rows"][-1]
    assert (first["policy"], first["request_rate"], last["policy"], last["request_rate"]) == (
        "3/1/4",
        5,
        "plain decode",
        35,
    )
    assert first["accept_length"]["value"] == pytest.approx(2.533, rel=0.02)
    assert last["accept_length"]["value"] is None
    assert sum(first["batch_share"]) == pytest.approx(1, abs=1e-4)
    assert record["servers"][0]["max_batch_size"] == 64
    assert not record["servers"][0]["prefill_assumed"]
    text = run_cli("simulate", *options).output
    assert f"Speculation (3/1/4) stops paying at {rate:.3g} requests a second ({low:.3g} to {high:.3g})" in " ".join(
        text.split()
    )


def test_a_tie_is_not_called_a_loss(run_cli, runs):
    """One at a time 5.8 ms against 4.1 break even at 1.415 tokens, 1 + a + a² + a³ at a = .299; a last cycle is cut."""
    options = ("simulate", runs, "--num-draft-tokens", 4, "--accept-rate", 0.305, "--max-batch-size", 1, *QUICK)
    record = json.loads(run_cli(*options, "--request-rate", "0.5,1", "--json").output)
    (told, _) = record["crossovers"].values()
    assert (told["pays_at_lowest"], told["pays_until"], told["behind_from"]) == (None, None, None)
    text = " ".join(run_cli(*options, "--request-rate", "0.5,1").output.split())
    assert "cannot be told to pay, or not to, at 0.5 requests a second: the replicas scatter by more." in text


def test_wide_gaps_between_rates_do_not_misplace_the_crossover(run_cli, runs):
    """By the same requests at rates 2% apart; a straight line from 5 to 35 a second would lie far below."""
    options = ("simulate", runs, "--num-draft-tokens", 4, *QUICK)
    wide = json.loads(run_cli(*options, "--request-rate", "5,35", "--json").output)
    near = ",".join([*(f"{16 + 0.5 * at:g}" for at in range(21)), "35"])
    close = json.loads(run_cli(*options, "--request-rate", near, "--json").output)
    assert close["added_rates"] == []
    assert wide["crossover_request_rate"] == pytest.approx(close["crossover_request_rate"], rel=0.01)
    assert wide["crossover_interval"] == pytest.approx(close["crossover_interval"], rel=0.015)
    ratio = {row["request_rate"]: math.log(row["ratio"]) for row in wide["crossovers"]["3/1/4"]["e2e_ratio"]}
    straight = 5 + 30 * ratio[5] / (ratio[5] - ratio[35])
    assert straight < 0.8 * close["crossover_request_rate"]
    assert sorted(ratio) == sorted([5, 35, *wide["added_rates"]])
    around = [max(r for r in ratio if ratio[r] < 0), min(r for r in ratio if ratio[r] >= 0)]
    assert around[1] / around[0] <= 1.1
    assert "not asked for, but simulated" in run_cli(*options, "--request-rate", "5,35").output


def test_the_same_seed_prints_the_same(run_cli, runs):
    options = ("simulate", runs, "--num-draft-tokens", 4, "--request-rate", "20", *QUICK, "--json")
    assert run_cli(*options).output == run_cli(*options).output
    assert run_cli(*options).output != run_cli(*options, "--seed", 1).output


def test_a_policy_is_compared_with_itself_without_exceptions_and_with_plain_decode(run_cli, runs):
    options = (runs, "--num-draft-tokens", 4, "--off-above", 8, "--request-rate", "5,35", *QUICK)
    record = json.loads(run_cli("simulate", *options, "--json").output)
    assert [server["policy"] for server in record["servers"]] == [
        "3/1/4, 9+: plain decode",
        "3/1/4",
        "plain decode",
    ]
    busy = {row["policy"]: row["e2e_ms"]["mean"]["value"] for row in record["rows"] if row["request_rate"] == 35}
    assert busy["3/1/4, 9+: plain decode"] < 0.8 * busy["3/1/4"]
    table = json.loads(
        run_cli("simulate", runs, "--steps-by-batch", "1:3,9:0", "--request-rate", "5,35", *QUICK, "--json").output
    )
    assert table["rows"][0]["e2e_ms"] == record["rows"][0]["e2e_ms"]


def test_a_closed_loop_and_goodput(run_cli, runs):
    options = (runs, "--num-draft-tokens", 4, "--concurrency", "1,8", "--slo-tpot-ms", 3.5, *QUICK)
    record = json.loads(run_cli("simulate", *options, "--json").output)
    assert record["crossovers"] == {"3/1/4": None, "plain decode": None}
    by = {(row["policy"], row["concurrency"]): row for row in record["rows"]}
    assert by["plain decode", 1]["goodput"]["value"] == 0  # 4.1 ms a token
    assert by["3/1/4", 1]["goodput"]["value"] > 0  # 5.8 ms for 2.53 tokens
    assert by["plain decode", 8]["mean_batch_size"]["value"] == pytest.approx(8, abs=0.2)
    assert by["plain decode", 8]["tpot_ms"]["mean"]["value"] == pytest.approx(4.8, rel=0.02)
    assert "goodput/s" in run_cli("simulate", *options).output


def test_every_request_is_written(run_cli, runs, csv, tmp_path):
    trace = csv(
        "arrival_ms,prompt_len,output_len", *(f"{40 * i},20,{30 + i % 5}" for i in range(100)), name="trace.csv"
    )
    out = tmp_path / "rows.csv"
    result = run_cli("simulate", runs, "--num-draft-tokens", 4, "--trace", trace, "--replicas", 2, "-o", out)
    assert "400 requests written" in result.stderr
    with out.open(encoding="utf-8") as lines:
        rows = list(csv_module.DictReader(lines))
    assert len(rows) == 400  # 100 requests, 2 replicas, 2 servers
    for row in rows[:5]:
        assert float(row["e2e_ms"]) == pytest.approx(float(row["finish_ms"]) - float(row["arrival_ms"]), abs=2e-3)
    assert {row["policy"] for row in rows} == {"3/1/4", "plain decode"}


def test_one_replica_tells_no_interval(run_cli, runs):
    options = ("simulate", runs, "--num-draft-tokens", 4, "--concurrency", "2", *QUICK, "--replicas", 1)
    (first, _) = json.loads(run_cli(*options, "--json").output)["rows"]
    assert first["e2e_ms"]["mean"]["interval"] is None
    assert first["e2e_ms"]["mean"]["value"] > 0
    text = run_cli(*options).output
    assert "nan" not in text
    assert "1 replica, without intervals" in text


def test_a_lookups_table_says_drafts_not_steps(run_cli, csv):
    """Lookup drafters report one dummy step at any width: a table of three drafts is the width that was measured."""
    path = csv(*(line.replace("eagle3", "ngram") for line in LINES))
    options = ("simulate", path, "--steps-by-batch", "1:3,9:0", "--request-rate", "5", *QUICK, "--json")
    record = json.loads(run_cli(*options).output)
    assert record["servers"][0]["policy"] == "1/1/4, 9+: plain decode"
    assert record["rows"][0]["extrapolated_share"] == 0


def test_plots_are_drawn(run_cli, runs, tmp_path):
    options = ("--num-draft-tokens", 4, "--request-rate", "5,35", "--plots", tmp_path / "plots", *QUICK, "--json")
    record = json.loads(run_cli("simulate", runs, *options).stdout)
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == sorted(
        f"{name}.{form}" for name in ("accept_lengths", "benchmark", "latency_by_load") for form in ("png", "svg")
    )
    assert len(record["files"]) == 6
    svg = (tmp_path / "plots" / "latency_by_load.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--request-rate", "1", "--concurrency", "2"), "three kinds of load"),
        (("--request-rate", "0"), "not a list of numbers above 0"),
        (("--request-rate", "x"), "not a list of numbers above 0"),
        (("--num-draft-tokens", "4", "--request-rate", "1e-9"), "(three years) can be simulated"),
        (("--num-draft-tokens", "4", "--concurrency", "0"), "0 requests in flight are not possible with 4,000"),
        (("--num-draft-tokens", "4", "--concurrency", "8", "--requests", "7"), "not possible with 7 requests"),
        (("--num-draft-tokens", "4", "--output-len", "9~1e300"), "a spread above 0, 100.0 at most, not 9 ~ 1e+300"),
        (("--num-draft-tokens", "4", "--output-len", "1000000"), "4e+09 output tokens in one run are too many"),
        (("--num-draft-tokens", "4", "--trace", "t.csv", "--prompt-len", "9"), "leave --prompt-len out"),
        (("--steps-by-batch", "1-3"), "no table of batch size and steps"),
        (("--steps-by-batch", "2:3"), "start at 1"),
        (("--steps-by-batch", "1:3", "--off-above", "4"), "leave the other options of drafting out"),
        ((), "state --num-draft-tokens; measured (steps/topk/draft tokens): 1/1/2, 3/1/4"),
        (("--num-draft-tokens", "4", "--prompt-len", "many"), "'many' is no length"),
        (("--num-draft-tokens", "4", "--kv-tokens", "300"), "never fits into 300 tokens"),
        (("--num-draft-tokens", "4", "--max-batched-tokens", "64"), "leaves no prompt any room"),
        (("--num-draft-tokens", "4", "--slo-e2e-ms", "-1"), "above 0"),
        (("--num-draft-tokens", "4", "--nccl", "no"), "unknown NCCL setting"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(run_cli, runs, options, message):
    result = run_cli("simulate", runs, *options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_without_plain_decode_speculation_is_simulated_alone(run_cli, csv):
    path = csv(*(line for line in LINES if not line.startswith("p")))
    result = run_cli("simulate", path, "--num-draft-tokens", 4, "--max-batch-size", 8, "--request-rate", 5, *QUICK)
    assert result.exit_code == 0
    assert "No comparison with plain decode: no plain-decode baseline" in " ".join(result.output.split())


def test_what_the_times_rest_on_is_labelled(run_cli, runs):
    options = (
        "--num-draft-tokens",
        4,
        "--max-batch-size",
        128,
        "--request-rate",
        500,
        "--requests",
        400,
        "--replicas",
        2,
    )
    text = " ".join(run_cli("simulate", runs, *options).output.split())
    assert "¹ EXTRAPOLATED: up to" in text
    assert "² SATURATED: the queue grows as long as requests come" in text
    assert (
        "prefill was not measured: ASSUMED are 150 ms per 1,000 tokens, verify's slope from 128 to 256 tokens" in text
    )
    full = run_cli("simulate", runs, *options, "--kv-tokens", 3000, "--whole-prompts").output
    assert "the KV cache was full:" in full
    assert "KV cache 3,000 tokens" in " ".join(full.split())
