"""Many configurations at once: the best, what cannot be told from it, the regret of another, and the maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, fields

import numpy as np

from specsim.acceptance import AcceptanceLaw, TreeLaw, required_accept_rate
from specsim.acceptance.lengths import Lengths
from specsim.breakeven import Baseline
from specsim.cost.communication import Estimate
from specsim.cost.model import CostModel, MeasuredConfiguration
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError
from specsim.expected import drafted, lengths_by
from specsim.fitting.acceptance import (
    PRIOR_MEDIAN,
    AcceptanceFit,
    LengthObservation,
    Observation,
    SurvivalObservation,
    fit_acceptance,
)
from specsim.grid import Cells, Chunk, Columns, IntArray, Part, Plan, evaluate, verify_readings
from specsim.methods import CHAIN_ENGINES, method_named
from specsim.quantities import BoolArray, FloatArray, SpecConfig, Workload, is_legal
from specsim.questions import Unanswered
from specsim.uncertainty import quantile

_MOST_COMBINATIONS = 1_000_000  # of one batch size and setting: what 1 GiB holds, and more than any engine's range
_CHUNK_CELLS = 1 << 19  # about 50 MB of arrays: small beside 1 GiB, large beside what a call costs


# -- what is asked ---------------------------------------------------------------------------------------------------


def drafting_method(model: CostModel) -> str:
    """The drafting method of the model's runs; "eagle" where they have none, or several."""
    methods = {m.method for m in model.measured}
    return methods.pop() if len(methods) == 1 else "eagle"


def law_from(model: CostModel) -> AcceptanceFit:
    """The law of acceptance fitted to the accept lengths of the model's own runs (section 7).

    A drafter with dummy steps counts as a chain of num_draft_tokens − 1 steps. Raises NotIdentifiedError when no run
    has an accept length.
    """
    stepped = method_named(drafting_method(model)).steps_bound_length
    seen = [
        observation
        for m in model.measured
        if min(drafted(m)) > 0 and method_named(m.method).steps_bound_length == stepped
        for observation in _observed(m)
    ]
    if not seen:
        raise NotIdentifiedError("no run among these has an accept length: state the accept rate (--accept-rate)")
    return fit_acceptance(seen)


def _observed(m: MeasuredConfiguration) -> Iterator[Observation]:
    """What a measured configuration says of acceptance: by position where it can, else its length."""
    if m.survival:
        yield SurvivalObservation(*drafted(m), m.survival, m.cycles)
    elif m.accept_length is not None:
        yield LengthObservation(*drafted(m), m.accept_length, m.cycles, m.accept_length_error)


def assumed_law(accept_rate: float) -> TreeLaw:
    """One rate at every depth (eq. 19); a tree's further candidates are worth what the default prior says."""
    return TreeLaw(accept_rate, 1.0, PRIOR_MEDIAN[2])


