"""A check from the warm-up to the last look: what was measured is on disk before anything is judged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.cost.model import CostModel
from specsim.errors import SpecsimError
from specsim.live.counters import CountedLength, accept_length_between
from specsim.live.expectation import Expectation, expectations
from specsim.live.facts import Counters, ServerFacts
from specsim.live.load import Load, Loader, route_of
from specsim.live.measured import Made, Measured, measured, quotient, run_counts, run_row
from specsim.live.probe import Adapter
from specsim.live.prompts import Prompt
from specsim.live.recording import RequestError
from specsim.live.verdict import INCONCLUSIVE, LOOKS, Judged, judge, look_error, verdict_of_all
from specsim.live.window import Reading, Window, steady_window
from specsim.quantities import SpecConfig
from specsim.questions import AcceptLength
from specsim.runs.files import checked_run
from specsim.runs.like_for_like import differences
from specsim.runs.run import Run
from specsim.runs.writing import write_runs

if TYPE_CHECKING:
    import aiohttp

WARM_UP_TOKENS, WARM_UP_S = 32, 180.0
_TURNS = 8
"""Blocks of a check against a baseline, in the order A B B A A B B A, in which a drift over time cancels."""
_TICK_S = 0.5
_LOOK_AT_CLOCK_S = 0.05
"""How often the client looks whether it is late itself: a halt that lies within one such time is not seen."""
_SAME_LOOK = 0.002


@dataclass(frozen=True)
class Plan:
    """What a check asks of a model and how long it may take [s]; percents are of the measured figure.

    `length` is the accept length that is predicted, if any.
    """

    model: CostModel
    nccl: str
    length: AcceptLength | None
    prompts: Sequence[Prompt]
    concurrency: int
    output_len: int
    seconds: float
    tolerance_pct: float
    output: Path
    id: str


@dataclass
class Side:
    """One server under load: what it is, what was sent, and every reading of its counters."""

    adapter: Adapter
    facts: ServerFacts
    spec: SpecConfig | None
    loader: Loader
    readings: list[Counters] = field(default_factory=list)
    lost: str = ""

    async def read_counters(self) -> None:
        """One more reading; a server that does not answer leaves the earlier ones, and the reason."""
        try:
            self.readings.append(await self.adapter.counters())
        except SpecsimError as error:
            self.lost = str(error)


@dataclass(frozen=True)
class Found:
    """What one server's load gave: the steady part, the figures in it, the run that was written, what counters did not tell."""

    side: Side
    window: Window
    measured: Measured
    row: Mapping[str, Any]
    run: Run
    lost: str


@dataclass(frozen=True)
class Row:
    """One line of the comparison; `judged` is None where there is no prediction or no measurement, `why` says which."""

    figure: str
    expectation: Expectation
    measured: Reading | None
    judged: Judged | None
    why: str = ""

    @property
    def verdict(self) -> str:
        """The verdict; empty where nothing was predicted, INCONCLUSIVE where what was predicted was not measured."""
        if self.judged is not None:
            return self.judged.verdict
        return INCONCLUSIVE if self.expectation.expected is not None else ""


@dataclass(frozen=True)
class Outcome:
    """What a check found: rows, one verdict, how long it took [s], why it stopped early if it did, the mixed fields.

    `lag_s` is the longest that the client was late for its own clock: arrivals are stamped as late as that.
    """

    rows: tuple[Row, ...]
    verdict: str
    seconds: float
    looks: int
    stopped: str
    lag_s: float
    mixed: tuple[str, ...]
    found: Found
    baseline: Found | None


async def side_of(
    sender: aiohttp.ClientSession, adapter: Adapter, facts: ServerFacts, spec: SpecConfig | None, plan: Plan
) -> Side:
    """A server made ready: the route found on which it answers, and warmed up; raises RequestError."""
    load = Load(facts.url, facts.served_model, plan.prompts, plan.concurrency, plan.output_len, adapter.extra_body)
    try:
        async with asyncio.timeout(WARM_UP_S):
            load = await route_of(sender, load)
            loader = Loader(sender, load)
            await loader.warm_up(WARM_UP_TOKENS)
    except TimeoutError:
        raise RequestError(f"{facts.url} did not answer {plan.concurrency} short requests in {WARM_UP_S:g} s") from None
    return Side(adapter, facts, spec, loader)


