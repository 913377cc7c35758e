"""Which path an engine's all-reduce takes by message size, before any NCCL setting matters: a table.

Sources: SGLang 0.5.23 (distributed/parallel_state.py, device_communicators), vLLM 0.33.0
(distributed/device_communicators/cuda_communicator.py). Left out are paths that are off unless asked for (NCCL
symmetric memory, quick reduce, MSCCL++, PCIe IPC kernels) and fused kernels, whose limits depend on the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specsim.methods import version_numbers
from specsim.quantities import BoolArray, Floats

_KB, _MB = 1024, 1024**2
_WORLDS = (2, 4, 6, 8)


@dataclass(frozen=True)
class Wiring:
    """What decides the path: engine, its version (None: the newest known), link, ranks, and the GPU's architecture.

    `link` is nvlink (all to all) or pcie with working peer access; without peer access custom kernels are off.
    """

    engine: str
    link: str
    ranks: int
    arch: str | None = None
    engine_version: str | None = None


@dataclass(frozen=True)
class CustomPath:
    """A kernel of an engine that takes messages from NCCL up to `max_bytes` (inclusive unless `strict`).

    `ranks` and `archs` are those it works for (no archs: any that no other row of the kernel names); `since` and
    `before` bound the engine's version.
    """

    engine: str
    kernel: str
    link: str
    ranks: tuple[int, ...]
    archs: tuple[str, ...]
    max_bytes: int
    strict: bool = False
    since: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def carries(self, message_bytes: Floats) -> BoolArray:
        """Whether messages of these sizes [bytes] go through it, at their shape; sizes of 16-byte multiples assumed."""
        size = np.asarray(message_bytes)
        return np.asarray(size < self.max_bytes if self.strict else size <= self.max_bytes)

    def works(self, wiring: Wiring) -> bool:
        """Whether it is there at all."""
        version = version_numbers(wiring.engine_version)
        in_time = version >= self.since and not (self.before and version >= self.before)
        alike = (self.engine, self.link) == (wiring.engine.lower(), wiring.link) and wiring.ranks in self.ranks
        return alike and in_time and (not self.archs or wiring.arch in self.archs)


def _vllm(archs: tuple[str, ...], ranks: int, max_bytes: int, kernel: str = "custom all-reduce") -> CustomPath:
    return CustomPath("vllm", kernel, "nvlink", (ranks,), archs, max_bytes, strict=kernel == "custom all-reduce")


CUSTOM_PATHS = (
    CustomPath("sglang", "custom all-reduce V2", "nvlink", _WORLDS, (), 16 * _MB, since=(0, 5, 20)),
    CustomPath("sglang", "custom all-reduce", "nvlink", _WORLDS, (), 8 * _MB, before=(0, 5, 20)),
    CustomPath("sglang", "custom all-reduce", "pcie", (2,), (), 8 * _MB),
    *(_vllm(("sm90",), *row) for row in ((2, 8 * _MB), (4, 8 * _MB), (6, 512 * _KB), (8, 256 * _KB))),
    *(_vllm(("sm100",), *row) for row in ((2, 2 * _MB), (4, 2 * _MB), (6, _MB), (8, _MB))),
    *(_vllm(("sm103",), *row) for row in ((2, 4 * _MB), (4, 4 * _MB), (6, 8 * _MB), (8, 4 * _MB))),
    *(
        _vllm(("sm90",), *row, "torch symmetric memory")
        for row in ((2, 64 * _MB), (4, 32 * _MB), (6, 64 * _MB), (8, 64 * _MB))
    ),
    CustomPath("vllm", "custom all-reduce", "nvlink", _WORLDS, ("sm80", "sm86", "sm89", "sm120"), 8 * _MB, True),
    CustomPath("vllm", "custom all-reduce", "pcie", (2,), (), 8 * _MB, True),
)
"""Every path known, in the order in which an engine asks them. On PCIe both engines refuse more than two GPUs."""


def custom_paths(wiring: Wiring) -> tuple[CustomPath, ...]:
    """The paths of this wiring that come before NCCL; none where NCCL carries everything."""
    return tuple(path for path in CUSTOM_PATHS if path.works(wiring))


def carried_by_custom(paths: tuple[CustomPath, ...], message_bytes: Floats) -> BoolArray:
    """Where messages of these sizes [bytes] never reach NCCL, so that its settings change nothing; their shape."""
    carried = np.zeros(np.shape(message_bytes), dtype=bool)
    for path in paths:
        carried = carried | path.carries(message_bytes)
    return np.asarray(carried)
