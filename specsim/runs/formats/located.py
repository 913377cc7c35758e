"""An object of a result file with its place, and what several clients' results have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specsim.runs.readings import Reading, amount, rounded, whole


@dataclass(frozen=True)
class Located:
    """An object, and the lines that it stands on."""

    body: dict[str, Any]
    first: int
    last: int

    def amount(self, name: str) -> float | None:
        """A positive number under this key; None where there is none."""
        return amount(self.body.get(name)) or None

    def whole(self, name: str) -> int | None:
        """A whole number from 1 under this key; None where there is none."""
        return whole(self.body.get(name)) or None


@dataclass(frozen=True)
class Client:
    """What a benchmark client measured: requests in flight, time per output token [ms], tokens a second, length.

    `drafts` says whether the server speculated, None where the file does not tell.
    """

    concurrency: int | None
    tpot_ms: float | None
    output_tok_s: float | None
    accept_length: float | None
    drafts: bool | None


def client_reading(place: Located, fields: Mapping[str, Any], client: Client) -> Reading:
    """A client's run: C = TPOT·L of a server that drafts, t = TPOT of one that does not (eq. 6).

    The batch is the client's concurrency only where that is 1; else the times wait for a batch size that is stated.
    The throughput is that of the whole benchmark, ramps and prefills included.
    """
    times: dict[str, Any] = {}
    if client.output_tok_s is not None:
        times["output_tok_s"] = client.output_tok_s
    if client.tpot_ms is not None and client.drafts and client.accept_length is not None:
        times |= {"cycle_ms": rounded(client.tpot_ms * client.accept_length), "implied": "cycle_ms"}
    elif client.tpot_ms is not None and not client.drafts:
        times["decode_ms"] = client.tpot_ms
    run = {"instrument": "benchmark client", **({"method": "none"} if client.drafts is False else {}), **fields}
    if client.concurrency == 1:
        run["batch_size"] = 1
    elif client.concurrency is not None:
        run["note"] = "; ".join(
            filter(None, [run.get("note"), f"{client.concurrency} requests in flight at the client"])
        )
    unsure = "" if client.drafts is not None else NOT_TOLD
    return Reading(run, place.first, place.last, at_batch=times, unsure=unsure)


NOT_TOLD = "its file does not tell whether the server drafted (--set method=none, or num_draft_tokens=N)"
