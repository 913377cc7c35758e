"""Maps of a sweep: data in, Figure out; light is good, and every cell is either answered, hatched or blank."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from specsim.cost.model import CostModel
from specsim.errors import NotIdentifiedError
from specsim.quantities import LEVEL, BoolArray, FloatArray
from specsim.report.accept import law_text
from specsim.report.sweep import law_of
from specsim.sweep import BreakEvenMap, Sweep, TopkMap, best_topk_map, break_even_map

KINDS = ("map", "break-even-map")
GREYS = LinearSegmentedColormap.from_list("greys", ("0.28", "0.97"))  # neither end is that of a line or a blank
_MOST_NUMBERS = 14  # columns of which each has room for a number
_MOST_DIGITS = 40  # columns of which each has room for a topk
_HALO = [withStroke(linewidth=4.5, foreground="white")]


def drawings(model: CostModel, found: Sweep, kinds: Sequence[str]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The named maps of a sweep that kept its cells, each drawn when called."""
    draw = {"map": speedup_map_figure, "break-even-map": break_even_map_figure}
    for kind in kinds:
        yield kind, lambda kind=kind: draw[kind](model, found)  # type: ignore[misc]


def map_notes(model: CostModel, found: Sweep) -> Iterator[str]:
    """Everything that qualifies a map, in sentences."""
    yield from model.notes
    yield from found.law_notes
    yield from (f"NCCL {label}: {why}" for label, why in found.no_baseline.items())
    yield from (f"MIXED, NCCL {label}: {why}" for label, why in found.mixed_baseline.items())
    yield from (f"NCCL {each.nccl}: {each.why}" for each in found.unanswered)


# -- the best topk by steps and draft tokens -------------------------------------------------------------------------


def speedup_map_figure(
    model: CostModel, found: Sweep, *, nccl: str | None = None, batch_size: int | None = None
) -> Figure:
    """Speed-up (eq. 7) by num_steps and num_draft_tokens at the best topk of each, which stands in its cell.

    At the setting and batch size stated, else at those of the best of all; throughput where nothing has a baseline.
    Framed is the best, dotted what cannot be told from it, the line parts what is faster from what is slower than
    plain decode. Raises NotIdentifiedError when nothing is answered there.
    """
    setting, batch = found.place(nccl, batch_size)
    quantity = "speedup" if np.isfinite(found.decode_ms[setting, batch]) else "output_tok_s"
    label, size = found.axes.nccl[setting], found.axes.batch_size[batch]
    drawn = best_topk_map(found, quantity, nccl=label, batch_size=size)
    if not np.isfinite(drawn.values).any():
        raise NotIdentifiedError(f"NCCL {label}, batch size {size}: no cell is answered there")
    figure, (axes,) = _new_figure([len(drawn.num_steps)], len(drawn.num_draft_tokens))
    _draw_topk_map(axes, drawn, quantity)
    _name_axes(axes, drawn.num_draft_tokens, drawn.num_steps)
    axes.set(
        xlabel="num_draft_tokens (root included)",
        ylabel="num_steps",
        title=f"{_QUANTITIES[quantity]}, NCCL {label}, batch size {size}",
    )
    missing = [f"no speed-up: {found.no_baseline[label]}"] if quantity != "speedup" else []
    _explain(axes, [*_topk_words(drawn, quantity), *missing, *_words(model, found)], _topk_legend(drawn, quantity))
    return figure


_QUANTITIES = {"speedup": "Speed-up at the best topk", "output_tok_s": "Throughput at the best topk (no baseline)"}
_BARS = {"speedup": "speed-up (L·t/C)", "output_tok_s": "output_tok_s"}


