"""A recorded stream of an OpenAI-style server: llama.cpp's ends with timings, vLLM's chunks carry a cycle each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from specsim.runs.formats.llama_cpp_timings import is_timings, read_timings
from specsim.runs.formats.located import NOT_TOLD, Located
from specsim.runs.readings import LeftOut, Reading, rounded, whole

_DATA = re.compile(r"^data:\s*(\{.*)$", re.MULTILINE)


def looks_like_stream(head: str) -> bool:
    """Whether a line is an event with a JSON object."""
    return bool(_DATA.search(head))


def read_stream(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """The requests of a stream: by their timings, else by counting chunks between the first and the usage."""
    chunks = 0
    first = 1
    for number, line in enumerate(text.splitlines(), 1):
        found = _DATA.match(line)
        if found is None:
            continue
        try:
            body = json.loads(found[1])
        except (ValueError, RecursionError):
            yield LeftOut("event that is not JSON", 1, number, number, line[:120])
            continue
        if not isinstance(body, dict):
            continue
        chunks, first = (chunks + 1, first) if chunks else (1, number)
        if is_timings(body):
            yield from read_timings([Located(body, number, number)], None)
            chunks = 0
        elif isinstance(usage := body.get("usage"), dict):
            with_text = chunks if body.get("choices") else chunks - 1
            yield from _counted(whole(usage.get("completion_tokens")), with_text, _engine(body), first, number)
            chunks = 0
    if chunks:
        yield LeftOut("stream without timings or usage", chunks, first, len(text.splitlines()))


def _engine(body: dict[str, Any]) -> dict[str, Any]:
    """Engine and version where the fingerprint tells them, as vLLM's does."""
    found = re.match(r"vllm-(\d[\w.]*)", str(body.get("system_fingerprint")), re.ASCII)
    return {"engine": "vllm", "engine_version": found[1]} if found else {}


def _counted(
    tokens: int | None, chunks: int, engine: dict[str, Any], first: int, last: int
) -> Iterator[Reading | LeftOut]:
    """Tokens a chunk after the first, which the prefill gave: the accept length, if the server did not merge chunks."""
    if tokens is None or chunks < 2 or tokens < chunks:
        yield LeftOut("stream of fewer than two chunks, or of fewer tokens than chunks", 1, first, last)
        return
    note = f"{tokens} tokens in {chunks} chunks, the first of them the prefill's: a length only if a chunk is a cycle"
    length = rounded((tokens - 1) / (chunks - 1))
    fields: dict[str, Any] = {**engine, "instrument": "recorded stream", "output_len": tokens, "note": note}
    if length > 1:
        fields |= {"accept_length": length, "implied": "accept_length"}
    yield Reading(fields, first, last, unsure=NOT_TOLD)
