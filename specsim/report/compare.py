"""Two benchmarks held against each other, and planned ones, as records and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from specsim.report.records import Record
from specsim.report.tables import number, some, table, wrapped
from specsim.simulation.comparison import DIFFERENT, POWER, SIGNIFICANCE, Comparison, Measured, Planned

STARTS = "what differs from one start of a server to the next is in no number of prompts: repeat the starts as well"
"""What no count of prompts averages out, whatever is compared."""

_TESTS = {
    "welch": "Welch's t test on log throughput, prompts of the two counted as independent",
    "paired": "paired t test on log throughput, prompt by prompt",
}


def comparison_record(found: Comparison, differing: Iterable[str], notes: Iterable[str]) -> Record:
    """A comparison: verdict, confidence and prompts needed at the top, then what they rest on."""
    return {
        "verdict": found.verdict,
        "confidence": found.confidence,
        "prompts_needed": found.prompts_needed,
        "probability_second_faster": found.probability_second_faster,
        "ratio": found.ratio,
        "ratio_interval": found.ratio_interval,
        "interval_level": 1 - SIGNIFICANCE,
        "standard_error": found.standard_error,
        "dof": found.dof,
        "test": found.test,
        "significance": SIGNIFICANCE,
        "power": POWER,
        "same_prompts": found.same_prompts,
        "same_prompts_needed": found.same_prompts_needed,
        "unpaired": list(found.unpaired),
        "benchmarks": [_benchmark(found.first), _benchmark(found.second)],
        "differing": list(differing),
        "notes": [*notes, STARTS],
    }


def _benchmark(one: Measured) -> Record:
    return {
        "name": one.name,
        "tok_s": one.tok_s,
        "prompts": one.prompts,
        "spread": one.spread,
        "output_len": one.output_len,
        "within": one.within,
        "standard_error": one.standard_error,
        "standard_error_within": one.standard_error_within,
        "per_prompt": bool(one.by_prompt),
    }


def plan_record(difference: float, rows: Iterable[Planned], output_len: int | None, notes: Iterable[str]) -> Record:
    """A plan: the row of the output length that the spread was seen at on top, all of them under `rows`."""
    listed = [asdict(row) for row in rows]
    first = next((row for row in listed if row["output_len"] == output_len), listed[0])
    rest = {"significance": SIGNIFICANCE, "power": POWER, "rows": listed, "notes": [*notes, STARTS]}
    return {"difference": difference, **first, **rest}


# -- text --------------------------------------------------------------------------------------------------------------


def comparison_text(record: Record) -> str:
    """The verdict in a sentence, the two benchmarks, and what qualifies both."""
    columns = ("benchmark", "tok/s", "prompts", "spread", "output tokens", "standard error", "of which cycles")
    drawn = table(columns, [_cells(each) for each in record["benchmarks"]])
    verdict = [wrapped(line, "") for line in (_verdict(record), _needed(record))]
    return "\n".join([*verdict, "", drawn, "", *(wrapped(f"* {line}", "  ") for line in _labels(record))])


def _cells(each: Record) -> tuple[str, ...]:
    within = each["standard_error_within"]
    return (
        each["name"],
        f"{each['tok_s']:.1f}",
        str(each["prompts"]),
        f"{each['spread']:.0%}",
        number(each["output_len"], 0),
        f"{each['standard_error']:.1%}",
        "–" if within is None else f"{within:.1%}",
    )


def _verdict(record: Record) -> str:
    first, second = (each["name"] for each in record["benchmarks"])
    ends = " to ".join(f"{end - 1:+.1%}" for end in record["ratio_interval"])
    word = "DIFFERENT" if record["verdict"] == DIFFERENT else "NOT DISTINGUISHABLE"
    change = f"{second} is {record['ratio'] - 1:+.1%} against {first} ({ends} at {record['interval_level']:.0%})"
    return f"{word}: {change}; {_sure(record['confidence'])} that they differ"


def _sure(confidence: float) -> str:
    return "more than 99.9% sure" if confidence > 0.999 else f"{confidence:.1%} sure"


def _means(benchmarks: Sequence[Record]) -> Iterator[str]:
    """What the throughput of single prompts was made of."""
    known = [each["name"] for each in benchmarks if each["per_prompt"]]
    if len(known) == 2:
        yield "throughput is the geometric mean of the prompts"
    elif known:
        yield f"throughput of {known[0]} is tokens over time of its prompts (harmonic mean), as a benchmark tells it"


def _needed(record: Record) -> str:
    if record["prompts_needed"] is None:
        return "no number of prompts tells two equal throughputs apart"
    which = "prompts, the same in both," if record["test"] == "paired" else "prompts in each benchmark"
    line = f"a true difference of this size takes {record['prompts_needed']:,} {which} to be seen ({_aim(record)})"
    if record["same_prompts_needed"] is not None:
        line += f"; with the same prompts in both, compared one by one, at least {record['same_prompts_needed']:,}"
    return line


def _aim(record: Record) -> str:
    return f"{record['power']:.0%} power at {record['significance']:.0%}, two-sided"


def _labels(record: Record) -> Iterator[str]:
    yield f"{_TESTS[record['test']]}, {record['dof']:.1f} degrees of freedom; spreads are relative standard deviations"
    if not all(each["per_prompt"] for each in record["benchmarks"]):
        yield "a stated spread counts as estimated from these prompts, no better"
    yield from _means(record["benchmarks"])
    if record["same_prompts_needed"] is not None:
        yield "that least number counts the draws of cycles alone: it holds if a prompt moves both benchmarks alike"
    if record["unpaired"]:
        yield f"left out of the ratio, because in one benchmark only: {some(record['unpaired'])}"
    elif record["test"] == "welch" and all(each["per_prompt"] for each in record["benchmarks"]):
        yield "fewer than two prompts are in both: nothing was paired"
    if record["differing"]:
        yield f"MIXED: the two also differ in {', '.join(record['differing'])}; a difference is of all of it together"
    yield from record["notes"]


def plan_text(record: Record) -> str:
    """What to run in a sentence, the numbers by output length, and what qualifies them."""
    columns = ["output tokens", "spread", "of prompts", "of cycles", "prompts in each", "the same in both"]
    rows = table(columns, [_planned_cells(row) for row in record["rows"]])
    return "\n".join(
        [wrapped(_plan(record), ""), "", rows, "", *(wrapped(f"* {n}", "  ") for n in _plan_labels(record))]
    )


def _plan(record: Record) -> str:
    long = "" if record["output_len"] is None else f" of {record['output_len']:,} tokens"
    line = f"to see {100 * record['difference']:.3g}% ({_aim(record)}), run {_count(record['prompts_needed'])} prompts{long}"
    line += " in each benchmark"
    if record["same_prompts_needed"] is None:
        return line
    least = "at least " if record["same_prompts_least"] else ""
    return f"{line}, or {least}{_count(record['same_prompts_needed'])} prompts{long} that are the same in both"


def _count(prompts: int | None) -> str:
    return "no possible number of" if prompts is None else f"{prompts:,}"


def _planned_cells(row: Record) -> list[str]:
    parts = [row[name] for name in ("spread", "between", "within")]
    pairs = "–" if row["same_prompts_needed"] is None else f"{row['same_prompts_needed']:,}"
    return [
        "–" if row["output_len"] is None else f"{row['output_len']:,}",
        *("–" if part is None else f"{part:.1%}" for part in parts),
        _count(row["prompts_needed"]),
        f"≥ {pairs}" if row["same_prompts_least"] else pairs,
    ]


def _plan_labels(record: Record) -> Iterator[str]:
    yield f"{_TESTS['welch']}; with the same prompts in both, a {_TESTS['paired']}"
    if record["same_prompts_least"]:
        yield (
            "the least number counts the draws of cycles alone: it holds if a prompt moves both benchmarks alike;"
            " files with single prompts' figures of both tell whether it does"
        )
    if record["within"] is None:
        yield "how far cycles scatter is not known (accept length, steps, output length): no other output length is planned"
    yield from record["notes"]
