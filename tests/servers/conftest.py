"""Real servers for tests; each ends with its test, or with the tests of its module, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Started:
    """A server run by its module, the leader of a process group of its own; its log is in the folder."""

    def __init__(self, module: str, folder: Path, *arguments: object) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", f"tests.servers.{module}", str(folder), *map(str, arguments)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    @cached_property
    def url(self) -> str:
        """Its address, which it prints once it answers."""
        address = self.process.stdout.readline().strip()
        if not address:
            pytest.fail(f"no server: {self.log.read_text(encoding='utf-8', errors='replace')[-4000:]}")
        return address

    def kill(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """The same, and what it was read through."""
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path):
    """Start llama.cpp's server with so many drafts."""
    pytest.importorskip("xllamacpp")
    with ExitStack() as running:

        def start(drafts: int) -> Started:
            folder = tmp_path / f"{drafts} drafts"
            folder.mkdir()
            started = Started("llama_cpp", folder, "--drafts", drafts)
            running.callback(started.close)
            return started

        yield start


@pytest.fixture(scope="module")
def vllm_servers(tmp_path_factory):
    """vLLM's servers by their number of drafts, both started at once: three that tell their configuration, one that does not."""
    if find_spec("vllm") is None:
        pytest.fail("vLLM is not installed: .ci/vllm installs it, and runs these")
    with ExitStack() as running:
        servers = {}
        for drafts, more in ((3, ["--development"]), (1, [])):
            servers[drafts] = Started("vllm_cpu", tmp_path_factory.mktemp("vllm"), "--drafts", drafts, *more)
            running.callback(servers[drafts].close)
        yield servers
