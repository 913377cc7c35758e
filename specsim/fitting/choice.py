"""Which terms the runs ask for: forward choice by AICc, judged by configurations left out (eq. 13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from specsim.cost.terms import HOST, PADDED, TERM_BY_NAME, touched
from specsim.fitting.columns import Column, features, known, over_bare_forwards
from specsim.fitting.least_squares import Solution, aicc, solve
from specsim.fitting.observations import Observation, resolution
from specsim.quantities import FloatArray
from specsim.uncertainty import probability_positive

EXPERT_SHARES = (1 / 48, 1 / 32, 1 / 16, 1 / 8, 1 / 4)
"""Shares of its experts that a token uses, tried where no model card says: 8 of 384, 256, 128, 64, and 2 of 8."""

OVERLAPS = (0.25, 0.5, 0.75)
"""Overlaps of a request's tokens in their experts that are tried beside none, where width and batch differ apart."""

_WORTH = 6.0  # AICc that more than a line must gain: the best of dozens of forms gains some by chance
_AS_GOOD = 4.0  # AICc within which a form cannot be excluded (Burnham and Anderson's "considerably less" begins there)
_ALIKE = 1e-6  # AICc within which two forms fit alike: any two coefficients fit a phase of two counts
_CHANCE = 0.01  # chance, with no such term, of passing for one more coefficient where there is no AICc
_RUNNERS_UP = 3
_MOST_SHAPES = 5
_BEAM = 6
_SATURATED = 0.8  # of what as many tokens would touch of experts that never overlap: below it a line is no stand-in
_EXACT = 1e-18  # mean squared relative residual below which a form fits exactly
_DETERMINED = 1e-6  # least eigenvalue of I − H of a configuration that the others still determine


@dataclass(frozen=True)
class Form:
    """A set of terms: its columns, what sets it apart, AICc, and the relative error of configurations left out.

    `aicc` is NaN where there are too few figures for one; `left_out` (n,) the errors of the figures whose configuration
    the others determine, NaN elsewhere; `misfit` the sum of squared relative residuals.
    """

    columns: tuple[Column, ...]
    name: str
    aicc: float
    left_out: FloatArray
    misfit: float

    @property
    def held_out(self) -> float:
        """Root mean square error of what was left out; NaN where the rest determines none of it."""
        told = self.left_out[np.isfinite(self.left_out)]
        return float(np.sqrt(np.mean(np.square(told)))) if told.size else float("nan")

    def predicts_better(self, other: Form) -> bool:
        """Whether it misses less of what both predict from the rest, if that is half of the figures at least."""
        both = np.isfinite(self.left_out) & np.isfinite(other.left_out)
        ours, theirs = (float(np.square(form.left_out[both]).sum()) for form in (self, other))
        return bool(2 * both.sum() >= both.size and ours < theirs)


def choose(
    base: tuple[Column, ...], seen: tuple[Observation, ...], shares: tuple[float, ...]
) -> tuple[Form, tuple[Form, ...]]:
    """The form that the runs ask for, and the others that they cannot exclude, best first (eq. 13).

    More than a line is taken only where AICc gains _WORTH over it and configurations left out are predicted better.
    Of forms that fit alike the one with experts in most phases: verify and plain decode read the same ones. `shares` are
    expert shares to try; a single one is known from a model card.
    """
    line = _form(base, base, seen, "line")
    pool = tuple(_over(base, _pool(seen, shares or EXPERT_SHARES)))
    found = [_form(base, (*base, *subset), seen, _named(subset)) for subset in _searched(base, pool, seen)]
    forms = [line, *found, *_swapped(base, seen, shares), *_curves(base, seen), *_padded(base, seen)]
    better = [form for form in forms if form.aicc < line.aicc - _WORTH and form.predicts_better(line)]
    least = min((form.aicc for form in better), default=np.inf)
    presumed = max((form for form in better if form.aicc <= least + _ALIKE), key=_covered, default=line)
    return _ranked(forms, presumed, len(seen), saturated(seen, shares))


