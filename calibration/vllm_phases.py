"""Where the time of a vLLM server's cycles goes: events around the replays of its graphs and around its gathers of logits.

With SPECSIM_PHASES=FILE in the environment of `calibration serve` each rank of each server writes FILE-SERVER-RANK.jsonl while it
is loaded (on GPUs, with graphs). `python -m calibration.vllm_phases FILE-SERVER-0.jsonl` gives medians as CSV. Read in vLLM 0.24, whose newer runner replays one graph for verify and one for each draft forward.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

PHASES = "SPECSIM_PHASES"
"""Where marks are written to: the file without server and rank for the harness, without the rank for a server."""

Mark = tuple[str, float]
"""What began (+) or ended (-), with its tokens, and when [µs]."""

LEAST = 150
"""Cycles of a kind of which medians are told."""
_AT_ONCE = 6000
_KINDS = {"ModelCudaGraphManager": "verify", "PrefillSpeculatorCudaGraphManager": "wide", "DecodeSpeculatorCudaGraphManager": "narrow"}  # fmt: skip
COLUMNS = ("drafts", "batch_size", "phase", "median_us", "p10_us", "p90_us", "cycles")


# -- in the server -----------------------------------------------------------------------------------------------------


def follow(path: str) -> None:
    """Mark the replays of graphs and the gathers from now on."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    mark = Marks(path).mark
    CudaGraphManager.run_fullgraph = between(CudaGraphManager.run_fullgraph, mark, replayed)
    LogitsProcessor._gather_logits = between(LogitsProcessor._gather_logits, mark, lambda *_: "gather")


def replayed(manager: Any, graph: Any) -> str:
    """The kind of a replay and the tokens of its graph."""
    return f"{_KINDS.get(type(manager).__name__, 'other')}{graph.num_tokens}"


def between(method: Callable[..., Any], mark: Callable[[str], None], name: Callable[..., str]) -> Callable[..., Any]:
    """A method that is marked before and after."""

    def marked(*args: Any) -> Any:
        what = name(*args)
        mark(what + "+")
        given = method(*args)
        mark(what + "-")
        return given

    return marked


class Marks:
    """Events in the order in which they were recorded, written by the thousand."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """Record an event, but in a capture."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))
        if len(self._marks) >= _AT_ONCE:
            torch.cuda.synchronize()
            first = self._marks[0][1]
            line = json.dumps([(what, round(1000.0 * first.elapsed_time(each), 1)) for what, each in self._marks])
            with Path(f"{self._path}-{torch.cuda.current_device()}.jsonl").open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self._marks.clear()


# -- what was written ----------------------------------------------------------------------------------------------------


def medians(lines: Iterable[str], least: int = LEAST) -> Iterator[dict[str, object]]:
    """A row for each phase of the cycles of as many drafts and requests, where there are so many; times in µs."""
    import numpy as np

    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    for line in lines:
        for drafts, batch, phases in cycles([(name, float(at)) for name, at in json.loads(line)]):
            found.setdefault((drafts, batch), []).append(phases)
    for (drafts, batch), each in sorted(found.items()):
        if len(each) >= least:
            for phase in each[0]:
                low, middle, high = np.percentile([phases[phase] for phases in each], [10, 50, 90]).round(1).tolist()
                yield dict(zip(COLUMNS, (drafts, batch, phase, middle, low, high, len(each)), strict=True))


def cycles(marks: list[Mark]) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Drafts, requests and phases of each whole cycle, from one verify to the next; what was cut or ran otherwise is left out."""
    starts = [at for at, (name, _) in enumerate(marks) if name.startswith("verify") and name.endswith("+")]
    for start, end in pairwise(starts):
        names = [name.strip("0123456789+-") for name, _ in marks[start:end:2]]
        times = [at for _, at in marks[start : end + 1]]
        drafts = len(names) - 2
        if names != ["verify", "gather", *["wide"] * (drafts > 0), *["narrow"] * (drafts - 1)]:
            continue
        tokens = int(marks[start][0].removeprefix("verify").rstrip("+"))
        yield drafts, tokens // (drafts + 1), _phases(times, drafts)


def _phases(times: list[float], drafts: int) -> dict[str, float]:
    """What lies between the marks; of narrow draft forwards and what is between graphs the mean of each cycle."""
    apart = [later - earlier for earlier, later in pairwise(times)]
    found = {"cycle": times[-1] - times[0], "verify graph": apart[0], "head": apart[1], "gather": apart[2]}
    if drafts:
        found |= {"sampling and inputs": apart[3], "wide draft graph": apart[4]}
    if drafts > 1:
        steps = drafts - 1
        found |= {"between draft graphs": sum(apart[5:-1:2]) / steps, "narrow draft graph": sum(apart[6:-1:2]) / steps}
    return {**found, "to the next verify": apart[-1]}


def main() -> None:
    """Print the medians of a file; what is none ends with a sentence and exit code 2."""
    try:
        (path,) = sys.argv[1:]
        rows = list(medians(Path(path).read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        sys.stderr.write(f"vllm_phases: give one file of marks, as SPECSIM_PHASES has a server write them: {error}\n")
        sys.exit(2)
    if not rows:
        sys.stderr.write(f"vllm_phases: {path}: not {LEAST} whole cycles of any kind; load the server for longer\n")
        sys.exit(2)
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
