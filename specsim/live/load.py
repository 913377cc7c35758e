"""A load over the OpenAI API: so many streams at once, each followed by the next, every chunk with its time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from specsim.errors import SpecsimError
from specsim.live.prompts import Prompt
from specsim.live.window import Stream

if TYPE_CHECKING:
    import httpx

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_NO_SUCH_ROUTE = (400, 404, 405, 422, 500, 501)
"""How servers without a chat template, or without the route, refuse a chat."""
_SHOWN = 200


class RequestError(SpecsimError):
    """A request that was refused or broke off; says what the server said."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class Load:
    """What is sent: to which root, for which model, which prompts in turn, how many at once, how many tokens each.

    `route` is CHAT or COMPLETIONS; `extra_body` what the engine takes beside the standard, such as ignore_eos.
    """

    url: str
    model: str
    prompts: Sequence[Prompt]
    concurrency: int
    output_len: int
    extra_body: Mapping[str, object]
    route: str = CHAT

    def body(self, number: int) -> dict[str, Any]:
        """The request of this number: greedy unless its prompt says otherwise, streamed, with usage in every chunk."""
        prompt = self.prompts[number % len(self.prompts)]
        chat = self.route == CHAT
        said = {"messages": [dict(m) for m in prompt.messages or _asked(prompt)]} if chat else {"prompt": prompt.plain}
        return {
            "model": self.model,
            **said,
            "temperature": 0,
            **prompt.sampling,
            "max_tokens": self.output_len,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **self.extra_body,
        }


def _asked(prompt: Prompt) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": prompt.text}]


@dataclass
class Recording:
    """One request as it goes: appended to while its stream is read."""

    sent_s: float
    chunk_s: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    cut_at: int | None = None
    ended: bool = False

    def stream(self) -> Stream:
        """What is seen of it so far, frozen."""
        count = len(self.chunk_s)
        return Stream(
            self.sent_s,
            np.array(self.chunk_s),
            np.array(self.told[:count]),
            self.usage.get("prompt_tokens"),
            (self.usage.get("completion_tokens") or self.cut_at) if self.ended else None,
        )

    def event(self, data: bytes, now: float, output_len: int) -> None:
        """Take one server-sent event that arrived at `now`; raises RequestError where it is an error."""
        try:
            told = json.loads(data)
        except ValueError:
            raise RequestError(f"sent a chunk that is not JSON: {_short(data)}") from None
        if not isinstance(told, dict) or told.get("error"):
            raise RequestError(f"broke off with {_short(data)}")
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


_COUNTED = ("prompt_tokens", "completion_tokens")


def _has_output(choice: Mapping[str, Any]) -> bool:
    """Whether a chunk carries output: an empty text does unless it opens or ends a stream, as half a character is."""
    delta = choice.get("delta") or {}
    if choice.get("text") or any(delta.get(name) for name in _OUTPUT):
        return True
    return choice.get("finish_reason") is None and "role" not in delta


_OUTPUT = ("content", "reasoning_content", "reasoning", "tool_calls")