@dataclass(frozen=True)
class Axes:
    """The values to combine, each sorted and without repeats; `nccl` are labels of the model's settings.

    Raises ConfigurationError on an empty axis, or a value that is not a whole number or below what is possible.
    """

    num_steps: tuple[int, ...]
    topk: tuple[int, ...]
    num_draft_tokens: tuple[int, ...]
    batch_size: tuple[int, ...]
    nccl: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, least in (("num_steps", 0), ("topk", 1), ("num_draft_tokens", 1), ("batch_size", 1)):
            values = np.asarray(getattr(self, name))
            if values.size == 0 or values.dtype.kind not in "iu" or values.min() < least:
                raise ConfigurationError(f"{name} of a sweep must be whole numbers of at least {least}")
            object.__setattr__(self, name, tuple(np.unique(values).tolist()))
        if not self.nccl:
            raise ConfigurationError("nccl of a sweep must name at least one setting")
        object.__setattr__(self, "nccl", tuple(dict.fromkeys(self.nccl)))

    @classmethod
    def completed(
        cls,
        model: CostModel,
        *,
        num_steps: Iterable[int] | None = None,
        topk: Iterable[int] | None = None,
        num_draft_tokens: Iterable[int] | None = None,
        batch_size: Iterable[int] | None = None,
        nccl: Iterable[str] | None = None,
    ) -> Axes:
        """What is stated, completed: steps 1 to 8, topk 1, 2, 4, draft tokens 2 to 32, what was run for the rest.

        An engine that drafts chains only has topk 1. A method whose steps are dummies has one pair of steps and topk, as it was run.
        """
        measured = {m.batch_size for m in model.measured} or {1}
        steps, branches = list(range(1, 9)), [1, 2, 4]
        if (model.setup.engine or "").lower() in CHAIN_ENGINES:
            branches = [1]
        if not method_named(drafting_method(model)).steps_bound_length:
            steps, branches = [model.measured[0].num_steps], [model.measured[0].topk]
        return cls(
            tuple(steps if num_steps is None else num_steps),
            tuple(branches if topk is None else topk),
            tuple(range(2, 33) if num_draft_tokens is None else num_draft_tokens),
            tuple(measured if batch_size is None else batch_size),
            tuple([s.label for s in model.settings] if nccl is None else nccl),
        )

    @classmethod
    def chains(
        cls,
        model: CostModel,
        *,
        num_steps: Iterable[int] | None = None,
        batch_size: Iterable[int] | None = None,
        nccl: Iterable[str] | None = None,
    ) -> Axes:
        """The chains alone (topk 1) of what is stated, completed: every depth with its own width.

        Raises ConfigurationError for a method whose steps are dummies.
        """
        method = drafting_method(model)
        if not method_named(method).steps_bound_length:
            raise ConfigurationError(f"num_steps of {method} are dummies: there are no chains by depth to sweep")
        steps = tuple(range(1, 9) if num_steps is None else num_steps)
        widths = [depth + 1 for depth in steps]
        return cls.completed(
            model, num_steps=steps, topk=(1,), num_draft_tokens=widths, batch_size=batch_size, nccl=nccl
        )