def saturated(seen: tuple[Observation, ...], shares: tuple[float, ...]) -> bool:
    """Whether the experts that a model card states are so far touched that no line through the origin is near it.

    At the most tokens of each phase 1 − (1 − a/E)^T lies a fifth or more below T·a/E.
    """
    if len(shares) != 1:
        return False
    verified = [o.verify_tokens for o in seen if "verify" in o.phases]
    decoded = [float(o.cycle.batch_size[0]) for o in seen if "decode" in o.phases]
    most = np.array([max(counts) for counts in (verified, decoded) if counts])
    return bool((touched(most, shares[0]) < _SATURATED * shares[0] * most).all())


def _over(base: tuple[Column, ...], pool: Iterable[Column]) -> Iterator[Column]:
    """What may be added to a base: bare forwards know how kernels and experts grow with tokens, of which a part may be more."""
    there = {column.term for column in base}
    if over_bare_forwards(base, "verify") and TERM_BY_NAME["verify_per_token_ms"] not in there:
        yield Column(TERM_BY_NAME["verify_per_token_ms"])
    for shape in pool:
        if shape.term not in there and not (shape.parameters and over_bare_forwards(base, shape.term.phase)):
            yield shape


def _searched(
    base: tuple[Column, ...], pool: tuple[Column, ...], seen: tuple[Observation, ...]
) -> list[tuple[Column, ...]]:
    """The sets of shapes that AICc likes best, by a beam search: a knee may only be worth it beside another."""
    if not pool or len(seen) - len(base) < 4:
        return []
    times = np.array([o.time_ms for o in seen])
    stated = known(base)
    target = 1.0 - features(base, seen)[:, ~np.isnan(stated)] @ stated[~np.isnan(stated)] / times
    base = tuple(column for column in base if column.known is None)
    design = features((*base, *pool), seen) / times[:, None]
    floor = max(resolution(seen), 1e-9) ** 2
    beam: list[frozenset[int]] = [frozenset()]
    scored: dict[frozenset[int], float] = {}
    for _ in range(_MOST_SHAPES):
        wider = {one | {shape} for one in beam for shape in range(len(pool)) if shape not in one}
        scores = {one: _quick_aicc(design, target, len(base), sorted(one), pool, floor) for one in wider - set(scored)}
        scored |= scores
        beam = sorted((one for one in scores if np.isfinite(scores[one])), key=lambda one: scores[one])[:_BEAM]
    best = sorted((one for one in scored if np.isfinite(scored[one])), key=lambda one: scored[one])[:_BEAM]
    return [tuple(pool[shape] for shape in sorted(one)) for one in best]


def _quick_aicc(
    design: FloatArray, target: FloatArray, count: int, shapes: list[int], pool: tuple[Column, ...], floor: float
) -> float:
    """AICc of base and shapes, weighted by measured times; infinite where a shape is negative or not told apart."""
    columns = design[:, [*range(count), *(count + shape for shape in shapes)]]
    values, _, rank, _ = np.linalg.lstsq(columns / np.linalg.norm(columns, axis=0).clip(1e-300), target, rcond=1e-9)
    base_rank = np.linalg.matrix_rank(columns[:, :count], rtol=1e-9)
    if rank < base_rank + len(shapes) or (values[count:] <= 0).any():
        return float("inf")
    residuals = target - (columns / np.linalg.norm(columns, axis=0).clip(1e-300)) @ values
    parameters = sum(len(pool[shape].parameters) for shape in shapes)
    return aicc(float(residuals @ residuals), len(design), int(rank) + parameters + 1, floor)


