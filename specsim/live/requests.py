"""The requests of a load that ended, as rows that the metrics of simulated ones are computed of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specsim.live.window import Stream
from specsim.metrics import RequestRows


def ended(streams: Sequence[Stream]) -> RequestRows:
    """Requests whose answer came whole, and of which the server told how many tokens it has; times since the first was sent.

    Arrival is when the client sent it, first token and finish are when its first and last chunk came.
    """
    whole = [stream for stream in streams if stream.completion_tokens and stream.chunk_s.size]
    began = min((stream.sent_s for stream in streams), default=0.0)
    sent, first, last = (
        np.array([1000.0 * (time(stream) - began) for stream in whole])
        for time in (lambda s: s.sent_s, lambda s: float(s.chunk_s[0]), lambda s: float(s.chunk_s[-1]))
    )
    prompts = np.array([stream.prompt_tokens or 0 for stream in whole], dtype=np.int64)
    outputs = np.array([stream.completion_tokens for stream in whole], dtype=np.int64)
    chunks = np.array([stream.chunk_s.size for stream in whole], dtype=np.int64)
    return RequestRows(sent, np.full(len(whole), np.nan), first, last, prompts, outputs, chunks)
