"""A server of one's own on the loopback: started, waited for, and stopped with all that it started."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from specsim.errors import SpecsimError

_LOOK_S = 0.25
_POLITE_S, _GONE_S = 15.0, 30.0
_SHOWN, _FIRST = 12, 3
_ERROR = re.compile(r"\b\w*(Error|Exception)\b.*")
_LEAST_S, _TIMES = 120.0, 3.0
"""Servers that start together are alike: none may take so many times as long as another that is well, or this long."""


@dataclass
class LocalServer:
    """A command that serves `/health` at a port, in a process group of its own; what it says goes to `log`.

    How long it took until it was well is `started_s`.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path
    started_s: float = field(default=0.0, init=False)
    _begun_s: float = field(default=0.0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Its root."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin it; `settled` tells what became of it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._begun_s = time.monotonic()
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip

    def well(self, limit_s: float) -> bool:
        """Whether it is; raises SpecsimError with its last words where it ended, or is not so long after its start."""
        assert self._process is not None
        took = time.monotonic() - self._begun_s
        if _answers(self.url + "/health"):
            self.started_s = took
            return True
        if self._process.poll() is not None:
            raise SpecsimError(
                f"the server ended with {self._process.returncode} before it was ready:\n{self.last_words()}"
            )
        if took > limit_s:
            raise SpecsimError(f"the server was not ready within {limit_s:.0f} s:\n{self.last_words()}")
        return False

    def last_words(self) -> str:
        """Its first errors, each once, where there are any; else the end of what it said."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors: dict[str, str] = {}
        for line in lines:
            if found := _ERROR.search(line):
                errors.setdefault(found.group(), line)
        shown = list(errors.values())[:_FIRST] or lines[-_SHOWN:]
        return "\n".join([*(f"  {line.strip()[:300]}" for line in shown), f"  (all of it: {self.log})"])

    def gone(self) -> bool:
        """Whether none of its process group is left."""
        return self._process is None or (self._process.poll() is not None and not _signal(self._process.pid, 0))

    def tell(self, number: int) -> None:
        """Send a signal to all that is left of it."""
        if self._process is not None and not self.gone():
            _signal(self._process.pid, number)


def settled(servers: Iterable[LocalServer], limit_s: float) -> Iterator[tuple[LocalServer, SpecsimError | None]]:
    """Each server once it is well (None) or has failed, within `limit_s` of its start; one that hangs is stopped."""
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            failure = None
            try:
                if not server.well(limit_s):
                    continue
                limit_s = min(limit_s, max(_LEAST_S, _TIMES * server.started_s))
            except SpecsimError as error:
                failure = error
                stop([server])
            waiting.remove(server)
            yield server, failure
        time.sleep(_LOOK_S if waiting else 0.0)


def stop(servers: Iterable[LocalServer]) -> None:
    """End their whole process groups together, with patience first; returns once none of them is left."""
    servers = list(servers)
    for number, patience_s in ((signal.SIGTERM, _POLITE_S), (signal.SIGKILL, _GONE_S)):
        for server in servers:
            server.tell(number)
        _until(lambda: all(server.gone() for server in servers), patience_s)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses, no two alike."""
    with ExitStack() as held:
        listeners = [held.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _signal(group: int, number: int) -> bool:
    """Whether there was anybody to be told."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
