"""Caller leases on a real cluster: read in place, ended in every way, and never a wrong byte."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import tensorcast as tc
from tensorcast.errors import AlreadyExists, LeaseLost, NotFound, TensorCastError
from tensorcast.runtime import Puttable
from tests.integration.one_host.leased import ELEMENTS, check, ends, owner
from tests.support.cluster import Cluster
from tests.support.forks import in_a_forked_child
from tests.support.slack import SLACK_S
from tests.support.stopping import stop

ENDED = (LeaseLost, NotFound)


def test_registered_memory_is_read_where_it_lies_by_another_process(rt: tc.Runtime, cluster: Cluster) -> None:
    before = cluster.storage_stats()
    with owner(cluster, "le/memory", elements=ELEMENTS) as mine:
        assert (mine.first["path"], mine.first["moved"]) == ("vm_read", 0)
        assert cluster.storage_stats().pool["used_bytes"] - before.pool["used_bytes"] < ELEMENTS
        handle = rt.artifact("le/memory")
        assert handle.tensor_meta()["w3"].digest and cluster.storage_stats().loads == before.loads
        check(handle.tensor_dict())
        record = rt.list_artifacts("le/memory")[0]
        assert (record.ownership, record.digest) == ("lease", mine.first["digest"])
        assert any(place.endswith(":lease") for place in record.places)
        check(rt.artifact("le/memory").tensor_dict())
        assert mine.tell("release") == {"done": "release"}
        ends(rt, "le/memory")


@pytest.mark.parametrize("how", ["release", "drop", "end", "kill"])
def test_however_a_lease_ends_open_tensors_stay_right_and_new_reads_are_told(
    rt: tc.Runtime, cluster: Cluster, how: str
) -> None:
    art_id = f"le/ended/{how}"
    with owner(cluster, art_id, elements=ELEMENTS) as mine:
        handle = rt.artifact(art_id)
        kept = handle.tensor_dict()
        if how == "kill":
            os.kill(mine.pid, signal.SIGKILL)
            mine.process.wait()
        elif how == "end":
            mine.end()
        else:
            mine.tell(how)
        ends(rt, art_id)
        with pytest.raises(LeaseLost, match=art_id):
            handle.tensor_dict()
        check(kept)
    assert rt.put({"w": torch.ones(3)}, art_id).outcome == "stored"
    rt.delete(art_id)
    check(kept)


def test_an_owner_that_died_before_anybody_read_leaves_nothing(rt: tc.Runtime, cluster: Cluster) -> None:
    with owner(cluster, "le/unread", elements=ELEMENTS) as mine:
        os.kill(mine.pid, signal.SIGKILL)
        mine.process.wait()
        ends(rt, "le/unread")
        assert rt.list_artifacts("le/unread") == []


def test_memory_that_changed_before_the_first_read_is_a_lost_lease_and_no_wrong_bytes(
    rt: tc.Runtime, cluster: Cluster
) -> None:
    with owner(cluster, "le/changed", elements=ELEMENTS) as mine:
        mine.tell("change")
        for _ in range(2):
            with pytest.raises(LeaseLost, match="le/changed"):
                rt.artifact("le/changed").tensor_dict()
        said = mine.tell("renew")
        assert said["error"] == "LeaseLost", said
        assert rt.list_artifacts("le/changed") == []


def test_memory_that_changed_after_it_was_read_changes_nothing_for_readers(rt: tc.Runtime, cluster: Cluster) -> None:
    with owner(cluster, "le/later", elements=ELEMENTS) as mine:
        check(rt.artifact("le/later").tensor_dict())
        mine.tell("change")
        check(rt.artifact("le/later").tensor_dict())


def test_a_lease_is_not_the_systems_and_the_other_way_round(rt: tc.Runtime, cluster: Cluster) -> None:
    state = {f"w{n}": torch.full((ELEMENTS,), n, dtype=torch.int32) for n in range(4)}
    with owner(cluster, "le/both", elements=ELEMENTS):
        for call in (lambda: rt.put(state, "le/both"), lambda: rt.register(state, "le/both")):
            with pytest.raises(AlreadyExists, match="le/both"):
                call()
        check(rt.artifact("le/both").tensor_dict())
    ends(rt, "le/both")
    rt.put(state, "le/both")
    with pytest.raises(AlreadyExists, match="le/both"):
        rt.register(state, "le/both")
    rt.delete("le/both")


@pytest.mark.parametrize("content", [0, 1])
def test_a_refused_registration_leaves_the_first_ones_metadata_and_views(rt: tc.Runtime, content: int) -> None:
    with rt.register({"w": torch.zeros(64, 64)}, "lease/first"):
        with pytest.raises(AlreadyExists, match="lease/first"):
            rt.register({"w": torch.full((64, 64), float(content))}, "lease/first")
        artifact = rt.artifact("lease/first")
        assert artifact.tensor_meta()["w"].shape == (64, 64)
        part = artifact.view({"w": (slice(1, 3),)}, f"lease/first-part-{content}")
        assert torch.equal(part.tensor("w"), torch.zeros(2, 64))
        assert torch.equal(artifact.tensor("w"), torch.zeros(64, 64))
    rt.delete(f"lease/first-part-{content}")


def test_a_deleted_lease_is_over_for_its_owner(rt: tc.Runtime, cluster: Cluster) -> None:
    with owner(cluster, "le/deleted", elements=ELEMENTS) as mine:
        rt.delete("le/deleted")
        with pytest.raises(ENDED):
            rt.artifact("le/deleted").tensor_dict()
        assert mine.tell("renew")["error"] == "LeaseLost"


def test_a_caller_that_cannot_be_read_gives_its_bytes_at_once(rt: tc.Runtime, cluster: Cluster) -> None:
    with owner(cluster, "le/hidden", elements=ELEMENTS, hidden=True) as mine:
        assert (mine.first["path"], mine.first["moved"]) == ("socket", 16 * ELEMENTS)
        mine.tell("change")
        check(rt.artifact("le/hidden").tensor_dict())
        os.kill(mine.pid, signal.SIGKILL)
        mine.process.wait()
        ends(rt, "le/hidden")


def test_a_stopped_owner_loses_its_lease_when_its_time_has_passed(rt: tc.Runtime, cluster: Cluster) -> None:
    ttl_s = 3
    with owner(cluster, "le/stopped", elements=ELEMENTS, ttl_s=ttl_s) as mine:
        kept = rt.artifact("le/stopped").tensor_dict()
        stop(mine.pid)
        try:
            ends(rt, "le/stopped", ttl_s + SLACK_S)
        finally:
            os.kill(mine.pid, signal.SIGCONT)
        check(kept)
        assert mine.tell("renew")["error"] == "LeaseLost"
        with pytest.raises(LeaseLost):
            rt.artifact("le/stopped").tensor_dict()


def test_a_short_lease_outlives_many_of_its_times(rt: tc.Runtime, cluster: Cluster) -> None:
    with owner(cluster, "le/short", elements=ELEMENTS, ttl_s=1) as mine:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            check(rt.artifact("le/short").tensor_dict())
        assert "error" not in mine.tell("renew")


def test_a_forked_child_neither_renews_nor_releases_its_parents_lease(rt: tc.Runtime) -> None:
    torch.set_num_threads(1)
    given = {"w": torch.arange(ELEMENTS)}
    lease = rt.register(given, "le/forked")

    def child() -> None:
        with pytest.raises(LeaseLost, match="was forked"):
            lease.renew()
        lease.release()
        given["w"].zero_()
        assert torch.equal(rt.artifact("le/forked").tensor(), torch.arange(ELEMENTS))
        with rt.register({"w": torch.ones(ELEMENTS)}, "le/forked/child") as mine:
            mine.renew()
            assert torch.equal(rt.artifact("le/forked/child").tensor(), torch.ones(ELEMENTS))
        rt.close()

    in_a_forked_child(child)
    lease.renew()
    assert torch.equal(rt.artifact("le/forked").tensor(), given["w"])
    with pytest.raises(ENDED):
        rt.artifact("le/forked/child").tensor()
    lease.release()


def test_a_lease_ends_with_the_process_that_registered_though_its_child_lives(rt: tc.Runtime, cluster: Cluster) -> None:
    code = """
