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
from specsim.cost.model import CostModel, NcclSetting
from specsim.cost.terms import PHASES
from specsim.errors import MixedSetupError, NotIdentifiedError
from specsim.prediction import Prediction, predict
from specsim.quantities import LEVEL, FloatArray, IntArray, SpecConfig, Workload
from specsim.questions import Asked, Case, cases

LINES = (("black", "-", "o"), ("dimgrey", "--", "s"), ("grey", "-.", "^"), ("darkgrey", ":", "D"))
PHASE_FILLS = {"verify": ("0.30", ""), "draft": ("0.60", "//"), "extend": ("0.80", ".."), "other": ("0.95", "xx")}
FORMATS = ("png", "svg")
Panel = tuple[Case, Prediction]


@dataclass(frozen=True)
class _Curve:
    """One NCCL setting's line: where it was drawn, and the widths at which a cycle was measured under it."""

    nccl: str
    answer: BreakEven
    measured: FloatArray


def break_even_figure(model: CostModel, asked: Asked) -> Figure:
    """Break-even accept length against draft tokens for chains, a line per NCCL setting (eq. 7).

    Shows the interval, the widths that were measured, the accept lengths that were, and the feasible limit;
    beyond the measured range the line is thin. Raises NotIdentifiedError or MixedSetupError when no setting can
    be drawn.
    """
    batch = asked.batch_size or _one_batch(model)
    widths = np.arange(2, max(9, int(model.ranges["verify_tokens"][1] / batch * 1.5)) + 1)
    curves = _curves(model, asked, widths, batch)
    figure, axes = _new_figure()
    for curve, style in zip(curves, _cycled(LINES, len(curves)), strict=True):
        _draw_curve(axes, widths, curve, style)
    axes.plot(widths, widths, color="black", linewidth=0.8, label="most possible (num_steps + 1)")
    _draw_measured_lengths(axes, model, batch)
    top = max(float(np.max(curve.answer.cost_ratio)) for curve in curves)
    axes.set(
        xlabel="num_draft_tokens (chain, root included)",
        ylabel="accept length (bonus included)",
        title=f"Accept length needed to break even, batch size {batch}",
        ylim=(1, max(top * 1.25, 3)),
    )
    _finish(axes, model, f"bands: {LEVEL:.0%} interval; thin: outside the measured widths")
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
    lengths = np.linspace(1, float(spec.max_accept_length), 60)
    labels = [asked.nccl] if asked.nccl else [s.label for s in _with_cycles(model)]
    figure, axes = _new_figure()
    for label, style in zip(labels, _cycled(LINES, len(labels)), strict=True):
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
            answer = break_even(model, SpecConfig(widths - 1, 1, widths), Workload(batch), setting.label)
        except (MixedSetupError, NotIdentifiedError) as error:
            failed = failed or error
            continue
        drawn.append(_Curve(setting.label, answer, np.array(setting.verify_tokens) / batch))
    if not drawn:
        model.setting(asked.nccl or model.reference)
        raise failed or NotIdentifiedError("no NCCL setting can be drawn")
    return drawn


def _draw_curve(axes: Axes, widths: IntArray, curve: _Curve, style: tuple[str, str, str]) -> None:
    colour, line, marker = style
    ratio, outside = np.asarray(curve.answer.cost_ratio), np.asarray(curve.answer.times.extrapolated)
    axes.fill_between(widths, *curve.answer.interval, color=colour, alpha=0.12, linewidth=0)
    axes.plot(widths, ratio, color=colour, linestyle=line, linewidth=0.9)
    axes.plot(
        widths,
        np.where(outside, np.nan, ratio),
        color=colour,
        linestyle=line,
        linewidth=2.2,
        label=f"needed, NCCL {curve.nccl}",
    )
    at = np.isin(widths, curve.measured)
    axes.plot(widths[at], ratio[at], marker, color=colour, markersize=8, label=f"measured width, {curve.nccl}")


def _draw_measured_lengths(axes: Axes, model: CostModel, batch: int) -> None:
    chains = [m for m in model.measured if m.topk == 1 and m.batch_size == batch]
    seen = [(m.num_draft_tokens, m.accept_length) for m in chains if m.accept_length is not None]
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
    for phase, length in (parts if timed else {"cycle": float(answer.times.cycle_ms)}).items():
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
            panels.append((case, predict(model, case.spec, Workload(case.batch_size), 1.0, case.nccl)))
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


def _cycled(styles: Sequence[tuple[str, str, str]], count: int) -> list[tuple[str, str, str]]:
    return [styles[index % len(styles)] for index in range(count)]
