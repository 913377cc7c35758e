"""`specsim simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from specsim.cli.options import (
    Source,
    accept_rate_option,
    counts,
    example,
    json_option,
    show,
    source_options,
    written,
)
from specsim.cli.progress import Progress

_PATH = click.Path(path_type=Path)


def numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[float, ...]:
    """Numbers above 0 of a text such as 0.5,2,8."""
    try:
        found = tuple(float(piece) for piece in value.split(",")) if value else ()
    except ValueError:
        found = (0.0,)
    if not all(0 < each < float("inf") for each in found):
        raise click.BadParameter(f"{value!r} is not a list of numbers above 0, such as 0.5,2,8")
    return found


def steps_table(_: click.Context, __: click.Parameter, value: str | None) -> tuple[tuple[int, int], ...]:
    """Batch sizes and steps of a text such as 1:7,8:3,32:0."""
    rows = [piece.strip().split(":") for piece in value.split(",")] if value else []
    if not all(len(row) == 2 and all(each.isdecimal() for each in row) for row in rows):
        raise click.BadParameter(f"{value!r} is no table of batch size and steps, such as 1:7,8:3,32:0")
    return tuple((int(start), int(steps)) for start, steps in rows)


def configuration_options(command: Any) -> Any:
    """What is drafted, and at which batch sizes."""
    for option in reversed(
        (
            click.option("--num-draft-tokens", type=int, help="Tokens verified a request and cycle, root included."),
            click.option("--num-steps", type=int, help="Drafting depth; with topk 1 it follows from draft tokens."),
            click.option("--topk", type=int, help="Branches a draft step keeps; 1 is a chain."),
            click.option("--off-above", type=click.IntRange(min=1), metavar="BATCH", help="Plain decode above this batch size."),
            click.option("--steps-by-batch", callback=steps_table, metavar="TABLE",
                         help="Steps by the batch size from which they hold, such as 1:7,8:3,32:0; 0 is plain decode."),
            click.option("--nccl", help="NCCL setting, by its label.  [default: the one with most measured]"),
            click.option("--between-prompts", type=click.FloatRange(min=0), default=0.0, show_default=True,
                         help="Relative spread of accept length from prompt to prompt."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def load_options(command: Any) -> Any:
    """What arrives."""
    for option in reversed(
        (
            click.option("--request-rate", callback=numbers, metavar="RATES",
                         help="Requests a second, such as 2,5,10.  [default: shares of what can be served]"),
            click.option("--concurrency", callback=counts, metavar="COUNTS",
                         help="A closed loop instead: requests in flight, such as 1,8,64."),
            click.option("--trace", type=_PATH, help="A CSV instead: arrival_ms, prompt_len, output_len."),
            click.option("--prompt-len", default="512", show_default=True, metavar="LENGTH",
                         help="Prompt tokens: 512, 100-900 (uniform) or 512~0.8 (log-normal, mean ~ relative spread)."),
            click.option("--output-len", default="256", show_default=True, metavar="LENGTH", help="Output tokens, likewise."),
            click.option("--requests", type=click.IntRange(min=1), default=4000, show_default=True,
                         help="Requests of a replica."),
            click.option("--replicas", type=click.IntRange(min=1), default=5, show_default=True,
                         help="Repeats of every load."),
            click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of everything drawn."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def server_options(command: Any) -> Any:
    """What the server may do at once, what prompts take, and what counts as good."""
    for option in reversed(
        (
            click.option("--max-batch-size", type=click.IntRange(min=1),
                         help="Requests running together at most.  [default: the largest measured]"),
            click.option("--max-batched-tokens", type=click.IntRange(min=1), default=8192, show_default=True,
                         help="Tokens of a step at most."),
            click.option("--chunked-prefill/--whole-prompts", default=True, show_default=True,
                         help="Prompts beside decoding, or in steps of their own."),
            click.option("--kv-tokens", type=click.IntRange(min=1), help="Tokens in the KV cache.  [default: never full]"),
            click.option("--prefill-ms-per-1000-tokens", type=click.FloatRange(min=0),
                         help="What prompts take.  [default: verify's slope, labelled as assumed]"),
            click.option("--slo-ttft-ms", type=float, help="Goodput counts requests whose first token comes in time,"),
            click.option("--slo-tpot-ms", type=float, help="whose further tokens do,"),
            click.option("--slo-e2e-ms", type=float, help="and whose last one does."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(
    "simulate",
    epilog=example(
        "specsim simulate --num-draft-tokens 6 --nccl LL-Ring-SYS --request-rate 0.1,0.2,0.3 --requests 400"
    ),
)
@configuration_options
@load_options
@server_options
@accept_rate_option
@source_options
@click.option("-o", "--output", type=_PATH, help="Write every simulated request here, as CSV.")
@click.option("--plots", type=_PATH, help="Write plots into this folder: latency by load, accept lengths, a benchmark.")
@click.option("--prompts", type=click.IntRange(min=1), default=5, show_default=True,
              help="Prompts of the benchmark whose spread is drawn.")  # fmt: skip
@json_option
def command(
    source: Source, output: Path | None, plots: Path | None, prompts: int, as_json: bool, **options: Any
) -> None:
    """Simulate a server under load, with and without speculation, and tell at which request rate it stops paying.

    Continuous batching: requests arrive, prompts are read, the batch runs cycle after cycle, requests end. Cycles are
    priced by the model of RUNS, what they accept is drawn from the runs' law.
    """
    from specsim.report.simulate import simulation_record, simulation_text, write_rows

    done = _study(source, options)
    record = simulation_record(done)
    if plots is not None:
        record["files"] = [str(path) for path in _plots(done, plots, prompts)]
    show(record, lambda: simulation_text(record), as_json)
    if output is not None:
        count: list[int] = []
        written(output, lambda path: count.append(write_rows(done, path, Progress("write"))))
        click.echo(f"{count[0]:,} requests written to {output}", err=True)
    for path in record.get("files", []):
        click.echo(path, err=True)


def _study(source: Source, options: dict[str, Any]) -> Any:
    """Run what the options ask for."""
    from specsim.metrics import Slo
    from specsim.simulation.arrivals import ClosedLoad, Lengths, TraceLoad, read_trace
    from specsim.simulation.study import Limits, Question, rates, study
    from specsim.sweep import assumed_law, law_from

    if sum(bool(options[name]) for name in ("request_rate", "concurrency", "trace")) > 1:
        raise click.UsageError("--request-rate, --concurrency and --trace are three kinds of load: give one")
    _refuse_beside_a_trace(options)
    model = source.model()
    rate, trace = options["accept_rate"], options["trace"]
    prompts, outputs = (Lengths.parsed(options[name]) for name in ("prompt_len", "output_len"))
    recorded = None if trace is None else read_trace(trace)
    means = (prompts.mean, outputs.mean)
    if recorded is not None:
        means = (float(recorded.prompt_len.mean()), float(recorded.output_len.mean()))
    question = Question(
        _policy(model, options),
        law_from(model) if rate is None else assumed_law(rate),
        *means,
        Limits(*(options[name] for name in ("max_batch_size", "max_batched_tokens", "chunked_prefill", "kv_tokens"))),
        options["between_prompts"],
        options["prefill_ms_per_1000_tokens"],
        options["nccl"],
    )
    limits = [options[f"slo_{name}_ms"] for name in ("ttft", "tpot", "e2e")]
    slo = None if limits == [None] * 3 else Slo(*limits)

    def loads(servers: Any) -> Any:
        if recorded is not None:
            return [TraceLoad(recorded)]
        if options["concurrency"]:
            return [ClosedLoad(count, options["requests"], prompts, outputs) for count in options["concurrency"]]
        return rates(servers, prompts, outputs, options["requests"], options["request_rate"])

    return study(model, question, loads, replicas=options["replicas"], seed=options["seed"], slo=slo,
                 progress=Progress("simulate"))  # fmt: skip


def _refuse_beside_a_trace(options: dict[str, Any]) -> None:
    """A trace has its own requests: what was stated of others would be passed over."""
    source = click.get_current_context().get_parameter_source
    stated = [name for name in ("requests", "prompt_len", "output_len") if source(name) is ParameterSource.COMMANDLINE]
    if options["trace"] and stated:
        raise click.UsageError(f"a trace has its own requests: leave --{stated[0].replace('_', '-')} out")


def _policy(model: Any, options: dict[str, Any]) -> Any:
    """What is drafted by batch size: as stated, else the one configuration that was measured."""
    from specsim.quantities import SpecConfig
    from specsim.simulation.policies import Policy
    from specsim.sweep import drafting_method

    stated = {name: options[name] for name in ("num_steps", "topk", "num_draft_tokens")}
    table, above, method = options["steps_by_batch"], options["off_above"], drafting_method(model)
    if table:
        if above is not None or any(value is not None for value in stated.values()):
            raise click.UsageError("--steps-by-batch says all that is drafted: leave the other options of drafting out")
        return Policy.steps_by_batch(table, method)
    if any(value is not None for value in stated.values()):
        spec = SpecConfig.of(**stated, method=method)
    else:
        found = {(m.num_steps, m.topk, m.num_draft_tokens) for m in model.measured if m.num_steps > 0}
        if len(found) != 1:
            listed = ", ".join("/".join(map(str, each)) for each in sorted(found)) or "none"
            raise click.UsageError(f"state --num-draft-tokens; measured (steps/topk/draft tokens): {listed}")
        spec = SpecConfig(*found.pop(), method)
    return Policy.fixed(spec) if above is None else Policy.off_above(spec, above)


def _plots(done: Any, folder: Path, prompts: int) -> list[Path]:
    """Draw every plot that the study has, as PNG and SVG."""
    from specsim.report.plots import FORMATS, save
    from specsim.report.simulate_plots import drawings

    written(folder, lambda path: path.mkdir(parents=True, exist_ok=True))
    files = []
    for name, draw in drawings(done, prompts, Progress("benchmarks")):
        figure = draw()
        for form in FORMATS:
            path = folder / f"{name}.{form}"
            written(path, lambda to, figure=figure: save(figure, to))  # type: ignore[misc]
            files.append(path)
    return files
