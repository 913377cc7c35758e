"""Records as text: a table, its labels under it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from specsim.report.records import Record


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows under a ruled header; numbers are text already, aligned to the right."""
    from prettytable import HRuleStyle, PrettyTable, VRuleStyle

    drawn = PrettyTable(list(columns), hrules=HRuleStyle.HEADER, vrules=VRuleStyle.NONE, border=True)
    drawn.horizontal_char, drawn.junction_char = "─", "─"
    drawn.left_padding_width, drawn.right_padding_width = 0, 1
    drawn.align = "r"
    for row in rows:
        drawn.add_row(list(row))
    for column in _TEXT_COLUMNS.intersection(columns):
        drawn.align[column] = "l"
    return "\n".join(line.rstrip() for line in drawn.get_string().splitlines())


WIDTH = 100
_TEXT_COLUMNS = {
    "NCCL",
    "coefficient",
    "from runs",
    "verdict",
    "setting",
    "benchmark",
    "policy",
    "baseline",
    "run",
    "phases",
    "figure",
    "figures",
}


def labels(record: Record) -> str:
    """Everything that qualifies a record, one paragraph each."""
    return "\n".join(wrapped(f"* {line}", "  ") for line in _labels(record))


def wrapped(paragraph: str, indent: str) -> str:
    """A paragraph at reading width, its later lines two columns further in."""
    return textwrap.fill(
        paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _labels(record: Record) -> Iterator[str]:
    rows = record.get("rows", [])
    yield from dict.fromkeys(_extrapolations(rows))
    yield from dict.fromkeys(_readings(row) for row in rows if row["verify_by_reading"])
    yield from dict.fromkeys(line for row in rows for line in _other_forms(row))
    exact = [r for row in rows if row.get("accept_length_error_known") is False for r in row["accept_length_runs"]]
    if exact:
        yield f"the accept length of {some(list(dict.fromkeys(exact)))} has no stated error and counts as exact"
    yield from dict.fromkeys(
        f"MIXED, not like for like: {_what(row)} differs in {', '.join(row['mixed_fields'])}"
        for row in rows
        if row["mixed_setup"]
    )
    yield from dict.fromkeys(f"no speed-up: {row['no_baseline']}" for row in rows if row.get("no_baseline"))
    yield from (f"NCCL {each['nccl']}: {each['why']}" for each in record.get("unanswered", []))
    yield from record["notes"]


def _extrapolations(rows: Iterable[Record]) -> Iterator[str]:
    for row in rows:
        if row["extrapolated"]:
            where = f"{row['num_draft_tokens']} draft tokens, batch {row['batch_size']}{_at_context(row)}"
            yield f"EXTRAPOLATED at {where}: {'; '.join(row['extrapolated_in'])}"


def _at_context(row: Record) -> str:
    return "" if row["context_len"] is None else f", context {row['context_len']}"


def _readings(row: Record) -> str:
    readings = sorted(row["verify_by_reading"].items(), key=lambda reading: float(reading[1]))
    listed = ", ".join(f"{time:.2f} ({name})" for name, time in readings)
    tokens = row["batch_size"] * row["num_draft_tokens"]
    return (
        f"NCCL {row['nccl']} at {tokens} tokens was not measured: verify reads as {listed} ms, the interval covers all"
    )


def _other_forms(row: Record) -> Iterator[str]:
    """What another form of the model says of a row, where that is more than 1% away."""
    for form, time in row["cycle_by_form"].items():
        if abs(time / row["cycle_ms"] - 1) > 0.01:
            where = f"{row['num_draft_tokens']} draft tokens, batch {row['batch_size']}, NCCL {row['nccl']}"
            yield f"at {where} the cycle would be {time:.2f} ms by {form}, which these runs cannot exclude"


def _what(row: Record) -> str:
    return f"the cycle at {row['num_draft_tokens']} draft tokens ({row['nccl']})"


# -- fit ------------------------------------------------------------------------------------------------------------


def fit_text(record: Record) -> str:
    """A fit's coefficients, what it leaves out, and its labels."""
    rows = [
        (
            c["name"] + _shape(c["parameters"]),
            c["nccl"] or "all",
            number(c["value"], 4) + ("" if c["identified"] else " ¹"),
            span(c["interval"], 4),
            span(c["bootstrap_interval"], 4),
            (some(c["runs"]) or "bare forwards, as they are") + (" (derived)" if c["implied"] else ""),
        )
        for c in record["coefficients"]
        if c["runs"] or c["name"].endswith("_bare_forwards")
    ]
    level = f"{record['interval_level']:.0%}"
    columns = ("coefficient", "NCCL", "value", f"{level} interval", f"{level} of resamples", "from runs")
    parts = [
        _without({columns[4]: not record["bootstrap"]}, columns, rows),
        *_sums(record),
        *_shares(record),
        *_left_out(record),
    ]
    return "\n".join([*parts, "", labels(record)])


def _shape(parameters: Sequence[float]) -> str:
    """Where a shape's term begins, or runs from and to."""
    return f" {' to '.join(f'{value:.4g}' for value in parameters)}" if parameters else ""


def _sums(record: Record) -> Iterator[str]:
    if any(c["runs"] and not c["identified"] for c in record["coefficients"]):
        yield "  ¹ at the one width or batch size measured: not split into fixed and per token"


def _shares(record: Record) -> Iterator[str]:
    shares = some([f"{s['share']:.1%} at {s['verify_tokens']:g} tokens" for s in record["verify_fixed_share"]])
    if shares:
        yield f"fixed share of verify: {shares}"


def _left_out(record: Record) -> Iterator[str]:
    for run in record["left_out"]:
        beside = ", ".join(
            f"{name[:-3]} {value:g} ms against {run['fitted'][name]:.2f} fitted"
            for name, value in run["measured"].items()
            if name in run["fitted"]
        )
        yield wrapped(f"not fitted: {run['id']} ({run['why']})" + (f": {beside}" if beside else ""), "")


# -- predict ----------------------------------------------------------------------------------------------------------


def predict_text(record: Record) -> str:
    """Predictions, one line a case, with their phases."""
    columns = (
        "NCCL", "draft tokens", "steps", "topk", "batch", "context", "accept length", "verify", "draft", "extend",
        "other", "cycle [ms]", "tok/s", "per user", "plain tok/s", "speed-up",
    )  # fmt: skip
    idle = {"context": all(row["context_len"] is None for row in record["rows"])}
    return "\n".join([_without(idle, columns, map(_predict_cells, record["rows"])), "", labels(record)])


def _without(idle: dict[str, bool], columns: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    """A table without the columns that say nothing new."""
    kept = [index for index, name in enumerate(columns) if not idle.get(name, False)]
    return table([columns[i] for i in kept], [[row[i] for i in kept] for row in cells])


_COUNTS = ("num_draft_tokens", "num_steps", "topk", "batch_size", "context_len")


def _predict_cells(row: Record) -> tuple[str, ...]:
    low, high = ("≥ ", "≤ ") if row["lower_bound"] else ("", "")
    return (
        row["nccl"],
        *(str(row[name]) for name in _COUNTS),
        number(row["accept_length"], 2),
        *(number(row[f"{phase}_ms"], 2) for phase in ("verify", "draft", "extend", "other")),
        f"{low}{row['cycle_ms']:.2f} {span(row['cycle_interval'], 2)}",
        f"{high}{row['output_tok_s']:.1f} {span(row['output_tok_s_interval'], 1)}",
        high + number(row["tok_s_per_user"], 1),
        number(row["baseline_tok_s"], 1),
        high + number(row["speedup"], 3),
    )


# -- break-even ----------------------------------------------------------------------------------------------------------


def break_even_text(record: Record) -> str:
    """Break-evens, one line a case: need, limit, had, verdict; a column that says nothing new is left out."""
    rows = record["rows"]
    columns = (
        "NCCL", "baseline", "draft tokens", "steps", "topk", "batch", "context", "cycle ms", "plain ms",
        f"needs length ({record['interval_level']:.0%})", "as rate", "at most", "accept length", "verdict",
    )  # fmt: skip
    idle = {
        "baseline": not any(row["mixed_setup"] for row in rows),
        "steps": all(row["topk"] == 1 for row in rows),
        "topk": all(row["topk"] == 1 for row in rows),
        "batch": all(row["batch_size"] == 1 for row in rows),
        "context": all(row["context_len"] is None for row in rows),
    }
    drawn = _without(idle, columns, map(_break_even_cells, rows))
    return "\n".join([drawn, *_length_footnotes(record), "", labels(record)])


def _break_even_cells(row: Record) -> tuple[str, ...]:
    needs = f"{row['cost_ratio']:.3f} {span(row['interval'], 2)}"
    return (
        row["nccl"],
        row["baseline_nccl"] + (" (MIXED)" if row["mixed_setup"] else ""),
        *(str(row[name]) for name in _COUNTS),
        number(row["cycle_ms"], 2),
        number(row["decode_ms"], 2),
        ("≥ " if row["lower_bound"] else "") + needs,
        number(row["required_accept_rate"], 2),
        str(row["max_accept_length"]),
        _had(row),
        _verdict(row),
    )


def _had(row: Record) -> str:
    if row["accept_length"] is not None:
        return number(row["accept_length"], 2) + (" ²" if row["accept_length_elsewhere"] else "")
    bounds = row["accept_length_bounds"]
    return f"{bounds['low']:.2f} to {bounds['high']:.2f} ¹" if bounds else "not measured"


def _verdict(row: Record) -> str:
    if not row["feasible"]:
        return str(row["message"])
    if row["probability_pays"] is None:
        return str(row["verdict"])
    chance = row["probability_pays"]
    if row["verdict"] == "undecided" and row["lower_bound"]:
        return f"undecided: at most {row['speedup']:.2f}×"
    if row["verdict"] == "undecided":
        return f"undecided: {row['speedup']:.2f}× ({chance:.0%} that it pays)"
    sure = max(chance, 1 - chance)
    return f"{row['verdict']}: {row['speedup']:.2f}× ({'>99%' if sure > 0.99 else f'{sure:.0%}'} sure)"


def _length_footnotes(record: Record) -> Iterator[str]:
    """What the marks beside an accept length mean."""
    found = [row["accept_length_bounds"] for row in record["rows"] if row["accept_length_bounds"]]
    sources = ", ".join(dict.fromkeys(f"{b['num_draft_tokens']} draft tokens ({', '.join(b['runs'])})" for b in found))
    if sources:
        yield f"  ¹ not measured; what the accept length at {sources} implies, whatever the drafter's law"
    moved = [run for row in record["rows"] if row["accept_length_elsewhere"] for run in row["accept_length_runs"]]
    if moved:
        yield f"  ² measured under another NCCL setting or batch size ({some(list(dict.fromkeys(moved)))})"


# -- numbers ----------------------------------------------------------------------------------------------------------


def some(items: Sequence[str]) -> str:
    """The first four of a list, and how many more there are."""
    return ", ".join(items[:4]) + (f" and {len(items) - 4} more" if len(items) > 4 else "")


def number(value: float | None, digits: int) -> str:
    """A number at so many digits; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def span(ends: Sequence[float | None] | None, digits: int) -> str:
    """An interval in brackets; nothing where there is none."""
    if ends is None:
        return ""
    low, high = (("∞" if end is None else f"{end:.{digits}f}") for end in ends)
    return f"({low} to {high})"
