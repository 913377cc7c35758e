"""From a reading to a row of the run form: what is stated goes over what was read, and what a fit cannot use says why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specsim.methods import PLAIN_METHODS
from specsim.runs.readings import LeftOut, Reading
from specsim.runs.schema import RUN_FIELDS

_ACCEPTANCE = (
    "accept_length",
    "accept_rate",
    "cycles",
    "accepted_drafts",
    "proposed_drafts",
    "accept_histogram",
    "survival",
)
_DRAFTING = ("num_steps", "topk", "num_draft_tokens", "drafter", *_ACCEPTANCE)
_SHAPE = ("num_draft_tokens", "num_steps")


def lines_text(first: int, last: int) -> str:
    """Where something stands: line 3, or lines 3–41."""
    return f"line {first}" if first == last else f"lines {first}–{last}"


def completed_row(found: Reading, file: str, stated: Mapping[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """The row of a reading: what is stated goes over what the file says, and what a fit cannot use says why.

    How drafts are made, where it is stated, is not said of a run that is known to draft none. `ids` counts the ids so
    far, so that each is given once.
    """
    if found.fields.get("method") == "none" and "method" not in stated:
        stated = {name: value for name, value in stated.items() if name not in _DRAFTING}
    batch = stated.get("batch_size", found.fields.get("batch_size"))
    read = {**found.fields, **(found.at_batch if batch is not None else {})}
    place = f"{file}, {lines_text(found.first, found.last)}"
    row = {**read, **stated, "source": f"{stated['source']} ({place})" if stated.get("source") else place}
    if found.unsure and row.get("method") is None and _is_configured(row):
        row.pop("decode_ms", None)  # it drafted: the time of a token is no step of plain decode
    if "exclude" not in stated:
        row["exclude"] = "; ".join(_reasons_to_exclude(found, row))
    replaced = [name for name, value in stated.items() if name in read and read[name] != value and name != "note"]
    row["note"] = "; ".join(
        filter(None, [row.get("note"), *(f"{name} {stated[name]} was stated, {read[name]} read" for name in replaced)])
    )
    row["implied"] = [name for name in _names(row.get("implied")) if row.get(name)]
    row["id"] = _id(str(row.get("id", place)), ids)
    return {name: _single(row[name]) for name in RUN_FIELDS if row.get(name) not in (None, "", [], ())}


def _reasons_to_exclude(found: Reading, row: Mapping[str, Any]) -> Iterator[str]:
    """Why a fit cannot use a row: its reader's reason, repeats of several conditions, a configuration not known."""
    if row.get("exclude"):
        yield row["exclude"]
    for name in ("cycle_ms", "decode_ms"):
        times = row.get(name)
        if isinstance(times, list) and max(times) > 2 * min(times):
            times_apart = max(times) / min(times)
            yield f"its {name} repeats differ {times_apart:.1f}-fold, so that they are not of one condition"
    if not _is_configured(row):
        if found.unsure and row.get("method") is None:
            yield found.unsure
        elif _drafts(row):
            yield UNCONFIGURED


def _is_configured(row: Mapping[str, Any]) -> bool:
    return any(row.get(name) for name in _SHAPE)


def _names(implied: Any) -> Sequence[str]:
    return implied.split() if isinstance(implied, str) else implied or ()


def _id(name: str, ids: dict[str, int]) -> str:
    """A name, numbered from its second use on."""
    ids[name] = ids.get(name, 0) + 1
    return name if ids[name] == 1 else f"{name} #{ids[name]}"


UNCONFIGURED = "it drafts, and its file does not say how many tokens"


def _drafts(row: Mapping[str, Any]) -> bool:
    plain = str(row.get("method", "-")).lower() in PLAIN_METHODS
    return not plain and any(row.get(name) not in (None, [], ()) for name in _ACCEPTANCE)


def _single(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], float) else value


def without_batch(found: Reading, row: Mapping[str, Any]) -> Iterator[LeftOut]:
    """Figures that need a batch size which nobody stated."""
    if "batch_size" not in row:
        for name, value in found.at_batch.items():
            if name != "implied":
                why = f"{name} whose batch size is not told (--set batch_size=N, if it was always the same)"
                yield LeftOut(why, 1, found.first, found.last, f"{value:g}")


def missing_for_a_fit(rows: Sequence[Mapping[str, Any]], hints: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a fit would still need, with the option that supplies it."""
    unconfigured = sum(UNCONFIGURED in str(row.get("exclude", "")) for row in rows)
    if unconfigured:
        yield (
            f"{_runs(unconfigured)} without the configuration that drafted, which no file states: --set num_draft_tokens=N (tokens"
            " verified a request and cycle, root included); a tree needs --set num_steps=S --set topk=k too"
        )
    yield from (f"{hint} ({'; '.join(places[:3])}{' …' if len(places) > 3 else ''})" for hint, places in hints.items())
    without_length = sum(_rate_without_length(row) for row in rows)
    if without_length:
        yield f"{_runs(without_length)} whose throughput tells no cycle without an accept length: --set accept_length=L"
    timed = ("cycle_ms", "decode_ms", "output_tok_s")
    unstated = sum("batch_size" not in row and any(name in row for name in timed) for row in rows)
    if unstated:
        yield f"{_runs(unstated)} without a batch size, which a fit takes as 1: --set batch_size=N"


def _rate_without_length(row: Mapping[str, Any]) -> bool:
    lengths = ("accept_length", "accept_histogram", "accepted_drafts", "cycle_ms", "exclude")
    return "output_tok_s" in row and any(name in row for name in _SHAPE) and not any(name in row for name in lengths)


def _runs(count: int) -> str:
    return f"{count} run" + ("s" if count > 1 else "")
