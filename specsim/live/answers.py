"""What servers answer to a GET: a text or why there is none, without ever raising; and secrets kept out of sentences."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from specsim.errors import ServerError

if TYPE_CHECKING:
    import httpx

_PATIENCE_S = 15.0
_MOST_BYTES = 32 * 1024**2
_SHOWN = 160
_SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")

_SCHEMES = ("Bearer", "Basic", "Digest")


@dataclass(frozen=True)
class Answer:
    """What came back for a path: its text, or a problem in words; `time_s` is when, on the clock of perf_counter.

    `status` is None where nothing came back at all; `shown` is the text as errors may quote it.
    """

    path: str
    status: int | None
    text: str = field(default="", repr=False)
    problem: str = ""
    time_s: float = 0.0
    shown: str = ""

    @property
    def body(self) -> Any:
        """The JSON of a good answer; None where there is none."""
        if self.problem:
            return None
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def json_object(self) -> dict[str, Any]:
        """The JSON object of a good answer; empty where there is none."""
        body = self.body
        return body if isinstance(body, dict) else {}

    def __str__(self) -> str:
        """The question and what came of it, for errors."""
        return f"GET {self.path}: {self.problem or f'{self.status}, {self.shown}'}"


def root_of(url: str) -> str:
    """A server's root, of its address with or without a path of the OpenAI API; raises ServerError on no http address."""
    address = url.strip()
    try:
        parts = urlsplit(address)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        known = False
    if not known:
        raise ServerError(f"{public(address)!r} is no address of a server: state it as http://host:port")
    path = re.sub(r"/v1(/(chat/)?completions|/models)?$", "", parts.path.rstrip("/"))
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def public(url: str) -> str:
    """An address without the user and password that it may carry, nor a query."""
    scheme, slashes, rest = url.partition("://")
    bare = (rest if slashes else scheme).split("?")[0].split("#")[0]
    host, slash, path = bare.partition("/")
    return f"{scheme + slashes if slashes else ''}{host.rpartition('@')[2]}{slash}{path}"


def client_with(api_key: str | None) -> httpx.AsyncClient:
    """What asks servers; the key goes into its requests. No connection is used twice, since servers close idle ones."""
    import httpx

    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(headers=headers, limits=httpx.Limits(max_keepalive_connections=0))


async def ask(client: httpx.AsyncClient, root: str, path: str) -> Answer:
    """What the server answers; a failure of any kind is an answer too."""
    import httpx

    status: int | None = None
    try:
        async with asyncio.timeout(_PATIENCE_S), client.stream("GET", root + path) as response:
            status = response.status_code
            text, whole = await _read(response)
    except TimeoutError:
        problem = f"no answer within {_PATIENCE_S:g} s"
    except httpx.TimeoutException:
        problem = "no answer in time"
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError, OSError) as error:
        problem = _excerpt(_without_secrets(client, f"{type(error).__name__} {error}".strip()))
    else:
        shown = _excerpt(_without_secrets(client, text))
        if whole and status == 200:
            return Answer(path, status, text, "", perf_counter(), shown)
        problem = f"{status} {response.reason_phrase}, {shown}" if whole else f"more than {_MOST_BYTES} bytes"
        return Answer(path, status, "", problem, perf_counter())
    return Answer(path, None, "", problem, perf_counter())


async def ask_all(client: httpx.AsyncClient, root: str, paths: Iterable[str]) -> dict[str, Answer]:
    """Several answers, asked for together, by path."""
    answers = await asyncio.gather(*(ask(client, root, path) for path in paths))
    return {answer.path: answer for answer in answers}


def alive(root: str, answers: Iterable[Answer]) -> None:
    """Raise ServerError where not one question was answered at all."""
    asked = list(answers)
    if all(answer.status is None for answer in asked):
        raise ServerError(
            f"{public(root)} does not answer (any more): {'; '.join(map(str, asked))}\nis the server up, and is this its"
            " address (http://host:port)?"
        )


async def _read(response: httpx.Response) -> tuple[str, bool]:
    """The text of a response, and whether that is all of it."""
    pieces, size = [], 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > _MOST_BYTES:
            return "", False
        pieces.append(piece)
    return b"".join(pieces).decode("utf-8", "replace"), True


def _without_secrets(client: httpx.AsyncClient, text: str) -> str:
    """A text without what the client's headers keep secret: servers echo a wrong key."""
    for name in _SECRET_HEADERS:
        value = client.headers.get(name, "")
        for secret in sorted({value, *value.split()}, key=len, reverse=True):
            if len(secret) > 3 and secret not in _SCHEMES:
                text = text.replace(secret, "…")
    return text


def _excerpt(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text[: 2 * _SHOWN])
    shown = " ".join(shown.split())
    return repr(shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…")
