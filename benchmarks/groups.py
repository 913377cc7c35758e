"""The groups of measured runs that the accuracy report fits: where they are, how they are split, what is known of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.held_out import Part, Roofline, batch_size, configuration, octave, shape, single_run
from specsim import Run, load_runs
from specsim.runs.run import RunSet

DATA = Path(__file__).parents[1] / "tests" / "validation" / "data"

Card = dict[str, int]


def _is_long(run: Run) -> bool:
    return (run.workload.context_len or 0) > 1000


def _every(run: Run) -> bool:
    return True


@dataclass(frozen=True)
class Group:
    """Runs of one source and one setup: the files, how they are split by name, and what else is known.

    `card` is the model's experts, `noise` how far repeats lie apart where the source says it, `roofline` the model on
    its hardware by the vendors' public figures, `keep` which of the files' runs belong to it.
    """

    title: str
    files: str | tuple[str, ...]
    parts: dict[str, Part]
    card: Card = field(default_factory=dict)
    noise: str = "–"
    roofline: Roofline | None = None
    keep: Callable[[Run], bool] = _every

    @cached_property
    def runs(self) -> RunSet:
        """The group's runs with its model card."""
        names = (self.files,) if isinstance(self.files, str) else self.files
        runs = load_runs([DATA / name for name in names]).runs
        return RunSet(tuple(run for run in runs if self.keep(run)), model_card=self.card)

    @property
    def first_part(self) -> Part:
        """The finest split, by which a row is asked for with nothing of its configuration measured."""
        return next(iter(self.parts.values()))


# -- models and hardware, by their makers' public figures --------------------------------------------------------------

# NVIDIA's data sheets, dense: bytes a second of memory, operations a second in the precision that the weights have.
H100, H200, B200_FP4 = (3.35e12, 989e12), (4.8e12, 989e12), (8.0e12, 9e15)
H200_FP8, H20, A800 = (4.8e12, 1979e12), (4.0e12, 148e12), (2.039e12, 312e12)
QWEN3 = {"1.7B": 1.7e9, "4B": 4.0e9, "8B": 8.2e9, "14B": 14.8e9, "32B": 32.8e9}  # model cards, Qwen3
CARD_30B: Card = {"experts": 128, "experts_per_token": 8}  # Qwen3-30B-A3B and Qwen3-235B-A22B
CARD_256: Card = {"experts": 256, "experts_per_token": 8}  # DeepSeek-R1 and MiMo-V2-Flash


def _dense(parameters: float, gpu: tuple[float, float], gpus: int = 1) -> Roofline:
    return Roofline(parameters, parameters, 1.0, 2.0, gpus * gpu[0], gpus * gpu[1])


def _qwen3_30b(gpu: tuple[float, float], gpus: int = 1) -> Roofline:
    return Roofline(30.5e9, 3.3e9, 8 / 128, 2.0, gpus * gpu[0], gpus * gpu[1])


# -- own measurements --------------------------------------------------------------------------------------------------

CONFIGURATION = {"a configuration": configuration}
BY_BATCH = {"a configuration": configuration, "a batch size": batch_size}
BY_BATCH_AND_SHAPE = {"a configuration": configuration, "a batch size": batch_size, "a depth or width": shape}
BY_RUN = {"a kind of work": single_run}
BY_OCTAVE = {"a width": configuration, "an octave of widths": octave}

_H200_REPEATS = "0.06%, at most 0.45%"

DENSE = Group(
    "dense 8B",
    "h200_vllm_cycles.csv",
    BY_BATCH_AND_SHAPE,
    noise=_H200_REPEATS,
    roofline=_dense(8.03e9, H200),
    keep=lambda run: str(run.setup.model).startswith("Llama"),
)
MOE = Group(
    "MoE 30B, plain decode",
    "h200_vllm_cycles.csv",
    {"a batch size": batch_size},
    card=CARD_30B,
    noise=_H200_REPEATS,
    roofline=_qwen3_30b(H200),
    keep=lambda run: str(run.setup.model).startswith("Qwen"),
)
LONG = Group(
    "dense 8B, long prompts",
    ("h200_vllm_cycles.csv", "h200_vllm_contexts.csv"),
    {"a batch size at long contexts": lambda run: run.workload.batch_size if _is_long(run) else None},
    noise=_H200_REPEATS,
    keep=DENSE.keep,
)
OWN = (DENSE, MOE)

# -- public figures ----------------------------------------------------------------------------------------------------

