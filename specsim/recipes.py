"""How to make a run: the engine's command for a width with forced acceptance, or for plain decode.

Forcing one emitted token a cycle keeps acceptance out of the measurement: the throughput is then B/C. Verify still
runs over every draft token before its outcome is overwritten, so the time is the real one. Sources: SGLang 0.5.23
(SGLANG_SIMULATE_ACC_*, SGLANG_RECORD_STEP_TIME), vLLM 0.33.0 (rejection_sample_method).
"""

from __future__ import annotations

from collections.abc import Mapping

from specsim.flags import engine_flags
from specsim.quantities import SpecConfig

FORCED_LENGTH = 1.0
"""Accept length that a timing run forces, bonus included: no draft is taken, whatever the drafter."""

_SERVERS = {
    "sglang": "python3 -m sglang.launch_server YOUR_FLAGS --max-running-requests {batch}",
    "vllm": "vllm serve YOUR_FLAGS --max-num-seqs {batch}",
}


def commands(spec: SpecConfig | None, batch_size: int, engine: str | None, environment: Mapping[str, str]) -> list[str]:
    """Server commands that make a run of `spec` (None: plain decode) at a batch size, under an NCCL environment.

    For the stated engine where its commands are known, else for each that is; YOUR_FLAGS stands for model, drafter
    and everything else that the other runs were started with (vLLM's drafter, YOUR_DRAFTER, stands in its configuration). Empty where no known engine can run the configuration.
    """
    known = (engine or "").lower()
    wanted = [known] if known in _SERVERS else list(_SERVERS)
    variables = "".join(f"{name}={value} " for name, value in environment.items())
    found = []
    for name in wanted:
        server = _SERVERS[name].format(batch=batch_size)
        if spec is None:
            found.append(f"{variables}{server}")
        elif flags := _flags(name, spec):
            forced, arguments = _FORCED[name](flags, spec)
            found.append(f"{variables}{forced}{server} {arguments}")
    return found


def _flags(engine: str, spec: SpecConfig) -> str:
    return next(each.flags for each in engine_flags(spec) if each.engine == engine)


def _forced_sglang(flags: str, spec: SpecConfig) -> tuple[str, str]:
    """Environment variables force the length; the drafted tokens are kept where drafting is a chain of a model's own."""
    real = spec.topk == 1 and spec.method != "ngram"
    mode = "real-draft-token" if real else "fixed"
    forced = (
        f"SGLANG_RECORD_STEP_TIME=1 SGLANG_SIMULATE_ACC_LEN={FORCED_LENGTH:g}"
        f" SGLANG_SIMULATE_ACC_METHOD=match-expected SGLANG_SIMULATE_ACC_TOKEN_MODE={mode} "
    )
    return forced, flags


def _forced_vllm(flags: str, spec: SpecConfig) -> tuple[str, str]:
    """The speculative configuration forces the length, and names the drafter, in its last fields."""
    drafter = "" if spec.method in _OWN_DRAFTS else '"model": "YOUR_DRAFTER", '
    forced = f'{drafter}"rejection_sample_method": "synthetic", "synthetic_acceptance_length": {FORCED_LENGTH:.1f}'
    return "", f"{flags.removesuffix(_END)}, {forced}{_END}"


_OWN_DRAFTS = ("mtp", "nextn", "ngram", "suffix")  # drafts come from the target or from text
_END = "}'"
_FORCED = {"sglang": _forced_sglang, "vllm": _forced_vllm}
