"""The result file of `vllm bench serve --save-result`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from specsim.runs.formats.located import Client, Located, client_reading
from specsim.runs.formats.positions import histogram_of, position_counts
from specsim.runs.readings import LeftOut, Reading, amount, rounded

_IN_FULL = 1e-9
"""Half a digit of a fraction that is printed in full."""


def is_bench_serve(body: dict[str, Any]) -> bool:
    """Whether an object is a result of vllm bench serve."""
    return {"model_id", "output_throughput", "duration"} <= body.keys()


def read_bench_serve(rows: Sequence[Located], _: Any) -> Iterator[Reading | LeftOut]:
    """One run a row: draft counters of the run, where vLLM 0.14 or later kept any; then times per output token."""
    for row in rows:
        tpot, speed = row.amount("mean_tpot_ms"), row.amount("output_throughput")
        if tpot is None and speed is None:
            yield LeftOut("row without mean_tpot_ms or output_throughput", 1, row.first, row.last)
            continue
        fields: dict[str, Any] = {"engine": "vllm", "model": str(row.body["model_id"])}
        done, tokens = row.whole("completed"), row.whole("total_output_tokens")
        fields |= {"prompts": done} if done else {}
        fields |= {"output_len": max(1, round(tokens / done))} if done and tokens else {}
        counted = _counted(row)
        length = rounded(1 + counted["accepted_drafts"] / counted["cycles"]) if counted else None
        client = Client(row.whole("max_concurrency"), tpot, speed, length, True if counted else None)
        yield client_reading(row, {**fields, **counted}, client)


def _counted(row: Located) -> dict[str, Any]:
    """Fields of the draft counters; nothing where there are none."""
    names = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    rates = row.body.get("spec_decode_per_position_acceptance_rates")
    survival = [amount(rate) for rate in rates] if isinstance(rates, list) else []
    return draft_counts([row.whole(name) for name in names], survival, _IN_FULL)


def draft_counts(counters: Sequence[int | None], survival: Sequence[float | None], half_digit: float) -> dict[str, Any]:
    """Fields of a run's drafts, draft tokens and accepted tokens, and of survival by position; none without drafts."""
    drafts, proposed, accepted = counters
    if not drafts or not proposed:
        return {}
    fields: dict[str, Any] = {"cycles": drafts, "proposed_drafts": proposed, "accepted_drafts": accepted or 0}
    known = [rate for rate in survival if rate is not None]
    if known and len(known) == len(survival):
        fields["num_draft_tokens"] = len(known) + 1
        if (at_least := position_counts(known, drafts, accepted or 0, half_digit)) is not None:
            fields["accept_histogram"] = histogram_of(drafts, at_least)
    elif proposed % drafts == 0:
        fields["num_draft_tokens"] = proposed // drafts + 1
    return fields
