"""Sidecars: one small file for each artifact that files can give back, so that it outlives this process.

``<blake2b of the id>.manifest``: a checked head (id, digest, files) that a start reads alone, and the manifest behind
it. Those of artifacts that lie in source files of others are in the storage's own folder, those of artifacts that were
written out in its disk folder: an artifact may have both. Written under a temporary name, synced, renamed, before the
commit; a torn or foreign one is skipped with a word in the log and never trusted. One writer a folder: calls must come
from one thread at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tensorcast_bus.manifest import Manifest, decode_manifest
from tensorcast_native import xxh3_128
from tensorcast_services.storage.core.events import Identity

SUFFIX = ".manifest"
_MAGIC = b"TCSIDE01"
_HEAD = struct.Struct("<8sQQ16s16s")
_HEAD_BYTES_MAX = 16 << 20
_PART = re.compile(r"[0-9a-f]{32}\.part")


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """What a start needs of a sidecar. `files` are sources of others; `disk` are (key, bytes) of our own."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    disk: tuple[tuple[str, int], ...] = ()


class TornSidecar(Exception):
    """The file is not a whole sidecar of the id it is named after."""


class Sidecars:
    """The sidecars of one storage in `folder`, which is made with mode 0700."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, art_id: str) -> Path:
        return self._folder / (hashlib.blake2b(art_id.encode(), digest_size=16).hexdigest() + SUFFIX)

    def write(self, summary: Summary, manifest: bytes) -> None:
        """On disk when it returns. OSError."""
        head = msgspec.msgpack.encode(summary)
        frame = _HEAD.pack(_MAGIC, len(head), len(manifest), xxh3_128(head), xxh3_128(manifest))
        final = self.path(summary.art_id)
        part = final.with_suffix(".part")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with open(fd, "wb", closefd=True) as out:
                out.writelines((frame, head, manifest))
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, final)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def has(self, art_id: str) -> bool:
        return self.path(art_id).exists()

    def remove(self, art_id: str) -> None:
        """Nothing when there is none. OSError."""
        try:
            self.path(art_id).unlink()
        except FileNotFoundError:
            return
        self._sync_folder()

    def read(self, art_id: str) -> tuple[Summary, bytes, Manifest]:
        """All of one, checked. TornSidecar or OSError."""
        path = self.path(art_id)
        blob = path.read_bytes()
        summary, rest, digest = _parse(blob, path=path, size=len(blob))
        if xxh3_128(rest) != digest:
            raise TornSidecar(f"{path}: its manifest fails its checksum")
        try:
            manifest = decode_manifest(rest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise TornSidecar(f"{path}: {error}") from error
        if manifest.art_id != art_id or summary.art_id != art_id:
            raise TornSidecar(f"{path} belongs to {summary.art_id!r}")
        return summary, rest, manifest

    def scan(self, skipped: Callable[[str], None]) -> Iterator[Summary]:
        """Every whole sidecar's head; `skipped` is told about the others, which stay on disk for whoever wants to look.
        Leftovers of interrupted writes go."""
        for path in sorted(self._folder.iterdir()):
            if _PART.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif path.suffix == SUFFIX:
                try:
                    yield self._head(path)
                except (TornSidecar, OSError) as error:
                    skipped(str(error))

    def _head(self, path: Path) -> Summary:
        with path.open("rb") as file:
            frame = file.read(_HEAD.size)
            length = _HEAD.unpack(frame)[1] if len(frame) == _HEAD.size else 0
            blob = frame + file.read(min(length, _HEAD_BYTES_MAX))
            summary, _, _ = _parse(blob, path=path, size=os.fstat(file.fileno()).st_size)
        if self.path(summary.art_id) != path:
            raise TornSidecar(f"{path} belongs to {summary.art_id!r} and not under this name")
        return summary

    def _sync_folder(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _parse(blob: bytes, *, path: Path, size: int) -> tuple[Summary, bytes, bytes]:
    """(head, what follows it in `blob`, the manifest's checksum)."""
    if len(blob) < _HEAD.size:
        raise TornSidecar(f"{path}: {len(blob)} bytes are no sidecar")
    magic, head_bytes, manifest_bytes, head_digest, manifest_digest = _HEAD.unpack_from(blob)
    if magic != _MAGIC:
        raise TornSidecar(f"{path} does not begin as a sidecar of this version")
    if head_bytes > _HEAD_BYTES_MAX or size != _HEAD.size + head_bytes + manifest_bytes:
        raise TornSidecar(f"{path}: {size} bytes, and its head speaks of {_HEAD.size + head_bytes + manifest_bytes}")
    head = blob[_HEAD.size : _HEAD.size + head_bytes]
    if xxh3_128(head) != head_digest:
        raise TornSidecar(f"{path}: its head fails its checksum")
    try:
        summary = msgspec.msgpack.decode(head, type=Summary)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TornSidecar(f"{path}: {error}") from error
    return summary, blob[_HEAD.size + head_bytes :], manifest_digest
