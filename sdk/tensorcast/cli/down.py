"""`tensorcast down`: asks the supervisor to stop everything in order, and waits until it has."""

from __future__ import annotations

import os
import select
import signal
import time

from tensorcast.cli import cluster, render
from tensorcast.cli.words import Words
from tensorcast_bus.errors import NotConnected, Timeout

STOP_S_MAX = 60.0


def down(words: Words) -> int:
    found = cluster.cluster_file(words)
    started = time.monotonic()
    pidfd = _supervisor(found.supervisor_pid, found.name)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not select.select([pidfd], [], [], STOP_S_MAX)[0]:
            raise Timeout(
                f"the supervisor of cluster {found.name!r} (pid {found.supervisor_pid}) did not end within "
                f"{STOP_S_MAX:.0f} s; see `tensorcast logs supervisor`, end it with `kill -9 {found.supervisor_pid}`"
            )
    finally:
        os.close(pidfd)
    if words.json:
        render.as_json({"cluster": found.name, "stopped": [p.process for p in found.processes]})
    elif not words.quiet:
        print(f"cluster {found.name} stopped in {time.monotonic() - started:.1f} s")
    return 0


def _supervisor(pid: int, name: str) -> int:
    """A pidfd of it; a number alone could belong to a stranger by now."""
    gone = NotConnected(
        f"cluster {name!r} is not running: its supervisor (pid {pid}) is gone; "
        "the next `tensorcast up` cleans up after it"
    )
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise gone from None
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"tensorcast_services.supervisor" in file.read():
                return pidfd
    except OSError:
        pass
    os.close(pidfd)
    raise gone
