"""SGLang's DSPARK step table (--speculative-dspark-sps-table-path): whole cycles by verified tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specsim.runs.formats.located import Located
from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole

_COMMON = {"engine": "sglang", "method": "dspark", "instrument": "dspark_sps_profiler"}


def is_sps_table(body: dict[str, Any]) -> bool:
    """Whether an object is a step table, in either of its forms."""
    return {"sample_batch_tokens", "sample_steps_per_sec"} <= body.keys() or {
        "theta_seconds",
        "m_probes",
    } <= body.keys()


def read_sps_table(tables: Sequence[Located], stated: Mapping[str, Any]) -> Iterator[Reading | LeftOut]:
    """Cycles of a table: steps per second by tokens of the whole batch, or bias + α(batch) + θ(tokens) seconds."""
    for table in tables:
        if "theta_seconds" in table.body:
            yield from _by_parts(table)
        else:
            yield from _by_tokens(table, whole(stated.get("num_draft_tokens")), whole(stated.get("batch_size")))


def _by_tokens(table: Located, width: int | None, batch: int | None) -> Iterator[Reading | LeftOut]:
    """A table of tokens alone: they are batch × width, and one of the two has to be stated."""
    place = (table.first, table.last)
    pairs = list(zip(_numbers(table, "sample_batch_tokens"), _numbers(table, "sample_steps_per_sec"), strict=False))
    if not width and not batch:
        why = "step of so many tokens: they are batch size × draft tokens (--set num_draft_tokens=N, or batch_size=N)"
        yield LeftOut(why, len(pairs), *place)
        return
    for tokens, steps_s in pairs:
        divisor = width or batch or 1
        if not steps_s or not tokens or tokens % divisor:
            yield LeftOut(
                f"tokens that are no multiple of {divisor}, or without a rate", 1, *place, f"{tokens:g} tokens"
            )
            continue
        other = int(tokens) // divisor
        shape = {"num_draft_tokens": width or other, "batch_size": other if width else batch}
        yield Reading({**_COMMON, **shape, "cycle_ms": rounded(1000 / steps_s)}, *place)


def _by_parts(table: Located) -> Iterator[Reading | LeftOut]:
    """A table of parts: every batch probed with every number of tokens that is a multiple of it, twice at least."""
    bias = amount(table.body.get("bias_seconds"))
    batches, alpha = _numbers(table, "bs_probes"), _numbers(table, "alpha_seconds")
    tokens, theta = _numbers(table, "m_probes"), _numbers(table, "theta_seconds")
    if bias is None or len(batches) != len(alpha) or len(tokens) != len(theta) or not batches or not tokens:
        yield LeftOut("table whose parts do not go together", 1, table.first, table.last)
        return
    for batch, by_batch in zip(batches, alpha, strict=True):
        for total, by_tokens in zip(tokens, theta, strict=True):
            cycle = bias + by_batch + by_tokens
            if cycle > 0 and batch >= 1 and total >= 2 * batch and total % batch == 0:
                shape = {"batch_size": int(batch), "num_draft_tokens": int(total // batch)}
                yield Reading({**_COMMON, **shape, "cycle_ms": rounded(cycle * 1000)}, table.first, table.last)


def _numbers(table: Located, name: str) -> list[float]:
    """The numbers of a list, none where one of them is not one."""
    listed = table.body.get(name)
    found = [amount(each) for each in listed] if isinstance(listed, list) else []
    return [each for each in found if each is not None] if None not in found else []
