"""A plan of measurements as a record, and the record as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from specsim.cost.model import CostModel
from specsim.fitting.acceptance import AcceptanceFit
from specsim.next_run import Contest, NextRun, Plan, Rival
from specsim.quantities import LEVEL, SpecConfig
from specsim.questions import Case
from specsim.report.records import Record, all_beyond, case_record
from specsim.report.sweep import BEYOND_LAW
from specsim.report.tables import number, some, span, table, wrapped

BREAK_EVEN, BEST_SETTING = "break-even", "best-setting"

_CAVEAT = (
    "intervals after are expected ones: today's estimate and noise, the run's own noise, and a cost model of this form;"
    " forced acceptance keeps the accept length out of the timing"
)


# -- records ----------------------------------------------------------------------------------------------------------


def plan_record(model: CostModel, plan: Plan[Case]) -> Record:
    """A plan: the question and its interval today, and the runs to make under `next`, best first."""
    return {
        "asks": BREAK_EVEN,
        "question": case_record(plan.about),
        **_plan_record(model, plan),
        "next": [_run_record(plan, run) for run in plan.next],
        "notes": [*_notes(plan, f"{BREAK_EVEN}s asked", "its options"), *model.notes],
    }


def best_record(model: CostModel, plan: Plan[Contest]) -> Record:
    """A plan to find the best setting: the best today, its rivals, how decided that is, and the runs under `next`."""
    contest = plan.about
    return {
        "asks": BEST_SETTING,
        "best": _rival_record(model, contest.best),
        "rival": _rival_record(model, contest.rival),
        "rivals": [_rival_record(model, rival) for rival in contest.rivals],
        "told_apart": all(rival.told_apart for rival in contest.rivals),
        "left_out": [asdict(each) for each in contest.left_out],
        "half_width_pct_of_lengths": 100.0 * float(np.sinh(contest.lengths_apart)),
        **_plan_record(model, plan),
        "next": [{**_run_record(plan, run), "decides": _decides(run)} for run in plan.next],
        "notes": [
            *_contest_notes(plan),
            *_notes(plan, "batch sizes", "--batch-size"),
            *_law_notes(contest),
            *model.notes,
        ],
    }


def _plan_record(model: CostModel, plan: Plan[Any]) -> Record:
    return {
        "questions": plan.questions,
        "interval_now": plan.interval_now,
        "half_width_pct_now": plan.half_width_pct_now,
        "missing": list(plan.missing),
        "interval_level": LEVEL,
        "noise_relative": model.noise.relative,
        "noise_assumed": model.noise.assumed,
        "mixed_setup": bool(model.mixed),
        "mixed_fields": list(model.mixed),
    }


def _run_record(plan: Plan[Any], run: NextRun) -> Record:
    return {
        "kind": run.kind,
        **_counts(run.spec),
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


def _counts(spec: SpecConfig | None) -> Record:
    """A configuration's counts, null for plain decode."""
    names = ("num_steps", "topk", "num_draft_tokens")
    return {name: getattr(spec, name) if spec else None for name in names}


def _decides(run: NextRun) -> bool:
    """Whether one of the two is expected to be faster beyond doubt after a run."""
    return run.interval_after is not None and not run.interval_after[0] <= 1 <= run.interval_after[1]


def _rival_record(model: CostModel, rival: Rival) -> Record:
    length, known = rival.length, rival.length.origin != "cancels"
    outside = all_beyond(model, rival.extrapolated_in, rival.nccl)
    return {
        **_counts(rival.spec),
        "batch_size": rival.batch_size,
        "nccl": rival.nccl,
        "accept_length": length.value if known else None,
        "accept_length_interval": length.interval if known else None,
        "accept_length_from": length.origin,
        "accept_length_runs": list(length.runs),
        "accept_length_error_known": length.error_known,
        "cycle_ms": rival.time_ms if rival.spec else None,
        "decode_ms": None if rival.spec else rival.time_ms,
        "output_tok_s": rival.output_tok_s,
        "time_ratio": rival.time_ratio,
        "interval": rival.interval,
        "told_apart": rival.told_apart,
        "missing": list(rival.missing),
        "first_by": list(rival.first_by),
        "extrapolated": bool(outside) or length.extrapolated,
        "extrapolated_in": [*outside, *([BEYOND_LAW] if length.extrapolated else [])],
    }


