"""A real cluster for tests: `tensorcast up --detach` in a folder of its own, real processes, a real nats-server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

import tensorcast as tc
from tensorcast_bus.cluster import ClusterFile, decode_cluster
from tensorcast_bus.notes import AskStats, StorageStats
from tensorcast_native import Client, LocalStatus
from tests.support.stopping import stop

START_S_MAX = 60.0
RESTART_S_MAX = 30.0


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `environment` is what a child process needs to find it."""

    name: str
    runtime_folder: Path

    @property
    def folder(self) -> Path:
        return self.runtime_folder / "tensorcast" / self.name

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime_folder),
            "TENSORCAST_CLUSTER": self.name,
        }

    def connect(self) -> tc.Runtime:
        """A runtime of this process; several clusters may be connected at once."""
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(self.runtime_folder)
        try:
            return tc.connect(name=self.name)
        finally:
            if before is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = before

    def cli(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tensorcast.cli", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S_MAX,
            check=check,
        )

    def python(self, code: str, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Runs `code` in a fresh Python of its own; raises with its output when it fails."""
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"child failed ({done.returncode}):\n{done.stdout}\n{done.stderr}"
        return done

    def state(self) -> ClusterFile:
        return decode_cluster((self.folder / "cluster.json").read_bytes())

    def pid(self, process: str) -> int:
        return next(p.pid for p in self.state().processes if p.process == process)

    def storage_stats(self) -> StorageStats:
        """The storage's own figures, asked now over its local socket (a heartbeat's are up to a second old)."""
        client = Client(self.state().nodes[0].socket, deadline_ms=10_000)
        try:
            status, body = client.call(msgspec.msgpack.encode(AskStats()), deadline_ms=10_000)
        finally:
            client.close()
        assert status == LocalStatus.OK, body
        return msgspec.msgpack.decode(body, type=StorageStats)

    def kill(self, process: str, *, sig: signal.Signals = signal.SIGKILL) -> int:
        """Signals a process of the cluster; returns the pid it had. After a SIGSTOP all of it stands still."""
        pid = self.pid(process)
        if sig is signal.SIGSTOP:
            stop(pid)
        else:
            os.kill(pid, sig)
        return pid

    def wait_restarted(self, process: str, old_pid: int) -> int:
        """Waits until the supervisor has `process` ready again under another pid."""
        deadline = time.monotonic() + RESTART_S_MAX
        while time.monotonic() < deadline:
            for entry in self.state().processes:
                if entry.process == process and entry.pid != old_pid and entry.state == "ready":
                    return entry.pid
            time.sleep(0.02)  # polling a file that another process replaces; the deadline above bounds it
        raise AssertionError(f"{process} (was {old_pid}) did not come back within {RESTART_S_MAX} s: {self.state()}")


@contextmanager
def running_cluster(runtime_folder: Path, *, name: str, settings: dict[str, str] | None = None) -> Iterator[Cluster]:
    """Starts a cluster in a folder of its own; stops it at the end; shows its logs on failure."""
    cluster = Cluster(name, runtime_folder)
    chosen = {"storage.host_bytes_max": "512MiB", "storage.prefault_ahead_bytes": "64MiB"} | (settings or {})
    try:
        options = [f"--set={key}={value}" for key, value in chosen.items()]
        started = cluster.cli("--cluster", name, "up", "--detach", *options, check=False)
        assert started.returncode == 0, f"up failed:\n{started.stdout}\n{started.stderr}\n{logs_of(cluster)}"
        yield cluster
    finally:
        stopped = cluster.cli("--cluster", name, "down", check=False)
        assert stopped.returncode == 0, f"down failed:\n{stopped.stdout}\n{stopped.stderr}\n{logs_of(cluster)}"


def logs_of(cluster: Cluster, *, lines: int = 40) -> str:
    parts = []
    for log in sorted((cluster.folder / "logs").glob("*.log")):
        tail = log.read_text(errors="replace").splitlines()[-lines:]
        parts.append(f"--- {log.name}\n" + "\n".join(tail))
    return "\n".join(parts)


def smaps_of(pid: int, *, needle: str) -> dict[str, int]:
    """Sums (bytes) of every smaps field over the maps of `pid` whose line holds `needle`."""
    sums: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if " " in key or "-" in key:
            inside = needle in line
        elif inside and rest.strip().endswith("kB"):
            sums[key] = sums.get(key, 0) + int(rest.split()[0]) * 1024
    return sums
