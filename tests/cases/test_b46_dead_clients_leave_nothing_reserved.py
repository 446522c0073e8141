"""B46: what a client reserved and never finished is free again once it is dead, and is shown as reserved until then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

import tensorcast as tc
from tensorcast_bus.notes import AskProgress, Progress
from tensorcast_native import Client, LocalStatus
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S

CAPACITY = 1 << 30
TENTH = CAPACITY // 10
CLIENTS = 20
AT_ONCE = 9
HOLD_TRIES = 20
# How soon the bytes of a dead client are free again, as the documentation of lifetimes says.
RELEASE_S_MAX = 1.0 + SLACK_S
WAIT_S_MAX = 60.0

# One put of a tenth of the pool. `socket` has it streamed, as between containers, where the storage cannot read along;
# what a streaming client has not written yet is not there.
PUTTER = """
import sys, functools, numpy
import tensorcast as tc, tensorcast.local
if sys.argv[2] == "socket":
    tensorcast.local.Client = functools.partial(tensorcast.local.Client, vm_read=False)
with tc.connect() as rt:
    x = numpy.zeros(int(sys.argv[3]), dtype=numpy.uint8)
    print("ready", flush=True)
    sys.stdin.readline()
    rt.put(x, sys.argv[1])
    print("done", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"storage.host_bytes_max": str(CAPACITY), "storage.prefault_ahead_bytes": "1GiB"}
    with running_cluster(tmp_path_factory.mktemp("b46"), name="b46", settings=settings) as started:
        yield started


def putter(cluster: Cluster, art_id: str, path: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PUTTER, art_id, path, str(TENTH)],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def go(child: subprocess.Popen[str]) -> None:
    """Lets it put; it has been starting all the while."""
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("go\n")
    child.stdin.flush()


def bury(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        stream.close()


class Watch:
    """The storage's own figures, over a connection that stays open: the moments looked for are short."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster.state().nodes[0].socket, deadline_ms=10_000)

    def done_of(self, art_id: str) -> tuple[int, int]:
        status, body = self.client.call(msgspec.msgpack.encode(AskProgress(art_id)), deadline_ms=10_000)
        assert status == LocalStatus.OK
        seen = msgspec.msgpack.decode(body, type=Progress)
        return seen.bytes_done, seen.bytes_total

    def pool(self) -> dict[str, int]:
        return self.cluster.storage_stats().pool


@contextmanager
def watching(cluster: Cluster) -> Iterator[Watch]:
    watch = Watch(cluster)
    try:
        yield watch
    finally:
        watch.client.close()


def held(
    cluster: Cluster, watch: Watch, name: str, first: subprocess.Popen[str], *, part: float
) -> subprocess.Popen[str]:
    """A client that stands still in the middle of its put, with at least that part of it written."""
    for attempt in range(HOLD_TRIES):
        child = first if attempt == 0 else putter(cluster, name, "socket")
        go(child)
        until = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < until:
            done, total = watch.done_of(name)
            if total and done >= part * total:
                os.kill(child.pid, signal.SIGSTOP)
                break
            if cluster_has(cluster, name):
                break
        # Stopped, it writes no more; what had been in the socket arrives, and then the figure stands.
        if not cluster_has(cluster, name) and watch.done_of(name)[1]:
            return child
        bury(child)
        with cluster.connect() as rt:
            forget(rt, name)
    raise AssertionError(f"no put of {name} could be held in the middle in {HOLD_TRIES} tries")


def cluster_has(cluster: Cluster, art_id: str) -> bool:
    with cluster.connect() as rt:
        return bool(rt.list_artifacts(art_id))


def forget(rt: tc.Runtime, art_id: str) -> None:
    try:
        rt.delete(art_id)
    except tc.errors.NotFound:
        pass


def settled(watch: Watch) -> dict[str, int]:
    """The figures once nothing is reserved any more; fails when that takes longer than it may."""
    until = time.monotonic() + RELEASE_S_MAX
    while True:
        pool = watch.pool()
        if pool["reserved_bytes"] == 0:
            return pool
        assert time.monotonic() < until, f"still reserved after {RELEASE_S_MAX} s: {pool}"
        time.sleep(0.01)  # polling another process's figures, bounded by the line above


def test_b46_reservations_of_dead_clients_return_and_are_shown_apart_until_then(roomy: Cluster) -> None:
    with watching(roomy) as watch, roomy.connect() as rt:
        start = settled(watch)
        made = 0
        while made < CLIENTS:
            count = min(AT_ONCE, CLIENTS - made)
            parts = [0.0 if n % 2 else 0.4 for n in range(count)]
            names = [f"b46/{made + n}" for n in range(count)]
            fresh = [putter(roomy, name, "socket") for name in names]
            children = [held(roomy, watch, n, c, part=p) for n, c, p in zip(names, fresh, parts, strict=True)]
            try:
                pool = watch.pool()
                assert pool["reserved_bytes"] >= count * TENTH, pool
                assert pool["used_bytes"] == start["used_bytes"], pool
                assert pool["free_bytes"] <= start["free_bytes"] - count * TENTH, pool
            finally:
                for child in children:
                    bury(child)
            made += count
            after = settled(watch)
            assert after["free_bytes"] == start["free_bytes"], (start, after)
        assert [r.art_id for r in rt.list_artifacts("b46/")] == []
        put_most_of_it(rt)


def test_b46_clients_killed_at_any_moment_of_a_put_leave_nothing(roomy: Cluster) -> None:
    with watching(roomy) as watch, roomy.connect() as rt:
        start = settled(watch)
        paths = ["vm_read" if number % 2 else "socket" for number in range(CLIENTS)]
        children = [putter(roomy, f"b46/any/{number}", path) for number, path in enumerate(paths)]
        for number, child in enumerate(children):
            go(child)
            # Later from child to child: from before the request was sent to after it was answered.
            time.sleep(number * 0.004)
            bury(child)
        settled(watch)
        for record in rt.list_artifacts("b46/any/"):
            assert int(rt.artifact(record.art_id).tensor().sum()) == 0, "what is there is whole"
            rt.delete(record.art_id)
        after = settled(watch)
        assert after["free_bytes"] == start["free_bytes"], (start, after)
        put_most_of_it(rt)


def put_most_of_it(rt: tc.Runtime) -> None:
    stored = rt.put(torch.full((CAPACITY * 9 // 10,), 3, dtype=torch.uint8), "b46/most")
    assert stored.outcome == "stored" and int(stored.tensor()[-1]) == 3
    rt.delete("b46/most")