def _notes(plan: Plan[Any], questions: str, options: str) -> Iterator[str]:
    if plan.questions > 1:
        yield f"of {plan.questions} {questions}, the one that the runs tell least; name another by {options}"
    if len(plan.missing) > 1 and not any(run.makes_answerable for run in plan.next):
        yield f"no single run answers: {' and '.join(plan.missing)} are both missing"
    if any(run.interval_after is None and run.makes_answerable for run in plan.next):
        yield "no run says where the answer will lie, so that its interval is given in percent only"
    if not plan.next:
        yield "no single measurement among those a user could make narrows this interval by more than 0.5%"
    if any(run.kind == "verify" for run in plan.next):
        yield "verify_ms alone is timed by the instrument of the other runs; the server command is the same"
    yield _CAVEAT


def _contest_notes(plan: Plan[Contest]) -> Iterator[str]:
    contest = plan.about
    for rival in contest.rivals:
        if rival.first_by:
            forms = " or ".join(rival.first_by)
            yield f"by {forms}, which these runs cannot exclude, the best is {_named(_counts(rival.spec), rival.nccl)}"
    yield from _lengths_notes(contest)
    undecided = plan.interval_now is not None and plan.interval_now[1] >= 1
    if undecided and not _open_by_lengths(contest) and not any(map(_decides, plan.next)):
        yield "none of these runs alone is expected to decide it: today's estimates lie too close for one run's noise"
    yield from (f"not compared: {each.setting}: {each.why}" for each in contest.left_out)


def _lengths_notes(contest: Contest) -> Iterator[str]:
    lengths = [rival.length for rival in (contest.best, *contest.rivals)]
    if contest.best.length.origin == "cancels":
        yield "the accept length is not known, and cancels: one configuration under several NCCL settings"
    exact = dict.fromkeys(run for length in lengths if not length.error_known for run in length.runs)
    if exact:
        yield f"the accept length of {some(list(exact))} has no stated error and counts as exact"
    if contest.lengths_apart > 0:
        so = ", and which leaves the two undecided by itself" if _open_by_lengths(contest) else ""
        yield (
            f"±{100 * np.sinh(contest.lengths_apart):.1f}% of the ratio's interval is the accept lengths' own doubt, which"
            f" no timing narrows{so}: a run with real acceptance at {_least_known(contest)} would"
        )


def _open_by_lengths(contest: Contest) -> bool:
    """Whether the two could not be told apart even if both times were known exactly."""
    return contest.rival.time_ratio * float(np.exp(contest.lengths_apart)) >= 1


def _least_known(contest: Contest) -> str:
    """Which of the two accept lengths is known less well."""
    rival = max((contest.best, contest.rival), key=lambda each: each.length.interval[1] - each.length.interval[0])
    return _named(_counts(rival.spec), None)


def _law_notes(contest: Contest) -> Iterator[str]:
    used = [rival for rival in (contest.best, *contest.rivals) if rival.length.origin == "law"]
    if not used or contest.law is None:
        return
    widths = ", ".join(dict.fromkeys(_named(_counts(rival.spec), None) for rival in used))
    if isinstance(contest.law, AcceptanceFit):
        yield f"no accept length was measured at {widths}: it is that of a law fitted to those measured"
        yield from contest.law.notes
    else:
        yield f"the accept length at {widths} is that of the stated acceptance rate, and counts as known"


# -- as text ------------------------------------------------------------------------------------------------------------


def plan_text(record: Record) -> str:
    """The question, the runs ranked, then why and how."""
    return _text(record, [wrapped(_headline(record), ""), ""], 2)


