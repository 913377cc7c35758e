"""Each finding on the numbers that show it, and not without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specsim.live.diagnosis import Claimed, Observed, diagnose
from specsim.live.facts import Counters, ServerFacts
from specsim.quantities import Setup, SpecConfig

SGLANG = ServerFacts(
    url="http://gpu:30000",
    setup=Setup(model="m", hardware="NVIDIA H200", engine="sglang", engine_version="0.5.23", tensor_parallel=4, cuda_graph=True),
    served_model="m",
    spec=SpecConfig(3, 1, 4, "eagle3"),
    spec_known=True,
    method="eagle3",
    drafter="lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B",
    settings={
        "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4, "tp_size": 4,
        "cuda_graph_config.decode.max_bs": 48, "max_running_requests": 48, "attention_backend": "fa3",
        "disable_custom_all_reduce": False,
    },
)  # fmt: skip
VLLM = replace(
    SGLANG,
    setup=Setup(engine="vllm", engine_version="0.33.0", tensor_parallel=2, cuda_graph=True),
    settings={"compilation_config.max_cudagraph_capture_size": 512, "scheduler_config.max_num_seqs": 256},
)
PLAIN = replace(
    SGLANG, spec=None, method=None, drafter=None,
    settings={"tp_size": 4, "cuda_graph_config.decode.max_bs": 256, "max_running_requests": 256, "attention_backend": "fa3"},
)  # fmt: skip
GOOD = Observed(batch_size=8, accept_length=2.9, token_ms=4.0, chunk_gap_ms=11.6, output_tokens=1e5, prefill_tokens=0)


def found(facts=SGLANG, observed=GOOD, counted=None, **more):
    return {finding.name: finding for finding in diagnose(facts, observed, counted, **more)}


def only(name, *arguments, **more):
    findings = found(*arguments, **more)
    assert list(findings) == [name]
    assert findings[name].advice
    return findings[name]


def test_a_healthy_server_is_found_healthy():
    assert found(baseline=PLAIN, claimed=Claimed(accept_length=2.85, tpot_ms=4.1)) == {}
    assert found(VLLM) == {}


def test_ranks_on_processors_have_no_nccl_to_set():
    settings = {"device_config.device": "cpu", "parallel_config.disable_custom_all_reduce": True}
    assert found(replace(VLLM, settings=settings)) == {}
    assert list(found(replace(VLLM, settings=settings | {"device_config.device": "cuda"}))) == [NCCL]


def test_without_evidence_there_is_no_finding():
    bare = ServerFacts("http://x", Setup(), "m", None, False, None, None)
    assert diagnose(bare, Observed()) == ()
    assert diagnose(bare, Observed(), Counters(1.0), baseline=bare, claimed=Claimed(0.6, 12.0)) == ()


NEAR = "accept length near 1"


def test_a_length_near_1_shows_its_counts():
    """1,000 cycles of 3 drafts, 60 + 15 + 5 accepted."""
    counted = Counters(60.0, cycles=1000, accepted=80, accepted_at=(60, 15, 5))
    finding = only(NEAR, counted=counted)
    assert "1.080 over 1000 cycles of 3 drafts; the first draft is accepted in 6.0%" in finding.evidence
    assert "trained on this very model" in finding.advice


@pytest.mark.parametrize(
    ("method", "drafter", "advice"),
    [
        ("eagle", "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B", "EAGLE-3 head by its name, and runs as EAGLE"),
        ("eagle", "yuhuili/EAGLE-3-x", "EAGLE-3 head by its name"),
        ("eagle3", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B", "is no EAGLE-3 head"),
        ("ngram", None, "what a text repeats"),
    ],
)
def test_a_length_near_1_is_traced_to_the_drafter(method, drafter, advice):
    facts = replace(SGLANG, method=method, drafter=drafter)
    assert advice in only(NEAR, facts, replace(GOOD, accept_length=1.05)).advice


def test_counters_go_before_what_the_client_saw_and_few_cycles_prove_nothing():
    assert found(observed=replace(GOOD, accept_length=1.0), counted=Counters(1.0, cycles=100, accepted=190)) == {}
    assert found(counted=Counters(1.0, cycles=20, accepted=0)) == {}
    assert found(PLAIN, replace(GOOD, accept_length=1.0)) == {}


@pytest.mark.parametrize(
    ("facts", "settings", "said"),
    [
        (SGLANG, {"disable_cuda_graph": True}, "disable_cuda_graph True"),
        (SGLANG, {"cuda_graph_config.decode.backend": "disabled"}, "decode.backend disabled"),
        (VLLM, {"model_config.enforce_eager": True}, "enforce_eager True"),
    ],
)
def test_graphs_that_are_off(facts, settings, said):
    off = replace(facts, setup=replace(facts.setup, cuda_graph=False), settings={**facts.settings, **settings})
    assert said in only("CUDA graphs are off", off, replace(GOOD, batch_size=4000)).evidence


@pytest.mark.parametrize(
    ("facts", "claimed", "meaning"),
    [
        (SGLANG, 1.9, "without the bonus"),  # 2.9 − 1
        (VLLM, 0.633, "accepted over drafted"),  # 1.9/3
        (SGLANG, 3.175, "counts the bonus, converted as if it did not"),  # 1 + 3·2.9/4
        (SGLANG, 2.533, "converted as if it counted it"),  # 4·1.9/3
    ],
)
def test_a_claimed_length_that_is_another_figure_of_the_measured_one(facts, claimed, meaning):
    finding = only("accept rate or drafts read for accept length", facts, claimed=Claimed(accept_length=claimed))
    assert meaning in finding.evidence
    assert "2.9 is measured" in finding.evidence


@pytest.mark.parametrize("claimed", [2.8, 2.2, 4.0])
def test_a_claimed_length_that_is_merely_wrong_is_no_misreading(claimed):
    assert found(claimed=Claimed(accept_length=claimed)) == {}


def test_only_sglang_has_ever_counted_the_bonus_into_a_rate():
    assert found(VLLM, claimed=Claimed(accept_length=3.175)) == {}


def tree(width, steps=2, topk=2, asked=None):
    settings = {"speculative_num_steps": steps, "speculative_eagle_topk": topk, "speculative_num_draft_tokens": width}
    return replace(SGLANG, spec=None, spec_known=False, settings=settings | (asked or {}))


def test_a_tree_larger_than_its_candidates():
    finding = only("tree larger than the engine can fill", tree(8))
    assert "num_draft_tokens 8, where 2 steps of topk 2 offer 7" in finding.evidence  # 1 + 2 + 4
    assert found(tree(7)) == {}
    assert found(replace(tree(12, 1, 10), method="ngram")) == {}  # a lookup's tree has no such bound


def test_draft_tokens_that_the_engine_overrode():
    name = "draft tokens overridden by the engine"
    asked = replace(SGLANG, settings={**SGLANG.settings, "asked --speculative-num-draft-tokens": 8})
    finding = only(name, asked)
    assert "8 draft tokens were asked for" in finding.evidence
    assert "runs 4 (steps + 1)" in finding.evidence
    assert "7 steps" in finding.advice
    unresolved = replace(SGLANG, settings={**SGLANG.settings, "speculative_num_draft_tokens": 6})
    assert "6 draft tokens" in only(name, unresolved).evidence
    block = replace(asked, spec=SpecConfig(1, 1, 16, "dflash"), method="dflash")
    assert found(block) == {}


def test_a_baseline_under_other_settings_is_told_each_of_them():
    other = replace(
        PLAIN,
        setup=replace(PLAIN.setup, tensor_parallel=2, cuda_graph=False),
        settings={**PLAIN.settings, "attention_backend": "triton", "tp_size": 2},
    )
    evidence = only("baseline runs under other settings", baseline=other).evidence
    assert evidence == (
        "tensor_parallel: 4 here, 2 there; cuda_graph: True here, False there; attention_backend: fa3 here, triton there"
    )


def test_a_limit_of_the_batch_differs_only_where_it_binds():
    assert found(baseline=PLAIN) == {}  # 48 and 256 let 8 run
    large = replace(SGLANG, settings={**SGLANG.settings, "cuda_graph_config.decode.max_bs": 256})
    evidence = only("baseline runs under other settings", large, replace(GOOD, batch_size=64), baseline=PLAIN).evidence
    assert evidence == "max_running_requests: 48 here, 256 there"


def test_a_baseline_that_speculates():
    assert "eagle3, 4 draft tokens" in only("baseline speculates", baseline=SGLANG).evidence


NCCL = "all-reduces go through NCCL"


@pytest.mark.parametrize(
    "gpu", ["NVIDIA RTX PRO 6000 Blackwell", "NVIDIA L40S", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090"]
)
def test_more_than_two_gpus_on_pcie(gpu):
    facts = replace(SGLANG, setup=replace(SGLANG.setup, hardware=gpu))
    assert f"tensor parallel 4 on {gpu}" in only(NCCL, facts).evidence
    assert found(replace(facts, setup=replace(facts.setup, tensor_parallel=2))) == {}


def test_nvlink_bridges_of_four_are_not_taken_for_pcie():
    assert found(replace(SGLANG, setup=replace(SGLANG.setup, hardware="NVIDIA H200 NVL"))) == {}


def test_a_gpu_that_the_server_does_not_tell_may_be_told():
    untold = replace(SGLANG, setup=replace(SGLANG.setup, hardware=None))
    assert found(untold) == {}
    only(NCCL, untold, hardware="NVIDIA L40S")


def test_custom_all_reduce_that_is_off():
    off = replace(SGLANG, settings={**SGLANG.settings, "disable_custom_all_reduce": True})
    assert "at tensor parallel 4" in only(NCCL, off).evidence
    assert found(replace(off, setup=replace(off.setup, tensor_parallel=1))) == {}


BEYOND = "batch beyond the captured graphs"


@pytest.mark.parametrize(
    ("facts", "batch", "needs"),
    [
        (SGLANG, 48, None), (SGLANG, 49, "49 requests, the largest has 48"),
        (VLLM, 128, None), (VLLM, 129, "516 tokens, the largest has 512"),  # 4 tokens each
        (PLAIN, 256, None), (PLAIN, 257, "257 requests, the largest has 256"),
        (replace(VLLM, settings={}), 10_000, None),
    ],
)  # fmt: skip
def test_a_batch_that_no_graph_holds(facts, batch, needs):
    observed = replace(GOOD, batch_size=batch)
    if needs is None:
        assert found(facts, observed) == {}
    else:
        assert needs in only(BEYOND, facts, observed).evidence


def test_data_parallel_ranks_share_a_batch():
    ranks = replace(SGLANG, settings={**SGLANG.settings, "dp_size": 2})
    assert found(ranks, replace(GOOD, batch_size=96)) == {}
    assert "batch of 49" in only(BEYOND, ranks, replace(GOOD, batch_size=98)).evidence


def test_the_gap_between_chunks_claimed_as_time_per_token():
    finding = only("time between chunks read for time per token", claimed=Claimed(tpot_ms=11.5))
    assert "chunks come every 11.6 ms, tokens every 4 ms (2.90 tokens a chunk)" in finding.evidence
    assert found(claimed=Claimed(tpot_ms=8.0)) == {}
    assert found(observed=replace(GOOD, chunk_gap_ms=4.0), claimed=Claimed(tpot_ms=11.5)) == {}


def test_prompts_that_were_computed_meanwhile():
    finding = only("prefill in the measured window", observed=replace(GOOD, prefill_tokens=4000.0))
    assert "4000 prompt tokens" in finding.evidence
    assert "while 100000 tokens were put out: 4.0%" in finding.evidence
    assert found(observed=replace(GOOD, prefill_tokens=900.0)) == {}


HELD = "chunks held back on their way"
WAITED = replace(GOOD, prompt_len=30.0)


def test_an_answer_that_comes_all_at_once_was_held_back():
    """256 tokens of 4 ms each collected by a proxy: the first chunk after 1,050 ms, the last 2 ms later."""
    late = replace(WAITED, first_token_ms=1050.0, request_ms=1052.0, request_token_ms=2 / 255)
    finding = only(HELD, observed=late)
    assert "first chunk after 1050 ms or more and their last after 1052 ms" in finding.evidence
    assert "proxy" in finding.advice


@pytest.mark.parametrize(
    ("first", "whole", "prompt"),
    [
        (60.0, 1080.0, 30),  # 255 tokens at 4 ms after a prefill
        (900.0, 1100.0, 30),  # eight prompts of 30 tokens are read in 992 ms at the latest, at 4 ms a token
        (5000.0, 6020.0, 8000),  # long prompts
        (300.0, 1320.0, 1),  # a far server: its requests take far longer than the way there
    ],
)
def test_a_prompt_that_is_read_takes_its_time(first, whole, prompt):
    seen = replace(WAITED, first_token_ms=first, request_ms=whole, request_token_ms=4.0, prompt_len=float(prompt))
    assert found(observed=seen) == {}
