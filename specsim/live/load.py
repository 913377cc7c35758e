"""A load over the OpenAI API: so many streams at once, each followed by the next, every chunk with its time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from specsim.live.prompts import Prompt
from specsim.live.recording import Recording, RequestError, short
from specsim.live.window import Stream

if TYPE_CHECKING:
    import aiohttp

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_NO_SUCH_ROUTE = (400, 404, 405, 422, 500, 501)
"""How servers without a chat template, or without the route, refuse a chat."""


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


class Loader:
    """Sends a load and keeps what comes back, over any number of starts and stops.

    `recordings` holds every request in the order of sending, those that were cut off too; `idle_s` is how long nothing was sent
    between a stop and the next start.
    """

    def __init__(self, sender: aiohttp.ClientSession, load: Load) -> None:
        self.load = load
        self.recordings: list[Recording] = []
        self._sender = sender
        self._proxy = _proxy_for(load.url)
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
        brief = replace(self.load, output_len=min(output_len, self.load.output_len))
        before = Loader(self._sender, brief)
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
        import aiohttp

        body = self.load.body(number)
        recording = Recording(perf_counter())
        self.recordings.append(recording)
        try:
            async with self._sender.post(
                self.load.url + self.load.route, json=body, headers=_AS_IS, proxy=self._proxy, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise RequestError(f"answered {answer.status}: {short(await answer.read())}", answer.status)
                async for data in answer.content.iter_any():
                    recording.read(data, perf_counter(), self.load.output_len)
            recording.check_whole()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failed(f"broke off ({type(error).__name__}: {error})") from None
        except RequestError as error:
            raise self._failed(str(error), error.status) from None

    def _failed(self, message: str, status: int | None = None) -> RequestError:
        """The failure with its address, the API key out of whatever the server said."""
        key = self._sender.headers.get("authorization", "").removeprefix("Bearer ")
        shown = message.replace(key, "…") if key else message
        return RequestError(f"{self.load.url}{self.load.route} {shown}", status)


_AS_IS = {"accept-encoding": "identity"}


def sender_with(api_key: str | None) -> aiohttp.ClientSession:
    """What sends any number of streams, patient with answers; the key goes into its requests. Made in a running loop.

    No connection is used twice: a server may close an idle one just as the next request is sent on it, as llama.cpp's
    does, and a POST that was lost so is not sent again. Certificates are those that httpx trusts when it asks.
    """
    import aiohttp
    import httpx

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, ssl=httpx.create_ssl_context()),
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address, as httpx takes it."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


_CONNECT_S = 10.0


async def route_of(sender: aiohttp.ClientSession, load: Load) -> Load:
    """The load on the route that the server answers: as chat, or as plain text where it refuses a chat.

    Raises RequestError where it answers neither.
    """
    if not any(prompt.messages for prompt in load.prompts):
        load = replace(load, route=COMPLETIONS)
    try:
        await Loader(sender, replace(load, concurrency=1)).warm_up(_FIRST)
    except RequestError as refused:
        if load.route == COMPLETIONS or refused.status not in _NO_SUCH_ROUTE:
            raise
        load = replace(load, route=COMPLETIONS)
        try:
            await Loader(sender, replace(load, concurrency=1)).warm_up(_FIRST)
        except RequestError as error:
            raise RequestError(f"{refused}\n{error}", error.status) from None
    return load


_FIRST = 8
"""Tokens of the request that tries a route."""
