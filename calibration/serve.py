"""Servers without weights: which is started next, and what a load of one gives."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.checkpoints import texts
from calibration.engines import Deployment, Serving, setting_environment
from calibration.grids import teaching_order
from calibration.results import Row
from calibration.vllm_phases import PHASES
from specsim.errors import SpecsimError
from specsim.quantities import SETUP_FIELDS, SpecConfig

if TYPE_CHECKING:
    from specsim.cost.model import CostModel

INSTRUMENT = "loads over HTTP on a server without weights"
STARTS_WITHIN_S = 600.0
_MARKED = "its phases were marked, which takes time of its own"
FIRST_USE_S = {"sglang": 1.0}
"""Engines that compile kernels at the first use of a batch size: how long [s] each load is run before it counts."""

# -- which server next -------------------------------------------------------------------------------------------------


def servings(widths: Iterable[int], trees: Iterable[tuple[int, int, int]], settings: Sequence[str]) -> list[Serving]:
    """All servers in the order that teaches without a fit: plain decode first, settings in turn, ends before the middle."""
    widths = set(widths)
    chains = [SpecConfig(width - 1, 1, width, "eagle3") for width in teaching_order(widths - {1})]
    specs = [*chains, *(SpecConfig(*tree, "eagle3") for tree in trees)]
    ranked = [(0, None)] * (1 in widths) + list(enumerate(specs, 1))
    pairs = [(rank, place, Serving(spec, nccl)) for rank, spec in ranked for place, nccl in enumerate(settings)]
    return [serving for _, _, serving in sorted(pairs, key=lambda pair: (max(pair[:2]), *pair[:2]))]


def chosen(left: Sequence[Serving], runs_file: Path, count: int) -> list[Serving]:
    """Of the servers that are left the `count` of whose break-even the runs so far tell least; of equals the first."""
    from specsim import fit, load_runs

    if not runs_file.exists():
        return list(left[:count])
    try:
        model = fit(load_runs(runs_file)).model
    except SpecsimError:  # too few runs for any fit
        return list(left[:count])
    return sorted(left, key=lambda serving: -doubt_pct(model, serving))[:count]


def doubt_pct(model: CostModel, serving: Serving) -> float:
    """Half the 90% interval of a server's break-even over it [%], eq. 15; inf where the runs tell none."""
    from specsim.next_run import next_run
    from specsim.questions import Asked

    spec = serving.spec
    if spec is None:
        return inf  # without its baseline a setting has no break-even at all
    try:
        asked = Asked(int(spec.num_steps), int(spec.topk), int(spec.num_draft_tokens), nccl=serving.nccl)
        return next_run(model, asked).half_width_pct_now
    except SpecsimError:  # a setting that was never run
        return inf


# -- one load ----------------------------------------------------------------------------------------------------------


def served_run(deployment: Deployment, serving: Serving, point: tuple[int, int], url: str, seed: int) -> Row:
    """A row of the run form: what the live check's instruments measured; raises SpecsimError where they measured nothing."""
    import asyncio
    from dataclasses import replace

    from specsim.live.prompts import Prompt
    from specsim.live.single import Sample, measured_run

    batch, context = point
    generator = np.random.default_rng([seed, batch, context])
    asked = texts(deployment.checkpoint.shape.vocabulary, 2 * batch, context, generator)
    sample = Sample(url, [Prompt(text=text) for text in asked], batch, deployment.loads.output_len, deployment.loads.seconds,
                    run_id(serving, point), serving.nccl)  # fmt: skip
    if first := FIRST_USE_S.get(deployment.engine):
        asyncio.run(measured_run(replace(sample, seconds=first)))
    facts, row = asyncio.run(measured_run(sample))
    if shape_of(facts.spec) != shape_of(serving.spec):
        runs = "/".join(map(str, shape_of(facts.spec))) or "plain decode"
        raise SpecsimError(f"the server says that it runs {runs} (steps/topk/draft tokens)")
    if row.get("exclude"):
        raise SpecsimError(str(row["exclude"]))
    own = {name: value for name, value in row.items() if name not in _NOT_THE_SERVERS}
    forced = deployment.on_gpu and facts.spec is not None
    note = f"accept rate forced at {deployment.accept_rate:g} a draft" if forced else ""
    return {
        **own,
        **({"nccl_env": env} if (env := setting_environment(serving.nccl)) else {}),
        **({"drafter": "EAGLE-3 head without weights"} if facts.spec is not None else {}),
        "note": "; ".join(filter(None, [note, _MARKED * bool(os.environ.get(PHASES)), str(row.get("note", ""))])),
        "source": "python -m calibration serve",
    }  # fmt: skip


def shape_of(spec: SpecConfig | None) -> tuple[int, ...]:
    """Steps, topk and draft tokens; nothing for plain decode."""
    return () if spec is None else (int(spec.num_steps), int(spec.topk), int(spec.num_draft_tokens))


def run_id(serving: Serving, point: tuple[int, int]) -> str:
    """The name of a run."""
    return f"{serving.label} {point[0]}x{point[1]}"


_NOT_THE_SERVERS = {"id", "source", "drafter", *SETUP_FIELDS} - {"engine_version"}
"""Fields that this machine knows better than a server that was given folders for names."""
