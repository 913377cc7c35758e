"""Plots of all-reduce settings: records in, Figure out; readable in grey."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specsim.report.plots import COLOURS, DASHES, MARKERS
from specsim.report.records import Record

_TICKS = (0.5, 1, 2, 5, 10, 20, 50, 100)


def comm_figure(record: Record) -> Figure:
    """Change of verify time against verify width, a line a setting and batch size (eq. 17); the cycle's beside it dotted."""
    figure, axes = _new()
    lines: dict[tuple[str, int], list[Record]] = {}
    for row in record["rows"]:
        lines.setdefault((row["setting"], row["batch_size"]), []).append(row)
    for at, ((setting, batch), rows) in enumerate(lines.items()):
        rows.sort(key=lambda row: int(row["num_draft_tokens"]))
        _draw_change(axes, at, f"{setting}, batch {batch}", rows)
        if record["draft"]:
            widths = [row["num_draft_tokens"] for row in rows]
            axes.plot(widths, [row["cycle_change_ms"] for row in rows], color=COLOURS[at % 4], linestyle=":", linewidth=1,
                      label="whole cycle, drafter included" if at == 0 else None)  # fmt: skip
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(
        xlabel="num_draft_tokens (root included)",
        ylabel="change of verify time [ms]",
        title=f"Verify time against {record['from']}: {record['all_reduces']} all-reduces a forward",
    )
    hollow = any(_extrapolated(row) for row in record["rows"])
    _finish(axes, "hollow: messages or logits outside a table, or a prior" if hollow else "")
    return figure


def _draw_change(axes: Axes, at: int, label: str, rows: list[Record]) -> None:
    colour, dash = COLOURS[at % 4], DASHES[(at + at // 4) % 4]
    widths, changes = [row["num_draft_tokens"] for row in rows], [row["verify_change_ms"] for row in rows]
    marker = MARKERS[at % len(MARKERS)]
    axes.plot(widths, changes, color=colour, linestyle=dash, linewidth=1.6, marker=marker, markersize=6, label=label)
    beyond = [(width, change) for width, change, row in zip(widths, changes, rows, strict=True) if _extrapolated(row)]
    _hollow(axes, beyond, marker, colour, 6)


def _extrapolated(row: Record) -> bool:
    return bool(row["extrapolated"] or row["logits_extrapolated"])


def campaign_comm_figure(record: Record) -> Figure:
    """All of a forward's all-reduce time against tokens: implied, bounded by the whole step, published, by the prior."""
    figure, axes = _new(5.8)
    tokens, difference = record["tokens"], record["difference"]["forward_ms"]
    default, tuned = record["settings"]
    axes.plot(
        tokens,
        difference,
        color="black",
        linewidth=3,
        label=f"here: {default} less {tuned}, a lower bound of {default}",
    )
    for bound, marker in zip(record["whole_step"], "v^", strict=True):
        axes.plot(bound["tokens"], bound["step_ms"], marker, color="black", markersize=9,
                  label=f"here: whole step, {bound['nccl']}, an upper bound")  # fmt: skip
    for at, row in enumerate(record["elsewhere"]):
        _draw_host(axes, at, row, tokens)
    axes.set_yscale("log")
    axes.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.set(
        xlabel="tokens in the forward (1: plain decode)",
        ylabel=f"all {record['all_reduces']} all-reduces of a forward [ms]",
        title=f"What {record['all_reduces']} all-reduces of {record['token_bytes']:,} bytes a token take",
    )
    _finish(
        axes,
        "other hosts' tables are no measurement of this one; hollow: outside a table, or NCCL's own model, too low on some PCIe hosts",
    )
    return figure


def _draw_host(axes: Axes, at: int, row: Record, tokens: list[int]) -> None:
    """Another host's line, or the prior's: hollow where nothing was measured."""
    colour, marker = "0.55" if row["prior"] else COLOURS[at % 2], MARKERS[at % len(MARKERS)]
    label, times = row["label"], row["forward_ms"]
    axes.plot(tokens, times, color=colour, linestyle=DASHES[1 + at % 3], linewidth=1.2, marker=marker, markersize=5,
              markerfacecolor="white" if row["prior"] else colour, label=label)  # fmt: skip
    beyond = [(t, ms) for t, ms in zip(tokens, times, strict=True) if t in row["extrapolated_tokens"]]
    _hollow(axes, beyond, marker, colour, 5)


def _hollow(axes: Axes, points: list[tuple[int, float]], marker: str, colour: str, size: int) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), marker, color="white", markeredgecolor=colour, markersize=size)


def _new(height: float = 4.8) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.5, height), layout="constrained")
    return figure, figure.add_subplot()


def _finish(axes: Axes, footnote: str) -> None:
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.legend(fontsize="x-small", frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    axes.annotate(
        footnote, (0, 0), xytext=(0, -46), xycoords="axes fraction", textcoords="offset points", fontsize="x-small",
        color="0.3",
    )  # fmt: skip
