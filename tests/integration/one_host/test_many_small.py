"""Ten thousand artifacts of one 4 KB tensor: all there, all right, and what each costs in memory is bounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster

ARTIFACTS = 10_000
TENSOR_BYTES = 4_096
CALLERS = 8
SAMPLE = 500
# What one artifact may cost beside its bytes. The storage keeps its row, its segments and its place in the line; the
# global store its row and its replica; the pool gives two slots: 8 KiB for tensor and header, 4 KiB for the manifest.
STORAGE_ANON_BYTES_MAX = 5 << 10
GLOBAL_STORE_ANON_BYTES_MAX = 5 << 10
POOL_BYTES_MAX = 13 << 10
# Deleted again, what is left of an artifact: the memory that the allocators keep for the next ones.
LEFT_POOL_BYTES_MAX = 64


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"storage.host_bytes_max": "256MiB"}
    with running_cluster(tmp_path_factory.mktemp("small"), name="small", settings=settings) as started:
        yield started


def anon_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no RssAnon for {pid}")


def tensor(number: int) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.int32]]:
    return numpy.full(TENSOR_BYTES // 4, number, dtype=numpy.int32)


def put_all(cluster: Cluster, numbers: range) -> None:
    with cluster.connect() as rt, ThreadPoolExecutor(CALLERS) as callers:
        outcomes = list(callers.map(lambda n: rt.put(tensor(n), f"small/{n:05}").outcome, numbers))
    assert set(outcomes) == {"stored"}


def taken_bytes(cluster: Cluster) -> int:
    """Of the pool, with what rounding to slots and blocks costs."""
    pool = cluster.storage_stats().pool
    return pool["capacity_bytes"] - pool["free_bytes"]


def test_ten_thousand_small_artifacts_are_right_and_cheap(small: Cluster) -> None:
    # The first ones pay for what every process sets up once.
    put_all(small, range(ARTIFACTS, ARTIFACTS + 200))
    pids = {name: small.pid(name) for name in ("storage-a", "global_store")}
    before = {name: anon_bytes(pid) for name, pid in pids.items()}
    pool_before = taken_bytes(small)
    put_all(small, range(ARTIFACTS))
    grown = {name: (anon_bytes(pid) - before[name]) / ARTIFACTS for name, pid in pids.items()}
    pool = (taken_bytes(small) - pool_before) / ARTIFACTS
    with small.connect() as rt:
        check_all_listed(rt)
        for number in random.Random(3).sample(range(ARTIFACTS), SAMPLE):
            found = rt.artifact(f"small/{number:05}").tensor()
            assert found.numpy().tobytes() == tensor(number).tobytes(), number
    assert small.storage_stats().artifacts == ARTIFACTS + 200
    print(f"bytes an artifact: {grown}, pool {pool:.0f}")
    assert pool <= POOL_BYTES_MAX
    assert grown["storage-a"] <= STORAGE_ANON_BYTES_MAX
    assert grown["global_store"] <= GLOBAL_STORE_ANON_BYTES_MAX


def check_all_listed(rt: tc.Runtime) -> None:
    listed = rt.list_artifacts("small/")
    assert [r.art_id for r in listed] == [f"small/{n:05}" for n in range(ARTIFACTS + 200)]
    assert {r.nbytes for r in listed} == {TENSOR_BYTES} and {r.tensors for r in listed} == {1}


def test_deleted_again_they_give_their_room_back_to_large_ones(small: Cluster) -> None:
    with small.connect() as rt:
        ids = [r.art_id for r in rt.list_artifacts("small/")]
        with ThreadPoolExecutor(CALLERS) as callers:
            list(callers.map(rt.delete, ids))
        assert rt.list_artifacts("small/") == []
        stats = small.storage_stats()
        assert stats.artifacts == 0
        assert stats.pool["used_bytes"] <= len(ids) * LEFT_POOL_BYTES_MAX
        most = numpy.ones(220 << 20, dtype=numpy.uint8)
        assert rt.put(most, "small/most").outcome == "stored"
