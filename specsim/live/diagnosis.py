"""What a server's settings and its measured numbers give away of a wrong set-up or a wrongly read figure.

Each finding rests on evidence that it states; what nobody told or measured gives none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specsim.cost.custom_allreduce import Wiring, custom_paths
from specsim.cost.graph_padding import is_captured
from specsim.live.facts import Counters, ServerFacts
from specsim.methods import METHODS
from specsim.quantities import SETUP_FIELDS, tree_limit

_NEAR_ONE = 1.2  # fewer than one cycle in five accepts even its first draft: no drafter that fits does so badly
_ENOUGH_CYCLES = 50
_ALIKE, _UNLIKE = 0.02, 0.05  # relative: two figures are the same one; two figures are not
_PREFILL_SHARE = 0.01  # prompt tokens of a window over its output tokens
_PCIE_ONLY = re.compile(r"\b(RTX|GeForce|L4|L40S?|A10G?|A16|A40|T4)\b|PCIe", re.IGNORECASE)
_PCIE_KERNELS = {
    "sglang": "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1",
    "vllm": "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC=1",
}
_FOLLOWS = re.compile(
    r"(asked --)?spec(ulative)?[_-].*|speculative_config\..*|.*cuda_graph_(max_)?bs(_decode)?|cuda_graph_config\.decode\.\w*bs"
    r"|compilation_config\.(max_)?cudagraph_capture_sizes?"
)
"""Settings that differ by speculation itself, or follow from it."""
_LIMITS = ("max_running_requests", "scheduler_config.max_num_seqs", "max_batch_size_static", "total_slots")
"""Settings that bound the batch: they differ only for batches that one of them does not let run."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: its name, the numbers that say so, and what to try."""

    name: str
    evidence: str
    advice: str


@dataclass(frozen=True)
class Observed:
    """What a client measured, None where it did not.

    `token_ms` and `chunk_gap_ms` are the times from token to token and from chunk to chunk of a request. `prefill_tokens`
    are prompt tokens that the server computed while it put out `output_tokens`, beside those whose prefills were left out
    of what was measured. `first_token_ms`, `request_ms` and `prompt_len` are medians of requests that ended: to their first
    and last chunk, and tokens of their prompts; `request_token_ms` is their TPOT.
    """

    batch_size: float | None = None
    accept_length: float | None = None
    token_ms: float | None = None
    chunk_gap_ms: float | None = None
    output_tokens: float | None = None
    prefill_tokens: float | None = None
    first_token_ms: float | None = None
    request_ms: float | None = None
    request_token_ms: float | None = None
    prompt_len: float | None = None


@dataclass(frozen=True)
class Claimed:
    """What a prediction, or a user, holds: an accept length, and time per output token."""

    accept_length: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True)
class _Case:
    facts: ServerFacts
    observed: Observed
    counted: Counters | None
    baseline: ServerFacts | None
    claimed: Claimed
    hardware: str | None

    @property
    def accept_length(self) -> float | None:
        """By the counters' difference, else as observed."""
        counted = self.counted
        if counted is not None and counted.cycles and counted.accepted is not None:
            return 1 + counted.accepted / counted.cycles
        return self.observed.accept_length

    @property
    def engine(self) -> str:
        """The engine, empty where it is not known."""
        return self.facts.setup.engine or ""


def diagnose(
    facts: ServerFacts,
    observed: Observed,
    counted: Counters | None = None,
    *,
    baseline: ServerFacts | None = None,
    claimed: Claimed | None = None,
    hardware: str | None = None,
) -> tuple[Finding, ...]:
    """Everything that is found wrong, in the order of the table in docs/live.md.

    `counted` is the difference of two readings over what was observed, `baseline` the server without speculation that
    it is compared with, `hardware` a GPU's name for where the server tells none.
    """
    named = facts.setup.hardware or hardware
    case = _Case(facts, observed, counted, baseline, claimed or Claimed(), named)
    return tuple(finding for check in _CHECKS for finding in check(case))


def _near_one(case: _Case) -> Iterator[Finding]:
    """A drafter that hardly ever guesses right is another model's, or not wired as it was trained."""
    length, counted = case.accept_length, case.counted
    speculates = case.facts.spec is not None or case.facts.method is not None
    cycles = counted.cycles if counted is not None else None
    if not speculates or length is None or length >= _NEAR_ONE or (cycles is not None and cycles < _ENOUGH_CYCLES):
        return
    of = f" over {cycles:g} cycles" if cycles else ""
    drafts = f" of {case.facts.spec.num_draft_tokens - 1} drafts" if case.facts.spec is not None else ""
    first = counted.accepted_at[0] / cycles if counted is not None and cycles and counted.accepted_at else None
    share = f"; the first draft is accepted in {first:.1%} of them" if first is not None else ""
    yield Finding("accept length near 1", f"accept length {length:.3f}{of}{drafts}{share}", _of_drafter(case.facts))


