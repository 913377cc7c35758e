"""How the engines are started: their commands and environments, for servers without weights and with forced acceptance."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from calibration.allreduce import ALWAYS, SETTINGS
from calibration.checkpoints import Checkpoint
from calibration.grids import teaching_order
from calibration.results import Row
from calibration.vllm_phases import PHASES
from calibration.vllm_plugin import DISTINCT, WAIT_US, write_entry_point
from specsim.acceptance.chain import chain_accept_length
from specsim.quantities import SpecConfig

ENGINE_OWN = "engine-own"
"""The setting in which messages take the engine's own all-reduce where it has one; under every other one NCCL carries them."""
WAITS = {f"wait-{us}": {WAIT_US: str(us)} for us in (5, 20)}
"""On one device: a wait of so many µs in each place where a tensor-parallel vLLM reduces, so that what it adds is known."""
OUTPUT_LEN, SECONDS = 512, 4.0
MOST_CONTEXT = 262_144
"""Tokens of all requests together beyond which a load is left out: reading its prompts would take longer than the load."""
_SPARE, _BF16 = 16, 2


@dataclass(frozen=True)
class Serving:
    """A server to be started: what it drafts (None is plain decode), under which NCCL setting."""

    spec: SpecConfig | None
    nccl: str

    @property
    def width(self) -> int:
        """Tokens of a request that it verifies in a cycle; 1 in plain decode."""
        return 1 if self.spec is None else int(self.spec.num_draft_tokens)

    @property
    def label(self) -> str:
        """Its name in the runs and in what is told."""
        if self.spec is None:
            return f"plain {self.nccl}"
        if self.spec.topk == 1:
            return f"{self.width} draft tokens {self.nccl}"
        return f"{self.spec.num_steps}/{self.spec.topk}/{self.width} {self.nccl}"

    @property
    def file(self) -> str:
        """Its name in those of files."""
        return self.label.replace(" ", "-").replace("/", "-")


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
class Deployment:
    """What all servers of a session share: model folders, loads, GPUs, forced acceptance of a further draft, graphs.

    `folder` is where plugins and logs go, `extra` what is handed to the server as it is; so many servers as `at_once`
    says share the GPUs' memory.
    """

    engine: str
    checkpoint: Checkpoint
    loads: Loads
    ranks: int
    accept_rate: float
    graphs: bool
    on_gpu: bool
    folder: Path
    extra: Sequence[str] = ()
    at_once: int = 1

    @property
    def context_len(self) -> int:
        """Tokens of the longest request."""
        return max(self.loads.contexts) + self.loads.output_len + _SPARE

    def command(self, serving: Serving, port: int) -> list[str]:
        """The server's command."""
        command, _ = ENGINES[self.engine]
        return [sys.executable, "-m", *command(self, serving, port), *self.extra]

    def kv_tokens(self, serving: Serving) -> int:
        """Tokens of the KV cache that the largest load fills, or the longest request that a server is told to allow for."""
        beside = self.loads.output_len + _SPARE + 2 * serving.width
        filled = (batch * (context + beside) for batch, context in self.loads.points())
        return max(*filled, self.context_len + 2 * serving.width)

    def kv_bytes(self, serving: Serving) -> int:
        """What those take of each GPU, the drafter's layer with them, and a quarter more."""
        shape = self.checkpoint.shape
        a_layer = 2 * shape.kv_heads * shape.head_size * _BF16 // min(self.ranks, shape.kv_heads)
        return 5 * self.kv_tokens(serving) * (shape.layers + 1) * a_layer // 4

    def environment(self, serving: Serving, slot: int = 0) -> dict[str, str]:
        """What the server's processes find beside what this one has."""
        _, environment = ENGINES[self.engine]
        shared = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        waits = "-waits" * (serving.nccl in WAITS)  # what was compiled without waits knows of none
        if self.at_once > 1 or waits:  # nor must servers that compile alike write into one another's files
            shared["VLLM_CACHE_ROOT"] = str((self.folder / f"cache{waits}-{slot}").absolute())
        if self.at_once > 1:
            # nor meet at a port: each looks for free ones from one of its own on, below those that connections are given
            shared["VLLM_PORT"] = str(10_000 + 100 * slot)
        network = {**setting_environment(serving.nccl), **(ALWAYS if self.ranks > 1 else {})}
        return {**shared, **environment(self, serving), **network}


def setting_environment(nccl: str) -> dict[str, str]:
    """The environment under a label."""
    return {ENGINE_OWN: {}, **SETTINGS, **WAITS}[nccl]


def labels_of(engine: str, ranks: int, mixture: bool = False) -> list[str]:
    """The settings that a server may be started under: NCCL's and the engine's own over several GPUs, waits on one.

    vLLM waits in dense layers; where a mixture of experts reduces is not known here.
    """
    if ranks > 1:
        return [ENGINE_OWN, *SETTINGS]
    return ["default", *(WAITS if engine == "vllm" and not mixture else ())]


# -- vLLM ----------------------------------------------------------------------------------------------------------------


