"""What a server tells of itself, and its counters at one moment; the frozen values between adapters and measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specsim.quantities import Setup, SpecConfig


@dataclass(frozen=True)
class ServerFacts:
    """A server as it describes itself.

    `url` is its root; `served_model` the name that requests have to carry. `spec` is None for plain decode,
    `spec_known` False where the server does not say whether it speculates. `settings` are its own arguments by its own
    names, as read; `missing` says what could not be had, and why.
    """

    url: str
    setup: Setup
    served_model: str
    spec: SpecConfig | None
    spec_known: bool
    method: str | None
    drafter: str | None
    settings: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counters:
    """A server's counters at one moment [s since an epoch of the reader's clock]; None where the engine has none.

    `cycles` counts verify passes of single requests, `accepted` drafts accepted over them (bonus in neither),
    `drafted` drafts proposed, `accepted_at` those accepted by position; `output_tokens` and `prompt_tokens` count
    tokens, `running` the requests in the batch at that moment. `lifetime_accept_length` is an average over the server's
    life, for where no counters exist.

    `how` says in words what `cycles` and `accepted` are; with `at_request_end` they, and `output_tokens`, move only when
    a request ends, by all that it ever did. `life` is another after a restart, where the server tells.
    """

    time_s: float
    cycles: float | None = None
    accepted: float | None = None
    drafted: float | None = None
    accepted_at: tuple[float, ...] = ()
    output_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    lifetime_accept_length: float | None = None
    how: str = ""
    at_request_end: bool = False
    life: str = ""
