"""What a reader can and cannot do to the pool's memory through the descriptors it was given."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast_native import Pool

MIB = 1 << 20


@pytest.fixture
def extent() -> Iterator[int]:
    """A descriptor of the pool's first extent, opened as another process of the same user could at best."""
    pool = Pool(capacity_bytes=16 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)
    segment = pool.reserve(4 * MIB)
    pool.write(segment, 0, b"sealed")
    pool.seal(segment)
    memfd = next(fd for fd in Path("/proc/self/fd").iterdir() if fd.exists() and "/memfd:" in os.readlink(fd))
    opened = os.open(memfd, os.O_RDWR)
    yield opened
    os.close(opened)
    assert pool.read(segment, 0, 6) == b"sealed"
    pool.stop()


def test_nobody_else_maps_the_pool_for_shared_writing(extent: int) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(extent, 2 * MIB, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def test_nobody_else_writes_cuts_or_grows_the_pool_through_a_descriptor(extent: int) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(extent, b"other", 0)
    for size in (0, 64 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(extent, size)


def test_a_private_map_is_written_without_touching_the_pool(extent: int) -> None:
    private = mmap.mmap(extent, 2 * MIB, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    private[:6] = b"others"
    assert private[:6] == b"others"
    private.close()
