"""`specsim check`."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import click

from specsim.cli.options import example, json_option, show
from specsim.cli.progress import Progress
from specsim.errors import Fault, InputError

EXIT = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}


@click.command(
    "check", epilog=example("specsim check http://localhost:30000 --model model.json --concurrency 8 --seconds 20")
)
@click.argument("url")
@click.option("--model", "model_path", required=True, type=click.Path(path_type=Path),
              help="The model from 'specsim fit -o' whose predictions are checked.")  # fmt: skip
@click.option("--baseline-url", metavar="URL",
              help="The same server without speculation, measured in turns: also checks speed-up and break-even.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(min=1),
              help="Requests at once, the batch size of the prediction.  [default: the largest that the model measured]")  # fmt: skip
@click.option("--prompts", type=click.Path(path_type=Path), metavar="FILE.jsonl",
              help="Your own prompts, a line each with prompt, messages or turns.  [default: 160 of specsim's]")  # fmt: skip
@click.option("--output-len", type=click.IntRange(min=16), default=512, show_default=True, help="Tokens of an answer.")
@click.option("--seconds", type=click.FloatRange(min=1), default=60.0, show_default=True,
              help="Longest time to measure; it stops as soon as the verdict is sure.")  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True, metavar="PERCENT",
              help="How far measured and predicted may lie apart.")  # fmt: skip
@click.option("--num-draft-tokens", type=click.IntRange(min=1),
              help="Tokens verified a request and cycle, root included, where the server does not say; 1 is none.")  # fmt: skip
@click.option("--num-steps", type=int, help="Drafting depth; with topk 1 it follows from draft tokens.")
@click.option("--topk", type=int, help="Branches a draft step keeps; 1 is a chain.")
@click.option("--accept-length", type=float, help="Accept length to expect, bonus included.  [default: the model's]")
@click.option(
    "--nccl", help="NCCL setting that the server runs under, by its label in the model.  [default: its reference]"
)
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Where the measured runs go.  [default: specsim-check-TIME.json]")  # fmt: skip
@json_option
def command(api_key_env: str | None, as_json: bool, **options: Any) -> None:
    """Hold a model's predictions against a live server: PASS, FAIL or INCONCLUSIVE.

    Sends a steady load to URL over the OpenAI API and compares cycle, accept length, throughput and margin with what
    --model predicts for the server's own configuration. What was measured is written as runs before the verdict is
    told. Exits with 0, 1 or 3, and with 2 on bad input or a server that cannot be reached (docs/check.md).
    """
    from specsim.live.check import Asked, check
    from specsim.report.check import check_record, check_text

    asked = Asked(**options, api_key=_key(api_key_env))
    progress = Progress("check")
    try:
        record = check_record(asyncio.run(check(asked, progress)))
    except KeyboardInterrupt:
        click.echo("specsim: interrupted before anything was measured", err=True)
        raise click.exceptions.Exit(EXIT["INCONCLUSIVE"]) from None
    finally:
        progress.finish()
    show(record, lambda: check_text(record), as_json)
    raise click.exceptions.Exit(EXIT[record["verdict"]])


def _key(name: str | None) -> str | None:
    """The key in a variable of this name, never repeated; refused where no header could carry it."""
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key:
        raise InputError([Fault("--api-key-env", name, "is not set", "put the server's API key into it")])
    if not re.fullmatch(r"[!-~]+", key):
        raise InputError(
            [Fault("--api-key-env", name, "holds no API key", "a key is one line of ASCII without spaces")]
        )
    return key
