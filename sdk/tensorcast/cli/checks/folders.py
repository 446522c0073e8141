"""Checks of folders: the cluster's, its sockets, and the disk tier's."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from tensorcast.cli.checks.finding import FAIL, OK, WARN, Finding, text_of
from tensorcast.cli.render import size

# What a socket's address can hold without a detour.
SOCKET_PATH_BYTES_MAX = 100
DISK_FREE_BYTES_WANTED = 1 << 30
_MEMORY_TYPES = frozenset({"tmpfs", "ramfs"})
_SOCKET_NAME = "storage-a.sock"


def socket_folder(folder: str, *, uid: int, running: bool = False) -> Finding:
    """The cluster folder, there or still to be made: whose it is, who may write to it, and how long its paths get. Of a
    cluster that is `running` and another's it is enough that we may enter."""
    path = os.path.join(folder, _SOCKET_NAME)
    place = nearest(folder)
    seen = os.stat(place)
    mode = stat.S_IMODE(seen.st_mode)
    value = f"{place}, uid {seen.st_uid}, mode {mode:04o}" + ("" if place == folder else f" ({folder} is made at `up`)")
    elsewhere = "set XDG_RUNTIME_DIR to a folder of yours (mode 0700)"
    if not stat.S_ISDIR(seen.st_mode):
        return Finding("socket folder", FAIL, f"{place} is no folder", f"remove it, or {elsewhere}")
    if running and seen.st_uid != uid and not mode & 0o022:
        return Finding("socket folder", OK, f"{value}: its owner shares it")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("socket folder", FAIL, f"{value}: not writable by uid {uid}", elsewhere)
    if place == folder and seen.st_uid != uid:
        return Finding("socket folder", FAIL, f"{value}: not yours (uid {uid})", elsewhere)
    if place == folder and mode & 0o022:
        return Finding("socket folder", FAIL, f"{value}: others may write to it", f"chmod 700 {place}")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        return Finding(
            "socket folder",
            WARN,
            f"{value}, sockets in it have paths of {len(os.fsencode(path))} bytes: they work by a detour",
            "set XDG_RUNTIME_DIR to a shorter path",
        )
    return Finding("socket folder", OK, value)


def socket(node: str, path: str, *, uid: int) -> Finding:
    """A storage's socket as this user meets it."""
    check = f"socket of {node}"
    try:
        seen = os.stat(path)
    except PermissionError:
        return Finding(check, FAIL, f"{path}: its folder lets uid {uid} not in", _shared(node))
    except OSError as error:
        return Finding(check, FAIL, f"{path}: {error.strerror}", "look at `tensorcast status` and `tensorcast logs`")
    value = f"{path}, uid {seen.st_uid}, gid {seen.st_gid}, mode {stat.S_IMODE(seen.st_mode):04o}"
    if not stat.S_ISSOCK(seen.st_mode):
        return Finding(check, FAIL, f"{value}: no socket", f"remove {path} and run `tensorcast down`, `tensorcast up`")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(check, FAIL, f"{value}: not for uid {uid}", _shared(node))
    if seen.st_uid == uid and seen.st_gid != os.getegid() and seen.st_mode & 0o060 != 0o060:
        fix = f"tensorcast up --set storage-{node}.socket_mode=0660"
        return Finding(check, WARN, f"{value}: it has a group whose members are not let in", fix)
    return Finding(check, OK, value)


def disk_tier(path: str, *, proc: Path, free_bytes: Callable[[str], int]) -> Finding:
    """Where a storage writes what has to outlive memory. A folder on tmpfs is memory: the tier is off there."""
    place = nearest(path)
    kind = filesystem(os.path.realpath(place), proc)
    fix = "tensorcast up --set storage.disk_path=FOLDER, a folder on a disk"
    if kind in _MEMORY_TYPES:
        return Finding("disk tier", FAIL, f"{path} is on {kind}, which is memory: nothing can be made durable", fix)
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("disk tier", FAIL, f"{path} is on {kind}: {place} is not writable", fix)
    free = free_bytes(place)
    value = f"{path} is on {kind}, {size(free)} free"
    if free < DISK_FREE_BYTES_WANTED:
        return Finding("disk tier", WARN, value, f"free room there, or {fix}")
    return Finding("disk tier", OK, value)


def nearest(path: str) -> str:
    """The path itself, or the nearest folder above it that is there."""
    place = os.path.abspath(path)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    return place


def filesystem(path: str, proc: Path) -> str:
    """The type of the file system that a resolved path is on, as the kernel names it."""
    best, kind = "", "an unknown file system"
    for line in (text_of(proc / "self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # Of two mounts at one place the later one is seen.
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _shared(node: str) -> str:
    return (
        f"run as its owner, or have that one share it: tensorcast up --set storage-{node}.socket_group=GROUP "
        f"--set storage-{node}.socket_mode=0660"
    )
