"""A server of one's own on the loopback: started, waited for, and stopped with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from specsim.errors import SpecsimError

_LOOK_S = 0.25
_POLITE_S, _GONE_S = 15.0, 30.0
_SHOWN = 12


@dataclass
class LocalServer:
    """A command that serves `/health` at a port, in a process group of its own; what it says goes to `log`.

    `limit_s` is how long it may take until it is well. As a context manager it is well inside and gone after.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    port: int
    log: Path
    limit_s: float
    started_s: float = field(default=0.0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Its root."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Start it and wait until it is well; raises SpecsimError with its last words where it never is."""
        begun = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_until_well(begun)
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_until_well(self, begun: float) -> None:
        assert self._process is not None
        while not _answers(self.url + "/health"):
            if self._process.poll() is not None:
                raise SpecsimError(
                    f"the server ended with {self._process.returncode} before it was ready:\n{self.last_words()}"
                )
            if time.monotonic() - begun > self.limit_s:
                raise SpecsimError(f"the server was not ready within {self.limit_s:g} s:\n{self.last_words()}")
            time.sleep(_LOOK_S)

    def last_words(self) -> str:
        """The end of what it said: from its last error on, where there is one."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        shown = errors[-3:] or lines[-_SHOWN:]
        return "\n".join([*(f"  {line.strip()[:300]}" for line in shown), f"  (all of it: {self.log})"])

    def stop(self) -> None:
        """End its whole process group, with patience first; returns once none of it is left."""
        if self._process is None:
            return
        group = self._process.pid
        _signal(group, signal.SIGTERM)
        if not _until(lambda: self._gone(group), _POLITE_S):
            _signal(group, signal.SIGKILL)
            _until(lambda: self._gone(group), _GONE_S)
        self._process = None

    def _gone(self, group: int) -> bool:
        assert self._process is not None
        ended = self._process.poll() is not None
        return ended and not _signal(group, 0)


def free_port() -> int:
    """A port of the loopback that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


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


def _until(holds: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.1)
    return held
