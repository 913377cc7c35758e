"""Where the device waited for the host: eager figures that the launching of kernels explains, not the device's work."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from specsim.cost.terms import KV_READ, PHASES, TERM_BY_NAME
from specsim.fitting.columns import Column, features, phases_of_many_contexts
from specsim.fitting.least_squares import solve
from specsim.fitting.observations import Observation
from specsim.quantities import BoolArray, FloatArray

_ROUNDS = 20  # assignments repeat or settle long before

Seen = tuple[Observation, ...]


def host_or_device(seen: Seen) -> Seen:
    """The figures, those marked in which the device waited: of max(host, device) the host's time was the longer.

    Told where graphs were off, and the device's time is seen too: by contexts that differ, or with graphs on.
    """
    for phase in KV_READ:
        rows = [index for index, o in enumerate(seen) if _belongs(o, phase, seen)]
        eager = np.array([bool(seen[index].cycle.eager.all()) for index in rows])
        if not eager.any() or (eager.all() and phase not in phases_of_many_contexts(seen)):
            continue
        waits = _Sides.of(tuple(seen[index] for index in rows), phase, eager).waiting()
        marked = {index for index, waiting in zip(rows, waits, strict=True) if waiting}
        seen = tuple(replace(o, host_bound=o.host_bound or index in marked) for index, o in enumerate(seen))
    return seen


def _belongs(o: Observation, phase: str, seen: Seen) -> bool:
    """Whether a figure is the phase's own time, or a whole cycle's where nothing tells verify apart."""
    if o.phases == (phase,):
        return True
    return (
        phase == "verify"
        and o.phases == PHASES
        and not any(len(other.phases) == 1 and "verify" in other.phases for other in seen)
    )


@dataclass(frozen=True)
class _Sides:
    """The n figures of a phase: times [ms], the device's features, tokens that set the host's level, which are eager."""

    times: FloatArray
    device: FloatArray
    tokens: FloatArray
    kv_tokens: FloatArray
    eager: BoolArray

    @classmethod
    def of(cls, seen: Seen, phase: str, eager: BoolArray) -> _Sides:
        names = [f"{phase}_kv_read_ms"] if phase in phases_of_many_contexts(seen) else []
        if not eager.all():
            names = [f"{phase}_fixed_ms", f"{phase}_per_token_ms", *names, f"{phase}_eager_ms"]
        device = features(tuple(Column(TERM_BY_NAME[name]) for name in names), seen)
        tokens = [o.verify_tokens if phase == "verify" else float(o.cycle.batch_size[0]) for o in seen]
        kv_tokens = [float(o.cycle.kv_tokens[0]) for o in seen]
        return cls(np.array([o.time_ms for o in seen]), device, np.array(tokens), np.array(kv_tokens), eager)

    def waiting(self) -> BoolArray:
        """The eager figures that the host explains, by the assignment that leaves the least misfit; none where all are the device's.

        Each start takes the figures that read most of the KV cache for the device's; then every figure goes to the
        side that is the longer, until none changes.
        """
        starts = [self.eager & (self.kv_tokens < least) for least in np.unique(self.kv_tokens[self.eager])[1:]]
        settled = [self._settled(start) for start in [self.eager, *starts]]
        misfits = [
            _misfit(np.where(self.eager, np.maximum(*both), both[1]), self.times) for both in map(self._both, settled)
        ]
        best, nothing = settled[int(np.argmin(misfits))], np.zeros_like(self.eager)
        if self.eager.all() and (best.all() or min(misfits) > self._misfit_of_sum()):
            return nothing
        return best

    def _misfit_of_sum(self) -> float:
        """Misfit of a level at each token count with what the device does added to it: nothing is hidden."""
        levels = (self.tokens[:, None] == np.unique(self.tokens)).astype(float)
        design = np.hstack([levels, self.device])
        return _misfit(design @ solve(design, self.times, np.ones(self.times.size)).values, self.times)

    def _settled(self, waits: BoolArray) -> BoolArray:
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


def _misfit(expected: FloatArray, times: FloatArray) -> float:
    return float(np.square(expected / times - 1.0).sum())
