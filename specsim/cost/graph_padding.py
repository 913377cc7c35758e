"""What an engine runs in captured CUDA graphs and beside them: requests and tokens as they are padded, single launches (section 5).

A forward runs in the smallest graph that holds it; above the largest it runs eagerly, as it is. SGLang captures by
requests, and verify, draft and re-extend share one list; vLLM captures by tokens, whatever the requests. Sources: SGLang
0.5.23 (`arg_groups/cuda_graph_hook.py` and `memory_hook.py`); vLLM 0.33.0 and, for the sizes rounded before, 0.11.0 to
0.24.0 (`adjust_cudagraph_sizes_for_spec_decode` of its compilation settings).

Of other engines no padding is known. TensorRT-LLM (main branch, `cuda_graph_config`) captures by requests, but pads only
where that is asked for: by default a batch that was not captured runs eagerly. llama.cpp states none.

Left out: SGLang's padding to the fullest rank under DP attention; vLLM's performance mode "interactivity", which captures
every size from 1 to 32. A vLLM size that is no multiple of num_draft_tokens runs piecewise, not as one full graph: that
costs launches, not tokens.
"""

from __future__ import annotations

import numpy as np

from specsim.methods import version_numbers
from specsim.quantities import BoolArray, FloatArray, Floats, Ints

_DEFAULT_LARGEST = 512
"""Largest size captured by default: vLLM's tokens, SGLang's requests where the GPU's memory allows most.

vLLM: 2·max_num_seqs·(1 + K) where that is less, which no batch of its own exceeds; 1024 on sm_100. SGLang, by memory:
8 below 20 GB, 48 below 35, 32 below 60, 256 below 160 (160, 160 and 512 from tensor_parallel 4 on); never above
max_running_requests, which is 48 with speculation unless stated.
"""

_APPENDS_LARGEST = (0, 5, 23)  # SGLang: of the versions read, the one that captures the largest size itself
_APPENDS_STRIDES = (0, 33)  # vLLM: sizes were rounded up to 0.24, the change lies somewhere between
_ROUNDING = 1e-9  # relative excess of a count over a size that is arithmetic only

_SGLANG_SPECULATIVE = ((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, np.inf, 16))
_SGLANG_PLAIN = ((1, 2, 1), (4, 16, 4), (24, 256, 8), (272, 496, 16), (512, np.inf, 32))
_VLLM = ((1, 2, 1), (4, 4, 1), (8, 248, 8), (256, np.inf, 16))
"""Captured sizes: from, to, step."""


def padded_requests(
    batch_size: Ints | Floats,
    num_draft_tokens: Ints | Floats = 1,
    engine: str | None = None,
    version: str | None = None,
    speculative: bool = True,
    *,
    largest: int | None = None,
) -> FloatArray:
    """Requests that a forward runs for a batch, where the engine captures graphs by requests.

    Arguments and shape as of `padded_tokens`. vLLM pads tokens only: its requests are those of the batch.
    """
    batch = np.broadcast_arrays(np.asarray(batch_size, dtype=float), num_draft_tokens)[0].copy()
    if _known(engine) != "sglang":
        return batch
    return _or_eager(_sglang_graph(batch, version, speculative, largest), batch)


def padded_tokens(
    batch_size: Ints | Floats,
    num_draft_tokens: Ints | Floats = 1,
    engine: str | None = None,
    version: str | None = None,
    speculative: bool = True,
    *,
    largest: int | None = None,
) -> FloatArray:
    """Tokens that a forward over num_draft_tokens of each request runs, those of the captured graph; 1 is plain decode.

    At the broadcast shape of batch and tokens a request. `version` None is the newest known; `speculative` is whether
    the server was started with speculation, for which SGLang has a list of its own. `largest` is the largest captured
    size, SGLang's --cuda-graph-max-bs [requests] or vLLM's max_cudagraph_capture_size [tokens]; None is the largest
    default. An engine that is not known pads nothing.
    """
    batch, width = np.broadcast_arrays(np.asarray(batch_size, dtype=float), np.asarray(num_draft_tokens, dtype=float))
    if _known(engine) != "vllm":
        return np.asarray(padded_requests(batch, width, engine, version, speculative, largest=largest) * width)
    return _or_eager(_vllm_graph(batch, width, version, largest), batch * width)


def padded_draft_tokens(
    batch_size: Ints | Floats,
    topk: Ints | Floats,
    num_draft_tokens: Ints | Floats,
    engine: str | None,
    version: str | None = None,
) -> FloatArray:
    """Tokens that a draft forward over topk branches of each request runs; shape and engines as of `padded_tokens`.

    vLLM takes the smallest size captured for verifies of num_draft_tokens that holds them, SGLang a verify's requests.
    """
    batch, branches, width = np.broadcast_arrays(
        *(np.asarray(n, dtype=float) for n in (batch_size, topk, num_draft_tokens))
    )
    if _known(engine) != "vllm":
        return np.asarray(padded_requests(batch, width, engine, version) * branches)
    tokens = batch * branches
    return _or_eager(_vllm_graph(tokens / width, width, version, None), tokens)