def _ranked(forms: list[Form], best: Form, count: int, experts: bool) -> tuple[Form, tuple[Form, ...]]:
    """The winner, and the runners-up within _AS_GOOD of it; by misfit where there are too few figures for an AICc."""
    if np.isnan(best.aicc):
        return _ranked_by_misfit(forms, count, experts)
    others = [form for form in forms if form is not best and form.aicc <= best.aicc + _AS_GOOD]
    return best, tuple(sorted(others, key=lambda form: form.aicc)[:_RUNNERS_UP])


def _ranked_by_misfit(forms: list[Form], count: int, experts: bool) -> tuple[Form, tuple[Form, ...]]:
    """Forms of as many coefficients as the line compare by n·log(RSS/n); one more has to pass an F test.

    Of those alike the line is presumed, or the `experts`' coverage in all phases.
    """
    line = forms[0]

    def score(form: Form) -> float:
        return float(count * np.log(max(form.misfit / count, _EXACT)))

    alike = [form for form in forms if np.isnan(form.aicc) and len(form.columns) <= len(line.columns)]
    least = min(alike, key=score)
    covered = [form for form in alike if _covered(form) and score(form) <= score(line) + _AS_GOOD]
    presumed = max(covered if experts else [], key=_covered, default=line)
    winner = least if score(least) < score(presumed) - _AS_GOOD else presumed
    others = tuple(form for form in alike if form is not winner and score(form) <= score(winner) + _AS_GOOD)
    wider = [form for form in forms if np.isnan(form.aicc) and len(form.columns) == len(line.columns) + 1]
    best = min((form for form in wider if _passes(form, winner, count)), key=lambda form: form.misfit, default=winner)
    return best, others[:_RUNNERS_UP] if best is winner else ()


def _covered(form: Form) -> int:
    """In how many phases experts stand for a slope."""
    return sum(column.term.name.endswith("_coverage_ms") for column in form.columns)


def _passes(form: Form, narrow: Form, count: int) -> bool:
    """Whether one more coefficient explains more than chance does (F test on the misfit, at _CHANCE)."""
    left = count - len(form.columns)
    if left < 2:
        return False
    gain = max(narrow.misfit - form.misfit, 0.0) / max(form.misfit / left, count * _EXACT)
    return bool(probability_positive(gain**0.5, left) > 1 - _CHANCE / 2)  # F(1, n) is the square of t(n)


# -- what is tried ----------------------------------------------------------------------------------------------------


def _pool(seen: tuple[Observation, ...], shares: tuple[float, ...]) -> Iterator[Column]:
    """Every shape that could be told apart: knees at measured counts with others on either side, coverage, requests."""
    cycles = [o for o in seen if "verify" in o.phases]
    plain = [o for o in seen if "decode" in o.phases]
    if len({o.cycle.batch_size[0] for o in cycles}) > 1:
        yield Column(TERM_BY_NAME["verify_per_request_ms"])
    if len({o.cycle.topk[0] > 1 for o in seen if "draft" in o.phases}) > 1:
        yield Column(TERM_BY_NAME["draft_tree_step_ms"])
    counts = {"verify": {o.verify_tokens for o in cycles}, "decode": {float(o.cycle.batch_size[0]) for o in plain}}
    for phase, values in counts.items():
        if len(values) < 4:
            continue
        for knee in sorted(values)[1:-1]:
            yield Column(TERM_BY_NAME[f"{phase}_knee_ms"], None, (knee,))
        for share in shares:
            yield Column(TERM_BY_NAME[f"{phase}_coverage_ms"], None, (share,))
    if len({(o.cycle.batch_size[0], o.cycle.num_draft_tokens[0]) for o in cycles}) > len(counts["verify"]) > 3:
        for share, overlap in product(shares, OVERLAPS):
            yield Column(TERM_BY_NAME["verify_overlapping_coverage_ms"], None, (share, overlap))