def _draw_topk_map(axes: Axes, drawn: TopkMap, quantity: str) -> None:
    values, columns = drawn.values, len(drawn.num_draft_tokens)
    scale = _shaded(axes, values, Normalize(np.nanmin(values), np.nanmax(values)))
    if quantity == "speedup":
        _part(axes, _edges(values >= 1, np.isfinite(values)))
    for row, column in np.argwhere(np.isfinite(values)).tolist():
        number, topk = f"{values[row, column]:.{2 if quantity == 'speedup' else 0}f}", drawn.topk[row, column]
        if columns <= _MOST_NUMBERS:
            _write(axes, scale, (row, column), values, f"{number}\nk {topk}", 7.5)
        elif columns <= _MOST_DIGITS:
            _write(axes, scale, (row, column), values, str(topk), 6.5)
        if drawn.tied[row, column]:
            axes.plot(column + 0.36, row + 0.34, "o", color="black", markersize=3, markeredgecolor="white",
                      markeredgewidth=0.5, gid="tied")  # fmt: skip
    row, column = _best(drawn)
    axes.add_patch(
        Rectangle(
            (column - 0.5, row - 0.5),
            1,
            1,
            fill=False,
            linewidth=2.4,
            path_effects=_HALO,
            zorder=5,
            clip_on=False,
            gid="best",
        )
    )
    axes.figure.colorbar(scale, ax=axes, label=_BARS[quantity], aspect=15, pad=0.01)


def _best(drawn: TopkMap) -> tuple[int, int]:
    row, column = divmod(int(np.nanargmax(drawn.values)), drawn.values.shape[1])
    return row, column


def _topk_legend(drawn: TopkMap, quantity: str) -> list[Line2D | Patch]:
    row, column = _best(drawn)
    spec = f"{drawn.num_steps[row]}/{drawn.topk[row, column]}/{drawn.num_draft_tokens[column]}"
    value = f"{drawn.values[row, column]:.{3 if quantity == 'speedup' else 1}f}"
    handles: list[Line2D | Patch] = [
        Patch(
            facecolor="none", edgecolor="black", linewidth=2.4, label=f"best: steps/topk/draft tokens {spec}, {value}"
        ),
        Line2D([], [], color="black", marker="o", markersize=3, linestyle="", label="cannot be told from the best"),
    ]
    if quantity == "speedup" and _edges(drawn.values >= 1, np.isfinite(drawn.values)):
        handles.append(Line2D([], [], color="black", linewidth=2, label="speed-up 1: lighter pays"))
    return handles


def _topk_words(drawn: TopkMap, quantity: str) -> Iterator[str]:
    cells = int(np.isfinite(drawn.values).sum())
    if quantity == "speedup":
        yield f"{int((drawn.values >= 1).sum())} of the {cells} cells reach speed-up 1"
    few = len(drawn.num_draft_tokens)
    inside = "digits: the best topk; " if _MOST_NUMBERS < few <= _MOST_DIGITS else ""
    yield f"{inside}blank: not legal, or not identified by the runs"
    beyond = int(drawn.extrapolated.sum())
    if beyond:
        yield _extrapolated(beyond, cells)


def _extrapolated(beyond: int, cells: int) -> str:
    return f"EXTRAPOLATED: {beyond} of the {cells} cells lie outside what was measured"


# -- the rate that is needed, by batch size and steps ------------------------------------------------------------------


