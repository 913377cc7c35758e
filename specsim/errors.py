"""What specsim raises when it cannot answer.

SpecsimError                    base of all; the command line prints it and exits with 2
├── InputError                  a file or an option is wrong; lists every fault found
├── ConfigurationError          a speculative configuration or accept length outside the legal range
├── UnknownSettingError         an NCCL setting that no run was made under
├── MixedSetupError             runs, or the two sides of a ratio, that are not like for like
├── NotIdentifiedError          the runs cannot answer the question; says which run would
└── ServerError                 a server does not answer, or not as it should
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class SpecsimError(Exception):
    """Base of every error that specsim raises on purpose."""


@dataclass(frozen=True)
class Fault:
    """One thing wrong with what was read: where (file, row), which field, what, and what is allowed."""

    where: str
    field: str
    problem: str
    allowed: str

    def __str__(self) -> str:
        place = f"{self.where}, {self.field}" if self.field else self.where
        return f"{place}: {self.problem}; {self.allowed}" if self.allowed else f"{place}: {self.problem}"


def first_of(faults: Sequence[Fault], most: int = 20) -> list[Fault]:
    """The first of many faults, and how many more there are."""
    more = [Fault(f"and {len(faults) - most} more faults", "", "", "")] if len(faults) > most else []
    return [*faults[:most], *more]


class InputError(SpecsimError):
    """Something that was read is wrong; `faults` holds every fault, one line each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class ConfigurationError(SpecsimError):
    """A speculative configuration, or an accept length, outside what is legal."""


class UnknownSettingError(SpecsimError):
    """An NCCL setting that the model has no run of."""

    def __init__(self, asked: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        between = "; " if any("," in label for label in self.known) else ", "
        super().__init__(f"unknown NCCL setting {asked!r}; known here: {between.join(self.known)}")


class MixedSetupError(SpecsimError):
    """The two sides of a comparison were measured under different setups; `fields` names what differs."""

    def __init__(self, message: str, fields: Iterable[str]) -> None:
        self.fields = tuple(fields)
        super().__init__(message)


class NotIdentifiedError(SpecsimError):
    """The runs leave the asked quantity open, whatever is assumed about their noise."""


class ServerError(SpecsimError):
    """A server that does not answer, or not as it should; says what it was asked and what came back."""
