"""From a question about a live server to its answer: who answers there, what it runs, what to load it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from specsim.cost.model import CostModel
from specsim.errors import ConfigurationError, Fault, InputError, NotIdentifiedError, SpecsimError
from specsim.live.answers import client_with
from specsim.live.counters import difference
from specsim.live.diagnosis import Claimed, Finding, Observed, diagnose
from specsim.live.facts import Counters, ServerFacts
from specsim.live.load import Load, Loader, route_of, sender_with
from specsim.live.probe import Adapter, probe
from specsim.live.prompts import built_in_prompts, read_prompts
from specsim.live.requests import ended
from specsim.live.server import ASSUMED
from specsim.live.session import Outcome, Plan, Row, Session, preflight, side_of
from specsim.live.window import Stream, tokens_so_far
from specsim.metrics import RequestRows
from specsim.quantities import SpecConfig
from specsim.questions import AcceptLength, drafting_method, measured_length

if TYPE_CHECKING:
    import aiohttp
    import httpx


@dataclass(frozen=True)
class Asked:
    """What somebody asks of a check, as it was stated; None leaves it to the server or the model.

    `tolerance` is in percent. `api_key` goes into the requests and nowhere else.
    """

    url: str
    model_path: Path
    baseline_url: str | None
    concurrency: int | None
    prompts: Path | None
    output_len: int
    seconds: float
    tolerance: float
    num_draft_tokens: int | None
    num_steps: int | None
    topk: int | None
    accept_length: float | None
    nccl: str | None
    output: Path | None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Checked:
    """What was asked and found, remarks on what was asked, and what the diagnosis says is wrong with the server."""

    plan: Plan
    outcome: Outcome
    remarks: tuple[str, ...]
    findings: tuple[Finding, ...]


async def check(asked: Asked, progress: Callable[[int, int], None]) -> Checked:
    """Probe, plan, load and judge; whatever is wrong with the question is raised before the load.

    Raises InputError, ConfigurationError,
    NotIdentifiedError where the model predicts nothing, and SpecsimError where a server cannot be reached.
    """
    for url in filter(None, [asked.url, asked.baseline_url]):
        _refuse_odd(url)
    model = CostModel.load(asked.model_path)
    async with client_with(asked.api_key) as client, sender_with(asked.api_key) as sender:
        adapter, facts = await _probed(client, sender, asked.url)
        facts = drafting_as_measured(facts, model)
        spec, remarks = configuration(facts, asked)
        plan = _plan(model, spec, asked)
        _try_to_write(plan.output)
        first = preflight(plan, facts, spec)
        if first.expected is None:
            raise NotIdentifiedError(f"{asked.model_path} predicts nothing of this server: {first.why}")
        sides = [await side_of(sender, adapter, facts, spec, plan)]
        if asked.baseline_url is not None:
            other, plain = await _probed(client, sender, asked.baseline_url)
            remarks += _plain_or_refuse(plain, spec)
            sides.append(await side_of(sender, other, plain, None, plan))
        outcome = await Session(plan, sides).run(progress)
    return Checked(plan, outcome, tuple(remarks), findings_of(plan, outcome))


async def _probed(client: httpx.AsyncClient, sender: aiohttp.ClientSession, url: str) -> tuple[Adapter, ServerFacts]:
    """Who answers, and what it tells of itself; what only a server that has drafted tells is asked after a request."""
    adapter = await probe(client, url)
    facts = await adapter.facts()
    if not facts.spec_known:
        load = Load(facts.url, facts.served_model, built_in_prompts(), 1, _TO_DRAFT, adapter.extra_body)
        await Loader(sender, await route_of(sender, load)).warm_up(_TO_DRAFT)
        facts = await adapter.facts()
    return adapter, facts


_TO_DRAFT = 32


def drafting_as_measured(facts: ServerFacts, model: CostModel) -> ServerFacts:
    """Facts with the model's own drafting method where the server counts drafts and tells no method.

    An accept length measured with a draft model is not known of EAGLE, which would be assumed.
    """
    method = drafting_method(model)
    if facts.spec is None or facts.method is not None or method is None:
        return facts
    spec = SpecConfig.of(num_draft_tokens=int(facts.spec.num_draft_tokens), method=method)
    taken = f"its drafting method; taken as the model's, {method}"
    missing = tuple(taken if each == ASSUMED else each for each in facts.missing)
    return replace(facts, spec=spec, method=method, missing=missing)


def findings_of(plan: Plan, outcome: Outcome) -> tuple[Finding, ...]:
    """What the diagnosis finds in the server's settings and in what was measured."""
    found, readings = outcome.found, outcome.found.side.readings
    figures, window = found.measured.figures, found.window
    length = figures.get("accept_length")
    try:
        counted = difference(readings[0], readings[-1]) if len(readings) > 1 else None
    except SpecsimError:  # a restart, which the outcome tells
        counted = None
    streams = found.side.loader.streams()
    observed = Observed(
        batch_size=float(plan.concurrency),
        accept_length=length.value if length is not None else None,
        token_ms=window.token_ms.value if window.chunks else None,
        chunk_gap_ms=window.chunk_ms.value if window.chunks else None,
        output_tokens=sum(float(count[-1]) for count in tokens_so_far(streams) if count.size),
        prefill_tokens=prompts_of_others(streams, counted),
        **_of_requests(ended(streams)),
    )
    baseline = outcome.baseline.side.facts if outcome.baseline is not None else None
    claimed = Claimed(plan.length.value if plan.length is not None else None, predicted_tpot(plan, outcome.rows))
    return diagnose(
        found.side.facts, observed, counted, baseline=baseline, claimed=claimed, hardware=plan.model.setup.hardware
    )