# -- what is answered ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One cell by name: its configuration, batch size, NCCL setting and accept length.

    `accept_interval` holds the ends of the length's interval where its law is uncertain, `accept_extrapolated` is
    whether it lies beyond what that law was fitted to.
    """

    spec: SpecConfig
    batch_size: int
    nccl: str
    accept_length: float
    accept_interval: tuple[float, float] | None
    accept_extrapolated: bool


@dataclass(frozen=True)
class Sweep:
    """What `sweep` answers, by (nccl, batch size, configuration) in the order of `axes` and `spec`.

    `spec` holds the G legal configurations, the present one among them, as arrays of shape (G,), `accept_length`
    theirs by `law`, `lengths` what is not known of them (None where the law counts as known), `decode_ms` the
    baseline of shape (nccl, batch size). `columns` says what is best at each batch size and setting, `cells`
    everything about every cell, if kept. `best` is the (setting, batch size) index whose best cell gains most over the
    fastest plain decode at its batch size, None without any baseline; `tied_with_best`, of shape (nccl, batch size),
    where another's cannot be told from that. `illegal` counts the combinations of steps, topk and draft tokens left
    out. `unanswered` says why cells are open, `no_baseline` why margins are, `mixed_baseline` what is not like for like
    where mixing is allowed, by setting.
    """

    axes: Axes
    spec: SpecConfig
    accept_length: FloatArray
    lengths: Lengths | None
    law: AcceptanceLaw | AcceptanceFit
    present: int | None
    allow_mixed: bool
    decode_ms: FloatArray
    columns: Columns
    cells: Cells | None
    best: tuple[int, int] | None
    tied_with_best: BoolArray
    illegal: int
    unanswered: tuple[Unanswered, ...]
    no_baseline: dict[str, str]
    mixed_baseline: dict[str, str]

    @property
    def law_notes(self) -> tuple[str, ...]:
        """Everything that qualifies the accept lengths, in sentences."""
        fitted = self.law.notes if isinstance(self.law, AcceptanceFit) else ()
        trees = bool(((np.asarray(self.spec.topk) > 1) & (np.asarray(self.spec.num_steps) > 0)).any())
        assumed = isinstance(self.law, TreeLaw) and self.law.rank_exponent == PRIOR_MEDIAN[2]
        notes = [_ASSUMED_RANKS] if assumed and trees else []
        if not method_named(self.spec.method).steps_bound_length:
            notes.append(f"num_steps and topk of {self.spec.method} are dummies: {_DUMMIES}")
        return (*fitted, *notes)

    @property
    def evaluated(self) -> int:
        """How many cells there are."""
        return self.columns.best.size * self.accept_length.size

    @property
    def cycle_ms(self) -> FloatArray:
        """Cycle time of every cell [ms]; it and those below raise ConfigurationError where no cells were kept."""
        return self.kept.cycle_ms

    @property
    def output_tok_s(self) -> FloatArray:
        """Server throughput of every cell (eq. 6) [tok/s]."""
        return np.array(self.axes.batch_size)[:, None] * (1000.0 * self.accept_length) / self.cycle_ms

    @property
    def cost_ratio(self) -> FloatArray:
        """C/t of every cell, the accept length that it needs to break even (eq. 7); NaN without a baseline."""
        return self.cycle_ms / self.decode_ms[..., None]

    @property
    def speedup(self) -> FloatArray:
        """Speed-up of every cell, L·t/C (eq. 7)."""
        return self.accept_length / self.cost_ratio

    @property
    def margin(self) -> FloatArray:
        """Accept length beyond break-even of every cell, L − C/t [tokens a cycle]."""
        return self.accept_length - self.cost_ratio

    @property
    def feasible(self) -> BoolArray:
        """Where any accept length breaks even (eq. 8); False without a baseline."""
        return self.cost_ratio <= np.asarray(self.spec.max_accept_length)

    @property
    def tied(self) -> BoolArray:
        """The cells that cannot be told from the best at their batch size and setting."""
        return self.kept.tied

    @property
    def extrapolated(self) -> BoolArray:
        """The cells outside what was measured, or what the law was fitted to (eq. 14)."""
        return self.kept.extrapolated

    @property
    def kept(self) -> Cells:
        """The cells; raises ConfigurationError where none were kept."""
        if self.cells is None:
            raise ConfigurationError("this sweep kept no cells: ask with keep_cells=True")
        return self.cells

    def place(self, nccl: str | None = None, batch_size: int | None = None) -> tuple[int, int]:
        """The (setting, batch size) index of what is stated, of the best of all for the rest.

        Best by what it gains over the fastest plain decode, or by throughput where nothing has a baseline. Raises ConfigurationError on a value that is
        not on its axis.
        """
        rates = self.columns.best_output_tok_s
        setting, batch = self.best or np.unravel_index(int(np.nanargmax(rates)), rates.shape)
        setting = setting if nccl is None else _index("nccl", self.axes.nccl, nccl)
        batch = batch if batch_size is None else _index("batch_size", self.axes.batch_size, batch_size)
        return int(setting), int(batch)

    def cell(self, setting: int, batch: int, configuration: int) -> Cell:
        """The cell at an index, by name."""
        steps, topk, width = (int(np.asarray(getattr(self.spec, name))[configuration]) for name in _COUNTS)
        spec = SpecConfig(steps, topk, width, self.spec.method)
        length, told, ends, beyond = float(self.accept_length[configuration]), self.lengths, None, False
        if told is not None:
            ends = float(told.low[configuration]), float(told.high[configuration])
            beyond = bool(told.extrapolated[configuration])
        return Cell(spec, self.axes.batch_size[batch], self.axes.nccl[setting], length, ends, beyond)


_COUNTS = ("num_steps", "topk", "num_draft_tokens")
_ASSUMED_RANKS = (
    f"the lengths of trees rest on the default prior's rank_exponent, {PRIOR_MEDIAN[2]:.2f}: an acceptance rate tells"
    " nothing of the candidates after the first, and that it is uncertain is in no interval"
)
_DUMMIES = "accept lengths are those of a chain of num_draft_tokens − 1 drafts"


def sweep(
    model: CostModel,
    law: AcceptanceLaw | AcceptanceFit,
    axes: Axes,
    *,
    present: SpecConfig | None = None,
    allow_mixed: bool = False,
    keep_cells: bool = True,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Evaluate every legal combination of the axes (eq. 6–8, 11) at the law's accept lengths.

    The lengths of an AcceptanceLaw count as known; those of an AcceptanceFit have intervals, and margins and ties
    with them. A drafter with dummy steps counts as a chain of num_draft_tokens − 1 steps. `present` joins the configurations and gets its regret. Like for like, unless `allow_mixed` lets the nearest
    baseline stand in as in `break_even`. Without `keep_cells` memory does not grow with the cells. `progress` is
    told the cells done and all cells. Raises ConfigurationError when nothing is legal or a length is impossible,
    UnknownSettingError for a setting without runs, NotIdentifiedError when the runs answer no cell.

    Chunks run in this process, or through any Executor, a cluster's too (`dask.distributed`: get_executor()):

        with ProcessPoolExecutor() as pool:
            found = sweep(model, ConstantRate(0.6), Axes.completed(model), executor=pool)
    """
    plan, illegal = _plan(model, law, axes, present, allow_mixed, keep_cells)
    shape = (len(axes.nccl), len(axes.batch_size), plan.accept_length.size)
    cells = Cells.empty(shape) if keep_cells else None
    columns, open_because = _collected(plan, cells, executor, progress)
    best, tied = _best_of_all(plan, columns)
    decode_ms = np.array([decode.value for decode in plan.decode])
    unanswered = tuple(Unanswered(label, why) for label, why in open_because.items())
    missing, mixed = (_without_baseline(model, plan, mix) for mix in (allow_mixed, False))
    mixed = {label: why for label, why in mixed.items() if label not in missing}
    given = (axes, plan.spec, plan.accept_length, plan.lengths, law, plan.present, allow_mixed)
    return Sweep(*given, decode_ms, columns, cells, best, tied, illegal, unanswered, missing, mixed)


