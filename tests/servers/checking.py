"""`specsim check` as a user calls it, and models to call it with."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from specsim import fit, load_runs
from specsim.runs.run import Run

ROUGH_MS = 1000
"""Longer than any cycle of theirs, with an interval that reaches below zero."""


def command(url: str, model: Path, out: Path, *more: object) -> list[str]:
    """The command of a check, with --json."""
    asked = [url, "--model", model, "-o", out, *more, "--json"]
    return [sys.executable, "-c", "from specsim.cli.main import main; main()", "check", *map(str, asked)]


def check(url: str, model: Path, out: Path, *more: object) -> tuple[int, dict, str]:
    """The exit code of a check, what it printed and its errors."""
    done = subprocess.run(command(url, model, out, *more), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def rough_model(folder: Path, engine: str, drafts: int, accept_length: float) -> Path:
    """A model of a made-up time, so doubtful that no measured one ever decides of it."""
    runs, model = folder / "rough.csv", folder / "rough.json"
    row = f"a,{engine},2,{drafts + 1},draft_model,{ROUGH_MS},{accept_length}"
    runs.write_text(f"id,engine,batch_size,num_draft_tokens,method,cycle_ms,accept_length\n{row}\n", encoding="utf-8")
    fit(load_runs(runs), noise=0.99).model.save(model)
    return model


def measured_first(url: str, rough: Path, out: Path, *more: object) -> Path:
    """A first check of a server, longer where the machine kept its client from timing anything."""
    for seconds in (6, 20, 60):
        check(url, rough, out, *more, "--seconds", seconds, "--tolerance", 5)
        (run,) = load_runs(out).runs
        if "cycle_ms" in run.figures:
            break
    return out


def is_timed_or_says_why_not(run: Run) -> bool:
    """Whether a run has its cycle's time, or says that its client was halted for longer than it saw."""
    return "cycle_ms" in run.figures or "longer than the steady part" in run.note


def refitted(measured: Path, model: Path) -> Path:
    """A model fitted to what a check measured, its times believed to a tenth."""
    fit(load_runs(measured), noise=0.1).model.save(model)
    return model


def wait_for(path: Path, child: subprocess.Popen) -> None:
    """Until a check has written what it measured first, or has ended, or three minutes are over."""
    until = time.monotonic() + 180
    while not path.exists() and child.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