def _swapped(base: tuple[Column, ...], seen: tuple[Observation, ...], shares: tuple[float, ...]) -> Iterator[Form]:
    """Expert coverage for a line's slope or beside it, in verify, decode or both, where a card says there are experts."""
    widths = {o.verify_tokens for o in seen if "verify" in o.phases}
    batches = {float(o.cycle.batch_size[0]) for o in seen if "decode" in o.phases}
    counts = (("verify", widths), ("decode", batches))
    curved = [phase for phase, values in counts if len(values) > 1 and not over_bare_forwards(base, phase)]
    if len(shares) != 1:
        return
    for phases in [(phase,) for phase in curved] + ([tuple(curved)] if len(curved) > 1 else []):
        slopes = {f"{phase}_per_token_ms" for phase in phases}
        straight = tuple(column for column in base if column.term.name not in slopes)
        coverage = tuple(Column(TERM_BY_NAME[f"{phase}_coverage_ms"], None, shares) for phase in phases)
        where = " and ".join(phases)
        yield _form(base, (*straight, *coverage), seen, f"expert coverage instead of a line in {where}", shares)
        yield _form(base, (*base, *coverage), seen, f"line + expert coverage in {where}", shares)


def _padded(base: tuple[Column, ...], seen: tuple[Observation, ...]) -> Iterator[Form]:
    """Per token of the captured graph for a line's slope, in the phases in which some figure was padded."""
    padding = {
        "verify": [o.cycle.padded_verify > o.verify_tokens for o in seen if "verify" in o.phases],
        "decode": [o.cycle.padded_decode > o.cycle.batch_size for o in seen if "decode" in o.phases],
    }
    padded = [phase for phase, rows in padding.items() if any(row.any() for row in rows)]
    for phases in [(phase,) for phase in padded] + ([tuple(padded)] if len(padded) > 1 else []):
        slopes = {f"{phase}_per_token_ms": PADDED[phase] for phase in phases}
        columns = (replace(column, term=slopes.get(column.term.name, column.term)) for column in base)
        yield _form(base, tuple(columns), seen, f"line over tokens padded to graphs in {' and '.join(phases)}")


def _curves(base: tuple[Column, ...], seen: tuple[Observation, ...]) -> Iterator[Form]:
    """A curve through the measured tokens for a line's slope, in the phases whose figures repeat tokens."""
    curves = {phase: curve for phase in ("verify", "decode") if (curve := _curve(base, seen, phase))}
    requests = (Column(TERM_BY_NAME["verify_per_request_ms"]),)
    for phases in [(phase,) for phase in curves] + ([tuple(curves)] if len(curves) > 1 else []):
        steps = tuple(step for phase in phases for step in curves[phase])
        slopes = {f"{step.term.phase}_per_token_ms" for step in steps if not step.term.hosted}
        columns = (*(column for column in base if column.term.name not in slopes), *steps)
        name = f"measured curve over tokens in {' and '.join(phases)}"
        yield _form(base, columns, seen, name)
        if "verify" in phases:
            yield _form(base, (*columns, *requests), seen, f"{name} + {_WORDS['verify_per_request_ms']}")


def _curve(base: tuple[Column, ...], seen: tuple[Observation, ...], phase: str) -> tuple[Column, ...]:
    """Steps between neighbouring token counts, none of them down; the last one goes on beyond the measured range."""
    rows = [o for o in seen if phase in o.phases]
    if len({o.nccl for o in rows}) != 1 or over_bare_forwards(base, phase):
        return ()
    columns: list[Column] = []
    for hosted, name in ((False, phase), (True, f"{phase}_host")):
        counts = [_tokens(o, phase) for o in rows if o.host_bound is hosted]
        levels = sorted(set(counts))
        if 3 <= len(levels) < len(counts) and _has_level(base, phase, hosted):
            steps = [Column(TERM_BY_NAME[f"{name}_ramp_ms"], None, step) for step in pairwise(levels)]
            last = Column(TERM_BY_NAME[f"{phase}_knee_ms"], None, (levels[-2],))
            columns += steps if hosted else [*steps[:-1], last]
    return tuple(columns)


