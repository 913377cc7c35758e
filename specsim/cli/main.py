"""The `specsim` command; a subcommand's module is imported when it is called, so that --help is instant."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from specsim.errors import SpecsimError

_COMMANDS = {
    "import": "Read server logs, metrics and benchmark results as runs.",
    "fit": "Fit a cost model to measured runs.",
    "predict": "Predict cycle time, throughput and speed-up.",
    "break-even": "Tell the accept length that speculation needs to pay.",
    "accept": "Tell the accept length to expect of a configuration.",
    "sweep": "Find the best steps, topk and draft tokens, and what cannot be told from it.",
    "evaluate": "Hold a model against measured runs: differences, intervals, coverage.",
    "check": "Hold a model against a live server: PASS, FAIL or INCONCLUSIVE.",
    "compare": "Tell whether two benchmarks differ, and how many prompts would tell.",
    "next-run": "Tell which measurement to make next.",
    "comm": "Tell what another all-reduce setting does to step times.",
    "simulate": "Simulate a server under load, and tell at what request rate speculation stops paying.",
    "plot": "Draw break-even, cycle and throughput plots, and maps of a sweep.",
}


class _Commands(click.Group):
    """Lists commands without loading them, and prints specsim's errors without a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")  # import is a keyword
        module = import_module(f"specsim.cli.{name}")
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpecsimError as error:
            click.echo("\n".join(f"specsim: {line}" for line in str(error).splitlines()), err=True)
            ctx.exit(2)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            click.echo(f"specsim: the output cannot be written ({error.strerror})", err=True)
            ctx.exit(2)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  specsim break-even --num-draft-tokens 4 --nccl LL-Ring-SYS",
)
@click.version_option(package_name="specsim-llm", message="specsim %(version)s")
def main() -> None:
    """Tell whether speculative decoding will pay, before the server is started.

    Every command takes run files (CSV, JSON, JSONL: docs/data-format.md); without any it answers for the
    bundled campaign, Kimi-K2.5 on eight GPUs without NVLink.
    """