def _collected(
    plan: Plan, cells: Cells | None, executor: Executor | None, progress: Callable[[int, int], None] | None
) -> tuple[Columns, dict[str, str]]:
    """The columns of all chunks, and why settings leave cells open."""
    each = len(plan.settings) * plan.accept_length.size
    columns: list[Columns] = []
    open_because: dict[str, str] = {}
    for part in _run(plan, cells, executor):
        columns.append(part.columns)
        open_because = part.open_because | open_because
        if progress is not None:
            progress(part.stop * each, plan.batch_size.size * each)
    joined = Columns.joined(columns, axis=1)
    if (joined.best < 0).all():
        raise NotIdentifiedError(next(iter(open_because.values())))
    return joined, open_because


def _run(plan: Plan, cells: Cells | None, executor: Executor | None) -> Iterator[Part]:
    """Every chunk's part, in order; `cells` is filled on the way."""
    chunks = _chunks(plan)
    if executor is not None:
        for part in executor.map(evaluate, chunks):
            _store(part, cells)
            yield part
        return
    room = cells or Cells.empty((len(plan.settings), chunks[0].stop, plan.accept_length.size))
    for chunk in chunks:  # in this process: straight into the cells, or again and again into the same room
        start = chunk.start if cells else 0
        yield evaluate(chunk, room.at(slice(None), slice(start, start + chunk.stop - chunk.start)))


def _store(part: Part, cells: Cells | None) -> None:
    if cells is None or part.cells is None:
        return
    for field in fields(Cells):
        getattr(cells, field.name)[:, part.start : part.stop] = getattr(part.cells, field.name)


# -- the plan --------------------------------------------------------------------------------------------------------


def _plan(
    model: CostModel,
    law: AcceptanceLaw | AcceptanceFit,
    axes: Axes,
    present: SpecConfig | None,
    allow_mixed: bool,
    keep_cells: bool,
) -> tuple[Plan, int]:
    """What all chunks share, and how many combinations were left out as illegal."""
    spec, illegal, at = _configurations(axes, drafting_method(model), present)
    length, lengths = lengths_by(law, spec)
    one, two = (model.rest(model.cycle(spec, Workload(batch)), None) for batch in (1, 2))
    per_request = two - one
    batch = np.array(axes.batch_size, dtype=float)
    decode = tuple(_decode(model, label, batch, allow_mixed)[0] for label in axes.nccl)
    rest = (one - per_request, per_request)
    return Plan(model, spec, length, batch, axes.nccl, decode, *rest, at, keep_cells, lengths), illegal


