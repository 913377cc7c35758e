"""Which measurement tells most of the accept length that a configuration needs, its break-even."""

from __future__ import annotations

from specsim.cost.model import CostModel
from specsim.next_run.candidates import Offer
from specsim.next_run.plan import Plan, planned
from specsim.next_run.ratio import Ratio, Side
from specsim.next_run.space import Space
from specsim.questions import Asked, Case, cases


def next_run(model: CostModel, asked: Asked | None = None, *, most: int = 8) -> Plan[Case]:
    """The measurements that shrink the interval of a break-even most, best first (eq. 15).

    Of the break-evens asked, the one with most sides missing, then with the widest interval. Raises
    ConfigurationError and UnknownSettingError as `cases`.
    """
    model = model.at_one_context()
    space = Space.of(model)
    known = space.knowledge()

    def untold(case: Case) -> tuple[int, float]:
        question = _break_even(space, case)
        return len(question.missing(known)), question.half_width_pct(question.interval(known))

    asked_cases = cases(model, asked or Asked())
    case = max(asked_cases, key=untold)
    offer = Offer.of(model, [case.spec], case.batch_size)
    return planned(space, case, lambda told: _break_even(told, case), offer, questions=len(asked_cases), most=most)


def _break_even(space: Space, case: Case) -> Ratio:
    """C/t as a question (eq. 7)."""
    model, role = space.model, "the asked configuration"
    unseen = f" ({', '.join(model.unmeasured_phases)} were never timed)" if model.lower_bound(case.nccl) else ""
    cycle = Side.of(space, (case.spec, case.batch_size, case.nccl), f"the whole cycle{unseen}", role)
    plain = Side.of(space, (None, case.batch_size, case.nccl), "the plain-decode baseline", "the baseline")
    return Ratio.of(space, (cycle, plain), role)
