"""B35: when a put returns, every other process reads it at once; `visible` and `durable` are two different words."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

import tensorcast as tc
from tests.support.cluster import Cluster, running_cluster

ROUNDS = 1_000
CHILD_S_MAX = 300.0
# Every tenth is large enough to be mapped instead of copied.
LARGE_EVERY, LARGE, SMALL = 10, 100_000, 16

# Reads a name from its input, gets that artifact once, and says what was in it.
CONSUMER = """
import sys, tensorcast as tc
with tc.connect() as rt:
    print("ready", flush=True)
    for line in sys.stdin:
        art_id = line.strip()
        try:
            found = rt.artifact(art_id).tensor()
            print(art_id, int(found[0]), int(found[-1]), flush=True)
            rt.artifact(art_id).release()
        except Exception as error:
            print(art_id, type(error).__name__, error, flush=True)
"""


@contextmanager
def consumer(cluster: Cluster) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", CONSUMER],
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    killer = threading.Timer(CHILD_S_MAX, child.kill)
    killer.start()
    try:
        with child:
            assert child.stdout is not None and child.stdin is not None
            assert child.stdout.readline() == "ready\n"
            yield child
            child.stdin.close()
    finally:
        killer.cancel()


def told(child: subprocess.Popen[str], art_id: str) -> str:
    """Sends the message that it is there; returns what the other process found."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{art_id}\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Another caller that puts and deletes all the time."""
    over = threading.Event()

    def work() -> None:
        with cluster.connect() as other:
            number = 0
            while not over.is_set():
                other.put(torch.full((50_000,), number), f"b35/load/{number}")
                other.delete(f"b35/load/{number}")
                number += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(60)


def test_b35_a_thousand_puts_are_read_by_another_process_at_once(fragile: Cluster) -> None:
    missed = []
    with fragile.connect() as rt, consumer(fragile) as other, load(fragile):
        for number in range(ROUNDS):
            size = LARGE if number % LARGE_EVERY == 0 else SMALL
            art_id = f"b35/{number}"
            rt.put(torch.full((size,), number), art_id)
            said = told(other, art_id)
            if said != f"{art_id} {number} {number}":
                missed.append(said)
    assert missed == []


def test_b35_a_listing_shows_what_a_put_returned_for(cluster: Cluster, rt: tc.Runtime) -> None:
    for number in range(50):
        rt.put(torch.arange(number + 1), f"b35/listed/{number}")
        assert cluster_ids(rt, f"b35/listed/{number}") == [f"b35/listed/{number}"]


def cluster_ids(rt: tc.Runtime, prefix: str) -> list[str]:
    return [record.art_id for record in rt.list_artifacts(prefix) if record.art_id == prefix]


def test_b35_visible_and_durable_are_told_apart(cluster: Cluster, rt: tc.Runtime) -> None:
    rt.put(torch.arange(1000), "b35/visible")
    rt.put(torch.arange(1000), "b35/durable", durable=True)
    tiers = {r.art_id: {p.partition(":")[2] for p in r.places} for r in rt.list_artifacts("b35/")}
    assert tiers["b35/visible"] == {"host"} and tiers["b35/durable"] == {"host", "disk"}
    described = json.loads(cluster.cli("describe", "b35/durable", "--json").stdout)
    assert described["here"]["disk_bytes"] >= 8000
    # Asked for again, what was only visible becomes durable too, without its bytes being taken again.
    again = rt.put(torch.arange(1000), "b35/visible", durable=True)
    assert again.outcome == "already_present"
    described = json.loads(cluster.cli("describe", "b35/visible", "--json").stdout)
    assert set(described["here"]["tiers"]) == {"host", "disk"} and described["here"]["disk_bytes"] >= 8000


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("b35"), name="b35") as started:
        yield started


def test_b35_what_was_durable_outlives_its_storage_and_what_was_visible_says_so(fragile: Cluster) -> None:
    wanted = torch.arange(200_000)
    with fragile.connect() as rt:
        rt.put(wanted, "b35/kept", durable=True)
        rt.put(wanted + 1, "b35/lost")
        fragile.wait_restarted("storage-a", fragile.kill("storage-a"))
        assert torch.equal(rt.artifact("b35/kept").tensor(), wanted)
        with pytest.raises(tc.errors.NoReplica, match="b35/lost"):
            rt.artifact("b35/lost").tensor()
