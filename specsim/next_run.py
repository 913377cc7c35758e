"""Which measurement to make next: the one that shrinks the interval of a break-even most (eq. 15)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from specsim.cost.model import CostModel
from specsim.cost.terms import PLAIN, Cycle
from specsim.errors import MixedSetupError, NotIdentifiedError
from specsim.methods import method_named
from specsim.quantities import FloatArray, SpecConfig
from specsim.questions import Asked, Case, cases
from specsim.recipes import commands
from specsim.uncertainty import quantile, ratio_interval

Kind = Literal["verify", "cycle", "decode"]
Interval = tuple[float, float]

WIDTHS = range(2, 17)
"""Chain widths that a user is offered: width 1 drafts nothing, so no engine is started with it."""

_TOLD = 1e-7  # relative part of a gradient that may lie along what is open: rounding, not doubt
_ROUNDING = 1e-9  # entries of an open direction that differ from 0 by arithmetic only
_WORTH_MAKING = 0.995  # a run that leaves more than this of an interval is not worth its time
_EXPERT_SHARES = (8 / 256, 8 / 128, 2 / 8)  # active of all experts: large, middle and small mixtures in use


# -- what is known, and what one more measurement makes of it -----------------------------------------------------------


@dataclass(frozen=True)
class Knowledge:
    """What measurements say of p coefficients: `covariance` (p, p) Σ, and `blind` (q, p), rows spanning what is open.

    It is the limit of Σ + κ·blindᵀ·blind for κ → ∞: along `blind` the variance is infinite.
    """

    covariance: FloatArray
    blind: FloatArray

    def tells(self, gradient: FloatArray) -> bool:
        """Whether a quantity φᵀθ of gradient (p,) has a finite variance."""
        outside, scale = np.abs(self.blind @ gradient), np.abs(self.blind) @ np.abs(gradient)
        return bool((outside <= _TOLD * scale).all())

    def after(self, gradient: FloatArray, variance: float) -> Knowledge:
        """What is known once xᵀθ is measured with this noise variance [ms²] (eq. 15); x is `gradient`, (p,).

        Σ' = Σ − Σx·xᵀΣ/(σ² + xᵀΣx) where xᵀθ was told before. Where it was open, with N = `blind`: k = NᵀNx/|Nx|²,
        Σ' = (1 − kxᵀ)Σ(1 − kxᵀ)ᵀ + σ²kkᵀ, the limit of the same formula, and one direction less is open.
        """
        if self.tells(gradient):
            pull = self.covariance @ gradient
            shrunk = self.covariance - np.outer(pull, pull) / (variance + gradient @ pull)
            return replace(self, covariance=shrunk)
        seen = self.blind @ gradient
        gain = self.blind.T @ seen / (seen @ seen)
        keep = np.eye(gain.size) - np.outer(gain, gradient)
        left = np.linalg.svd(seen[None])[2][1:] @ self.blind  # combinations that the measurement does not see
        still = np.where(np.abs(left) > _ROUNDING * np.abs(left).max(axis=1, keepdims=True), left, 0.0)
        return Knowledge(keep @ self.covariance @ keep.T + variance * np.outer(gain, gain), still)


@dataclass(frozen=True)
class _Space:
    """A model's coefficients, and those that measurements to come would add: all of them open.

    `lines` are phases that no run measured under a setting (fixed and per token each); the last column stands for
    phases of a cycle that no run measured at all.
    """

    model: CostModel
    lines: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, model: CostModel) -> _Space:
        verify = ((("verify", s.label)) for s in model.settings if not s.verify_tokens)
        decode = ((("decode", s.label)) for s in model.settings if not s.decode_batches)
        return cls(model, (*verify, *decode))

    def knowledge(self) -> Knowledge:
        """What the model's runs say."""
        known, more = len(self.model.coefficients), 2 * len(self.lines) + 1
        covariance = np.zeros((known + more, known + more))
        covariance[:known, :known] = self.model.covariance_matrix
        blind = np.array(self.model.blind, dtype=float).reshape(-1, known)
        blind = blind / np.linalg.norm(blind, axis=1, keepdims=True)
        rows = np.block([[blind, np.zeros((len(blind), more))], [np.zeros((more, known)), np.eye(more)]])
        return Knowledge(covariance, rows)

    def widened(self, gradient: FloatArray) -> FloatArray:
        """A model's gradients (n, p) in this space."""
        return np.hstack([gradient, np.zeros((len(gradient), 2 * len(self.lines) + 1))])

    def gradient(self, kind: Kind, cycle: Cycle, nccl: str) -> FloatArray:
        """Features of a measurement of n cycles, one a row (eq. 1–5)."""
        phase, tokens = ("decode", cycle.batch_size) if kind == "decode" else ("verify", cycle.verify_tokens)
        rows = self.widened(self.model.phase(phase, cycle, nccl).gradient)
        if (phase, nccl) in self.lines:
            column = len(self.model.coefficients) + 2 * self.lines.index((phase, nccl))
            rows[:, column], rows[:, column + 1] = 1.0, tokens
        if kind == "cycle":
            rows = rows + self.widened(self.model.rest(cycle).gradient)
            rows[:, -1] = float(self.model.lower_bound(nccl))
        return rows

    def times(self, kind: Kind, cycle: Cycle, nccl: str) -> FloatArray:
        """Times [ms] to plan with: the model's, else the nearest that it has; NaN where it has none of this phase."""
        if kind == "decode":
            return self._planned("decode", cycle, nccl, _decode_or_nan(self.model, cycle, nccl))
        verify = self._planned("verify", cycle, nccl, _verify_or_nan(self.model, cycle, nccl))
        return verify + self.model.rest(cycle).value if kind == "cycle" else verify

    def _planned(self, phase: str, cycle: Cycle, nccl: str, told: FloatArray) -> FloatArray:
        """Where the model tells no time: its part that was measured under the setting, else under another."""
        for label in (nccl, self.model.reference, *(s.label for s in self.model.settings)):
            near = self.model.phase(phase, cycle, label).value
            told = np.where(np.isnan(told) & (near > 0), near, told)
        return told


