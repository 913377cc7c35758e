"""Every cell of a sweep from small tables, as arrays.

A cycle is V(B, N) + R₀ + B·R₁: verify depends on batch size and width alone, and what stands beside it is
affine in the batch size, with R₀ and R₁ of the configuration. So the value of every cell is a sum of three
tables, and its variances (eq. 11) are products of a left factor (batch, width) with a right one (configuration).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from specsim.acceptance.lengths import Lengths
from specsim.cost.communication import Estimate
from specsim.cost.model import CostModel, Readings
from specsim.cost.terms import Cycle
from specsim.errors import NotIdentifiedError
from specsim.quantities import BoolArray, FloatArray, SpecConfig, Workload
from specsim.uncertainty import difference_interval, quantile, ratio_interval

IntArray = NDArray[np.int64]

LISTED = 8
"""How many of the cells that cannot be told from the best are kept by name at each batch size and setting."""

_COUNTS = ("num_steps", "topk", "num_draft_tokens")

_OF_TABLE = ("verify_tokens", "batch_size", "context_len", "message_bytes", "logits_bytes", "bare_forward_tokens")

_ROUNDING = 1e-12  # relative difference of two equal cells, summed in another order


@dataclass(frozen=True)
class Cells:
    """Every cell, shape (nccl, batch size, configuration): its cycle [ms], and what cannot be had from that.

    The margin's interval is that of L − C/t (eq. 7) at quantities.LEVEL [tokens a cycle]: Fieller's over all
    readings of a setting, and in squares with it that of a length which is not known. What has no like-for-like
    baseline, or is not identified by the runs, is NaN. `tied` marks the cells that cannot be told from the best at
    their batch size and setting.
    """

    cycle_ms: FloatArray
    margin_low: FloatArray
    margin_high: FloatArray
    extrapolated: BoolArray
    tied: BoolArray

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Cells:
        """Room for cells of this shape, nothing in it yet."""
        booleans = ("extrapolated", "tied")
        return cls(**{f.name: np.empty(shape, dtype=bool if f.name in booleans else float) for f in fields(cls)})

    def at(self, *index: int | slice) -> Cells:
        """The cells of a part of the grid, sharing memory."""
        return Cells(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


@dataclass(frozen=True)
class Columns:
    """What is kept of the cells at each batch size and setting, shape (nccl, batch size).

    `best` is the configuration with the highest throughput (−1 where none is answered), `tied` up to LISTED of
    those that cannot be told from it, fastest first, padded with −1, `tied_count` how many there are in all,
    the best included. `regret` is the share of the best throughput that the present configuration gives away
    (NaN without one), `present_tied` whether it cannot be told from the best. The other counts are of cells:
    `pays` and `loses` where the whole margin interval lies above or below 0, `undecided` where it does not,
    `without_baseline` and `not_identified` where there is no margin.
    """

    best: IntArray
    best_output_tok_s: FloatArray
    tied: IntArray
    tied_count: IntArray
    regret: FloatArray
    present_tied: BoolArray
    pays: IntArray
    loses: IntArray
    undecided: IntArray
    without_baseline: IntArray
    not_identified: IntArray
    infeasible: IntArray
    extrapolated: IntArray

    @classmethod
    def joined(cls, parts: list[Columns], axis: int) -> Columns:
        """Parts side by side, along the batch sizes (1), or stacked as settings (0)."""
        join = np.stack if axis == 0 else np.concatenate
        return cls(**{f.name: join([getattr(part, f.name) for part in parts], axis=axis) for f in fields(cls)})


@dataclass(frozen=True)
class Plan:
    """What every chunk of a sweep shares; configurations are in ascending order of width.

    `decode` holds the baseline by setting, NaN where there is none like for like; `fixed` and `per_request`
    are R₀ and R₁; `present` is the index of the present configuration; `lengths` is what is not known of
    `accept_length`, None where it counts as known.
    """

    model: CostModel
    spec: SpecConfig
    accept_length: FloatArray
    batch_size: FloatArray
    settings: tuple[str, ...]
    decode: tuple[Estimate, ...]
    fixed: Estimate
    per_request: Estimate
    present: int | None
    keep_cells: bool
    lengths: Lengths | None = None

    @cached_property
    def widths(self) -> FloatArray:
        """The distinct widths N, ascending."""
        return np.unique(self.spec.num_draft_tokens).astype(float)

    @cached_property
    def width_of(self) -> IntArray:
        """Index into `widths` by configuration."""
        return np.searchsorted(self.widths, self.spec.num_draft_tokens).astype(np.int64)

    @cached_property
    def spans(self) -> list[slice]:
        """The configurations of each width."""
        edges = np.searchsorted(self.width_of, np.arange(self.widths.size + 1))
        return [slice(int(low), int(high)) for low, high in pairwise(edges)]

    @cached_property
    def drafting(self) -> bool:
        """Whether a drafter's graphs stand beside verifies, where there are graphs: not a lookup's."""
        return bool(self.model.cycle(self.spec, Workload(1), cuda_graph=True).between_drafts.any())

    @cached_property
    def most(self) -> FloatArray:
        """Largest possible accept length by configuration."""
        return np.broadcast_to(np.asarray(self.spec.max_accept_length, dtype=float), self.accept_length.shape)

    @cached_property
    def beyond(self) -> BoolArray:
        """Where steps or topk lie outside what was measured, or what the law was fitted to, by configuration (eq. 14)."""
        beyond = self.model.beyond(self.model.cycle(self.spec, Workload(1)))
        masks = [mask for name, mask in beyond.items() if name in ("num_steps", "topk")]
        of_law = np.zeros(self.accept_length.size, dtype=bool) if self.lengths is None else self.lengths.extrapolated
        outside: BoolArray = np.any([*masks, of_law], axis=0)
        return outside

    @cached_property
    def varying(self) -> IntArray:
        """The coefficients that R₀ and R₁ have any part of."""
        return np.flatnonzero(self.fixed.gradient.any(axis=0) | self.per_request.gradient.any(axis=0))

    @cached_property
    def right(self) -> FloatArray:
        """Right factor of every variance: 1, ∇R₀, ∇R₁, then R₀ΣR₀, R₀ΣR₁, R₁ΣR₁; a row each."""
        covariance, fixed, slope = self.model.covariance_matrix, self.fixed, self.per_request
        squares = [fixed.variance(covariance), fixed.covariance_with(slope, covariance), slope.variance(covariance)]
        gradients = [each.gradient[:, self.varying].T for each in (fixed, slope)]
        return np.vstack([np.ones((1, self.accept_length.size)), *gradients, squares])

    @cached_property
    def right_linear(self) -> FloatArray:
        """Right factor of every covariance with something else: 1, ∇R₀, ∇R₁."""
        return self.right[: 1 + 2 * self.varying.size]

    def rest_ms(self, batch: FloatArray, configuration: IntArray | slice, setting: int) -> FloatArray:
        """R₀ + B·R₁ of configurations at batch sizes, arguments broadcast, and what a derived setting changes of it."""
        told = self.fixed.value[configuration] + batch * self.per_request.value[configuration]
        if not any(derived.label == self.settings[setting] for derived in self.model.derived):
            return told
        counts = (np.asarray(getattr(self.spec, name))[configuration] for name in _COUNTS)
        whole = [np.ravel(each).astype(np.int64) for each in np.broadcast_arrays(batch, *counts)]
        spec = SpecConfig(whole[1], whole[2], whole[3], self.spec.method)
        cycle = self.model.cycle(spec, Workload(whole[0]))
        return told + self.model.rest_change_ms(cycle, self.settings[setting]).reshape(told.shape)

    def cycle_estimate(self, verify: Estimate, batch: FloatArray, configuration: IntArray, setting: int) -> Estimate:
        """The whole cycle of single cells under a setting, V + R₀ + B·R₁, from the verify time of each."""
        parts = (Estimate(e.value[configuration], e.gradient[configuration]) for e in (self.fixed, self.per_request))
        fixed, slope = parts
        rest = fixed + slope.scaled(batch)
        return verify + Estimate(self.rest_ms(batch, configuration, setting), rest.gradient)


@dataclass(frozen=True)
class Chunk:
    """A piece of a sweep: the batch sizes from `start` to `stop`, at every setting and configuration."""

    plan: Plan
    start: int
    stop: int


@dataclass(frozen=True)
class Part:
    """What a chunk gives: its columns, its cells where they are to be kept and had no room, why settings leave some open."""

    start: int
    stop: int
    columns: Columns
    cells: Cells | None
    open_because: dict[str, str]


def evaluate(chunk: Chunk, room: Cells | None = None) -> Part:
    """Evaluate one chunk, its cells into `room` where the caller has some to be filled.

    A plain function of plain values, so that any executor can run it elsewhere.
    """
    plan = chunk.plan
    cells = (
        Cells.empty((len(plan.settings), chunk.stop - chunk.start, plan.accept_length.size)) if room is None else room
    )
    answers = [_evaluate_setting(chunk, index, cells.at(index)) for index in range(len(plan.settings))]
    return Part(
        chunk.start,
        chunk.stop,
        Columns.joined([columns for columns, _ in answers], axis=0),
        cells if room is None and plan.keep_cells else None,
        {label: why for label, (_, why) in zip(plan.settings, answers, strict=True) if why},
    )


# -- verify time where the runs say it -------------------------------------------------------------------------------


def verify_readings(model: CostModel, cycle: Cycle, nccl: str) -> Readings:
    """Verify time under a setting, as `CostModel.verify`, but NaN, and no error, where the runs leave all of it open."""
    try:
        return model.verify(cycle, nccl)
    except NotIdentifiedError as error:
        own = model.phase("verify", cycle, nccl)
        unknown = Estimate(np.full_like(own.value, np.nan), np.zeros_like(own.gradient))
        return Readings(unknown, {"measured": unknown}, np.ones(own.value.shape, dtype=bool), str(error))


# -- all cells of one setting ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """One reading of verify by (width, batch): value, gradient, left factors of var C and cov(C, t), and its setting."""

    value: FloatArray
    gradient: FloatArray
    left_variance: FloatArray
    left_covariance: FloatArray
    setting: int

    @classmethod
    def of(cls, plan: Plan, verify: Estimate, batch: FloatArray, decode: Estimate, setting: int) -> _Reading:
        shape, p = (plan.widths.size, batch.size), verify.gradient.shape[1]
        gradient, covariance = verify.gradient.reshape(*shape, p), plan.model.covariance_matrix
        times = np.broadcast_to(batch, shape)[..., None]
        ones, own = np.ones_like(times), verify.variance(covariance).reshape(*shape, 1)
        cross = 2 * (gradient @ covariance)[..., plan.varying]
        left_variance = np.concatenate([own, cross, times * cross, ones, 2 * times, times**2], axis=2)
        left_covariance = left_of(plan, gradient, batch, decode.gradient)
        return cls(verify.value.reshape(shape), gradient, left_variance, left_covariance, setting)

    def at(self, width: int) -> _Reading:
        """The reading at one width."""
        left = (self.left_variance[width], self.left_covariance[width])
        return _Reading(self.value[width], self.gradient[width], *left, self.setting)

    def cells(self, width: IntArray, batch: IntArray) -> Estimate:
        """Verify time of single cells, from their indices."""
        return Estimate(self.value[width, batch], self.gradient[width, batch])


def left_of(plan: Plan, gradient: FloatArray, batch: FloatArray, other: FloatArray) -> FloatArray:
    """Left factor of cov(C, x) by (…, batch), for verify and a quantity x with these gradients."""
    weight = other @ plan.model.covariance_matrix
    with_verify = np.einsum("...bp,bp->...b", gradient, weight)[..., None]
    with_rest = np.hstack([weight[:, plan.varying], batch[:, None] * weight[:, plan.varying]])
    return np.concatenate(
        [with_verify, np.broadcast_to(with_rest, (*with_verify.shape[:-1], with_rest.shape[1]))], axis=-1
    )


@dataclass(frozen=True)
class _Spread:
    """What telling cells apart needs of each, by reading: the least cycle time in its interval, and the variance."""

    least: tuple[FloatArray, ...]
    variance: tuple[FloatArray, ...]

    @classmethod
    def empty(cls, readings: int, shape: tuple[int, ...]) -> _Spread:
        least, variance = (tuple(np.empty(shape) for _ in range(readings)) for _ in range(2))
        return cls(least, variance)


def _evaluate_setting(chunk: Chunk, index: int, cells: Cells) -> tuple[Columns, str]:
    plan, part = chunk.plan, slice(chunk.start, chunk.stop)
    batch, decode = plan.batch_size[part], plan.decode[index]
    decode = Estimate(decode.value[part], decode.gradient[part])
    table = _table_cycle(plan, batch)
    verify = verify_readings(plan.model, table, plan.settings[index])
    readings = [_Reading.of(plan, reading, batch, decode, index) for reading in verify.by_name.values()]
    point = verify.point.value.reshape(plan.widths.size, -1)
    outside = _outside(plan.model, table, plan.settings[index]).reshape(point.shape)
    spread = _Spread.empty(len(readings), cells.cycle_ms.shape)
    for width, span in enumerate(plan.spans):
        block = cells.at(slice(None), span)
        rest = plan.rest_ms(batch[:, None], span, index)
        low, high = _ends(plan, span, rest, [r.at(width) for r in readings], decode, spread)
        np.add(point[width][:, None], rest, out=block.cycle_ms)
        _fill_margin(plan, span, (low, high), decode, block)
        if plan.model.lower_bound(plan.settings[index]):  # the cycle may be longer: a margin has no lower end
            block.margin_low[...] = np.where(np.isnan(block.margin_low), np.nan, -np.inf)
        np.logical_or(outside[width][:, None], plan.beyond[span], out=block.extrapolated)
    return _columns(plan, cells, spread, readings, batch, decode), verify.open_because


def _table_cycle(plan: Plan, batch: FloatArray) -> Cycle:
    """A cycle for every width and batch size, width first; steps and topk have no part in its verify, but whether they draft."""
    width, times = (np.ravel(axis) for axis in np.meshgrid(plan.widths, batch, indexing="ij"))
    return plan.model.verify_cycle(times, width, plan.drafting)


def _outside(model: CostModel, table: Cycle, nccl: str) -> BoolArray:
    masks = [mask for name, mask in model.beyond(table, nccl).items() if name in _OF_TABLE]
    outside: BoolArray = np.any([*masks, np.zeros(table.batch_size.size, dtype=bool)], axis=0)
    return outside


def _ends(
    plan: Plan, span: slice, rest: FloatArray, readings: list[_Reading], decode: Estimate, spread: _Spread
) -> tuple[FloatArray, FloatArray]:
    """Fieller's interval of C/t (eq. 11), widened over the readings; keeps each cell's spread."""
    half_width = quantile(plan.model.noise.residual_dof)
    plain, var_plain = decode.value[:, None], decode.variance(plan.model.covariance_matrix)[:, None]
    blank = np.where(np.isnan(plain), np.nan, 0.0)
    ends = [(blank, blank)] if np.isnan(plain).all() else []
    for index, reading in enumerate(readings):
        cycle = reading.value[:, None] + rest
        var_cycle = np.maximum(reading.left_variance @ plan.right[:, span], 0.0)
        if not np.isnan(plain).all():
            shared = reading.left_covariance @ plan.right_linear[:, span]
            low, high = ratio_interval(cycle, plain, (var_cycle, var_plain, shared), half_width)
            ends.append((low + blank, high + blank))
        spread.variance[index][:, span] = var_cycle
        spread.least[index][:, span] = cycle - half_width * np.sqrt(var_cycle)
    return _extreme(np.minimum, [low for low, _ in ends]), _extreme(np.maximum, [high for _, high in ends])


def _fill_margin(plan: Plan, span: slice, ends: tuple[FloatArray, FloatArray], decode: Estimate, block: Cells) -> None:
    """The interval of L − C/t from that of C/t, and from that of L where it is not known."""
    length, lengths = plan.accept_length[span], plan.lengths
    if lengths is None:
        np.subtract(length, ends[1], out=block.margin_low)
        np.subtract(length, ends[0], out=block.margin_high)
        return
    own = (length, lengths.low[span], lengths.high[span])
    ratio = block.cycle_ms / decode.value[:, None]
    block.margin_low[...], block.margin_high[...] = difference_interval(own, (ratio, *ends))


def _extreme(of: np.ufunc, arrays: list[FloatArray]) -> FloatArray:
    first, *others = arrays
    for other in others:
        first = of(first, other)
    return first


# -- what is kept of them --------------------------------------------------------------------------------------------


def _columns(
    plan: Plan, cells: Cells, spread: _Spread, readings: list[_Reading], batch: FloatArray, decode: Estimate
) -> Columns:
    rate = plan.accept_length / cells.cycle_ms
    open_cells = np.isnan(cells.cycle_ms).sum(axis=1)
    if open_cells.any():
        rate = np.where(np.isnan(rate), -1.0, rate)
    best, rows = rate.argmax(axis=1), np.arange(batch.size)
    top = np.where(rate[rows, best] > 0, rate[rows, best], np.nan)
    _mark_ties(cells.tied, plan, best, spread, readings, batch)
    row, column = np.nonzero(cells.tied)
    pays, loses = (cells.margin_low > 0).sum(axis=1), (cells.margin_high < 0).sum(axis=1)
    answered = cells.cycle_ms.shape[1] - open_cells
    with_baseline = np.where(np.isnan(decode.value), 0, answered)
    at = plan.present
    return Columns(
        best=np.where(np.isnan(top), -1, best),
        best_output_tok_s=1000.0 * batch * top,
        tied=_listed(row, column, rate, batch.size),
        tied_count=np.bincount(row, minlength=batch.size),
        regret=np.full(batch.size, np.nan) if at is None else 1 - plan.accept_length[at] / cells.cycle_ms[:, at] / top,
        present_tied=np.zeros(batch.size, dtype=bool) if at is None else cells.tied[:, at].copy(),
        pays=pays,
        loses=loses,
        undecided=with_baseline - pays - loses,
        without_baseline=answered - with_baseline,
        not_identified=open_cells,
        infeasible=(cells.cycle_ms > plan.most * decode.value[:, None]).sum(axis=1),
        extrapolated=cells.extrapolated.sum(axis=1),
    )


def _mark_ties(
    tied: BoolArray, plan: Plan, best: IntArray, spread: _Spread, readings: list[_Reading], batch: FloatArray
) -> None:
    """Mark the cells, by (batch, configuration), whose throughput may equal the best's by any reading.

    By the triangle inequality only cells whose interval comes as far as the best's can be, so only those are
    looked at in `_may_equal_best`.
    """
    half_width, rows = quantile(plan.model.noise.residual_dof), np.arange(batch.size)
    longest = _longest(plan, best)
    tied[...] = False
    for reading, least, variance in zip(readings, spread.least, spread.variance, strict=True):
        top = plan.cycle_estimate(reading.cells(plan.width_of[best], rows), batch, best, reading.setting)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # near 0: no limit, each cell is looked at
            reach = half_width * np.sqrt(top.variance(plan.model.covariance_matrix)) / top.value
            limit = top.value * np.exp(reach) / plan.accept_length[best] * (1 + _ROUNDING)
        limit = np.where(top.value > 0, limit, -np.inf)  # a reading by which the best takes no time ties nothing
        row, column = np.nonzero(least <= limit[:, None] * longest)
        same = _may_equal_best(plan, reading, batch, top, (row, column), variance[row, column], best[row])
        tied[row[same], column[same]] = True


def _longest(plan: Plan, best: IntArray) -> FloatArray:
    """Accept lengths with the benefit of the law's doubt against the best's, by configuration or (batch, configuration)."""
    if plan.lengths is None:
        return plan.accept_length
    distinct, which = np.unique(best, return_inverse=True)
    apart = plan.lengths.square_apart(distinct[:, None], np.arange(plan.accept_length.size))
    longest: FloatArray = (plan.accept_length * np.exp(np.sqrt(apart)))[which]
    return longest


def _may_equal_best(
    plan: Plan,
    reading: _Reading,
    batch: FloatArray,
    top: Estimate,
    at: tuple[IntArray, IntArray],
    variance: FloatArray,
    best: IntArray,
) -> BoolArray:
    """Where log C − log C* − log(L/L*) is within the half-width of its interval (eq. 11).

    Its variance is jointly var C/C² − 2·cov(C, C*)/(C·C*) + var C*/C*²: what both cells share cancels. So it does in
    log(L/L*), whose own half-width joins in squares where the law does not know it.
    """
    row, column = at
    width = plan.width_of[column]
    left = left_of(plan, reading.gradient, batch, top.gradient)
    beside = left[0, :, 1:] @ plan.right_linear[1:]
    shared = left[width, row, 0] + beside[row, column]
    cycle = reading.value[width, row] + plan.rest_ms(batch[row], column, reading.setting)
    times = cycle / top.value[row]
    joint = variance - 2 * times * shared + times**2 * top.variance(plan.model.covariance_matrix)[row]
    reach = quantile(plan.model.noise.residual_dof) * np.sqrt(np.maximum(joint, 0.0)) / cycle
    if plan.lengths is not None:
        reach = np.sqrt(reach**2 + plan.lengths.square_apart(best, column))
    with np.errstate(invalid="ignore", divide="ignore"):  # a reading far from its pair can go below 0: it ties nothing
        tied: BoolArray = (
            np.log(times) - np.log(plan.accept_length[column] / plan.accept_length[best]) <= reach + _ROUNDING
        )
    return tied


def _listed(row: IntArray, column: IntArray, rate: FloatArray, batches: int) -> IntArray:
    """The fastest LISTED tied cells of each batch size, padded with −1."""
    listed = np.full((batches, LISTED), -1, dtype=np.int64)
    order = np.lexsort((column, -rate[row, column], row))
    row, column = row[order], column[order]
    rank = np.arange(row.size) - np.searchsorted(row, row)
    kept = rank < LISTED
    listed[row[kept], rank[kept]] = column[kept]
    return listed
