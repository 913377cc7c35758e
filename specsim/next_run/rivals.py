"""Which measurement tells most of which setting is the fastest: the best today against its least decided rival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specsim.cost.model import CostModel
from specsim.errors import ConfigurationError
from specsim.next_run.candidates import Offer
from specsim.next_run.lengths import CANCELS, PLAIN_LENGTH, Law, Length, lengths_of
from specsim.next_run.plan import Plan, planned
from specsim.next_run.ratio import Interval, Ratio, Side
from specsim.next_run.space import Space
from specsim.quantities import SpecConfig
from specsim.questions import Asked, cases

Asking = tuple[SpecConfig | None, int, str]
Entrant = tuple[Side, Length]


@dataclass(frozen=True)
class Rival:
    """A setting that might be the fastest: a configuration (`spec` None is plain decode) under an NCCL setting.

    `time_ms` is its cycle, or step, NaN where nothing says it; `time_ratio` the best's time per accepted token by its
    own, C₁·L₂/(C₂·L₁), below 1 where the best is faster, and `interval` that ratio's, None where `missing` says which
    times no run tells. `first_by` names the forms, which the runs cannot exclude, by which it would be the best.
    `extrapolated_in` names what lies outside the measured range.
    """

    spec: SpecConfig | None
    batch_size: int
    nccl: str
    length: Length
    time_ms: float
    time_ratio: float
    interval: Interval | None
    missing: tuple[str, ...]
    first_by: tuple[str, ...]
    extrapolated_in: tuple[str, ...]

    @property
    def asked(self) -> Asking:
        """What is run: configuration, batch size and NCCL setting."""
        return self.spec, self.batch_size, self.nccl

    @property
    def output_tok_s(self) -> float:
        """Throughput B·L/C (eq. 6) [tok/s]; NaN where the time or the accept length is not known."""
        known = self.length.origin != "cancels"
        return 1000.0 * self.batch_size * self.length.value / self.time_ms if known else float("nan")

    @property
    def told_apart(self) -> bool:
        """Whether the best is faster beyond doubt: by its whole interval, and by every form."""
        return self.interval is not None and self.interval[1] < 1 and not self.first_by


@dataclass(frozen=True)
class LeftOut:
    """A setting that is not compared, in words, and why."""

    setting: str
    why: str


@dataclass(frozen=True)
class Contest:
    """Which setting is the fastest at a batch size: the best today, its rivals, fastest first, and the least decided.

    `lengths_apart` is the half-width of the log of the two accept lengths' ratio, in which no timing has a part. `law`
    gives the lengths that were not measured.
    """

    best: Rival
    rival: Rival
    rivals: tuple[Rival, ...]
    lengths_apart: float
    left_out: tuple[LeftOut, ...]
    law: Law | None


def next_run_for_best(
    model: CostModel, asked: Asked | None = None, law: Law | None = None, *, most: int = 8
) -> Plan[Contest]:
    """The measurements that shrink the doubt about which setting is the fastest most, best first (eq. 6, 15).

    Candidates are the measured configurations, the asked one and plain decode under every NCCL setting, at each batch
    size measured or asked; the batch size is answered for whose best is least decided. The question is the ratio of the
    times per accepted token of the best and of the rival that is least decided: one whose time no run tells, else one
    that another form of the model puts first, else the one whose interval reaches 1 most easily. Raises
    ConfigurationError with fewer than two candidates, and as `cases` and `lengths_of`; UnknownSettingError as `cases`.
    """
    model = model.at_one_context()
    field = _Field.of(model, asked or Asked(), law)
    space = Space.of(model)
    contests = [contest for batch in field.batches if (contest := _contest(space, field, batch))]
    if not contests:
        raise ConfigurationError(
            "one candidate has no rival: add runs under another NCCL setting, name another configuration, or measure"
            " plain decode"
        )
    contest = max(contests, key=lambda each: _doubt(each.rival))
    best, rival = contest.best, contest.rival

    def ask(told: Space) -> Ratio:
        sides = _side(told, best.asked, "the best"), _side(told, rival.asked, "its rival")
        return _ratio(told, sides, (best.length, rival.length))

    about = [each.spec for each in (best, rival) if each.spec is not None]
    offer = Offer.of(model, [*about, *field.lengths], best.batch_size)
    return planned(space, contest, ask, offer, questions=len(contests), most=most)


def _ratio(space: Space, sides: tuple[Side, Side], lengths: tuple[Length, Length]) -> Ratio:
    """Times per accepted token of two settings as a question, C₁·L₂/(C₂·L₁)."""
    one, other = lengths
    return Ratio.of(space, sides, "the two", factor=other.value / one.value, apart=one.apart(other))


# -- who is compared ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Field:
    """What is compared: configurations with their accept lengths, NCCL settings, batch sizes; `plain` with plain decode."""

    lengths: dict[SpecConfig, Length]
    labels: tuple[str, ...]
    batches: tuple[int, ...]
    plain: bool
    left_out: tuple[LeftOut, ...]
    law: Law | None

    @classmethod
    def of(cls, model: CostModel, asked: Asked, law: Law | None) -> _Field:
        """The candidates of a question; a bare target forward is none."""
        found = cases(model, asked)
        seen = (SpecConfig(m.num_steps, m.topk, m.num_draft_tokens, m.method) for m in model.measured)
        specs = [s for s in dict.fromkeys([*(case.spec for case in found), *seen]) if s.num_draft_tokens > 1]
        if not specs:
            raise ConfigurationError("no configuration that drafts among these: state --num-draft-tokens")
        lengths = lengths_of(model, specs, asked, law)
        plain = bool(lengths)
        if not lengths and (asked.names_configuration or len(specs) == 1):
            lengths = {specs[0]: CANCELS}
        if not lengths:
            raise ConfigurationError(
                f"none of the {len(specs)} configurations has an accept length: measure them, state --accept-rate, or"
                " name one to compare its NCCL settings alone (there the length cancels)"
            )
        left_out = tuple(LeftOut(_named(spec), _NO_LENGTH) for spec in specs if spec not in lengths)
        labels = tuple(dict.fromkeys(case.nccl for case in found))
        batches = tuple(sorted({case.batch_size for case in found}))
        return cls(lengths, labels, batches, plain, left_out, law)

    def candidates(self, space: Space, batch: int) -> Iterator[tuple[Side, Length]]:
        """Every candidate at a batch size, as a side of a ratio with its accept length."""
        for nccl in self.labels:
            for spec, length in self.lengths.items():
                yield _side(space, (spec, batch, nccl), "the best"), length
            if self.plain and _plain_told(space, batch, nccl):
                yield _side(space, (None, batch, nccl), "the best"), PLAIN_LENGTH

    def without_plain(self, space: Space, batch: int) -> Iterator[LeftOut]:
        """Where plain decode takes no part."""
        if not self.plain:
            yield LeftOut("plain decode", "no accept length to compare it by: state --accept-length or --accept-rate")
            return
        for nccl in self.labels:
            if not _plain_told(space, batch, nccl):
                yield LeftOut(
                    f"plain decode under NCCL {nccl}", f"no baseline tells it at batch_size {batch}: measure decode_ms"
                )


_NO_LENGTH = "no accept length was measured: measure it, name it with --accept-length, or state --accept-rate"


def _named(spec: SpecConfig | None) -> str:
    """A configuration in words."""
    if spec is None:
        return "plain decode"
    tree = "" if spec.topk == 1 else f" ({spec.num_steps} steps, topk {spec.topk})"
    return f"{spec.num_draft_tokens} draft tokens{tree}"


def _side(space: Space, asked: tuple[SpecConfig | None, int, str], role: str) -> Side:
    spec, _, nccl = asked
    if spec is None:
        return Side.of(space, asked, f"plain decode under NCCL {nccl}", role)
    lower = space.model.lower_bound(nccl)
    unseen = f" ({', '.join(space.model.unmeasured_phases)} were never timed)" if lower else ""
    return Side.of(space, asked, f"the cycle at {_named(spec)} under NCCL {nccl}{unseen}", role)


def _plain_told(space: Space, batch: int, nccl: str) -> bool:
    gradient = space.gradient("decode", space.cycle(None, batch), nccl)[0]
    return space.knowledge().tells(gradient)


# -- who is best, and who may be ----------------------------------------------------------------------------------------


def _contest(space: Space, field: _Field, batch: int) -> Contest | None:
    """The best at a batch size, and how its rivals stand to it; None where it has none."""
    (best, length), *others = _in_order(space, field, batch)
    if not others:
        return None
    first_by: dict[Asking, tuple[str, ...]] = {}
    for other in space.model.alternatives:
        first = _in_order(Space.of(other.model), field, batch)[0][0].asked
        first_by[first] = (*first_by.get(first, ()), other.form)
    rows = [_rival(space, (best, length), each, first_by.get(each[0].asked, ())) for each in [(best, length), *others]]
    least = max(rows[1:], key=_doubt)
    left_out = (*field.left_out, *field.without_plain(space, batch))
    return Contest(rows[0], least, tuple(rows[1:]), length.apart(least.length), left_out, field.law)


def _in_order(space: Space, field: _Field, batch: int) -> list[Entrant]:
    """Candidates by throughput, those first whose time the runs tell."""
    known = space.knowledge()

    def place(entrant: Entrant) -> tuple[bool, float]:
        side, length = entrant
        time = side.time_ms / length.value
        return not side.told(known), time if np.isfinite(time) else np.inf

    return sorted(field.candidates(space, batch), key=place)


def _rival(space: Space, best: Entrant, entrant: Entrant, first_by: tuple[str, ...]) -> Rival:
    known, (side, length) = space.knowledge(), entrant
    ratio = _ratio(space, (best[0], side), (best[1], length))
    interval = (1.0, 1.0) if side.asked == best[0].asked else ratio.interval(known)
    told = bool(side.told(known))
    return Rival(
        *side.asked,
        length,
        side.time_ms if told else float("nan"),
        ratio.value if interval else float("nan"),
        interval,
        ratio.missing(known),
        first_by,
        _extrapolated_in(space, side),
    )


def _extrapolated_in(space: Space, side: Side) -> tuple[str, ...]:
    """What of a candidate lies outside the measured range (eq. 14)."""
    of = space.model.beyond_decode if side.spec is None else space.model.beyond
    beyond = of(space.cycle(side.spec, side.batch_size), side.nccl)
    return tuple(name for name, outside in beyond.items() if outside.any())


def _doubt(rival: Rival) -> tuple[int, bool, float]:
    """How undecided a rival is: times that no run tells, then forms that put it first, then how easily it is reached.

    That is the half-width of the interval upwards as a multiple of the gap, in logarithms.
    """
    if rival.interval is None:
        return len(rival.missing), bool(rival.first_by), 0.0
    gap, reach = -np.log(rival.time_ratio), np.log(rival.interval[1] / rival.time_ratio)
    return 0, bool(rival.first_by), float(reach / gap) if gap > 0 else np.inf