def break_even_map_figure(model: CostModel, found: Sweep, *, nccl: str | None = None) -> Figure:
    """The acceptance rate that chains need to break even (eq. 9) by batch size and num_steps, a panel per NCCL setting.

    The line parts where the law's accept length suffices; hatched is what no accept length breaks even. Raises
    NotIdentifiedError when no setting has a like-for-like baseline.
    """
    labels = found.axes.nccl if nccl is None else (nccl,)
    every = {label: break_even_map(found, nccl=label) for label in labels}
    maps = {label: drawn for label, drawn in every.items() if np.isfinite(drawn.cost_ratio).any()}
    if not maps:
        raise NotIdentifiedError(
            next((found.no_baseline[n] for n in labels if n in found.no_baseline), "nothing to map")
        )
    first = next(iter(maps.values()))
    figure, panels = _new_figure([len(first.batch_size)] * len(maps), len(first.num_steps))
    least = min((np.nanmin(each.required_accept_rate[_told(each)], initial=1.0) for each in maps.values()), default=1.0)
    span = Normalize(least, 1)
    for axes, (label, drawn) in zip(panels, maps.items(), strict=True):
        scale = _draw_break_even_map(axes, drawn, span)
        _name_axes(axes, drawn.num_steps, drawn.batch_size)
        axes.set(ylabel="batch_size", title=f"Acceptance rate a chain needs to break even, NCCL {label}")
        axes.title.set_fontsize("medium")
    has = [f"{steps}\n{rate:.2f}" for steps, rate in zip(first.num_steps, first.accept_rate, strict=True)]
    stride = max(1, -(-len(has) // _MOST_NUMBERS))
    panels[-1].set_xticks(range(0, len(has), stride), has[::stride])
    panels[-1].set_xlabel("num_steps, and under it the rate that the law of acceptance gives there")
    figure.colorbar(scale, ax=panels, label="rate needed", aspect=15, pad=0.01)
    missing = [f"NCCL {n}: {found.no_baseline[n]}" for n in labels if n in found.no_baseline and n not in maps]
    words = [*_need_words([*maps.values()]), *missing, *_words(model, found)]
    _explain(panels[-1], words, _need_legend([*maps.values()]))
    return figure


def _draw_break_even_map(axes: Axes, drawn: BreakEvenMap, span: Normalize) -> ScalarMappable:
    rates, known = drawn.required_accept_rate, np.isfinite(drawn.cost_ratio)
    scale = _shaded(axes, rates, span, GREYS.reversed())
    _part(axes, _edges(_suffices(drawn), known))
    for row, column in np.argwhere(known).tolist():
        if np.isnan(rates[row, column]):
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="white", edgecolor="0.4", hatch="xxx", linewidth=0.4,
                          gid="infeasible")
            )  # fmt: skip
        elif len(drawn.num_steps) <= _MOST_NUMBERS:
            doubt = "?" if drawn.undecided[row, column] else ""
            _write(axes, scale, (row, column), rates, f"{rates[row, column]:.2f}{doubt}", 8)
    return scale


def _need_legend(maps: Sequence[BreakEvenMap]) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    if any(_edges(_suffices(each), np.isfinite(each.cost_ratio)) for each in maps):
        handles.append(
            Line2D([], [], color="black", linewidth=2, label="the law's rate: it suffices on the lighter side")
        )
    if any((np.isfinite(each.cost_ratio) & np.isnan(each.required_accept_rate)).any() for each in maps):
        handles.append(Patch(facecolor="white", edgecolor="0.4", hatch="xxx", label="no accept length breaks even"))
    return handles


def _need_words(maps: Sequence[BreakEvenMap]) -> Iterator[str]:
    if len(maps[0].num_steps) <= _MOST_NUMBERS and any((each.undecided & _told(each)).any() for each in maps):
        yield f"?: the law's length and the need cannot be told apart at the {LEVEL:.0%} level"
    answered = [np.isfinite(each.cost_ratio) for each in maps]
    cells = sum(int(known.sum()) for known in answered)
    yield f"the law's rate suffices in {sum(int(_suffices(each).sum()) for each in maps)} of the {cells} cells"
    if any(np.isnan(each.cost_ratio).any() for each in maps):
        yield "blank: no like-for-like baseline, or not identified by the runs"
    beyond = sum(int((each.extrapolated & known).sum()) for each, known in zip(maps, answered, strict=True))
    if beyond:
        yield _extrapolated(beyond, cells)


def _suffices(drawn: BreakEvenMap) -> BoolArray:
    return _told(drawn) & (drawn.required_accept_rate <= drawn.accept_rate)


def _told(drawn: BreakEvenMap) -> BoolArray:
    return np.isfinite(drawn.required_accept_rate)


# -- cells, lines and words --------------------------------------------------------------------------------------------


