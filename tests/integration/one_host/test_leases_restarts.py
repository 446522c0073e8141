"""Leases outlive what dies around them: a replica in the pool, the storage, the global store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tensorcast.errors import LeaseLost
from tests.integration.one_host.leased import ELEMENTS, check, ends, owner
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose processes these tests kill."""
    with running_cluster(tmp_path_factory.mktemp("leases"), name="leases") as started:
        yield started


def test_an_evicted_replica_is_read_again_from_its_owner(tmp_path: Path) -> None:
    settings = {
        "storage.host_bytes_max": "80MiB",
        "storage.extent_bytes_max": "16MiB",
        "storage.prefault_ahead_bytes": "0",
    }
    with (
        running_cluster(tmp_path / "rt", name="small", settings=settings) as small,
        owner(small, "le/evicted", elements=ELEMENTS) as mine,
        small.connect() as rt,
    ):
        check(rt.artifact("le/evicted").tensor_dict())
        rt.put({"big": torch.ones(16 << 20)}, "le/filler")
        rt.delete("le/filler")
        check(rt.artifact("le/evicted").tensor_dict())
        rt.put({"big": torch.ones(16 << 20)}, "le/filler")
        rt.delete("le/filler")
        mine.tell("change")
        with pytest.raises(LeaseLost):
            rt.artifact("le/evicted").tensor_dict()


def test_a_lease_outlives_its_storage(hurt: Cluster) -> None:
    with owner(hurt, "le/restart", elements=ELEMENTS, ttl_s=60) as mine, hurt.connect() as rt:
        check(rt.artifact("le/restart").tensor_dict())
        hurt.wait_restarted("storage-a", hurt.kill("storage-a"))
        assert "error" not in (said := mine.tell("renew")), said
        check(rt.artifact("le/restart").tensor_dict())
        mine.tell("release")
        ends(rt, "le/restart")


def test_a_lease_outlives_the_global_store(hurt: Cluster) -> None:
    with owner(hurt, "le/store", elements=ELEMENTS) as mine, hurt.connect() as rt:
        hurt.wait_restarted("global_store", hurt.kill("global_store"))
        check(rt.artifact("le/store").tensor_dict())
        assert "error" not in mine.tell("renew")
        mine.tell("release")
        ends(rt, "le/store", 30)


def test_a_lease_on_files_outlives_its_storage_read_or_not(hurt: Cluster, tmp_path: Path) -> None:
    path = str(tmp_path / "x.safetensors")
    safetensors.torch.save_file({f"w{n}": torch.full((ELEMENTS,), n, dtype=torch.int32) for n in range(4)}, path)
    with (
        owner(hurt, "le/restart/unread", path=path) as unread,
        owner(hurt, "le/restart/read", path=path) as read,
        hurt.connect() as rt,
    ):
        check(rt.artifact("le/restart/read").tensor_dict())
        hurt.wait_restarted("storage-a", hurt.kill("storage-a"))
        for mine, art_id in ((unread, "le/restart/unread"), (read, "le/restart/read")):
            assert "error" not in (said := mine.tell("renew")), said
            check(rt.artifact(art_id).tensor_dict())
