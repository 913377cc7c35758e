"""What an import found, as a record that is itself a runs file, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specsim.report.records import Record
from specsim.report.tables import number, table, wrapped
from specsim.runs.completion import lines_text
from specsim.runs.importing import Imported
from specsim.runs.run import Run
from specsim.runs.writing import runs_record


def import_record(imported: Imported) -> Record:
    """The runs in the form of a runs file, with what was left out and what is missing beside them."""
    return {
        **runs_record(imported.rows, about(imported)),
        "left_out": [
            {
                "file": each.file,
                "why": each.left_out.why,
                "count": each.left_out.count,
                "lines": [each.left_out.first, each.left_out.last],
                "example": each.left_out.example,
            }
            for each in imported.left_out
        ],
        "missing": list(imported.missing),
    }


def about(imported: Imported) -> str:
    """Which files, read as what."""
    files = (f"{name} ({', '.join(formats)})" for name, formats in imported.formats.items())
    return f"imported from {'; '.join(files)}"


def import_text(imported: Imported) -> str:
    """A table of the runs, then what was left out and why, then what a fit would still need."""
    columns = ("run", "batch", "draft tokens", "accept length", "cycle [ms]", "decode [ms]", "tok/s", "used")
    rows = [_cells(row, run) for row, run in zip(imported.rows, imported.runs, strict=True)]
    parts = [table(columns, rows), ""]
    parts += [wrapped(f"* {line}", "  ") for line in _notes(imported)]
    parts += [wrapped(f"left out: {line}", "  ") for line in _left_out(imported)]
    parts += [wrapped(f"missing: {line}", "  ") for line in imported.missing]
    return "\n".join(parts).rstrip()


def _cells(row: Mapping[str, Any], run: Run) -> tuple[str, ...]:
    return (
        str(row["id"]),
        str(row.get("batch_size", "?")),
        _width(row, run),
        *(_figure(run, name, digits) for name, digits in _FIGURES),
        "yes" if _is_used(run) else "no",
    )


def _width(row: Mapping[str, Any], run: Run) -> str:
    if run.spec is not None:
        return str(run.spec.num_draft_tokens)
    return "?" if run.speculative or (run.excluded and "method" not in row) else "plain"


def _is_used(run: Run) -> bool:
    """Whether a fit, of the cycle or of acceptance, has any use for a run."""
    told = set(run.figures) - ({"output_tok_s", "accept_rate"} if run.speculative else {"accept_rate"})
    return not run.excluded and bool(told or run.survival)


_FIGURES = (("accept_length", 3), ("cycle_ms", 2), ("decode_ms", 2), ("output_tok_s", 2))


def _figure(run: Run, name: str, digits: int) -> str:
    figure = run.figures.get(name)
    if figure is None:
        return "–"
    repeats = f" ×{len(figure.repeats)}" if len(figure.repeats) > 1 else ""
    return number(figure.best, digits) + repeats


def _left_out(imported: Imported) -> Iterator[str]:
    for each in imported.left_out:
        found = each.left_out
        count = f"{found.count} × " if found.count > 1 else ""
        example = f": {found.example}" if found.example else ""
        yield f"{count}{found.why} ({each.file}, {lines_text(found.first, found.last)}){example}"


def _notes(imported: Imported) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for row in imported.rows:
        excluded = f"not used, for {row['exclude']}" if row.get("exclude") else ""
        if note := "; ".join(filter(None, [excluded, row.get("note", "")])):
            said.setdefault(note, []).append(str(row["id"]))
    for note, runs in said.items():
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        yield f"{runs[0]}{more}: {note}"
