"""The machine that measures: what it is, and the time that work takes on it."""

from __future__ import annotations

import gc
import platform
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any

_QUERY = "name,uuid,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
_FOLDERS = re.compile(r"(^|(?<==))/.*/")  # of an absolute path, alone or behind an option's "="


@dataclass(frozen=True)
class Timing:
    """Repeats of one piece of work [ms]: their median, and half of what lies between the quartiles over it."""

    repeats: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The middle repeat."""
        return statistics.median(self.repeats)

    @property
    def spread(self) -> float:
        """Quartiles' half-distance over the median."""
        low, _, high = statistics.quantiles(self.repeats, n=4)
        return (high - low) / 2 / self.median_ms


@dataclass(frozen=True)
class Machine:
    """A device of torch, "cuda" or "cpu"; CPU runs take small shapes and stand for nothing but the code."""

    device: str

    @classmethod
    def here(cls) -> Machine:
        """The GPU where there is one."""
        import torch

        return cls("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def on_gpu(self) -> bool:
        """Whether times are a GPU's."""
        return self.device == "cuda"

    @property
    def count(self) -> int:
        """GPUs; 2 processes on a CPU."""
        import torch

        return torch.cuda.device_count() if self.on_gpu else 2

    @property
    def hardware(self) -> str:
        """The device's name."""
        import torch

        return torch.cuda.get_device_name() if self.on_gpu else f"{platform.machine()} CPU"

    @property
    def dtype(self) -> Any:
        """bf16 on a GPU; on a CPU, where it may be emulated, float32."""
        import torch

        return torch.bfloat16 if self.on_gpu else torch.float32

    def provenance(self) -> dict[str, object]:
        """GPU, driver and clocks as read, library versions, command and time; settings are never touched."""
        import torch

        read = {"hardware": self.hardware, "python": platform.python_version(), "torch": torch.__version__}
        read |= {"command": recorded_command(sys.argv[1:]), "started": datetime.now(UTC).isoformat(timespec="seconds")}
        return read | (_nvidia_smi() | {"cuda": str(torch.version.cuda)} if self.on_gpu else {})

    def capture(
        self,
        work: Callable[[], object],
        graph: bool,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Callable[[], object]:
        """The work as a replay of its CUDA graph, captured within `around`; as it is without graphs or a GPU.

        What the work reads and writes lives as long as the replay does.
        """
        import torch

        if not (graph and self.on_gpu):
            return work
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        gc.collect()  # an old graph that the collector frees in the middle of a capture breaks it
        captured = torch.cuda.CUDAGraph()
        with around(), torch.cuda.graph(captured):
            work()
        return partial(_replayed, captured, work)

    def timed(
        self, work: Callable[[], object], repeats: int, before: Callable[[int], object] = lambda _: None
    ) -> Timing:
        """Each repeat by CUDA events, or by the clock; `before` prepares a repeat outside its time."""
        return Timing(tuple(self._timed_once(work, before, index) for index in range(-3, repeats))[3:])

    def _timed_once(self, work: Callable[[], object], before: Callable[[int], object], index: int) -> float:
        before(index)
        start = self._mark()
        work()
        end = self._mark()
        if self.on_gpu:
            end.synchronize()
        return self._between(start, end)

    def timed_in_turn(self, works: Sequence[Callable[[], object]], repeats: int) -> tuple[Timing, ...]:
        """Each of several pieces of work that run one after the other, over and over and without a wait between."""
        marks = [self._mark()]
        for _ in range(3 + repeats):
            for work in works:
                work()
                marks.append(self._mark())
        self.wait()
        took = [self._between(earlier, later) for earlier, later in pairwise(marks)]
        return tuple(Timing(tuple(took[at :: len(works)][3:])) for at in range(len(works)))

    def _mark(self) -> Any:
        """Now: an event on a GPU, else the clock's seconds."""
        if not self.on_gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, earlier: Any, later: Any) -> float:
        """From one mark to another [ms]."""
        return float(earlier.elapsed_time(later)) if self.on_gpu else 1000.0 * (later - earlier)

    def wait(self) -> None:
        """Until everything that was started has ended."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()


def _replayed(captured: Any, work: Callable[[], object]) -> None:
    """A graph run once more; it does not keep what the `work` holds, which is still read and written."""
    captured.replay()


def recorded_command(arguments: Sequence[str]) -> str:
    """The command as it was called, absolute paths by their last name: a run file is passed on, folders are not."""
    return "python -m calibration " + shlex.join(_FOLDERS.sub("", part) for part in arguments)


def links(topology: str, count: int) -> str:
    """How the first so many GPUs are connected by `nvidia-smi topo -m`: NV18, or PIX/SYS where links differ; "" if untold."""
    rows = [line.split() for line in topology.splitlines() if re.match(r"GPU\d+\s", line)]
    found = {cell for row in rows[:count] for cell in row[1 : 1 + count] if cell not in ("X", *(r[0] for r in rows))}
    return "/".join(sorted(found))


def read_links(count: int) -> str:
    """The links as the driver tells them; "" where it does not."""
    try:
        read = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=20, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return links(read, count)


def _nvidia_smi() -> dict[str, object]:
    """What the driver says of the GPU, as read; an error in words where it says nothing."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        read = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"nvidia_smi": f"not read: {error}"}
    return dict(zip(_QUERY.split(","), (part.strip() for part in read.split(",")), strict=True))
