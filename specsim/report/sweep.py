"""A sweep as a record, as text, and as CSV: the best, what cannot be told from it, and what was left out."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path

import numpy as np

from specsim.breakeven import BreakEven, break_even
from specsim.cost.model import CostModel
from specsim.errors import MixedSetupError
from specsim.fitting.acceptance import AcceptanceFit
from specsim.flags import engine_flags
from specsim.prediction import predict
from specsim.quantities import Workload
from specsim.questions import AcceptLength, Case
from specsim.report.accept import law_record, law_text
from specsim.report.records import Record, break_evens_record, predictions_record
from specsim.report.tables import labels, span, table, wrapped
from specsim.sweep import Cell, Sweep, totals
from specsim.uncertainty import difference_interval, quantile

_MOST_ROWS = 2_000  # of a record, a second's worth; the CSV has every cell
_ROWS = 48  # lines of a table that someone still reads
_TIES = 4  # rows shown under a best; the record counts them all
_COUNTS = ("num_steps", "topk", "num_draft_tokens")


# -- the record ------------------------------------------------------------------------------------------------------


def sweep_record(model: CostModel, found: Sweep) -> Record:
    """A sweep: the best of all at the top, then under `rows` the best at each batch size and setting and its ties."""
    top = found.place()
    best = found.cell(*top, int(found.columns.best[top]))
    places = list(_places(found, top))
    rows = [_row(model, found, *place) for place in places[:_MOST_ROWS]]
    shown = {(setting, batch) for setting, batch, *_ in places[:_MOST_ROWS]}
    return {
        **rows[0],
        "rows_left_out": int((found.columns.best >= 0).sum()) - len(shown),
        "best_of_all": "gain" if found.best is not None else "output_tok_s",
        **_fastest_plain(found, top),
        **law_of(found),
        "cells": {"evaluated": found.evaluated, "illegal_combinations": found.illegal, **totals(found)},
        "axes": asdict(found.axes),
        "flags": [asdict(each) for each in engine_flags(best.spec)],
        "nccl_env": dict(model.setting(best.nccl).environment),
        "cannot_be_told_from_best": [
            {"nccl": found.axes.nccl[s], "batch_size": found.axes.batch_size[b]}
            for s, b in np.argwhere(found.tied_with_best).tolist()
        ],
        "rows": rows,
        "unanswered": [asdict(each) for each in found.unanswered],
        "no_baseline_by_nccl": found.no_baseline,
        "setup": asdict(model.setup),
        "notes": [*model.notes, *found.law_notes],
    }


def _fastest_plain(found: Sweep, top: tuple[int, int]) -> Record:
    """The fastest plain decode at the best's batch size, of whichever setting, and what the best gains over it."""
    steps = found.decode_ms[:, top[1]]
    if np.isnan(steps).all():
        return {"fastest_plain_nccl": None, "fastest_plain_tok_s": None, "gain": None}
    least = int(np.nanargmin(steps))
    rate = found.axes.batch_size[top[1]] * 1000.0 / float(steps[least])
    gain = float(found.columns.best_output_tok_s[top]) / rate
    return {"fastest_plain_nccl": found.axes.nccl[least], "fastest_plain_tok_s": rate, "gain": gain}


def law_of(found: Sweep) -> Record:
    """The law of acceptance, as `specsim accept` has it, and whether its lengths count as known."""
    if isinstance(found.law, AcceptanceFit):
        return {**law_record(found.law), "law_known": False}
    parameters: Record = asdict(found.law) if is_dataclass(found.law) else {}
    law: Record = {"name": type(found.law).__name__, **parameters}
    return {"law": law, "law_intervals": {}, "not_identified": [], "misfit": None, "law_known": True}


