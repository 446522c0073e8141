"""A child process that cannot be watched is not left behind."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from tensorcast_services.supervisor.child import Spec, spawn

WAITS = "import sys; sys.stdin.read(); import time; time.sleep(60)"


@pytest.mark.parametrize("native", [True, False])
async def test_a_child_without_a_pidfd_is_ended_and_its_pipes_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    started: list[int] = []

    def none_left(pid: int, _flags: int = 0) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", none_left)
    spec = Spec("p", "storage", (sys.executable, "-c", WAITS), dict(os.environ), tmp_path / "p.log", native=native)
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files"):
        spawn(spec, log_bytes_max=1 << 20)
    assert sorted(os.listdir("/proc/self/fd")) == before
    (pid,) = started
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