def _new_figure(rows: Sequence[int], columns: int) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each number of rows, cells about as high as they are wide."""
    height = sum(0.5 + min(max(0.36 * each, 0.5), 6.0) for each in rows)
    figure = Figure(figsize=(min(4.5 + 0.45 * columns, 10), 0.6 + height), layout="constrained")
    panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=list(rows))
    return figure, [*panels[:, 0]]


def _shaded(axes: Axes, values: FloatArray, span: Normalize, greys: Colormap = GREYS) -> ScalarMappable:
    """Cells in greys, nothing where there is no value."""
    axes.set(xlim=(-0.5, values.shape[1] - 0.5), ylim=(-0.5, values.shape[0] - 0.5))
    edges = (np.arange(count + 1) - 0.5 for count in values.shape[::-1])
    drawn = np.ma.masked_invalid(values)
    return axes.pcolormesh(*edges, drawn, cmap=greys, norm=span, edgecolors="white", linewidth=0.4)


def _edges(pays: BoolArray, known: BoolArray) -> list[list[tuple[float, float]]]:
    """The edges between cells that pay and their neighbours that do not."""
    edges = []
    for down, right in ((1, 0), (0, 1)):
        rows, columns = pays.shape[0] - down, pays.shape[1] - right
        differ = (pays[:rows, :columns] != pays[down:, right:]) & known[:rows, :columns] & known[down:, right:]
        for row, column in np.argwhere(differ).tolist():
            x, y = (column - 0.5, row + 0.5) if down else (column + 0.5, row - 0.5)
            edges.append([(x, y), (x + down, y + right)])
    return edges


def _part(axes: Axes, edges: list[list[tuple[float, float]]]) -> None:
    for width, colour in ((4.5, "white"), (2.0, "black")):  # all of the halo first, so that it cuts no line
        axes.add_collection(
            LineCollection(edges, colors=colour, linewidths=width, capstyle="projecting", gid=f"even {colour}")
        )


def _write(axes: Axes, scale: ScalarMappable, at: tuple[int, int], values: FloatArray, words: str, size: float) -> None:
    """Words in a cell, dark on light and light on dark."""
    shade = scale.to_rgba(values[at])[0]
    axes.text(
        at[1], at[0], words, ha="center", va="center", fontsize=size, color="black" if shade > 0.55 else "white",
        linespacing=0.95,
    )  # fmt: skip


def _name_axes(axes: Axes, columns: Sequence[int], rows: Sequence[int]) -> None:
    for axis, values in ((axes.xaxis, columns), (axes.yaxis, rows)):
        every = max(1, -(-len(values) // _MOST_DIGITS))
        axis.set_ticks(range(0, len(values), every), [str(value) for value in values[::every]], fontsize="small")
        axis.set_tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _words(model: CostModel, found: Sweep) -> Iterator[str]:
    """What the map rests on: the law, what that leaves open, the noise, and what is not like for like."""
    law = law_of(found)
    known = "they count as known" if law["law_known"] else f"{LEVEL:.0%} intervals"
    yield f"accept lengths: {law_text(law)}; {known}"
    yield from found.law_notes
    bound = [label for label in found.axes.nccl if model.lower_bound(label)]
    if bound:
        yield f"cycles under NCCL {', '.join(bound)} are lower bounds: speed-ups at most, rates needed at least"
    yield f"timing noise {model.noise.relative:.1%}, {'assumed' if model.noise.assumed else 'from residuals'}"
    if model.mixed:
        yield f"MIXED in {', '.join(model.mixed)}"
    yield from (f"MIXED, NCCL {label}: {why}" for label, why in found.mixed_baseline.items())


def _explain(axes: Axes, words: Sequence[str], handles: Sequence[Line2D | Patch]) -> None:
    """The legend and what the map rests on, under the axes."""
    below = -30.0 - 12.0 * axes.get_xticklabels()[0].get_text().count("\n")
    lines = [line for each in words for line in textwrap.wrap(each, 125)]
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + 0.3 + 0.12 * len(lines))  # the layout makes room for them
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, 0), borderaxespad=-below / 8 + 0.9, ncols=3, fontsize="small",
        frameon=False, handlelength=1.6,
    )  # fmt: skip
    axes.annotate(
        "\n".join(lines), (0, 0), xytext=(0, below - 26), xycoords="axes fraction", textcoords="offset points", va="top",
        fontsize="x-small", color="0.3",
    )  # fmt: skip
