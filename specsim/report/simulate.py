"""Simulated serving as a record, as text, and as CSV: latencies by load, with and without speculation, and the crossover."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

import numpy as np

from specsim.acceptance import AcceptanceLaw
from specsim.metrics import PERCENTILES, RequestRows, steady_window
from specsim.quantities import LEVEL, FloatArray
from specsim.report.records import Record
from specsim.report.tables import number, span, table, wrapped
from specsim.simulation.scenarios import Crossover, Replicas, Scenario, capacity
from specsim.simulation.serving import Server
from specsim.simulation.study import Question, ServingStudy
from specsim.simulation.summary import Summary, saturated

WARM_UP = (
    "warm-up left out by MSER-5 on end-to-end times; requests that arrived no earlier than the oldest in flight at the last"
    " arrival are left out too"
)
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


# -- the record ------------------------------------------------------------------------------------------------------


def simulation_record(done: ServingStudy) -> Record:
    """A simulation: where speculation stops paying at the top, then under `rows` each policy under each load."""
    axis, values = done.axis
    crossings = {str(server.policy): done.crossover(at) for at, server in enumerate(done.found.servers)}
    first = next((each for each in crossings.values() if each is not None), None)
    return {
        "crossover_request_rate": None if first is None else first.request_rate,
        "crossover_interval": None if first is None or first.interval is None else list(first.interval),
        "crossovers": {
            name: None if each is None else _crossover_record(each, values) for name, each in crossings.items()
        },
        "added_rates": list(done.added_rates),
        "no_baseline": done.no_baseline,
        "nccl": done.nccl,
        "axis": axis,
        "prompt_len": done.question.prompt_len,
        "output_len": done.question.output_len,
        "between_prompts": done.question.between_prompts,
        "replicas": done.replicas,
        "seed": done.seed,
        "interval_level": LEVEL,
        "intervals_hold_model_error": False,
        "law": _law_record(done.question.drawn_law),
        "slo": None if done.slo is None else asdict(done.slo),
        "servers": [_server_record(server, done.question) for server in done.found.servers],
        "rows": [
            _row(done, server, load, float(value))
            for server in range(len(done.found.servers))
            for load, value in enumerate(values)
        ],
        "warm_up_rule": WARM_UP,
        "setup": asdict(done.model.setup),
        "mixed_setup": bool(done.model.mixed),
        "mixed_fields": list(done.model.mixed),
        "notes": [*done.notes, *done.model.notes],
    }


def _crossover_record(crossing: Crossover, rates: FloatArray) -> Record:
    return {
        "request_rate": crossing.request_rate,
        "interval": None if crossing.interval is None else list(crossing.interval),
        "pays_at_lowest": crossing.ahead,
        "pays_until": crossing.pays_until,
        "behind_from": crossing.behind_from,
        "e2e_ratio": [
            {"request_rate": float(rate), "ratio": each.mean, "interval": [each.low, each.high]}
            for rate, each in zip(rates, crossing.ratios, strict=True)
        ],
    }


def _law_record(law: AcceptanceLaw) -> Record:
    parameters: Record = asdict(law) if is_dataclass(law) else {}
    return {"name": type(law).__name__, **parameters}


def _server_record(server: Server, question: Question) -> Record:
    return {
        "policy": str(server.policy),
        "capacity_request_rate": capacity(server, question.prompt_len, question.output_len),
        "max_batch_size": server.max_batch_size,
        "max_batched_tokens": server.max_batched_tokens,
        "chunked_prefill": server.chunked_prefill,
        "kv_tokens": server.kv_tokens,
        "prefill_ms_per_1000_tokens": 1000.0 * server.prefill.ms_per_token,
        "prefill_assumed": bool(server.prefill.assumed),
    }


def _row(done: ServingStudy, server: int, load: int, value: float) -> Record:
    """One server under one load: means over the replicas, each with its interval."""
    summaries = done.found.summaries[server][load]
    axis = done.axis[0]
    return {
        "policy": str(done.found.servers[server].policy),
        **({} if axis == "trace" else {axis: int(value) if axis == "concurrency" else value}),
        **{name: _latency(summaries, name) for name in LATENCIES},
        **{name: _figure([getattr(s, name) for s in summaries]) for name in _MEANS},
        "goodput": None if done.slo is None else _figure([s.goodput or 0.0 for s in summaries]),
        "batch_share": np.mean([s.batch_share for s in summaries], axis=0).round(6).tolist(),
        "accept_histogram": np.sum([s.accept_histogram for s in summaries], axis=0).tolist(),
        "saturated": saturated(summaries),
        "preemptions": sum(s.preemptions for s in summaries),
        "extrapolated_share": float(np.mean([s.extrapolated_share for s in summaries])),
        "requests": sum(s.requests for s in summaries),
        "warm_up": sum(s.warm_up for s in summaries),
        "cool_down": sum(s.cool_down for s in summaries),
    }


_MEANS = ("output_tok_s", "mean_batch_size", "accept_length", "in_flight", "littles_law", "backlog_growth")


def _latency(summaries: tuple[Summary, ...], name: str) -> Record:
    latencies = [getattr(summary, name) for summary in summaries]
    percentiles = {f"p{p}": _figure([each.percentiles[p] for each in latencies]) for p in PERCENTILES}
    return {"mean": _figure([each.mean for each in latencies]), **percentiles}


def _figure(values: list[float]) -> Record:
    told = Replicas.of(np.array(values))
    return {"value": told.mean, "interval": [told.low, told.high] if len(values) > 1 else None}


# -- as text ---------------------------------------------------------------------------------------------------------

_AXES = {"request_rate": "requests/s", "concurrency": "concurrency"}


def simulation_text(record: Record) -> str:
    """The table by policy and load, where speculation stops paying, and everything that qualifies it."""
    slo = record["slo"] is not None
    axis = [_AXES[record["axis"]]] if record["axis"] in _AXES else []
    columns = (
        "policy", *axis, "TTFT ms", "p99", "TPOT ms", "p99", "E2E ms", f"({LEVEL:.0%})", "p99", "tok/s",
        *(["goodput/s"] if slo else []), "batch", "accept length",
    )  # fmt: skip
    named = [f"{name}{' ' * columns[:at].count(name)}" for at, name in enumerate(columns)]  # names must be distinct
    drawn = table(named, [_cells(record, row, slo) for row in record["rows"]])
    said = [wrapped(line, "") for line in _crossings(record)]
    words = [*_footnotes(record), "", *said, *([""] if said else [])]
    return "\n".join([drawn, *words, *(wrapped(f"* {line}", "  ") for line in _notes(record))])


def _cells(record: Record, row: Record, slo: bool) -> tuple[str, ...]:
    load = [] if record["axis"] not in _AXES else [_load(row[record["axis"]])]
    mark = ("¹" if row["extrapolated_share"] > 0 else "") + ("²" if row["saturated"] else "")
    e2e = row["e2e_ms"]["mean"]
    return (
        row["policy"], *load,
        *(number(row[name][at]["value"], 2 if name == "tpot_ms" else 0)
          for name in ("ttft_ms", "tpot_ms") for at in ("mean", "p99")),
        f"{number(e2e['value'], 0)}{' ' + mark if mark else ''}", span(e2e["interval"], 0).strip("()") or "–",
        number(row["e2e_ms"]["p99"]["value"], 0), number(row["output_tok_s"]["value"], 0),
        *([number(row["goodput"]["value"], 2)] if slo else []),
        number(row["mean_batch_size"]["value"], 1), number(row["accept_length"]["value"], 2),
    )  # fmt: skip


def _load(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _footnotes(record: Record) -> Iterator[str]:
    rows = record["rows"]
    if any(row["extrapolated_share"] > 0 for row in rows):
        most = max(row["extrapolated_share"] for row in rows)
        yield f"¹ EXTRAPOLATED: up to {most:.0%} of decoding time lies outside what was measured"
    if any(row["saturated"] for row in rows):
        yield "² SATURATED: the queue grows as long as requests come, so that latencies depend on how many did"
    full = sum(row["preemptions"] for row in rows)
    if full:
        yield f"  the KV cache was full: {full:,} times a request made way and was prefilled again"


def _crossings(record: Record) -> Iterator[str]:
    if record["no_baseline"]:
        yield f"No comparison with plain decode: {record['no_baseline']}"
    for policy, crossing in record["crossovers"].items():
        if crossing is None:
            continue
        rates = [each["request_rate"] for each in crossing["e2e_ratio"]]
        yield f"Speculation ({policy}) {_pays(crossing, rates[0], rates[-1])}."
    if any(record["crossovers"].values()):
        yield "That is at the cost model's best estimate; how sure it is of a speed-up, 'specsim break-even' says."


def _pays(crossing: Record, lowest: float, highest: float) -> str:
    """Up to which rate it pays, by what the replicas can tell."""
    if crossing["request_rate"] is not None:
        rate = f"{crossing['request_rate']:.3g} requests a second{_between(crossing['interval'])}"
        return f"stops paying at {rate}, by mean end-to-end time"
    until, since = crossing["pays_until"], crossing["behind_from"]
    if until == highest:
        return f"pays up to {highest:.3g} requests a second, the highest rate asked"
    if crossing["pays_at_lowest"] is False:
        return f"does not pay at {lowest:.3g} requests a second, the lowest rate asked"
    if until is not None:
        return (
            f"is behind plain decode at no rate up to {highest:.3g} requests a second by more than the replicas' scatter;"
            f" above {until:.3g} its gain cannot be told from none"
        )
    rest = "" if since is None else f"; from {since:.3g} on it does not"
    return f"cannot be told to pay, or not to, at {lowest:.3g} requests a second: the replicas scatter by more{rest}"


def _between(interval: list[float | None] | None) -> str:
    if interval is None:
        return " (one replica: no interval)"
    low, high = ("beyond the rates asked" if end is None else f"{end:.3g}" for end in interval)
    return f" ({low} to {high})"


def _notes(record: Record) -> Iterator[str]:
    by_batch = "; N+: from a batch of N on" if any("+:" in server["policy"] for server in record["servers"]) else ""
    yield f"a policy is named by its steps/topk/draft tokens{by_batch}"
    count = record["replicas"]
    replicas = (
        "1 replica, without intervals" if count == 1 else f"{count:,} replicas, intervals at {LEVEL:.0%} over them"
    )
    yield f"{replicas}; {record['warm_up_rule']}"
    if record["added_rates"]:
        added = ", ".join(f"{rate:.3g}" for rate in sorted(record["added_rates"]))
        yield f"not asked for, but simulated to place where speculation stops paying: {added} requests a second"
    for server in record["servers"]:
        yield f"{server['policy']}: at most about {server['capacity_request_rate']:.3g} requests a second"
    limit = record["servers"][0]
    kv = "never full" if limit["kv_tokens"] is None else f"{limit['kv_tokens']:,} tokens"
    yield (
        f"a batch of at most {limit['max_batch_size']:,}, {limit['max_batched_tokens']:,} tokens a step, prefill"
        f" {'chunked' if limit['chunked_prefill'] else 'of whole prompts'}, KV cache {kv}"
    )
    yield from record["notes"]


# -- every request -----------------------------------------------------------------------------------------------------


def write_rows(done: ServingStudy, path: Path, progress: Callable[[int, int], None]) -> int:
    """Every simulated request as CSV, and how many: the runs again, which the same seed gives again."""
    axis, values = done.axis
    written, runs = 0, len(done.found.servers) * len(done.found.loads) * done.replicas
    finished = 0
    names = [field.name for field in fields(RequestRows)]
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file)
        out.writerow(["policy", axis, "replica", *names, "ttft_ms", "tpot_ms", "e2e_ms", "steady"])
        for server in done.found.servers:
            for load, value in zip(done.found.loads, values.tolist(), strict=True):
                for replica in range(done.replicas):
                    rows = Scenario(server, load, done.seed, replica).run().rows
                    out.writerows([str(server.policy), value, replica, *line] for line in _lines(rows, names))
                    written += rows.output_len.size
                    finished += 1
                    progress(finished, runs)
    return written


def _lines(rows: RequestRows, names: list[str]) -> Iterator[tuple[object, ...]]:
    columns = [getattr(rows, name) for name in (*names, "ttft_ms", "tpot_ms", "e2e_ms")]
    rounded = [np.round(column, 3).tolist() for column in columns]
    for line in zip(*rounded, steady_window(rows).steady.tolist(), strict=True):
        yield tuple("" if isinstance(value, float) and math.isnan(value) else value for value in line)