def _of_drafter(facts: ServerFacts) -> str:
    method, drafter = facts.method or "", facts.drafter or ""
    three = bool(re.search(r"eagle[-_ ]?3", drafter, re.IGNORECASE))
    if method == "eagle" and three:
        return (
            f"the drafter {drafter!r} is an EAGLE-3 head by its name, and runs as EAGLE: state the method eagle3 (SGLang:"
            " --speculative-algorithm EAGLE3)"
        )
    if method == "eagle3" and not three and re.search("eagle", drafter, re.IGNORECASE):
        return f"the drafter {drafter!r} is no EAGLE-3 head by its name, and runs as EAGLE-3: state the method eagle"
    if method in METHODS and METHODS[method].family == "lookup":
        return "a lookup drafts only what a text repeats: measure with the prompts that are served, or use a drafter"
    return (
        "see that the drafter was trained on this very model, not a relative or another quantization of it, that the"
        " method is the one it was trained as, and that the server's log reports its weights as loaded; forced acceptance"
        " (SGLANG_SIMULATE_ACC_LEN and the like) must be off"
    )


def _graphs_off(case: _Case) -> Iterator[Finding]:
    """Every draft forward and every verify is launched kernel by kernel."""
    if case.facts.setup.cuda_graph is not False:
        return
    said = [
        f"{name} {value}"
        for name, value in case.facts.settings.items()
        if re.search(r"disable(_decode)?_cuda_graph$|decode\.backend|enforce_eager|cudagraph_mode", name)
    ]
    remedy = {"sglang": "start it without --disable-cuda-graph", "vllm": "start it without --enforce-eager"}
    advice = (
        f"{remedy.get(case.engine, 'turn them on')}: a cycle has more forwards than a decode step, and pays each launch"
    )
    yield Finding("CUDA graphs are off", f"the server says {', '.join(said) or 'so'}", advice)


def _rate_for_length(case: _Case) -> Iterator[Finding]:
    """A length that is off, and is what the measured one would be as a rate or without the bonus."""
    length, claimed, spec = case.accept_length, case.claimed.accept_length, case.facts.spec
    if length is None or claimed is None or spec is None or abs(claimed / length - 1) <= _UNLIKE:
        return
    width = float(spec.num_draft_tokens)
    for meaning, value in _misread(length, width, case.engine):
        if value > 0 and abs(claimed / value - 1) <= _ALIKE:
            evidence = (
                f"{claimed:.3g} was claimed where {length:.3g} is measured: {meaning} of {length:.3g} at"
                f" {width:g} draft tokens is {value:.3g}"
            )
            advice = (
                "state the accept length, bonus included: tokens a request gets from a cycle (specsim accept converts)"
            )
            yield Finding("accept rate or drafts read for accept length", evidence, advice)
            return


def _misread(length: float, width: float, engine: str) -> Iterator[tuple[str, float]]:
    """What a length L at N draft tokens becomes by each wrong reading of it that this engine's figures allow."""
    yield "the count of accepted drafts, without the bonus,", length - 1
    if width <= 1:
        return
    yield "the accept rate, accepted over drafted,", (length - 1) / (width - 1)
    if engine == "sglang":
        old, new = length / width, (length - 1) / (width - 1)
        yield (
            "an accept rate of 0.5.8 to 0.5.10, which counts the bonus, converted as if it did not,",
            1 + (width - 1) * old,
        )
        yield "an accept rate since 0.5.11, without the bonus, converted as if it counted it,", width * new


def _tree_too_large(case: _Case) -> Iterator[Finding]:
    """SGLang itself checks no tree: its selection fails at run time."""
    steps, topk, width = (
        _number(case.facts, f"speculative_{n}") for n in ("num_steps", "eagle_topk", "num_draft_tokens")
    )
    method = METHODS.get(case.facts.method or "")
    if steps is None or topk is None or width is None or method is None or not method.steps_bound_length:
        return
    if topk > 1 and steps >= 1 and width > (most := int(tree_limit(steps, topk))):
        evidence = (
            f"num_draft_tokens {width}, where {steps} steps of topk {topk} offer {most} (1 + topk + (steps − 1)·topk²)"
        )
        yield Finding("tree larger than the engine can fill", evidence, f"ask for at most {most} draft tokens")


