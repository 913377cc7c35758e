"""The result file: runs in specsim's form with their provenance, written run by run, resumed where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specsim.errors import Fault, InputError

SCHEMA = "specsim-runs/1"
Row = dict[str, Any]


@dataclass
class Results:
    """A runs file that grows: each run is on disk, whole, before the next is begun.

    `defaults` are what all runs share, `card` the target with the provenance; a file that is already there is gone on
    with if it was made for the same defaults and target. Its provenance stays, and `gone_on` has that of each later start
    with the first run that it measured.
    """

    path: Path
    about: str
    defaults: Row
    card: Mapping[str, Any]
    runs: list[Row] = field(default_factory=list)
    _stated: dict[str, Any] = field(default_factory=dict, init=False)
    _earlier_runs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._stated = dict(self.card)
        if self.path.exists():
            self.runs = list(self._earlier())
            self._earlier_runs = len(self.runs)

    def _earlier(self) -> Iterator[Row]:
        """The runs of an earlier start; raises InputError where the file is another measurement's."""
        try:
            written = json.loads(self.path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError([Fault(str(self.path), "", f"cannot be gone on with ({error})", "move it away")]) from None
        for name, ours in (("defaults", self.defaults), ("model_card", self._target())):
            theirs = written.get(name, {}) if isinstance(written, dict) else {}
            if {key: theirs.get(key) for key in ours} != json.loads(json.dumps(ours)):
                problem = "is of another model, machine or setting than this measurement"
                raise InputError([Fault(str(self.path), name, problem, "give another -o, or move the file away")])
        self._stated = {**written["model_card"]}
        yield from written["runs"]

    def _target(self) -> dict[str, object]:
        return {name: value for name, value in self.card.items() if name != "provenance"}

    def has(self, name: str) -> bool:
        """Whether a run is measured already."""
        return any(run["id"] == name for run in self.runs)

    def add(self, run: Row) -> None:
        """Put a run on disk: the whole file anew beside the old one, then in its place."""
        self.runs.append(run)
        if len(self.runs) == self._earlier_runs + 1 > 1:
            start = {"first_run": run["id"], **self.card.get("provenance", {})}
            self._stated["gone_on"] = [*self._stated.get("gone_on", []), start]
        body = {
            "schema": SCHEMA,
            "about": self.about,
            "defaults": self.defaults,
            "model_card": self._stated,
            "runs": self.runs,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".part")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(body, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
