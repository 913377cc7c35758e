"""One server under one load, measured once: no model, no verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from specsim.live.answers import client_with
from specsim.live.facts import ServerFacts
from specsim.live.load import Load, Loader, route_of, sender_with
from specsim.live.measured import Made, measured, run_row
from specsim.live.probe import probe
from specsim.live.prompts import Prompt
from specsim.live.recording import RequestError
from specsim.live.session import WARM_UP_S, WARM_UP_TOKENS, Side, counted_of, note_of
from specsim.live.window import steady_window

_LOOK_S = 0.1


@dataclass(frozen=True)
class Sample:
    """What is asked of a server: which prompts in turn, so many requests at once of so many output tokens, for how long [s].

    The time begins once every request decodes; `id` and `nccl` go into the run.
    """

    url: str
    prompts: Sequence[Prompt]
    concurrency: int
    output_len: int
    seconds: float
    id: str
    nccl: str


async def measured_run(sample: Sample) -> tuple[ServerFacts, dict[str, Any]]:
    """What the server is, and a row of the run form with what was measured of it.

    A row without figures says why in `exclude`. Raises ServerError where nobody answers, RequestError where a request fails.
    """
    async with client_with(None) as client, sender_with(None) as sender:
        adapter = await probe(client, sample.url)
        facts = await adapter.facts()
        load = await route_of(sender, Load(facts.url, facts.served_model, sample.prompts, sample.concurrency,
                                           sample.output_len, adapter.extra_body))  # fmt: skip
        if not facts.spec_known:
            facts = await adapter.facts()  # drafts are counted once there were some
        side = Side(adapter, facts, facts.spec, Loader(sender, load))
        await side.loader.warm_up(WARM_UP_TOKENS)
        lag_s = await _under_load(side, sample.seconds)
    window = steady_window(side.loader.streams(), sample.concurrency)
    counted, counts, lost = counted_of(side)
    seen = measured(window, side.spec, counted, lag_s)
    note = note_of(window, seen, lost)
    made = Made(sample.id, sample.nccl, side.spec, sample.output_len, len(sample.prompts), note)
    return facts, run_row(facts, made, window, seen, counts)


async def _under_load(side: Side, seconds: float) -> float:
    """Load until every request decodes, then as long again as was asked, counters read at both ends of that.

    Returns the longest [s] that this client was late for its own clock.
    """
    loader, lag_s = side.loader, 0.0
    loader.start()
    try:
        async with asyncio.timeout(WARM_UP_S):
            while not _all_decode(loader):
                lag_s = max(lag_s, await _held(loader, _LOOK_S))
        await side.read_counters()
        for _ in range(round(seconds / _LOOK_S)):
            lag_s = max(lag_s, await _held(loader, _LOOK_S))
        await side.read_counters()
    except TimeoutError:
        raise RequestError(
            f"{loader.load.url}: within {WARM_UP_S:g} s not all of {loader.load.concurrency} requests were decoding"
        ) from None
    finally:
        await loader.stop()
    return lag_s


async def _held(loader: Loader, seconds: float) -> float:
    """Let the load run for so long; how much longer that took [s]."""
    since = perf_counter()
    await loader.hold(seconds)
    return perf_counter() - since - seconds


def _all_decode(loader: Loader) -> bool:
    first = loader.recordings[: loader.load.concurrency]
    return len(first) == loader.load.concurrency and all(recording.chunk_s for recording in first)
