"""Expected accept lengths, mixes and scaling as records and as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from specsim.expected import Expected, Part
from specsim.fitting.acceptance import AcceptanceFit
from specsim.fitting.scaling import ASSUMED_LENGTH_ERROR, CAVEAT, ScalingFit
from specsim.quantities import LEVEL
from specsim.report.records import Record
from specsim.report.tables import number, span, table, wrapped


def accept_record(part: Part, rows: Iterable[Expected]) -> Record:
    """Expected lengths under one law: the first row's fields at the top, all of them under `rows`."""
    listed = [_row(row) for row in rows]
    return {**listed[0], "rows": listed, **law_record(part.fitted), "interval_level": LEVEL, "notes": list(part.notes)}


def mix_record(parts: Iterable[Part], mixed: Expected) -> Record:
    """A mix's expected length, with its parts."""
    parts = tuple(parts)
    share = sum(part.weight for part in parts)
    return {
        **_row(mixed),
        "law": {"name": "mix", "parts": [law_record(part.fitted)["law"] for part in parts]},
        "parts": [{"name": p.name, "token_share": p.weight / share, **law_record(p.fitted)} for p in parts],
        "not_identified": sorted({name for part in parts for name in part.fitted.not_identified}),
        "interval_level": LEVEL,
        "notes": [f"{part.name}: {note}" for part in parts for note in part.notes],
    }


def _row(row: Expected) -> Record:
    return {
        "num_steps": row.spec.num_steps,
        "topk": row.spec.topk,
        "num_draft_tokens": row.spec.num_draft_tokens,
        "accept_length": row.accept_length,
        "interval": row.interval,
        "extrapolated": row.extrapolated,
        "measured_survival": row.measured_survival,
        "measured": row.measured,
        "most_possible": row.spec.max_accept_length,
        "target_length": row.target_length,
        "required_accept_rate": row.required_accept_rate,
        "required_first_rate": row.required_first_rate,
    }


def law_record(fitted: AcceptanceFit) -> Record:
    """A fitted law: its parameters with their intervals, and what the data leave open."""
    return {
        "law": {"name": type(fitted.law).__name__, **asdict(fitted.law)},
        "law_intervals": dict(fitted.intervals),
        "not_identified": list(fitted.not_identified),
        "misfit": fitted.misfit,
    }


def accept_text(record: Record) -> str:
    """Expected lengths as a table, the law under it, and every label."""
    rows = record["rows"]
    targets = rows[0]["target_length"] is not None
    columns = ["steps", "topk", "draft tokens", f"accept length ({LEVEL:.0%})", "measured"]
    if targets:
        columns += ["target", "constant rate needed", "first rate needed"]
    drawn = table(columns, [_cells(row, targets) for row in rows])
    return "\n".join([drawn, f"law: {law_text(record)}", "", *_labels(record)])


def law_text(record: Record) -> str:
    """A law's parameters, with their intervals where it was fitted."""
    ends = record["law_intervals"]
    words = {name: f"{value:.2f}" if isinstance(value, float) else str(value) for name, value in record["law"].items()}
    told = (f"{name} {word} {span(ends.get(name), 2)}".rstrip() for name, word in words.items() if name != "name")
    return ", ".join(told) or words["name"]


def _cells(row: Record, targets: bool) -> list[str]:
    cells = [str(row[name]) for name in ("num_steps", "topk", "num_draft_tokens")]
    cells += [f"{row['accept_length']:.2f} {span(row['interval'], 2)}", number(row["measured"], 2)]
    if targets:
        cells += [number(row[name], 2) for name in ("target_length", "required_accept_rate", "required_first_rate")]
    return cells


def mix_text(record: Record) -> str:
    """A mix as a line, its parts under it."""
    shares = ", ".join(f"{part['token_share']:.0%} {part['name']}" for part in record["parts"])
    where = f"{record['num_steps']} steps, topk {record['topk']}, {record['num_draft_tokens']} draft tokens"
    answer = f"{record['accept_length']:.2f} {span(record['interval'], 2)}"
    first = f"accept length of the mix ({shares} of the tokens) at {where}: {answer}"
    return "\n".join([wrapped(first, ""), "", *_labels({**record, "rows": [record]})])


def _labels(record: Record) -> Iterator[str]:
    for row in record["rows"]:
        if row["extrapolated"]:
            where = f"{row['num_steps']} steps, topk {row['topk']}"
            yield wrapped(f"* EXTRAPOLATED at {where}: deeper, or with more branches, than what was measured", "  ")
        if row["measured_survival"]:
            yield wrapped(f"* {row['num_steps']} steps: the sum of measured survival, without a law", "  ")
        if row["target_length"] is not None and row["target_length"] > row["most_possible"]:
            most = f"at most {row['most_possible']} at {row['num_steps']} steps"
            yield wrapped(f"* a target of {row['target_length']:g} cannot be had: {most}", "  ")
    yield from (wrapped(f"* {note}", "  ") for note in record["notes"])