PUBLIC = (
    Group("Llama-3.1-8B, EAGLE, vLLM (vllm#20780)", "public/vllm20780_eagle.csv", CONFIGURATION),
    Group("Llama-3.1-8B, EAGLE-3, vLLM (vllm#20780)", "public/vllm20780_eagle3.csv", CONFIGURATION),
    Group(
        "DeepSeek-R1, MTP, 8 B200, TensorRT-LLM (its blog 1)",
        "public/trtllm_blog1_r1_b200x8.csv",
        CONFIGURATION,
        card=CARD_256,
        roofline=Roofline(671e9, 37e9, 8 / 256, 0.5, 8 * B200_FP4[0], 8 * B200_FP4[1]),
    ),
    Group(
        "Qwen3-30B-A3B, EAGLE-3 trees, 2 H100, SGLang (SpecForge#339)",
        "public/specforge339_qwen3-30b-a3b_h100x2.csv",
        BY_BATCH_AND_SHAPE,
        card=CARD_30B,
        roofline=_qwen3_30b(H100, 2),
    ),
    Group(
        "Qwen3-30B-A3B, EAGLE-3 trees, 4 H100, SGLang (AngelSlim#163)",
        "public/angelslim163_qwen3-30b-a3b_h100x4.csv",
        BY_BATCH_AND_SHAPE,
        card=CARD_30B,
        roofline=_qwen3_30b(H100, 4),
    ),
    Group(
        "MiMo-V2-Flash, MTP, 8 H200, SGLang (sglang-jax#1053)",
        "public/sgljax1053_mimo-v2-flash_h200x8.csv",
        {"a batch size": batch_size},
        card=CARD_256,
        roofline=Roofline(309e9, 15e9, 8 / 256, 1.0, 8 * H200_FP8[0], 8 * H200_FP8[1]),
    ),
    Group(
        "Qwen3-14B, DSpark, SGLang (sglang#35413)",
        "public/sglang35413_qwen3-14b.csv",
        {"a batch size": batch_size},
        noise="2 to 4%",
    ),
    Group("Llama-3 w4a8, bare forwards, vLLM (QQQ#29)", "public/qqq29_llama3_w4a8.csv", BY_OCTAVE),
    Group(
        "Qwen3-235B-A22B, bare forwards, llama.cpp (llama.cpp#14132)",
        "public/llamacpp14132_qwen3-235b.csv",
        BY_OCTAVE,
        card=CARD_30B,
    ),
    Group(
        "DeepSeek-R1, bare forwards, llama.cpp (llama.cpp#17034)",
        "public/llamacpp17034_deepseek-r1.csv",
        BY_OCTAVE,
        card=CARD_256,
    ),
    *(
        Group(
            f"Qwen3-{size}, EAGLE-3, H20, vLLM (AngelSlim docs)",
            f"public/angelslim_qwen3-{size.lower()}.csv",
            BY_RUN,
            roofline=_dense(QWEN3[size], H20),
        )
        for size in QWEN3
    ),
    Group(
        "Qwen3-30B-A3B, EAGLE-3, H20, vLLM (AngelSlim docs)",
        "public/angelslim_qwen3-30b-a3b.csv",
        BY_RUN,
        card=CARD_30B,
        roofline=_qwen3_30b(H20),
    ),
    Group(
        "Qwen3-8B, EAGLE-3, 2 A800, SGLang (sglang#11948)",
        "public/sglang11948_qwen3-8b_a800x2.csv",
        {"a log interval": single_run},
        roofline=_dense(8.2e9, A800, 2),
    ),
)

LEFT_OUT = {
    "accept lengths only; SemiAnalysisAI/InferenceX is in the table of accept lengths below": (
        "SemiAnalysisAI/InferenceX golden_al_distribution, vLLM blog 2026-07-13"
    ),
    "throughput without accept lengths, so no time of a cycle": (
        "sglang#22246 (42 rows by steps and batch), EAGLE#173, sglang#3466, sglang#6949, SpecForge#164, vllm#49548,"
        " omlx#2077, llama.cpp#12603, dflash#55, mlx-lm#1132, beellama.cpp#33, Rapid-MLX#472 (an acceptance of unstated"
        " meaning), EAGLE-3 paper's batch 1"
    ),
    "speed-ups or ratios without a time": (
        "HabanaAI/vllm-fork#1264, vLLM blogs 2024-10-17 and 2026-03-13, Spec-Bench leaderboards (3090, A100), EAGLE-3"
        " paper's batch 64, sglang#5502, sglang#34528, EAGLE#209, EAGLE#269, MoESD, MagicDec, gpt-oss-120b at Red Hat"
    ),
    "end-to-end latencies with prefill inside and no accept length": "ROCm blog 2025-09-11 (12 rows)",
    "values of the source's own fitted line, which any line fits": "SpecDecode-Bench's simulator, Crow#181",
    "fewer than four usable rows of one setup": (
        "lmsys blog 2025-07-17 (three; another schedule in the fourth), vllm#16035, qwen38-mtp#11, vllm#24243 (two batch"
        " sizes), rMLX#496, llama.cpp#10455, vllm-project/recipes#839, dflash-mlx#2 (one a model), sglang#3582,"
        " llama.cpp#3006, the other models of sglang#35413 (two each, since a budgeted verify has no stated width),"
        " tokenspeed#1132, vllm-ascend#16638, vllm#39680, sglang#10281, llama.cpp#5877, llama.cpp#2926,"
        " llama.cpp#18039, llama.cpp#14132's server run, aiter#4487, sparkinfer#920, speculators#1006,"
        " Qwen3.6-27B-DFlash#6"
    ),
    "figures that contradict each other, or two clocks in one row": (
        "sglang#4759, vllm-ascend#12890, llama.cpp#3649, ik_llama.cpp#1698, SpecForge#310, dflash#30, atomgradient"
    ),
    "a statement without a figure": "mirage#692, EAGLE#298, sglang#5274, sglang#8228, home-ops#10082, vllm-ascend#14440",
    "single all-reduces, for `specsim comm`": (
        "sglang-V100#2, local-inference-lab/vllm#580, b12x#295, sglang#32461, gardenlinux#4556, nccl-tests#44, nccl#812,"
        " nccl#1984, nccl#1259, flashinfer#5023"
    ),
}
"""Public rows that are not fitted, by the reason."""
