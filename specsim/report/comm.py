"""All-reduce settings compared: the record of eq. 17 by setting and verify width, and its text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from specsim.cost.allreduce import PRIOR_WARNING, AllReduceCurve, MeasuredCurve, NcclPrior, nccl_priors
from specsim.cost.custom_allreduce import CustomPath, Wiring, custom_paths
from specsim.cost.derived import DerivedSetting
from specsim.cost.model import CostModel
from specsim.cost.step_change import Shape, StepChange, forward_ms, gather_ms, gathers_measured, in_cycles, step_change
from specsim.cost.terms import Cycle
from specsim.errors import ConfigurationError, UnknownSettingError
from specsim.fitting.allreduce import fit_affine
from specsim.methods import cycle_shape
from specsim.quantities import SpecConfig, Workload
from specsim.report.records import Record
from specsim.report.tables import number, table, wrapped
from specsim.runs.allreduce import (
    BETWEEN_DRAFTS,
    CONDITIONS,
    GATHER,
    IN_A_FORWARD,
    LAUNCH,
    NCCL,
    AllReduceSetting,
    AllReduceTable,
)

MICROBENCHMARK = (
    "a forward reads weights between its all-reduces: made back to back a table gave a forward with 64 of them on two"
    " H200s within 0.05 ms under NCCL's default (LL), and 0.26 to 0.41 ms too little under Simple; behind products whose"
    " weights come from memory it is nearer, and made in a forward it holds (python -m calibration allreduce --model)"
)
"""Measured 2026-11-29 and 30, NCCL 2.28.9; tests/validation/test_allreduce_forward.py budgets it."""

_CORRECTION_SAID = 0.05  # relative: a monotone curve that is further than this from its table is worth a word


Curve = MeasuredCurve | NcclPrior


@dataclass(frozen=True)
class Compared:
    """What is compared: the curves by label with whether each is NCCL's, and the model's shapes and cycles.

    `wiring` None leaves custom all-reduces out of it; `eager` says that CUDA graphs are off; `files` are those of a table's settings
    (`AllReduceSetting.files`) by label.
    """

    curves: tuple[Curve, ...]
    of_nccl: tuple[bool, ...]
    target: Shape
    draft: Shape | None
    spec: SpecConfig
    batch_sizes: tuple[int, ...]
    wiring: Wiring | None
    engine: str | None
    engine_version: str | None = None
    eager: bool = False
    files: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def curve(self, label: str) -> Curve:
        """The curve of a setting; raises UnknownSettingError listing the known ones."""
        for curve in self.curves:
            if curve.label == label:
                return curve
        raise UnknownSettingError(label, (curve.label for curve in self.curves))

    def cycle(self) -> Cycle:
        """Every width at every batch size, widths running fastest, in the graphs that the engine captures; of no version the newest."""
        batches = np.array(self.batch_sizes, dtype=np.int64)[:, None]
        cycle = Cycle.of(self.spec, Workload(batches), self.engine, eager=self.eager)
        return cycle.captured(self.engine, self.engine_version)

    def both_of_nccl(self, *labels: str) -> bool:
        """Whether all of these are NCCL settings, under which NCCL gathers logits."""
        return all(flag for curve, flag in zip(self.curves, self.of_nccl, strict=True) if curve.label in labels)

    def one_of_nccl(self, *labels: str) -> bool:
        """Whether NCCL carries messages under one of these and something else under another."""
        return len({flag for curve, flag in zip(self.curves, self.of_nccl, strict=True) if curve.label in labels}) > 1

    def custom(self, *labels: str) -> tuple[CustomPath, ...]:
        """The custom paths that stand before both settings: none where one of them is no NCCL setting."""
        return custom_paths(self.wiring) if self.wiring and self.both_of_nccl(*labels) else ()


def curves_of(settings: Sequence[AllReduceSetting]) -> tuple[tuple[Curve, ...], tuple[bool, ...]]:
    """The curves of a table's settings, and which are NCCL's; raises ConfigurationError where two share a label."""
    labels = [setting.label for setting in settings]
    twice = [label for label in dict.fromkeys(labels) if labels.count(label) > 1]
    if twice:
        raise ConfigurationError(f"the setting {twice[0]!r} stands twice: name the tables apart with LABEL=FILE")
    return tuple(s.curve for s in settings), tuple(s.implementation == NCCL for s in settings)


def prior_curves(link: str, ranks: int, bus_gb_s: float | None) -> tuple[tuple[Curve, ...], tuple[bool, ...]]:
    """NCCL's own model of each algorithm and protocol that it may choose on a link, labelled as a prior."""
    priors = nccl_priors(link, ranks, bus_gb_s)
    return priors, (True,) * len(priors)


