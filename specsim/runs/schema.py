"""The checked form of one run at the file edge, specsim-runs/1 (docs/data-format.md)."""

from __future__ import annotations

import re
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specsim.acceptance.conversions import AcceptanceCounts, CounterNames, counts_from_histogram
from specsim.errors import ConfigurationError, InputError
from specsim.methods import METHODS, PLAIN_METHODS
from specsim.quantities import SETUP_FIELDS, Setup, SpecConfig, Workload
from specsim.runs.run import FIGURES, UNSTATED, Claim, Figure, Run, RunSet

SCHEMA = "specsim-runs/1"

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(
    rf"(?:(?P<value>{_NUMBER})\s*\()?\s*(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})\s*(?P<close>\))?"
)
_FIGURE_FORMS = "allowed: a positive number, a range 'low..high', 'value (low..high)', or repeats 'a;b;c'"


class FigureForm(BaseModel):
    """A measured quantity as written: a value, repeats, a range, or a value inside a range."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    value: float | None = Field(default=None, gt=0)
    min: float | None = Field(default=None, gt=0)
    max: float | None = Field(default=None, gt=0)
    repeats: tuple[Annotated[float, Field(gt=0)], ...] = ()

    @model_validator(mode="after")
    def _one_reading(self) -> Self:
        if (self.min is None) != (self.max is None):
            raise ValueError("a range needs both ends, min and max")
        if self.min is not None and self.max is not None:
            if self.min > self.max:
                raise ValueError(f"the range runs backwards, {self.min:g} to {self.max:g}")
            if self.value is not None and not self.min <= self.value <= self.max:
                raise ValueError(f"the value {self.value:g} lies outside its range {self.min:g}..{self.max:g}")
        if self.repeats and (self.value is not None or self.min is not None):
            raise ValueError("give repeats, or a value or range, not both")
        if not self.repeats and self.value is None and self.min is None:
            raise ValueError("is empty")
        return self

    def figure(self, implied: bool) -> Figure:
        """The frozen figure."""
        return Figure(self.value, self.min, self.max, self.repeats, implied)


def _read_figure(written: Any) -> Any:
    """Turn a number, a text cell or a list into the fields of a FigureForm."""
    if isinstance(written, bool):
        raise ValueError(f"{written!r} is not a number; {_FIGURE_FORMS}")
    if isinstance(written, int | float):
        return {"value": written}
    if isinstance(written, list):
        return {"repeats": written}
    if isinstance(written, str):
        return _parse_cell(written)
    return written


def _parse_cell(cell: str) -> dict[str, Any]:
    text = cell.strip()
    if (match := _RANGE.fullmatch(text)) and bool(match["value"]) == bool(match["close"]):
        ends = {"min": float(match["low"]), "max": float(match["high"])}
        return ends | ({"value": float(match["value"])} if match["value"] else {})
    parts = [part.strip() for part in text.split(";")]
    if all(re.fullmatch(_NUMBER, part) for part in parts):
        numbers = [float(part) for part in parts]
        return {"value": numbers[0]} if len(numbers) == 1 else {"repeats": numbers}
    raise ValueError(f"{cell!r} is not a number; {_FIGURE_FORMS}")


def _pairs(written: Any) -> Any:
    """NCCL environment as 'NAME=VALUE NAME=VALUE' in a CSV cell, an object in JSON."""
    if not isinstance(written, str):
        return written
    pairs = [pair.partition("=") for pair in re.split(r"[;\s]+", written.strip()) if pair]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(f"{written!r} is not a list of settings; allowed: 'NAME=VALUE NAME=VALUE'")
    return {name: value for name, _, value in pairs}


def _listed(written: Any) -> Any:
    """A list of numbers: 'a;b;c' in a CSV cell."""
    return [part.strip() for part in written.split(";")] if isinstance(written, str) else written


def _names(written: Any) -> Any:
    return [name for name in re.split(r"[;,\s]+", written) if name] if isinstance(written, str) else written


Measured = Annotated[FigureForm | None, BeforeValidator(_read_figure)]
Count = Annotated[int | None, Field(ge=1)]


class RunForm(BaseModel):
    """One run as a file states it; a flat CSV row has these names as its columns."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    id: str | None = None
    model: str | None = None
    hardware: str | None = None
    gpus: Count = None
    engine: str | None = None
    engine_version: str | None = None
    tensor_parallel: Count = None
    precision: str | None = None
    cuda_graph: bool | None = None
    nccl: str | None = None
    nccl_env: Annotated[dict[str, str], BeforeValidator(_pairs)] = {}
    instrument: str | None = None

    method: str | None = None
    drafter: str | None = None
    num_steps: Annotated[int | None, Field(ge=0)] = None
    topk: Count = None
    num_draft_tokens: Count = None

    batch_size: Count = None
    context_len: Annotated[int | None, Field(ge=0)] = None
    output_len: Count = None
    prompts: Count = None

    verify_ms: Measured = None
    draft_ms: Measured = None
    extend_ms: Measured = None
    other_ms: Measured = None
    cycle_ms: Measured = None
    decode_ms: Measured = None
    output_tok_s: Measured = None
    accept_length: Measured = None
    accept_rate: Measured = None
    between_prompt_spread: Measured = None

    cycles: Count = None
    accepted_drafts: Annotated[int | None, Field(ge=0)] = None
    proposed_drafts: Annotated[int | None, Field(ge=0)] = None
    accept_histogram: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)] = ()
    survival: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], BeforeValidator(_listed)] = ()
    training_samples: Count = None

    implied: Annotated[tuple[Literal[FIGURES], ...], BeforeValidator(_names)] = ()  # type: ignore[valid-type]
    exclude: str = ""
    note: str = ""
    source: str = ""

    def to_run(self, where: str, default_id: str) -> Run:
        """The frozen run; raises FieldError where the fields together make no sense."""
        speculative = self._is_speculative()
        spec = self._spec() if speculative else None
        counts = self._counts()
        self._check_figures(speculative, spec)
        given = {name: getattr(self, name) for name in FIGURES}
        figures = {name: form.figure(name in self.implied) for name, form in given.items() if form is not None}
        if counts is not None:  # counts before rates: the length they give is exact
            figures["accept_length"] = Figure(counts.accept_length)
        return Run(
            id=self.id or default_id,
            setup=Setup(**{name: getattr(self, name) for name in SETUP_FIELDS}),
            nccl=self.nccl or UNSTATED,
            nccl_env=MappingProxyType(dict(self.nccl_env)),
            workload=Workload(self.batch_size or 1, self.context_len, self.output_len),
            speculative=speculative,
            spec=spec,
            figures=MappingProxyType(figures),
            drafter=self.drafter,
            instrument=self.instrument,
            prompts=self.prompts,
            counts=counts,
            survival=self.survival,
            training_samples=self.training_samples,
            excluded=self.exclude,
            note=self.note,
            source=self.source,
            where=where,
            batch_size_stated=self.batch_size is not None,
        )

    def _is_speculative(self) -> bool:
        shape = (self.num_steps, self.topk, self.num_draft_tokens)
        plain = (self.method or "").lower() in PLAIN_METHODS
        if self.method is not None and plain and any(n is not None for n in shape):
            raise FieldError(
                "method", f"is {self.method!r} beside a speculative configuration", "leave one of them out"
            )
        return not plain or self.training_samples is not None or any(n is not None for n in shape)

    def _spec(self) -> SpecConfig | None:
        method = (self.method or "eagle").lower()
        if method not in METHODS:
            raise FieldError("method", f"{self.method!r} is not known", f"allowed: none, {', '.join(METHODS)}")
        if self.num_steps is None and self.num_draft_tokens is None and self.topk in (None, 1):
            return None
        try:
            return SpecConfig.of(
                num_steps=self.num_steps, topk=self.topk, num_draft_tokens=self.num_draft_tokens, method=method
            )
        except ConfigurationError as error:
            raise FieldError("num_draft_tokens", str(error), "") from None

    def _counts(self) -> AcceptanceCounts | None:
        """Cycles and accepted drafts as integers that agree; None where the row has none."""
        try:
            if self.accept_histogram:
                return counts_from_histogram(
                    self.accept_histogram,
                    cycles=self.cycles,
                    accepted=self.accepted_drafts,
                    drafted=self.proposed_drafts,
                    names=_COUNTERS,
                )
            if self.accepted_drafts is None:
                return None
            if self.cycles is None:
                raise FieldError("accepted_drafts", "says little without the cycles it took", "state cycles")
            return AcceptanceCounts(self.cycles, self.accepted_drafts, self.proposed_drafts, None, _COUNTERS)
        except InputError as error:
            first = error.faults[0]
            raise FieldError(first.field, first.problem, first.allowed) from None

    def _check_figures(self, speculative: bool, spec: SpecConfig | None) -> None:
        if not speculative:
            for name in ("verify_ms", "draft_ms", "extend_ms", "cycle_ms", *_ACCEPTANCE):
                if getattr(self, name) not in (None, ()):
                    raise FieldError(name, "needs num_draft_tokens (or num_steps) in the same row", "")
        if spec is None and speculative and not self.exclude and self.training_samples is None:
            raise FieldError(
                "num_draft_tokens",
                "a speculative run without its configuration cannot be fitted",
                "state num_draft_tokens or num_steps, or say why in 'exclude'",
            )
        if any(after > before for before, after in pairwise(self.survival)):
            raise FieldError(
                "survival", f"{self.survival} rises with depth", "shares of at least 1, 2 … drafts never do"
            )
        if spec is not None and max(len(self.survival), len(self.accept_histogram) - 1) >= spec.max_accept_length:
            deep = "survival" if self.survival else "accept_histogram"
            raise FieldError(deep, f"is deeper than the {spec.max_accept_length - 1} drafts that can be accepted", "")
        if self.accept_length is not None and spec is not None:
            figure = self.accept_length.figure(implied=False)
            ends = (figure.low or figure.best, figure.high or figure.best, *figure.readings)
            if min(ends) < 1 or max(ends) > spec.max_accept_length:
                raise FieldError(
                    "accept_length",
                    f"{min(ends) if min(ends) < 1 else max(ends):g} is not possible",
                    f"allowed: 1 to {spec.max_accept_length} (bonus token included)",
                )


