"""Throughput of single prompts from CSV with the columns prompt and tok_s, output_len where it is known."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specsim.errors import Fault, InputError, first_of
from specsim.runs.run import RunSet

_COLUMNS = ("prompt", "tok_s", "output_len")
_NEEDED = {"prompt", "tok_s"}
_LEAST, _MOST = 1e-3, 1e9  # beyond is a slip of units, and no spread that can be told
_ALLOWED = f"allowed: a number from {_LEAST:g} to {_MOST:g}"


@dataclass(frozen=True)
class PromptFigures:
    """Throughput by prompt [tok/s], of repeats their geometric mean; the mean output length; what else to say."""

    tok_s: Mapping[str, float]
    output_len: int | None
    notes: tuple[str, ...] = ()


def is_per_prompt(path: Path) -> bool:
    """Whether a file begins with a header that has a column tok_s, as no run file does; False where it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            return "tok_s" in _cells(file.readline())
    except (OSError, UnicodeDecodeError):
        return False


def load_per_prompt(path: Path) -> PromptFigures:
    """Read single prompts' figures; raises InputError with every fault of row and field."""
    text = path.read_text(encoding="utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    columns = [column.strip() for column in reader.fieldnames or []]
    reader.fieldnames = columns
    missing = sorted(_NEEDED.difference(columns))
    if missing or len(set(columns)) < len(columns):
        problem = f"lacks the column {missing[0]}" if missing else "has a column twice"
        raise InputError([Fault(f"{path}, header", "", problem, "needed are the columns prompt and tok_s, once each")])
    rows: list[tuple[str, float, float | None]] = []
    faults: list[Fault] = []
    for row in _rows(reader, str(path)):
        (faults if isinstance(row, Fault) else rows).append(row)  # type: ignore[arg-type]
    if not rows and not faults:
        faults.append(Fault(str(path), "", "has no rows", "a header alone is not a measurement"))
    if faults:
        raise InputError(first_of(faults))
    unread = [column for column in columns if column not in _COLUMNS]
    return _figures(rows, [f"{path}: columns not read: {', '.join(unread)}"] if unread else [], str(path))


def prompts_of_runs(runs: RunSet) -> PromptFigures | None:
    """The figures of a run file whose runs are of one prompt each (prompts 1), by id; None where they are not."""
    rates = {run.id: run.figures.get("output_tok_s") for run in runs.runs}
    if len(rates) < 2 or any(run.prompts != 1 for run in runs.runs) or any(rate is None for rate in rates.values()):
        return None
    lengths = [run.workload.output_len for run in runs.runs]
    known = [length for length in lengths if length is not None]
    mean = round(sum(known) / len(known)) if len(known) == len(lengths) else None
    return PromptFigures(MappingProxyType({name: rate.best for name, rate in rates.items() if rate is not None}), mean)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]), [])]


def _rows(reader: csv.DictReader[str], name: str) -> Iterator[tuple[str, float, float | None] | Fault]:
    """(prompt, tok_s, output_len) of every row, or what is wrong with it."""
    try:
        for cells in reader:
            where = f"{name}, row {reader.line_num}"
            if None in cells or None in cells.values():
                yield Fault(where, "", "has more or fewer cells than the header has columns", "")
            elif any(cell.strip() for cell in cells.values()):
                yield from _checked(cells, where)
    except csv.Error as error:
        yield Fault(f"{name}, row {reader.line_num}", "", f"is not CSV ({error})", "")


def _checked(cells: dict[str, str], where: str) -> Iterator[tuple[str, float, float | None] | Fault]:
    numbers = {column: _number(cells[column]) for column in ("tok_s", "output_len") if cells.get(column, "").strip()}
    wrong = [Fault(where, column, f"{cells[column]!r} is no such number", _ALLOWED)
             for column, value in numbers.items() if value is None]  # fmt: skip
    if not cells["prompt"].strip():
        wrong.append(Fault(where, "prompt", "is empty", "a name or number of the prompt"))
    if "tok_s" not in numbers:
        wrong.append(Fault(where, "tok_s", "is empty", _ALLOWED))
    rate = numbers.get("tok_s")
    if wrong or rate is None:
        yield from wrong
    else:
        yield cells["prompt"].strip(), rate, numbers.get("output_len")


def _some(prompts: list[str]) -> str:
    return ", ".join(prompts[:4]) + (f" and {len(prompts) - 4} more" if len(prompts) > 4 else "")


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if _LEAST <= value <= _MOST else None


def _figures(rows: list[tuple[str, float, float | None]], notes: list[str], name: str) -> PromptFigures:
    logs: dict[str, list[float]] = {}
    for prompt, rate, _ in rows:
        logs.setdefault(prompt, []).append(math.log(rate))
    repeated = [prompt for prompt, each in logs.items() if len(each) > 1]
    if repeated:
        notes = [*notes, f"{name}: repeats of a prompt count once, by their geometric mean: {_some(repeated)}"]
    lengths = [length for _, _, length in rows if length is not None]
    mean = round(sum(lengths) / len(lengths)) if lengths and len(lengths) == len(rows) else None
    means = {prompt: math.exp(sum(each) / len(each)) for prompt, each in logs.items()}
    return PromptFigures(MappingProxyType(means), mean, tuple(notes))
