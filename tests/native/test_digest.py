"""Digests from Python: golden values, buffers of every kind, and digests of files."""

import array
import os
import struct
from pathlib import Path

import pytest

from tensorcast_native import digest_file, tensor_digest, xxh3_128

CHUNK_BYTES = 4 << 20
File = tuple[int, int, int, int, int]


def identity(fd: int) -> File:
    stat = os.fstat(fd)
    return fd, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def row(offset: int, nbytes: int) -> bytes:
    return struct.pack("<IIQQ", 0, 0, offset, nbytes)


def by_the_rule(content: bytes) -> bytes:
    """The tensor rule, written down a second time."""
    if len(content) <= CHUNK_BYTES:
        return xxh3_128(content)
    chunks = [xxh3_128(content[at : at + CHUNK_BYTES]) for at in range(0, len(content), CHUNK_BYTES)]
    return xxh3_128(b"".join(chunks), seed=1)


def test_golden_values_of_xxh3_128() -> None:
    assert xxh3_128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert xxh3_128(b"a").hex() == "a96faf705af16834e6c632b61e964e1f"
    assert xxh3_128(b"", 1).hex() == "d9265cc53bb2b9ae6131b78f753823cd"


@pytest.mark.parametrize("nbytes", [0, 1, 240, 241, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17])
def test_a_tensor_is_digested_by_the_rule(nbytes: int) -> None:
    content = os.urandom(nbytes)
    assert tensor_digest(content) == by_the_rule(content)


def test_every_contiguous_buffer_counts_by_its_bytes() -> None:
    numbers = array.array("I", range(1000))
    expected = xxh3_128(numbers.tobytes())
    for buffer in (numbers, memoryview(numbers), bytearray(numbers.tobytes())):
        assert xxh3_128(buffer) == expected
        assert tensor_digest(buffer) == expected


def test_what_is_no_contiguous_buffer_is_refused() -> None:
    with pytest.raises(TypeError):
        tensor_digest("text")  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        tensor_digest(memoryview(b"0123456789")[::2])


def test_parts_of_a_file_have_the_digests_of_their_bytes(tmp_path: Path) -> None:
    content = os.urandom(2 * CHUNK_BYTES + 333)
    path = tmp_path / "file"
    path.write_bytes(content)
    parts = [(0, len(content)), (7, 100), (0, 0), (CHUNK_BYTES - 5, CHUNK_BYTES), (len(content) - 1, 1)]
    with path.open("rb") as file:
        done = digest_file(
            identity(file.fileno()), b"".join(row(*part) for part in parts), threads=2, deadline_ms=60_000
        )
    assert (done.status, done.detail, done.error) == ("ok", "", 0)
    digests = [done.digests[at : at + 16] for at in range(0, len(done.digests), 16)]
    assert digests == [by_the_rule(content[offset : offset + nbytes]) for offset, nbytes in parts]


def test_a_changed_file_and_a_bad_row_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with path.open("rb") as file:
        seen = identity(file.fileno())
        outside = digest_file(seen, row(0, 7), deadline_ms=60_000)
        assert outside.status == "bad_plan"
        path.write_bytes(b"other bytes")
        changed = digest_file(seen, row(0, 6), deadline_ms=60_000)
        assert changed.status == "source_changed"
        assert "size was 6, is 11" in changed.detail
        assert changed.digests == b""
        late = digest_file(identity(file.fileno()), row(0, 6), deadline_ms=0)
        assert late.status == "deadline"
    with pytest.raises(ValueError, match="no multiple of 24"):
        digest_file(seen, b"odd", deadline_ms=1)
