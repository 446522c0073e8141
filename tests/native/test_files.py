"""Files as sources: what identity proves, and the read lease where it proves nothing, through the real socket."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorcast_native import Client, LocalStatus
from tests.native.local_storage import Storage, pattern

MIB = 1 << 20
PIECE = struct.Struct("<IIQQQII")
ROW = struct.Struct("<IIQQ")
OLD_NS = 1_600_000_000 * 10**9


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.write_bytes(pattern(2 * MIB, 1))
    return made


def put(storage: Storage, path: Path, *, meanwhile: Callable[[], None] | None = None) -> int:
    """The status of a put of the whole file; `meanwhile` happens after its identity was taken."""
    client = Client(storage.path, deadline_ms=5_000)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        seen = os.fstat(fd)
        identity = (fd, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if meanwhile is not None:
            meanwhile()
        return client.put(
            "file",
            draft=b"",
            segment_bytes=[seen.st_size],
            pieces=PIECE.pack(0, 3, 0, seen.st_size, 0, 0, 0),
            rows=ROW.pack(0, 0, 0, seen.st_size),
            files=[identity],
            deadline_ms=10_000,
        )[0]
    finally:
        os.close(fd)
        client.close()


def test_a_file_that_is_as_it_was_is_stored(storage: Storage, file: Path) -> None:
    assert put(storage, file) == LocalStatus.OK


def test_a_file_rewritten_to_the_same_size_is_refused(storage: Storage, file: Path) -> None:
    def rewrite() -> None:
        file.write_bytes(pattern(2 * MIB, 2))
        os.utime(file, ns=(OLD_NS, OLD_NS))

    assert put(storage, file, meanwhile=rewrite) == LocalStatus.FAILED


def test_a_file_that_is_open_for_writing_and_was_lately_written_is_refused(storage: Storage, file: Path) -> None:
    """A write sets the time when it begins: until its writer is done, the same identity says nothing of the bytes."""
    with file.open("r+b"):
        assert put(storage, file) == LocalStatus.FAILED
    assert put(storage, file) == LocalStatus.OK


def test_a_file_that_is_open_for_writing_but_old_is_stored(storage: Storage, file: Path) -> None:
    os.utime(file, ns=(OLD_NS, OLD_NS))
    with file.open("r+b"):
        assert put(storage, file) == LocalStatus.OK
