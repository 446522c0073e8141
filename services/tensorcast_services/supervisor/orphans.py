"""The children of a dead supervisor: recorded while they live, ended and cleaned after at the next start.

A recorded pid is only trusted with its start time and the boot it belongs to, and is signalled through a pidfd, so a
stranger that got the number is never hit.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tensorcast_bus.cluster import CLUSTER_FILE
from tensorcast_services.supervisor.folder import write_private
from tensorcast_services.tables import Refusal

PIDS_FILE = "pids.json"
ORPHAN_END_MS_MAX = 8_000
KILL_MS_MAX = 5_000


class Recorded(msgspec.Struct, frozen=True):
    """A child as it was started. `start_ticks` is field 22 of /proc/PID/stat."""

    process: str
    pid: int
    start_ticks: int
    boot: str


def clean_after_dead_run(folder: Path) -> list[str]:
    """Waits for the children of a dead supervisor to end by their lifelines, ends those that do not, and removes stale
    files. Returns what was found, for people. Only under the lock."""
    found: list[str] = []
    deadline = time.monotonic() + ORPHAN_END_MS_MAX / 1000
    for record in _read_records(folder):
        pidfd = _open_if_same(record)
        if pidfd is None:
            continue
        try:
            how = _end(pidfd, record, deadline)
        finally:
            os.close(pidfd)
        found.append(f"{record.process} (pid {record.pid}) of a dead supervisor {how}")
    for stale in (folder / CLUSTER_FILE, folder / PIDS_FILE, *folder.glob("storage-*.sock")):
        stale.unlink(missing_ok=True)
    return found


def record_of(process: str, pid: int) -> Recorded:
    """How a child that was just started can be known again."""
    return Recorded(process, pid, _start_ticks(pid) or 0, _boot())


def write_records(folder: Path, records: Sequence[Recorded]) -> None:
    write_private(folder / PIDS_FILE, msgspec.json.encode(list(records)))


def _read_records(folder: Path) -> list[Recorded]:
    try:
        return msgspec.json.decode((folder / PIDS_FILE).read_bytes(), type=list[Recorded])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def _open_if_same(record: Recorded) -> int | None:
    if record.boot != _boot():
        return None
    try:
        pidfd = os.pidfd_open(record.pid)
    except OSError:
        return None
    # The pidfd is taken before the look at the start time: from here on the number cannot change hands.
    if _start_ticks(record.pid) == record.start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def _end(pidfd: int, record: Recorded, deadline: float) -> str:
    if _ends_by(pidfd, deadline):
        return "has ended"
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    if _ends_by(pidfd, time.monotonic() + KILL_MS_MAX / 1000):
        return "did not end by itself and was killed"
    raise Refusal(
        f"{record.process} (pid {record.pid}) of a dead supervisor does not end, not even by SIGKILL within "
        f"{KILL_MS_MAX} ms; it may hang in the kernel"
    )


def _ends_by(pidfd: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(max(0, int((deadline - time.monotonic()) * 1000))))


def _start_ticks(pid: int) -> int | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name may hold spaces and brackets; what follows its last bracket is plain.
    fields = line.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
