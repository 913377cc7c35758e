"""An evaluation as a record, and the record as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from specsim.cost.model import CostModel
from specsim.evaluation import COMPARED_FIGURES, Accuracy, Comparison, Evaluation
from specsim.quantities import LEVEL
from specsim.report.records import Record
from specsim.report.tables import number, span, table, wrapped

INTERVAL_OF = "a new measurement: the coefficients' uncertainty and the noise of one measurement"


def evaluation_record(model: CostModel, found: Evaluation) -> Record:
    """An evaluation: the accuracy over all comparisons at the top, of those held out and by figure, and every row."""
    figures = [name for name in COMPARED_FIGURES if any(c.figure == name for c in found.compared)]
    return {
        **asdict(Accuracy.of(found.compared)),
        "held_out": asdict(Accuracy.of(found.held_out)),
        "by_figure": {name: asdict(Accuracy.of(c for c in found.compared if c.figure == name)) for name in figures},
        "rows": [_row(model, each) for each in found.compared],
        "unanswered": [asdict(each) for each in found.unevaluated],
        "interval_level": LEVEL,
        "interval_of": INTERVAL_OF,
        "noise_relative": model.noise.relative,
        "noise_assumed": model.noise.assumed,
        "mixed_setup": bool(found.mixed),
        "mixed_fields": list(found.mixed),
        "setup": asdict(model.setup),
        "notes": list(model.notes),
    }


def _row(model: CostModel, each: Comparison) -> Record:
    beyond = [beyond_text(model, name, each.nccl) for name in each.extrapolated_in]
    shape = asdict(each.spec) if each.spec is not None else dict.fromkeys(_SHAPE)
    return {
        **{name: value for name, value in asdict(each).items() if name != "spec"},
        **{name: shape[name] for name in _SHAPE},
        "difference_pct": each.difference_pct,
        "inside": each.inside,
        "extrapolated": bool(beyond),
        "extrapolated_in": beyond,
    }


_SHAPE = ("num_steps", "topk", "num_draft_tokens")


def beyond_text(model: CostModel, name: str, nccl: str) -> str:
    """What lies outside which measured range, in words (eq. 14)."""
    low, high = model.span(name, nccl)
    if low > high:
        return f"{name} is not stated by any run of the model"
    return f"{name.removeprefix('decode_')} outside the measured {low:g}" + ("" if low == high else f" to {high:g}")


# -- text --------------------------------------------------------------------------------------------------------------


def evaluation_text(record: Record) -> str:
    """Every comparison, the summary under it, and what qualifies both."""
    columns = (
        "run", "NCCL", "draft tokens", "batch", "figure", "measured", "predicted", "difference",
        f"new measurement ({record['interval_level']:.0%})", "inside",
    )  # fmt: skip
    rows = table(columns, [_cells(row) for row in record["rows"]])
    marks = "\n".join(wrapped(f"* {line}", "  ") for line in _labels(record))
    return "\n".join([rows, *_footnotes(record), "", _summary(record), "", marks])


def _cells(row: Record) -> tuple[str, ...]:
    digits = 1 if row["figure"] == "output_tok_s" else 2
    marks = "".join(mark for mark, name in _MARKS.items() if row[name])
    return (
        row["run"] + (f" {marks}" if marks else ""),
        row["nccl"],
        "–" if row["num_draft_tokens"] is None else str(row["num_draft_tokens"]),
        str(row["batch_size"]),
        row["figure"],
        number(row["measured"], digits),
        number(row["predicted"], digits),
        _signed(row["difference_pct"]),
        span(row["interval"], digits),
        "yes" if row["inside"] else "NO",
    )


_MARKS = {"¹": "in_fit", "²": "extrapolated", "³": "implied", "⁴": "mixed_in"}
_MEANINGS = {
    "¹": "the model was fitted to this run: its differences are residuals, not errors of prediction",
    "²": "EXTRAPOLATED, outside what the model's runs cover",
    "³": "derived, not measured",
    "⁴": "MIXED, not like for like with the model",
}


def _footnotes(record: Record) -> Iterator[str]:
    for mark, name in _MARKS.items():
        if any(row[name] for row in record["rows"]):
            yield f"  {mark} {_MEANINGS[mark]}"


def _summary(record: Record) -> str:
    columns = ("figures", "rows", "median", "p95", "max", "bias", "inside")
    named = {"all": record, "held out": record["held_out"], **record["by_figure"]}
    return table(columns, [_summary_cells(name, each) for name, each in named.items()])


def _summary_cells(name: str, each: Record) -> tuple[str, ...]:
    if not each["count"]:
        return (name, "0", *["–"] * 5)
    sizes = (f"{each[key]:.2f}%" for key in ("median_abs_pct", "p95_abs_pct", "max_abs_pct"))
    return (name, str(each["count"]), *sizes, _signed(each["bias_pct"]), f"{each['coverage']:.0%}")


def _signed(percent: float) -> str:
    return f"{round(percent, 2) + 0.0:+.2f}%"  # no minus before a zero


def _labels(record: Record) -> Iterator[str]:
    noise = f"{record['noise_relative']:.2%}{', assumed' if record['noise_assumed'] else ''}"
    yield f"intervals are those of {record['interval_of']} ({noise})"
    yield "differences are (predicted − measured)/measured; medians, p95 and max of their size, bias their mean"
    if not record["held_out"]["count"]:
        yield "no run here was held out: every row is one that the model was fitted to"
    if record["mixed_fields"]:
        yield f"MIXED, not like for like: runs and model differ in {', '.join(record['mixed_fields'])}"
    for where in dict.fromkeys(text for row in record["rows"] for text in row["extrapolated_in"]):
        runs = dict.fromkeys(row["run"] for row in record["rows"] if where in row["extrapolated_in"])
        yield f"EXTRAPOLATED: {where} ({', '.join(runs)})"
    for each in record["unanswered"]:
        yield f"not compared: {each['run']}{_of(each['figures'])}: {each['why']}"
    yield from record["notes"]


def _of(figures: tuple[str, ...]) -> str:
    return f", {', '.join(figures)}" if figures else ""