def _places(found: Sweep, top: tuple[int, int]) -> Iterator[tuple[int, int, int, str]]:
    """(setting, batch, configuration, role) of what is shown: at each setting and batch size the best and its ties."""
    everywhere = [(s, b) for s, b in np.argwhere(found.columns.best >= 0).tolist() if (s, b) != top]
    for setting, batch in (top, *everywhere):
        best, listed = int(found.columns.best[setting, batch]), found.columns.tied[setting, batch].tolist()
        ties = [configuration for configuration in listed if configuration not in (-1, best)][:_TIES]
        for configuration, role in ((best, "best"), *((tie, "tied") for tie in ties)):
            yield setting, batch, configuration, role
        if found.present is not None and found.present not in (best, *ties):
            yield setting, batch, found.present, "present"


def _row(model: CostModel, found: Sweep, setting: int, batch: int, configuration: int, role: str) -> Record:
    columns, at = found.columns, (setting, batch)
    regret = float(columns.regret[at])
    return {
        **_answers(model, found.cell(setting, batch, configuration), found.allow_mixed),
        "role": role,
        "present": configuration == found.present,
        "tied_count": int(columns.tied_count[at]),
        "regret_of_present": regret,
        "present_tied": bool(columns.present_tied[at]),
    }


def _answers(model: CostModel, cell: Cell, allow_mixed: bool) -> Record:
    """Everything that predict and break-even say of a cell, labels included, and its margin."""
    length = _length(cell)
    case, workload = Case(cell.spec, cell.batch_size, cell.nccl, length), Workload(cell.batch_size)
    told = predict(model, cell.spec, workload, cell.accept_length, cell.nccl)
    record: Record = predictions_record(model, [(case, told)], [])["rows"][0]
    record |= {"margin": None, "margin_interval": None, "feasible": None}
    with suppress(MixedSetupError):
        need = break_even(
            model, cell.spec, workload, cell.nccl, accept_length=length.value, accept_length_error=length.error,
            allow_mixed=allow_mixed,
        )  # fmt: skip
        record |= {"speedup": None, "no_baseline": ""} | break_evens_record(model, [(case, need)], [])["rows"][0]
        record |= {"margin": cell.accept_length - float(need.cost_ratio), "margin_interval": _margin_ends(cell, need)}
    return record | _of_length(cell, record)


def _length(cell: Cell) -> AcceptLength:
    """A cell's accept length; its standard error is that of an even interval as wide as its own."""
    low, high = cell.accept_interval or (cell.accept_length,) * 2
    return AcceptLength(cell.accept_length, (high - low) / 2 / quantile(0))


def _margin_ends(cell: Cell, need: BreakEven) -> list[float]:
    ends = cell.accept_interval or (cell.accept_length,) * 2
    low, high = difference_interval((cell.accept_length, *ends), (need.cost_ratio, *need.interval))
    return [float("-inf") if need.times.lower_bound else float(low), float(high)]


def _of_length(cell: Cell, record: Record) -> Record:
    """What an uncertain length adds to a row: its interval, its part in the throughput's, and where it was not fitted."""
    if cell.accept_interval is None:
        return {"accept_length_interval": None}
    rate, ends = record["output_tok_s"], record["output_tok_s_interval"]
    down, up = (
        np.hypot(end - rate, rate * (length / cell.accept_length - 1))
        for end, length in zip(ends, cell.accept_interval, strict=True)
    )
    beyond = [BEYOND_LAW] if cell.accept_extrapolated else []
    return {
        "accept_length_interval": list(cell.accept_interval),
        "output_tok_s_interval": [max(float(rate - down), 0.0), float(rate + up)],
        "extrapolated": bool(record["extrapolated"]) or cell.accept_extrapolated,
        "extrapolated_in": [*record["extrapolated_in"], *beyond],
    }


BEYOND_LAW = "accept length: deeper, or with more branches, than what its law was fitted to"


# -- as text ---------------------------------------------------------------------------------------------------------


