"""The checked form of one run at the file edge, specsim-runs/1 (docs/data-format.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specsim.errors import ConfigurationError, Fault, InputError
from specsim.methods import METHODS, PLAIN_METHODS
from specsim.quantities import SETUP_FIELDS, Setup, SpecConfig, Workload
from specsim.runs.run import FIGURES, PHASE_FIGURES, UNSTATED, Claim, Figure, Run, RunSet

if TYPE_CHECKING:
    from specsim.acceptance.conversions import AcceptanceCounts

SCHEMA = "specsim-runs/1"

_LEAST, _MOST = 1e-6, 1_000_000_000  # no figure or count that anybody measures lies outside
WIDEST = 100_000
"""No drafter goes as deep or as wide, and steps·topk² stays inside 64 bits."""
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(
    rf"(?:(?P<value>{_NUMBER})\s*\()?\s*(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})\s*(?P<close>\))?"
)
_FIGURE_FORMS = "allowed: a positive number, a range 'low..high', 'value (low..high)', or repeats 'a;b;c'"


Amount = Annotated[float, Field(ge=_LEAST, le=_MOST)]


class FigureForm(BaseModel):
    """A measured quantity as written: a value, repeats, a range, or a value inside a range."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    value: Amount | None = None
    min: Amount | None = None
    max: Amount | None = None
    repeats: tuple[Amount, ...] = ()

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


def _no_flag(written: Any) -> Any:
    if isinstance(written, bool):
        raise ValueError(f"{written!r} is not a number; allowed: a whole number")
    return written


def _names(written: Any) -> Any:
    return [name for name in re.split(r"[;,\s]+", written) if name] if isinstance(written, str) else written


Measured = Annotated[FigureForm | None, BeforeValidator(_read_figure)]
Count = Annotated[Annotated[int, Field(ge=1, le=_MOST)] | None, BeforeValidator(_no_flag)]
CountFromZero = Annotated[Annotated[int, Field(ge=0, le=_MOST)] | None, BeforeValidator(_no_flag)]
Depth = Annotated[Annotated[int, Field(ge=0, le=WIDEST)] | None, BeforeValidator(_no_flag)]
Width = Annotated[Annotated[int, Field(ge=1, le=WIDEST)] | None, BeforeValidator(_no_flag)]
Text = Annotated[str | None, Field(pattern=r"^[^\x00-\x1f\x7f]*$")]


