"""A server of which nothing is known but its OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from specsim.live.answers import alive
from specsim.live.facts import Counters, ServerFacts
from specsim.live.server import Server
from specsim.quantities import Setup


@dataclass(frozen=True)
class OpenAiApi:
    """Tells the model's name, and that nothing else can be had."""

    server: Server
    why: str = ""
    engine: str = "unknown"
    extra_body: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    async def facts(self) -> ServerFacts:
        """The model's name; everything else is missing. Raises ServerError where the server is gone."""
        missing = (
            f"engine, version, speculation and settings: no engine that is known answers here ({self.why})",
            *self.server.choice,
        )
        alive(self.server.root, (await self.server.ask("/v1/models")).values())
        name = self.server.served_model
        return ServerFacts(self.server.url, Setup(model=name), name, None, False, None, None, missing=missing)

    async def counters(self) -> Counters:
        """The time, and nothing counted. Raises ServerError where the server is gone."""
        answers = await self.server.ask("/v1/models")
        alive(self.server.root, answers.values())
        return Counters(time_s=answers["/v1/models"].time_s)
