"""`specsim comm`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from specsim.cli.options import counts, example, json_option, labelled_file, read_runs, show, written
from specsim.cost.allreduce import LINKS
from specsim.cost.custom_allreduce import Wiring
from specsim.cost.model import CostModel
from specsim.cost.step_change import Shape
from specsim.fitting import fit
from specsim.methods import ENGINES, METHODS, method_named
from specsim.quantities import SpecConfig
from specsim.report.comm import Compared, comm_record, comm_text, curves_of, prior_curves, with_settings
from specsim.report.comm_story import campaign_comm_record, campaign_comm_text
from specsim.runs.allreduce_files import load_allreduce, load_published

WIDTHS = (1, 2, 4, 6, 8)
_EXAMPLE = "specsim comm --link pcie --ranks 8 --layers 61 --hidden-size 7168 --from prior:Ring-LL"


def model_options(command: Any) -> Any:
    """What is communicated, by which cycles, over what."""
    options = (
        click.option("--layers", type=int, help="Layers of the target; two all-reduces each."),
        click.option("--hidden-size", type=int, help="Hidden size of the target."),
        click.option("--vocab-size", type=int,
                     help="Vocabulary, where it is split over the GPUs (vLLM, SGLang): the embedding's all-reduce and"
                          " the logits' gather count too."),
        click.option("--bytes-per-element", type=int, default=2, show_default=True, help="Of what is all-reduced."),
        click.option("--draft-layers", type=int, help="Layers of a drafter that is split over the GPUs too."),
        click.option("--draft-hidden-size", type=int, help="Its hidden size.  [default: the target's]"),
        click.option("--draft-vocab-size", type=int, help="Its own vocabulary (EAGLE-3: often 32,000), where its head is split too."),
        click.option("--batch-size", callback=counts, metavar="COUNTS", default="1", show_default=True,
                     help="Requests running together."),
        click.option("--num-draft-tokens", callback=counts, metavar="COUNTS",
                     help="Tokens verified a request and cycle, root included.  [default: 1,2,4,6,8]"),
        click.option("--num-steps", type=int, help="Drafting depth of a tree.  [default: a chain's]"),
        click.option("--topk", type=int, default=1, show_default=True, help="Branches a draft step keeps."),
        click.option("--method", type=click.Choice(list(METHODS)), default="eagle3", show_default=True,
                     help="Drafting method, for the drafter's forwards."),
        click.option("--engine", type=click.Choice(ENGINES), help="Engine, for those and for custom all-reduces.  [default: the model's]"),
        click.option("--engine-version", help="Its version.  [default: the model's, else the newest known]"),
        click.option("--arch", help="The GPUs' architecture, such as sm90; decides vLLM's custom all-reduce."),
        click.option("--link", type=click.Choice(LINKS), help="How the GPUs are connected."),
        click.option("--ranks", type=int, help="GPUs that reduce together.  [default: the tables', where they say it]"),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command("comm", epilog=example(_EXAMPLE))
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@model_options
@click.option("--bus-gb-s", type=float, help="Bus bandwidth for the prior.  [default: by link]")
@click.option("--from", "before", help="Setting to compare with.  [default: the first]")
@click.option("--to", "after", help="Setting to compare.  [default: every other]")
@click.option("--in-place", is_flag=True, help="Use in-place times where a table has both.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the changes into this file (.png or .svg).")
@click.option(
    "--model",
    "model_path",
    type=click.Path(path_type=Path),
    help="A fitted model whose runs were made under --from: give it the other settings, too.",
)
@click.option("--save-model", type=click.Path(path_type=Path), help="Where to write that model, for --model elsewhere.")
@json_option
def command(
    tables: tuple[str, ...],
    before: str | None,
    after: str | None,
    in_place: bool,
    bus_gb_s: float | None,
    output: Path | None,
    model_path: Path | None,
    save_model: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell what another all-reduce setting does to verify and decode time, from tables of single all-reduces.

    TABLE is nccl-tests' output or CSV (docs/data-format.md), or LABEL=FILE; one of gathers may stand beside them. Without any, --link and --ranks give
    NCCL's own model as a prior; without anything it tells of the bundled campaign's 122 all-reduces. With --model and
    --save-model a fitted model learns of settings that were never run, for predict, break-even and sweep.
    """
    if (model_path is None) != (save_model is None):
        raise click.UsageError("--model is read and --save-model written: state both, or neither")
    if not _stated():
        _tell_campaign(output, as_json)
        return
    model = None if model_path is None else CostModel.load(model_path)
    if model is not None:
        options |= _of_model(model, options)
    asked, table = _compared(tables, in_place, bus_gb_s, options)
    record = comm_record(asked, before, after, table)
    if model is not None and save_model is not None:
        written(save_model, with_settings(model, asked, before, after, table).save)
        click.echo(f"model written to {save_model}", err=True)
    if output is not None:
        _draw("comm_figure", record, output)
    show(record, lambda: comm_text(record), as_json)