def vllm_command(deployment: Deployment, serving: Serving, port: int) -> list[str]:
    """Module and flags of vLLM; graphs at the batches that are asked, no prefix cache."""
    command = [
        "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(deployment.checkpoint.target), "--served-model-name", "model", "--load-format", "dummy",
        "--dtype", "bfloat16", "--max-model-len", str(deployment.context_len + serving.width),
        "--max-num-seqs", str(most_requests(deployment.loads.batches, serving.width)), "--tensor-parallel-size", str(deployment.ranks),
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    over_nccl = deployment.ranks > 1 and serving.nccl != ENGINE_OWN
    if deployment.graphs:
        stated: Row = {"cudagraph_capture_sizes": captured_tokens(deployment.loads.batches, serving.width)}
        if over_nccl:  # a fused all-reduce is FlashInfer's, not NCCL's
            stated["pass_config"] = {"fuse_allreduce_rms": False}
        command += ["--compilation-config", json.dumps(stated)]
    else:
        command += ["--enforce-eager"]
    if not deployment.on_gpu:
        command += ["--distributed-executor-backend", "uni"]
    if over_nccl:
        command += ["--disable-custom-all-reduce"]
    if deployment.at_once > 1:  # a part of the memory that is read while others start says nothing
        command += ["--kv-cache-memory-bytes", str(deployment.kv_bytes(serving)), "--gpu-memory-utilization", "0.01"]
    if serving.spec is not None:
        command += ["--speculative-config", json.dumps(_vllm_speculation(deployment, serving.width - 1))]
    return command


def _vllm_speculation(deployment: Deployment, drafts: int) -> Row:
    stated: Row = {"method": "eagle3", "model": str(deployment.checkpoint.drafter), "num_speculative_tokens": drafts}
    if not deployment.on_gpu:  # its CPU build ends with the first request under forced acceptance
        return stated
    rates = survival(deployment.accept_rate, drafts)
    return {**stated, "rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}


def vllm_environment(deployment: Deployment, serving: Serving) -> dict[str, str]:
    """The plugin for weights that are not there, and the mode in which it tells what it runs."""
    mixture = deployment.checkpoint.shape.experts > 0 and deployment.on_gpu
    return {
        "PYTHONPATH": write_entry_point(deployment.folder / "plugin"),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **({"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"} if deployment.ranks > 1 else {}),  # multicast, and beside NCCL
        DISTINCT: "1" if mixture and serving.spec is not None else "0",
        **({PHASES: f"{path}-{serving.file}"} if (path := os.environ.get(PHASES)) else {}),
        **(
            {"VLLM_USE_V2_MODEL_RUNNER": "1"} if mixture else {}
        ),  # whose drafts the plugin can move; not its own choice
        **({} if deployment.on_gpu else _VLLM_ON_CPU),
    }


_VLLM_ON_CPU = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # two threads that wait for each other stand still on a busy machine
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}


def most_requests(batches: Iterable[int], width: int) -> int:
    """Requests that it makes room for: as many as its widest draft step has rows, which it rounds up to whole verifies.

    vLLM 0.24 captures no draft step of more rows than that, and the largest batch would draft without a graph.
    """
    return -(-max(batches) // width) * width


def captured_tokens(batches: Iterable[int], width: int) -> list[int]:
    """Tokens of the graphs: each batch's own, so that no verify is padded, and its draft steps' as vLLM rounds them up."""
    return sorted({size for batch in batches for size in (batch * width, -(-batch // width) * width)})


def survival(accept_rate: float, drafts: int) -> list[float]:
    """S_i = a^i: the chance that at least i drafts are accepted (eq. 18), for i of 1 to `drafts`."""
    return [round(accept_rate**depth, 6) for depth in range(1, drafts + 1)]


# -- SGLang --------------------------------------------------------------------------------------------------------------


def sglang_command(deployment: Deployment, serving: Serving, port: int) -> list[str]:
    """Module and flags of SGLang; graphs at the batches that are asked, no radix cache."""
    loads, spec = deployment.loads, serving.spec
    command = [
        "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port),
        "--model-path", str(deployment.checkpoint.target), "--served-model-name", "model", "--load-format", "dummy",
        "--dtype", "bfloat16", "--context-length", str(deployment.context_len + serving.width),
        "--max-running-requests", str(max(loads.batches)), "--tp-size", str(deployment.ranks),
        "--disable-radix-cache", "--enable-metrics",
    ]  # fmt: skip
    batches = sorted(set(loads.batches))
    command += ["--cuda-graph-bs", *map(str, batches)] if deployment.graphs else ["--disable-cuda-graph"]
    if deployment.ranks > 1 and serving.nccl != ENGINE_OWN:
        command += ["--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion"]
    if deployment.at_once > 1:
        # it keeps room for what requests may still ask for: with a quarter to spare 3 of 16 waited
        command += ["--max-total-tokens", str(2 * deployment.kv_tokens(serving))]
    if spec is not None:
        command += [
            "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", str(deployment.checkpoint.drafter),
            "--speculative-draft-load-format", "dummy", "--speculative-num-steps", str(spec.num_steps),
            "--speculative-eagle-topk", str(spec.topk), "--speculative-num-draft-tokens", str(spec.num_draft_tokens),
        ]  # fmt: skip
    return command


def sglang_environment(deployment: Deployment, serving: Serving) -> dict[str, str]:
    """Its forced acceptance: an accept length, the chain's (eq. 18) as deep as the tree goes."""
    shared = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}  # else /health takes as long as an answer
    if deployment.checkpoint.shape.experts:  # whose router has no weights, so that tokens would choose alike
        shared["SGLANG_SIMULATE_UNIFORM_EXPERTS"] = "1"
    if serving.spec is None:
        return shared
    length = float(chain_accept_length(deployment.accept_rate, serving.spec.num_steps))
    drafted = {"SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token"} if serving.spec.topk == 1 else {}
    forced = {"SGLANG_SIMULATE_ACC_LEN": f"{length:.6g}", "SGLANG_SIMULATE_ACC_METHOD": "match-expected"}
    return {**shared, **forced, **drafted}


Command = Callable[[Deployment, Serving, int], list[str]]
Environment = Callable[[Deployment, Serving], dict[str, str]]
ENGINES: dict[str, tuple[Command, Environment]] = {
    "vllm": (vllm_command, vllm_environment),
    "sglang": (sglang_command, sglang_environment),
}
"""By engine: the command's module and flags, and the environment."""
