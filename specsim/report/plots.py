"""Plots: data in, Figure out; readable in grey, nothing drawn that is not labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from specsim.breakeven import BreakEven, break_even
from specsim.cost.model import CostModel, MeasuredConfiguration, NcclSetting
from specsim.cost.terms import PHASES
from specsim.errors import ConfigurationError, MixedSetupError, NotIdentifiedError
from specsim.methods import method_named
from specsim.prediction import Prediction, predict
from specsim.quantities import LEVEL, FloatArray, IntArray, SpecConfig, Workload
from specsim.questions import Asked, Case, cases

COLOURS, DASHES, MARKERS = ("black", "dimgrey", "grey", "darkgrey"), ("-", "--", "-.", ":"), "os^Dv<>p"
PHASE_FILLS = {"verify": ("0.30", ""), "draft": ("0.60", "//"), "extend": ("0.80", ".."), "other": ("0.95", "xx")}
FORMATS = ("png", "svg")
Panel = tuple[Case, Prediction]


@dataclass(frozen=True)
class _Curve:
    """One NCCL setting's line of chains, and what was measured of it: widths, and trees with what they need."""

    nccl: str
    answer: BreakEven
    measured: frozenset[int]
    trees: tuple[tuple[int, float], ...]


def break_even_figure(model: CostModel, asked: Asked) -> Figure:
    """Break-even accept length against draft tokens for chains, a line per NCCL setting (eq. 7).

    Shows the interval, the widths and trees that were measured, the accept lengths that were, and what is not
    possible; the line is thick between measured widths only. Raises NotIdentifiedError or MixedSetupError when no
    setting can be drawn.
    """
    batch = asked.batch_size or _one_batch(model)
    here = [m for m in model.measured if m.batch_size == batch]
    widths = np.arange(2, max(9, int(max((m.num_draft_tokens for m in here), default=6) * 1.5)) + 1)
    curves = _curves(model, asked, widths, batch)
    figure, axes = _new_figure()
    for curve, style in zip(curves, _styles(len(curves)), strict=True):
        _draw_curve(axes, widths, curve, style)
    top = max(float(np.nanmax(curve.answer.cost_ratio)) for curve in curves) * 1.25
    limit = curves[0].answer.max_accept_length
    top = max(top, 3.0)
    axes.fill_between(
        widths,
        limit,
        np.maximum(limit, top), facecolor="none",
                      edgecolor="0.7", hatch="//", linewidth=0.5, label=f"not possible (above {_limit_name(model)})")  # fmt: skip
    _draw_measured_lengths(axes, here)
    bound = ": at least" if any(curve.answer.times.lower_bound for curve in curves) else ""
    axes.set(
        xlabel="num_draft_tokens (chain, root included)",
        ylabel="accept length (bonus included)",
        title=f"Accept length needed to break even{bound}, batch size {batch}",
        ylim=(1, top),
    )
    _finish(axes, model, f"bands: {LEVEL:.0%} interval; thick: between measured widths")
    return figure


