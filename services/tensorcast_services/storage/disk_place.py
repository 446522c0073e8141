"""Where a storage may write: its process's folder, claimed for itself alone, and a disk folder that is a disk.

Called by places.py once, at start. What cannot work is a Refusal whose text says what to do.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import time
from pathlib import Path

import structlog

from tensorcast_services.process import TakenOver
from tensorcast_services.storage.disk_folder import DiskFolder, data_files
from tensorcast_services.tables import Refusal

LOCK = "lock"
CLAIM_S_MAX = 5.0  # a storage that was just killed may still be giving its memory back
_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}
_libc = ctypes.CDLL(None, use_errno=True)


def claim(folder: Path, *, setting: str) -> int:
    """The fd of a lock that ends with this process; the folder is made with mode 0700. TakenOver
    naming who has it, Refusal where others may write."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refusal(
            f"{setting}: {folder} belongs to uid {found.st_uid} with mode {found.st_mode & 0o7777:04o}, and others may "
            f"write there: give it to uid {os.geteuid()} and run chmod 700 {folder}, or choose another folder"
        )
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + CLAIM_S_MAX
    while not _locked(fd):
        if time.monotonic() > deadline:
            holder = os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise TakenOver(
                f"{setting}: {folder} is in use by another storage, pid {holder}: two of them would overwrite each "
                f"other. Stop it (kill {holder}), or start this one as another node with --node, or in another folder"
            )
        time.sleep(0.05)  # nothing tells when a lock is free, and nothing else runs yet
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def disk_folder(folder: Path, *, bytes_max: int) -> DiskFolder | None:
    """None, said once in the log, where the folder lies in memory or cannot be written. `bytes_max` 0 means half of
    what the file system has free, what we have there included."""
    log = structlog.get_logger("disk")
    memory = memory_file_system(folder)
    if memory:
        log.warning(
            "disk_tier_off",
            folder=str(folder),
            why=f"it lies on {memory}, which is memory: set storage.disk_path to a folder on a disk",
        )
        return None
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    ours = sum(data_files(folder).values())
    chosen = bytes_max or (free + ours) // 2
    log.info("disk_tier", folder=str(folder), disk_bytes_max=chosen, free_bytes=free)
    return DiskFolder(folder, bytes_max=chosen)


def memory_file_system(folder: Path) -> str:
    """ "tmpfs" or "ramfs" where the folder is memory, else ""."""
    out = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(folder), out):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    magic = ctypes.c_long.from_buffer(out).value & 0xFFFFFFFF
    return _MEMORY_FILE_SYSTEMS.get(magic, "")


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
            return False
        raise
    return True
