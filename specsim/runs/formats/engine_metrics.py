"""What the metrics of SGLang, vLLM and llama.cpp say: counts before rates, snapshots of one server as a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from specsim.acceptance.conversions import counts_from_vllm
from specsim.errors import InputError
from specsim.runs.formats.metric_names import METRIC_NAMES
from specsim.runs.formats.prometheus import Snapshot, between, nothing_counted, snapshots_of
from specsim.runs.readings import LeftOut, Reading, rounded


def read_snapshots(texts: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Reading | LeftOut]]:
    """Runs of several texts in their order, named: differences where snapshots follow each other, else totals."""
    listed: list[tuple[str, Snapshot]] = []
    for name, text in texts:
        found, bad = snapshots_of(text)
        for snapshot in found:
            if listed and nothing_counted(listed[-1][1], snapshot):
                why = f"snapshot of a server that has counted nothing since {listed[-1][0]}"
                yield name, LeftOut(why, 1, snapshot.first, snapshot.last)
            else:
                listed.append((name, snapshot))
        yield from ((name, each) for each in bad)
    for index, (name, snapshot) in enumerate(listed):
        before = listed[index - 1] if index else None
        counted = between(before[1], snapshot) if before else None
        after = listed[index + 1] if index + 1 < len(listed) else None
        followed = counted is None and after is not None and between(snapshot, after[1]) is not None
        if counted is not None and before is not None:
            for each in readings_of(counted, f"counted since {before[0]}, line {before[1].first}"):
                yield name, replace(each, since=before[0]) if isinstance(each, Reading) else each
        elif not followed:
            yield from ((name, each) for each in readings_of(snapshot, "counted since the server's start"))


def readings_of(snapshot: Snapshot, since: str) -> Iterator[Reading | LeftOut]:
    """The runs of one snapshot, or of a difference; `since` says over what it counts."""
    make = {"sglang": _sglang, "vllm": _vllm, "llama.cpp": _llama_cpp}[snapshot.engine]
    common: dict[str, Any] = {"engine": snapshot.engine, "instrument": "server metrics", "note": since}
    if snapshot.model:
        common["model"] = snapshot.model
    yield from make(snapshot, common)


def _counted(snapshot: Snapshot, fields: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Fields of vLLM's and llama.cpp's draft counters; None where nothing was drafted, or why they are not used."""
    names = METRIC_NAMES[snapshot.engine]
    numbers = [snapshot.totals.get(name) for name in (names.cycles, names.drafted, names.accepted)]
    if any(number is None for number in numbers) or int(numbers[0] or 0) == 0:
        return None, ""
    drafts, proposed, accepted = (int(number) for number in numbers if number is not None)
    positions = [int(snapshot.by_position[at]) for at in sorted(snapshot.by_position)]
    cycles = max(drafts, int(snapshot.totals.get(names.gaps, 0)))  # those without drafts too, where they are counted
    counted: dict[str, Any] = {"cycles": cycles, "accepted_drafts": accepted, "proposed_drafts": proposed}
    if positions or proposed % drafts == 0:
        counted["num_draft_tokens"] = (len(positions) or proposed // drafts) + 1
    try:
        counts_from_vllm(cycles, proposed, accepted)
    except InputError as error:
        return None, _one_line(error)
    try:
        histogram = counts_from_vllm(cycles, proposed, accepted, positions).histogram if positions else ()
    except InputError as error:
        return fields | counted | {"note": f"{fields['note']}; positions not used: {_one_line(error)}"}, ""
    return fields | counted | ({"accept_histogram": list(histogram)} if histogram else {}), ""


def _one_line(error: InputError) -> str:
    return str(error).replace("\n", "; ")


def _vllm(snapshot: Snapshot, common: dict[str, Any]) -> Iterator[Reading | LeftOut]:
    """Counts, and the mean gap between a request's chunks: a cycle where it drafts, a step where it does not."""
    fields, wrong = _counted(snapshot, common)
    total, gaps = (snapshot.totals.get(f"inter_token_latency_seconds_{name}") for name in ("sum", "count"))
    gap = rounded(total / gaps * 1000) if total and gaps else None
    if wrong:
        yield LeftOut(wrong, 1, snapshot.first, snapshot.last)
    elif fields is not None:
        yield Reading(fields, snapshot.first, snapshot.last, {"cycle_ms": gap} if gap else {})
    elif gap is not None:
        yield Reading({**common, "method": "none"}, snapshot.first, snapshot.last, {"decode_ms": gap})
    else:
        yield LeftOut("metrics of a server that has decoded nothing", 1, snapshot.first, snapshot.last)


def _llama_cpp(snapshot: Snapshot, common: dict[str, Any]) -> Iterator[Reading | LeftOut]:
    """Counts; times are summed over slots and requests, and stay with each request's own timings."""
    fields, wrong = _counted(snapshot, common)
    if fields is not None:
        yield Reading(fields, snapshot.first, snapshot.last)
    else:
        yield LeftOut(wrong or "metrics of a server that drafted nothing", 1, snapshot.first, snapshot.last)


def _sglang(snapshot: Snapshot, common: dict[str, Any]) -> Iterator[Reading | LeftOut]:
    """The last log interval's gauges, and the length over all finished requests from counters."""
    totals = snapshot.totals
    gauges = {"num_steps": "spec_num_steps", "num_draft_tokens": "spec_num_draft_tokens"}
    spec = {name: int(totals[gauge]) for name, gauge in gauges.items() if totals.get(gauge)}
    theirs = METRIC_NAMES["sglang"]
    tokens, cycles = totals.get(theirs.output_tokens), totals.get(theirs.cycles)
    used = False
    if tokens and cycles and tokens >= cycles:
        told = (
            "tokens of finished requests over their cycles; each request's first token, of the prefill, is among them"
        )
        length = {"accept_length": rounded(tokens / cycles), "implied": "accept_length", "cycles": int(cycles)}
        fields = {**common, **spec, **length, "note": f"{common['note']}; {told}"}
        used = True
        yield Reading(fields, snapshot.first, snapshot.last)
    running, speed, length_now = (totals.get(n) for n in (theirs.running, "gen_throughput", "spec_accept_length"))
    if running and speed and sum(label.startswith("dp_rank=") for label in snapshot.pedigree) > 1:
        yield LeftOut("gauges of several data-parallel ranks: no batch is told", 1, snapshot.first, snapshot.last)
    elif running and speed:
        now: dict[str, Any] = {
            "batch_size": int(running),
            "output_tok_s": speed,
            "note": "gauges of the last log interval",
        }
        if context := totals.get("decode_sum_seq_lens"):
            now["context_len"] = round(context / running)
        drafted = {**spec, "accept_length": length_now} if length_now and length_now >= 1 else {}
        used = True
        yield Reading({**common, **now, **drafted}, snapshot.first, snapshot.last)
    if not used:
        yield LeftOut("metrics of an idle server without draft counters", 1, snapshot.first, snapshot.last)