def cycle_figure(model: CostModel, panels: Sequence[Panel]) -> Figure:
    """The phases of each case's cycle as stacked bars, its plain decode step beside it (eq. 1)."""
    figure, axes = _new_figure(height=1.6 + 0.55 * len(panels))
    for row, (_, answer) in enumerate(panels):
        _draw_bar(axes, model, row, answer)
    axes.set_yticks(range(len(panels)), [_bar_name(case) for case, _ in panels])
    axes.invert_yaxis()
    axes.set(xlabel="time [ms]", title="One speculative cycle by phases", xlim=(0, _widest(panels) * 1.25))
    _footnote(axes, model, f"whiskers: {LEVEL:.0%} interval of the cycle")
    handles = {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    axes.legend(
        handles.values(),
        handles.keys(),
        ncols=5,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=5.5,
        frameon=False,
    )
    return figure


def throughput_figure(model: CostModel, asked: Asked, spec: SpecConfig) -> Figure:
    """Throughput against accept length, a line per NCCL setting, with baselines and crossings marked (eq. 6, 7)."""
    batch = asked.batch_size or _one_batch(model)
    if spec.max_accept_length == 1:
        raise ConfigurationError("a cycle without drafts has an accept length of 1: there is no curve to draw")
    lengths = np.linspace(1, float(spec.max_accept_length), 60)
    labels = [asked.nccl] if asked.nccl else [s.label for s in _with_cycles(model)]
    figure, axes = _new_figure()
    for label, style in zip(labels, _styles(len(labels)), strict=True):
        answer = predict(model, spec, Workload(batch), lengths, label)
        _draw_throughput(axes, lengths, answer, style)
    axes.set(
        xlabel="accept length (bonus included)",
        ylabel="output_tok_s",
        xlim=(1, float(spec.max_accept_length)),
        title=f"Throughput at {spec.num_draft_tokens} draft tokens, batch size {batch}",
    )
    _finish(axes, model, f"bands: {LEVEL:.0%} interval; ring: break-even")
    return figure


# -- break-even ------------------------------------------------------------------------------------------------------


def _curves(model: CostModel, asked: Asked, widths: IntArray, batch: int) -> list[_Curve]:
    """Every setting that can be drawn; raises the first reason when none can."""
    drawn, failed = [], None
    for setting in model.settings:
        if asked.nccl not in (None, setting.label):
            continue
        try:
            answer = break_even(model, _chains(model, widths), Workload(batch), setting.label)
        except (MixedSetupError, NotIdentifiedError) as error:
            failed = failed or error
            continue
        here = [m for m in model.measured if (m.nccl, m.batch_size) == (setting.label, batch)]
        chains = frozenset(m.num_draft_tokens for m in here if m.topk == 1)
        drawn.append(_Curve(setting.label, answer, chains, tuple(_trees(model, here))))
    if not drawn:
        model.setting(asked.nccl or model.reference)
        raise failed or NotIdentifiedError("no NCCL setting can be drawn")
    return drawn


def _chains(model: CostModel, widths: IntArray) -> SpecConfig:
    """The chains of the method that was run; a drafter with dummy steps has none to state."""
    method = _method(model)
    steps = widths - 1 if method_named(method).steps_bound_length else np.ones_like(widths)
    return SpecConfig(steps, 1, widths, method)


def _method(model: CostModel) -> str:
    return model.measured[0].method if model.measured else "eagle"


def _limit_name(model: CostModel) -> str:
    return "num_steps + 1" if method_named(_method(model)).steps_bound_length else "num_draft_tokens"


def _trees(model: CostModel, here: Sequence[MeasuredConfiguration]) -> Iterator[tuple[int, float]]:
    """Width and need of every tree that was measured."""
    for m in here:
        if m.topk > 1:
            spec = SpecConfig(m.num_steps, m.topk, m.num_draft_tokens, m.method)
            yield m.num_draft_tokens, float(break_even(model, spec, Workload(m.batch_size), m.nccl).cost_ratio)


def _draw_curve(axes: Axes, widths: IntArray, curve: _Curve, style: tuple[str, str, str]) -> None:
    colour, line, marker = style
    ratio = np.asarray(curve.answer.cost_ratio)
    low, high = (np.asarray(end) for end in curve.answer.interval)
    axes.fill_between(widths, low, np.where(np.isfinite(high), high, ratio), color=colour, alpha=0.12, linewidth=0)
    axes.plot(widths, ratio, color=colour, linestyle=line, linewidth=1.0, label=f"needed, NCCL {curve.nccl}")
    at = np.isin(widths, list(curve.measured))
    between = np.maximum.accumulate(at) & np.maximum.accumulate(at[::-1])[::-1]
    axes.plot(widths, np.where(between, ratio, np.nan), color=colour, linestyle=line, linewidth=2.4)
    if at.any():
        axes.plot(widths[at], ratio[at], marker, color=colour, markersize=8, label=f"measured, NCCL {curve.nccl}")
    if curve.trees:
        axes.plot(*zip(*curve.trees, strict=True), marker, color="white", markeredgecolor=colour, markersize=8,
                  label=f"measured tree, NCCL {curve.nccl}")  # fmt: skip


def _draw_measured_lengths(axes: Axes, here: Sequence[MeasuredConfiguration]) -> None:
    seen = [(m.num_draft_tokens, m.accept_length) for m in here if m.accept_length is not None]
    if seen:
        axes.plot(
            *zip(*seen, strict=True), "*", color="white",
            markeredgecolor="black", markersize=14, label="accept length measured",
        )  # fmt: skip


# -- cycle -------------------------------------------------------------------------------------------------------------


def _draw_bar(axes: Axes, model: CostModel, row: int, answer: Prediction) -> None:
    left = 0.0
    timed = "verify" in model.measured_phases
    told = {coefficient.phase for coefficient in model.coefficients}
    parts = {p: float(getattr(answer.times, f"{p}_ms")) for p in PHASES if p in told}
    whole = float(answer.times.cycle_ms)
    # eq. 17 may move what has no term of its own, and save more of a phase than it has
    apart = timed and np.isclose(sum(parts.values()), whole) and min(parts.values()) >= 0
    for phase, length in (parts if apart else {"cycle": whole}).items():
        shade, hatch = PHASE_FILLS.get(phase, ("0.5", ""))
        axes.barh(row, length, 0.55, left=left, color=shade, hatch=hatch, edgecolor="black", linewidth=0.6, label=phase)
        left += length
    low, high = (float(end) for end in answer.times.cycle_interval)
    axes.errorbar(left, row, xerr=[[max(left - low, 0)], [max(high - left, 0)]], color="black", capsize=3, linewidth=1)
    axes.annotate(f"{left:.2f}", (high, row), xytext=(6, 0), textcoords="offset points", va="center")
    if np.isfinite(answer.decode_ms):
        axes.plot([float(answer.decode_ms)] * 2, [row - 0.4, row + 0.4], color="black", linestyle=":", linewidth=2.4,
                  label="plain decode step")  # fmt: skip


def _bar_name(case: Case) -> str:
    shape = f"{case.spec.num_draft_tokens} tokens" + (f", topk {case.spec.topk}" if case.spec.topk != 1 else "")
    return f"{case.nccl}\n{shape}, batch {case.batch_size}"


def _widest(panels: Sequence[Panel]) -> float:
    return max(float(answer.times.cycle_interval[1]) for _, answer in panels)


# -- throughput ----------------------------------------------------------------------------------------------------------


def _draw_throughput(axes: Axes, lengths: FloatArray, answer: Prediction, style: tuple[str, str, str]) -> None:
    colour, line, _ = style
    axes.fill_between(lengths, *answer.output_tok_s_interval, color=colour, alpha=0.12, linewidth=0)
    axes.plot(
        lengths,
        answer.output_tok_s,
        color=colour,
        linestyle=line,
        linewidth=2,
        label=f"speculative, NCCL {answer.nccl}",
    )
    baseline = float(np.asarray(answer.baseline_tok_s).flat[0])
    if not np.isfinite(baseline):
        return
    crossing = float(np.asarray(answer.times.cycle_ms / answer.decode_ms).flat[0])
    inside = lengths[0] <= crossing <= lengths[-1]
    where = f"break-even at {crossing:.2f}" if inside else "no break-even here"
    label = f"plain decode, NCCL {answer.nccl}: {where}"
    axes.axhline(baseline, color=colour, linestyle=line, linewidth=0.9, label=label)
    if inside:
        axes.plot([crossing], [baseline], "o", color="white", markeredgecolor=colour, markeredgewidth=2, markersize=9)


# -- figures and files -------------------------------------------------------------------------------------------------


def drawings(model: CostModel, asked: Asked, kinds: Sequence[str]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The named plots of a question, each drawn when called."""
    for kind in kinds:
        if kind == "break-even":
            yield kind, lambda: break_even_figure(model, asked)
        elif kind == "cycle":
            yield kind, lambda: cycle_figure(model, _panels(model, asked))
        else:
            yield kind, lambda: throughput_figure(model, asked, _widest_spec(model, asked))


def _panels(model: CostModel, asked: Asked) -> list[Panel]:
    panels, failed = [], None
    for case in cases(model, asked):
        try:
            panels.append((case, predict(model, case.spec, case.workload, 1.0, case.nccl)))
        except NotIdentifiedError as error:
            failed = failed or error
    if not panels:
        raise failed or NotIdentifiedError("nothing to draw")
    return panels


def _widest_spec(model: CostModel, asked: Asked) -> SpecConfig:
    return max((case.spec for case in cases(model, asked)), key=lambda spec: int(spec.num_draft_tokens))


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix; the same data give the same bytes."""
    FigureCanvasAgg(figure)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "specsim"}):
        figure.savefig(path, dpi=150, metadata=metadata, bbox_inches="tight")


