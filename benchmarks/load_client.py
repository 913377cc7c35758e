"""Whether the load of `specsim check` distorts what it measures: a replayer of known rate, read over many streams.

python benchmarks/load_client.py [STREAMS] [TOKENS_A_SECOND] [TOKENS_A_CHUNK]
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from specsim.live.load import Load, Loader, sender_with
from specsim.live.prompts import built_in_prompts
from specsim.live.window import steady_window

SECONDS, LIMIT_PCT = 5.0, 2.0


class Replayer:
    """Answers so many streams at once with chunks at a fixed rate, in a process of its own, and says the rate it kept.

    Plain sockets, so that it takes as little of the machine as can be; what it sends fits into their buffers.
    """

    def __init__(self, streams: int, rate: float, each: int) -> None:
        self.streams, self.rate, self.each = streams, rate / streams / each, each

    def serve(self) -> None:
        """Wait for all of them, then replay."""
        with socket.create_server(("127.0.0.1", 0), backlog=self.streams) as server:
            print(server.getsockname()[1], flush=True)
            clients = [self.accept(server) for _ in range(self.streams)]
        start, sent = time.perf_counter(), 0
        while sent < int(self.rate * SECONDS):
            if (left := start + (sent + 1) / self.rate - time.perf_counter()) > 0:
                time.sleep(left)
            try:
                self.send(clients, (sent + 1) * self.each)
            except ConnectionError:
                break  # too late: the client has seen enough
            sent += 1
            if sent == 1:
                first = time.perf_counter()
        print((sent - 1) * self.each * self.streams / (time.perf_counter() - first), flush=True)
        time.sleep(1.0)  # for what is still to be read

    def send(self, clients: list[socket.socket], tokens: int) -> None:
        """The next chunk to all of them."""
        chunk = self.chunk(tokens)
        for client in clients:
            client.sendall(chunk)

    @staticmethod
    def accept(server: socket.socket) -> socket.socket:
        """Take a request, whatever it asks."""
        client, _ = server.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not client.recv(65536).endswith(b"}"):
            pass
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        return client

    @staticmethod
    def chunk(tokens: int) -> bytes:
        """A chunk as vLLM streams it, with the usage so far."""
        usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": tokens + 20}
        choice = {"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}
        event = {
            "id": "chatcmpl-0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1764439423,
            "model": "m",
        }
        data = b"data: " + json.dumps(event | {"choices": [choice], "usage": usage}).encode() + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)


async def read(port: int, streams: int) -> tuple[float, float, float]:
    """Measured tok/s, the processor time that a second of it took, and how much of it was spent waiting for a core."""
    async with sender_with(None) as sender:
        loader = Loader(sender, Load(f"http://127.0.0.1:{port}", "m", built_in_prompts(), streams, 10**6, {}))
        used, waited, start = time.process_time(), waited_s(), time.perf_counter()
        loader.start()
        await loader.hold(SECONDS + 0.5)
        took = time.perf_counter() - start
        busy, waited = (time.process_time() - used) / took, (waited_s() - waited) / took
        await loader.stop()
    return steady_window(loader.streams(), streams).output_tok_s.value, busy, waited


def waited_s() -> float:
    """How long this process was ready to run and had no core [s]; NaN where the system does not tell (not Linux)."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:
        return float("nan")


def main(streams: int, rate: float, each: int) -> int:
    """Print the rate that was sent beside the one measured; 1 where they lie apart."""
    command = [sys.executable, __file__, "replay", str(streams), str(rate), str(each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replayer:
        assert replayer.stdout is not None
        measured, busy, waited = asyncio.run(read(int(replayer.stdout.readline()), streams))
        sent = float(replayer.stdout.readline())
    off = 100 * (measured / sent - 1)
    print(
        f"{streams} streams, {each} tokens a chunk: {sent:,.0f} tok/s sent, {measured:,.0f} measured, {off:+.2f}%;",
        end=" ",
    )
    print(
        f"the client kept {busy:.0%} of a core busy, {1e6 * busy * each / sent:.0f} µs a chunk,"
        f" and waited for one {waited:.0%} of the time"
    )
    return int(abs(off) > LIMIT_PCT)


if __name__ == "__main__":
    replay = sys.argv[1:2] == ["replay"]
    given = sys.argv[2:] if replay else sys.argv[1:]
    counts = [int(float(value)) for value in given] + [256, 50_000, 1][len(given) :]
    if replay:
        Replayer(*counts).serve()
    else:
        sys.exit(main(*counts))
