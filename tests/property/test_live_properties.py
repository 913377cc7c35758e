"""Adapters under damaged answers: nothing raises but a sentence, and no counter falls below 0."""

from __future__ import annotations

import contextlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import SpecsimError
from specsim.live.counters import accept_length_between
from specsim.live.diagnosis import Claimed, Observed, diagnose
from specsim.live.facts import Counters
from tests.unit.servers import (
    LLAMA_OLD_PROPS,
    SGLANG_INFO,
    TRT_CONFIG,
    TRT_POSITIONS,
    TRT_SPECULATIVE,
    TRT_TOTALS,
    VLLM_CONFIG,
    VLLM_TEXT,
    InTurn,
    asked,
    sglang_metrics,
    trt_iteration,
)
from tests.unit.test_live_http import SERVERS

NOBODYS = [
    "-1",
    "nan",
    "NaN",
    "inf",
    "Infinity",
    "1e400",
    "9" * 400,
    "0.5",
    "٣",
    "null",
    "true",
    '"x"',
    "[]",
    "{}",
    "1e-30",
]
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
RICH = {
    "sglang": SERVERS["sglang"] | {"/metrics": sglang_metrics(100, (200, 60), 10, 300, 40), "/server_info": SGLANG_INFO},
    "sglang, old": SERVERS["sglang"] | {"/v1/loads": (404, ""), "/metrics": sglang_metrics(100, (200, 60), 10, 300, 40)},
    "sglang, bare": {**SERVERS["sglang"], "/v1/loads": (404, "")},
    "vllm": SERVERS["vllm"] | {"/server_info": {"vllm_config": VLLM_CONFIG, "vllm_env": {"NCCL_ALGO": "Ring"}}},
    "vllm, text": SERVERS["vllm"] | {"/server_info": {"vllm_config": VLLM_TEXT.format(spec="SpeculativeConfig(method='eagle', model='a', num_spec_tokens=3)")}},
    "llama.cpp": SERVERS["llama.cpp"],
    "llama.cpp, old": SERVERS["llama.cpp"] | {"/props": LLAMA_OLD_PROPS},
    "tensorrt-llm": SERVERS["tensorrt-llm"] | {"/prometheus/metrics": TRT_CONFIG + TRT_SPECULATIVE + TRT_POSITIONS},
    "tensorrt-llm, totals": SERVERS["tensorrt-llm"] | {"/prometheus/metrics": TRT_SPECULATIVE + TRT_TOTALS},
    "tensorrt-llm, iterations": {"/v1/models": SERVERS["tensorrt-llm"]["/v1/models"], "/metrics": [trt_iteration(4, 12, 5)]},
}  # fmt: skip


@st.composite
def damaged(draw, body):
    """An answer with a piece cut out or put in, or some of its numbers and words replaced."""
    text = body if isinstance(body, str) else json.dumps(body)
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 60)))
    number = draw(st.sampled_from(NOBODYS))
    kind = draw(st.sampled_from(["cut", "put", "short", "numbers", "words"]))
    if kind == "numbers":
        skip = draw(st.integers(0, 30))
        seen = iter(range(10**9))
        return re.sub(r"\b\d+(\.\d+)?\b", lambda m: number if next(seen) % (skip + 1) == 0 else m[0], text)
    if kind == "words":
        return text[:start] + re.sub(r'"[^"]*"', number, text[start:], count=draw(st.integers(1, 3)))
    return {"cut": text[:start] + text[end:], "put": text[:start] + draw(TEXT) + text[start:], "short": text[:start]}[
        kind
    ]


@pytest.mark.parametrize("name", RICH)
@given(data=st.data())
def test_damaged_answers_raise_nothing_but_a_sentence(name, data):
    whole = RICH[name]
    spoilt = {
        path: InTurn([body, data.draw(damaged(body))]) if path == "/v1/models" else data.draw(damaged(body))
        for path, body in whole.items()
        if not isinstance(body, tuple)
    }
    with contextlib.suppress(SpecsimError):
        _, facts, before, after = asked(whole | spoilt, "facts", "counters", "counters")
        numbers = (before.cycles, before.accepted, before.drafted, before.output_tokens, *before.accepted_at)
        assert all(number is None or number >= 0 for number in numbers)
        found = diagnose(facts, Observed(8, 2.9, 4.0, 11.6, 1e5, 0), claimed=Claimed(2.0, 9.0), baseline=facts)
        assert all(finding.evidence and finding.advice for finding in found)
        accept_length_between(before, after)


@given(
    at_least=st.lists(st.integers(0, 1000), min_size=1, max_size=6).map(lambda counts: sorted(counts, reverse=True)),
    extra=st.integers(0, 1000),
    start=st.integers(0, 10**6),
)
def test_the_length_of_a_difference_is_that_of_its_histogram(at_least, extra, start):
    cycles = at_least[0] + extra
    before = Counters(0.0, cycles=start, accepted=start, accepted_at=(start,) + (0,) * (len(at_least) - 1))
    after = Counters(
        1.0, cycles=start + cycles, accepted=start + sum(at_least),
        accepted_at=tuple(count + begin for count, begin in zip(at_least, before.accepted_at, strict=True)),
    )  # fmt: skip
    if cycles == 0:
        with pytest.raises(SpecsimError, match="no cycle"):
            accept_length_between(before, after)
        return
    accepted = [sum(i < count for count in at_least) for i in range(cycles)]  # the cycles one by one
    mean = sum(accepted) / cycles
    length = accept_length_between(before, after)
    assert length.accept_length == pytest.approx(1 + mean)
    if cycles < 20:  # too few to know an error (docs/check.md)
        assert length.error is None
    else:
        variance = sum((a - mean) ** 2 for a in accepted) / cycles / (cycles - 1)
        assert length.error == pytest.approx(variance**0.5, abs=1e-9)
