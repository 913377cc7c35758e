"""What a load asks: prompts of our own, or those of a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specsim.errors import Fault, InputError
from specsim.runs.text import text_of

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty")
"""How a line may say that its answer is drawn; everything else in a request is the load's own."""

_TASKS = (
    "Explain {topic} to a colleague who has never met it, with one worked example.",
    "Write a Python class that models {topic}, with docstrings and a short test.",
    "List the most common mistakes people make about {topic}, and correct each.",
    "Write a dialogue in which two engineers disagree about {topic} and settle it.",
    "Draft the outline of a two-hour lecture on {topic}, with an exercise for every part.",
    "Tell the history of {topic} from its beginnings, decade by decade.",
    "Write step-by-step instructions for somebody who has to deal with {topic} tomorrow.",
    "Compare three ways of thinking about {topic} in a table, then argue for one.",
)
_TOPICS = (
    "binary search trees", "the water cycle", "double-entry bookkeeping", "tides", "public-key signatures",
    "bread fermentation", "railway timetables", "least squares", "bridge suspension cables", "vaccination schedules",
    "rainfall statistics", "chess openings", "garbage collection in compilers", "map projections", "queueing at a bank",
    "the boiling of water at altitude", "musical scales", "crop rotation", "elevator scheduling", "optical lenses",
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """One question, as chat messages or as plain text, with how its answer is to be drawn where that is stated."""

    messages: tuple[Mapping[str, str], ...] = ()
    text: str = ""
    sampling: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def plain(self) -> str:
        """Its text without roles."""
        return self.text or "\n\n".join(message["content"] for message in self.messages)


def built_in_prompts() -> tuple[Prompt, ...]:
    """160 prompts of prose, code and lists, no two alike, so that no two requests of a batch draft the same."""
    pairs = (
        (task, topic) for shift in range(len(_TOPICS)) for task, topic in zip(_TASKS, _rotated(shift), strict=False)
    )
    return tuple(_said(task.format(topic=topic)) for task, topic in pairs)


def _rotated(shift: int) -> Iterable[str]:
    return (*_TOPICS[shift:], *_TOPICS[:shift])


def _said(text: str) -> Prompt:
    return Prompt(messages=(MappingProxyType({"role": "user", "content": text}),))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a JSONL file: `messages`, `prompt` or `turns` (of which the first is asked), and sampling.

    Raises InputError with the fault of every line.
    """
    lines = text_of(path, _ALLOWED).splitlines()
    found: list[Prompt] = []
    faults: list[Fault] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            _add(line, f"{path}, line {number}", found, faults)
    if not found and not faults:
        faults.append(Fault(str(path), "", "has no prompts", _ALLOWED))
    if faults:
        more = [Fault(f"and {len(faults) - 10} more faults", "", "", "")] if len(faults) > 10 else []
        raise InputError([*faults[:10], *more])
    return tuple(found)


_ALLOWED = 'allowed: a line {"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]} for each'


def _add(line: str, where: str, found: list[Prompt], faults: list[Fault]) -> None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        faults.append(Fault(where, "", "is not JSON", _ALLOWED))
        return
    prompt = _prompt(row) if isinstance(row, dict) else None
    if prompt is None:
        faults.append(Fault(where, "", "states no prompt", _ALLOWED))
    else:
        found.append(prompt)


def _prompt(row: Mapping[str, Any]) -> Prompt | None:
    sampling = MappingProxyType({name: row[name] for name in SAMPLING if row.get(name) is not None})
    turns = row.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else row.get("prompt")
    if row.get("messages") is not None:
        messages = tuple(_messages(row["messages"]))
        return Prompt(messages, sampling=sampling) if messages else None
    if not isinstance(text, str) or not text.strip():
        return None
    asked = _said(text) if turns else Prompt(text=text)
    return Prompt(asked.messages, asked.text, sampling)


def _messages(written: Any) -> Iterator[Mapping[str, str]]:
    """Messages with a role and a text; nothing at all where one of them has none."""
    each = written if isinstance(written, list) else []
    if all(isinstance(m, dict) and isinstance(m.get("content"), str) and isinstance(m.get("role"), str) for m in each):
        yield from (MappingProxyType({"role": m["role"], "content": m["content"]}) for m in each)
