"""Held-out error of the break-even accept length L* = C/t, and of the verdict on the measured length, as a table.

Run: python -m benchmarks.accuracy_break_even
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.groups import OWN, PUBLIC, Group
from benchmarks.held_out import constant_ratio, measured, plain_steps, splits
from specsim import Run, SpecsimError, break_even, fit
from specsim.breakeven import IMPOSSIBLE, LOSES, PAYS
from specsim.runs.run import RunSet


@dataclass(frozen=True)
class Asked:
    """A measured configuration: its accept length, C/t as measured, and what a fit that had not seen it said.

    `constant_ratio` is C/t by one draft share for all (None where it says nothing).
    """

    run: str
    accept_length: float
    measured_ratio: float
    predicted_ratio: float
    verdict: str
    constant_ratio: float | None

    @property
    def error(self) -> float:
        """|L*/(C/t) − 1|."""
        return abs(self.predicted_ratio / self.measured_ratio - 1)

    @property
    def pays(self) -> bool:
        """Whether speculation paid, as measured."""
        return self.accept_length > self.measured_ratio

    @property
    def sign_right(self) -> bool:
        """Whether the predicted break-even lies on the measured side of the length."""
        return (self.accept_length > self.predicted_ratio) == self.pays

    @property
    def decided(self) -> bool:
        """Whether the verdict commits itself."""
        return self.verdict in (PAYS, LOSES, IMPOSSIBLE)

    @property
    def decided_right(self) -> bool:
        """Whether it does, and rightly."""
        return self.decided and (self.verdict == PAYS) == self.pays

    @property
    def constant_ratio_right(self) -> bool:
        """Whether a constant ratio has the sign right; False where it says nothing."""
        return self.constant_ratio is not None and (self.accept_length > self.constant_ratio) == self.pays


def asked(group: Group) -> list[Asked]:
    """Every configuration with an accept length and a baseline of its batch size, by a fit that saw none of it."""
    plain, guess = plain_steps(group.runs), constant_ratio(group.runs)
    found = []
    for rest, unseen in splits(group.runs, group.first_part):
        rows = [run for run in unseen if _is_askable(run, plain)]
        for run, ratio, verdict in _answers(rest, rows):
            t = plain[int(run.workload.batch_size)]
            instead = guess(run, "cycle")
            found.append(
                Asked(
                    run.id,
                    run.figures["accept_length"].best,
                    measured(run)["cycle"] / t,
                    ratio,
                    verdict,
                    None if instead is None else instead / t,
                )
            )
    return found


def askable(group: Group) -> int:
    """How many configurations there are to ask for."""
    plain = plain_steps(group.runs)
    return sum(_is_askable(run, plain) for run in group.runs.runs if not run.excluded)


def _is_askable(run: Run, plain: dict[int, float]) -> bool:
    """Whether a run tells C, t and L: a whole cycle, a plain step of its batch size, and an accept length."""
    whole = run.spec is not None and "accept_length" in run.figures and "cycle" in measured(run)
    return whole and int(run.workload.batch_size) in plain


def _answers(rest: RunSet, rows: list[Run]) -> Iterator[tuple[Run, float, str]]:
    """C/t and the verdict for each row; none where the rest does not tell them."""
    if not rows:
        return
    try:
        model = fit(rest).model
    except SpecsimError:
        return
    for run in rows:
        length = run.figures["accept_length"].best
        try:
            answer = break_even(model, run.spec, run.workload, accept_length=length)
        except SpecsimError:
            continue
        if np.isfinite(answer.cost_ratio):
            yield run, float(answer.cost_ratio), str(answer.verdict.verdict)


HEAD = """\
| group | predicted | it pays in | median error of L* | largest | sign right | undecided | decided, and right | a constant ratio: sign right |
|---|--:|--:|--:|--:|--:|--:|--:|--:|"""


def line(title: str, rows: list[Asked], of: int) -> str:
    """One group's cells."""
    errors, said = [each.error for each in rows], [each for each in rows if each.constant_ratio is not None]
    decided = [each for each in rows if each.decided]
    cells = [
        title,
        f"{len(rows)} of {of}",
        f"{sum(each.pays for each in rows)}",
        f"{np.median(errors):.1%}",
        f"{max(errors):.1%}",
        f"{sum(each.sign_right for each in rows)} of {len(rows)}",
        f"{len(rows) - len(decided)}",
        f"{sum(each.decided_right for each in rows)} of {len(decided)}",
        f"{sum(each.constant_ratio_right for each in said)} of {len(said)}",
    ]
    return f"| {' | '.join(cells)} |"


def table(groups: Iterable[Group] = (*OWN, *PUBLIC)) -> str:
    """The markdown table: a line for each group that has baselines and accept lengths, and one for all of them."""
    answers = [(group, asked(group)) for group in groups if askable(group)]
    lines = [line(group.title, rows, askable(group)) for group, rows in answers]
    total = sum(askable(group) for group, _ in answers)
    return "\n".join([HEAD, *lines, line("all", [each for _, rows in answers for each in rows], total)])


if __name__ == "__main__":
    print(table())
    for each in (*OWN, *PUBLIC):
        for row in asked(each):
            if not row.sign_right or (row.decided and not row.decided_right):
                print(each.title, row)
