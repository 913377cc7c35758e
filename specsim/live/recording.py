"""One request as its stream is read: server-sent events become chunks with their times and the tokens so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specsim.errors import SpecsimError
from specsim.live.window import Stream

_SHOWN = 200


class RequestError(SpecsimError):
    """A request that was refused or broke off; says what the server said."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@dataclass
class Recording:
    """One request as it goes: appended to while its stream is read."""

    sent_s: float
    chunk_s: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    cut_at: int | None = None
    ended: bool = False
    rest: bytes = b""

    def stream(self) -> Stream:
        """What is seen of it so far, frozen; chunks may come meanwhile, in another thread."""
        count = len(self.chunk_s)
        return Stream(
            self.sent_s,
            np.array(self.chunk_s[:count]),
            np.array(self.told[:count]),
            self.usage.get("prompt_tokens"),
            (self.usage.get("completion_tokens") or self.cut_at) if self.ended else None,
        )

    def read(self, data: bytes, now: float, output_len: int) -> None:
        """Take what one read brought: whole events are of that moment, a beginning waits for the next read.

        Raises RequestError where an event is an error or no JSON.
        """
        *events, self.rest = (self.rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and (told := event[5:].strip()) != _DONE:
                self._event(told, now, output_len)
            elif event.startswith(b"data:"):
                self.ended = True

    def check_whole(self) -> None:
        """Raise RequestError where the stream ended before its answer did."""
        if not self.ended or not self.chunk_s:
            raise RequestError("ended its stream before the answer was complete")

    def _event(self, data: bytes, now: float, output_len: int) -> None:
        try:
            told = json.loads(data)
        except ValueError:
            raise RequestError(f"sent a chunk that is not JSON: {short(data)}") from None
        if not isinstance(told, dict) or told.get("error"):
            raise RequestError(f"broke off with {short(data)}")
        usage = told.get("usage") or {}
        before = self.usage.get("completion_tokens", 0)
        self.usage.update({name: usage[name] for name in _COUNTED if isinstance(usage.get(name), int)})
        choices = told.get("choices") or []
        if not choices:
            return
        if choices[0].get("finish_reason") == "length":
            self.cut_at = output_len
        if "completion_tokens" in usage:
            if usage["completion_tokens"] > before:
                self._add(now, float(usage["completion_tokens"]))
        elif _has_output(choices[0]):
            self._add(now, float("nan"))

    def _add(self, now: float, tokens: float) -> None:
        self.told.append(tokens)
        self.chunk_s.append(now)


_DONE = b"[DONE]"
_COUNTED = ("prompt_tokens", "completion_tokens")


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether a chunk carries output: an empty text does unless it opens or ends a stream, as half a character is."""
    delta = choice.get("delta") or {}
    if choice.get("text") or any(delta.get(name) for name in _OUTPUT):
        return True
    return choice.get("finish_reason") is None and "role" not in delta


_OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls")


def short(data: bytes) -> str:
    """The beginning of what a server sent, on one line, for errors."""
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