def with_settings(
    model: CostModel, asked: Compared, before: str | None, after: str | None, measured: AllReduceTable | None = None
) -> CostModel:
    """A fitted model that also knows the other settings of a comparison, or the one named, by eq. 17, and what is MIXED in their table.

    The setting compared from is one of the model's, or stands for its only one. Raises UnknownSettingError otherwise,
    ConfigurationError as `CostModel.with_setting`.
    """
    start = asked.curve(before or asked.curves[0].label)
    base = model.settings[0].label if len(model.settings) == 1 else model.setting(start.label).label
    extends = cycle_shape(asked.spec.method, asked.engine).extend_forwards
    others = [asked.curve(after)] if after else [curve for curve in asked.curves if curve is not start]
    for curve in others:
        custom, gathered = asked.custom(start.label, curve.label), asked.both_of_nccl(start.label, curve.label)
        derived = DerivedSetting(curve.label, base, start, curve, asked.target, asked.draft, extends, custom, gathered)
        model = model.with_setting(derived)
    mixed = [] if measured is None else _mixed(asked, start.label, [curve.label for curve in others], measured)
    return replace(model, notes=(*model.notes, *mixed))


# -- record -----------------------------------------------------------------------------------------------------------


def comm_record(
    asked: Compared, before: str | None, after: str | None, measured: AllReduceTable | None = None
) -> Record:
    """Step-time changes from one setting to another, or to each other one, by batch size and verify width (eq. 17)."""
    start = asked.curve(before or asked.curves[0].label)
    others = [asked.curve(after)] if after else [curve for curve in asked.curves if curve is not start]
    cycle = asked.cycle()
    extends = cycle_shape(asked.spec.method, asked.engine).extend_forwards
    rows = []
    for curve in others or [start]:
        custom, gathered = asked.custom(start.label, curve.label), asked.both_of_nccl(start.label, curve.label)
        change = step_change(start, curve, cycle, asked.target, asked.draft, extends, custom, gathered)
        rows += list(_rows(asked, cycle, start, curve, change, gathered))
    return {
        "from": start.label,
        "all_reduces": asked.target.all_reduces,
        "target": asdict(asked.target),
        "draft": asdict(asked.draft) if asked.draft else None,
        "draft_all_reduces": asked.draft.all_reduces if asked.draft else 0,
        "method": asked.spec.method,
        "engine": asked.engine,
        "engine_version": asked.engine_version,
        "settings": [_setting_record(curve) for curve in asked.curves],
        "rows": rows,
        "notes": list(_notes(asked, start.label, rows, measured)),
    }


def _rows(
    asked: Compared, cycle: Cycle, start: AllReduceCurve, curve: AllReduceCurve, change: StepChange, gathered: bool
) -> Iterator[Record]:
    message = np.asarray(asked.target.message_bytes(cycle.padded_verify))
    alone, drafts = (start, curve), cycle.between_drafts > 0
    beside = in_cycles(alone, asked.draft)
    pairs = list(zip(beside, alone, strict=True))
    times = [np.where(drafts, *(each.time_us(message) for each in pair)) for pair in pairs]
    whole = [
        np.where(drafts, *(forward_ms(each, asked.target, cycle.padded_verify) for each in pair)) for pair in pairs
    ]
    gathers = [np.asarray(ms) for ms in gather_ms((start, curve), asked.target, cycle.verify_tokens)]
    logits = np.asarray(asked.target.logits_bytes(cycle.verify_tokens))
    for at in range(message.size):
        yield {
            "setting": curve.label,
            "batch_size": int(cycle.batch_size[at]),
            "num_steps": int(cycle.num_steps[at]),
            "topk": int(cycle.topk[at]),
            "num_draft_tokens": int(cycle.num_draft_tokens[at]),
            "message_bytes": int(message[at]),
            "from_us": float(times[0][at]),
            "to_us": float(times[1][at]),
            "from_all_reduce_ms": float(whole[0][at]),
            "to_all_reduce_ms": float(whole[1][at]),
            "logits_bytes": int(logits[at]),
            "from_gather_ms": float(gathers[0][at]) if gathered else None,
            "to_gather_ms": float(gathers[1][at]) if gathered else None,
            "verify_change_ms": float(change.verify_ms[at]),
            "draft_change_ms": float(change.draft_ms[at] + change.extend_ms[at]),
            "launch_change_ms": float(change.launch_ms[at]),
            "cycle_change_ms": float(change.cycle_ms[at]),
            "decode_change_ms": float(change.decode_ms[at]),
            "prior": not isinstance(curve, MeasuredCurve),
            "extrapolated": bool(change.extrapolated[at]),
            "logits_extrapolated": bool(change.logits_extrapolated[at]),
            "gather_measured": gathered and gathers_measured(start, curve),
            "drafts_measured": bool(drafts[at]) and beside is not alone,
            "custom_all_reduce": bool(change.custom[at]),
        }