def _configurations(axes: Axes, method: str, present: SpecConfig | None) -> tuple[SpecConfig, int, int | None]:
    """The legal configurations by ascending width, how many combinations are not, and where the present one is."""
    if not method_named(method).steps_bound_length and len(axes.num_steps) * len(axes.topk) > 1:
        raise ConfigurationError(f"num_steps and topk of {method} are dummies: sweep num_draft_tokens, and one of each")
    combinations = len(axes.num_steps) * len(axes.topk) * len(axes.num_draft_tokens)
    if combinations > _MOST_COMBINATIONS:
        raise ConfigurationError(
            f"{combinations:,} combinations of steps, topk and draft tokens in one sweep: at most"
            f" {_MOST_COMBINATIONS:,}; narrow an axis, or sweep it in parts"
        )
    grid = np.meshgrid(axes.num_steps, axes.topk, axes.num_draft_tokens, indexing="ij")
    steps, topk, width = (np.ravel(axis) for axis in grid)
    keep = is_legal(steps, topk, width, method)
    if min(axes.topk) < max(axes.topk):
        keep &= (steps > 0) | (topk == min(axes.topk))  # without drafts every topk is the same cycle
    rows = np.stack([width, steps, topk], axis=1)[keep]
    mine = None
    if present is not None:
        mine = np.array([present.num_draft_tokens, present.num_steps, present.topk])
        rows = rows if (rows == mine).all(axis=1).any() else np.vstack([rows, mine])
    if not len(rows):
        raise ConfigurationError(f"none of the {keep.size} combinations of steps, topk and draft tokens is legal")
    rows = rows[np.lexsort(rows.T[::-1])]
    at = None if mine is None else int(np.flatnonzero((rows == mine).all(axis=1))[0])
    return SpecConfig(rows[:, 1], rows[:, 2], rows[:, 0], method), int(keep.size - keep.sum()), at


def _decode(model: CostModel, nccl: str, batch: FloatArray, allow_mixed: bool) -> tuple[Estimate, str]:
    """Plain decode at each batch size (eq. 5), NaN where no baseline serves, and then why."""
    cycle = model.plain_cycle(batch)
    try:
        baseline = Baseline.find(model, cycle, nccl, None, allow_mixed)
    except MixedSetupError as error:
        unknown = model.phase("decode", cycle, nccl)
        return Estimate(np.full_like(unknown.value, np.nan), np.zeros_like(unknown.gradient)), str(error)
    return baseline.decode, baseline.why


def _without_baseline(model: CostModel, plan: Plan, allow_mixed: bool) -> dict[str, str]:
    """Why there is no baseline, by the settings for which that is so."""
    reasons = {label: _decode(model, label, plan.batch_size, allow_mixed)[1] for label in plan.settings}
    return {label: why for label, why in reasons.items() if why}