def sweep_text(record: Record) -> str:
    """A sweep's table, what it rests on and left out, and the flags of the best."""
    columns = (
        "NCCL", "batch", "steps", "topk", "draft tokens", "accept length", "cycle ms", "tok/s", "speed-up",
        f"margin ({record['interval_level']:.0%})", "setting",
    )  # fmt: skip
    drawn = table(columns, [_cells(row) for row in record["rows"][:_ROWS]])
    if len(record["rows"]) > _ROWS:
        drawn += f"\n  … {len(record['rows']) - _ROWS:,} more rows in --json"
    summary = "\n".join(wrapped(line, "") for line in _summary(record))
    return "\n".join([drawn, *_footnotes(record), "", summary, "", *_flags(record), "", _qualified(record)])


def _cells(row: Record) -> tuple[str, ...]:
    most = "≤ " if row["lower_bound"] else ""
    return (
        row["nccl"],
        *(str(row[name]) for name in ("batch_size", "num_steps", "topk")),
        f"{row['num_draft_tokens']}{' ¹' if row['extrapolated'] else ''}",
        f"{row['accept_length']:.2f} {span(row['accept_length_interval'], 2)}".rstrip(),
        ("≥ " if row["lower_bound"] else "") + f"{row['cycle_ms']:.2f}",
        f"{most}{row['output_tok_s']:.1f}",
        "–" if row["margin"] is None else f"{most}{row['speedup']:.3f}",
        _margin(row),
        _role(row),
    )


def _margin(row: Record) -> str:
    if row["margin"] is None:
        return "–"
    low, high = (f"{end:+.2f}" if np.isfinite(end) else "−∞" for end in row["margin_interval"])
    return f"{row['margin']:+.2f} ({low} to {high})" + ("" if row["feasible"] else " no length pays")


def _role(row: Record) -> str:
    if row["role"] == "best":
        word = "best" + (f" of {row['tied_count']} that cannot be told apart" if row["tied_count"] > 1 else "")
    elif row["role"] == "tied":
        word = "cannot be told from it"
    else:
        word = f"{row['regret_of_present']:.1%} below the best" + (
            ", cannot be told from it" if row["present_tied"] else ""
        )
    mixed = " (MIXED)" if row["mixed_setup"] else ""
    return ("present: " if row["present"] else "") + word + mixed


def _footnotes(record: Record) -> Iterator[str]:
    beyond = dict.fromkeys(reason for row in record["rows"] for reason in row["extrapolated_in"])
    if beyond:
        yield wrapped(f"¹ EXTRAPOLATED: {'; '.join(beyond)}", "  ")


def _summary(record: Record) -> Iterator[str]:
    where = f"NCCL {record['nccl']}, batch {record['batch_size']}"
    config = f"{record['num_steps']} steps, topk {record['topk']}, {record['num_draft_tokens']} draft tokens"
    if record["gain"] is None:
        yield f"Best of all by throughput: {config} ({where})"
    else:
        plain = f"{record['fastest_plain_tok_s']:.1f} tok/s under NCCL {record['fastest_plain_nccl']}"
        most = "at most " if record["lower_bound"] else ""
        yield f"Best of all: {config} ({where}), {most}{record['gain']:.3f} times the fastest plain decode there ({plain})"
        if record["gain"] < 1:
            yield "So plain decode is faster than every configuration here: speculation does not pay"
    others = [
        each
        for each in record["cannot_be_told_from_best"]
        if each["nccl"] != record["nccl"] or each["batch_size"] != record["batch_size"]
    ]
    if others:
        places = ", ".join(f"NCCL {each['nccl']} batch {each['batch_size']}" for each in others[:_TIES])
        more = f" and {len(others) - _TIES} more" if len(others) > _TIES else ""
        yield f"Its gain cannot be told from that of the best at {places}{more}"
    yield f"Accept lengths: {law_text(record)}; {_known(record)}"
    cells = record["cells"]
    verdicts, further = (
        ", ".join(f"{cells[name]:,} {word}" for name, word in words.items() if cells[name])
        for words in (_WORDS, _FURTHER)
    )
    yield f"{cells['evaluated']:,} cells: {verdicts}{'; of them ' + further if further else ''}"
    if record["rows_left_out"]:
        yield f"{record['rows_left_out']:,} more batch sizes and settings have rows of their own in --csv"
    yield f"{cells['illegal_combinations']:,} illegal combinations of steps, topk and draft tokens left out"