class Session:
    """The load, looked at as it goes. `run` ends when decided, when time is up, when a server fails or by Ctrl-C."""

    def __init__(self, plan: Plan, sides: Sequence[Side]) -> None:
        self.plan, self.sides = plan, tuple(sides)
        self._elapsed, self._looked, self._error, self._looks = 0.0, 0.0, 0.0, 0
        self._stopped, self._lag_s = "", 0.0

    async def run(self, progress: Callable[[int, int], None]) -> Outcome:
        """Measure, look, and at the end tell; every look writes the runs first."""
        try:
            await self._measure(progress)
        except RequestError as error:
            self._stopped = f"after {self._elapsed:.1f} s a request failed: {error}"
        except asyncio.CancelledError:
            self._stopped = f"interrupted after {self._elapsed:.1f} s"
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        return self._look(self._windows())

    # -- the load ------------------------------------------------------------------------------------------------------

    async def _measure(self, progress: Callable[[int, int], None]) -> None:
        running: Side | None = None
        for side in self.sides:
            await side.read_counters()
        try:
            for side, seconds, is_look in _blocks(self.sides, self.plan.seconds):
                if side is not running:
                    await _stop(running)
                    side.loader.start()
                    running = side
                await self._hold(side, seconds, progress)
                await side.read_counters()
                if is_look and self._elapsed < self.plan.seconds - _TICK_S and await self._is_decided():
                    return
        finally:
            await _stop(running)

    async def _hold(self, side: Side, seconds: float, progress: Callable[[int, int], None]) -> None:
        clock = asyncio.get_running_loop().time
        start, before = clock(), self._elapsed
        while (left := seconds - (clock() - start)) > 0:
            asked, since = min(left, _LOOK_AT_CLOCK_S), clock()
            try:
                await side.loader.hold(asked)
            finally:
                self._elapsed = before + clock() - start
            self._lag_s = max(self._lag_s, clock() - since - asked)
            progress(min(int(self._elapsed * 10), _tenths(self.plan)), _tenths(self.plan))

    # -- looks ---------------------------------------------------------------------------------------------------------

    async def _is_decided(self) -> bool:
        """Look while the load goes on: a second spent on millions of chunks would delay the requests that follow."""
        windows = await asyncio.to_thread(self._windows)
        return self._look(windows).verdict != INCONCLUSIVE

    def _windows(self) -> list[Window]:
        loaders = [side.loader for side in self.sides]
        return [steady_window(each.streams(), self.plan.concurrency, each.idle_s) for each in loaders]

    def _look(self, windows: Sequence[Window]) -> Outcome:
        """Write what was measured so far, then judge it at this look's part of the error."""
        found = [self._found(side, window) for side, window in zip(self.sides, windows, strict=True)]
        save([each.row for each in found], self.plan.output)
        self._spend()
        baseline = found[1] if len(found) > 1 else None
        rows = tuple(_rows(self.plan, found[0], baseline, self._error))
        verdict = INCONCLUSIVE if self._stopped else verdict_of_all([row.verdict for row in rows if row.verdict])
        mixed = dict.fromkeys([*(f for row in rows for f in row.expectation.mixed_in), *_apart(found)])
        return Outcome(
            rows, verdict, self._elapsed, self._looks, self._stopped, self._lag_s, tuple(mixed), found[0], baseline
        )

    def _spend(self) -> None:
        """Take this look's part of the error; a look at what the last one saw is the same look."""
        now = self._elapsed / self.plan.seconds
        if now - self._looked > _SAME_LOOK:
            self._error, self._looked = look_error(self._looked, now), now
            self._looks += 1

    def _found(self, side: Side, window: Window) -> Found:
        counted, counts, lost = counted_of(side)
        seen = measured(window, side.spec, counted, self._lag_s)
        role = "" if side is self.sides[0] else " baseline"
        made = Made(
            self.plan.id + role,
            self.plan.nccl,
            side.spec,
            self.plan.output_len,
            len(self.plan.prompts),
            note_of(window, seen, lost, self._stopped),
        )
        row = run_row(side.facts, made, window, seen, counts)
        return Found(side, window, seen, row, checked_run(row, str(self.plan.output), self.plan.id), lost)


def counted_of(side: Side) -> tuple[CountedLength | None, dict[str, Any], str]:
    """The accept length and counts between a server's first and last reading, or why there are none."""
    if side.spec is None or len(side.readings) < 2:
        return None, {}, side.lost
    first, last = side.readings[0], side.readings[-1]
    try:
        return accept_length_between(first, last), run_counts(first, last, side.spec), side.lost
    except SpecsimError as error:
        return None, {}, "; ".join(filter(None, [side.lost, str(error)]))


def note_of(window: Window, seen: Measured, *more: str) -> str:
    """What of a load was measured, what was left out of it, and how each figure was had."""
    left = (
        f"left out: ramp {window.ramp_s:.2f} s, prefills between {window.between_s:.2f} s, tail {window.tail_s:.2f} s"
    )
    steady = f"steady part {window.clear_s:.2f} s of {window.chunks} chunks and {window.tokens:.0f} tokens"
    return "; ".join(filter(None, [steady, left, *seen.how, *seen.missing, *more]))


