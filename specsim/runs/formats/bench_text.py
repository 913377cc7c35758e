"""What benchmarks print: the serving table of SGLang and vLLM, and the three lines under SGLang's task scores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from specsim.runs.formats.located import Client, Located, client_reading
from specsim.runs.formats.vllm_results import draft_counts
from specsim.runs.readings import LeftOut, Reading, amount, rounded

_TITLE = re.compile(r"^=+ Serving Benchmark Result =+\s*$", re.MULTILINE)
_ROW = re.compile(r"^([A-Z][^:\n]*?)(?: \(([^)\n]*)\))?:\s+(\S+)", re.MULTILINE)
_SUMMARY = re.compile(r"^Output throughput: ([\d.]+) token/s\s*$", re.MULTILINE)
_SUMMARY_LENGTH = re.compile(r"^Accept length: ([\d.]+)\s*$", re.MULTILINE)
_LENGTHS = ("Acceptance length", "Accept length", "Mean acceptance length")
_COUNTERS = ("Drafts", "Draft tokens", "Accepted tokens")
_POSITION = re.compile(r"^ +Position \d+: +(\d+\.\d+) *$", re.MULTILINE | re.ASCII)
_HALF_DIGIT = 5e-5
"""Half a digit of a share that is printed as percent with two decimals."""
_CONCURRENCIES = ("Max request concurrency", "Maximum request concurrency")


def looks_like_serving_table(head: str) -> bool:
    """Whether the table's title stands in a text."""
    return bool(_TITLE.search(head))


def read_serving_tables(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """One run a table."""
    starts = [found.start() for found in _TITLE.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        first = text[:start].count("\n") + 1
        part = text[start:end].rstrip()
        rows: dict[str, Any] = {name: value for name, _, value in _ROW.findall(part)}
        rows["positions"] = [float(percent) / 100 for percent in _POSITION.findall(part)]
        yield _table(Located(rows, first, first + part.count("\n")))


def _table(table: Located) -> Reading | LeftOut:
    """Times and throughput; vLLM's gap between chunks is a cycle, its acceptance rate a share of drafted tokens."""
    if table.amount("Mean TPOT") is None and table.amount("Output token throughput") is None:
        return LeftOut("table without Mean TPOT or Output token throughput", 1, table.first, table.last)
    backend = str(table.body.get("Backend", ""))
    vllm = "Failed requests" in table.body and not backend
    fields: dict[str, Any] = (
        {"engine": "vllm"} if vllm else {"engine": "sglang"} if backend.startswith("sglang") else {}
    )
    done, tokens = table.whole("Successful requests"), table.whole("Total generated tokens")
    fields |= {"prompts": done} if done else {}
    fields |= {"output_len": max(1, round(tokens / done))} if done and tokens else {}
    fields |= (counted := draft_counts([table.whole(name) for name in _COUNTERS], table.body["positions"], _HALF_DIGIT))
    length = next((value for name in _LENGTHS if (value := table.amount(name)) and value >= 1), None)
    if counted:
        length = rounded(1 + counted["accepted_drafts"] / counted["cycles"])
    rate = table.amount("Acceptance rate")
    if length and not counted:
        fields["accept_length"] = length
    if rate and rate <= 100:
        fields["accept_rate"] = rounded(rate / 100)
    drafts = True if length or rate else None
    concurrency = next((value for name in _CONCURRENCIES if (value := table.whole(name))), None)
    speed = table.amount("Output token throughput")
    reading = client_reading(table, fields, Client(concurrency, table.amount("Mean TPOT"), speed, length, drafts))
    if vllm and drafts and length is None and (gap := table.amount("Mean ITL")):
        return Reading(reading.fields, reading.first, reading.last, {**reading.at_batch, "cycle_ms": gap})
    return reading


def looks_like_summary(head: str) -> bool:
    """Whether a text has the throughput line that SGLang's task benchmarks print."""
    return bool(_SUMMARY.search(head))


def read_summaries(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """One run a throughput line, with the accept length that follows before the next."""
    found = list(_SUMMARY.finditer(text))
    for index, speed in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(text)
        length = _SUMMARY_LENGTH.search(text, speed.end(), end)
        first = text[: speed.start()].count("\n") + 1
        last = text[: length.start()].count("\n") + 1 if length else first
        value, told = amount(speed[1]), amount(length[1]) if length else None
        if not value:
            yield LeftOut("throughput line that cannot be read", 1, first, last, speed[0])
            continue
        fields: dict[str, Any] = {"engine": "sglang", "instrument": "task benchmark"}
        note = "throughput over the whole task, prefills included"
        if told is not None and told >= 1:
            fields["accept_length"] = told
        yield Reading({**fields, "note": note}, first, last, at_batch={"output_tok_s": value})