class RunForm(BaseModel):
    """One run as a file states it; a flat CSV row has these names as its columns."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)

    id: Text = None
    model: Text = None
    hardware: Text = None
    gpus: Count = None
    engine: Text = None
    engine_version: Text = None
    tensor_parallel: Count = None
    precision: Text = None
    cuda_graph: bool | None = None
    nccl: Text = None
    nccl_env: Annotated[dict[str, str], BeforeValidator(_pairs)] = {}
    instrument: Text = None

    method: Text = None
    drafter: Text = None
    num_steps: Depth = None
    topk: Width = None
    num_draft_tokens: Width = None

    batch_size: Count = None
    context_len: CountFromZero = None
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
    accepted_drafts: CountFromZero = None
    proposed_drafts: CountFromZero = None
    accept_histogram: Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)] = ()
    survival: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], BeforeValidator(_listed)] = ()
    training_samples: Count = None

    implied: Annotated[tuple[Literal[FIGURES], ...], BeforeValidator(_names)] = ()  # type: ignore[valid-type]
    exclude: str = ""
    note: str = ""
    source: str = ""

    def to_run(self, where: str, default_id: str) -> Run:
        """The frozen run; raises InputError with every fault of the fields together, placed at `where`."""
        problems = list(self._problems())
        if problems:
            raise InputError(Fault(where, *problem) for problem in problems)
        counts = self._counts()
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
            speculative=self._is_speculative(),
            spec=self._spec(),
            figures=MappingProxyType(figures),
            method=self.method.lower() if self.method else None,
            drafter=self.drafter,
            instrument=self.instrument,
            prompts=self.prompts,
            counts=counts,
            cycles=counts.cycles if counts is not None else self.cycles,
            survival=self.survival,
            training_samples=self.training_samples,
            excluded=self.exclude,
            note=self.note,
            source=self.source,
            where=where,
            batch_size_stated=self.batch_size is not None,
        )

    def _shape(self) -> tuple[int | None, int | None, int | None]:
        return self.num_steps, self.topk, self.num_draft_tokens

    def _is_speculative(self) -> bool:
        plain = (self.method or "").lower() in PLAIN_METHODS
        drafted = self.method is None and bool(self.exclude) and any(self._stated(name) for name in _ACCEPTANCE)
        stated = drafted or self.training_samples is not None or any(n is not None for n in self._shape())
        return not plain or stated

    def _stated(self, name: str) -> bool:
        return getattr(self, name) not in (None, ())

    def _spec(self) -> SpecConfig | None:
        if not self._is_speculative() or (self.num_steps is None and self.num_draft_tokens is None and not self.topk):
            return None
        method = (self.method or "eagle").lower()
        steps, topk, width = self._shape()
        return SpecConfig.of(num_steps=steps, topk=topk, num_draft_tokens=width, method=method)

    def _counts(self) -> AcceptanceCounts | None:
        """Cycles and accepted drafts as integers that agree; None where the row has none."""
        if not self.accept_histogram and (self.accepted_drafts is None or self.cycles is None):
            return None
        from specsim.acceptance.conversions import AcceptanceCounts, CounterNames, counts_from_histogram

        names = CounterNames("run", "cycles", "proposed_drafts", "accepted_drafts", "accept_histogram")
        cycles, accepted, drafted = self.cycles, self.accepted_drafts, self.proposed_drafts
        if self.accept_histogram:
            return counts_from_histogram(
                self.accept_histogram, cycles=cycles, accepted=accepted, drafted=drafted, names=names
            )
        return AcceptanceCounts(cycles or 0, accepted or 0, drafted, None, names)

    # -- what is wrong with the fields together: (field, problem, what is allowed) -------------------------------

    def _problems(self) -> Iterator[Problem]:
        method = (self.method or "eagle").lower()
        if method not in (*METHODS, *PLAIN_METHODS):
            yield "method", f"{self.method!r} is not known", f"allowed: none, {', '.join(METHODS)}"
            return
        if method in PLAIN_METHODS and any(n is not None for n in self._shape()):
            yield "method", f"is {self.method!r} beside a speculative configuration", "leave one of them out"
            return
        spec = None
        try:
            spec = self._spec()
        except ConfigurationError as error:
            yield "num_draft_tokens", str(error), ""
            return
        yield from self._problems_of_presence(spec)
        yield from self._problems_of_counts(spec)
        if spec is not None:
            yield from self._problems_of_length(spec)

    def _problems_of_presence(self, spec: SpecConfig | None) -> Iterator[Problem]:
        if not self._is_speculative():
            for name in (*PHASE_FIGURES, "cycle_ms", *_ACCEPTANCE):
                if self._stated(name):
                    yield name, "needs num_draft_tokens (or num_steps) in the same row", ""
        elif spec is None and not self.exclude and self.training_samples is None:
            problem = "a speculative run without its configuration cannot be fitted"
            yield "num_draft_tokens", problem, "state num_draft_tokens or num_steps, or say why in 'exclude'"
        if spec is not None and spec.num_steps == 0:
            for name in ("draft_ms", "extend_ms"):
                if getattr(self, name) is not None:
                    yield name, "is stated at num_steps 0, where nothing is drafted", "leave it empty"
        for name in self.implied:
            if getattr(self, name) is None:
                yield "implied", f"names {name}, which this row does not state", ""

    def _problems_of_counts(self, spec: SpecConfig | None) -> Iterator[Problem]:
        if self.accepted_drafts is not None and self.cycles is None and not self.accept_histogram:
            yield "accepted_drafts", "says little without the cycles it took", "state cycles"
        try:
            self._counts()
        except InputError as error:
            yield from ((fault.field, fault.problem, fault.allowed) for fault in error.faults)
        if any(after > before for before, after in pairwise(self.survival)):
            yield "survival", f"{self.survival} rises with depth", "shares of at least 1, 2 … drafts never do"
        deepest = max(len(self.survival), len(self.accept_histogram) - 1)
        if spec is not None and deepest >= spec.max_accept_length:
            name = "survival" if self.survival else "accept_histogram"
            yield name, f"is deeper than the {spec.max_accept_length - 1} drafts that can be accepted", ""

    def _problems_of_length(self, spec: SpecConfig) -> Iterator[Problem]:
        if self.accept_length is None:
            return
        figure = self.accept_length.figure(implied=False)
        ends = (figure.low or figure.best, figure.high or figure.best, *figure.readings)
        if (
            self.survival
            and len(self.survival) == spec.max_accept_length - 1
            and not min(ends) * 0.98 <= 1 + sum(self.survival) <= max(ends) * 1.02
        ):
            yield (
                "accept_length",
                f"is {figure.best:g}, survival adds up to {1 + sum(self.survival):g}",
                "the two agree",
            )
        wrong = min(ends) if min(ends) < 1 else max(ends)
        if not 1 <= wrong <= spec.max_accept_length:
            allowed = f"allowed: 1 to {spec.max_accept_length} (bonus token included)"
            yield "accept_length", f"{wrong:g} is not possible", allowed


Problem = tuple[str, str, str]
_ACCEPTANCE = ("accept_length", "accept_rate", "cycles", "accepted_drafts", "accept_histogram", "survival")


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
    """A JSON file of runs: `defaults` are fields that every run shares unless it says otherwise.

    `left_out` and `missing` are what an import says beside its runs; nothing reads them.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    schema_: Literal["specsim-runs/1"] = Field(alias="schema")
    about: str = ""
    defaults: dict[str, Any] = {}
    runs: list[dict[str, Any]]
    claims: list[ClaimForm] = []
    model_card: dict[str, Any] = {}
    data_scaling: list[ScalingForm] = []
    left_out: list[dict[str, Any]] = []
    missing: list[str] = []

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
