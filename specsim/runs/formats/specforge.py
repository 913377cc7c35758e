"""SpecForge's results: bench_eagle3.py's by configuration, and the later benchmark's totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specsim.runs.formats.located import Located
from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole

_NAMES = {"batch_size": "batch_size", "num_steps": "steps", "topk": "topk", "num_draft_tokens": "num_draft_tokens"}


def is_specforge(body: dict[str, Any]) -> bool:
    """Whether an object holds lists of configurations with their metrics, by benchmark."""
    return any(_is_entry(entry) for entries in body.values() if isinstance(entries, list) for entry in entries[:1])


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and {"batch_size", "steps", "metrics"} <= entry.keys()


def read_specforge(files: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a benchmark and configuration, its metrics as repeats; steps 0 is plain decode."""
    for file in files:
        model = file.body.get("model")
        common = {"engine": "sglang", "instrument": "SpecForge bench_eagle3"}
        common |= {"model": model} if isinstance(model, str) else {}
        for name, entries in file.body.items():
            for entry in entries if isinstance(entries, list) else []:
                yield _entry_reading(file, {**common, "note": f"benchmark {name}"}, entry)


def _entry_reading(file: Located, common: dict[str, Any], entry: Any) -> Reading | LeftOut:
    metrics = entry.get("metrics") if isinstance(entry, dict) else None
    rows = [row for row in metrics if isinstance(row, dict)] if isinstance(metrics, list) else []
    speeds = [speed for row in rows if (speed := amount(row.get("output_throughput")))]
    lengths = [length for row in rows if (length := amount(row.get("accept_length"))) and length >= 1]
    shape = {ours: whole(entry.get(theirs)) for ours, theirs in _NAMES.items()} if rows else {}
    if not speeds or shape.get("num_steps") is None or not shape.get("batch_size"):
        return LeftOut("entry without batch_size, steps or output_throughput", 1, file.first, file.last)
    fields = {**common, "batch_size": shape["batch_size"], "output_tok_s": speeds}
    if prompts := whole(entry.get("num_samples")):
        fields["prompts"] = prompts
    plain = shape["num_steps"] == 0
    fields |= {"method": "none"} if plain else {**shape, "accept_length": lengths}
    return Reading(fields, file.first, file.last)


def is_specforge_benchmark(body: dict[str, Any]) -> bool:
    """Whether an object is the output of SpecForge 0.2's benchmark."""
    return {"average_acceptance_length", "output_tokens", "throughput_tokens_per_second"} <= body.keys()


def read_specforge_benchmark(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run an object: tokens over verify passes, where they are counted, before the mean over requests."""
    for row in rows:
        tokens, cycles = row.whole("output_tokens"), row.whole("spec_verify_count")
        speed, mean = row.amount("throughput_tokens_per_second"), row.amount("average_acceptance_length")
        counted = rounded(tokens / cycles) if tokens and cycles and tokens >= cycles else None
        if speed is None and counted is None and mean is None:
            yield LeftOut("object without throughput or accept length", 1, row.first, row.last)
            continue
        fields: dict[str, Any] = {"instrument": "SpecForge benchmark", "output_tok_s": speed}
        if isinstance(backend := row.body.get("backend"), str):
            fields["engine"] = backend
        if prompts := row.whole("samples"):
            fields["prompts"] = prompts
        told = "output tokens over verify passes; each request's first token is among them"
        if counted is not None:
            fields |= {"accept_length": counted, "implied": "accept_length", "cycles": cycles, "note": told}
        elif mean is not None:
            fields |= {"accept_length": mean, "note": "accept length averaged over requests"}
        yield Reading(fields, row.first, row.last)