def _verify_or_nan(model: CostModel, cycle: Cycle, nccl: str) -> FloatArray:
    try:
        return model.verify(cycle, nccl).point.value
    except NotIdentifiedError:
        return np.full(cycle.batch_size.size, np.nan)


def _decode_or_nan(model: CostModel, cycle: Cycle, nccl: str) -> FloatArray:
    try:
        return model.decode(cycle, nccl).value
    except MixedSetupError:
        return np.full(cycle.batch_size.size, np.nan)


# -- the question -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """A break-even C/t: its planned times [ms], and the gradients that measurements of its own give them.

    `readings` of an NCCL setting stand in for the cycle until then; `placed` says that both times come from the model,
    `cycle_name` what of the cycle is missing where it is.
    """

    case: Case
    cycle_ms: float
    decode_ms: float
    own: FloatArray
    plain: FloatArray
    readings: tuple[tuple[float, FloatArray], ...]
    placed: bool
    reach: float
    cycle_name: str

    def missing(self, known: Knowledge) -> tuple[str, ...]:
        """Which of the two sides no run tells."""
        sides = {self.cycle_name: self._sides(known), "the plain-decode baseline": known.tells(self.plain)}
        return tuple(name for name, told in sides.items() if not told)

    def _sides(self, known: Knowledge) -> list[tuple[float, FloatArray]]:
        if known.tells(self.own):
            return [(self.cycle_ms, self.own)]
        return [reading for reading in self.readings if known.tells(reading[1])]

    def interval(self, known: Knowledge) -> Interval | None:
        """Fieller's interval of C/t (eq. 11) over the readings; None where a side is missing."""
        if self.missing(known):
            return None
        ends = [self._fieller(known, value, row) for value, row in self._sides(known)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def _fieller(self, known: Knowledge, cycle_ms: float, row: FloatArray) -> Interval:
        pairs = ((row, row), (self.plain, self.plain), (row, self.plain))
        var_cycle, var_decode, shared = (np.array([a @ known.covariance @ b]) for a, b in pairs)
        variances = (np.maximum(var_cycle, 0.0), np.maximum(var_decode, 0.0), shared)
        low, high = ratio_interval(np.array([cycle_ms]), np.array([self.decode_ms]), variances, self.reach)
        return float(low[0]), float(high[0])

    def half_width_pct(self, interval: Interval | None) -> float:
        """Half an interval in percent of C/t; inf where there is none."""
        if interval is None:
            return float("inf")
        return 50.0 * (interval[1] - interval[0]) * self.decode_ms / self.cycle_ms


def _question(space: _Space, case: Case) -> _Question:
    model, nccl = space.model, case.nccl
    cycle = model.cycle(case.spec, case.workload)
    cycle_ms, decode_ms = (float(space.times(kind, cycle, nccl)[0]) for kind in ("cycle", "decode"))
    placed = bool(np.isfinite(cycle_ms) and np.isfinite(decode_ms))
    shared = model.rest(cycle)
    own = space.gradient("cycle", cycle, nccl)[0]
    readings = []
    if not np.isnan(_verify_or_nan(model, cycle, nccl)[0]):
        for reading in model.verify(cycle, nccl).by_name.values():
            row = space.widened((reading + shared).gradient)[0]
            row[-1] = own[-1]  # what no run measured stays open in every reading
            readings += [(float((reading.value + shared.value)[0]), row)] if np.isfinite(reading.value[0]) else []
    plain = space.gradient("decode", cycle, nccl)[0]
    # relative intervals do not depend on a time that nothing tells, so that any number stands for it
    known = [time for time in (cycle_ms, decode_ms) if np.isfinite(time)] or [1.0]
    cycle_ms, decode_ms = (time if np.isfinite(time) else known[0] for time in (cycle_ms, decode_ms))
    reach = quantile(model.noise.residual_dof)
    unseen = f" ({', '.join(model.unmeasured_phases)} were never timed)" if model.lower_bound(nccl) else ""
    name = f"the whole cycle{unseen}"
    return _Question(case, cycle_ms, decode_ms, own, plain, tuple(readings), placed, reach, name)


# -- the answer ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NextRun:
    """A measurement to make: what, at which configuration (`spec` None is plain decode), and what it does to the answer.

    `kind` says which figure it gives: verify_ms, cycle_ms (or throughput with an accept length), or decode_ms.
    `checks_form` is a width that tests the line, next to those that shrink the interval. `interval_after` is expected,
    with today's noise and estimate; None while a side is missing or no run says where the answer lies.
    `ratio` is its width over today's: 0 where there is none today, None where there is none after either.
    """

    kind: Kind
    spec: SpecConfig | None
    batch_size: int
    nccl: str
    checks_form: bool
    interval_after: Interval | None
    half_width_pct_after: float
    ratio: float | None
    makes_answerable: bool
    why: str
    commands: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What `next_run` answers: the question that it is asked of, what its answer is today, and what to measure.

    `missing` names the sides that no run tells; `questions` counts those that were asked, of which the one with most
    missing, then with the widest interval, is `case`.
    """

    case: Case
    questions: int
    interval_now: Interval | None
    half_width_pct_now: float
    missing: tuple[str, ...]
    next: tuple[NextRun, ...]


def next_run(model: CostModel, asked: Asked | None = None, *, most: int = 8) -> Plan:
    """The measurements that shrink the interval of a break-even most, best first (eq. 15).

    c-optimal in closed form: each candidate updates Σ by its rank-one formula, and the interval of C/t follows. Of each
    kind, NCCL setting and batch size the best width is kept, and the asked configuration beside it. Where two widths fix verify's line, the width that
    tests the line stands first. Raises ConfigurationError and UnknownSettingError as `cases`.
    """
    space = _Space.of(model)
    known = space.knowledge()
    questions = [_question(space, case) for case in cases(model, asked or Asked())]
    question = max(questions, key=lambda q: (len(q.missing(known)), q.half_width_pct(q.interval(known))))
    now = question.interval(known)
    check = _check_of_form(space, question, known)
    found = _ranked(space, question, known, [*check])
    return Plan(
        question.case,
        len(questions),
        now,
        question.half_width_pct(now),
        question.missing(known),
        (*check, *found[: most - len(check)]),
    )


@dataclass(frozen=True)
class _Candidate:
    kind: Kind
    spec: SpecConfig | None
    batch_size: int
    nccl: str
    gradient: FloatArray
    variance: float


def _candidates(space: _Space, question: _Question) -> Iterator[_Candidate]:
    """What a user could measure, under every NCCL setting and at every batch size measured or asked.

    Cycles of chains and of the measured and asked configurations, their verify where that was timed, and baselines.
    """
    model = space.model
    specs, batches = _specs(model, question.case), _batches(model, question.case)
    pairs = [(spec, batch) for batch in batches for spec in specs]
    drafted = Cycle.stacked(
        [model.cycle(spec, replace(question.case.workload, batch_size=batch)) for spec, batch in pairs]
    )
    plain = model.cycle(PLAIN, replace(question.case.workload, batch_size=np.array(batches)))
    for setting in model.settings:
        yield from _measured_as(space, question, "decode", plain, [(None, batch) for batch in batches], setting.label)
        for kind in _kinds(model, setting.label):
            yield from _measured_as(space, question, kind, drafted, pairs, setting.label)


def _measured_as(
    space: _Space,
    question: _Question,
    kind: Kind,
    cycle: Cycle,
    pairs: Sequence[tuple[SpecConfig | None, int]],
    nccl: str,
) -> Iterator[_Candidate]:
    times, stand_in = space.times(kind, cycle, nccl), question.decode_ms if kind == "decode" else question.cycle_ms
    times = np.where(np.isnan(times), stand_in, times)  # the number that stands for an untold time in the question
    for (spec, batch), row, time in zip(pairs, space.gradient(kind, cycle, nccl), times, strict=True):
        yield _Candidate(kind, spec, batch, nccl, row, float(space.model.noise.relative * time) ** 2)


def _kinds(model: CostModel, nccl: str) -> tuple[Kind, ...]:
    """Verify alone only where the runs' instrument timed it; whole cycles always."""
    alone = "verify" in model.measured_phases and not model.setting(nccl).whole_cycles
    return ("verify", "cycle") if alone else ("cycle",)


def _specs(model: CostModel, case: Case) -> list[SpecConfig]:
    steps = method_named(case.spec.method).steps_bound_length
    chains = [SpecConfig(width - 1 if steps else 1, 1, width, case.spec.method) for width in WIDTHS]
    seen = [SpecConfig(m.num_steps, m.topk, m.num_draft_tokens, m.method) for m in model.measured]
    return list(dict.fromkeys([case.spec, *seen, *chains]))


def _batches(model: CostModel, case: Case) -> list[int]:
    plain = {int(batch) for setting in model.settings for batch in setting.decode_batches}
    return sorted({case.batch_size, *(m.batch_size for m in model.measured), *plain})


def _ranked(space: _Space, question: _Question, known: Knowledge, chosen: list[NextRun]) -> list[NextRun]:
    """Candidates that help, best first: fewest sides missing after, then the narrowest interval; one a group."""
    before = len(question.missing(known))
    now = question.half_width_pct(question.interval(known))
    judged = []
    for candidate in _candidates(space, question):
        then = known.after(candidate.gradient, candidate.variance)
        left, width = len(question.missing(then)), question.half_width_pct(question.interval(then))
        if left < before or (left == 0 and width < _WORTH_MAKING * now):
            judged.append((left, float(f"{width:.6g}"), _order(candidate, question.case), candidate))
    best: dict[tuple[str, str, int, bool], _Candidate] = {}
    for *_, candidate in sorted(judged, key=lambda each: each[:3]):
        itself = candidate.spec == question.case.spec
        best.setdefault((candidate.kind, candidate.nccl, candidate.batch_size, itself), candidate)
    taken = {(run.kind, run.spec, run.batch_size, run.nccl) for run in chosen}
    left_over = (c for c in best.values() if (c.kind, c.spec, c.batch_size, c.nccl) not in taken)
    return [_next(space, question, known, candidate) for candidate in left_over]


def _order(candidate: _Candidate, case: Case) -> tuple[bool, int, int]:
    """Among runs that do the same: the asked configuration first, then the fewest tokens."""
    width = 0 if candidate.spec is None else int(candidate.spec.num_draft_tokens)
    return candidate.spec not in (None, case.spec), candidate.batch_size, width


def _next(space: _Space, question: _Question, known: Knowledge, candidate: _Candidate, form: str = "") -> NextRun:
    then = known.after(candidate.gradient, candidate.variance)
    now, after = question.interval(known), question.interval(then)
    setting, answerable = space.model.setting(candidate.nccl), now is None and after is not None
    return NextRun(
        candidate.kind,
        candidate.spec,
        candidate.batch_size,
        candidate.nccl,
        bool(form),
        after if question.placed else None,
        question.half_width_pct(after),
        None if after is None else _ratio(now, after),
        answerable,
        form or _why(question, candidate, known, then),
        tuple(commands(candidate.spec, candidate.batch_size, space.model.setup.engine, setting.environment)),
    )


def _ratio(now: Interval | None, after: Interval) -> float:
    if now is None or not np.isfinite(now[1]):
        return 0.0 if np.isfinite(after[1]) else 1.0
    return (after[1] - after[0]) / (now[1] - now[0]) if now[1] > now[0] else 1.0


def _asked(case: Case) -> tuple[SpecConfig, int, str]:
    return case.spec, case.batch_size, case.nccl


def _why(question: _Question, candidate: _Candidate, known: Knowledge, then: Knowledge) -> str:
    """What the run does to the answer, as one sentence."""
    before, left = question.missing(known), question.missing(then)
    if before and not left:
        return f"makes the question answerable: today no run tells {before[0]}"
    if left != before:
        return f"tells {' and '.join(m for m in before if m not in left)}; {' and '.join(left)} stays missing"
    itself = (candidate.spec, candidate.batch_size, candidate.nccl) == _asked(question.case)
    if known.tells(question.own) != then.tells(question.own):
        how = "of the asked configuration itself" if itself else "of another width"
        return f"puts a measurement {how} in place of the readings of NCCL {candidate.nccl}"
    if candidate.kind == "decode":
        return "times a plain-decode baseline: its noise is in the interval as the cycle's is"
    if itself:
        return "times the asked configuration itself, whatever the form of the line"
    return "pins the fitted line where it bears most on the asked configuration"


# -- does the line hold? --------------------------------------------------------------------------------------------------


def _check_of_form(space: _Space, question: _Question, known: Knowledge) -> tuple[NextRun, ...]:
    """The third width, where verify's line rests on two and nothing tests it (eq. 13, 15); else nothing.

    Of the widths up to twice the widest measured or asked, the one at which the alternatives show best on average:
    expert coverage 1 − (1 − a/E)^T and a knee max(0, T − T₀) at every T₀, each put through both measured widths. An
    alternative shows by its distance from the line over the standard deviation of measured − line, which is
    √(σ²V² + φᵀΣφ), as a share of the best that any width does for it.
    """
    model, case = space.model, question.case
    label = case.nccl if len(model.setting(case.nccl).verify_tokens) > 1 else model.reference
    measured = model.setting(label).verify_tokens
    if len(measured) != 2:
        return ()
    most = 2 * max(*measured, case.batch_size * int(case.spec.num_draft_tokens))
    specs = [spec for spec in _specs(model, case) if spec.topk == 1]
    cycle = Cycle.stacked([model.cycle(spec, case.workload) for spec in specs])
    tokens = cycle.verify_tokens
    usable = (tokens <= most) & ~np.isin(tokens, measured)
    if not usable.any():
        return ()
    kind = _kinds(model, label)[0]
    rows, noise = space.gradient(kind, cycle, label), model.noise.relative * space.times(kind, cycle, label)
    spread = np.sqrt(noise**2 + np.maximum(np.einsum("ij,jk,ik->i", rows, known.covariance, rows), 0.0))
    shows = np.where(usable, departures(tokens, (measured[0], measured[1])) / spread, 0.0)
    best = shows.max(axis=1, keepdims=True)
    at = int(np.argmax((shows[best[:, 0] > 0] / best[best > 0][:, None]).mean(axis=0)))
    candidate = _Candidate(kind, specs[at], case.batch_size, label, rows[at], float(noise[at]) ** 2)
    return (
        _next(space, question, known, candidate, _why_form(measured, label, tokens[at], question.reach * spread[at])),
    )


def departures(tokens: FloatArray, measured: Interval) -> FloatArray:
    """Distance of each alternative to the line through two widths, at widths `tokens` (n,); shape (alternatives, n).

    Expert coverage at common shares of active experts, then knees at every width but the line's own ends [arbitrary
    units a row: each alternative has an amplitude of its own].
    """
    low, high = measured
    places = np.unique([*tokens, low, high])
    shapes = [*(partial(_coverage, share) for share in _EXPERT_SHARES), *(partial(_knee, place) for place in places)]
    return np.array([_from_line(shape, tokens, low, high) for shape in shapes])


def _coverage(share: float, tokens: Any) -> Any:
    """Share of a layer's experts that T tokens touch, each taking `share` of them."""
    return 1 - (1 - share) ** tokens


def _knee(place: float, tokens: Any) -> Any:
    """Time above a line that steepens at `place` tokens."""
    return np.maximum(0.0, tokens - place)


def _from_line(shape: Callable[[Any], Any], tokens: FloatArray, low: float, high: float) -> FloatArray:
    slope = (shape(high) - shape(low)) / (high - low)
    return np.asarray(np.abs(shape(tokens) - shape(low) - slope * (tokens - low)))


def _why_form(measured: tuple[float, ...], nccl: str, tokens: float, visible: float) -> str:
    low, high = measured
    return (
        f"checks the form: two widths ({low:g}, {high:g} tokens) fix verify's line under NCCL {nccl} and test nothing of"
        f" its shape; expert coverage or a knee shows best at {tokens:g} tokens, where a departure of {visible:.2f} ms or"
        " more is told from the line"
    )
