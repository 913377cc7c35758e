"""A server of the OpenAI API on the loopback that runs cycles of known length and acceptance, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field

import numpy as np

from specsim.live.facts import Counters, ServerFacts
from specsim.quantities import Setup, SpecConfig

PROMPT = 12
"""Tokens that every prompt is told to have."""


@dataclass
class Request:
    """A request in the batch: where its chunks go, and the tokens it still wants."""

    writer: asyncio.StreamWriter
    left: int
    chat: bool
    usage: bool
    emitted: int = 0
    held: list = field(default_factory=list)


@dataclass
class OpenAiServer:
    """Every cycle accepts drafts with chance `accept` each until one is refused; `spec` None decodes plainly.

    `die_after` is the cycle at which it drops every connection and listens no more; `key` what a client has to bring;
    `chat` and `usage` say whether it knows chats and tells usage, `most` how many requests it runs at once; with `collects` an
    answer comes all at once, as through a proxy that buffers.
    """

    spec: SpecConfig | None = field(default_factory=lambda: SpecConfig(3, 1, 4))
    cycle_s: float = 0.010
    prefill_s: float = 0.005
    accept: float = 0.7
    die_after: int | None = None
    key: str | None = None
    chat: bool = True
    usage: bool = True
    most: int = 1000
    collects: bool = False
    seed: int = 1

    def __enter__(self):
        self.cycles = self.accepted = self.steps = self.prompt_tokens = 0
        self.accepted_at = [0] * (0 if self.spec is None else self.spec.num_steps)
        self.bodies, self.running, self.waiting, self.writers, self.dead = [], [], [], [], False
        self.rng, self.loop = np.random.default_rng(self.seed), asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join(10)

    # -- what an adapter would read -----------------------------------------------------------------------------------

    def facts(self) -> ServerFacts:
        setup = Setup(model="tiny", engine="vllm")
        method = None if self.spec is None else self.spec.method
        return ServerFacts(self.url, setup, "tiny", self.spec, True, method, None)

    def counters(self) -> Counters:
        return Counters(
            0.0, self.cycles, self.accepted, None, tuple(self.accepted_at), prompt_tokens=float(self.prompt_tokens)
        )

    # -- the server ---------------------------------------------------------------------------------------------------

    def _serve(self, ready):
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._main(ready))
        self.loop.close()

    async def _main(self, ready):
        self.over = asyncio.Event()
        self.server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        engine = asyncio.create_task(self._engine())
        ready.set()
        await self.over.wait()
        engine.cancel()
        await self._listen_no_more()
        busy = True
        while busy:  # until every client's handler has ended
            busy = len(asyncio.all_tasks()) > 1
            for writer in self.writers:  # also where a handler has closed: what nobody reads keeps a connection open
                writer.transport.abort()
            await asyncio.sleep(0.01)  # it is gone a moment later

    async def _engine(self):
        """Prefill what waits, then one cycle for all that run."""
        while True:
            if self.waiting and len(self.running) < self.most:
                await asyncio.sleep(self.prefill_s)
                while self.waiting and len(self.running) < self.most:
                    self.prompt_tokens += PROMPT
                    self._emit(request := self.waiting.pop(0), 1)
                    self.running.append(request)
            await asyncio.sleep(self.cycle_s if self.running else 0.001)
            self.steps += bool(self.running)
            if self.die_after is not None and self.steps >= self.die_after:
                await self._die()
                return
            for request in list(self.running):
                self._cycle(request)

    def _cycle(self, request):
        drafts = 0
        if self.spec is not None:
            refused = np.flatnonzero(self.rng.random(self.spec.num_steps) >= self.accept)
            drafts = int(refused[0]) if refused.size else self.spec.num_steps
            self.cycles, self.accepted = self.cycles + 1, self.accepted + drafts
            for position in range(drafts):
                self.accepted_at[position] += 1
        self._emit(request, min(1 + drafts, request.left))

    def _emit(self, request, tokens):
        request.left -= tokens
        request.emitted += tokens
        finish = "length" if request.left == 0 else None
        said = {"delta": {"content": " word" * tokens}} if request.chat else {"text": " word" * tokens}
        event = {"choices": [{"index": 0, **said, "finish_reason": finish}]}
        usage = {"prompt_tokens": PROMPT, "completion_tokens": request.emitted}
        request.held.append(event | ({"usage": usage} if request.usage else {}))
        if finish or not self.collects:
            for each in request.held:
                self._send(request.writer, each)
            request.held.clear()
        if finish or request.writer.is_closing():
            self._send(request.writer, {"choices": [], "usage": usage})
            self._send(request.writer, None)
            if request in self.running:
                self.running.remove(request)

    @staticmethod
    def _send(writer, event):
        data = b"data: " + (b"[DONE]" if event is None else json.dumps(event).encode()) + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if event is None else b""))

    async def _listen_no_more(self):
        """Take no connection, and close: asyncio leaves open what it is taking at the very moment of closing."""
        for socket in self.server.sockets:
            self.loop.remove_reader(socket.fileno())
        await asyncio.sleep(0.01)
        self.server.close()

    async def _die(self):
        self.dead = True
        await self._listen_no_more()
        for writer in self.writers:
            writer.transport.abort()

    async def _client(self, reader, writer):
        self.writers.append(writer)
        try:
            while not self.dead:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = json.loads(await reader.readexactly(int(fields["content-length"])))
        self.bodies.append(body)
        chat = "/chat/" in head.split(" ")[1]
        if self.key is not None and fields.get("authorization") != f"bearer {self.key}":
            self._refuse(writer, 401, f"wrong key: {fields.get('authorization')}")
        elif chat and not self.chat:
            self._refuse(writer, 400, "no chat template")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            if chat:
                self._send(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
            self.waiting.append(Request(writer, body["max_tokens"], chat, self.usage))

    @staticmethod
    def _refuse(writer, status, message):
        text = json.dumps({"error": {"message": message}}).encode()
        writer.write(b"HTTP/1.1 %d Refused\r\ncontent-length: %d\r\n\r\n%s" % (status, len(text), text))


class Adapter:
    """What a real adapter asks over HTTP, read from the server's own memory."""

    extra_body = {"ignore_eos": True}  # noqa: RUF012 (as an engine's adapter has it)

    def __init__(self, server: OpenAiServer, counts: bool = True) -> None:
        self.server, self.counts = server, counts

    async def facts(self) -> ServerFacts:
        return self.server.facts()

    async def counters(self) -> Counters:
        return self.server.counters() if self.counts else Counters(0.0)