_VLLM_LAUNCHES, _VLLM_LAUNCHES_EACH = 38.0, 5.5
"""Single launches of vLLM's cycle with one draft forward, and of each further one: with three 23, 6, 5 and 15 lie between its graphs."""


def single_launches(draft_forwards: FloatArray, engine: str | None) -> FloatArray:
    """Kernels and copies that a cycle launches beside its graphs, of shape (n,); 0 without drafts, and where nobody counted them.

    Counted in profiles of vLLM 0.24 with three drafts on two H200s (calibration/data/h200x2h_kernels.csv; two more where a request's
    cache grows by a block), and taken for any number of drafts and every version.
    """
    if _known(engine) != "vllm":
        return np.zeros_like(draft_forwards)
    return np.where(draft_forwards > 0, _VLLM_LAUNCHES + _VLLM_LAUNCHES_EACH * (draft_forwards - 1.0), 0.0)


def graphs_known(engine: str | None) -> bool:
    """Whether it is known which graphs an engine captures."""
    return _known(engine) in ("sglang", "vllm")


def is_captured(
    batch_size: Ints | Floats,
    num_draft_tokens: Ints | Floats,
    engine: str | None,
    version: str | None = None,
    speculative: bool = True,
    *,
    largest: int | None = None,
) -> BoolArray:
    """Where a captured graph holds the forward, which runs eagerly elsewhere; arguments as of `padded_tokens`.

    Of engines other than SGLang and vLLM no graph is known.
    """
    batch, width = np.broadcast_arrays(np.asarray(batch_size, dtype=float), np.asarray(num_draft_tokens, dtype=float))
    if _known(engine) == "sglang":
        return np.isfinite(_sglang_graph(batch, version, speculative, largest))
    if _known(engine) == "vllm":
        return np.isfinite(_vllm_graph(batch, width, version, largest))
    return np.zeros(batch.shape, dtype=bool)


def _sglang_graph(batch: FloatArray, version: str | None, speculative: bool, largest: int | None) -> FloatArray:
    """The requests of the graph that holds a batch; inf where none does."""
    most = _DEFAULT_LARGEST if largest is None else largest
    sizes = _up_to(_SGLANG_SPECULATIVE if speculative else _SGLANG_PLAIN, most)
    if speculative and version_numbers(version) >= _APPENDS_LARGEST:
        sizes = np.union1d(sizes, [float(most)])
    return _held_by(sizes, batch)


def _vllm_graph(batch: FloatArray, width: FloatArray, version: str | None, largest: int | None) -> FloatArray:
    """The tokens of the graph that holds a batch; inf where none does."""
    most = _DEFAULT_LARGEST if largest is None else largest
    held = _beside_strides if version_numbers(version) >= _APPENDS_STRIDES else _rounded_to_strides
    return held(batch, width, most)


def _known(engine: str | None) -> str:
    return (engine or "").lower()


def _up_to(sizes: tuple[tuple[float, float, int], ...], largest: int) -> FloatArray:
    """The sizes of a list, none above the largest, ascending."""
    return np.concatenate([np.arange(low, min(high, largest) + 1, step, dtype=float) for low, high, step in sizes])


def _held_by(sizes: FloatArray, counts: FloatArray) -> FloatArray:
    """The smallest size that holds each count; inf where none does."""
    return np.asarray(np.append(sizes, np.inf)[np.searchsorted(sizes, counts * (1 - _ROUNDING))], dtype=float)


def _or_eager(held: FloatArray, counts: FloatArray) -> FloatArray:
    """Counts as they are where no graph holds them."""
    return np.where(np.isfinite(held), held, counts)


def _beside_strides(batch: FloatArray, width: FloatArray, largest: int) -> FloatArray:
    """vLLM: the sizes of its list, and num_draft_tokens times every power of 2."""
    stride = width * np.exp2(np.ceil(np.log2(np.maximum(batch * (1 - _ROUNDING), 1.0))))
    return np.minimum(_held_by(_up_to(_VLLM, largest), batch * width), np.where(stride <= largest, stride, np.inf))


def _rounded_to_strides(batch: FloatArray, width: FloatArray, largest: int) -> FloatArray:
    """VLLM before that: every size of its list rounded up to a multiple of num_draft_tokens.

    So rounded, a size holds n requests where it exceeds (n − 1)·num_draft_tokens. One that rounding carries beyond the
    largest counts as not captured.
    """
    others = (np.ceil(batch * (1 - _ROUNDING)) - 1) * width
    rounded = width * np.ceil(_held_by(_up_to(_VLLM, largest), others + 1) / width)
    return np.where(rounded <= largest, rounded, np.inf)
