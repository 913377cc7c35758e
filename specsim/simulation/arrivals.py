"""The requests that reach a server: when, with prompts and outputs how long."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from specsim.errors import ConfigurationError, Fault, InputError, first_of
from specsim.quantities import FloatArray, IntArray

_WIDEST = 100.0  # relative spread of lengths: at 100 half of them are below a hundredth of their mean
_LONGEST_MS = 1e11  # of arrivals: later, times of a microsecond are below what a float tells


class Lengths(ABC):
    """A distribution of token counts of at least 1."""

    @abstractmethod
    def draw(self, count: int, generator: np.random.Generator) -> IntArray:
        """So many lengths, shape (count,)."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """What they are on average."""

    @classmethod
    def parsed(cls, text: str) -> Lengths:
        """The distribution that a text states: 512, 100-900 (uniform), or 512~0.8 (log-normal, mean ~ relative spread).

        Raises ConfigurationError for anything else.
        """
        try:
            if "~" in text:
                mean, spread = text.split("~")
                return LogNormalLengths(float(mean), float(spread))
            low, dash, high = text.partition("-")
            return UniformLengths(int(low), int(high if dash else low))
        except ValueError:
            raise ConfigurationError(
                f"{text!r} is no length: state 512, 100-900 (uniform) or 512~0.8 (log-normal, mean ~ relative spread)"
            ) from None


@final
@dataclass(frozen=True)
class UniformLengths(Lengths):
    """Every whole number from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ConfigurationError(f"lengths run from at least 1 upwards, not from {self.low} to {self.high}")

    @property
    def mean(self) -> float:
        """What they are on average."""
        return (self.low + self.high) / 2

    def draw(self, count: int, generator: np.random.Generator) -> IntArray:
        """So many lengths, shape (count,)."""
        return generator.integers(self.low, self.high, size=count, endpoint=True)


@final
@dataclass(frozen=True)
class LogNormalLengths(Lengths):
    """Log-normal with a mean and a standard deviation relative to it, rounded, at least 1."""

    average: float
    spread: float

    def __post_init__(self) -> None:
        if not (1 <= self.average < np.inf and 0 < self.spread <= _WIDEST):
            raise ConfigurationError(
                f"lengths have a mean of at least 1 and a spread above 0, {_WIDEST} at most, not {self.average:g} ~"
                f" {self.spread:g}"
            )

    @property
    def mean(self) -> float:
        """What they are on average, before rounding."""
        return self.average

    def draw(self, count: int, generator: np.random.Generator) -> IntArray:
        """So many lengths, shape (count,)."""
        variance = np.log1p(self.spread**2)
        drawn = generator.lognormal(np.log(self.average) - variance / 2, np.sqrt(variance), count)
        return np.clip(np.rint(drawn), 1, 2**62).astype(np.int64)


@final
@dataclass(frozen=True)
class Traffic:
    """n requests in the order in which they arrive: times [ms] and token counts, each of shape (n,).

    With `concurrency` the load is a closed loop: so many are sent at their `arrival_ms`, each further one when
    another is done, and the later entries of `arrival_ms` are of no meaning. Raises ConfigurationError for shapes
    that differ, times that descend, or counts below 1.
    """

    arrival_ms: FloatArray
    prompt_len: IntArray
    output_len: IntArray
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.arrival_ms.shape == self.prompt_len.shape == self.output_len.shape != (0,):
            raise ConfigurationError("traffic needs at least one request, and a time and two lengths for each")
        if (np.diff(self.arrival_ms) < 0).any() or not np.isfinite(self.arrival_ms).all():
            raise ConfigurationError("arrival times are finite and do not descend")
        if self.arrival_ms[-1] > _LONGEST_MS:
            raise ConfigurationError(
                f"{self.arrival_ms.size:,} requests arrive over {self.arrival_ms[-1] / 1000:.3g} s: at most"
                f" {_LONGEST_MS / 1000:.3g} s (three years) can be simulated, at a higher rate or with fewer requests"
            )
        if min(self.prompt_len.min(), self.output_len.min()) < 1 or (
            self.concurrency is not None and self.concurrency < 1
        ):
            raise ConfigurationError("prompts and outputs have at least one token, a closed loop one request")


