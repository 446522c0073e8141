"""The pool from Python: what a storage does with it, and how misuse shows."""

import gc
import os

import pytest

from tensorcast_native import Pool, PoolFull

MIB = 1 << 20
STATS = {
    "capacity_bytes",
    "grown_bytes",
    "faulted_bytes",
    "free_bytes",
    "longest_run_bytes",
    "reserved_bytes",
    "used_bytes",
    "pinned_bytes",
    "dropped_pinned_bytes",
    "rounding_bytes",
    "slot_bytes",
    "segments",
    "pins",
    "huge_pages",
}


def small_pool(capacity_mib: int = 32) -> Pool:
    return Pool(capacity_bytes=capacity_mib * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=0)


def test_written_bytes_are_read_back_across_ranges_and_slots() -> None:
    pool = small_pool()
    for nbytes in (1, 4096, 200_000, 9 * MIB + 7):
        content = os.urandom(nbytes)
        segment = pool.reserve(nbytes)
        pool.write(segment, 0, content[: nbytes // 2])
        pool.write(segment, nbytes // 2, content[nbytes // 2 :])
        pool.seal(segment)
        assert pool.read(segment, 0, nbytes) == content
        assert pool.read(segment, nbytes - 1, 1) == content[-1:]
        assert pool.read(segment, nbytes, 0) == b""
        pool.drop(segment)
    assert pool.stats()["free_bytes"] == 32 * MIB


def test_a_sealed_segment_is_never_written() -> None:
    pool = small_pool()
    segment = pool.reserve(10)
    pool.seal(segment)
    with pytest.raises(ValueError, match="segment 1 is sealed"):
        pool.write(segment, 0, b"x")


def test_offsets_outside_a_segment_are_refused_before_memory_is_taken() -> None:
    pool = small_pool()
    segment = pool.reserve(100)
    with pytest.raises(ValueError, match="outside a segment of 100"):
        pool.write(segment, 99, b"xy")
    for offset, nbytes in ((0, 101), (101, 0), (2**64 - 1, 2), (1, 2**63)):
        with pytest.raises(ValueError, match="outside a segment of 100"):
            pool.read(segment, offset, nbytes)


def test_unknown_and_freed_segments_are_value_errors() -> None:
    pool = small_pool()
    segment = pool.reserve(100)
    pool.drop(segment)
    with pytest.raises(ValueError, match="unknown or freed"):
        pool.drop(segment)
    with pytest.raises(ValueError, match="unknown or freed"):
        pool.seal(12345)
    assert pool.reserve(100) != segment


def test_a_full_pool_tells_what_is_free_and_the_longest_run() -> None:
    pool = small_pool(8)
    segments = [pool.reserve(2 * MIB) for _ in range(4)]
    pool.drop(segments[0])
    pool.drop(segments[2])
    with pytest.raises(PoolFull) as caught:
        pool.reserve(6 * MIB)
    text, free_bytes, longest_run_bytes = caught.value.args
    assert "capacity 8388608" in text
    assert (free_bytes, longest_run_bytes) == (4 * MIB, 2 * MIB)


def test_a_host_without_room_refuses_growth_and_names_the_figures() -> None:
    with open("/proc/meminfo") as meminfo:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in meminfo}
    # Leaves to others more than is available now, but less than the host has: only growth can find out.
    reserve_bytes = (kib["MemTotal"] << 10) - 16 * MIB
    pool = Pool(capacity_bytes=8 * MIB, prefault_ahead_bytes=0, memory_reserve_bytes=reserve_bytes)
    with pytest.raises(PoolFull, match=f"{reserve_bytes} .memory_reserve_bytes. are left to others"):
        pool.reserve(8 * MIB)
    assert pool.stats()["free_bytes"] == 8 * MIB


def test_an_impossible_capacity_is_a_value_error_with_the_figures() -> None:
    with pytest.raises(ValueError, match="capacity_bytes 1125899906842624 does not fit"):
        Pool(capacity_bytes=1 << 50)
    with pytest.raises(ValueError, match="below one block"):
        Pool(capacity_bytes=1)


def test_statistics_balance_and_have_the_documented_names() -> None:
    pool = small_pool()
    kept = pool.reserve(3 * MIB)
    pool.seal(kept)
    pool.reserve(5000)
    pool.reserve(0)
    stats = pool.stats()
    assert set(stats) == STATS
    assert stats["used_bytes"] == 3 * MIB
    assert stats["reserved_bytes"] == 5000
    assert stats["slot_bytes"] == 2 * MIB
    assert stats["segments"] == 3
    assert stats["capacity_bytes"] == sum(
        stats[name] for name in ("free_bytes", "reserved_bytes", "used_bytes", "dropped_pinned_bytes", "rounding_bytes")
    )


def test_a_pool_gives_its_descriptors_back() -> None:
    gc.collect()  # pools of earlier tests, whose caught errors still hold them
    before = len(os.listdir("/proc/self/fd"))
    pool = small_pool()
    pool.reserve(32 * MIB)
    assert len(os.listdir("/proc/self/fd")) > before
    pool.stop()
    pool.stop()
    del pool
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
