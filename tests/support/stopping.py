"""Stopping a process, all of it: a SIGSTOP is on its way to other threads for a while after kill() has returned."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.support.slack import SLACK_S


def stop(pid: int) -> None:
    """Returns when no thread of the process runs any more."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + SLACK_S
    while not all(state == "T" for state in _states(pid)):
        assert time.monotonic() < deadline, f"process {pid} goes on after a SIGSTOP: {_states(pid)}"
        time.sleep(0.001)  # nothing tells when a process has stopped that is not a child


def _states(pid: int) -> list[str]:
    """Of every thread. A thread's name may hold anything, so its state is what follows the last parenthesis."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return [text.rpartition(")")[2].split()[0] for text in stats]