def _setting_record(curve: AllReduceCurve) -> Record:
    """A curve as α, 1/β and knees (eq. 16), and what it rests on."""
    if not isinstance(curve, MeasuredCurve):
        fixed, slope = (float(getattr(curve, name)) for name in ("fixed_us", "gb_s"))
        return {"label": curve.label, "prior": True, "in_forward": False, "sizes": 0, "fixed_us": fixed, "gb_s": [slope],
                "knees_bytes": [], "span_bytes": None, "largest_error": None}  # fmt: skip
    form = fit_affine(curve)
    return {
        "label": curve.label,
        "prior": False,
        "in_forward": curve.in_forward,
        "sizes": len(curve.sizes),
        "readings": sum(curve.repeats),
        "fixed_us": form.fixed_us,
        "gb_s": [1e-3 / slope if slope > 0 else None for slope in form.us_per_byte],
        "knees_bytes": list(form.knees),
        "span_bytes": list(form.span),
        "largest_error": form.largest_error,
    }


def _notes(asked: Compared, start: str, rows: list[Record], measured: AllReduceTable | None) -> Iterator[str]:
    if any(not isinstance(curve, MeasuredCurve) for curve in asked.curves):
        yield PRIOR_WARNING
    else:
        yield from _notes_of_curves(asked, start, rows)
    if measured is not None:
        yield from measured.notes
        yield from _mixed(asked, start, dict.fromkeys(row["setting"] for row in rows), measured)
    of_nccl = [row for row in rows if asked.both_of_nccl(start, row["setting"])]
    if of_nccl:
        yield _about_custom(asked, of_nccl)
    yield from _about_gathers(asked, of_nccl, measured)
    yield from _about_drafts(asked, start, rows, measured)
    if asked.target.vocab_size is None:
        yield (
            "the embedding's all-reduce and the gather of logits are not counted: state --vocab-size where the vocabulary is"
            " split over the GPUs, as vLLM and SGLang do"
        )
    elif any(row["to_gather_ms"] is None for row in rows):
        yield (
            "the gather of logits is not counted between implementations of which one is not NCCL's: a kernel that only reduces says"
            " nothing of it, and engines leave it to NCCL"
        )
    if asked.draft is None:
        yield "the drafter's own all-reduces are not counted: state --draft-layers if it is split over the GPUs too"
    if len(asked.curves) == 1:
        yield "one setting is compared with itself: give the table of another, or one that holds several"


def _notes_of_curves(asked: Compared, start: str, rows: list[Record]) -> Iterator[str]:
    alone = [c.label for c in asked.curves if not (isinstance(c, MeasuredCurve) and c.in_forward)]
    if alone:
        yield MICROBENCHMARK
    else:
        yield "these all-reduces were measured in a forward: what it takes longer with them, over their number"
    if any(row["extrapolated"] for row in rows):
        read = _with_drafting(asked, start, rows)
        spans = "; ".join(f"{c.label} {_bytes(c.sizes[0])} to {_bytes(c.sizes[-1])}" for c in read)
        yield f"EXTRAPOLATED at rows marked ¹ (verify, draft or plain decode): the tables cover {spans}"
    for measured, how in (
        (True, "by a size outside the table of gathers"),
        (False, "as half an all-reduce of a size outside the tables"),
    ):
        if any(row["logits_extrapolated"] and row["gather_measured"] is measured for row in rows):
            yield (
                f"EXTRAPOLATED at rows marked ³: logits are gathered (verify, draft or plain decode) {how}:"
                " above along the slope of the last octave, below as the smallest"
            )
    for curve in _with_drafting(asked, start, rows):
        if curve.largest_correction > _CORRECTION_SAID:
            yield (
                f"{curve.label}: the table falls with size somewhere; held to a curve that never does, it moved by up to"
                f" {curve.largest_correction:.0%}"
            )


