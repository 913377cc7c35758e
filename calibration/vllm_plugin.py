"""What vLLM lacks for weights that are not there; loaded by the servers of `calibration serve` alone.

vLLM fills every parameter from one seed, so that head and embedding are alike and greedy decoding runs in a circle of two
tokens; and it takes an EAGLE-3 head without weights for the target's own. Both are mended here. Read in 0.24 and 0.32.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

DISTINCT = "SPECSIM_DISTINCT_DRAFTS"
"""With 1 the drafts of a cycle differ: a head without weights repeats its first token, and a mixture of experts would read
the experts of one."""
_STRIDE = 7919


def register() -> None:
    """The entry point in the group vllm.general_plugins; raises where this vLLM has nothing by a name that is needed."""
    from vllm.model_executor.model_loader import weight_utils  # type: ignore[import-not-found]
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM  # type: ignore[import-not-found]

    weight_utils.initialize_single_dummy_weight = own_seeds(weight_utils.initialize_single_dummy_weight)
    Eagle3LlamaForCausalLM.has_own_lm_head = True
    if os.environ.get(DISTINCT) == "1":
        from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator  # type: ignore[import-not-found]

        DraftModelSpeculator.sample_draft = distinct(DraftModelSpeculator.sample_draft)


def own_seeds(fill: Callable[..., None]) -> Callable[..., None]:
    """Filling a parameter with a seed that no other has."""
    numbers = count(1)

    def filled(param: Any, low: float = -1e-3, high: float = 1e-3, seed: int = 1234) -> None:
        fill(param, low, high, seed + _STRIDE * next(numbers))

    return filled


def distinct(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Draft tokens, moved by a stride for each step of drafting."""
    signature = inspect.signature(sample)

    def sampled(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = signature.bind(self, *args, **kwargs).arguments["draft_step"]
        return (sample(self, *args, **kwargs) + _STRIDE * (step + 1)) % self.vocab_size

    return sampled


def write_entry_point(folder: Path) -> str:
    """A distribution that names `register`, and the PYTHONPATH with which a server finds it and this package."""
    info = folder / "specsim_dummy-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specsim-dummy\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nspecsim_dummy = calibration.vllm_plugin:register\n", encoding="utf-8"
    )
    here = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, [str(folder), here, os.environ.get("PYTHONPATH", "")]))