def _blocks(sides: Sequence[Side], seconds: float) -> Iterator[tuple[Side, float, bool]]:
    """Which server is loaded for how long, and whether what was measured is looked at then."""
    if len(sides) == 1:
        yield from (
            (sides[0], (now - before) * seconds, True) for before, now in zip((0.0, *LOOKS), LOOKS, strict=False)
        )
        return
    for turn in range(_TURNS):
        yield sides[(turn + 1) // 2 % 2], seconds / _TURNS, turn % 2 == 1


async def _stop(side: Side | None) -> None:
    if side is not None:
        await side.loader.stop()


def _tenths(plan: Plan) -> int:
    return max(int(plan.seconds * 10), 1)


def save(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write runs to a file that is whole at every moment; a written one is replaced by one that is complete."""
    part = path.with_name(path.name + ".part")
    write_runs(rows, "measured by specsim check", part)
    os.replace(part, path)


def _apart(found: Sequence[Found]) -> tuple[str, ...]:
    """Fields in which the two servers, or what they were asked, are not like for like."""
    return tuple(differences(each.run for each in found)) if len(found) > 1 else ()


# -- rows ----------------------------------------------------------------------------------------------------------


def _rows(plan: Plan, found: Found, baseline: Found | None, error: float) -> Iterator[Row]:
    """Predicted beside measured, figure by figure; with a baseline its decode, the break-even and the speed-up."""
    figures = found.measured.figures
    length = figures.get("accept_length")
    expected = expectations(plan.model, found.run, plan.length, length.value if length else None)
    told = {
        name: _row(plan, name, expected[name], figures.get(name), error) for name in expected if name not in _OF_RATIO
    }
    yield from told.values()
    if found.run.spec is None:
        return
    decode = None
    if baseline is not None:
        plain = expectations(plan.model, baseline.run, None, None)
        decode = baseline.measured.figures.get("decode_ms")
        yield _row(plan, "baseline_decode_ms", plain["decode_ms"], decode, error)
        both = decode is not None and "cycle_ms" in figures
        ratio = quotient(figures["cycle_ms"], decode) if both and decode is not None else None
        yield _row(plan, "cost_ratio", expected["cost_ratio"], ratio, error)
    yield _margin(plan, expected, figures, decode, error)
    if baseline is not None:
        rates = figures.get("output_tok_s"), baseline.measured.figures.get("output_tok_s")
        gain = quotient(rates[0], rates[1]) if rates[0] is not None and rates[1] is not None else None
        yield _row(plan, "speedup", expected["speedup"], gain, error)


_OF_RATIO = ("cost_ratio", "margin", "speedup")


def _row(
    plan: Plan, name: str, expected: Expectation, seen: Reading | None, error: float, scale: float | None = None
) -> Row:
    if seen is None:
        return Row(name, expected, None, None, "not measured")
    if expected.expected is None:
        return Row(name, expected, seen, None, expected.why)
    return Row(name, expected, seen, judge(expected.expected, seen, plan.tolerance_pct, error, scale))


def _margin(
    plan: Plan,
    expected: Mapping[str, Expectation],
    figures: Mapping[str, Reading],
    decode: Reading | None,
    error: float,
) -> Row:
    """L − C/t, in percent of the break-even C/t; t is the model's where no baseline was measured."""
    cycle, length = figures.get("cycle_ms"), figures.get("accept_length")
    time, ratio = expected["cycle_ms"].expected, expected["cost_ratio"].expected
    if decode is None and time is not None and ratio is not None:
        decode = Reading(time.value / ratio.value, 0.0, 1000)
    if cycle is None or length is None or decode is None:
        return _row(plan, "margin", expected["margin"], None, error)
    need = quotient(cycle, decode)
    spread = (length.error**2 + need.error**2) ** 0.5
    margin = Reading(length.value - need.value, spread, min(length.dof, need.dof))
    return _row(plan, "margin", expected["margin"], margin, error, scale=need.value)


def preflight(plan: Plan, facts: ServerFacts, spec: SpecConfig | None) -> Expectation:
    """What the model will be asked of this server, before any load; raises ConfigurationError where nothing can be."""
    context = plan.model.context_len if plan.model.reads_context else None
    made = Made(plan.id, plan.nccl, spec, plan.output_len, len(plan.prompts), "")
    window = replace(steady_window([], plan.concurrency), context_len=context)
    row = run_row(facts, made, window, Measured({}, (), ("nothing was measured yet",)), {})
    run = checked_run(row, facts.url, plan.id)
    return expectations(plan.model, run, plan.length, None)["decode_ms" if spec is None else "cycle_ms"]
