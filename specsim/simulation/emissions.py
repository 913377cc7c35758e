"""Tokens that the cycles of many requests emit, drawn beforehand: one stream of cycles, a stretch of it a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from specsim.errors import ConfigurationError
from specsim.quantities import IntArray, SpecConfig
from specsim.simulation.acceptance import Drawer

_MOST_TOKENS = 1e9  # of output: 6 GB with their sums under one configuration, and 5 more for each other
_AT_ONCE = 1 << 19  # cycles drawn in one go: arrays that stay in the cache


@final
@dataclass(frozen=True)
class Emissions:
    """What each cycle emits if it drafts as deep as the policy ever does; a shallower chain accepts no more than it drafts.

    Request i has the cycles `offset[i]` … `offset[i] + output_len[i] − 1` of the stream `tokens`: each emits at least
    one token, so that it never needs more. `running[c]` holds the sums of what the first 0, 1 … cycles of the stream
    emit under configuration c, None where that is one token each.
    """

    offset: IntArray
    tokens: NDArray[np.int8]
    running: tuple[NDArray[Any] | None, ...]

    @classmethod
    def drawn(
        cls,
        drawer: Drawer | None,
        specs: tuple[SpecConfig, ...],
        output_len: IntArray,
        generator: np.random.Generator,
    ) -> Self:
        """Draw the cycles of requests with these outputs for every configuration (eq. 21).

        Raises ConfigurationError for more tokens than memory is for.
        """
        if output_len.sum(dtype=float) > _MOST_TOKENS:
            raise ConfigurationError(
                f"{output_len.sum(dtype=float):.3g} output tokens in one run are too many to be simulated: at most"
                f" {_MOST_TOKENS:.3g}, with fewer requests or shorter outputs"
            )
        offset = np.concatenate([[0], np.cumsum(output_len)])
        tokens = np.empty(0, dtype=np.int8)
        if drawer is not None:
            kinds = drawer.prompts(output_len.size, generator)
            tokens = np.empty(int(offset[-1]), dtype=np.int8)
            first = 0
            while first < output_len.size:
                last = max(int(np.searchsorted(offset, offset[first] + _AT_ONCE)), first + 1)
                each = np.repeat(kinds[first:last], output_len[first:last])
                tokens[offset[first] : offset[min(last, output_len.size)]] = drawer.draw(each, generator)
                first = last
        return cls(offset, tokens, tuple(_running(tokens, spec) for spec in specs))

    def cycles(self, configuration: int, position: Any, tokens: Any) -> Any:
        """How many cycles from positions of the stream on emit at least so many tokens; elementwise."""
        running = self.running[configuration]
        if running is None:
            return tokens
        needed = np.asarray(running[position] + tokens, dtype=running.dtype)  # another type would copy the stream
        return np.searchsorted(running, needed) - position

    def emitted(self, configuration: int, start: Any, end: Any) -> Any:
        """Tokens that the cycles start … end − 1 of the stream emit; elementwise."""
        running = self.running[configuration]
        return end - start if running is None else running[end] - running[start]


def _running(tokens: NDArray[np.int8], spec: SpecConfig) -> NDArray[Any] | None:
    if spec.num_steps == 0:
        return None
    most = int(spec.max_accept_length)
    sums = np.zeros(tokens.size + 1, dtype=np.int32 if tokens.size * most < 2**31 else np.int64)
    np.cumsum(np.minimum(tokens, most), out=sums[1:])
    return sums
