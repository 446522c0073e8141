"""An open checkpoint file with the identity it had when it was opened.

Opened read-only and never through a terminal or pipe; the path kept is the resolved one, so that a cache of symbolic
links and the files behind it are one thing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from tensorcast.shortage import shortage
from tensorcast_bus.errors import BadCheckpoint
from tensorcast_bus.manifest import SourceFile


class OpenedFile:
    """`fd` is owned and closed with close(). `shown` is the path as the caller gave it, for error texts."""

    def __init__(self, path: str) -> None:
        """Raises BadCheckpoint when there is no readable regular file at `path`, Unavailable without a descriptor."""
        self.shown = path
        self.fd = -1
        resolved = path
        try:
            resolved = os.path.realpath(path)
            resolved.encode()
            # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
            self.fd = os.open(resolved, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise shortage(error, f"opening {path}") or _cannot_open(path, resolved, error) from error
        seen = os.fstat(self.fd)
        if not stat.S_ISREG(seen.st_mode):
            self.close()
            raise BadCheckpoint(
                f"{path} is not a regular file; give a safetensors file, a directory of them or an index", path=path
            )
        self.source = identity(resolved, seen)

    def read(self, nbytes: int, offset: int, look: Callable[[], object] = lambda: None) -> bytes:
        """Exactly what the file has of that range, which may be less. `look` is called before each part."""
        parts: list[bytes] = []
        while nbytes:
            look()
            try:
                part = os.pread(self.fd, min(nbytes, 8 << 20), offset)
            except OSError as error:
                raise BadCheckpoint(
                    f"{self.shown}: cannot be read at byte {offset}: {error}", path=self.shown
                ) from error
            if not part:
                break
            parts.append(part)
            nbytes -= len(part)
            offset += len(part)
        return b"".join(parts)

    def check_unchanged(self) -> None:
        """Raises BadCheckpoint when the file is not what it was when it was opened."""
        if identity(self.source.path, os.fstat(self.fd)) != self.source:
            raise changed(self.shown)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def identity(path: str, seen: os.stat_result) -> SourceFile:
    return SourceFile(path, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


def changed(path: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"{path} changed: it was written to or replaced while it was read; put it again once its writer is done",
        path=path,
    )


def whose(path: str, error: OSError | ValueError) -> str:
    """For a refused access: whose the file is, or the first folder on the way to it that lets nobody like us in."""
    if not isinstance(error, PermissionError):
        return ""
    place = os.path.abspath(path)
    while not os.access(place, os.F_OK) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        seen = os.stat(place)
    except OSError:
        return ""
    mode = stat.S_IMODE(seen.st_mode)
    return f": {place} belongs to uid {seen.st_uid} with mode {mode:04o}, you are uid {os.geteuid()}"


def _cannot_open(path: str, resolved: str, error: OSError | ValueError) -> BadCheckpoint:
    if isinstance(error, UnicodeError):
        return BadCheckpoint(
            f"{path!r} (it resolves to {resolved!r}) is not UTF-8, which a manifest cannot name; rename the file or "
            "its folder, or put a link's target under another name",
            path=path,
        )
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        target = os.readlink(path)
        return BadCheckpoint(
            f"{path} is a dangling link: its target {target} is not there; an incomplete download? fetch it again",
            path=path,
            target=target,
        )
    reason = error.strerror if isinstance(error, OSError) else str(error)
    if isinstance(error, FileNotFoundError) and not os.path.isabs(resolved):
        reason = "this process's working folder was deleted"
    return BadCheckpoint(
        f"{path} cannot be opened: {reason} (it resolves to {resolved}){whose(resolved, error)}; check path and rights",
        path=path,
    )
