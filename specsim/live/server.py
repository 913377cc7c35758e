"""A server that answered: where it is, and what its OpenAI API calls its model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from specsim.errors import ConfigurationError
from specsim.live.answers import Answer, ask_all, public
from specsim.quantities import SpecConfig

if TYPE_CHECKING:
    import httpx

_TEXT, _LARGEST = 300, 1e9


@dataclass(frozen=True)
class Server:
    """Where a server is and the models that it serves, as GET /v1/models names them."""

    client: httpx.AsyncClient = field(repr=False)
    root: str = field(repr=False)
    models: tuple[Mapping[str, Any], ...] = ()

    @property
    def url(self) -> str:
        """Its root, to be shown."""
        return public(self.root)

    @property
    def served_model(self) -> str:
        """The name that requests have to carry; empty where no model is listed."""
        return str(self.models[0].get("id", "")) if self.models else ""

    @property
    def choice(self) -> tuple[str, ...]:
        """What there is to say of which of several models is taken."""
        names = [str(model.get("id")) for model in self.models]
        return (f"it serves {len(names)} models ({', '.join(names[:4])}); {names[0]} is asked",) if names[1:] else ()

    async def ask(self, *paths: str) -> dict[str, Answer]:
        """The answers to several questions, by path."""
        return await ask_all(self.client, self.root, paths)


def models_of(answer: Answer) -> tuple[Mapping[str, Any], ...]:
    """The models that an answer to GET /v1/models lists."""
    listed = answer.json_object.get("data")
    return tuple(m for m in listed if isinstance(m, dict) and m.get("id")) if isinstance(listed, list) else ()


def kept(settings: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, object]:
    """Those settings that are named, of plain values: nothing else of a server's configuration is kept, keys least."""
    found: dict[str, object] = {}
    for path in names:
        value: Any = settings
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, list) and value and all(map(_is_plain, value)):
            found[path] = tuple(value)
        elif _is_plain(value):
            found[path] = value
    return MappingProxyType(found)


def _is_plain(value: object) -> bool:
    """A text, a switch, or a number of a size that a setting can have."""
    if isinstance(value, str):
        return 0 < len(value) <= _TEXT
    return isinstance(value, int | float) and abs(value) <= _LARGEST


def spec_of(fields: Mapping[str, Any]) -> tuple[SpecConfig | None, tuple[str, ...]]:
    """The configuration that run fields state, or why it cannot be told."""
    stated = {name: fields[name] for name in ("num_steps", "topk", "num_draft_tokens") if name in fields}
    method = fields.get("method")
    try:
        return SpecConfig.of(method=str(method or "eagle"), **stated), _assumed(method)
    except ConfigurationError as error:
        return None, (f"its speculative configuration: {error}",)


def _assumed(method: object) -> tuple[str, ...]:
    return () if method else (ASSUMED,)


ASSUMED = "its drafting method; an autoregressive drafter is assumed"


def lacking(answers: Mapping[str, Answer], hints: Mapping[str, str]) -> Iterator[str]:
    """What unanswered questions would have told, in words."""
    for path, hint in hints.items():
        if (answer := answers.get(path)) is not None and answer.problem:
            yield f"{hint} (GET {path}: {answer.problem})"
