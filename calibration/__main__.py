"""`python -m calibration`: one subcommand a measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from specsim.errors import SpecsimError

COUNTS = "1,4,16,64"


def counts(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Whole numbers above 0, as in 1,4,16."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{value!r} is no list of whole numbers such as 1,4,16")
    return tuple(dict.fromkeys(int(part) for part in parts))


model_option = click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    help="A Hugging Face config.json, or the folder that holds it.",
)
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Of weights and all that is drawn.")


def budget_option(minutes: float, what: str = "Stop measuring") -> Callable[..., Any]:
    """--budget; what is done when it is over stands first in its help."""
    return click.option(
        "--budget",
        type=click.FloatRange(min=0, min_open=True),
        default=minutes,
        show_default=True,
        metavar="MINUTES",
        help=f"{what} after so long; the same command goes on.",
    )


def shared_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The model, the budget, the result file and the seed."""
    output = click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        help="The runs file; one that is there is gone on with.",
    )
    return model_option(budget_option(10.0)(output(seed_option(command))))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": False})
def group() -> None:
    """Measure runs on this machine, in the form that specsim fits. GPU settings are never touched."""


@group.command("forward", epilog="\b\nExample:\n  python -m calibration forward --model config.json -o forward.json")
@shared_options
@click.option("--batch-size", callback=counts, default=COUNTS, show_default=True, help="Requests.")
@click.option(
    "--num-draft-tokens",
    callback=counts,
    default="1,2,4,8,16",
    show_default=True,
    help="Tokens of each; 1 is plain decode.",
)
@click.option(
    "--context-len", callback=counts, default="512,4096", show_default=True, help="Tokens of each in the KV cache."
)
@click.option("--most-tokens", type=int, default=1024, show_default=True, help="Leave out wider forwards.")
@click.option(
    "--extra-widths",
    type=int,
    default=6,
    show_default=True,
    help="Widths added where the slope changes, at the smallest batch and context.",
)
@click.option("--eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--skew", type=float, default=0.0, show_default=True, help="Expert popularity falls as rank^-SKEW.")  # fmt: skip
def forward_command(**options: Any) -> None:
    """Time bare forwards of the target, with head and sampling over a real KV cache, and of a one-layer drafter."""
    from calibration.commands import run_forward

    run_forward(**options)


@group.command(
    "cycle", epilog="\b\nExample:\n  python -m calibration cycle --model config.json --trees 3/4/8,5/4/16 -o cycle.json"
)
@shared_options
@click.option("--chains", callback=counts, default="1,3,7", show_default=True, help="Steps of the chains.")
@click.option("--trees", default="", help="Trees as steps/topk/draft tokens, such as 3/4/8,5/4/16.")
@click.option("--batch-size", callback=counts, default="1,4,16", show_default=True, help="Requests.")
@click.option("--context-len", type=int, default=512, show_default=True, help="Tokens of each in the KV cache.")
@click.option("--accept-rate", type=click.FloatRange(0, 1), default=0.7, show_default=True, help="Forced: chance of each further draft.")  # fmt: skip
def cycle_command(**options: Any) -> None:
    """Time whole speculative cycles: drafting, tree, verify under its mask, forced acceptance, re-extend, KV moves."""
    from calibration.commands import run_cycle

    run_cycle(**options)


@group.command(
    "quick", epilog="\b\nExample:\n  python -m calibration quick --model config.json --budget 5 -o calibrated"
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("calibrated"),
    show_default=True,
    help="A folder for the runs, the model and the plot.",
)
@model_option
@budget_option(5.0)
@seed_option
def quick_command(**options: Any) -> None:
    """From nothing to a model: measure forwards, fit them, draw the fit, and say what it cannot know."""
    from calibration.commands import run_quick

    run_quick(**options)


@group.command(
    "serve",
    epilog="\b\nExample:\n  python -m calibration serve --model config.json --num-draft-tokens 1,2,4,8 -o served.json",
)
@shared_options
@click.option("--engine", type=click.Choice(["vllm", "sglang"]), default="vllm", show_default=True, help="What serves.")
@click.option(
    "--num-draft-tokens",
    callback=counts,
    default="1,2,4,8",
    show_default=True,
    help="Tokens of a request in a cycle, a chain and a server each; 1 is plain decode.",
)
@click.option("--trees", default="", help="Trees as steps/topk/draft tokens, such as 3/4/8,5/4/16 (SGLang).")
@click.option("--batch-size", callback=counts, default=COUNTS, show_default=True, help="Requests at once.")
@click.option("--context-len", callback=counts, default="128", show_default=True, help="Tokens of each prompt.")
@click.option(
    "--settings",
    default="default",
    show_default=True,
    help="NCCL settings, a server each: labels, or 'all'. On one GPU wait-5 and wait-20: so many µs in each all-reduce's place (vLLM).",
)
@click.option("--tensor-parallel", type=click.IntRange(min=1), default=1, show_default=True, help="GPUs of a server.")
@click.option(
    "--accept-rate",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    help="Forced: chance of each further draft.",
)
@click.option("--eager", is_flag=True, help="Without CUDA graphs.")
@click.option(
    "--servers-at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Servers that are started together and share the GPU's memory; loads still come one by one.",
)
@click.argument("server_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVER_ARGS...]")
def serve_command(**options: Any) -> None:
    """Start a real server without weights for each configuration, the one that teaches most next, and load it over HTTP.

    What follows -- is handed to the server as it is.
    """
    from calibration.served import run_serve

    run_serve(**options)


@group.command(
    "allreduce",
    epilog="\b\nExample:\n  python -m calibration allreduce --ranks 2 --model config.json -o allreduce.csv",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The CSV that specsim comm reads; one that is there is gone on with.",
)
@click.option("--ranks", type=click.IntRange(min=2), help="GPUs, a process each.  [default: all; without GPUs 2]")
@click.option(
    "--settings", default="default,Ring-LL,Ring-Simple", show_default=True, help="NCCL's, by label, or 'all'."
)
@click.option(
    "--implementations",
    default="nccl",
    show_default=True,
    help="What carries messages, or 'all': nccl, one-shot, two-shot (torch symmetric memory), vllm (what it takes itself), vllm-nccl"
    " (NCCL as vLLM calls it).",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True),
    help="Time a tensor-parallel forward of this model, too, and what its all-reduces take there.",
)
@budget_option(10.0, "Begin no setting")
@seed_option
def allreduce_command(**options: Any) -> None:
    """Time all-reduces of 1 KiB to 4 MiB and gathers of logits, by NCCL setting and implementation, each in its own processes."""
    from calibration.commands import run_allreduce

    run_allreduce(**options)


def main() -> None:
    """Run a subcommand; bad input ends with its sentence and exit code 2."""
    try:
        group(standalone_mode=True)
    except SpecsimError as error:
        for line in str(error).splitlines():
            click.echo(f"calibration: {line}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
