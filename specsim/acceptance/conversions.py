"""Accept length, survival, conditional rates, histograms, engines' counters and accept rates, into each other.

Counts first, ratios after. Every accept length includes the bonus token; no count of drafts, accepted or
proposed, does. Field names and meanings: SGLang 0.4.6 to 0.5.23, vLLM 0.11 to 0.33, TensorRT-LLM, llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from specsim.errors import ConfigurationError, Fault, InputError, NotIdentifiedError
from specsim.methods import method_named
from specsim.quantities import FloatArray, Floats, SpecConfig

# -- ratios --------------------------------------------------------------------------------------------------------


def conditional_acceptance(survival: ArrayLike) -> FloatArray:
    """α_i = S_i/S_{i−1} with S_0 = 1 (eq. 18) along the last axis, which is depth; 0 after a survival of 0.

    Raises ConfigurationError where survival leaves [0, 1] or rises with depth. vLLM's and llama.cpp's
    "acceptance rate per position" is survival, not this.
    """
    after = _survival(survival)
    before = np.concatenate([np.ones_like(after[..., :1]), after[..., :-1]], axis=-1)
    return np.asarray(np.divide(after, before, out=np.zeros_like(after), where=before > 0))


def survival_from_conditional(conditional: ArrayLike) -> FloatArray:
    """S_i = Π_{j ≤ i} α_j (eq. 18) along the last axis; raises ConfigurationError outside [0, 1]."""
    rates = np.asarray(conditional, dtype=float)
    if not ((rates >= 0) & (rates <= 1)).all():
        raise ConfigurationError("conditional acceptance lies between 0 and 1 at every position")
    return np.cumprod(rates, axis=-1)


def accept_length_from_survival(survival: ArrayLike) -> Floats:
    """L = 1 + Σ S_i (eq. 18), bonus included, summed over the last axis."""
    return _as_given(1 + _survival(survival).sum(axis=-1))


def histogram_from_survival(survival: ArrayLike) -> FloatArray:
    """Share of cycles that accept exactly 0 … S drafts: S_j − S_{j+1}; the last axis grows by one."""
    inside = _survival(survival)
    ends = np.ones_like(inside[..., :1]), np.zeros_like(inside[..., :1])
    return -np.diff(np.concatenate([ends[0], inside, ends[1]], axis=-1), axis=-1)


def survival_from_histogram(histogram: ArrayLike) -> FloatArray:
    """S_i = Σ_{j ≥ i} h_j / Σ h of counts or shares of cycles by accepted drafts 0 … S; the last axis loses one.

    The index is accepted drafts, without the bonus: a histogram by tokens emitted starts one later.
    """
    counts = np.asarray(histogram, dtype=float)
    if counts.shape[-1:] in ((), (0,)) or not (counts >= 0).all() or not (counts.sum(axis=-1) > 0).all():
        raise ConfigurationError("a histogram holds counts of at least 0, by accepted drafts from 0, not all 0")
    at_least = np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]
    return np.asarray(at_least[..., 1:] / at_least[..., :1])


def accept_length_from_histogram(histogram: ArrayLike) -> Floats:
    """L = 1 + Σ j·h_j / Σ h, bonus included, over the last axis; h by accepted drafts from 0."""
    return accept_length_from_survival(survival_from_histogram(histogram))


def _survival(values: ArrayLike) -> FloatArray:
    survival = np.asarray(values, dtype=float)
    inside = ((survival >= 0) & (survival <= 1)).all()
    if not inside or not (np.diff(survival, axis=-1) <= 1e-12).all():  # sums of counts over counts round
        raise ConfigurationError(
            "survival lies between 0 and 1 and never rises with depth; conditional rates become survival by"
            " survival_from_conditional"
        )
    return survival


# -- counts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CounterNames:
    """What an engine calls the counters, so that a fault names the field that the user sees."""

    engine: str
    cycles: str
    drafted: str
    accepted: str
    detail: str = ""


COUNTS = CounterNames("counts", "cycles", "drafted", "accepted", "at_least")
SGLANG = CounterNames(
    "SGLang meta_info",
    "spec_verify_ct",
    "spec_num_proposed_drafts",
    "spec_num_correct_drafts",
    "spec_correct_drafts_histogram",
)
VLLM = CounterNames(
    "vLLM metrics",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos",
)
TENSORRT_LLM = CounterNames(
    "TensorRT-LLM specDecodingStats", "numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens"
)
LLAMA_CPP = CounterNames("llama.cpp timings", "predicted_n", "draft_n", "draft_n_accepted")


@dataclass(frozen=True)
class AcceptanceCounts:
    """Cycles, drafts accepted in them, drafts proposed, and cycles that accepted at least 1, 2 … drafts, if known.

    The bonus token is in none of them. Raises InputError, every broken identity at once: accepted ≤ drafted;
    cycles ≥ at_least[0] ≥ at_least[1] …; sum(at_least) = accepted.
    """

    cycles: int
    accepted: int
    drafted: int | None = None
    at_least: tuple[int, ...] | None = None
    names: CounterNames = COUNTS

    def __post_init__(self) -> None:
        if faults := tuple(self._faults()):
            raise InputError(faults)

    def _faults(self) -> Iterator[Fault]:
        where, names = self.names.engine, self.names
        numbers: dict[str, tuple[int, ...]] = {names.cycles: (self.cycles,), names.accepted: (self.accepted,)}
        numbers |= {names.drafted: (self.drafted,)} if self.drafted is not None else {}
        numbers |= {names.detail: self.at_least} if self.at_least is not None else {}
        for field, values in numbers.items():
            if wrong := [value for value in values if not _is_count(value)]:
                yield Fault(where, field, f"{wrong[0]!r} is not a count", "counts are whole numbers of at least 0")
                return
        if self.cycles == 0:
            yield Fault(where, names.cycles, "no cycle was counted", "give the counters of a run that speculated")
        if self.drafted is not None and self.accepted > self.drafted:
            problem = f"{self.accepted} accepted of {self.drafted} drafted"
            yield Fault(
                where, names.accepted, problem, f"accepted drafts, without the bonus, are at most {names.drafted}"
            )
        if self.at_least is not None:
            yield from self._position_faults(self.at_least)

    def _position_faults(self, at_least: tuple[int, ...]) -> Iterator[Fault]:
        where, names = self.names.engine, self.names
        for index, (before, after) in enumerate(pairwise((self.cycles, *at_least))):
            if after > before:
                problem = f"{after} at position {index} follows {before}"
                yield Fault(where, names.detail, problem, f"counts by position never rise, from {names.cycles} on")
        if sum(at_least) != self.accepted:
            problem = f"positions add up to {sum(at_least)}, {names.accepted} is {self.accepted}"
            yield Fault(where, names.detail, problem, "the two are equal when read at the same moment")

    @property
    def accept_length(self) -> float:
        """1 + accepted/cycles, bonus included (eq. 18)."""
        return 1 + self.accepted / self.cycles

    @property
    def draft_accept_rate(self) -> float:
        """accepted/drafted, bonus in neither; raises NotIdentifiedError without a count of drafted tokens."""
        if not self.drafted:
            raise NotIdentifiedError(f"{self.names.engine}: an accept rate needs the count of drafted tokens")
        return self.accepted / self.drafted

    @property
    def survival(self) -> FloatArray:
        """S_i = at_least_i/cycles (eq. 18); raises NotIdentifiedError without counts by position."""
        return np.array(self._positions()) / self.cycles

    @property
    def histogram(self) -> tuple[int, ...]:
        """Cycles that accepted exactly 0, 1 … drafts; raises NotIdentifiedError without counts by position."""
        return tuple(before - after for before, after in pairwise((self.cycles, *self._positions(), 0)))

    def _positions(self) -> tuple[int, ...]:
        if self.at_least is None:
            raise NotIdentifiedError(
                f"{self.names.engine}: totals alone do not tell positions apart; give the histogram or the counts by position"
            )
        return self.at_least


def _is_count(value: object) -> bool:
    number = np.asarray(value)
    return number.dtype.kind in "iu" and bool(number >= 0)


def counts_from_histogram(
    histogram: Sequence[int],
    *,
    cycles: int | None = None,
    accepted: int | None = None,
    drafted: int | None = None,
    names: CounterNames = COUNTS,
) -> AcceptanceCounts:
    """Counts from cycles by accepted drafts 0 … S, checked against totals where they are given.

    Raises InputError unless sum(histogram) = cycles and Σ j·h_j = accepted, exactly.
    """
    sums = sum(histogram), sum(j * count for j, count in enumerate(histogram))
    given = ((names.cycles, cycles, sums[0], "sum"), (names.accepted, accepted, sums[1], "sum of j·h_j"))
    faults = [
        Fault(
            names.engine, names.detail, f"{count!r} cycles accept {j} drafts", "counts are whole numbers of at least 0"
        )
        for j, count in enumerate(histogram)
        if not _is_count(count)
    ] or [
        Fault(names.engine, names.detail, f"its {what} is {found}, {field} is {stated}", "the two are equal")
        for field, stated, found, what in given
        if stated is not None and stated != found
    ]
    if faults:
        raise InputError(faults)
    at_least = tuple(sum(histogram[i:]) for i in range(1, len(histogram)))
    return AcceptanceCounts(*sums, drafted, at_least, names)


def counts_from_sglang(
    verify_ct: int, correct_drafts: int, histogram: Sequence[int] | None = None, proposed_drafts: int | None = None
) -> AcceptanceCounts:
    """Counts of SGLang's per-request meta_info: correct drafts and the histogram's index exclude the bonus.

    completion_tokens/verify_ct (its spec_accept_length) also holds the token of the prefill: 1 + correct/verify
    does not. Raises InputError where the integers contradict each other.
    """
    if histogram is None:
        return AcceptanceCounts(verify_ct, correct_drafts, proposed_drafts, None, SGLANG)
    return counts_from_histogram(
        histogram, cycles=verify_ct, accepted=correct_drafts, drafted=proposed_drafts, names=SGLANG
    )


def counts_from_vllm(
    num_drafts: int, num_draft_tokens: int, num_accepted_tokens: int, per_position: Sequence[int] | None = None
) -> AcceptanceCounts:
    """Counts of vLLM's spec_decode counters (llama.cpp's /metrics uses the same): accepted excludes the bonus.

    `per_position` are cycles that accepted at least position + 1 drafts. A request without drafts in a step is
    no draft, so n-gram lengths are per speculating cycle. Raises InputError where the integers contradict.
    """
    positions = None if per_position is None else tuple(per_position)
    return AcceptanceCounts(num_drafts, num_accepted_tokens, num_draft_tokens, positions, VLLM)


def counts_from_tensorrt_llm(
    num_requests_with_drafts: int,
    num_accepted_tokens: int,
    num_draft_tokens: int | None = None,
    acceptance_length: float | None = None,
) -> AcceptanceCounts:
    """Counts of TensorRT-LLM's specDecodingStats; accepted excludes the bonus, acceptanceLength includes it.

    Raises InputError unless acceptanceLength, where given, is (accepted + requests)/requests to its 3 digits.
    """
    counts = AcceptanceCounts(num_requests_with_drafts, num_accepted_tokens, num_draft_tokens, None, TENSORRT_LLM)
    if acceptance_length is not None and abs(acceptance_length - counts.accept_length) > 1e-3:
        problem = f"{acceptance_length:g} is not (accepted + requests)/requests = {counts.accept_length:.4g}"
        allowed = "acceptanceLength includes the bonus; numAcceptedTokens does not"
        raise InputError([Fault(TENSORRT_LLM.engine, "acceptanceLength", problem, allowed)])
    return counts


def counts_from_llama_cpp(predicted_n: int, draft_n: int, draft_n_accepted: int) -> AcceptanceCounts:
    """Counts of llama.cpp's timings of one request: draft_n_accepted excludes the bonus.

    The server states no cycles: of predicted_n tokens one is the prefill's, and each cycle emits its accepted
    drafts and one more, so cycles = predicted_n − 1 − draft_n_accepted (cycles without a draft included, the
    last cut short at the end). Raises InputError where that leaves none.
    """
    cycles = predicted_n - 1 - draft_n_accepted
    if cycles < 1:
        problem = f"{predicted_n} leaves {cycles} cycles beside {draft_n_accepted} accepted drafts"
        allowed = "each cycle emits its accepted drafts and one token more, after the prefill's first"
        raise InputError([Fault(LLAMA_CPP.engine, LLAMA_CPP.cycles, problem, allowed)])
    return AcceptanceCounts(cycles, draft_n_accepted, draft_n, None, LLAMA_CPP)


# -- accept rates --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RateMeaning:
    """What an engine's accept rate is: (L − 1 + bonus)/(per_step·num_steps + per_token·num_draft_tokens + plus).

    `bonus` is 1 where the numerator counts the bonus token. `first` and `last` are the releases it was read in.
    """

    engine: str
    per_request: bool
    first: str
    last: str
    bonus: int
    per_step: int
    per_token: int
    plus: int

    def accept_length(self, rate: Floats, spec: SpecConfig) -> Floats:
        """Accept length, bonus included, of an accept rate in [0, 1] of a cycle with drafts; arguments broadcast.

        Raises ConfigurationError where the length would leave 1 to spec.max_accept_length by more than a rate of
        two decimals rounds: the rate then has another meaning.
        """
        rates, budget = np.asarray(rate, dtype=float), self._budget(spec)
        if not ((rates >= 0) & (rates <= 1)).all():
            raise ConfigurationError("an accept rate is a fraction between 0 and 1; divide a percentage by 100")
        length, most, rounding = rates * budget + 1 - self.bonus, np.asarray(spec.max_accept_length), 0.005 * budget
        if (outside := (length < 1 - rounding) | (length > most + rounding)).any():
            raise ConfigurationError(
                f"as {self.engine} {self.first} counts it, this rate gives an accept length of"
                f" {np.broadcast_to(length, outside.shape)[outside][0]:.3g}, outside 1 to the longest possible: it was"
                " counted otherwise; give the accept length"
            )
        return _as_given(np.clip(length, 1, most))

    def accept_rate(self, accept_length: Floats, spec: SpecConfig) -> Floats:
        """The rate that this engine shows for an accept length, bonus included; arguments broadcast."""
        length = np.asarray(accept_length, dtype=float)
        if not ((length >= 1) & (length <= spec.max_accept_length)).all():
            raise ConfigurationError("an accept length lies between 1 (the bonus token) and the longest possible")
        return _as_given((length - 1 + self.bonus) / self._budget(spec))

    def _budget(self, spec: SpecConfig) -> FloatArray:
        steps, width = np.asarray(spec.num_steps), np.asarray(spec.num_draft_tokens)
        method = method_named(spec.method)
        if method.family == "lookup" or (self.per_step and not method.steps_bound_length):
            raise NotIdentifiedError(
                f"as {self.engine} {self.first} counts it, an accept rate of a {spec.method} drafter tells no length: its"
                " steps are dummies, or what it drafts varies by cycle; give the accept length, or counts"
            )
        if (width < 2).any():
            raise ConfigurationError("an accept rate needs a cycle with drafts: num_draft_tokens ≥ 2, root included")
        return np.asarray(self.per_step * steps + self.per_token * width + self.plus, dtype=float)


RATE_MEANINGS = (
    RateMeaning("sglang", False, "0.5.3", "0.5.5", bonus=1, per_step=1, per_token=0, plus=1),
    RateMeaning("sglang", False, "0.5.8", "0.5.10", bonus=1, per_step=0, per_token=1, plus=0),
    RateMeaning("sglang", False, "0.5.11", "", bonus=0, per_step=0, per_token=1, plus=-1),
    RateMeaning("sglang", True, "0.5.5", "0.5.5", bonus=0, per_step=1, per_token=0, plus=0),
    RateMeaning("sglang", True, "0.5.8", "", bonus=0, per_step=0, per_token=1, plus=-1),
    RateMeaning("vllm", False, "0.11", "", bonus=0, per_step=0, per_token=1, plus=-1),
    RateMeaning("vllm", True, "0.33", "", bonus=0, per_step=0, per_token=1, plus=-1),
    RateMeaning("tensorrt-llm", False, "", "", bonus=0, per_step=0, per_token=1, plus=-1),
    RateMeaning("tensorrt-llm", True, "", "", bonus=0, per_step=0, per_token=1, plus=-1),
)
"""Read in the releases named; between a `last` and the next `first` nobody looked, so a rate there is refused.

