"""The disk tier's folder: sealed segments as ``<key>.safetensors``, byte for byte, and the sidecars that name them.

Called by disk.py on its one thread; `open_all` on threads for reading. Order of a write: data under a temporary name,
synced, renamed; then the sidecar the same way, and the folder is synced. A data file that no sidecar names is nobody's:
it goes with the last one that named it, or at the next start. Only names that a storage makes are ever removed. Our own
files are known by key and size, and by their digests when they are read: not by inode or time, so that a folder that
was moved or came back from a backup is found again.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tensorcast_bus.errors import BadCheckpoint, CapacityExceeded, NoReplica
from tensorcast_services.storage.reading import FileHandle
from tensorcast_services.storage.sidecars import Sidecars, Summary
from tensorcast_services.storage.sources import OPEN_FLAGS, SourceTrouble

CHUNK_BYTES = 32 << 20
SUFFIX = ".safetensors"
_DATA = re.compile(r"([0-9a-f]{32})\.safetensors")
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Part(msgspec.Struct, frozen=True):
    """One segment of the pool, to be written as the file of its key."""

    key: str
    nbytes: int
    segment: int


class WriteCancelled(Exception):
    """Nothing is left of the write."""


class DiskFolder:
    """`bytes_max` bounds all data files together."""

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self.sidecars = Sidecars(folder)
        self.folder = folder
        self.bytes_max = bytes_max
        self.bytes = 0
        self._sizes: dict[str, int] = {}
        self._users: dict[str, set[str]] = {}  # key -> ids whose sidecars name it
        self._keys: dict[str, tuple[str, ...]] = {}
        self._distrusted: set[str] = set()

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def scan(self, skipped: Callable[[str], None]) -> list[Summary]:
        """What is whole; sweeps away what was half written and what no sidecar names. `skipped` hears about the rest:
        an artifact with a file that is missing or has another size is none, and its sidecar goes."""
        unread: list[str] = []
        heads = list(self.sidecars.scan(unread.append))
        sizes = data_files(self.folder)
        whole: list[Summary] = []
        for why in unread:
            skipped(why)
        for head in heads:
            if damage := self._damage(head, sizes):
                skipped(f"{head.art_id!r} on disk is lost: {damage}; put it again")
                self.sidecars.remove(head.art_id)
            else:
                whole.append(head)
                self._take(head)
        self._sizes = {key: size for key, size in sizes.items() if key in self._users or unread}
        self.bytes = sum(self._sizes.values())
        if not unread:  # one that cannot be read may name any of them
            for key in sizes.keys() - self._users.keys():
                self.path(key).unlink(missing_ok=True)
        return whole

    def write(
        self,
        summary: Summary,
        manifest: bytes,
        parts: Sequence[Part],
        *,
        pour: Callable[[Part, int, int, int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        """On disk, whole and synced, when it returns; else nothing new is there. `pour` writes (part, fd, offset,
        nbytes). CapacityExceeded, WriteCancelled, OSError."""
        missing = list({part.key: part for part in parts if not self._is_good(part)}.values())
        fresh = [part for part in missing if part.key not in self._users]
        try:
            self._check_room(summary.art_id, sum(part.nbytes for part in fresh))
            for part in missing:
                self._write_data(part, pour, cancelled)
            if cancelled():
                raise WriteCancelled
            self.sidecars.write(summary, manifest)
        except BaseException as error:
            if summary.art_id not in self._keys:
                self.sidecars.path(summary.art_id).unlink(missing_ok=True)
            for part in fresh:
                self._remove_data(part.key)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise CapacityExceeded(
                    f"the disk under {self.folder} is full ({error.strerror}), and {summary.art_id!r} was not written "
                    "out: make room there, or set storage.disk_path to a larger disk",
                    art_id=summary.art_id,
                ) from error
            raise
        before = self._keys.get(summary.art_id, ())
        self._take(summary)
        self._release(summary.art_id, set(before) - {key for key, _ in summary.disk})

    def distrust(self, key: str) -> None:
        """Its file has other bytes than were written: the next artifact that is written with it writes it anew."""
        self._distrusted.add(key)

    def remove(self, art_id: str) -> None:
        """The sidecar, and then the data that no other one names. Nothing when there is none. OSError."""
        self.sidecars.remove(art_id)
        self._release(art_id, set(self._keys.pop(art_id, ())))

    def open_all(self, art_id: str, wanted: Sequence[tuple[str, int]]) -> list[FileHandle]:
        """Open files of (key, bytes), in order. SourceTrouble naming the file; nothing stays open then."""
        files: list[FileHandle] = []
        try:
            for key, nbytes in wanted:
                files.append(self._open(art_id, key, nbytes))
        except BaseException:
            for fd, *_ in files:
                os.close(fd)
            raise
        return files

    def _open(self, art_id: str, key: str, nbytes: int) -> FileHandle:
        path = self.path(key)
        try:
            fd = os.open(path, OPEN_FLAGS)
        except OSError as error:
            text = f"{path}, the copy of {art_id!r} on disk, cannot be opened: {error.strerror}"
            lost = error.errno in (errno.ENOENT, errno.ELOOP)
            text += "; no other replica is here: put it again" if lost else "; ask again once it can be read"
            raise SourceTrouble(NoReplica(text, art_id=art_id, path=str(path)), lost=lost) from error
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode) or now.st_size != nbytes:
            os.close(fd)
            what = f"{path} has {now.st_size} bytes, and {nbytes} were written"
            raise SourceTrouble(damaged(art_id, what), lost=True)
        return fd, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns

    def _damage(self, head: Summary, sizes: dict[str, int]) -> str:
        for key, nbytes in head.disk:
            if sizes.get(key) != nbytes:
                found = f"has {sizes[key]} bytes" if key in sizes else "is missing"
                return f"{self.path(key)} {found}, and {nbytes} were written"
        return ""

    def _is_good(self, part: Part) -> bool:
        """Whether its file is there already, as far as a look at it tells."""
        if part.key not in self._users or part.key in self._distrusted:
            return False
        try:
            found = os.lstat(self.path(part.key))
        except FileNotFoundError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == part.nbytes

    def _check_room(self, art_id: str, need: int) -> None:
        left = self.bytes_max - self.bytes
        if need > left:
            raise CapacityExceeded(
                f"{art_id!r} needs {need} bytes on disk, and the disk tier in {self.folder} is full: {max(left, 0)} of "
                f"{self.bytes_max} are left; delete artifacts, or raise storage.disk_bytes_max",
                art_id=art_id,
                need_bytes=need,
                free_bytes=max(left, 0),
            )
        there = os.statvfs(self.folder)
        if need > there.f_bavail * there.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))

    def _write_data(
        self, part: Part, pour: Callable[[Part, int, int, int], None], cancelled: Callable[[], bool]
    ) -> None:
        final = self.path(part.key)
        temporary = final.with_suffix(".part")
        fd = os.open(temporary, _WRITE_FLAGS, 0o600)
        try:
            for offset in range(0, part.nbytes, CHUNK_BYTES):
                if cancelled():
                    raise WriteCancelled
                pour(part, fd, offset, min(CHUNK_BYTES, part.nbytes - offset))
            os.fdatasync(fd)
            # What was spilled is in memory once already.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.replace(temporary, final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        self.bytes += part.nbytes - self._sizes.get(part.key, 0)
        self._sizes[part.key] = part.nbytes
        self._distrusted.discard(part.key)

    def _take(self, summary: Summary) -> None:
        self._keys[summary.art_id] = tuple(key for key, _ in summary.disk)
        for key, _ in summary.disk:
            self._users.setdefault(key, set()).add(summary.art_id)

    def _release(self, art_id: str, keys: set[str]) -> None:
        for key in keys:
            users = self._users.get(key, set())
            users.discard(art_id)
            if not users:
                self._users.pop(key, None)
                self._remove_data(key)

    def _remove_data(self, key: str) -> None:
        self.bytes -= self._sizes.pop(key, 0)
        self._distrusted.discard(key)
        self.path(key).unlink(missing_ok=True)


def data_files(folder: Path) -> dict[str, int]:
    """Bytes by key of what storages wrote there."""
    found = ((_DATA.fullmatch(path.name), path) for path in folder.iterdir())
    return {name[1]: path.stat().st_size for name, path in found if name is not None}


def damaged(art_id: str, what: str) -> BadCheckpoint:
    return BadCheckpoint(
        f"damaged: the copy of {art_id!r} on disk is not what was written: {what}; it is used no more: put it again",
        art_id=art_id,
    )
