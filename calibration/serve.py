"""A real vLLM on the loopback, without weights and with forced acceptance: which servers, in which order, and their loads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calibration.allreduce import ALWAYS, SETTINGS
from calibration.checkpoints import Checkpoint, texts
from calibration.grids import teaching_order
from calibration.results import Row
from calibration.vllm_plugin import DISTINCT, write_entry_point
from specsim.errors import SpecsimError
from specsim.quantities import SETUP_FIELDS

if TYPE_CHECKING:
    from specsim.cost.model import CostModel

ENGINE_OWN = "engine-own"
"""The setting in which messages take the engine's own all-reduce where it has one; under every other one NCCL carries them."""
INSTRUMENT = "loads over HTTP on a server without weights"
OUTPUT_LEN, SECONDS = 512, 5.0
MOST_CONTEXT = 262_144
"""Tokens of all requests together beyond which a load is left out: reading its prompts would take longer than the load."""
STARTS_WITHIN_S = 600.0


@dataclass(frozen=True)
class Serving:
    """A server to be started: tokens of a request that it verifies in a cycle (1 is plain decode), under an NCCL setting."""

    num_draft_tokens: int
    nccl: str

    @property
    def label(self) -> str:
        """Its name in the runs and in what is told."""
        what = "plain" if self.num_draft_tokens == 1 else f"{self.num_draft_tokens} draft tokens"
        return f"{what} {self.nccl}"


@dataclass(frozen=True)
class Loads:
    """What every server is asked: requests at once × tokens of each prompt; output tokens of each, and how long [s]."""

    batches: Sequence[int]
    contexts: Sequence[int]
    output_len: int = OUTPUT_LEN
    seconds: float = SECONDS

    def points(self) -> list[tuple[int, int]]:
        """(requests, prompt tokens) in the order of measuring: short prompts first, ends before what lies between."""
        orders = product(sorted(set(self.contexts)), teaching_order(self.batches))
        return [(batch, context) for context, batch in orders if batch * (context + self.output_len) <= MOST_CONTEXT]


@dataclass(frozen=True)
class Engine:
    """How vLLM is started: the model folders, GPUs, forced acceptance of a draft after accepted ones, graphs, a work folder."""

    checkpoint: Checkpoint
    loads: Loads
    ranks: int
    accept_rate: float
    graphs: bool
    on_gpu: bool
    folder: Path

    def command(self, serving: Serving, port: int) -> list[str]:
        """The server's command."""
        loads, width = self.loads, serving.num_draft_tokens
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
            "--model", str(self.checkpoint.target), "--served-model-name", "model", "--load-format", "dummy",
            "--dtype", "bfloat16", "--max-model-len", str(max(loads.contexts) + loads.output_len + width + 16),
            "--max-num-seqs", str(max(loads.batches)), "--tensor-parallel-size", str(self.ranks),
            "--no-enable-prefix-caching",
        ]  # fmt: skip
        if self.graphs:
            sizes = {"cudagraph_capture_sizes": captured_tokens(loads.batches, width)}
            command += ["--compilation-config", json.dumps(sizes)]
        else:
            command += ["--enforce-eager"]
        if self.ranks > 1 and serving.nccl != ENGINE_OWN:
            command += ["--disable-custom-all-reduce"]
        return command if width == 1 else [*command, "--speculative-config", json.dumps(self._speculation(width))]

    def _speculation(self, width: int) -> Row:
        stated: Row = {"method": "eagle3", "model": str(self.checkpoint.drafter), "num_speculative_tokens": width - 1}
        if not self.on_gpu:  # its CPU build ends with the first request under forced acceptance
            return stated
        rates = survival(self.accept_rate, width - 1)
        return {**stated, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}

    def environment(self, serving: Serving) -> dict[str, str]:
        """What the server's processes find beside what this one has."""
        mixture = serving.num_draft_tokens > 1 and self.checkpoint.shape.experts > 0 and self.on_gpu
        return {
            "PYTHONPATH": write_entry_point(self.folder / "plugin"),
            "VLLM_SERVER_DEV_MODE": "1",  # else it does not tell what it runs
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            DISTINCT: "1" if mixture else "0",
            **setting_environment(serving.nccl),
            **(ALWAYS if self.ranks > 1 else {}),
        }