def _known(record: Record) -> str:
    if record["law_known"]:
        return "they count as known, intervals are the cost model's"
    return f"{record['interval_level']:.0%} intervals, which are in the margins and in what cannot be told apart" + (
        f"; the measured lengths lie {record['misfit']:.1f} times as far from the law as assumed"
        if record["misfit"] > 1
        else ""
    )


_WORDS = {
    "pays": "pay",
    "loses": "do not pay",
    "undecided": "undecided",
    "without_baseline": "without a like-for-like baseline",
    "not_identified": "not identified by these runs",
}
_FURTHER = {"infeasible": "where no accept length breaks even", "extrapolated": "extrapolated"}


def _flags(record: Record) -> Iterator[str]:
    yield "Flags of the best of all (the draft model is yours to add):"
    environment = " ".join(f"{name}={value}" for name, value in record["nccl_env"].items())
    if environment:
        yield f"  environment   {environment}"
    for each in record["flags"]:
        yield f"  {each['engine']:<13} {each['flags'] or 'none: ' + each['why_not']}"


def _qualified(record: Record) -> str:
    """The labels that every command prints, and where margins are missing; extrapolation stands under the table."""
    missing = [f"NCCL {label}: {why}" for label, why in record["no_baseline_by_nccl"].items()]
    mixed = {(row["nccl"], *row["mixed_fields"]): {**row, "extrapolated": False} for row in record["rows"]}
    return labels({**record, "rows": mixed.values(), "notes": [*missing, *record["notes"]]})


# -- as CSV ----------------------------------------------------------------------------------------------------------

COLUMNS = (
    "nccl", "batch_size", *_COUNTS, "accept_length", "accept_length_low", "accept_length_high", "cycle_ms", "output_tok_s", "speedup", "margin", "margin_low",
    "margin_high", "feasible", "extrapolated", "tied", "best",
)  # fmt: skip


def write_csv(found: Sweep, path: Path) -> None:
    """Every cell of a sweep that kept them as one CSV row under COLUMNS; empty where a value is open."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for setting, batch in np.ndindex(found.columns.best.shape):
            writer.writerows(_csv_rows(found, setting, batch))


def _csv_rows(found: Sweep, setting: int, batch: int) -> Iterable[tuple[object, ...]]:
    cells, length = found.kept.at(setting, batch), found.accept_length
    times, plain = cells.cycle_ms, found.decode_ms[setting, batch]
    size, ratio = found.axes.batch_size[batch], times / plain
    feasible = ratio <= np.asarray(found.spec.max_accept_length)
    best = np.arange(length.size) == found.columns.best[setting, batch]
    known = ~np.isnan(ratio)
    low, high = (length, length) if found.lengths is None else (found.lengths.low, found.lengths.high)
    numbers = (
        length, low, high, times, size * 1000.0 * length / times, length / ratio, length - ratio, cells.margin_low, cells.margin_high,
    )  # fmt: skip
    counts = [np.asarray(getattr(found.spec, name)).tolist() for name in _COUNTS]
    pays = [bool(each) if told else None for each, told in zip(feasible, known, strict=True)]
    words = [pays, *(mask.tolist() for mask in (cells.extrapolated, cells.tied, best))]
    columns = [*counts, *(_finite(each) for each in numbers), *words]
    return ((found.axes.nccl[setting], size, *row) for row in zip(*columns, strict=True))


def _finite(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[float | None]:
    """Numbers as a list, None where there is none."""
    return [value if np.isfinite(value) else None for value in values.tolist()]
