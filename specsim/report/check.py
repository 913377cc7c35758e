"""A check of a live server as a record, and the record as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from specsim.live.check import Checked
from specsim.live.requests import ended
from specsim.live.session import Found, Outcome, Plan, Row
from specsim.live.verdict import INCONCLUSIVE
from specsim.metrics import Latency, RequestRows
from specsim.quantities import LEVEL, SpecConfig
from specsim.report.evaluation import beyond_text
from specsim.report.records import Record
from specsim.report.tables import number, span, table, wrapped


def check_record(checked: Checked) -> Record:
    """The verdict at the top, every figure predicted and measured, what each server was, and what was left out."""
    plan, outcome = checked.plan, checked.outcome
    return {
        "verdict": outcome.verdict,
        "stopped": outcome.stopped,
        "seconds": outcome.seconds,
        "looks": outcome.looks,
        "client_lag_s": outcome.lag_s,
        "tolerance_pct": plan.tolerance_pct,
        "interval_level": LEVEL,
        "runs_file": str(plan.output),
        "nccl": plan.nccl,
        "concurrency": plan.concurrency,
        "output_len": plan.output_len,
        "prompts": len(plan.prompts),
        "rows": [_row(plan, outcome, row) for row in outcome.rows],
        "server": _server(outcome.found),
        "baseline": None if outcome.baseline is None else _server(outcome.baseline),
        "mixed_setup": bool(outcome.mixed),
        "mixed_fields": list(outcome.mixed),
        "noise_relative": plan.model.noise.relative,
        "noise_assumed": plan.model.noise.assumed,
        "findings": [{name: getattr(each, name) for name in _FINDING} for each in checked.findings],
        "remarks": list(checked.remarks),
        "notes": list(plan.model.notes),
    }


_FINDING = ("name", "evidence", "advice")


def _row(plan: Plan, outcome: Outcome, row: Row) -> Record:
    expected, seen, judged = row.expectation.expected, row.measured, row.judged
    factor = judged.factor if judged is not None else math.nan
    return {
        "figure": row.figure,
        "predicted": None if expected is None else expected.value,
        "predicted_interval": None if expected is None else [expected.low, expected.high],
        "measured": None if seen is None else seen.value,
        "measured_error": None if seen is None else seen.error,
        "difference_pct": None if judged is None else judged.difference_pct,
        "difference_interval_pct": None if judged is None else list(judged.interval_pct),
        "verdict": row.verdict or None,
        "why": row.why or (judged.why if judged is not None else ""),
        "seconds_needed": None if math.isnan(factor) else factor * outcome.seconds,
        "extrapolated_in": [beyond_text(plan.model, name, plan.nccl) for name in row.expectation.extrapolated_in],
    }


def _server(found: Found) -> Record:
    facts, window = found.side.facts, found.window
    return {
        "url": facts.url,
        "served_model": facts.served_model,
        "setup": asdict(facts.setup),
        **_shape(found.side.spec),
        "missing": [*facts.missing, *found.measured.missing, *filter(None, [found.lost])],
        "how": list(found.measured.how),
        "run": found.run.id,
        "requests": window.requests,
        "chunks": window.chunks,
        "tokens": window.tokens,
        "context_len": window.context_len,
        "steady_s": window.clear_s,
        "left_out": {"ramp_s": window.ramp_s, "between_s": window.between_s, "tail_s": window.tail_s},
        "most_running": window.most_running,
        "ended": _ended(ended(found.side.loader.streams())),
    }


def _ended(rows: RequestRows) -> Record:
    """Latencies of the requests that ended, in the words of a simulation's."""
    latencies = {name: Latency.of(getattr(rows, name)) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
    told = {
        name: {"mean": each.mean, **{f"p{p}": value for p, value in each.percentiles.items()}}
        for name, each in latencies.items()
    }
    return {"requests": rows.output_len.size, **told}


def _shape(spec: SpecConfig | None) -> Record:
    names = ("method", "num_steps", "topk", "num_draft_tokens")
    return {name: None if spec is None else getattr(spec, name) for name in names}


# -- text ----------------------------------------------------------------------------------------------------------------


def check_text(record: Record) -> str:
    """What was asked of which server, the comparison, the verdict and everything that qualifies it."""
    columns = (
        "figure", "predicted", f"new measurement ({record['interval_level']:.0%})", "measured", "error", "difference",
        "difference lies in", "verdict",
    )  # fmt: skip
    lines = [wrapped(_heading(record), ""), "", table(columns, map(_cells, record["rows"])), ""]
    lines += [_verdict(record), "", *(wrapped(f"* {line}", "  ") for line in _labels(record))]
    return "\n".join(lines)


_LATE_S = 0.1

_NAMES = {
    "cycle_ms": ("cycle [ms]", 2),
    "decode_ms": ("plain decode [ms]", 2),
    "baseline_decode_ms": ("baseline decode [ms]", 2),
    "accept_length": ("accept length", 3),
    "output_tok_s": ("output [tok/s]", 1),
    "cost_ratio": ("needs length C/t", 3),
    "margin": ("margin L − C/t", 3),
    "speedup": ("speed-up", 3),
}


def _heading(record: Record) -> str:
    server = record["server"]
    setup = server["setup"]
    engine = " ".join(filter(None, [setup["engine"], setup["engine_version"]])) or "an engine that does not say which"
    shape = (
        "plain decode"
        if server["num_draft_tokens"] is None
        else f"{server['method']}, {server['num_draft_tokens']} draft tokens, {server['num_steps']} steps, topk {server['topk']}"
    )
    load = f"{record['concurrency']} requests at once of {record['output_len']} tokens, {record['seconds']:.1f} s"
    return f"{server['url']}: {server['served_model']} on {engine}; {shape}; {load}"


def _cells(row: Record) -> tuple[str, ...]:
    name, digits = _NAMES[row["figure"]]
    judged = row["difference_interval_pct"]
    known = judged is not None and all(math.isfinite(end) for end in judged)
    return (
        name + (" ²" if row["extrapolated_in"] else ""),
        number(row["predicted"], digits),
        span(_finite(row["predicted_interval"]), digits),
        number(row["measured"], digits),
        "" if row["measured_error"] is None else f"± {number(row['measured_error'], digits)}",
        "" if judged is None else f"{row['difference_pct']:+.2f}%",
        f"{judged[0]:+.2f}% to {judged[1]:+.2f}%" if judged is not None and known else "",
        row["verdict"] or "not predicted",
    )


def _finite(ends: Sequence[float] | None) -> list[float | None] | None:
    return None if ends is None else [end if math.isfinite(end) else None for end in ends]


def _verdict(record: Record) -> str:
    said = f"{record['verdict']} (tolerance {record['tolerance_pct']:g}%, {record['looks']} looks)"
    return f"{said}: {record['stopped']}" if record["stopped"] else said


def _labels(record: Record) -> Iterator[str]:
    yield f"measured: {record['runs_file']}"
    for each in record["findings"]:
        yield f"FOUND: {each['name']}: {each['evidence']}; {each['advice']}"
    for row in record["rows"]:
        if row["why"] and row["verdict"] != "PASS":
            yield f"{_NAMES[row['figure']][0]}: {row['why']}{_needed(row)}"
    for where in dict.fromkeys(text for row in record["rows"] for text in row["extrapolated_in"]):
        names = [_NAMES[row["figure"]][0] for row in record["rows"] if where in row["extrapolated_in"]]
        yield f"² EXTRAPOLATED: {where} ({', '.join(names)})"
    if record["mixed_fields"]:
        yield f"MIXED, not like for like: {', '.join(record['mixed_fields'])}"
    if record["client_lag_s"] > _LATE_S:
        yield (
            f"the client itself was up to {record['client_lag_s']:.2f} s late: it was short of processor time, and so are"
            " the times that it took; run it where a core is free, or ask for fewer streams"
        )
    for server in filter(None, [record["server"], record["baseline"]]):
        yield from _of_server(server)
    yield (
        "predicted intervals are those of a new measurement, with the model's noise of"
        f" {record['noise_relative']:.2%}{', assumed' if record['noise_assumed'] else ''}; those of lengths, C/t, margin"
        " and speed-up of the expected value"
    )
    yield from record["remarks"]
    yield from record["notes"]


def _needed(row: Record) -> str:
    needed = row["seconds_needed"]
    if row["verdict"] != INCONCLUSIVE or needed is None or not math.isfinite(needed):
        return ""
    return f"; about {needed:.0f} s would (--seconds)"


def _of_server(server: Record) -> Iterator[str]:
    left = server["left_out"]
    context = "" if server["context_len"] is None else f", mean context {server['context_len']:.0f}"
    yield (
        f"{server['url']}: steady part {server['steady_s']:.1f} s of {server['chunks']} chunks, {server['tokens']:.0f} tokens"
        f" and {server['requests']} requests{context}; left out: warm-up, ramp {left['ramp_s']:.1f} s, prefills and changes of"
        f" requests {left['between_s']:.1f} s, tail {left['tail_s']:.1f} s"
    )
    if server["ended"]["requests"]:
        yield f"{server['url']}: {_latencies(server['ended'])}"
    yield from (f"{server['url']}: {line}" for line in server["how"])
    yield from (f"{server['url']}, not known: {line}" for line in server["missing"])


def _latencies(ended: Record) -> str:
    told = ", ".join(
        f"{name} {number(each['mean'], digits)} ms (p99 {number(each['p99'], digits)})"
        for name, each, digits in (
            ("TTFT", ended["ttft_ms"], 0),
            ("TPOT", ended["tpot_ms"], 2),
            ("E2E", ended["e2e_ms"], 0),
        )
    )
    return f"{ended['requests']} requests ended, on average {told}"
