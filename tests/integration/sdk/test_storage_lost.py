"""A storage that dies under its callers: errors in time, tensors that stay right, a link that comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tensorcast as tc
from tensorcast.errors import NoReplica, NotConnected, StorageLost, Timeout, Unavailable
from tests.support.cluster import Cluster, running_cluster
from tests.support.slack import SLACK_S


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that these tests may hurt."""
    with running_cluster(tmp_path_factory.mktemp("fragile"), name="fragile") as started:
        yield started


@pytest.fixture
def hurt_rt(fragile: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[tc.Runtime]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(fragile.runtime_folder))
    monkeypatch.setenv("TENSORCAST_CLUSTER", fragile.name)
    with fragile.connect() as runtime:
        yield runtime


def test_attached_tensors_outlive_their_storage_and_files_are_attached_again(
    fragile: Cluster, hurt_rt: tc.Runtime, tmp_path: Path
) -> None:
    wanted = torch.arange(1 << 18)
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"w": wanted}, path)
    from_file = hurt_rt.put(path, "lost/file")
    from_memory = hurt_rt.put({"w": wanted}, "lost/memory")
    kept = from_memory.tensor("w")
    old = fragile.kill("storage-a")
    # Asked while the storage is being restarted: the attach waits for it inside its deadline.
    assert torch.equal(from_file.tensor("w"), wanted)
    assert torch.equal(kept, wanted)
    with pytest.raises(NoReplica, match="storage-a"):
        from_memory.tensor("w")
    assert hurt_rt.put({"w": wanted}, "lost/memory").outcome == "stored"
    assert torch.equal(from_memory.tensor("w"), wanted)
    fragile.wait_restarted("storage-a", old)


def test_a_put_after_a_restart_needs_no_new_runtime(fragile: Cluster, hurt_rt: tc.Runtime) -> None:
    hurt_rt.put(torch.ones(4), "lost/before")
    fragile.wait_restarted("storage-a", fragile.kill("storage-a"))
    assert hurt_rt.put(torch.ones(4), "lost/after").outcome == "stored"


def test_a_storage_that_does_not_answer_ends_each_call_by_its_deadline(fragile: Cluster, hurt_rt: tc.Runtime) -> None:
    stored = hurt_rt.put(torch.ones(1 << 18), "lost/stopped")
    stored.tensor()
    fragile.kill("storage-a", sig=signal.SIGSTOP)
    try:
        for call in (
            lambda: stored.tensor(deadline_ms=500),
            lambda: hurt_rt.put(torch.ones(3), "lost/stopped/2", deadline_ms=500),
            lambda: hurt_rt.delete("lost/stopped", deadline_ms=500),
        ):
            started = time.monotonic()
            with pytest.raises((Timeout, StorageLost)):
                call()
            assert time.monotonic() - started < 0.5 + SLACK_S
    finally:
        fragile.kill("storage-a", sig=signal.SIGCONT)
    assert torch.equal(stored.tensor(), torch.ones(1 << 18))


def test_a_cluster_that_went_down_is_told_with_the_command_that_starts_it(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_cluster(tmp_path_factory.mktemp("gone"), name="gone") as cluster:
        rt = cluster.connect()
        stored = rt.put(torch.arange(1 << 18), "gone/x")
        kept = stored.tensor()
        rt.list_artifacts()
    for call in (stored.tensor, lambda: rt.put(torch.ones(1), "gone/y"), lambda: rt.list_artifacts()):
        started = time.monotonic()
        with pytest.raises((NotConnected, StorageLost)) as caught:
            call()
        assert time.monotonic() - started < SLACK_S
        assert "up" in str(caught.value) or "storage went away" in str(caught.value)
    assert torch.equal(kept, torch.arange(1 << 18))
    rt.close()


def test_a_restarted_cluster_under_another_address_is_found_again(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("again")
    with running_cluster(folder, name="again") as cluster:
        rt = cluster.connect()
        rt.put(torch.ones(1), "again/x")
        assert len(rt.list_artifacts()) == 1
    with running_cluster(folder, name="again") as cluster:
        assert rt.put(torch.ones(2), "again/y").outcome == "stored"
        assert [r.art_id for r in rt.list_artifacts("again/y")] == ["again/y"]
        rt.close()


def test_a_dead_gateway_ends_catalog_calls_by_their_deadline(fragile: Cluster, hurt_rt: tc.Runtime) -> None:
    hurt_rt.list_artifacts()
    fragile.kill("gateway-0", sig=signal.SIGSTOP)
    try:
        started = time.monotonic()
        with pytest.raises(Unavailable):
            hurt_rt.list_artifacts(deadline_ms=500)
        assert time.monotonic() - started < 0.5 + SLACK_S
    finally:
        fragile.kill("gateway-0", sig=signal.SIGCONT)
    assert isinstance(hurt_rt.list_artifacts(), list)
