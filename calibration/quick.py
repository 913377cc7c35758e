"""From a configuration to a fitted model with its plot: forwards measured, fitted, drawn, and what they cannot tell."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specsim.fitting import Fit, Residual

CANNOT_KNOW = (
    "what a server does beside forwards (scheduling, input preparation, sampling kernels, acceptance) was not measured:"
    " on one H200 vLLM's cycles of an 8B model took up to 0.65 ms longer than their forwards, 0 to 10% of a cycle"
    " (python -m benchmarks.calibration_gap)",
    "another engine's kernels: attention, fused steps and expert products here are the harness's own",
    "the accept length: it is the drafter's and the prompts', and no timing tells it",
)
"""What a model of bare forwards leaves open, and how large that was where it was measured."""


def fit_figure(fitted: Fit) -> Figure:
    """Measured figures over the fitted ones by tokens, a colour a phase, and what is left of each in percent."""
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 1), layout="constrained")
    for index, (phase, rows) in enumerate(_by_phase(fitted.residuals).items()):
        tokens = [row.verify_tokens for row in rows]
        top.plot(
            tokens, [row.measured_ms for row in rows], "o", color=f"C{index}", markersize=4, label=f"{phase}, measured"
        )
        top.plot(tokens, [row.fitted_ms for row in rows], "_", color="black", markersize=9)
        bottom.plot(tokens, [100 * row.relative for row in rows], "o", color=f"C{index}", markersize=3)
    top.set(xscale="log", yscale="log", ylabel="time [ms]", title="bare forwards and their fit (black)")
    bottom.set(ylabel="left [%]", xlabel="verify tokens of the run (plain decode: requests)")
    bottom.axhline(0, color="grey", linewidth=0.8)
    top.legend()
    return figure


def _by_phase(residuals: Iterable[Residual]) -> dict[str, list[Residual]]:
    found: dict[str, list[Residual]] = {}
    for residual in residuals:
        found.setdefault(" + ".join(residual.phases), []).append(residual)
    return found


def model_of(runs_file: Path, folder: Path) -> dict[str, Any]:
    """Fit a file of forwards; writes model.json and fit.png beside it, and says where."""
    from specsim import fit, load_runs

    fitted = fit(load_runs(runs_file), allow_mixed=True)  # where noise hides what the contexts cost: labelled, not lost
    paths = {"model": folder / "model.json", "plot": folder / "fit.png"}
    fitted.model.save(paths["model"])
    fit_figure(fitted).savefig(paths["plot"], dpi=110)
    mixed = (
        [f"MIXED in {', '.join(fitted.model.mixed)}: these runs do not tell what it costs"]
        if fitted.model.mixed
        else []
    )
    return {**paths, "notes": [*mixed, *fitted.model.notes]}
