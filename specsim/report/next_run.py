"""A plan of measurements as a record, and the record as text."""

from __future__ import annotations

from collections.abc import Iterator

from specsim.cost.model import CostModel
from specsim.next_run import NextRun, Plan
from specsim.quantities import LEVEL
from specsim.questions import Case
from specsim.report.records import Record, case_record
from specsim.report.tables import number, span, table, wrapped

_CAVEAT = (
    "intervals after are expected ones: today's estimate and noise, the run's own noise, and a cost model of this form;"
    " forced acceptance keeps the accept length out of the timing"
)


def plan_record(model: CostModel, plan: Plan[Case]) -> Record:
    """A plan: the question and its interval today, and the runs to make under `next`, best first."""
    return {
        "question": case_record(plan.about),
        "questions": plan.questions,
        "interval_now": plan.interval_now,
        "half_width_pct_now": plan.half_width_pct_now,
        "missing": list(plan.missing),
        "next": [_run_record(plan, run) for run in plan.next],
        "interval_level": LEVEL,
        "noise_relative": model.noise.relative,
        "noise_assumed": model.noise.assumed,
        "mixed_setup": bool(model.mixed),
        "mixed_fields": list(model.mixed),
        "notes": [*_notes(plan), *model.notes],
    }


def _run_record(plan: Plan[Case], run: NextRun) -> Record:
    return {
        "kind": run.kind,
        "num_steps": run.spec.num_steps if run.spec else None,
        "topk": run.spec.topk if run.spec else None,
        "num_draft_tokens": run.spec.num_draft_tokens if run.spec else None,
        "batch_size": run.batch_size,
        "nccl": run.nccl,
        "checks_form": run.checks_form,
        "interval_now": plan.interval_now,
        "interval_after": run.interval_after,
        "half_width_pct_after": run.half_width_pct_after,
        "ratio": run.ratio,
        "makes_answerable": run.makes_answerable,
        "why": run.why,
        "commands": list(run.commands),
    }


def _notes(plan: Plan[Case]) -> Iterator[str]:
    if plan.questions > 1:
        yield f"of {plan.questions} break-evens asked, the one that the runs tell least; name another by its options"
    if len(plan.missing) > 1:
        yield f"no single run answers: {' and '.join(plan.missing)} are both missing"
    if any(run.interval_after is None and run.makes_answerable for run in plan.next):
        yield "no run says where the answer will lie, so that its interval is given in percent only"
    if not plan.next:
        yield "no single measurement among those a user could make narrows this interval by more than 0.5%"
    if any(run.kind == "verify" for run in plan.next):
        yield "verify_ms alone is timed by the instrument of the other runs; the server command is the same"
    yield _CAVEAT


def plan_text(record: Record) -> str:
    """The question, the runs ranked, then why and how."""
    columns = ("#", "measure", "draft tokens", "batch", "NCCL", "interval after", "half width", "of today's", "for")
    rows = [_cells(str(place), run) for place, run in enumerate(record["next"], 1)]
    parts = [wrapped(_headline(record), ""), ""]
    parts += [table(columns, rows), "", *_details(record), ""] if rows else []
    return "\n".join([*parts, *(wrapped(f"* {note}", "  ") for note in record["notes"])])


def _headline(record: Record) -> str:
    asked = record["question"]
    tree = "" if asked["topk"] == 1 else f", {asked['num_steps']} steps, topk {asked['topk']}"
    where = f"{asked['num_draft_tokens']} draft tokens{tree}, batch {asked['batch_size']}, NCCL {asked['nccl']}"
    if record["interval_now"] is None:
        return f"Break-even at {where}: not answerable today, {' and '.join(record['missing'])} missing."
    now = f"{span(record['interval_now'], 2)} at {record['interval_level']:.0%}, ±{record['half_width_pct_now']:.1f}%"
    return f"Break-even at {where}: {now} today."


def _cells(place: str, run: Record) -> tuple[str, ...]:
    known = run["ratio"] is not None
    return (
        place,
        f"{run['kind']}_ms",
        _width(run),
        str(run["batch_size"]),
        run["nccl"],
        span(run["interval_after"], 2) or "–",
        f"±{run['half_width_pct_after']:.1f}%" if known else "–",
        "answers" if run["makes_answerable"] else f"{run['ratio']:.0%}" if known else "–",
        "the form" if run["checks_form"] else "the interval",
    )


def _width(run: Record) -> str:
    tree = run["topk"] is not None and run["topk"] > 1
    return number(run["num_draft_tokens"], 0) + (f" ({run['num_steps']} steps, topk {run['topk']})" if tree else "")


def _details(record: Record) -> Iterator[str]:
    for place, run in enumerate(record["next"], 1):
        yield wrapped(f"{place}. {run['why']}", "  ")
        if place <= 2:
            yield from (f"       {command}" for command in run["commands"])
