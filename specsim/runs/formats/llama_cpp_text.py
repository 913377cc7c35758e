"""What llama.cpp's own tools print beside the server's log: llama-speculative, and tables of requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from specsim.acceptance.conversions import counts_from_llama_cpp
from specsim.errors import InputError
from specsim.runs.readings import LeftOut, Reading, amount

_TOTAL = re.compile(r"^\s*(n_draft|n_predict|n_drafted|n_accept)\s*=\s*(\d{1,9})\s*$", re.ASCII | re.MULTILINE)
_SPEED = re.compile(r"(?:generated|decoded)\s+\d+ tokens in\s+[\d.]+ seconds, speed:\s*([\d.]+) t/s", re.ASCII)
_REQUEST = re.compile(
    r"\s*(\S+)\s+pred=\s*(\d{1,9})\s+draft=\s*(\d{1,9})\s+acc=\s*(\d{1,9})\s.*?tok/s=\s*([\d.]+)\s*", re.ASCII
)
_COMMON = {"engine": "llama.cpp"}


def looks_like_speculative_cli(head: str) -> bool:
    """Whether a text holds the totals that llama-speculative prints at its end."""
    return {"n_drafted", "n_accept"} <= {name for name, _ in _TOTAL.findall(head)}


def read_speculative_cli(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """The one run of llama-speculative; its `eval time` lines are of the drafter, then of the target, and not read."""
    totals = {name: int(value) for name, value in _TOTAL.findall(text)}
    lines = [text[: found.start()].count("\n") + 1 for found in _TOTAL.finditer(text)]
    first, last = (min(lines), max(lines)) if lines else (1, 1)
    if not {"n_predict", "n_drafted", "n_accept"} <= totals.keys():
        yield LeftOut("no n_predict, n_drafted and n_accept", 1, first, last)
        return
    try:
        fields = _counted(totals["n_predict"], totals["n_drafted"], totals["n_accept"])
    except InputError as error:
        yield LeftOut(str(error).replace("\n", "; "), 1, first, last)
        return
    if totals.get("n_draft"):
        fields["num_draft_tokens"] = totals["n_draft"] + 1
    if (found := _SPEED.search(text)) and (speed := amount(found[1])):
        fields["output_tok_s"] = speed
        first = text[: found.start()].count("\n") + 1
    yield Reading({**fields, "batch_size": 1, "instrument": "llama-speculative"}, first, last)


def looks_like_requests(head: str) -> bool:
    """Whether a line is a request of the table: name, pred=, draft=, acc=, tok/s=."""
    return any(_REQUEST.fullmatch(line) for line in head.splitlines())


def read_requests(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """One run a request, whose rate is its own and so the server's where it ran alone."""
    for number, line in enumerate(text.splitlines(), 1):
        found = _REQUEST.fullmatch(line)
        if found is None:
            if line.strip():
                yield LeftOut("line that is no request", 1, number, number, line[:120])
            continue
        try:
            fields = _counted(*(int(found[group]) for group in (2, 3, 4)))
        except InputError as error:
            yield LeftOut(str(error).replace("\n", "; "), 1, number, number, line[:120])
            continue
        rate = {"output_tok_s": speed} if (speed := amount(found[5])) else {}
        yield Reading({**fields, "note": found[1], "instrument": "server timings"}, number, number, at_batch=rate)


def _counted(predicted: int, drafted: int, accepted: int) -> dict[str, Any]:
    counts = counts_from_llama_cpp(predicted, drafted, accepted)
    counted = {"cycles": counts.cycles, "accepted_drafts": accepted, "proposed_drafts": drafted}
    return {**_COMMON, "output_len": predicted, **counted}
