"""Source files: are they still what the manifest says?

Runs on threads, never on the loop. A file counts only by its identity (device, inode, size, mtime_ns) at its resolved
path, opened without following a link that somebody put there later.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

import msgspec

from tensorcast_bus.errors import BadCheckpoint, NoReplica, TensorCastError
from tensorcast_bus.manifest import Manifest
from tensorcast_services.storage.core.events import Identity

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK


class SourceTrouble(Exception):
    """`lost`: the bytes cannot come from this file again; else trying later may help."""

    def __init__(self, error: TensorCastError, *, lost: bool) -> None:
        super().__init__(error.text)
        self.error = error
        self.lost = lost


def files_of(manifest: Manifest) -> tuple[Identity, ...]:
    """One a segment that is a file's image, in order."""
    files = (row.file for row in manifest.segments if row.file is not None)
    return tuple((f.path, f.device, f.inode, f.size, f.mtime_ns) for f in files)


class Look(msgspec.Struct, frozen=True):
    """`changed` is empty, or says which file is not what it was and why. `sure` is False when one could not be seen for
    a reason that may pass (an I/O error, no permission)."""

    changed: str = ""
    sure: bool = True


def look(files: Sequence[Identity]) -> Look:
    for path, *seen in files:
        try:
            now = os.lstat(path)
        except OSError as error:
            return Look(f"{path}: {error.strerror}", sure=error.errno in _GONE)
        difference = _difference(seen, now)
        if difference:
            return Look(f"{path} {difference}")
    return Look()


def open_all(art_id: str, files: Sequence[Identity]) -> list[int]:
    """Open fds in the order of `files`. SourceTrouble; nothing stays open then."""
    fds: list[int] = []
    try:
        for path, *seen in files:
            fds.append(_open(art_id, path))
            difference = _difference(seen, os.fstat(fds[-1]))
            if difference:
                raise SourceTrouble(changed_file(art_id, f"{path} {difference}"), lost=True)
    except BaseException:
        close_all(fds)
        raise
    return fds


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


def changed_file(art_id: str, what: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"changed: the source of {art_id!r} is not the file that was put: {what}; delete {art_id!r} and put the new "
        "content, or restore the file",
        art_id=art_id,
    )


def _open(art_id: str, path: str) -> int:
    try:
        return os.open(path, OPEN_FLAGS)
    except OSError as error:
        if error.errno in _GONE:
            text = f"the source file {path} of {art_id!r} is gone, and no other replica is here; put it again"
            raise SourceTrouble(NoReplica(text, art_id=art_id), lost=True) from error
        text = f"the source file {path} of {art_id!r} cannot be opened: {error.strerror}; ask again once it can be read"
        raise SourceTrouble(NoReplica(text, art_id=art_id), lost=False) from error


def _difference(seen: Sequence[int | str], now: os.stat_result) -> str:
    if not stat.S_ISREG(now.st_mode):
        return "is no regular file any more"
    found = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
    names = ("device", "inode", "size", "mtime_ns")
    for name, was, is_now in zip(names, seen, found, strict=True):
        if was != is_now:
            return f"has {name} {is_now}, and had {was}"
    return ""
