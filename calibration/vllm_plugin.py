"""What vLLM lacks for weights that are not there; loaded by the servers of `calibration serve` alone.

vLLM fills every parameter from one seed, so that head and embedding are alike and greedy decoding runs in a circle of two
tokens; and it takes an EAGLE-3 head without weights for the target's own. Both are mended here, and a fault of 0.24 that ends
servers with a drafter at their start (vllm-project/vllm#47561). Read in 0.24 and 0.32.

On one GPU it can also have a server wait where a tensor-parallel one reduces: a time that is known in each of the places.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from calibration.vllm_phases import PHASES, follow

DISTINCT = "SPECSIM_DISTINCT_DRAFTS"
"""With 1 the drafts of a cycle differ: a head without weights repeats its first token, and a mixture of experts would read
the experts of one."""
WAIT_US = "SPECSIM_WAIT_US"
"""So many µs a server of one device waits in each place where a tensor-parallel one has an all-reduce."""
_STRIDE = 7919


def register() -> None:
    """The entry point in the group vllm.general_plugins; raises where this vLLM has nothing by a name that is needed."""
    from vllm.model_executor.model_loader import weight_utils
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

    weight_utils.initialize_single_dummy_weight = own_seeds(weight_utils.initialize_single_dummy_weight)
    Eagle3LlamaForCausalLM.has_own_lm_head = True
    _mend_captures()
    if os.environ.get(DISTINCT) == "1":
        from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

        DraftModelSpeculator.sample_draft = distinct(DraftModelSpeculator.sample_draft)
    if path := os.environ.get(PHASES):
        follow(path)
    if us := os.environ.get(WAIT_US):
        from vllm.model_executor.layers.linear import RowParallelLinear
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        wait = waiting(float(us))
        for layer in (RowParallelLinear, VocabParallelEmbedding):
            layer.forward = followed(layer.forward, wait)


def _mend_captures() -> None:
    """Captures of the drafter's prefill that read the schedules of their own batch; nothing to mend in a later vLLM."""
    try:
        from vllm.v1.worker.gpu.spec_decode.autoregressive.cudagraph_utils import (
            PrefillSpeculatorCudaGraphManager as Draft,
        )
    except ModuleNotFoundError:
        return
    from vllm.v1.worker.gpu import cudagraph_utils as graphs

    if "attn_states" in inspect.signature(Draft.capture).parameters:
        seen: dict[str, Any] = {}
        graphs.ModelCudaGraphManager.capture = remembering(graphs.ModelCudaGraphManager.capture, seen)
        Draft.capture = refilling(Draft.capture, graphs.prepare_inputs_to_capture, seen)


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


def followed(forward: Callable[..., Any], then: Callable[[Any], Any]) -> Callable[..., Any]:
    """A layer's forward with something done to what it gives, where a tensor-parallel one would reduce that."""

    def forwarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = forward(self, *args, **kwargs)
        if not getattr(self, "reduce_results", True):
            return given
        return (then(given[0]), *given[1:]) if isinstance(given, tuple) else then(given)

    return forwarded


def waiting(us: float) -> Callable[[Any], Any]:
    """An operation that gives a copy of a tensor and takes so many µs more, on the tensor's device, in graphs as well."""
    from torch import empty_like, library

    def waited(x: Any) -> Any:
        if x.is_cuda:
            from calibration.kernels import wait

            wait(us)
        else:
            end = time.perf_counter() + 1e-6 * us
            while time.perf_counter() < end:
                pass
        return x.clone()

    operation: Any = library.custom_op("specsim::wait", waited, mutates_args=(), schema="(Tensor x) -> Tensor")
    operation.register_fake(empty_like)
    return operation


_FILLS = ("model_state", "input_buffers", "block_tables", "attn_groups", "kv_cache_config")
"""What of the target's capture makes the inputs of a batch."""


def remembering(capture: Callable[..., Any], seen: dict[str, Any]) -> Callable[..., Any]:
    """The target's capture, with its arguments kept by name."""
    signature = inspect.signature(capture)

    def captured(*args: Any, **kwargs: Any) -> Any:
        seen.update(signature.bind(*args, **kwargs).arguments)
        return capture(*args, **kwargs)

    return captured


def refilling(capture: Callable[..., Any], prepare: Callable[..., Any], seen: dict[str, Any]) -> Callable[..., Any]:
    """The drafter's capture, with states whose buffers are filled for a batch when it asks for that batch's."""

    def captured(self: Any, forward: Any, attn_states: dict[Any, Any], *args: Any, **kwargs: Any) -> Any:
        def fill(batch: Any) -> None:
            prepare(batch.num_reqs, batch.num_tokens, *(seen[name] for name in _FILLS))

        return capture(self, forward, Refilled(attn_states, fill), *args, **kwargs)

    return captured


class Refilled(dict[Any, Any]):
    """Attention states by batch: views of buffers that all batches share, so that each is filled again when it is taken."""

    def __init__(self, states: dict[Any, Any], fill: Callable[[Any], None]) -> None:
        super().__init__(states)
        self._fill = fill

    def __getitem__(self, batch: Any) -> Any:
        """The states of a batch; those of a graph in pieces have no buffers."""
        states = super().__getitem__(batch)
        if states.captured.attn_metadata is not None:
            self._fill(batch)
        return states


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