def _has_level(base: tuple[Column, ...], phase: str, hosted: bool) -> bool:
    fixed = HOST[phase].name if hosted else f"{phase}_fixed_ms"
    return any(column.term.name == fixed for column in base)


def _tokens(o: Observation, phase: str) -> float:
    return o.verify_tokens if phase == "verify" else float(o.cycle.batch_size[0])


STEPS = frozenset(f"{phase}_ramp_ms" for phase in ("verify", "decode", "verify_host", "decode_host"))
"""Steps of a curve: between counts that were measured, not searched for, and none where the curve is flat."""

_LAST_STEPS = frozenset({"verify_knee_ms", "decode_knee_ms"})

_WORDS = {
    "draft_tree_step_ms": "drafting by tree step",
    "verify_per_request_ms": "verify by request",
    "verify_per_token_ms": "verify by token",
    "verify_knee_ms": "knee at {:g} tokens",
    "verify_coverage_ms": "expert coverage {:.3g}",
    "verify_overlapping_coverage_ms": "expert coverage {:.3g} with {:.0%} overlap",
    "decode_knee_ms": "decode knee at {:g} requests",
    "decode_coverage_ms": "decode expert coverage {:.3g}",
}


def _named(shapes: tuple[Column, ...]) -> str:
    return " + ".join(["line", *sorted(_WORDS[shape.term.name].format(*shape.parameters) for shape in shapes)])


# -- how good it is ---------------------------------------------------------------------------------------------------


def _form(
    base: tuple[Column, ...],
    columns: tuple[Column, ...],
    seen: tuple[Observation, ...],
    name: str,
    stated: tuple[float, ...] = (),
) -> Form:
    """A set of terms, judged; parameters that are `stated` (by a model card) were not searched for."""
    design, times = features(columns, seen), np.array([o.time_ms for o in seen])
    solution = solve(design, times, np.ones(len(seen)), known(columns))
    squares = float(solution.residuals @ solution.residuals)
    curved = any(column.term.name in STEPS for column in columns)
    added = [index for index, column in enumerate(columns) if column.term.name in _WORDS and column not in base]
    shapes = [index for index in added if not (curved and columns[index].term.name in _LAST_STEPS)]
    if any(not solution.values[index] > 0 for index in shapes):
        # a shape at its bound, or folded into others, adds nothing
        return Form(columns, name, np.inf, np.full(len(seen), np.nan), squares)
    flat = sum(not solution.values[index] > 0 for index in range(len(columns)) if columns[index].term.name in STEPS)
    searched = sum(parameter not in stated for index in shapes for parameter in columns[index].parameters)
    count = int(solution.kept.sum()) - flat + searched + 1
    score = aicc(squares, len(seen), count, max(resolution(seen), 1e-9) ** 2)
    return Form(columns, name, score, _left_out(solution, design, seen), squares)


def _left_out(solution: Solution, design: FloatArray, seen: tuple[Observation, ...]) -> FloatArray:
    """Relative error of each configuration predicted by the others, a figure each; NaN where they do not determine it.

    For least squares the residuals without group g are (I − H_gg)⁻¹·r_g; coefficients at their bound stay there.
    """
    fitted = design @ solution.values
    free = solution.kept & (solution.values > 0)
    orthonormal = np.linalg.qr(design[:, free] / fitted[:, None])[0]
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, o in enumerate(seen):
        phase = "decode" if o.phases == ("decode",) else "cycle"
        groups.setdefault((phase, o.verify_tokens, float(o.cycle.batch_size[0]), o.context_len), []).append(index)
    errors = np.full(len(seen), np.nan)
    for rows in groups.values():
        own = np.eye(len(rows)) - orthonormal[rows] @ orthonormal[rows].T
        if np.linalg.eigvalsh(own).min() > _DETERMINED:
            errors[rows] = np.linalg.solve(own, solution.residuals[rows])
    return errors
