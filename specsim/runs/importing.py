"""From the files that people have to runs: recognise, read, complete by what is stated, check, count what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.errors import Fault, InputError
from specsim.runs.completion import UNCONFIGURED, completed_row, lines_text, missing_for_a_fit, without_batch
from specsim.runs.files import checked_run, nearest_field, typed_fields
from specsim.runs.lines import matching_lines
from specsim.runs.readings import LeftOut, Tally
from specsim.runs.recognition import (
    FORMATS,
    JSON_RESULTS,
    LOG_FORMATS,
    TEXT_FORMATS,
    LogFormat,
    Named,
    Stated,
    TextFormat,
)
from specsim.runs.run import Run
from specsim.runs.schema import RUN_FIELDS

_HEAD = 1 << 16
_MOST_TEXT = 1 << 28  # bytes of a file that is read whole
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Omission:
    """What was left out of which file."""

    file: str
    left_out: LeftOut


@dataclass(frozen=True)
class Imported:
    """Runs as rows of the run form and as checked runs, what was left out, and what a fit would still need."""

    rows: tuple[Mapping[str, Any], ...]
    runs: tuple[Run, ...]
    left_out: tuple[Omission, ...]
    missing: tuple[str, ...]
    formats: Mapping[str, tuple[str, ...]]


def import_files(
    paths: Sequence[Path], stated: Stated, format_name: str | None = None, progress: Progress = lambda *_: None
) -> Imported:
    """Read files of any known format as runs; `stated` fields hold for every run, over what the files say.

    Raises InputError where a file cannot be read, a stated field is none of a run's, or a file gives no run.
    """
    stated = _typed(stated)
    files = _named(paths)
    seen = _Seen(sum(_size(path) for path in files.values()), progress)
    rows: list[Mapping[str, Any]] = []
    runs: list[Run] = []
    left_out: dict[str, Tally] = {name: Tally() for name in files}
    used: set[str] = set()
    ids: dict[str, int] = {}
    hints: dict[str, list[str]] = {}
    for file, found in _read(files, stated, format_name, seen):
        if isinstance(found, LeftOut):
            left_out[file].merge(found)
            continue
        row = completed_row(found, file, stated, ids)
        try:
            runs.append(checked_run(row, f"{file}, {lines_text(found.first, found.last)}", row["id"]))
        except InputError as error:
            why = "; ".join(f"{fault.field} {fault.problem}" for fault in error.faults)
            left_out[file].merge(LeftOut(f"not a possible run: {why}", 1, found.first, found.last))
            continue
        rows.append(row)
        used |= {file, found.since}
        if found.hint and UNCONFIGURED in row.get("exclude", ""):
            hints.setdefault(found.hint, []).append(f"{file}, {lines_text(found.first, found.last)}")
        for each in without_batch(found, row):
            left_out[file].merge(each)
    omitted = tuple(Omission(file, each) for file, tally in left_out.items() for each in tally)
    _require_runs(used, omitted, seen.formats, format_name)
    return Imported(tuple(rows), tuple(runs), omitted, tuple(missing_for_a_fit(rows, hints)), seen.formats)


# -- reading ------------------------------------------------------------------------------------------------------


class _Seen:
    """How much of all files was read, and as what each was."""

    def __init__(self, total: int, progress: Progress) -> None:
        self.formats: dict[str, tuple[str, ...]] = {}
        self._done, self._total, self._progress = 0, total, progress

    def advanced(self, more: int) -> None:
        """So many bytes more."""
        self._done += more
        self._progress(self._done, self._total)


def _read(files: Mapping[str, Path], stated: Stated, format_name: str | None, seen: _Seen) -> Iterator[Named]:
    """Everything that the files hold; texts of one format are read together, so that snapshots find each other."""
    texts: dict[str, list[tuple[str, str]]] = {}
    for name, path in files.items():
        text_format = _recognised(path, format_name)
        if text_format is None:
            chosen = [each for each in LOG_FORMATS if format_name in (None, each.name)]
            yield from _read_log(name, path, chosen, stated, seen)
        else:
            text = _text(path)
            texts.setdefault(text_format.name, []).append((name, text))
            seen.formats[name] = (text_format.what,)
            seen.advanced(_size(path))
    for each in (*TEXT_FORMATS, JSON_RESULTS):
        if each.name in texts:
            yield from each.read(texts[each.name], stated)


def _recognised(path: Path, format_name: str | None) -> TextFormat | None:
    """The text format of a file, forced or told by its head; None is a log."""
    if format_name is not None:
        return next((each for each in TEXT_FORMATS if each.name == format_name), None)
    with _opened(path) as stream:
        head = stream.read(_HEAD).decode("utf-8", "replace")
    if _size(path) > _MOST_TEXT:
        return None
    return next((each for each in (*TEXT_FORMATS, JSON_RESULTS) if each.looks_like(head)), None)


def _read_log(name: str, path: Path, chosen: Sequence[LogFormat], stated: Stated, seen: _Seen) -> Iterator[Named]:
    """One pass over a log for all formats at once."""
    readers = [(each, each.reader(stated)) for each in chosen]
    used: dict[str, None] = {}
    with _opened(path) as stream:
        for number, line in matching_lines(stream, [key for each in chosen for key in each.keys], seen.advanced):
            for each, reader in readers:
                if any(key in line for key in each.keys):
                    reader.feed(number, line)
                    used[each.what] = None
    seen.formats[name] = tuple(used)
    for _, reader in readers:
        yield from ((name, found) for found in reader.finish())


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Files by their name, by the whole path where several share it."""
    names = [path.name for path in paths]
    return {path.name if names.count(path.name) == 1 else str(path): path for path in paths}


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError([Fault(str(path), "", f"cannot be read ({error.strerror})", "")]) from None


def _size(path: Path) -> int:
    with _opened(path) as stream:
        return int(stream.seek(0, 2))


def _text(path: Path) -> str:
    with _opened(path) as stream:
        return str(stream.read().decode("utf-8-sig", "replace"))


# -- refusing -----------------------------------------------------------------------------------------------------


def _typed(stated: Stated) -> dict[str, Any]:
    """Stated fields as the run form has them; refused where they are none of its fields or values."""
    faults = [
        Fault("--set", name, "is not a known field", nearest_field(name)) for name in stated if name not in RUN_FIELDS
    ]
    if faults:
        raise InputError(faults)
    return {**stated, **typed_fields(stated, "--set")}


def _require_runs(
    used: set[str], left_out: Sequence[Omission], formats: Mapping[str, tuple[str, ...]], format_name: str | None
) -> None:
    """Refuse files that gave no run, each with what was looked for or why its lines were left out."""
    faults = []
    for file, found in formats.items():
        reasons = [f"{o.left_out.why} ({_counted(o.left_out)})" for o in left_out if o.file == file]
        if file in used:
            continue
        if reasons or found:
            told = "; ".join(reasons) or f"it was read as {', '.join(found)}"
            faults.append(Fault(file, "", f"gives no run: {told}", ""))
        else:
            known = ", ".join(each.what for each in FORMATS.values() if format_name in (None, each.name))
            faults.append(Fault(file, "", "holds nothing that is known here", f"looked for: {known}"))
    if faults:
        raise InputError(faults)


def _counted(left_out: LeftOut) -> str:
    where = lines_text(left_out.first, left_out.last)
    return f"{left_out.count}, {where}" if left_out.count > 1 else where
