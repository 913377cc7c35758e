"""Every format that an import reads: its name, how its content is told, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specsim.runs.formats.prometheus import looks_like_prometheus, read_snapshots
from specsim.runs.formats.sglang_log import SglangLog
from specsim.runs.formats.tensorrt_llm_log import TensorrtLlmLog
from specsim.runs.formats.vllm_iterations import VllmIterations
from specsim.runs.formats.vllm_log import VllmLog
from specsim.runs.readings import LeftOut, Reading

Stated = Mapping[str, Any]
Named = tuple[str, Reading | LeftOut]
"""What was read, with the name of the file that it comes from."""


class LineReader(Protocol):
    """Reads a log line by line: told each line that holds one of its keys, says at the end what they make."""

    def feed(self, number: int, line: bytes) -> None:
        """One line that holds a key."""

    def finish(self) -> Iterator[Reading | LeftOut]:
        """The runs, and what was left out."""


@dataclass(frozen=True)
class LogFormat:
    """A log whose lines are told by the reader's keys; several kinds may stand in one file."""

    name: str
    what: str
    reader: Callable[[Stated], LineReader]
    keys: tuple[bytes, ...]


@dataclass(frozen=True)
class TextFormat:
    """A text that is read whole, told by how it begins; `read` takes all files of the format, named."""

    name: str
    what: str
    looks_like: Callable[[str], bool]
    read: Callable[[Sequence[tuple[str, str]], Stated], Iterator[Named]]


def _each(read: Callable[[str, Stated], Iterator[Reading | LeftOut]]) -> Any:
    """A reader of several texts that takes each by itself."""

    def read_all(texts: Sequence[tuple[str, str]], stated: Stated) -> Iterator[Named]:
        for name, text in texts:
            yield from ((name, found) for found in read(text, stated))

    return read_all


LOG_FORMATS = (
    LogFormat("sglang-log", "SGLang decode lines", SglangLog, SglangLog.keys),
    LogFormat("vllm-log", "vLLM engine and SpecDecoding lines", VllmLog, VllmLog.keys),
    LogFormat("vllm-iterations", "vLLM iteration details", VllmIterations, VllmIterations.keys),
    LogFormat("tensorrt-llm-log", "TensorRT-LLM iteration lines", TensorrtLlmLog, TensorrtLlmLog.keys),
)
TEXT_FORMATS = (
    TextFormat(
        "prometheus",
        "Prometheus text of SGLang, vLLM or llama.cpp",
        looks_like_prometheus,
        lambda texts, _: read_snapshots(texts),
    ),
)
FORMATS = {each.name: each for each in (*TEXT_FORMATS, *LOG_FORMATS)}