def _overridden(case: _Case) -> Iterator[Finding]:
    """With topk 1 SGLang sets the draft tokens to steps + 1, whatever was asked."""
    spec, settings = case.facts.spec, case.facts.settings
    asked = settings.get("asked --speculative-num-draft-tokens", settings.get("speculative_num_draft_tokens"))
    if spec is None or spec.topk != 1 or not METHODS[spec.method].steps_bound_length or not isinstance(asked, int):
        return
    if asked != spec.num_draft_tokens:
        evidence = (
            f"{asked} draft tokens were asked for, and with topk 1 and {spec.num_steps} steps the engine runs"
            f" {spec.num_draft_tokens} (steps + 1)"
        )
        advice = (
            f"ask for {asked - 1} steps where {asked} tokens are to be verified, or for a topk above 1; compare with"
            f" predictions for {spec.num_draft_tokens}"
        )
        yield Finding("draft tokens overridden by the engine", evidence, advice)


def _unlike_baseline(case: _Case) -> Iterator[Finding]:
    """A ratio of two servers is one of speculation only where nothing else differs."""
    if (other := case.baseline) is None:
        return
    if other.spec is not None or other.method is not None:
        drafts = f", {other.spec.num_draft_tokens} draft tokens" if other.spec is not None else ""
        evidence = f"the baseline speculates itself ({other.method or 'method not told'}{drafts})"
        yield Finding("baseline speculates", evidence, "start the baseline without any speculative option")
    differing = [*_differing_setup(case.facts, other), *_differing_settings(case, other)]
    if differing:
        evidence = "; ".join(f"{name}: {here} here, {there} there" for name, here, there in differing)
        advice = "start both servers alike but for speculation, or leave the ratio of the two alone"
        yield Finding("baseline runs under other settings", evidence, advice)


def _differing_setup(here: ServerFacts, there: ServerFacts) -> Iterator[tuple[str, object, object]]:
    for name in SETUP_FIELDS:
        mine, other = getattr(here.setup, name), getattr(there.setup, name)
        if mine is not None and other is not None and mine != other:
            yield name, mine, other


def _differing_settings(case: _Case, there: ServerFacts) -> Iterator[tuple[str, object, object]]:
    """Settings that both state, those left out that are of the setup, follow from speculation, or bind neither."""
    batch = case.observed.batch_size
    for name in sorted(case.facts.settings.keys() & there.settings.keys()):
        mine, other = case.facts.settings[name], there.settings[name]
        if mine == other or _FOLLOWS.fullmatch(name) or re.search(r"(^|\.)(tp|tensor_parallel)_size$", name):
            continue
        if name in _LIMITS and batch is not None and all(isinstance(v, int) and v >= batch for v in (mine, other)):
            continue
        yield name, mine, other


def _nccl_only(case: _Case) -> Iterator[Finding]:
    """No kernel of the engine's own comes before NCCL: not on more than two GPUs that only PCIe joins, nor when it is off."""
    ranks = case.facts.setup.tensor_parallel
    on_cpu = case.facts.settings.get("device_config.device") == "cpu"
    if ranks is None or ranks < 2 or case.engine not in _PCIE_KERNELS or on_cpu:
        return
    kernel = _PCIE_KERNELS[case.engine]
    advice = (
        "NCCL's settings count here, and its time grows with every verified token: compare NCCL_PROTO and NCCL_ALGO"
        f" (specsim comm), prefer few draft tokens, or try {kernel} where the version has it"
    )
    off = next(
        (n for n, v in case.facts.settings.items() if n.endswith("disable_custom_all_reduce") and v is True), None
    )
    if off:
        evidence = f"{off} is set at tensor parallel {ranks}: every all-reduce is NCCL's"
        yield Finding(
            "all-reduces go through NCCL", evidence, f"start it without --disable-custom-all-reduce; else {advice}"
        )
    elif case.hardware and _PCIE_ONLY.search(case.hardware) and not custom_paths(Wiring(case.engine, "pcie", ranks)):
        evidence = (
            f"tensor parallel {ranks} on {case.hardware}, which PCIe joins: custom all-reduce is off beyond two GPUs"
        )
        yield Finding("all-reduces go through NCCL", evidence, advice)