class Load(ABC):
    """A load whose traffic can be drawn again and again; an open loop's arrivals do not wait for the server."""

    open_loop: ClassVar[bool] = True

    @abstractmethod
    def traffic(self, generator: np.random.Generator) -> Traffic:
        """One draw of it."""


@final
@dataclass(frozen=True)
class PoissonLoad(Load):
    """`count` requests that arrive at random, `request_rate` a second on average."""

    request_rate: float
    count: int
    prompts: Lengths
    outputs: Lengths

    def __post_init__(self) -> None:
        if not 0 < self.request_rate < np.inf or self.count < 1:
            raise ConfigurationError(f"a load has at least one request, at a rate above 0, not {self.request_rate}")

    def traffic(self, generator: np.random.Generator) -> Traffic:
        """One draw; at another rate the same generator gives the same requests, closer together or further apart."""
        gaps = generator.exponential(size=self.count) * (1000.0 / self.request_rate)
        prompts, outputs = (each.draw(self.count, generator) for each in (self.prompts, self.outputs))
        return Traffic(np.cumsum(gaps), prompts, outputs)


@final
@dataclass(frozen=True)
class ClosedLoad(Load):
    """`count` requests of which `concurrency` are in flight at any time, as benchmark clients send them.

    The first ones are sent `apart_ms` after each other.
    """

    concurrency: int
    count: int
    prompts: Lengths
    outputs: Lengths
    apart_ms: float = 0.0
    open_loop: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= self.count:
            raise ConfigurationError(
                f"{self.concurrency:,} requests in flight are not possible with {self.count:,} requests: at least one, and"
                " no more than there are"
            )
        if not 0 <= self.apart_ms < np.inf:
            raise ConfigurationError(f"requests are sent forwards in time, not {self.apart_ms} ms apart")

    def traffic(self, generator: np.random.Generator) -> Traffic:
        """One draw."""
        prompts, outputs = (each.draw(self.count, generator) for each in (self.prompts, self.outputs))
        first = np.minimum(np.arange(self.count), self.concurrency) * self.apart_ms
        return Traffic(first, prompts, outputs, self.concurrency)


@final
@dataclass(frozen=True)
class TraceLoad(Load):
    """Recorded traffic, the same at every draw."""

    recorded: Traffic

    def traffic(self, generator: np.random.Generator) -> Traffic:
        """The recorded traffic; nothing is drawn."""
        return self.recorded


TRACE_COLUMNS = ("arrival_ms", "prompt_len", "output_len")


def read_trace(path: Path) -> Traffic:
    """Traffic from a CSV with the columns arrival_ms, prompt_len and output_len, in any order of rows.

    Raises InputError that names every row and field that is wrong.
    """
    faults: list[Fault] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            rows = list(reader)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not a text file"
        raise InputError([Fault(str(path), "", f"cannot be read ({why})", "a CSV file")]) from None
    except csv.Error as error:
        raise InputError([Fault(str(path), "", f"is not CSV ({error})", "")]) from None
    missing = [name for name in TRACE_COLUMNS if not rows or name not in rows[0]]
    if missing:
        found = "no rows" if not rows else f"no column {', '.join(missing)}"
        raise InputError([Fault(str(path), "", found, f"a trace has the columns {', '.join(TRACE_COLUMNS)}")])
    wide = [f"{path}, row {at}" for at, row in enumerate(rows, 2) if None in row]
    faults += [Fault(where, "", "has more cells than the header has columns", "") for where in wide]
    values = [
        [_number(row, name, f"{path}, row {at}", faults) for name in TRACE_COLUMNS] for at, row in enumerate(rows, 2)
    ]
    if faults:
        raise InputError(first_of(faults))
    table = np.array(sorted(values))
    return Traffic(table[:, 0] - table[0, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))


def _number(row: dict[str, str], name: str, where: str, faults: list[Fault]) -> float:
    """A field as a number; a fault where it is none that a trace can have."""
    least = 0.0 if name == "arrival_ms" else 1.0
    text = row[name] or ""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not least <= value < np.inf or (least and value != int(value)):
        kind = "a whole number of at least 1" if least else "a number of at least 0"
        faults.append(Fault(where, name, f"{text!r} is not possible", f"{kind} is"))
    return value
