"""What one all-reduce of a message takes under a setting (eq. 16): measured, fitted, or guessed by a prior.

Sizes are bytes, times microseconds. Every curve is monotone in the size, and says outside which sizes it is
extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specsim.cost.curves import never_falling, slope_of_last_octave
from specsim.errors import ConfigurationError
from specsim.quantities import BoolArray, FloatArray, Floats


class AllReduceCurve(Protocol):
    """a_s(m) of one setting or implementation (eq. 16)."""

    @property
    def label(self) -> str:
        """The setting or implementation."""

    def time_us(self, message_bytes: Floats) -> Floats:
        """Time [µs] of one all-reduce of so many bytes, at the sizes' shape."""

    def beyond(self, message_bytes: Floats) -> BoolArray:
        """Where the time is extrapolated."""


@dataclass(frozen=True)
class MeasuredCurve:
    """A table as a curve (eq. 16): sizes [bytes] rising, their times [µs] never falling.

    `raw_us` are the medians over repeats before larger messages were held to take no less time than smaller ones;
    `repeats` counts the readings behind each. `in_forward` says that they were taken in forwards, not alone. `gather` is
    what gathers of so many bytes take under the setting, `drafting` what the all-reduces take in forwards between a drafter's graphs,
    and `launch_us` of such a curve the time from one kernel that is launched singly there to the next; None where nobody measured them.
    """

    label: str
    sizes: tuple[float, ...]
    times_us: tuple[float, ...]
    raw_us: tuple[float, ...]
    repeats: tuple[int, ...]
    in_forward: bool = False
    gather: MeasuredCurve | None = None
    drafting: MeasuredCurve | None = None
    launch_us: float | None = None

    def time_us(self, message_bytes: Floats) -> Floats:
        """Time [µs]: log time linear in log size between sizes, exact at them; outside, a flagged extrapolation.

        Below the smallest its time, which no smaller message exceeds; above the largest the slope of the table's
        last octave or more goes on.
        """
        size, (known, times) = _positive_sizes(message_bytes), (np.array(self.sizes), np.array(self.times_us))
        inside = np.exp(np.interp(np.log(size), np.log(known), np.log(times)))
        slope = slope_of_last_octave(self.sizes, self.times_us)  # [µs/byte]
        return _like(message_bytes, inside + slope * np.maximum(size - known[-1], 0.0))

    def beyond(self, message_bytes: Floats) -> BoolArray:
        """Where the sizes lie outside the table."""
        size = np.asarray(message_bytes)
        return np.asarray((size < self.sizes[0]) | (size > self.sizes[-1]))

    @property
    def largest_correction(self) -> float:
        """Largest relative change that the demand for a monotone curve made; 0 for a table that never falls."""
        return float(np.max(np.abs(np.array(self.times_us) / np.array(self.raw_us) - 1)))


def measured_curve(
    label: str, message_bytes: FloatArray, times_us: FloatArray, in_forward: bool = False
) -> MeasuredCurve:
    """The curve of rows (n,) of sizes [bytes] and times [µs], repeats of a size in any order (eq. 16).

    The median over repeats, then the nearest curve in log time that never falls with size (pool adjacent
    violators), each size weighted by its repeats: a table's dips are noise or a switch of algorithm, and a
    prediction that falls when tokens are added would be absurd.
    """
    sizes, group = np.unique(np.asarray(message_bytes, dtype=float), return_inverse=True)
    medians = np.array([np.median(np.asarray(times_us)[group == at]) for at in range(sizes.size)])
    counts = np.bincount(group).astype(float)
    times = np.where(_rising(medians), medians, np.exp(never_falling(np.log(medians), counts)))
    return MeasuredCurve(
        label,
        tuple(sizes.tolist()),
        tuple(times.tolist()),
        tuple(medians.tolist()),
        tuple(int(count) for count in counts),
        in_forward,
    )


def _rising(values: FloatArray) -> bool:
    return bool((np.diff(values) >= 0).all())


@dataclass(frozen=True)
class AffineCurve:
    """α + m/β up to the first knee, and a slope of its own after each (eq. 16); continuous, never falling.

    `fixed_us` is α; `us_per_byte` has a slope for each stretch, the first being 1/β; `knees` [bytes] part them.
    `span` [bytes] is what was measured, `largest_error` the largest relative distance from the medians there.
    """

    label: str
    fixed_us: float
    us_per_byte: tuple[float, ...]
    knees: tuple[float, ...]
    span: tuple[float, float]
    largest_error: float

    def time_us(self, message_bytes: Floats) -> Floats:
        """Time [µs] of one all-reduce (eq. 16), at the sizes' shape."""
        stretches = stretch_bytes(_positive_sizes(message_bytes), self.knees)
        return _like(message_bytes, self.fixed_us + stretches @ np.array(self.us_per_byte))

    def beyond(self, message_bytes: Floats) -> BoolArray:
        """Where the sizes lie outside what was measured."""
        size = np.asarray(message_bytes)
        return np.asarray((size < self.span[0]) | (size > self.span[1]))


def stretch_bytes(message_bytes: FloatArray, knees: tuple[float, ...]) -> FloatArray:
    """The bytes of a message that fall before the first knee, between the first two …, shape (…, knees + 1)."""
    starts, ends = np.array([0.0, *knees]), np.array([*knees, np.inf])
    stretches: FloatArray = np.clip(np.asarray(message_bytes, dtype=float)[..., None], starts, ends) - starts
    return stretches


# -- NCCL's own model, where nothing was measured ---------------------------------------------------------------------

