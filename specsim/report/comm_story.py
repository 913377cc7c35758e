"""The campaign's 122 all-reduces: what its two NCCL settings imply of each, beside published hosts and the prior."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specsim.cost.allreduce import PRIOR_WARNING, AllReduceCurve, nccl_priors
from specsim.cost.model import CostModel
from specsim.cost.step_change import Shape
from specsim.cost.terms import Cycle
from specsim.quantities import FloatArray, SpecConfig, Workload
from specsim.report.records import Record
from specsim.report.tables import number, table, wrapped
from specsim.runs.allreduce import AllReduceTable
from specsim.runs.run import RunSet

WIDTHS = (1, 2, 3, 4, 6, 8)
MEASURED = (1, 6)
"""Widths [tokens] at which both of the campaign's settings were timed: plain decode, and verify at 6."""


def campaign_comm_record(campaign: RunSet, model: CostModel, published: AllReduceTable) -> Record:
    """What one all-reduce takes at each width [tokens]: implied, bounded by whole steps, published, and by the prior."""
    card = campaign.model_card
    shape = Shape(int(str(card["layers"])), int(str(card["hidden_size"])))
    default, tuned = model.reference, next(s.label for s in model.settings if s.label != model.reference)
    tokens = np.array(WIDTHS, dtype=float)
    steps = {nccl: _step_ms(model, nccl) for nccl in (default, tuned)}
    ranks = int(str(campaign.run("verify-6").setup.gpus))
    record: Record = {
        "all_reduces": shape.all_reduces,
        "target": {"layers": shape.layers, "hidden_size": shape.hidden_size},
        "token_bytes": int(shape.message_bytes(1)),
        "tokens": list(WIDTHS),
        "measured_tokens": list(MEASURED),
        "settings": [default, tuned],
        "difference": _difference(steps[default], steps[tuned], shape, tokens),
        "whole_step": [_whole_step(nccl, steps[nccl], shape) for nccl in (default, tuned)],
        "elsewhere": [
            *(_published(setting.label, setting.sources, setting.curve, shape, tokens) for setting in published.settings()),
            *(_published(p.label, ("NCCL tuning.cc",), p, shape, tokens) for p in nccl_priors("pcie", ranks)),
        ],
    }  # fmt: skip
    for row in record["elsewhere"]:
        row["could_be"] = _could_be(record, row)
    return {**record, "findings": list(_findings(record)), "notes": list(_notes(record, ranks))}


def _step_ms(model: CostModel, nccl: str) -> FloatArray:
    """The whole step [ms] at 1 token (plain decode) and at 6 (verify), as measured."""
    one, six = (Cycle.of(SpecConfig.of(num_draft_tokens=width), Workload(1), None) for width in MEASURED)
    return np.array([model.decode(one, nccl).value[0], model.verify(six, nccl).point.value[0]])


def _difference(default: FloatArray, tuned: FloatArray, shape: Shape, tokens: FloatArray) -> Record:
    """The affine difference of the two settings, spread over the all-reduces (eq. 16, 17)."""
    low, high = (default - tuned) / shape.all_reduces * 1000.0
    per_token = (high - low) / (MEASURED[1] - MEASURED[0])
    fixed = low - per_token * MEASURED[0]
    times = fixed + per_token * tokens
    return {
        "fixed_us": float(fixed),
        "per_token_us": float(per_token),
        "us": times.tolist(),
        "forward_ms": (times * shape.all_reduces / 1000.0).tolist(),
    }


def _whole_step(nccl: str, step: FloatArray, shape: Shape) -> Record:
    """No all-reduce can take more than the whole step over their number."""
    return {"nccl": nccl, "tokens": list(MEASURED), "step_ms": step.tolist(),
            "at_most_us": (step / shape.all_reduces * 1000.0).tolist()}  # fmt: skip


def _published(label: str, sources: tuple[str, ...], curve: AllReduceCurve, shape: Shape, tokens: FloatArray) -> Record:
    message = np.asarray(shape.message_bytes(tokens))
    times = np.asarray(curve.time_us(message))
    return {
        "label": label,
        "prior": label.startswith("prior:"),
        "sources": list(sources),
        "extrapolated_tokens": [int(t) for t in tokens[curve.beyond(message)]],
        "us": times.tolist(),
        "forward_ms": (times * shape.all_reduces / 1000.0).tolist(),
    }


def _at(record: Record, values: list[float]) -> list[float]:
    """The values at the widths that were measured."""
    return [values[record["tokens"].index(width)] for width in MEASURED]


def _could_be(record: Record, row: Record) -> str:
    """Whether another host's all-reduce could be the campaign's, by the bounds of its whole steps."""
    times, least = _at(record, row["us"]), _at(record, record["difference"]["us"])
    default, tuned = (bound["at_most_us"] for bound in record["whole_step"])
    if any(t > most for t, most in zip(times, default, strict=True)):
        return "longer than a whole step here"
    fits = [record["settings"][0]] if all(t >= low for t, low in zip(times, least, strict=True)) else []
    fits += [record["settings"][1]] if all(t <= most for t, most in zip(times, tuned, strict=True)) else []
    return f"could be {' or '.join(fits)}" if fits else "shorter than the difference here"


