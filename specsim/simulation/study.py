"""A question about a server under load, completed from a model: the servers to compare, the loads, what qualifies both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from specsim.acceptance import AcceptanceLaw
from specsim.cost.model import CostModel
from specsim.cost.terms import PLAIN
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError
from specsim.fitting.acceptance import AcceptanceFit
from specsim.metrics import Slo
from specsim.quantities import CONTEXT_TOLERANCE, FloatArray
from specsim.simulation.acceptance import Drawer
from specsim.simulation.arrivals import ClosedLoad, Lengths, Load, PoissonLoad
from specsim.simulation.policies import Policy
from specsim.simulation.pricing import Prefill, StepTimes
from specsim.simulation.scenarios import Crossover, LoadSweep, capacity, crossover, load_sweep, rate_to_add
from specsim.simulation.serving import Server

_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0)
"""Of what the fastest server can serve at most: request rates to ask for where none are stated."""


@final
@dataclass(frozen=True)
class Limits:
    """What a server may do at once (`Server`); a largest batch of None is the largest that was measured on both sides."""

    max_batch_size: int | None = None
    max_batched_tokens: int = 8192
    chunked_prefill: bool = True
    kv_tokens: int | None = None


@final
@dataclass(frozen=True)
class Question:
    """What is served: the policy, the law of what it drafts, the mean prompt and output, the limits, prefill, setting.

    `between_prompts` is the relative spread of accept length from prompt to prompt, `prefill_ms_per_1000_tokens` None
    where nobody measured it.
    """

    policy: Policy
    law: AcceptanceLaw | AcceptanceFit
    prompt_len: float
    output_len: float
    limits: Limits = Limits()
    between_prompts: float = 0.0
    prefill_ms_per_1000_tokens: float | None = None
    nccl: str | None = None

    @property
    def drawn_law(self) -> AcceptanceLaw:
        """The law that cycles are drawn from; of a fitted one its best estimate."""
        return self.law.law if isinstance(self.law, AcceptanceFit) else self.law


@final
@dataclass(frozen=True)
class ServingStudy:
    """A question, its servers under loads, and what qualifies them.

    The first server has the policy that was asked for; `plain` is the index of the one without speculation, None where
    there is no baseline, and then `no_baseline` says why. `added_rates` were not asked for, and place the crossovers.
    """

    model: CostModel
    question: Question
    nccl: str
    found: LoadSweep
    replicas: int
    seed: int
    slo: Slo | None
    plain: int | None
    no_baseline: str
    added_rates: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def axis(self) -> tuple[str, FloatArray]:
        """What the loads differ in, and its values."""
        loads = self.found.loads
        if isinstance(loads[0], PoissonLoad):
            return "request_rate", np.array([load.request_rate for load in loads if isinstance(load, PoissonLoad)])
        if isinstance(loads[0], ClosedLoad):
            return "concurrency", np.array([float(load.concurrency) for load in loads if isinstance(load, ClosedLoad)])
        return "trace", np.zeros(len(loads))

    def crossover(self, server: int) -> Crossover | None:
        """Where a server stops being faster than plain decode; None without baseline, or without two request rates."""
        name, rates = self.axis
        if name != "request_rate" or self.plain is None or self.plain == server or rates.size < 2:
            return None
        return crossover(rates, *self._against(server, self.plain))

    def rates_to_add(self) -> list[float]:
        """Request rates that would place the crossovers better, ascending; none where every one lies well."""
        rates = self.axis[1]
        found = [
            rate_to_add(rates, *self._against(server, self.plain))
            for server in range(len(self.found.servers))
            if self.plain is not None and self.crossover(server) is not None
        ]
        return sorted({rate for rate in found if rate is not None})

    def _against(self, server: int, plain: int) -> tuple[FloatArray, FloatArray]:
        """Mean end-to-end times of two servers, each of shape (loads, replicas)."""
        ours, theirs = (self.found.values(at, lambda s: s.e2e_ms.mean) for at in (server, plain))
        return ours, theirs


def servers(model: CostModel, question: Question) -> tuple[list[Server], str]:
    """The policy's server, the same without exceptions where it has some, and plain decode; why that is missing, if it is.

    Raises NotIdentifiedError where the runs leave the policy's own cycles open, UnknownSettingError, ConfigurationError.
    """
    label = model.reference if question.nccl is None else question.nccl
    most = question.limits.max_batch_size or _most_measured(model, label)
    policies = [question.policy]
    if question.policy.deepest is not None and question.policy != Policy.fixed(question.policy.deepest):
        policies.append(Policy.fixed(question.policy.deepest))
    found = [_server(model, question, policy, label, most) for policy in policies]
    if question.policy.deepest is None:
        return found, ""
    try:
        return [*found, _server(model, question, Policy.fixed(PLAIN), label, most)], ""
    except (MixedSetupError, NotIdentifiedError) as error:
        return found, str(error)


def study(
    model: CostModel,
    question: Question,
    loads: Callable[[Sequence[Server]], Sequence[Load]],
    *,
    replicas: int = 5,
    seed: int = 0,
    slo: Slo | None = None,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ServingStudy:
    """Simulate the servers of a question under loads, which may depend on what the servers can serve.

    Rates are added where a crossover lies between two that are far apart. Raises as `servers` and `load_sweep`.
    """
    label = model.reference if question.nccl is None else question.nccl
    compared, why = servers(model, question)

    def swept(some: Sequence[Load]) -> LoadSweep:
        return load_sweep(compared, some, replicas=replicas, seed=seed, slo=slo, executor=executor, progress=progress)

    plain = len(compared) - 1 if question.policy.deepest is not None and not why else None
    notes = tuple(dict.fromkeys(_notes(model, question, compared)))
    done = ServingStudy(
        model, question, label, swept(loads(compared)), replicas, seed, slo, plain, why, added_rates=(), notes=notes
    )
    while more := done.rates_to_add():
        like = done.found.loads[0]
        found = swept([replace(like, request_rate=rate) for rate in more if isinstance(like, PoissonLoad)])
        done = replace(done, found=done.found.joined(found), added_rates=(*done.added_rates, *more))
    return done


def rates(
    compared: Sequence[Server], prompts: Lengths, outputs: Lengths, count: int, request_rate: Sequence[float] = ()
) -> list[Load]:
    """Poisson arrivals at the stated rates; without any, at shares of what the fastest of the servers can serve."""
    most = max(capacity(server, prompts.mean, outputs.mean) for server in compared)
    asked = sorted(set(request_rate)) or [float(f"{most * share:.3g}") for share in _SHARES]
    return [PoissonLoad(rate, count, prompts, outputs) for rate in asked]


def _server(model: CostModel, question: Question, policy: Policy, nccl: str, most: int) -> Server:
    contexts = question.prompt_len, question.prompt_len + question.output_len
    times = StepTimes.of(model, policy, most, contexts, nccl)
    spec, limits = policy.deepest, question.limits
    drawer = None if spec is None else Drawer.of(question.drawn_law, spec, between_prompts=question.between_prompts)
    prefill = Prefill.of(model, nccl, question.prefill_ms_per_1000_tokens)
    return Server(
        times, policy, prefill, drawer, most, limits.max_batched_tokens, limits.chunked_prefill, limits.kv_tokens
    )


def _most_measured(model: CostModel, nccl: str) -> int:
    """The largest batch that is inside what was measured both with speculation and without."""
    sides = [[m.batch_size for m in model.measured if m.nccl == nccl], model.setting(nccl).decode_batches]
    largest = [max(side) for side in sides if side]
    if not largest:
        raise ConfigurationError(f"no batch size was measured under NCCL setting {nccl!r}: state max_batch_size")
    return int(min(largest))


def _notes(model: CostModel, question: Question, compared: Sequence[Server]) -> list[str]:
    notes = [each for server in compared for each in (server.prefill.assumed, *server.times.notes) if each]
    low, high = question.prompt_len, question.prompt_len + question.output_len
    measured = model.ranges.get("context_len") or model.ranges.get("decode_context_len")
    if not model.reads_context and measured and high > measured[1] + CONTEXT_TOLERANCE:
        seen = " to ".join(dict.fromkeys(f"{end:.0f}" for end in measured))
        notes.append(
            f"EXTRAPOLATED: requests hold {low:.0f} to {high:.0f} tokens in the KV cache, the runs were made at {seen} and"
            " do not tell what reading more of them takes"
        )
    if isinstance(question.law, AcceptanceFit) and question.policy.deepest is not None:
        notes += question.law.notes
    notes.append("the intervals are over replicas: what the cost model and the law do not know is in none of them")
    return notes