def _beyond_graphs(case: _Case) -> Iterator[Finding]:
    """A batch that no captured graph holds runs eagerly."""
    facts, batch = case.facts, case.observed.batch_size
    largest = _largest_graph(facts)
    if batch is None or largest is None or facts.setup.cuda_graph is False or not facts.spec_known:
        return
    width = int(facts.spec.num_draft_tokens) if facts.spec is not None else 1
    each = batch / max(_number(facts, "dp_size") or _number(facts, "parallel_config.data_parallel_size") or 1, 1)
    version = facts.setup.engine_version
    if is_captured(each, width, case.engine, version, facts.spec is not None, largest=largest):
        return
    unit, needs = ("tokens", each * width) if case.engine == "vllm" else ("requests", each)
    option = "--max-cudagraph-capture-size" if case.engine == "vllm" else "--cuda-graph-max-bs"
    evidence = (
        f"a batch of {each:g} with {width} tokens each needs a graph of {needs:g} {unit}, the largest has {largest}"
    )
    advice = f"raise {option} to {needs:g}, or let fewer requests run at once"
    yield Finding("batch beyond the captured graphs", evidence, advice)


def _largest_graph(facts: ServerFacts) -> int | None:
    """The largest captured size that the server states: SGLang's in requests, vLLM's in tokens."""
    lists = (
        "cuda_graph_config.decode.bs",
        "cuda_graph_bs_decode",
        "cuda_graph_bs",
        "compilation_config.cudagraph_capture_sizes",
    )
    for name in lists:
        sizes = facts.settings.get(name)
        if isinstance(sizes, tuple) and sizes and all(isinstance(size, int) for size in sizes):
            return int(max(sizes))
    names = ("cuda_graph_config.decode.max_bs", "cuda_graph_max_bs_decode", "cuda_graph_max_bs")
    stated = (_number(facts, name) for name in (*names, "compilation_config.max_cudagraph_capture_size"))
    return next((size for size in stated if size), None)


def _gap_for_tpot(case: _Case) -> Iterator[Finding]:
    """With speculation a chunk is a cycle's tokens: its gap is L times the time per output token."""
    seen, claimed = case.observed, case.claimed.tpot_ms
    if claimed is None or not seen.token_ms or not seen.chunk_gap_ms or seen.chunk_gap_ms / seen.token_ms < 1 + _UNLIKE:
        return
    if abs(claimed / seen.chunk_gap_ms - 1) <= _UNLIKE < abs(claimed / seen.token_ms - 1):
        evidence = (
            f"{claimed:.4g} ms a token was claimed: chunks come every {seen.chunk_gap_ms:.4g} ms, tokens every"
            f" {seen.token_ms:.4g} ms ({seen.chunk_gap_ms / seen.token_ms:.2f} tokens a chunk)"
        )
        advice = (
            "take time per output token (TPOT), or call the inter-token latency what it is here: the time of a cycle"
        )
        yield Finding("time between chunks read for time per token", evidence, advice)


def _prefill(case: _Case) -> Iterator[Finding]:
    """Prompts that are computed between cycles lengthen them."""
    prompt, output = case.observed.prefill_tokens, case.observed.output_tokens
    if prompt and output and prompt / output > _PREFILL_SHARE:
        evidence = (
            f"{prompt:g} prompt tokens that were not left out were computed while {output:g} tokens were put out:"
            f" {prompt / output:.1%}"
        )
        advice = (
            "measure while no other client asks, and no request of your own starts: a longer output, all sent at once"
        )
        yield Finding("prefill in the measured window", evidence, advice)


def _held_back(case: _Case) -> Iterator[Finding]:
    """Reading prompts takes no longer than writing as many tokens, one after the other: else chunks were held back."""
    seen = case.observed
    first, whole, token_ms, prompt = seen.first_token_ms, seen.request_ms, seen.request_token_ms, seen.prompt_len
    if first is None or whole is None or token_ms is None or not prompt or seen.batch_size is None:
        return
    if first > max(seen.batch_size * (prompt + 1) * token_ms, whole / 2):
        evidence = (
            f"half of the requests had their first chunk after {first:.4g} ms or more and their last after {whole:.4g} ms, so"
            f" {token_ms:.3g} ms a token between: {seen.batch_size:g} prompts of {prompt:g} tokens are read in less"
        )
        advice = (
            "times between chunks say nothing here: ask the server at its own address, without a proxy that collects answers"
            " (nginx: proxy_buffering off), and without reasoning that is not streamed"
        )
        yield Finding("chunks held back on their way", evidence, advice)


def _number(facts: ServerFacts, name: str) -> int | None:
    value = facts.settings.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


_CHECKS: tuple[Callable[[_Case], Iterator[Finding]], ...] = (
    _near_one, _graphs_off, _rate_for_length, _tree_too_large, _overridden, _unlike_baseline, _nccl_only, _beyond_graphs,
    _gap_for_tpot, _prefill, _held_back,
)  # fmt: skip