def _findings(record: Record) -> Iterator[str]:
    """What follows, in sentences whose figures are the record's."""
    default, tuned = record["settings"]
    n, difference = record["all_reduces"], record["difference"]
    low, high = _at(record, difference["forward_ms"])
    bounds = [bound["at_most_us"] for bound in record["whole_step"]]
    yield (
        f"{default} costs {low:.2f} ms more than {tuned} at 1 token (plain decode) and {high:.2f} ms more at 6 (verify): over"
        f" {n} all-reduces {difference['fixed_us']:.0f} µs each plus {difference['per_token_us']:.1f} µs per"
        f" {record['token_bytes']:,}-byte token, if decode and verify communicate alike"
    )
    least = _at(record, difference["us"])
    yield (
        f"so one all-reduce takes {least[0]:.0f} to {bounds[0][0]:.0f} µs at 1 token under {default} (no less than the"
        f" difference, no more than the whole step over {n}) and {least[1]:.0f} to {bounds[0][1]:.0f} at 6; under {tuned} at"
        f" most {bounds[1][0]:.0f} and {bounds[1][1]:.0f}"
    )
    slowest = max((r for r in record["elsewhere"] if not r["prior"]), key=lambda r: float(r["us"][0]))
    yield (
        f"the slowest published host ({slowest['label']}: {slowest['us'][0]:.0f} µs) would need {slowest['forward_ms'][0]:.1f} ms"
        f" a forward, more than the {record['whole_step'][0]['step_ms'][0]:.1f} ms of a whole plain decode step here: its"
        " NCCL figures do not carry over, whatever the two hosts have in common"
    )
    kernels = next(r for r in record["elsewhere"] if "IPC" in r["label"])
    spent = _at(record, kernels["forward_ms"])
    yield (
        f"with kernels such as the PCIe IPC ones, as fast as on their host, all {n} would take {spent[0]:.1f} ms at 1 token"
        f" and {spent[1]:.1f} at 6: at least {low - spent[0]:.1f} and {high - spent[1]:.1f} ms less than under {default};"
        f" against {tuned} these runs cannot tell"
    )
    yield from _finding_of_prior(record)


def _finding_of_prior(record: Record) -> Iterator[str]:
    priors = sorted((r for r in record["elsewhere"] if r["prior"]), key=lambda r: float(r["us"][0]))
    yield (
        f"by NCCL's own model {priors[0]['label'].removeprefix('prior ')} is the fastest at these sizes, so NCCL would choose it unasked"
        f" and {record['settings'][1]} would change little; measured, it changes {record['difference']['us'][0]:.0f} µs an"
        " all-reduce: NCCL_P2P_LEVEL, which the model does not price, or a host that it does not"
        " describe"
    )


def _notes(record: Record, ranks: int) -> Iterator[str]:
    for row in record["elsewhere"]:
        if row["extrapolated_tokens"] and not row["prior"]:
            listed = ", ".join(map(str, row["extrapolated_tokens"]))
            yield f"EXTRAPOLATED beyond its table: {row['label']} at {listed} tokens"
    sources: dict[str, list[str]] = {}
    for row in record["elsewhere"]:
        sources.setdefault("; ".join(row["sources"]), []).append(row["label"])
    yield from (f"{source}: {'; '.join(labels)}" for source, labels in sources.items())
    yield f"{PRIOR_WARNING}. Here {ranks} ranks on PCIe at 24 GB/s"
    yield (
        "the campaign timed no all-reduce: everything about its own is implied by whole steps under two settings, and the"
        " published tables are of other hosts; measure yours and give the tables to this command"
    )


# -- text ----------------------------------------------------------------------------------------------------------------


def campaign_comm_text(about: str, record: Record) -> str:
    """The story: what it is, each all-reduce by width, what follows, what qualifies it."""
    n = record["all_reduces"]
    title = (
        f"One all-reduce [µs] by tokens of {record['token_bytes']:,} bytes in a forward, and all {n} of a forward [ms]:"
    )
    findings = "\n".join(wrapped(f"→ {finding}", "  ") for finding in record["findings"])
    labels = "\n".join(wrapped(f"* {note}", "  ") for note in record["notes"])
    return "\n".join([wrapped(about, ""), "", title, _table(record), "", "What follows:", findings, "", labels])


def _table(record: Record) -> str:
    widths = [str(width) for width in record["tokens"]]
    columns = ("setting", *widths, "all at 1", "all at 6", "verdict")
    marks = "  ¹ timed at 1 and 6 tokens, a line between and beyond   ² the whole step over its all-reduces"
    return "\n".join([table(columns, [*_own_rows(record), *_other_rows(record)]), marks])


def _own_rows(record: Record) -> Iterator[tuple[str, ...]]:
    default, tuned = record["settings"]
    times, spent = record["difference"]["us"], _at(record, record["difference"]["forward_ms"])
    yield (
        f"here: {default} less {tuned} ¹", *(number(time, 1) for time in times), *(number(ms, 2) for ms in spent), "",
    )  # fmt: skip
    for bound in record["whole_step"]:
        known = dict(zip(bound["tokens"], bound["at_most_us"], strict=True))
        cells = (f"< {known[width]:.0f}" if width in known else "" for width in record["tokens"])
        yield f"here: {bound['nccl']}, bound ²", *cells, *(f"< {ms:.2f}" for ms in bound["step_ms"]), ""


def _other_rows(record: Record) -> Iterator[tuple[str, ...]]:
    for row in record["elsewhere"]:
        spent = _at(record, row["forward_ms"])
        times = (number(time, 1) for time in row["us"])
        yield row["label"], *times, *(number(ms, 2) for ms in spent), row["could_be"]
