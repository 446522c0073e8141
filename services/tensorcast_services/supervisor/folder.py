"""The cluster folder: made private, locked by one supervisor, its files replaced as a whole.

Where the storages' sockets have a group, its members must find them: they may enter the folder and read the cluster
file, and with it the token of the NATS server. Nobody but the owner ever writes here.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from tensorcast_bus.cluster import CLUSTER_FILE, LOCK_FILE, ClusterFile, encode_cluster
from tensorcast_services.tables import Refusal


def prepare_folder(folder: Path) -> None:
    """Makes it with mode 0700. Refusal when it belongs to somebody else or others may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat(follow_symlinks=False)
    except OSError as error:
        raise Refusal(f"cluster folder {folder} cannot be made: {error}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal(f"cluster folder {folder} is no directory; remove it, or choose another with --folder")
    if found.st_uid != os.geteuid():
        raise Refusal(
            f"cluster folder {folder} belongs to uid {found.st_uid}, not to {os.geteuid()}; choose another one"
        )
    if found.st_mode & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise Refusal(f"cluster folder {folder} has mode {mode:04o}: others may write to it; run chmod 700 {folder}")
    for part in ("logs", "nats"):
        (folder / part).mkdir(mode=0o700, exist_ok=True)


def share_folder(folder: Path, group: int) -> None:
    """Lets a group in: the folder, and the one above it that `up` made. Refusal where that cannot be."""
    for part in (folder.parent, folder):
        try:
            os.chown(part, -1, group, follow_symlinks=False)
            part.chmod(0o750)
        except OSError as error:
            raise Refusal(
                f"storage.socket_group: {part} cannot be given to group {group}: {error.strerror}; choose a group that "
                f"you are in, or another XDG_RUNTIME_DIR"
            ) from error


def take_lock(folder: Path, name: str) -> int:
    """The fd of the held lock; it ends with this process. Refusal, naming the holder, when another one holds it."""
    fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        command = "tensorcast down" if name == "default" else f"tensorcast --cluster {name} down"
        raise Refusal(
            f"cluster {name!r} is already running: its supervisor is pid {holder}, its folder {folder}; "
            f"stop it with `{command}`, or start another one under another name"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def holds_lock(folder: Path, fd: int) -> bool:
    """Whether the lock file in the folder is still the one that `fd` has locked."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(folder / LOCK_FILE))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a disk in trouble is no reason to stop


def write_cluster(folder: Path, cluster: ClusterFile, *, group: int | None = None) -> None:
    write_private(folder / CLUSTER_FILE, encode_cluster(cluster), group=group)


def write_private(path: Path, blob: bytes, *, group: int | None = None) -> None:
    """Mode 0600, or 0640 for a group; whole or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as sink:
        if group is not None:
            os.fchown(fd, -1, group)
            os.fchmod(fd, 0o640)
        sink.write(blob)
    fresh.replace(path)