def _of_model(model: CostModel, options: dict[str, Any]) -> dict[str, Any]:
    """Engine, version and graph mode of a model's runs, where they are not stated; raises UsageError where another engine is."""
    ran = model.setup.engine
    engine = options["engine"] or ran
    if ran is not None and str(engine).lower() != ran.lower():
        raise click.UsageError(
            f"--engine {engine}, but --model's runs were made on {ran}: leave it out, or give a model of {engine}"
        )
    version = options["engine_version"] or (model.setup.engine_version if ran is not None else None)
    return {"engine": engine, "engine_version": version, "eager": model.setup.cuda_graph is False}


def _stated() -> bool:
    """Whether anything was asked beyond the campaign's story."""
    context = click.get_current_context()
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return bool(given - {"output", "as_json"})


def _tell_campaign(output: Path | None, as_json: bool) -> None:
    campaign = read_runs(())
    record = campaign_comm_record(campaign, fit(campaign).model, load_published())
    if output is not None:
        _draw("campaign_comm_figure", record, output)
    show(record, lambda: campaign_comm_text(campaign.about, record), as_json)


def _compared(
    tables: tuple[str, ...], in_place: bool, bus_gb_s: float | None, options: dict[str, Any]
) -> tuple[Compared, Any]:
    """The question that the options and tables put, and the table itself; None for a prior."""
    if options["layers"] is None or options["hidden_size"] is None:
        raise click.UsageError("--layers and --hidden-size say how many bytes are reduced how often: state both")
    if tables and bus_gb_s is not None:
        raise click.UsageError("--bus-gb-s is for the prior, which a TABLE stands instead of: leave one of them out")
    table, files, ranks = None, {}, options["ranks"]
    if tables:
        table = load_allreduce([labelled_file(word) for word in tables])
        settings = table.settings(in_place)
        curves, of_nccl = curves_of(settings)
        files = {setting.label: setting.files for setting in settings}
        ranks = ranks or next((s.ranks for s in settings if s.ranks), None)
    elif options["link"] is None or ranks is None:
        raise click.UsageError("without a TABLE, --link and --ranks choose NCCL's own model as a prior: state both")
    else:
        curves, of_nccl = prior_curves(options["link"], ranks, bus_gb_s)
    return Compared(curves, of_nccl, *_shapes(options), _spec(options), options["batch_size"],
                    _wiring(options, ranks), options["engine"], options["engine_version"],
                    options.get("eager", False), files), table  # fmt: skip


def _shapes(options: dict[str, Any]) -> tuple[Shape, Shape | None]:
    element = options["bytes_per_element"]
    hidden = options["draft_hidden_size"] or options["hidden_size"]
    drafted = options["draft_layers"]
    ignored = [name for name in ("draft_hidden_size", "draft_vocab_size") if options[name] is not None]
    if drafted is None and ignored:
        raise click.UsageError(
            f"--{ignored[0].replace('_', '-')} is of a drafter that is split: state --draft-layers, too"
        )
    target = Shape(options["layers"], options["hidden_size"], element, vocab_size=options["vocab_size"])
    vocabulary = options["draft_vocab_size"]
    return target, None if drafted is None else Shape(drafted, hidden, element, vocab_size=vocabulary)


def _spec(options: dict[str, Any]) -> SpecConfig:
    """The widths asked for, as chains of the method unless steps or topk make them trees."""
    widths = np.array(options["num_draft_tokens"] or WIDTHS, dtype=np.int64)
    steps, topk, method = options["num_steps"], options["topk"], options["method"]
    if steps is None and topk > 1:
        raise click.UsageError("a tree (--topk above 1) needs --num-steps")
    chain = widths - 1 if method_named(method).steps_bound_length else np.ones_like(widths)
    return SpecConfig(chain if steps is None else np.full_like(widths, steps), topk, widths, method)


def _wiring(options: dict[str, Any], ranks: int | None) -> Wiring | None:
    if options["engine"] is None or options["link"] is None or ranks is None:
        return None
    return Wiring(options["engine"], options["link"], ranks, options["arch"], options["engine_version"])


def _draw(figure: str, record: dict[str, Any], output: Path) -> None:
    from specsim.report import comm_plots
    from specsim.report.plots import FORMATS, save

    if output.suffix.lstrip(".") not in FORMATS:
        raise click.UsageError(f"{output}: plots are written as {' or '.join(FORMATS)}")
    written(output, partial(save, getattr(comm_plots, figure)(record)))
