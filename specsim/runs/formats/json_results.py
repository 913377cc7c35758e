"""Result files in JSON or JSONL: parsed once, told apart by their keys, each kind read by its own module."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.runs.formats.aiperf import is_aiperf, read_aiperf
from specsim.runs.formats.llama_cpp_timings import is_timings, read_timings
from specsim.runs.formats.located import Located
from specsim.runs.formats.sglang_results import (
    is_bench_one_batch,
    is_bench_serving,
    is_bench_speculative,
    read_bench_one_batch,
    read_bench_serving,
    read_bench_speculative,
)
from specsim.runs.formats.specforge import (
    is_specforge,
    is_specforge_benchmark,
    read_specforge,
    read_specforge_benchmark,
)
from specsim.runs.formats.sps_table import is_sps_table, read_sps_table
from specsim.runs.formats.tables import OWN_FILE
from specsim.runs.formats.tensorrt_llm_metrics import is_iteration_stats, read_iteration_stats
from specsim.runs.formats.vllm_results import is_bench_serve, read_bench_serve
from specsim.runs.readings import LeftOut, Reading

_STARTS = re.compile(r"\s*(\{|\[\s*\{)")


@dataclass(frozen=True)
class Kind:
    """One kind of result: its name, how an object of it is told, and what reads all of a file's objects together."""

    name: str
    what: str
    matches: Callable[[dict[str, Any]], bool]
    read: Callable[[Sequence[Located], Any], Iterator[Reading | LeftOut]]


KINDS = (
    Kind("sglang-bench-speculative", "SGLang bench_speculative", is_bench_speculative, read_bench_speculative),
    Kind("sglang-bench-one-batch", "SGLang bench_one_batch_server", is_bench_one_batch, read_bench_one_batch),
    Kind("vllm-bench-serve", "vllm bench serve", is_bench_serve, read_bench_serve),
    Kind("sglang-bench-serving", "SGLang bench_serving", is_bench_serving, read_bench_serving),
    Kind("aiperf", "AIPerf or GenAI-Perf export", is_aiperf, read_aiperf),
    Kind("specforge", "SpecForge bench_eagle3 results", is_specforge, read_specforge),
    Kind("specforge-benchmark", "SpecForge benchmark output", is_specforge_benchmark, read_specforge_benchmark),
    Kind("sps-table", "SGLang DSPARK step table", is_sps_table, read_sps_table),
    Kind("tensorrt-llm-metrics", "TensorRT-LLM iteration metrics", is_iteration_stats, read_iteration_stats),
    Kind("llama.cpp-timings", "llama.cpp timings", is_timings, read_timings),
)


def looks_like_results(head: str) -> bool:
    """Whether a text starts as JSON does, and is no log of JSON lines that are none of these kinds."""
    if not _STARTS.match(head):
        return False
    try:
        first = json.loads(head.lstrip().split("\n", 1)[0])
    except (ValueError, RecursionError):
        return True  # an object over several lines, or longer than the head
    objects = first if isinstance(first, list) else [first]
    return any(kind.matches(each) for kind in KINDS for each in objects if isinstance(each, dict))


def read_results(text: str, stated: Any, forced: str | None = None) -> Iterator[Reading | LeftOut]:
    """The runs of every object of a text, and what is none of the kinds."""
    found: dict[str, list[Located]] = {}
    for each in _objects(text):
        if isinstance(each, LeftOut):
            yield each
            continue
        if str(each.body.get("schema", "")).startswith("specsim-"):
            yield LeftOut(OWN_FILE, 1, each.first, each.last)
            continue
        name = forced or next((kind.name for kind in KINDS if kind.matches(each.body)), None)
        if name is None:
            yield LeftOut("object of no known kind of result", 1, each.first, each.last, ", ".join(map(str, each.body)))
        else:
            found.setdefault(name, []).append(each)
    for kind in KINDS:
        if kind.name in found:
            yield from kind.read(found[kind.name], stated)


def _objects(text: str) -> Iterator[Located | LeftOut]:
    """The objects of JSON (one, or a list of them) or of JSONL, each with its lines."""
    lines = text.splitlines() or [""]
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not (lines[0].lstrip().startswith("{") and lines[0].rstrip().endswith("}")):
            yield LeftOut(f"is not JSON ({error})", 1, 1, len(lines))
            return
    else:
        for each in body if isinstance(body, list) else [body]:
            yield from _located(each, 1, len(lines))
        return
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield from _located(json.loads(line), number, number)
        except (ValueError, RecursionError):
            yield LeftOut("line that is not JSON", 1, number, number, line[:120])


def _located(body: Any, first: int, last: int) -> Iterator[Located | LeftOut]:
    if isinstance(body, dict):
        yield Located(body, first, last)
    else:
        yield LeftOut("JSON that is no object", 1, first, last)
