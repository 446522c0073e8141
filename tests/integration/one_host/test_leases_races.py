"""Leases under races: owners that take their memory back at any moment, and many of them at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors.torch
import torch

import tensorcast as tc
from tensorcast.errors import LeaseLost, NoReplica, NotFound
from tests.support.cluster import Cluster
from tests.support.slack import SLACK_S

ROUNDS = 24
ELEMENTS = 4 << 20
GONE = (LeaseLost, NotFound, NoReplica)


def wait_forgotten(rt: tc.Runtime, prefix: str) -> None:
    """The catalog hears of an end a moment after the storage, which new reads ask first."""
    end = time.monotonic() + SLACK_S
    while left := rt.list_artifacts(prefix):
        assert time.monotonic() < end, [record.art_id for record in left]
        time.sleep(0.02)  # polls another process; bounded by the line above


# The memory is filled anew as soon as release() has returned: it is the caller's again.
TAKER = """
import json, sys, threading, torch, tensorcast as tc
torch.set_num_threads(1)
rounds, elements = json.loads(sys.argv[1])
given = torch.empty(elements, dtype=torch.int32)
with tc.connect() as rt:
    for n in range(rounds):
        given.fill_(n)
        lease = rt.register(given, f"ra/{n}")
        print(n, flush=True)
        if n % 3 == 1:
            threading.Event().wait(n / 1000)
        elif n % 3 == 2:
            sys.stdin.readline()
        lease.release()
        given.fill_(-1)
"""


def test_memory_that_is_taken_back_in_the_middle_of_a_read_is_never_read_wrong(
    rt: tc.Runtime, cluster: Cluster
) -> None:
    taker = subprocess.Popen(
        [sys.executable, "-c", TAKER, json.dumps([ROUNDS, ELEMENTS])],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert taker.stdin is not None and taker.stdout is not None
    whole = lost = 0
    try:
        for n in range(ROUNDS):
            assert int(taker.stdout.readline()) == n
            try:
                found = rt.artifact(f"ra/{n}").tensor()
                assert torch.equal(found, torch.full((ELEMENTS,), n, dtype=torch.int32)), f"wrong bytes in round {n}"
                whole += 1
            except GONE:
                lost += 1
            if n % 3 == 2:
                taker.stdin.write("go\n")
                taker.stdin.flush()
        assert taker.wait(60) == 0
    finally:
        taker.kill()
        taker.wait()
        taker.stdin.close()
        taker.stdout.close()
    assert whole >= ROUNDS // 3, "rounds in which the owner waits for the reader must all succeed"
    wait_forgotten(rt, "ra/")


def test_many_threads_register_read_and_release_at_once(rt: tc.Runtime) -> None:
    def work(number: int) -> None:
        for turn in range(8):
            wanted = torch.full((100_000,), number * 100 + turn)
            with rt.register(wanted, f"rb/{number}/{turn}", ttl_s=1 + turn):
                assert torch.equal(rt.artifact(f"rb/{number}/{turn}").tensor(), wanted)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    wait_forgotten(rt, "rb/")


def test_leases_give_back_descriptors_and_memory(rt: tc.Runtime, cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": torch.arange(100_000)}, path)
    storage = cluster.pid("storage-a")
    rt.register(path, "rc/first").release()

    def held() -> tuple[int, int, int, int]:
        stats = cluster.storage_stats()
        fds = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{storage}/fd"))
        return *fds, stats.leases, stats.pool["used_bytes"]

    before = held()
    for n in range(50):
        with rt.register(path, f"rc/{n}"):
            if n % 10 == 0:
                rt.artifact(f"rc/{n}").tensor()
    end = time.monotonic() + SLACK_S
    # At most: sessions of tests before this one may still be closing.
    while any(now > then for now, then in zip(held(), before, strict=True)):
        assert time.monotonic() < end, (held(), before)
        time.sleep(0.02)  # polls another process; bounded by the line above


def test_readers_that_come_first_all_at_once_are_served_by_one_read(rt: tc.Runtime, cluster: Cluster) -> None:
    given = torch.arange(ELEMENTS)
    with rt.register(given, "rd/shared"), ThreadPoolExecutor(8) as pool:
        before = cluster.storage_stats().loads
        for found in pool.map(lambda _: rt.artifact("rd/shared").tensor(), range(8)):
            assert torch.equal(found, given)
        assert cluster.storage_stats().loads == before + 1


def test_a_released_id_is_free_at_once(rt: tc.Runtime) -> None:
    for n in range(12):
        rt.register(torch.full((1000,), n), "re/free").release()
        if n % 2:
            rt.put({"w": torch.full((1000,), -n)}, "re/free")
            rt.delete("re/free")
    with rt.register(torch.ones(1000), "re/free"):
        assert torch.equal(rt.artifact("re/free").tensor(), torch.ones(1000))
