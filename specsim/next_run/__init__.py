"""Which measurement to make next: the one that shrinks the interval of what is asked most (eq. 15)."""

from specsim.next_run.candidates import WIDTHS
from specsim.next_run.form import departures
from specsim.next_run.knowledge import Knowledge
from specsim.next_run.need import next_run
from specsim.next_run.plan import NextRun, Plan
from specsim.next_run.rivals import Contest, Rival, next_run_for_best

__all__ = [
    "WIDTHS",
    "Contest",
    "Knowledge",
    "NextRun",
    "Plan",
    "Rival",
    "departures",
    "next_run",
    "next_run_for_best",
]
