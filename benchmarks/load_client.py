"""Whether the load of `specsim check` distorts what it measures: a replayer of known rate, read over many streams.

python benchmarks/load_client.py [STREAMS] [TOKENS_A_SECOND] [TOKENS_A_CHUNK]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

from specsim.live.load import Load, Loader, client_with
from specsim.live.prompts import built_in_prompts
from specsim.live.window import steady_window

SECONDS, LIMIT_PCT = 5.0, 2.0


class Replayer:
    """Answers so many streams at once with chunks at a fixed rate, in a process of its own, and says the rate it kept."""

    def __init__(self, streams: int, rate: float, each: int) -> None:
        self.streams, self.rate, self.each = streams, rate / streams / each, each
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self) -> None:
        """Wait for all of them, then replay."""
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        while len(self.writers) < self.streams:
            await asyncio.sleep(0.01)
        clock = asyncio.get_running_loop().time
        start, chunks = clock(), int(self.rate * SECONDS)
        for number in range(1, chunks + 1):
            if (left := start + number / self.rate - clock()) > 0:
                await asyncio.sleep(left)
            chunk = self.chunk(number * self.each)
            for writer in self.writers:
                if not writer.is_closing():
                    writer.write(chunk)
        print((chunks - 1) * self.each * self.streams / (clock() - start - 1 / self.rate), flush=True)
        await asyncio.sleep(1.0)  # for what is still to be read

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

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a request, whatever it asks."""
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        self.writers.append(writer)


async def read(port: int, streams: int) -> tuple[float, float]:
    """Measured tok/s, and the processor time that a second of it took."""
    async with client_with(None) as client:
        loader = Loader(client, Load(f"http://127.0.0.1:{port}", "m", built_in_prompts(), streams, 10**6, {}))
        used, start = time.process_time(), time.perf_counter()
        loader.start()
        await loader.hold(SECONDS + 0.5)
        busy = (time.process_time() - used) / (time.perf_counter() - start)
        await loader.stop()
    return steady_window(loader.streams(), streams).output_tok_s.value, busy


def main(streams: int, rate: float, each: int) -> int:
    """Print the rate that was sent beside the one measured; 1 where they lie apart."""
    command = [sys.executable, __file__, "replay", str(streams), str(rate), str(each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as replayer:
        assert replayer.stdout is not None
        measured, busy = asyncio.run(read(int(replayer.stdout.readline()), streams))
        sent = float(replayer.stdout.readline())
    off = 100 * (measured / sent - 1)
    print(
        f"{streams} streams, {each} tokens a chunk: {sent:,.0f} tok/s sent, {measured:,.0f} measured, {off:+.2f}%;",
        end=" ",
    )
    print(f"the client kept {busy:.0%} of a core busy, {1e6 * busy * each / sent:.0f} µs a chunk")
    return int(abs(off) > LIMIT_PCT)


if __name__ == "__main__":
    replay = sys.argv[1:2] == ["replay"]
    given = sys.argv[2:] if replay else sys.argv[1:]
    counts = [int(float(value)) for value in given] + [256, 50_000, 1][len(given) :]
    if replay:
        asyncio.run(Replayer(*counts).serve())
    else:
        sys.exit(main(*counts))