def captured_tokens(batches: Iterable[int], width: int) -> list[int]:
    """Tokens of the graphs: each batch's own, so that no verify is padded, and its draft steps' as vLLM rounds them up."""
    return sorted({size for batch in batches for size in (batch * width, -(-batch // width) * width)})


def survival(accept_rate: float, drafts: int) -> list[float]:
    """S_i = a^i: the chance that at least i drafts are accepted (eq. 18), for i of 1 to `drafts`."""
    return [round(accept_rate**depth, 6) for depth in range(1, drafts + 1)]


def setting_environment(nccl: str) -> dict[str, str]:
    """NCCL's environment under a label."""
    return {} if nccl == ENGINE_OWN else SETTINGS[nccl]


# -- which server next -------------------------------------------------------------------------------------------------


def servings(widths: Iterable[int], settings: Sequence[str]) -> list[Serving]:
    """All servers in the order that teaches without a fit: plain decode first, settings in turn, ends before the middle."""
    order = teaching_order(width for width in widths if width > 1)
    ranks = {1: 0} | {width: rank for rank, width in enumerate(order, 1)}
    pairs = [(ranks[width], place, Serving(width, nccl))
             for width in set(widths) for place, nccl in enumerate(settings)]  # fmt: skip
    return [serving for _, _, serving in sorted(pairs, key=lambda pair: (max(pair[:2]), *pair[:2]))]


def chosen(left: Sequence[Serving], runs_file: Path) -> Serving:
    """Of the servers that are left the one of whose break-even the runs so far tell least; of equals the first."""
    from specsim import fit, load_runs

    if not runs_file.exists():
        return left[0]
    try:
        model = fit(load_runs(runs_file)).model
    except SpecsimError:  # too few runs for any fit
        return left[0]
    return max(left, key=lambda serving: doubt_pct(model, serving))


def doubt_pct(model: CostModel, serving: Serving) -> float:
    """Half the 90% interval of a server's break-even over it [%], eq. 15; inf where the runs tell none."""
    from specsim.next_run import next_run
    from specsim.questions import Asked

    if serving.num_draft_tokens == 1:
        return inf  # without its baseline a setting has no break-even at all
    try:
        asked = Asked(num_draft_tokens=serving.num_draft_tokens, nccl=serving.nccl)
        return next_run(model, asked).half_width_pct_now
    except SpecsimError:  # a setting that was never run
        return inf


# -- one load ----------------------------------------------------------------------------------------------------------


def served_run(engine: Engine, serving: Serving, point: tuple[int, int], url: str, seed: int) -> Row:
    """A row of the run form: what the live check's instruments measured; raises SpecsimError where they measured nothing."""
    import asyncio

    from specsim.live.prompts import Prompt
    from specsim.live.single import Sample, measured_run

    batch, context = point
    generator = np.random.default_rng([seed, batch, context])
    asked = texts(engine.checkpoint.shape.vocabulary, 2 * batch, context, generator)
    sample = Sample(url, [Prompt(text=text) for text in asked], batch, engine.loads.output_len, engine.loads.seconds,
                    run_id(serving, point), serving.nccl)  # fmt: skip
    facts, row = asyncio.run(measured_run(sample))
    runs = 1 if facts.spec is None else int(facts.spec.num_draft_tokens)
    if runs != serving.num_draft_tokens:
        raise SpecsimError(f"{serving.label}: the server says that it verifies {runs} tokens of a request")
    if row.get("exclude"):
        raise SpecsimError(f"{run_id(serving, point)}: {row['exclude']}")
    own = {name: value for name, value in row.items() if name not in _NOT_THE_SERVERS}
    forced = engine.on_gpu and facts.spec is not None
    note = f"accept rate forced at {engine.accept_rate:g} a draft" if forced else ""
    return {
        **own,
        **({"nccl_env": env} if (env := setting_environment(serving.nccl)) else {}),
        **({"drafter": "EAGLE-3 head without weights"} if facts.spec is not None else {}),
        "note": "; ".join(filter(None, [note, str(row.get("note", ""))])),
        "source": "python -m calibration serve",
    }  # fmt: skip


def run_id(serving: Serving, point: tuple[int, int]) -> str:
    """The name of a run."""
    return f"{serving.label} {point[0]}x{point[1]}"


_NOT_THE_SERVERS = {"id", "source", "drafter", *SETUP_FIELDS} - {"engine_version"}
"""Fields that this machine knows better than a server that was given folders for names."""