_ACCEPTANCE = ("accept_length", "accept_rate", "cycles", "accepted_drafts", "accept_histogram", "survival")
_COUNTERS = CounterNames("run", "cycles", "proposed_drafts", "accepted_drafts", "accept_histogram")


class FieldError(Exception):
    """One field of a run that is wrong, on its way to becoming a Fault with the file and row."""

    def __init__(self, field: str, problem: str, allowed: str) -> None:
        super().__init__(field, problem, allowed)
        self.field, self.problem, self.allowed = field, problem, allowed


class ClaimForm(BaseModel):
    """A statement of the runs' source, kept to be checked."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: str
    text: str
    figures: dict[str, float] = {}


class ScalingForm(BaseModel):
    """An accept length after so many training samples."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    samples: Annotated[int, Field(ge=1)]
    accept_length: Annotated[FigureForm, BeforeValidator(_read_figure)]
    note: str = ""


class RunsForm(BaseModel):
    """A JSON file of runs: `defaults` are fields that every run shares unless it says otherwise."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    schema_: Literal["specsim-runs/1"] = Field(alias="schema")
    about: str = ""
    defaults: dict[str, Any] = {}
    runs: list[dict[str, Any]]
    claims: list[ClaimForm] = []
    model_card: dict[str, Any] = {}
    data_scaling: list[ScalingForm] = []

    def run_set(self, runs: tuple[Run, ...]) -> RunSet:
        """The frozen set around runs that were checked one by one."""
        return RunSet(
            runs,
            self.about,
            tuple(Claim(c.id, c.text, MappingProxyType(c.figures)) for c in self.claims),
            MappingProxyType(self.model_card),
            tuple((s.samples, s.accept_length.figure(implied=False), s.note) for s in self.data_scaling),
        )


RUN_FIELDS = tuple(RunForm.model_fields)