Server-wide figures (log, metrics) and per-request ones differ. SGLang to 0.5.1 shows no rate. vLLM and
TensorRT-LLM divide by the drafts truly proposed: num_draft_tokens − 1 a cycle for drafters of fixed depth.
llama.cpp does too, but its drafts vary by cycle, so its rate alone says nothing of the length.
"""


def rate_meaning(engine: str, version: str, *, per_request: bool = False) -> RateMeaning:
    """The meaning of an engine's accept rate, from its log and metrics or from one request's answer.

    Raises ConfigurationError where none is known: a rate that nobody can read is refused, never guessed.
    """
    rows = [row for row in RATE_MEANINGS if (row.engine, row.per_request) == (engine.lower(), per_request)]
    for row in rows:
        if _between(row.first, version, row.last):
            return row
    known = ", ".join(_span(row) for row in rows) or "none"
    raise ConfigurationError(
        f"what an accept rate of {engine} {version or '(version not stated)'} means is not known"
        f" (known for this engine: {known}); give the accept length or the counters"
    )


def accept_length_from_rate(
    rate: Floats, spec: SpecConfig, engine: str, version: str, *, per_request: bool = False
) -> Floats:
    """Accept length, bonus included, from an accept rate as this engine and version count it; see `rate_meaning`."""
    return rate_meaning(engine, version, per_request=per_request).accept_length(rate, spec)


def _between(first: str, version: str, last: str) -> bool:
    """Whether a release lies between two, as far as each bound states its numbers (0.5.10.post1 is in 0.5.10)."""
    if not first:
        return True
    release = _release(version)
    return (
        bool(release) and release >= _release(first) and (not last or release[: len(_release(last))] <= _release(last))
    )


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _span(row: RateMeaning) -> str:
    if not row.first:
        return "any version"
    return f"{row.first} on" if not row.last else row.first if row.first == row.last else f"{row.first} to {row.last}"


def _as_given(values: FloatArray) -> Floats:
    return float(values) if values.ndim == 0 else values