def _of_requests(rows: RequestRows) -> dict[str, float]:
    """Medians of requests that ended, where there are any that put out more than one token."""
    import numpy as np

    rows = rows.only((rows.output_len > 1) & (rows.prompt_len > 0))
    if not rows.output_len.size:
        return {}
    columns = {
        "first_token_ms": rows.ttft_ms, "request_ms": rows.e2e_ms, "request_token_ms": rows.tpot_ms,
        "prompt_len": rows.prompt_len,
    }  # fmt: skip
    return {name: float(np.median(values)) for name, values in columns.items()}


def prompts_of_others(streams: Sequence[Stream], counted: Counters | None) -> float | None:
    """Prompt tokens that a server counted beside those of these requests, at least; None where one side is not told.

    A request that was cut off before its usage came counts as the longest prompt.
    """
    told = [stream.prompt_tokens for stream in streams if stream.prompt_tokens is not None]
    if counted is None or counted.prompt_tokens is None or not told:
        return None
    own = sum(told) + (len(streams) - len(told)) * max(told)
    return max(counted.prompt_tokens - own, 0.0)


def predicted_tpot(plan: Plan, rows: Sequence[Row]) -> float | None:
    """The time per output token [ms] that the prediction comes to, B/R (eq. 6); None where it has no throughput."""
    rates = [row.expectation.expected for row in rows if row.figure == "output_tok_s"]
    return plan.concurrency * 1000.0 / rates[0].value if rates and rates[0] is not None else None


def configuration(facts: ServerFacts, asked: Asked) -> tuple[SpecConfig | None, list[str]]:
    """What the server drafts with: as stated, else as it says itself; with a remark where the two differ.

    Raises ConfigurationError where neither says.
    """
    if asked.num_draft_tokens is None and asked.num_steps is None and asked.topk is None:
        if not facts.spec_known:
            raise ConfigurationError(
                f"{facts.url} does not say what it drafts with: state --num-draft-tokens (tokens verified a request and"
                " cycle, root included; 1 where it does not draft)"
            )
        return facts.spec, []
    stated = None
    if asked.num_draft_tokens != 1:
        stated = SpecConfig.of(
            num_steps=asked.num_steps,
            topk=asked.topk,
            num_draft_tokens=asked.num_draft_tokens,
            method=facts.method or "eagle",
        )
    if facts.spec_known and facts.spec != stated:
        return stated, [
            f"stated: {_shown(stated)}; the server says {_shown(facts.spec)}: the prediction is for what was stated"
        ]
    return stated, []


def _shown(spec: SpecConfig | None) -> str:
    return (
        "no drafts"
        if spec is None
        else f"{spec.num_draft_tokens} draft tokens, {spec.num_steps} steps, topk {spec.topk}"
    )


def _plain_or_refuse(facts: ServerFacts, spec: SpecConfig | None) -> list[str]:
    if spec is None:
        raise ConfigurationError("--baseline-url is for a server that drafts, and the one to be checked does not")
    if facts.spec is not None:
        raise ConfigurationError(f"{facts.url} is no baseline: it drafts with {_shown(facts.spec)}")
    return [] if facts.spec_known else [f"{facts.url} does not say whether it drafts, and is taken as plain decode"]


def _plan(model: CostModel, spec: SpecConfig | None, asked: Asked) -> Plan:
    length = None
    if spec is not None:
        length = AcceptLength(asked.accept_length) if asked.accept_length is not None else measured_length(model, spec)
    if length is not None and spec is not None and not 1 <= length.value <= spec.max_accept_length:
        raise ConfigurationError(
            f"accept length {length.value:g} is not possible: allowed is 1 to {spec.max_accept_length}"
        )
    now = datetime.now(UTC)
    return Plan(
        model,
        nccl=model.setting(asked.nccl or model.reference).label,
        length=length,
        prompts=built_in_prompts() if asked.prompts is None else read_prompts(asked.prompts),
        concurrency=asked.concurrency or _largest_batch(model, spec),
        output_len=asked.output_len,
        seconds=asked.seconds,
        tolerance_pct=asked.tolerance,
        output=asked.output or Path(f"specsim-check-{now:%Y%m%d-%H%M%S}.json"),
        id=f"check {now:%Y-%m-%dT%H:%M:%SZ}",
    )


def _largest_batch(model: CostModel, spec: SpecConfig | None) -> int:
    """The largest batch size that was measured: of this configuration, else of any; of plain decode without one."""
    if spec is None:
        return int(max((batch for setting in model.settings for batch in setting.decode_batches), default=1))
    shape = (spec.num_steps, spec.topk, spec.num_draft_tokens)
    here = [m.batch_size for m in model.measured if (m.num_steps, m.topk, m.num_draft_tokens) == shape]
    return int(max(here or [m.batch_size for m in model.measured], default=1))


def _try_to_write(path: Path) -> None:
    """Refuse a place that cannot be written before there is anything to lose."""
    if path.suffix != ".json":
        raise InputError([Fault(str(path), "", "is no .json", "measured runs are written as JSON")])
    part = path.with_name(path.name + ".part")
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise InputError([Fault(str(path), "", f"cannot be written ({error.strerror})", "")]) from None


def _refuse_odd(url: str) -> None:
    """A URL that is none, or that carries a password; the latter is not repeated."""
    try:
        parts = urlsplit(url)
        odd = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        raise InputError([Fault(url, "", "is not a URL", _URLS)]) from None
    if parts.username or parts.password:
        raise InputError(
            [Fault("the URL", "", "carries a user or password", "put a key into --api-key-env's variable")]
        )
    if odd:
        raise InputError([Fault(url, "", "is not a URL", _URLS)])


_URLS = "allowed: http://host:port, with or without /v1"
