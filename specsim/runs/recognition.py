"""Every format that an import reads: its name, how its content is told, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specsim.runs.formats.bench_text import (
    looks_like_serving_table,
    looks_like_summary,
    read_serving_tables,
    read_summaries,
)
from specsim.runs.formats.draft_statistics import looks_like_statistics, read_statistics
from specsim.runs.formats.engine_metrics import read_snapshots
from specsim.runs.formats.golden_lengths import looks_like_golden_lengths, read_golden_lengths
from specsim.runs.formats.json_results import KINDS, Kind, looks_like_results, read_results
from specsim.runs.formats.llama_cpp_log import LlamaCppLog
from specsim.runs.formats.llama_cpp_text import (
    looks_like_requests,
    looks_like_speculative_cli,
    read_requests,
    read_speculative_cli,
)
from specsim.runs.formats.nccl_tests import looks_like_nccl_tests
from specsim.runs.formats.prometheus import looks_like_prometheus
from specsim.runs.formats.sglang_log import SglangLog
from specsim.runs.formats.streams import looks_like_stream, read_stream
from specsim.runs.formats.tables import looks_like_table, read_tables
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
    LogFormat("llama.cpp-log", "llama.cpp eval and draft acceptance lines", LlamaCppLog, LlamaCppLog.keys),
    LogFormat("tensorrt-llm-log", "TensorRT-LLM iteration lines", TensorrtLlmLog, TensorrtLlmLog.keys),
)


def _kind(kind: Kind) -> TextFormat:
    """A kind of JSON result as a format of its own, for who forces it; JSON_RESULTS tells kinds apart."""

    def read(text: str, stated: Stated) -> Iterator[Reading | LeftOut]:
        return read_results(text, stated, kind.name)

    return TextFormat(kind.name, kind.what, lambda _: False, _each(read))


def _all_reduce_table(text: str, _: Stated) -> Iterator[LeftOut]:
    """An all-reduce table times no run; the command that reads it is named."""
    lines = text.splitlines()
    yield LeftOut("all-reduce times of nccl-tests, which are no run: specsim comm FILE reads them", 1, 1, len(lines))


JSON_RESULTS = TextFormat("json", "results as JSON", looks_like_results, _each(read_results))
TEXT_FORMATS = (
    TextFormat(
        "prometheus",
        "Prometheus text of SGLang, vLLM or llama.cpp",
        looks_like_prometheus,
        lambda texts, _: read_snapshots(texts),
    ),
    TextFormat("nccl-tests", "nccl-tests (for specsim comm)", looks_like_nccl_tests, _each(_all_reduce_table)),
    TextFormat("serving-table", "printed serving benchmark", looks_like_serving_table, _each(read_serving_tables)),
    TextFormat("task-summary", "printed SGLang task benchmark", looks_like_summary, _each(read_summaries)),
    TextFormat("llama.cpp-cli", "llama-speculative's totals", looks_like_speculative_cli, _each(read_speculative_cli)),
    TextFormat("llama.cpp-requests", "table of llama.cpp requests", looks_like_requests, _each(read_requests)),
    TextFormat("stream", "recorded stream of an OpenAI-style server", looks_like_stream, _each(read_stream)),
    TextFormat("golden-lengths", "golden accept lengths", looks_like_golden_lengths, _each(read_golden_lengths)),
    TextFormat("draft-statistics", "DSpark statistics", looks_like_statistics, _each(read_statistics)),
    TextFormat("table", "CSV or Markdown table", looks_like_table, _each(read_tables)),
    *map(_kind, KINDS),
)
_ALL: tuple[TextFormat | LogFormat, ...] = (*TEXT_FORMATS, *LOG_FORMATS)
FORMATS = {each.name: each for each in _ALL}
