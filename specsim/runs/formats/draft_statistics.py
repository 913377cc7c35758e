"""Totals of a block drafter as `cycles=135 proposed=135 accepted_draft=112` (ds4's DSpark statistics)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from specsim.runs.readings import LeftOut, Reading, amount, rounded, whole

_PAIR = re.compile(r"\b([a-z_]+)=([\d.]+)%?", re.ASCII)


def looks_like_statistics(head: str) -> bool:
    """Whether a line counts cycles and tells what was accepted in them."""
    return any({"cycles", "accept_rate"} <= dict(_PAIR.findall(line)).keys() for line in head.splitlines())


def read_statistics(text: str, _: Any) -> Iterator[Reading | LeftOut]:
    """One run a line of counts; avg_accept is accepted drafts a cycle, without the bonus.

    What the times beside them include is not documented, so they are left out.
    """
    for number, line in enumerate(text.splitlines(), 1):
        said = dict(_PAIR.findall(line))
        cycles, mean = whole(said.get("cycles")), amount(said.get("avg_accept"))
        proposed, accepted = whole(said.get("proposed")), whole(said.get("accepted_draft"))
        common = {"method": "dspark", "instrument": "DSpark statistics", "cycles": cycles}
        if cycles and proposed and accepted is not None and accepted <= proposed:
            yield Reading({**common, "accepted_drafts": accepted, "proposed_drafts": proposed}, number, number)
        elif cycles and mean is not None:
            yield Reading({**common, "accept_length": rounded(1 + mean)}, number, number)
        elif line.strip():
            yield LeftOut(
                "line without counts; what its times include is not documented", 1, number, number, line[:120]
            )
