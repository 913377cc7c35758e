"""Implementations of an all-reduce: each sums a tensor over the ranks, and is seen to before anything is timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from calibration.allreduce import ONE_SHOT, TWO_SHOT, VLLM, VLLM_NCCL
from calibration.machine import Machine
from specsim.errors import SpecsimError

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True)
class Reducer:
    """`total` gives the sum over the ranks, in place or not; `capturing` is entered around a CUDA graph's capture.

    `made_of` says what does the work.
    """

    total: Callable[[Tensor], Tensor]
    made_of: str
    capturing: Callable[[], AbstractContextManager[object]] = nullcontext


def reducer(implementation: str, machine: Machine, most_elements: int) -> Reducer:
    """An implementation over the group that is there, for messages of at most so many elements."""
    if implementation in (VLLM, VLLM_NCCL):
        return _vllm(machine, custom=implementation == VLLM)
    if implementation in (ONE_SHOT, TWO_SHOT):
        return _symmetric(implementation, machine, most_elements)
    return Reducer(_in_place, f"torch.distributed over {dist.get_backend()}")


def _in_place(message: Tensor) -> Tensor:
    dist.all_reduce(message)
    return message


# -- torch's symmetric memory: each rank reads the others' buffers ---------------------------------------------------------


def _symmetric(implementation: str, machine: Machine, most_elements: int) -> Reducer:
    """One shot reads the messages of all ranks, two shots a share of them, and writes its sums to all; copied in, as engines do."""
    import torch.distributed._symmetric_memory as symmetric_memory

    assert dist.group.WORLD is not None
    group = dist.group.WORLD.group_name
    buffer = symmetric_memory.empty(
        most_elements, dtype=machine.dtype, device=torch.device(machine.device, dist.get_rank())
    )
    symmetric_memory.rendezvous(buffer, group)
    total = {ONE_SHOT: _one_shot, TWO_SHOT: _two_shots}[implementation]
    return Reducer(partial(total, buffer, group), "torch symmetric memory, no multicast")


def _one_shot(buffer: Tensor, group: str, message: Tensor) -> Tensor:
    shared = buffer[: message.numel()].view(message.shape)
    summed: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(shared, message, "sum", group)
    return summed


def _two_shots(buffer: Tensor, group: str, message: Tensor) -> Tensor:
    shared = buffer[: message.numel()].view(message.shape)
    shared.copy_(message)
    torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group)
    return message.copy_(shared)


# -- vLLM's own choice for a tensor-parallel group -------------------------------------------------------------------------


def _vllm(machine: Machine, custom: bool) -> Reducer:
    """What vLLM takes for messages of a size: its custom kernel where it has one and that is on, else what it falls back on."""
    import vllm
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    parallel_state.set_custom_all_reduce(custom)
    backend = "nccl" if machine.on_gpu else "gloo"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(
            dist.get_world_size(), dist.get_rank(), "env://", dist.get_rank(), backend
        )
        parallel_state.initialize_model_parallel(dist.get_world_size(), backend=backend)
    group = parallel_state.get_tp_group()
    made_of = f"vLLM {vllm.__version__}: {_kernels(group.device_communicator)}"
    return Reducer(group.all_reduce, made_of, group.graph_capture if machine.on_gpu else nullcontext)


def _kernels(communicator: Any) -> str:
    """What vLLM's communicator may take, in the order in which it asks."""
    names = {
        "fi_ar_comm": "FlashInfer",
        "ca_comm": "custom all-reduce",
        "symm_mem_comm": "torch symmetric memory",
        "pynccl_comm": "NCCL",
    }
    ready = [
        said for name, said in names.items() if getattr(getattr(communicator, name, None), "disabled", True) is False
    ]
    return " then ".join(ready) or type(communicator).__name__


# -- seen to sum -----------------------------------------------------------------------------------------------------------


def checked(reduce: Reducer, machine: Machine, graph: bool, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Raise SpecsimError unless it sums what the ranks hold, called and, of other numbers, replayed from a CUDA graph."""
    total = dist.get_world_size() * (dist.get_world_size() + 1) // 2
    different = max(1, 256 // total)  # sums to 256 are exact in bf16
    for shape in shapes:
        counted = torch.arange(math.prod(shape), device=machine.device).remainder(different) + 1
        places = counted.to(machine.dtype).view(shape)
        held, result = places * (dist.get_rank() + 1), torch.empty_like(places)

        def step(held: Tensor = held, result: Tensor = result) -> None:
            result.copy_(reduce.total(held.clone()))

        replay = machine.capture(step, graph, reduce.capturing)
        for work, turned in ((step, places), (replay, places.flip(-1))):
            held.copy_(turned * (dist.get_rank() + 1))
            result.zero_()
            work()
            if not torch.equal(result, turned * total):
                raise SpecsimError(f"{reduce.made_of}: wrong sums of {shape}, so that its times say nothing")
