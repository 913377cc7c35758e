"""Which engine answers at an address."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from specsim.errors import ServerError
from specsim.live.answers import Answer, alive, ask, ask_all, public, root_of
from specsim.live.engines.llama_cpp import LlamaCpp, are_props
from specsim.live.engines.openai_api import OpenAiApi
from specsim.live.engines.sglang import Sglang
from specsim.live.engines.tensorrt_llm import TensorrtLlm
from specsim.live.engines.vllm import Vllm
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server, models_of
from specsim.runs.formats.prometheus import samples_of
from specsim.runs.formats.tensorrt_llm_metrics import is_iteration_stats

if TYPE_CHECKING:
    import httpx

_MODELS = "/v1/models"
_TRACES = ("/metrics", "/server_info", "/get_server_info", "/props", "/prometheus/metrics")
_OWNERS = {"sglang": "sglang", "vllm": "vllm", "tensorrt_llm": "tensorrt-llm", "llamacpp": "llama.cpp"}
"""What `owned_by` of a listed model says, by engine."""


class Adapter(Protocol):
    """An engine's own way of telling what it is and what it counts; both raise ServerError where it is gone."""

    @property
    def engine(self) -> str:
        """Its name, as runs have it; "unknown" where only the OpenAI API is there."""

    @property
    def extra_body(self) -> Mapping[str, object]:
        """What its OpenAI API takes beside the standard."""

    async def facts(self) -> ServerFacts:
        """What it tells of itself."""

    async def counters(self) -> Counters:
        """One reading of its counters, with the time at which the answer arrived (clock of perf_counter)."""


_ADAPTERS: dict[str, Callable[[Server], Adapter]] = {
    "sglang": Sglang,
    "vllm": Vllm,
    "tensorrt-llm": TensorrtLlm,
    "llama.cpp": LlamaCpp,
}


async def probe(client: httpx.AsyncClient, url: str) -> Adapter:
    """The adapter of the engine that answers at `url`, its root or its OpenAI API's.

    Raises ServerError, with what was asked and answered, where nothing answers, a key is asked for, or neither an
    engine nor an OpenAI API can be recognised.
    """
    root = root_of(url)
    models = await ask(client, root, _MODELS)
    alive(root, [models])
    if models.status in (401, 403):
        raise ServerError(
            f"{public(root)} wants another API key, or one at all: {models}\nput its key into the environment variable"
            " that the command reads it from"
        )
    server = Server(client, root, models_of(models))
    if (owner := _owner(server)) is not None:
        return _ADAPTERS[owner](server)
    traces = await ask_all(client, root, _TRACES)
    if (engine := _engine_of(traces)) is not None:
        return _ADAPTERS[engine](server)
    asked = "; ".join(str(answer) for answer in traces.values())
    if not server.models:
        raise ServerError(
            f"{public(root)} answers, but neither as an OpenAI API nor as an engine that is known: {models}; {asked}\n"
            "is this the address of the server itself, has it finished loading its model, and is there a path before /v1"
            " that belongs to the address?"
        )
    return OpenAiApi(server, asked)


def _owner(server: Server) -> str | None:
    """The engine that says that it owns the model."""
    return _OWNERS.get(str(server.models[0].get("owned_by"))) if server.models else None


def _engine_of(traces: Mapping[str, Answer]) -> str | None:
    """The engine whose metrics or whose own answers are there."""
    for path in ("/metrics", "/prometheus/metrics"):
        for sample in samples_of(traces[path].text)[0]:
            return sample.engine
    infos: list[dict[str, Any]] = [traces[path].json_object for path in ("/server_info", "/get_server_info")]
    if any("internal_states" in info or "tp_size" in info for info in infos):
        return "sglang"
    if any("vllm_config" in info for info in infos):
        return "vllm"
    iterations = traces["/metrics"].body
    if isinstance(iterations, list) and iterations and isinstance(iterations[0], dict):
        return "tensorrt-llm" if is_iteration_stats(iterations[0]) else None
    return "llama.cpp" if are_props(traces["/props"].json_object) else None
