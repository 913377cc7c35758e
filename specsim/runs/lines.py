"""The lines of a log that hold one of a few keys, found in whole blocks: what does not match is never split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

_BLOCK = 1 << 20
_LONGEST = 1 << 22  # bytes without a newline that are no line of a log

Line = tuple[int, bytes]


def matching_lines(
    stream: BinaryIO, keys: Sequence[bytes], advanced: Callable[[int], None] = lambda _: None
) -> Iterator[Line]:
    """Every line that holds a key, with its number from 1, in constant memory; `advanced` is told each block's bytes.

    The rest of a line longer than 4 MiB starts a line of its own.
    """
    number, rest = 1, b""
    while read := stream.read(_BLOCK):
        advanced(len(read))
        block = rest + read
        end = block.rfind(b"\n") + 1 or (len(block) if len(block) > _LONGEST else 0)
        block, rest = block[:end], block[end:]
        yield from _matches(block, keys, number)
        number += block.count(b"\n")
    yield from _matches(rest, keys, number)


def _matches(block: bytes, keys: Sequence[bytes], number: int) -> Iterator[Line]:
    """The matching lines of a block that starts with line `number`."""
    hits = {key: at for key in keys if (at := block.find(key)) >= 0}
    counted = 0
    while hits:
        nearest = min(hits.values())
        start = block.rfind(b"\n", 0, nearest) + 1
        stop = block.find(b"\n", nearest)
        stop = len(block) if stop < 0 else stop
        number += block.count(b"\n", counted, start)
        counted = start
        yield number, block[start:stop]
        hits = {key: at if at >= stop else block.find(key, stop) for key, at in hits.items()}
        hits = {key: at for key, at in hits.items() if at >= 0}