# -- training samples ------------------------------------------------------------------------------------------------


Target = tuple[float, float, float]
"""A length that somebody needs, with the low and the high end of its interval."""


def scaling_record(fitted: ScalingFit, samples: float | None, targets: dict[str, Target]) -> Record:
    """Accept length against training samples; the samples that each target length needs, as a range."""
    record: Record = {
        "points": [asdict(point) for point in fitted.points],
        "intercept": fitted.coefficients[0],
        "per_decade": fitted.coefficients[1],
        "error_assumed": fitted.error_assumed,
        "inflation": fitted.inflation,
        "interval_level": LEVEL,
        "targets": [_target(fitted, name, length) for name, length in targets.items()],
        "notes": list(_scaling_notes(fitted)),
    }
    if samples is not None:
        value, low, high = fitted.accept_length(samples)
        seen = [point.samples for point in fitted.points]
        record |= {
            "training_samples": samples,
            "accept_length": value,
            "interval": (low, high),
            "extrapolated": not min(seen) <= samples <= max(seen),
        }
    return record


def _target(fitted: ScalingFit, name: str, need: Target) -> Record:
    """The samples that a length needs, over the intervals of the line and of the length."""
    length, low, high = need
    fewest = fitted.samples_needed(low)[1]
    most = fitted.samples_needed(high)[2] if math.isfinite(high) else math.inf
    return {
        "target": name,
        "accept_length": length,
        "accept_length_interval": (low, high),
        "samples": fitted.samples_needed(length)[0],
        "interval": (fewest, most),
    }


def _scaling_notes(fitted: ScalingFit) -> Iterator[str]:
    yield CAVEAT
    if len(fitted.points) == 2:
        yield "two points fix the line and test nothing of it"
    if fitted.error_assumed:
        yield f"accept lengths without an error of their own count as ±{ASSUMED_LENGTH_ERROR:g} (assumed)"
    if fitted.inflation > 1:
        yield f"the points scatter {fitted.inflation:.1f} times more about the line than their errors: errors widened"
    yield from dict.fromkeys(f"{p.samples:,} samples: {p.note}" for p in fitted.points if p.note)


def scaling_text(record: Record) -> str:
    """The points, the line, what it says at the asked number of samples, and the samples that targets need."""
    rows = [(f"{p['samples']:,}", number(p["accept_length"], 2), number(p["error"], 2)) for p in record["points"]]
    parts = [table(("training samples", "accept length", "error"), rows)]
    parts.append(f"line: {record['intercept']:.2f} + {record['per_decade']:.2f} a decade of samples")
    if "training_samples" in record:
        beyond = "  EXTRAPOLATED" if record["extrapolated"] else ""
        answer = f"{record['accept_length']:.2f} {span(record['interval'], 2)}"
        parts.append(f"at {record['training_samples']:,.0f} samples: {answer}{beyond}")
    parts += [_target_text(target) for target in record["targets"]]
    return "\n".join([*parts, "", *(wrapped(f"* {note}", "  ") for note in record["notes"])])


def _target_text(target: Record) -> str:
    fewest, most = target["interval"]
    ends = "anything from none to no number at all" if fewest == 0 and math.isinf(most) else _between(fewest, most)
    need = f"{target['accept_length']:.2f} {span(target['accept_length_interval'], 2)}"
    line = f"{target['target']} needs {need}: {_rounded(target['samples'])} samples by the line,"
    return wrapped(f"{line} {ends} by its interval", "")


def _between(fewest: float, most: float) -> str:
    return f"{_rounded(fewest)} to {'no known number' if math.isinf(most) else _rounded(most)}"


def _rounded(samples: float) -> str:
    """Two digits: the line knows no more."""
    if math.isinf(samples):
        return "no number of"
    return f"{float(f'{samples:.1e}'):,.0f}" if samples >= 1 else "fewer than 1"


def targets_of(record: Any) -> dict[str, Target]:
    """Break-even lengths of a break-even record by name, for `scaling_record`; a lower bound has no upper end."""
    return {
        f"break-even at {row['num_draft_tokens']} draft tokens, NCCL {row['nccl']}": (
            row["cost_ratio"],
            row["interval"][0],
            math.inf if row["lower_bound"] else row["interval"][1],
        )
        for row in record["rows"]
        if row["feasible"] and row["accept_length"] is not None  # the points are lengths at what was measured
    }