def best_text(record: Record) -> str:
    """The best today and its rivals, the runs ranked, then why and how."""
    columns = (
        "NCCL", "draft tokens", "accept length", "ms", "tok/s", f"time ratio ({record['interval_level']:.0%})", "verdict",
    )  # fmt: skip
    rivals = table(columns, [_rival_cells(record, row) for row in (record["best"], *record["rivals"])])
    beyond = dict.fromkeys(why for row in (record["best"], *record["rivals"]) for why in row["extrapolated_in"])
    footnote = [wrapped(f"¹ EXTRAPOLATED: {'; '.join(beyond)}", "  ")] if beyond else []
    headline = [wrapped(line, "") for line in _best_headline(record)]
    return _text(record, [*headline, "", rivals, *footnote, ""], 3, "decides")


def _text(record: Record, parts: list[str], digits: int, *more: str) -> str:
    columns = (
        "#",
        "measure",
        "draft tokens",
        "batch",
        "NCCL",
        "interval after",
        "half width",
        "of today's",
        *more,
        "for",
    )
    rows = [_cells(str(place), run, digits, more) for place, run in enumerate(record["next"], 1)]
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


def _best_headline(record: Record) -> Iterator[str]:
    best, rival = record["best"], record["rival"]
    names = [_named(each, each["nccl"]) for each in (best, rival)]
    rate = "" if best["accept_length"] is None else f", {best['output_tok_s']:.1f} tok/s"
    if best["missing"]:
        yield f"Best setting at batch {best['batch_size']}: not answerable today, {' and '.join(best['missing'])} missing."
        return
    yield f"Best setting at batch {best['batch_size']} today: {names[0]}{rate}."
    if record["interval_now"] is None:
        yield f"Least decided is {names[1]}: {' and '.join(record['missing'])} missing."
        return
    low, high = record["interval_now"]
    ends = f"{low:.3f} to {high:.3f} at {record['interval_level']:.0%}, ±{record['half_width_pct_now']:.1f}%"
    share = f"{rival['time_ratio']:.3f} ({ends}) of its time per accepted token"
    yield f"Least decided is {names[1]}, {_verdict(rival)}: the best takes {share}."


def _verdict(row: Record) -> str:
    if row["missing"]:
        return "not told"
    if row["told_apart"]:
        return "told apart"
    if row["interval"][1] < 1:
        return "told apart, but not by every form"
    return f"may be {100 * (row['interval'][1] - 1):.1f}% faster"


def _named(counts: Record, nccl: str | None) -> str:
    """A configuration, and the NCCL setting that it is under, in words."""
    tree = counts["topk"] not in (None, 1)
    shape = f" ({counts['num_steps']} steps, topk {counts['topk']})" if tree else ""
    what = "plain decode" if counts["num_draft_tokens"] is None else f"{counts['num_draft_tokens']} draft tokens{shape}"
    return what + (f" under NCCL {nccl}" if nccl else "")


def _rival_cells(record: Record, row: Record) -> tuple[str, ...]:
    best = row == record["best"]
    ratio = "–" if best else f"{number(row['time_ratio'], 3)} {span(row['interval'], 3)}".rstrip()
    time = row["cycle_ms"] if row["decode_ms"] is None else row["decode_ms"]
    length, ends = row["accept_length"], row["accept_length_interval"]
    spread = f" {span(ends, 2)}" if ends and ends[0] < ends[1] else ""
    return (
        row["nccl"],
        _width(row) + (" ¹" if row["extrapolated"] else ""),
        number(length, 2) + spread,
        number(time, 2),
        number(row["output_tok_s"], 1),
        ratio,
        "best" if best and not row["missing"] else _verdict(row),
    )


def _cells(place: str, run: Record, digits: int, more: tuple[str, ...]) -> tuple[str, ...]:
    known = run["ratio"] is not None
    return (
        place,
        f"{run['kind']}_ms",
        _width(run),
        str(run["batch_size"]),
        run["nccl"],
        span(run["interval_after"], digits) or "–",
        f"±{run['half_width_pct_after']:.1f}%" if known else "–",
        "answers" if run["makes_answerable"] else f"{run['ratio']:.0%}" if known else "–",
        *("yes" if run[name] else "no" for name in more),
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
