"""Real servers for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("llama_cpp.py")


@pytest.fixture
def server(tmp_path):
    """Start a server with so many drafts, and return its process and address."""
    pytest.importorskip("xllamacpp")
    started = []

    def start(drafts: int) -> tuple[subprocess.Popen, str]:
        command = [sys.executable, str(SCRIPT), str(tmp_path), "--drafts", str(drafts)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