class Loader:
    """Sends a load and keeps what comes back, over any number of starts and stops.

    `recordings` holds every request in the order of sending, those that were cut off too; `idle_s` is how long nothing was sent
    between a stop and the next start.
    """

    def __init__(self, client: httpx.AsyncClient, load: Load) -> None:
        self.load = load
        self.recordings: list[Recording] = []
        self._client = client
        self._task: asyncio.Future[None] | None = None
        self._stopped_s: float | None = None
        self.idle_s = 0.0

    def streams(self) -> list[Stream]:
        """What is seen so far, frozen."""
        return [recording.stream() for recording in self.recordings]

    def start(self) -> None:
        """Send as many requests as run at once, and one more whenever one ends."""
        if self._stopped_s is not None:
            self.idle_s += perf_counter() - self._stopped_s
        self._task = asyncio.ensure_future(self._run())

    async def hold(self, seconds: float) -> None:
        """Let the load run; raises RequestError as soon as a request fails, since then fewer run than were asked."""
        if self._task is None:
            raise RuntimeError("a load is started before it is held")
        await asyncio.wait({self._task}, timeout=seconds)
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Cut off what runs; what has arrived stays."""
        if self._task is not None:
            self._task.cancel()
            self._stopped_s = perf_counter()
            await asyncio.gather(self._task, return_exceptions=True)  # a failure was raised where the load was held

    async def warm_up(self, output_len: int) -> None:
        """As many requests as will run at once, once, to the end, none of them kept; raises RequestError."""
        short = replace(self.load, output_len=min(output_len, self.load.output_len))
        before = Loader(self._client, short)
        await before._together([before._request(-1 - i) for i in range(self.load.concurrency)])

    async def _run(self) -> None:
        await self._together([self._follow() for _ in range(self.load.concurrency)])

    async def _together(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """All of it at once; when one part fails the others are cut off, and its error is raised."""
        tasks = [asyncio.ensure_future(part) for part in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await self._request(len(self.recordings))

    async def _request(self, number: int) -> None:
        """One request from sending to its end, recorded chunk by chunk."""
        import httpx

        body = self.load.body(number)
        recording = Recording(perf_counter())
        self.recordings.append(recording)
        try:
            async with self._client.stream(
                "POST", self.load.url + self.load.route, json=body, headers=_AS_IS
            ) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise RequestError(f"answered {answer.status_code}: {_short(answer.content)}", answer.status_code)
                await self._read(answer, recording)
        except httpx.HTTPError as error:
            raise self._failed(f"broke off ({type(error).__name__}: {error})") from None
        except RequestError as error:
            raise self._failed(str(error), error.status) from None

    async def _read(self, answer: httpx.Response, recording: Recording) -> None:
        """Server-sent events by the bytes: their time is that of the read that completed them."""
        rest = b""
        async for data in answer.aiter_raw():
            now = perf_counter()
            *events, rest = (rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                if event.startswith(b"data:") and (told := event[5:].strip()) != _DONE:
                    recording.event(told, now, self.load.output_len)
                elif event.startswith(b"data:"):
                    recording.ended = True
        if not recording.ended or not recording.chunk_s:
            raise RequestError("ended its stream before the answer was complete")

    def _failed(self, message: str, status: int | None = None) -> RequestError:
        """The failure with its address, the API key out of whatever the server said."""
        key = self._client.headers.get("authorization", "").removeprefix("Bearer ")
        shown = message.replace(key, "…") if key else message
        return RequestError(f"{self.load.url}{self.load.route} {shown}", status)


_DONE = b"[DONE]"
_AS_IS = {"accept-encoding": "identity"}


def client_with(api_key: str | None) -> httpx.AsyncClient:
    """A client for any number of streams, patient with answers; the key goes into its requests.

    No connection is used twice: a server may close an idle one just as the next request is sent on it, as llama.cpp's
    does, and a POST that was lost so is not sent again.
    """
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=httpx.Timeout(None, connect=_CONNECT_S))


_CONNECT_S = 10.0


async def route_of(client: httpx.AsyncClient, load: Load) -> Load:
    """The load on the route that the server answers: as chat, or as plain text where it refuses a chat.

    Raises RequestError where it answers neither.
    """
    if not any(prompt.messages for prompt in load.prompts):
        load = replace(load, route=COMPLETIONS)
    try:
        await Loader(client, replace(load, concurrency=1)).warm_up(_FIRST)
    except RequestError as refused:
        if load.route == COMPLETIONS or refused.status not in _NO_SUCH_ROUTE:
            raise
        load = replace(load, route=COMPLETIONS)
        try:
            await Loader(client, replace(load, concurrency=1)).warm_up(_FIRST)
        except RequestError as error:
            raise RequestError(f"{refused}\n{error}", error.status) from None
    return load


_FIRST = 8
"""Tokens of the request that tries a route."""


def _short(data: bytes) -> str:
    text = " ".join(data.decode("utf-8", "replace").split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
