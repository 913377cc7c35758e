"""Where the device waited for the host: eager figures that the launching of kernels explains, not the device's work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specsim.cost.terms import KV_READ, PHASES, TERM_BY_NAME
from specsim.fitting.columns import Column, device_terms, features, phases_of_many_contexts
from specsim.fitting.least_squares import aicc, solve
from specsim.fitting.observations import Observation, resolution
from specsim.quantities import BoolArray, FloatArray

_ROUNDS = 20  # assignments repeat or settle long before
_WORTH = 6.0  # AICc that a hidden device must gain over one that is added to the host: many assignments are tried
_VISIBLE = 0.05  # relative excess over the host's time at the same tokens by which a device shows
_EXACT = 1e-9  # relative residual that is arithmetic only

Seen = tuple[Observation, ...]


def host_or_device(seen: Seen) -> Seen:
    """The figures, those marked in which the device waited: of max(host, device) the host's time was the longer.

    Told where graphs were off, and the device's time is seen too: by contexts that differ, or with graphs on.
    """
    for phase in KV_READ:
        for nccl in dict.fromkeys(o.nccl for o in seen):
            rows = [index for index, o in enumerate(seen) if o.nccl == nccl and _belongs(o, phase, seen)]
            eager = np.array([bool(seen[index].cycle.eager.all()) for index in rows])
            if not eager.any() or (eager.all() and phase not in phases_of_many_contexts(seen)):
                continue
            waits = _Sides.of(tuple(seen[index] for index in rows), phase, eager).waiting()
            marked = {index for index, waiting in zip(rows, waits, strict=True) if waiting}
            seen = tuple(replace(o, host_bound=o.host_bound or index in marked) for index, o in enumerate(seen))
    return _with_whole_cycles(seen)


def _belongs(o: Observation, phase: str, seen: Seen) -> bool:
    """Whether a figure is the phase's own time, or a whole cycle's where nothing tells verify apart."""
    if o.phases == (phase,):
        return True
    return (
        phase == "verify"
        and o.phases == PHASES
        and not any(len(other.phases) == 1 and "verify" in other.phases for other in seen)
    )


def _with_whole_cycles(seen: Seen) -> Seen:
    """Whole cycles marked, too, where their verify waits: one that reads as much of the KV cache or more does."""
    waiting = [o for o in seen if o.host_bound and o.phases == ("verify",)]

    def waits(o: Observation) -> bool:
        return any(
            (other.nccl, other.verify_tokens) == (o.nccl, o.verify_tokens) and _kv_tokens(other) >= _kv_tokens(o)
            for other in waiting
        )

    return tuple(
        replace(o, host_bound=True) if o.phases == PHASES and o.cycle.eager.all() and waits(o) else o for o in seen
    )


def _kv_tokens(o: Observation) -> float:
    return float(o.cycle.kv_tokens[0])


@dataclass(frozen=True)
class _Sides:
    """The n figures of a phase under a setting.

    Times [ms], the device's features, tokens that set the host's level, which are eager, and the mean square that
    rounding leaves in relative residuals.
    """

    times: FloatArray
    device: FloatArray
    tokens: FloatArray
    kv_tokens: FloatArray
    eager: BoolArray
    rounding: float

    @classmethod
    def of(cls, seen: Seen, phase: str, eager: BoolArray) -> _Sides:
        reads = phase in phases_of_many_contexts(seen)
        gaps = [] if eager.all() else [TERM_BY_NAME[f"{phase}_eager_ms"]]
        terms = [*device_terms(phase, reads), *gaps]
        device = features(tuple(Column(term) for term in terms), seen)
        tokens = [o.verify_tokens if phase == "verify" else float(o.cycle.batch_size[0]) for o in seen]
        times = np.array([o.time_ms for o in seen])
        kv_tokens = np.array([_kv_tokens(o) for o in seen])
        return cls(times, device, np.array(tokens), kv_tokens, eager, max(resolution(seen), _EXACT) ** 2)

    def waiting(self) -> BoolArray:
        """The eager figures that the host explains, by the assignment that leaves the least misfit; none where all are the device's.

        Where all are eager, a hidden device has to explain more than one whose KV reads add to the host's time, be it of
        KV reads alone or with a fixed part and a slope: figures that hardly change with the context show none.
        """
        if not self.eager.all():
            return min(self._assignments(), key=self._misfit)
        nothing = np.zeros_like(self.eager)
        best, least = nothing, min(self._score(nothing), self._score_of_sum()) - _WORTH
        for terms in range(1, self.device.shape[1] + 1):
            sides = replace(self, device=self.device[:, :terms])
            for waits in filter(sides._shows, sides._assignments()):
                if (score := sides._score(waits)) < least:
                    best, least = waits, score
        return best

    def _assignments(self) -> list[BoolArray]:
        """Each start takes the figures that read most of the KV cache for the device's, and settles."""
        starts = [self.eager & (self.kv_tokens < least) for least in np.unique(self.kv_tokens[self.eager])[1:]]
        return [self._settled(start) for start in [self.eager, *starts]]

    def _shows(self, waits: BoolArray) -> bool:
        """Whether some figure of the device exceeds what the host takes at the same tokens by _VISIBLE."""
        host, _ = self._both(waits)
        return bool(((self.times > (1 + _VISIBLE) * host) & (host > 0) & ~waits).any())

    def _misfit(self, waits: BoolArray) -> float:
        """Sum of squared relative residuals of an assignment."""
        host, device = self._both(waits)
        return _squares(np.where(self.eager, np.maximum(host, device), device), self.times)

    def _score(self, waits: BoolArray) -> float:
        """AICc of an assignment: a level at each token count that the host shows, and what tells the device."""
        count = np.unique(self.tokens[waits]).size + int(np.linalg.matrix_rank(self.device[~waits]))
        return aicc(self._misfit(waits), self.times.size, count + 1, self.rounding)

    def _score_of_sum(self) -> float:
        """AICc of a level at each token count with the device's KV reads added to it: nothing is hidden."""
        levels = (self.tokens[:, None] == np.unique(self.tokens)).astype(float)
        design = np.hstack([levels, self.device])
        solution = solve(design, self.times, np.ones(self.times.size))
        squares = _squares(design @ solution.values, self.times)
        return aicc(squares, self.times.size, int(solution.kept.sum()) + 1, self.rounding)

    def _settled(self, waits: BoolArray) -> BoolArray:
        """An assignment in which every figure belongs to the side that is the longer, reached from another."""
        for _ in range(_ROUNDS):
            host, device = self._both(waits)
            now = self.eager & (host >= device)
            if (now == waits).all():
                break
            waits = now
        return waits

    def _both(self, waits: BoolArray) -> tuple[FloatArray, FloatArray]:
        """The host's level at each token count, 0 where no figure shows it, and the device's time."""
        level = {t: float(self.times[waits & (self.tokens == t)].mean()) for t in np.unique(self.tokens[waits])}
        host = np.array([level.get(t, 0.0) for t in self.tokens])
        seen = ~waits
        if not seen.any():
            return host, np.zeros_like(host)
        solution = solve(self.device[seen], self.times[seen], np.ones(int(seen.sum())))
        return host, self.device @ solution.values


def _squares(expected: FloatArray, times: FloatArray) -> float:
    return float(np.square(expected / times - 1.0).sum())
