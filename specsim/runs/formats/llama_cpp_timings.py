"""llama.cpp's `timings` of a request: in its answer, alone, or at the end of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.acceptance.conversions import counts_from_llama_cpp
from specsim.errors import InputError
from specsim.runs.formats.located import Located
from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole

METHODS = {
    "draft-simple": "draft_model",
    "draft-eagle3": "eagle3",
    "draft-mtp": "mtp",
    "draft-dflash": "dflash",
    "draft-dspark": "dspark",
    "ngram-simple": "ngram",
    "ngram-map-k": "ngram",
    "ngram-map-k4v": "ngram",
    "ngram-mod": "ngram",
    "ngram-cache": "ngram",
}
"""What llama.cpp calls its drafters (--spec-type)."""


@dataclass(frozen=True)
class Decoded:
    """One request's decode: tokens, time [ms] of all but the first, drafts proposed and accepted (None: none)."""

    tokens: int
    time_ms: float
    proposed: int | None = None
    accepted: int | None = None

    def fields(self) -> dict[str, Any]:
        """Counts and the time of a cycle, or of a step without drafts; raises InputError on contradicting counts.

        The time runs from the first token, which the prefill gave: predicted_ms/cycles with cycles =
        predicted_n − 1 − accepted, predicted_ms/(predicted_n − 1) without drafts.
        """
        if not self.proposed:
            return {"method": "none", "decode_ms": rounded(self.time_ms / (self.tokens - 1))}
        counts = counts_from_llama_cpp(self.tokens, self.proposed, self.accepted or 0)
        return {
            "cycles": counts.cycles,
            "accepted_drafts": counts.accepted,
            "proposed_drafts": counts.drafted,
            "cycle_ms": rounded(self.time_ms / counts.cycles),
            "implied": "cycle_ms",
        }


def decoded_of(timings: dict[str, Any]) -> Decoded | None:
    """The decode that timings tell of; None where they are none, or of fewer than two tokens."""
    tokens, time_ms = whole(timings.get("predicted_n")), amount(timings.get("predicted_ms"))
    proposed, accepted = whole(timings.get("draft_n")), whole(timings.get("draft_n_accepted"))
    if tokens is None or tokens < 2 or not time_ms:
        return None
    return Decoded(tokens, time_ms, proposed, accepted)


def is_timings(body: dict[str, Any]) -> bool:
    """Whether an object is timings, or an answer that holds them."""
    return "predicted_ms" in body or (isinstance(body.get("timings"), dict) and "predicted_ms" in body["timings"])


def read_timings(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a request."""
    for row in rows:
        timings = row.body.get("timings", row.body)
        decoded = decoded_of(timings) if isinstance(timings, dict) else None
        if decoded is None:
            yield LeftOut("timings of fewer than two tokens, or without their time", 1, row.first, row.last)
            continue
        common: dict[str, Any] = {"engine": "llama.cpp", "instrument": "server timings", "output_len": decoded.tokens}
        if isinstance(model := row.body.get("model"), str):
            common["model"] = model
        try:
            yield Reading({**common, **decoded.fields(), **_speculation(row, decoded)}, row.first, row.last)
        except InputError as error:
            yield LeftOut(str(error).replace("\n", "; "), 1, row.first, row.last)


def _speculation(row: Located, decoded: Decoded) -> dict[str, Any]:
    """The drafter and its longest draft, as an answer's generation settings state them."""
    settings = row.body.get("generation_settings")
    if not decoded.proposed or not isinstance(settings, dict):
        return {}
    method = METHODS.get(str(settings.get("speculative.types")))
    longest = whole(settings.get("speculative.n_max"))
    return ({"method": method} if method else {}) | ({"num_draft_tokens": longest + 1} if longest else {})
