"""A supervisor as a real process in a folder of its own, and what tests look at from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tensorcast_bus.cluster import CLUSTER_FILE, ClusterFile, ProcessEntry, decode_cluster

WAIT_S_MAX = 30.0


class Supervisor:
    """Started by `supervisor`. `folder` is its cluster folder."""

    def __init__(self, folder: Path, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tensorcast_services.supervisor", "--folder", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def state(self) -> ClusterFile | None:
        try:
            return decode_cluster((self.folder / CLUSTER_FILE).read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def wait_ready(self) -> ClusterFile:
        return self.wait(lambda state: state.state == "ready")

    def wait(self, condition: Callable[[ClusterFile], bool]) -> ClusterFile:
        """The cluster file once it fulfils the condition."""
        found: list[ClusterFile] = []

        def holds() -> bool:
            state = self.state()
            if state is None or not condition(state):
                assert self.process.poll() is None, f"the supervisor ended: {self.output()}\n{self.logs()}"
                return False
            found.append(state)
            return True

        wait_until(holds, lambda: f"{self.state()}\n{self.logs()}")
        return found[0]

    def entry(self, process: str) -> ProcessEntry:
        state = self.state()
        assert state is not None
        return next(p for p in state.processes if p.process == process)

    def wait_restarted(self, process: str, old_pid: int) -> ProcessEntry:
        def again(state: ClusterFile) -> bool:
            entry = next(p for p in state.processes if p.process == process)
            return entry.state == "ready" and entry.pid not in (0, old_pid)

        self.wait(again)
        return self.entry(process)

    def end(self, sig: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code."""
        self.process.send_signal(sig)
        return self.process.wait(timeout=WAIT_S_MAX)

    def output(self) -> str:
        """What it printed; after its end."""
        return self.process.communicate(timeout=WAIT_S_MAX)[0]

    def logs(self) -> str:
        logs = sorted((self.folder / "logs").glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


@contextmanager
def supervisor(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Supervisor]:
    """Started at once, not yet ready; killed at the end if the test did not end it, and nothing of it may be left."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TENSORCAST_", "NATS_"))}
    running = Supervisor(folder, arguments, clean | (environment or {}))
    try:
        yield running
    finally:
        if running.process.poll() is None:
            try:
                running.end()
            except subprocess.TimeoutExpired:
                running.process.kill()
        running.process.communicate(timeout=WAIT_S_MAX)
        wait_until(lambda: not processes_of(folder), lambda: f"still there: {processes_of(folder)}")


def processes_of(folder: Path) -> list[tuple[int, str]]:
    """Living processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(folder) in command:
                found.append((int(entry.name), command))
    return found


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Polls what another process changes; the deadline bounds it."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S_MAX} s: {what()}"
        time.sleep(0.01)