def _with_drafting(asked: Compared, start: str, rows: list[Record]) -> Iterator[MeasuredCurve]:
    """The measured curves, and what was measured beside drafts where a row was read off it."""
    told = {label for row in rows if row["drafts_measured"] for label in (start, row["setting"])}
    for curve in asked.curves:
        if isinstance(curve, MeasuredCurve):
            yield curve
            if curve.drafting is not None and curve.label in told:
                yield curve.drafting


def _mixed(asked: Compared, start: str, others: Iterable[str], measured: AllReduceTable) -> Iterator[str]:
    """What the tables' rows were measured under that differs, and what was read off other files than the first setting's."""
    for name in CONDITIONS:
        values = dict.fromkeys(getattr(row, name) for row in measured.all_reduces)
        unstated = name == "pattern" and IN_A_FORWARD in values and None in values
        stated = [str(value) for value in values if value is not None] + ["unstated"] * unstated
        if len(stated) > 1:
            yield f"MIXED, not like for like: the tables differ in {name}: {', '.join(stated)}"
    for label in others:
        between = [kind for each in (start, label) for kind in BETWEEN_DRAFTS.values() if kind in asked.files[each]]
        if asked.draft is not None and len(set(between)) > 1:
            yield (
                f"MIXED, not like for like: cycles that draft are told by {between[0]} of {start} and {between[1]} of {label}:"
                " give tables of one kind"
            )
        for kind, files in asked.files[start].items():
            if _unlike(asked, kind, files, own := asked.files[label].get(kind, files)):
                yield (
                    f"MIXED, not like for like: {kind} of {start} are of {', '.join(files)}, those of {label} of {', '.join(own)}, so that"
                    " what these tables differ by is in the change: give tables that all have both"
                )


