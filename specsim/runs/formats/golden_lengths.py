"""Golden accept lengths in YAML (InferenceX golden_al_distribution): model, mode, drafts to accept length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from specsim.runs.readings import LeftOut, Reading, amount

_NAME = re.compile(r"^(\s*)([\w.\-/]+):\s*(?:#.*)?$", re.ASCII)
_FLOW = re.compile(r"^\s+([\w.\-]+):\s*\{(.*)\}\s*(?:#.*)?$", re.ASCII)
_PAIR = re.compile(r"^\s*(\d{1,3})\s*:\s*([\d.]+)\s*(?:#.*)?$", re.ASCII)


def looks_like_golden_lengths(head: str) -> bool:
    """Whether a text has a mode of thinking with lengths by number of drafts."""
    return bool(re.search(r"^\s+thinking_(on|off):\s*(\{\s*\d+\s*:|$)", head, flags=re.MULTILINE))


def read_golden_lengths(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """One run each: the key is drafts, so the verify width is one more; the length has the bonus in it.

    They are of vLLM, without times. Modes share a drafter, not a length: the note says which.
    """
    model, mode = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if flow := _FLOW.match(line):
            mode = flow[1]
            for pair in flow[2].split(","):
                yield _length(model, mode, pair, number)
        elif name := _NAME.match(line):
            model, mode = (model, name[2]) if name[1] else (name[2], "")
        else:
            yield _length(model, mode, line, number)


def _length(model: str, mode: str, text: str, number: int) -> Reading | LeftOut:
    found = _PAIR.match(text)
    drafts, length = (int(found[1]), amount(found[2])) if found else (0, None)
    if not drafts or not length or not model:
        return LeftOut("entry that is no number of drafts with its length", 1, number, number, text)
    fields = {"model": model, "engine": "vllm", "num_draft_tokens": drafts + 1, "accept_length": length, "note": mode}
    return Reading(fields, number, number)