import os, sys, torch, tensorcast as tc
torch.set_num_threads(1)
lease = tc.connect().register(torch.arange(1 << 20), "le/orphan")
if os.fork() == 0:
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
print("forked", flush=True)
os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=cluster.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "forked\n"
        process.wait()
        ends(rt, "le/orphan")
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_closing_a_runtime_releases_its_leases(cluster: Cluster, rt: tc.Runtime) -> None:
    with cluster.connect() as own:
        lease = own.register(torch.arange(ELEMENTS), "le/closed")
        kept = rt.artifact("le/closed").tensor()
    with pytest.raises(LeaseLost):
        rt.artifact("le/closed").tensor()
    with pytest.raises(LeaseLost, match="runtime was closed"):
        lease.renew()
    assert torch.equal(kept, torch.arange(ELEMENTS))


def test_every_kind_of_tensor_can_be_registered(rt: tc.Runtime) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    given: dict[str, Puttable] = {
        "tied": base,
        "same": base,
        "strided": base[:, ::2],
        "empty": torch.empty(0, 3),
        "deep": {"b": base > 3},
    }
    with rt.register(given, "le/kinds") as lease:
        assert lease.stats.bytes_copied == 48
        found = rt.artifact("le/kinds").tensor_dict()
        assert torch.equal(found["strided"], base[:, ::2]) and torch.equal(found["deep.b"], base > 3)
        assert found["tied"].data_ptr() == found["same"].data_ptr() and found["empty"].shape == (0, 3)
        assert rt.put(given, "le/kinds-put").stats is not None
        assert rt.list_artifacts("le/kinds-put")[0].digest == lease.digest
    rt.delete("le/kinds-put")


async def test_the_async_face_registers_renews_and_releases(
    rt: tc.Runtime, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.runtime_folder))
    given = torch.arange(ELEMENTS)
    async with await tc.aconnect(name=cluster.name) as own:
        async with await own.register(given, "le/async") as lease:
            await lease.renew()
            assert torch.equal(await own.artifact(lease.art_id).tensor(), given)
        with pytest.raises(LeaseLost):
            await lease.renew()
        with pytest.raises(ENDED):
            await own.artifact("le/async").tensor()


async def test_a_cancelled_registration_leaves_no_lease(
    rt: tc.Runtime, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.runtime_folder))
    given = torch.arange(1 << 24)
    async with await tc.aconnect(name=cluster.name) as own:
        for ms in range(0, 40, 4):
            try:
                lease = await asyncio.wait_for(own.register(given, f"le/cancelled/{ms}"), ms / 1000)
            except (TimeoutError, TensorCastError):
                continue
            await lease.release()
        end = time.monotonic() + SLACK_S
        while left := rt.list_artifacts("le/cancelled/"):
            assert time.monotonic() < end, left
            await asyncio.sleep(0.02)  # polls another process; bounded by the line above