def _unlike(asked: Compared, kind: str, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one of two settings is a median over files of which the other lacks some; nccl-tests' hold one each, repeats too."""
    if set(one) == set(other) or max(len(one), len(other)) == 1:
        return False
    held = [file for each in asked.files.values() for file in each.get(kind, ())]
    return bool(set(one) & set(other)) or any(held.count(file) > 1 for file in (*one, *other))


def _about_gathers(asked: Compared, rows: list[Record], measured: AllReduceTable | None) -> Iterator[str]:
    """What the logits' gathers rest on, and gathers that nothing was read off."""
    if asked.target.vocab_size:
        by = {
            known: dict.fromkeys(row["setting"] for row in rows if row["gather_measured"] is known)
            for known in (True, False)
        }
        if by[True]:
            yield f"logits' gathers are measured ones, made back to back, to {', '.join(by[True])}"
        if by[False] and any(gathers_measured(curve) for curve in asked.curves):
            yield f"logits' gathers are half an all-reduce to {', '.join(by[False])}: not measured under both settings"
    if measured and (alone := measured.unused(GATHER)):
        yield (
            f"gathers of {', '.join(alone)} are not used: the tables have no all-reduces of that name, graph mode, ranks, hardware and"
            " NCCL version, or not one kind of gathers"
        )


def _about_drafts(asked: Compared, start: str, rows: list[Record], measured: AllReduceTable | None) -> Iterator[str]:
    """What drafting cycles rest on, what they lack, and rows that nothing was read off."""
    told = dict.fromkeys(row["setting"] for row in rows if row["drafts_measured"])
    others = [label for label in dict.fromkeys(row["setting"] for row in rows) if label not in told]
    kept = [label for label in (start, *others) if getattr(asked.curve(label), "drafting", None) is not None]
    possible = asked.draft is not None and bool((asked.cycle().between_drafts > 0).any())
    if told:
        launched = ["single launches"] * any(row["launch_change_ms"] for row in rows)
        by = [
            kind
            for kind in BETWEEN_DRAFTS.values()
            if any(kind in asked.files.get(each, {}) for each in (start, *told))
        ]
        yield f"cycles that draft are told by {' and '.join([*by, *launched])}, measured between a drafter's graphs, to {', '.join(told)}"
    apart = [label for label in others if start in kept or label in kept or asked.one_of_nccl(start, label)]
    if possible and apart:
        yield (
            f"cycles that draft are told to {', '.join(apart)} by all-reduces that were not measured beside drafts under both settings: by default"
            " NCCL's, and single launches, take longer between a drafter's graphs, others' do not (python -m calibration allreduce --model"
            " measures both)"
        )
    if not possible and kept:
        yield (
            f"what {', '.join(kept)} takes beside drafts is not used: it counts for cycles with CUDA graphs whose drafter has forwards and is split"
            " (--draft-layers)"
        )
    for pattern in (*BETWEEN_DRAFTS, LAUNCH):
        if measured and (lost := measured.unused(pattern)):
            yield (
                f"rows '{pattern}' of {', '.join(lost)} are not used: the tables have none in a forward of that name, graph mode, ranks,"
                " hardware and NCCL version, several kinds of them, or whole cycles in their place"
            )


def _about_custom(asked: Compared, rows: list[Record]) -> str:
    if asked.wiring is None:
        return (
            "every message is taken as NCCL's: state --engine, --link and --ranks to see which go through a custom"
            " all-reduce, where NCCL settings change nothing"
        )
    wiring = f"{asked.wiring.engine}, {asked.wiring.ranks} GPUs on {asked.wiring.link}"
    if any(row["custom_all_reduce"] for row in rows):
        paths = custom_paths(asked.wiring)
        said = ", ".join(f"{path.kernel} up to {_bytes(path.max_bytes)}" for path in paths)
        but = " but the gather of logits" if asked.target.vocab_size else ""
        return (
            f"CUSTOM: {wiring} sends messages through {said}: NCCL settings change nothing there{but} (rows marked ²)"
        )
    return f"{wiring}: no custom all-reduce that is known takes these messages from NCCL"


# -- text ---------------------------------------------------------------------------------------------------------------


def comm_text(record: Record) -> str:
    """The settings' curves, the changes by setting and width, and what qualifies them."""
    drafts = f", {record['draft_all_reduces']} in one of the drafter's" if record["draft"] else ""
    logits = " and the gather of its logits" if record["target"]["vocab_size"] else ""
    title = (
        f"{record['all_reduces']} all-reduces in a forward{drafts}: all of a verify's{logits}, and changes from"
        f" {record['from']} [ms]"
    )
    labels = "\n".join(wrapped(f"* {note}", "  ") for note in record["notes"])
    return "\n".join([_curves_table(record), "", title, _changes_table(record), "", labels])


def _curves_table(record: Record) -> str:
    columns = ("setting", "one all-reduce [µs]", "sizes", "from", "to", "furthest off")
    rows = [
        (
            s["label"],
            affine_words(s),
            str(s["sizes"]) if s["sizes"] else "prior",
            *(map(_bytes, s["span_bytes"]) if s["span_bytes"] else ("-", "-")),
            f"{s['largest_error']:.0%}" if s["largest_error"] is not None else "-",
        )
        for s in record["settings"]
    ]
    return table(columns, rows)


def affine_words(setting: Record) -> str:
    """α + m at β, and each knee, in words."""
    slopes = [
        "flat" if slope is None else f"{slope:{',.0f' if slope >= 100 else '.3g'}} GB/s" for slope in setting["gb_s"]
    ]
    first = f"{setting['fixed_us']:.1f} + bytes at {slopes[0]}"
    return ", ".join(
        [first, *(f"{s} from {_bytes(k)}" for s, k in zip(slopes[1:], setting["knees_bytes"], strict=True))]
    )


def _changes_table(record: Record) -> str:
    gathers = bool(record["target"]["vocab_size"])
    launches = ("launch",) * any(row["launch_change_ms"] for row in record["rows"])
    parts = ("verify", "draft", *launches, "cycle", "decode")
    columns = (
        "setting",
        "batch",
        "draft tokens",
        "message",
        "µs before",
        "µs after",
        "in verify",
        *(("gather",) if gathers else ()),
        *("launches" if part == "launch" else part for part in parts),
    )
    rows = [
        (
            row["setting"],
            str(row["batch_size"]),
            str(row["num_draft_tokens"]),
            _bytes(row["message_bytes"])
            + (" ¹" if row["extrapolated"] and not row["prior"] else "")
            + (" ²" if row["custom_all_reduce"] else ""),
            number(row["from_us"], 1),
            number(row["to_us"], 1),
            number(row["to_all_reduce_ms"], 2),
            *((_gather(row),) if gathers else ()),
            *(signed(row[f"{part}_change_ms"]) for part in parts),
        )
        for row in record["rows"]
    ]
    return table(columns, rows)


def _gather(row: Record) -> str:
    if row["to_gather_ms"] is None:
        return "-"
    return number(row["to_gather_ms"], 2) + (" ³" if row["logits_extrapolated"] and not row["prior"] else "")


def signed(value: float) -> str:
    """A change with its sign, 0.00 without one."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"


def _bytes(size: float) -> str:
    """A size in bytes, KiB or MiB where that is whole."""
    for unit, name in ((1024**2, "MiB"), (1024, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size / unit:g} {name}"
    return f"{size:,.0f} B"
