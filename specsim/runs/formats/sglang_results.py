"""Results of SGLang's benchmarks: bench_speculative, bench_one_batch_server and bench_serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specsim.runs.formats.located import Client, Located, client_reading
from specsim.runs.formats.sglang_settings import settings_of
from specsim.runs.readings import LeftOut, Reading, rounded, whole


def is_bench_speculative(body: dict[str, Any]) -> bool:
    """Whether an object is a row of bench_speculative's output.jsonl."""
    return {"batch_size", "steps", "topk", "num_draft_tokens", "acc_length", "step_time"} <= body.keys()


def read_bench_speculative(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a row: step_time is the 20th percentile of the cycle in seconds; steps 0 is plain decode."""
    for row in rows:
        batch, step_s, length = row.whole("batch_size"), row.amount("step_time"), row.amount("acc_length")
        shape = [whole(row.body.get(name)) for name in ("steps", "topk", "num_draft_tokens")]
        if batch is None or step_s is None or None in shape:
            yield LeftOut("row without batch_size, step_time or configuration", 1, row.first, row.last)
            continue
        fields: dict[str, Any] = {"engine": "sglang", "instrument": "bench_speculative", "batch_size": batch}
        if tokens := row.amount("completion_tokens"):
            fields["output_len"] = max(1, round(tokens))
        if shape[0] == 0:
            fields |= {"method": "none", "decode_ms": rounded(step_s * 1000)}
        else:
            names = ("num_steps", "topk", "num_draft_tokens")
            fields |= {
                **dict(zip(names, shape, strict=True)),
                "cycle_ms": rounded(step_s * 1000),
                "accept_length": length,
            }
        yield Reading(fields, row.first, row.last)


def is_bench_one_batch(body: dict[str, Any]) -> bool:
    """Whether an object is a row of bench_one_batch_server."""
    return {"run_name", "batch_size", "latency", "output_throughput", "acc_length"} <= body.keys()


def read_bench_one_batch(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a row: tokens a second of the steady state where it was taken, else of decode; length −1 is none."""
    for row in rows:
        steady = row.amount("steady_state_output_throughput")
        speed, batch = steady or row.amount("output_throughput"), row.whole("batch_size")
        if speed is None or batch is None:
            yield LeftOut("row without batch_size or throughput", 1, row.first, row.last)
            continue
        fields: dict[str, Any] = {
            "engine": "sglang",
            "instrument": "bench_one_batch_server",
            "batch_size": batch,
            "output_tok_s": speed,
            "note": "steady state" if steady else "output tokens over the time after the prefill",
        }
        sizes = row.whole("input_len"), row.whole("output_len")
        if sizes[1]:
            fields["output_len"] = sizes[1]
        if sizes[0] and sizes[1]:
            fields["context_len"] = sizes[0] + sizes[1] // 2
        length = row.amount("acc_length")
        fields |= {"accept_length": length} if length is not None and length >= 1 else {"method": "none"}
        yield Reading(fields, row.first, row.last)


def is_bench_serving(body: dict[str, Any]) -> bool:
    """Whether an object is a row of bench_serving."""
    return {"backend", "output_throughput", "duration"} <= body.keys() and bool(
        body.keys() & {"accept_length", "server_info", "dataset_name"}
    )


def read_bench_serving(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a row, its configuration from the server_info inside; the length is the server's lifetime average."""
    for row in rows:
        info = row.body.get("server_info")
        settings = settings_of(info) if isinstance(info, dict) else {}
        length = row.amount("accept_length")
        drafts = (
            bool(length) if "accept_length" in row.body else (settings.get("method") != "none" if settings else None)
        )
        client = Client(
            row.whole("max_concurrency"), row.amount("mean_tpot_ms"), row.amount("output_throughput"), length, drafts
        )
        if client.tpot_ms is None and client.output_tok_s is None:
            yield LeftOut("row without mean_tpot_ms or output_throughput", 1, row.first, row.last)
            continue
        engine = {"engine": "sglang"} if settings or str(row.body["backend"]).startswith("sglang") else {}
        fields = {**engine, **settings, **_requests(row)}
        if length:
            lifetime = "accept length over the server's life, earlier requests included"
            fields |= {"accept_length": length, "note": lifetime}
        yield client_reading(row, fields, client)


def _requests(row: Located) -> dict[str, Any]:
    """How many prompts there were, and of what output length."""
    done, tokens = row.whole("completed"), row.whole("total_output_tokens")
    fields: dict[str, Any] = {"prompts": done} if done else {}
    return fields | ({"output_len": max(1, round(tokens / done))} if done and tokens else {})