LINKS = ("nvlink", "pcie", "net")
"""What NCCL's model tells apart: NVLink, PCIe within a host, a network between hosts of one GPU each."""

_BASE_US = {"Tree": {"LL": 6.8, "LL128": 14.0, "Simple": 8.4}, "Ring": {"LL": 6.6, "LL128": 14.0, "Simple": 8.4}}
_HOP_US = {
    "nvlink": {"Tree": {"LL": 0.6, "LL128": 1.25, "Simple": 4.0}, "Ring": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4}},
    "pcie": {"Tree": {"LL": 1.0, "LL128": 1.9, "Simple": 4.0}, "Ring": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7}},
    "net": {"Tree": {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}, "Ring": {"LL": 2.7, "LL128": 4.0, "Simple": 14.0}},
}
_BUS_SHARE = {
    "Ring": {"LL": 1 / 2, "LL128": 0.92, "Simple": 1.0},
    "Tree": {"LL": 1 / 3.8, "LL128": 7 / 9, "Simple": 0.92},
}
_LL_CEILING_GB_S = 141.0
"""Most that LL gets from a ring of Hopper GPUs [GB/s]; lower links never reach it."""

BUS_GB_S = {"nvlink": 370.0, "pcie": 24.0, "net": 24.0}
"""Bus bandwidth by link unless stated: NVLink 4, PCIe 4.0 ×16, one 200 Gb/s port. NCCL's topology search may find
less (5 GB/s through two sockets in NVIDIA/nccl-tests#307), but at decode sizes the latency decides."""

PRIOR_WARNING = (
    "PRIOR: NCCL's own latency model, not a measurement. It is far too low on some PCIe hosts: one of 8 GPUs took"
    " 205 µs for 12 KiB (SGLang's note on its PCIe IPC kernels), where it gives 22 µs for LL in a ring. Measure:"
    " nccl-tests all_reduce_perf -b 1K -e 4M -f 2 under each setting"
)


@dataclass(frozen=True)
class NcclPrior:
    """NCCL's own model of an algorithm and protocol (eq. 16): α + m/β with constants of its source.

    Source: NCCL src/graph/tuning.cc of 2026-06. Trees lack its correction of the bandwidth by size (0.4 to 1).
    """

    algorithm: str
    protocol: str
    link: str
    ranks: int
    bus_gb_s: float

    def __post_init__(self) -> None:
        if self.link not in LINKS:
            raise ConfigurationError(f"link {self.link!r} is not known; allowed: {', '.join(LINKS)}")
        if self.algorithm not in _BUS_SHARE or self.protocol not in _BUS_SHARE[self.algorithm]:
            allowed = "Ring or Tree with LL, LL128 or Simple"
            raise ConfigurationError(f"{self.algorithm}-{self.protocol} is not modelled; allowed: {allowed}")
        if self.ranks < 2 or not self.bus_gb_s > 0:
            raise ConfigurationError(
                f"{self.ranks} ranks at {self.bus_gb_s:g} GB/s do not communicate; allowed: 2 or more, above 0"
            )

    @property
    def label(self) -> str:
        """The setting, marked as a prior."""
        return f"prior:{self.algorithm}-{self.protocol}"

    @property
    def fixed_us(self) -> float:
        """α [µs]: a base, and 2·(ranks − 1) hops; a tree between hosts takes 2·log₂ of them."""
        hops = self.ranks - 1
        if self.link == "net" and self.algorithm == "Tree":
            hops = int(np.log2(self.ranks))
        return _BASE_US[self.algorithm][self.protocol] + 2 * hops * _HOP_US[self.link][self.algorithm][self.protocol]

    @property
    def gb_s(self) -> float:
        """β [GB/s]: the protocol's share of the bus, over the times that a message crosses it."""
        bus = self.bus_gb_s * _BUS_SHARE[self.algorithm][self.protocol]
        if self.algorithm == "Tree":
            return bus / 2
        ceiling = _LL_CEILING_GB_S if self.protocol == "LL" else np.inf
        return float(min(bus, ceiling) * self.ranks / (2 * (self.ranks - 1)))

    def time_us(self, message_bytes: Floats) -> Floats:
        """Time [µs] of one all-reduce (eq. 16), at the sizes' shape."""
        return _like(message_bytes, self.fixed_us + _positive_sizes(message_bytes) / (1000.0 * self.gb_s))

    def beyond(self, message_bytes: Floats) -> BoolArray:
        """Everywhere: nothing was measured."""
        return np.ones(np.shape(message_bytes), dtype=bool)


def nccl_priors(link: str, ranks: int, bus_gb_s: float | None = None) -> tuple[NcclPrior, ...]:
    """What NCCL may choose from on a link, by its own model: LL128 on NVLink only (elsewhere it may corrupt data)."""
    bus = BUS_GB_S.get(link, 1.0) if bus_gb_s is None else bus_gb_s
    protocols = ("LL", "LL128", "Simple") if link == "nvlink" else ("LL", "Simple")
    return tuple(NcclPrior(algorithm, p, link, ranks, bus) for algorithm in ("Ring", "Tree") for p in protocols)


def _positive_sizes(message_bytes: Floats) -> FloatArray:
    sizes = np.asarray(message_bytes, dtype=float)
    if not (sizes > 0).all():
        raise ConfigurationError(f"a message has more than 0 bytes, not {np.min(sizes):g}")
    return sizes


def _like(asked: Floats, times: FloatArray) -> Floats:
    """Scalar in, scalar out."""
    return float(times) if np.ndim(asked) == 0 else times