def _new_figure(height: float = 4.8) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, height), layout="constrained")
    return figure, figure.add_subplot()


def _finish(axes: Axes, model: CostModel, footnote: str) -> None:
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(fontsize="small", frameon=False)
    _footnote(axes, model, footnote)


def _footnote(axes: Axes, model: CostModel, text: str) -> None:
    """What the intervals rest on, under the axis label."""
    noise = f"timing noise {model.noise.relative:.1%}, {'assumed' if model.noise.assumed else 'from residuals'}"
    mixed = f"; MIXED in {', '.join(model.mixed)}" if model.mixed else ""
    axes.annotate(
        f"{text}; {noise}{mixed}", (0, 0), xytext=(0, -46), xycoords="axes fraction", textcoords="offset points",
        fontsize="x-small", color="0.3",
    )  # fmt: skip


def _with_cycles(model: CostModel) -> list[NcclSetting]:
    return [setting for setting in model.settings if setting.verify_tokens]


def _one_batch(model: CostModel) -> int:
    return min((m.batch_size for m in model.measured), default=1)


def _styles(count: int) -> list[tuple[str, str, str]]:
    """Colour, dash and marker by line: sixteen that differ in colour or dash, markers that differ in eight."""
    return [(COLOURS[i % 4], DASHES[(i + i // 4) % 4], MARKERS[i % len(MARKERS)]) for i in range(count)]