def _chunks(plan: Plan) -> list[Chunk]:
    """Whole batch sizes, at least one, so that what is best at one is known where it is evaluated."""
    step = max(1, _CHUNK_CELLS // (plan.accept_length.size * len(plan.settings)))
    return [Chunk(plan, low, min(low + step, plan.batch_size.size)) for low in range(0, plan.batch_size.size, step)]


# -- the best of all -------------------------------------------------------------------------------------------------


def _best_of_all(plan: Plan, columns: Columns) -> tuple[tuple[int, int] | None, BoolArray]:
    """The batch size and setting whose best cell gains most over plain decode, and those that cannot be told from it.

    Every setting is held against the fastest baseline at that batch size, its own or another's: what somebody who
    may choose the setting would run instead. A speed-up over its own baseline would favour a slow setting, and one
    without a baseline of its own, which might be the fastest, takes no part.
    """
    shape = columns.best.shape
    plain = _fastest(plan.decode)
    speedups = [_log_gains(plan, columns.best[index], index, plain) for index in range(shape[0])]
    points = np.array([point for point, _ in speedups])
    if np.isnan(points).all():
        return None, np.zeros(shape, dtype=bool)
    setting, batch = (int(at) for at in np.unravel_index(np.nanargmax(points), shape))
    tied, half_width = np.zeros(shape, dtype=bool), quantile(plan.model.noise.residual_dof)
    apart = plan.lengths.square_apart(columns.best[setting, batch], columns.best) if plan.lengths else np.zeros(shape)
    for name, top in speedups[setting][1].items():
        best = Estimate(top.value[batch], top.gradient[batch])
        for index, (_, readings) in enumerate(speedups):
            for other, estimate in readings.items():
                if index != setting or other == name:  # one setting is read one way at a time
                    shortfall = Estimate(best.value - estimate.value, best.gradient - estimate.gradient)
                    variance = shortfall.variance(plan.model.covariance_matrix)
                    tied[index] |= shortfall.value <= np.sqrt(half_width**2 * variance + apart[index])
    return (setting, batch), tied


def _fastest(decode: tuple[Estimate, ...]) -> Estimate:
    """The least plain decode step at each batch size over the settings; NaN where none has a baseline."""
    values = np.stack([each.value for each in decode])
    least = np.where(np.isnan(values), np.inf, values).argmin(axis=0)
    at = np.arange(values.shape[1])
    return Estimate(values[least, at], np.stack([each.gradient for each in decode])[least, at])


def _log_gains(plan: Plan, best: IntArray, index: int, decode: Estimate) -> tuple[FloatArray, dict[str, Estimate]]:
    """log(L·t/C) of the best cell at each batch size (eq. 7): the point, and by reading; NaN where it is open."""
    width = np.asarray(plan.spec.num_draft_tokens)[best].astype(float)
    table = plan.model.verify_cycle(plan.batch_size, width, plan.drafting)
    verify = verify_readings(plan.model, table, plan.settings[index])
    length = np.where(best < 0, np.nan, plan.accept_length[best])

    length = np.where(np.isnan(plan.decode[index].value), np.nan, length)  # no baseline of its own, no gain to tell

    def speedup(verified: Estimate) -> Estimate:
        cycle = plan.cycle_estimate(verified, plan.batch_size, best, index)
        relative = decode.gradient / decode.value[:, None] - cycle.gradient / cycle.value[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):  # a reading far from its pair can go below 0
            return Estimate(np.log(length * decode.value / cycle.value), relative)

    return speedup(verify.point).value, {name: speedup(reading) for name, reading in verify.by_name.items()}


# -- sums and maps ---------------------------------------------------------------------------------------------------


def totals(found: Sweep) -> dict[str, int]:
    """How many cells pay, lose, are undecided, have no baseline, are open, infeasible or extrapolated."""
    names = ("pays", "loses", "undecided", "infeasible", "without_baseline", "not_identified", "extrapolated")
    return {name: int(getattr(found.columns, name).sum()) for name in names}


@dataclass(frozen=True)
class HeatMap:
    """One quantity over num_steps (rows) and num_draft_tokens (columns), NaN where a combination is illegal or open."""

    num_steps: tuple[int, ...]
    num_draft_tokens: tuple[int, ...]
    values: FloatArray


def heat_map(found: Sweep, quantity: str, *, nccl: str, batch_size: int, topk: int) -> HeatMap:
    """A quantity of a Sweep (speedup, margin, output_tok_s …) by steps and draft tokens, at one setting, batch size and topk, for drawing.

    Raises ConfigurationError when the sweep kept no cells, or has no such value on its axes.
    """
    setting, batch = _index("nccl", found.axes.nccl, nccl), _index("batch_size", found.axes.batch_size, batch_size)
    _index("topk", found.axes.topk, topk)
    steps, branches, width = (np.asarray(getattr(found.spec, name)) for name in _COUNTS)
    rows, columns = np.unique(steps), np.unique(width)
    values = np.full((rows.size, columns.size), np.nan)
    here = branches == topk
    at = np.searchsorted(rows, steps[here]), np.searchsorted(columns, width[here])
    values[at] = getattr(found, quantity)[setting, batch, here]
    return HeatMap(tuple(rows.tolist()), tuple(columns.tolist()), values)


@dataclass(frozen=True)
class TopkMap:
    """One quantity over num_steps (rows) and num_draft_tokens (columns), each with the topk at which it is highest.

    `values` are NaN, and `topk` 0, where no combination is legal or answered; `extrapolated` belongs to that topk,
    `tied` to any: where some topk cannot be told from the best of all.
    """

    num_steps: tuple[int, ...]
    num_draft_tokens: tuple[int, ...]
    values: FloatArray
    topk: IntArray
    tied: BoolArray
    extrapolated: BoolArray


def best_topk_map(found: Sweep, quantity: str, *, nccl: str, batch_size: int) -> TopkMap:
    """A quantity of a Sweep by steps and draft tokens at the topk of the axes where it is highest, for drawing.

    Raises ConfigurationError as `heat_map`.
    """

    def layers(name: str) -> FloatArray:
        every = (heat_map(found, name, nccl=nccl, batch_size=batch_size, topk=k) for k in found.axes.topk)
        return np.stack([each.values for each in every])

    rows, columns = (np.unique(getattr(found.spec, name)).tolist() for name in ("num_steps", "num_draft_tokens"))
    values = np.nan_to_num(layers(quantity), nan=-np.inf)
    at = values.argmax(axis=0)[None]
    best = np.take_along_axis(values, at, axis=0)[0]
    answered = np.isfinite(best)
    extrapolated = np.take_along_axis(layers("extrapolated"), at, axis=0)[0] == 1
    return TopkMap(
        tuple(rows),
        tuple(columns),
        np.where(answered, best, np.nan),
        np.where(answered, np.array(found.axes.topk)[at[0]], 0),
        (layers("tied") == 1).any(axis=0),
        answered & extrapolated,
    )


@dataclass(frozen=True)
class BreakEvenMap:
    """What chains need by batch_size (rows) and num_steps (columns): C/t, and the rate (eq. 9), NaN where none will do.

    `accept_rate`, by num_steps, is the constant rate that gives a chain the law's accept length; `undecided` marks
    where the interval of the margin holds 0, `extrapolated` what lies outside what was measured.
    """

    batch_size: tuple[int, ...]
    num_steps: tuple[int, ...]
    cost_ratio: FloatArray
    required_accept_rate: FloatArray
    accept_rate: FloatArray
    undecided: BoolArray
    extrapolated: BoolArray


def break_even_map(found: Sweep, *, nccl: str) -> BreakEvenMap:
    """Accept length and rate that the sweep's chains (topk 1) need to break even under a setting (eq. 7, 9).

    Raises ConfigurationError when the sweep kept no cells, has no such setting, or no chain.
    """
    setting = _index("nccl", found.axes.nccl, nccl)
    stepped = method_named(found.spec.method).steps_bound_length
    chains = np.flatnonzero((np.asarray(found.spec.topk) == 1) & (np.asarray(found.spec.num_steps) > 0) & stepped)
    if not chains.size:
        raise ConfigurationError(
            "the sweep has no chain (topk 1) with steps: the acceptance rate that anything else needs has no formula"
        )
    steps = np.asarray(found.spec.num_steps)[chains]
    need = found.cost_ratio[setting][:, chains]
    return BreakEvenMap(
        found.axes.batch_size,
        tuple(steps.tolist()),
        need,
        np.asarray(required_accept_rate(need, steps)),
        np.asarray(required_accept_rate(found.accept_length[chains], steps)),
        (found.kept.margin_low[setting][:, chains] <= 0) & (found.kept.margin_high[setting][:, chains] >= 0),
        found.extrapolated[setting][:, chains],
    )


def _index(axis: str, values: tuple[int, ...] | tuple[str, ...], value: int | str) -> int:
    if value not in values:
        raise ConfigurationError(f"{axis} {value!r} is not on the sweep's axis: {', '.join(map(str, values))}")
    return [*values].index(value)
