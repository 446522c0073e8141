"""Sharing a cluster with a group: who may enter, what may be read, and what stays the owner's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tensorcast_bus.cluster import CLUSTER_FILE, ClusterFile, decode_cluster
from tensorcast_services.supervisor.folder import prepare_folder, share_folder, write_cluster, write_private
from tensorcast_services.supervisor.settings import group_of
from tensorcast_services.tables import Refusal

FILE = ClusterFile("x", "ready", "1", 1, 1, "nats://x", "token", (), ())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_group_enters_the_folder_and_reads_the_cluster_file_alone(tmp_path: Path) -> None:
    folder = tmp_path / "tensorcast" / "x"
    prepare_folder(folder)
    share_folder(folder, os.getgid())
    write_cluster(folder, FILE, group=os.getgid())
    write_private(folder / "tensorcast.toml", b"")
    assert (mode(folder.parent), mode(folder), mode(folder / "logs")) == (0o750, 0o750, 0o700)
    assert (mode(folder / CLUSTER_FILE), mode(folder / "tensorcast.toml")) == (0o640, 0o600)
    assert (folder / CLUSTER_FILE).stat().st_gid == os.getgid()
    assert decode_cluster((folder / CLUSTER_FILE).read_bytes()) == FILE
    prepare_folder(folder)  # the next `up` finds nothing wrong with it


def test_without_a_group_the_cluster_file_is_the_owners(tmp_path: Path) -> None:
    write_cluster(tmp_path, FILE)
    assert mode(tmp_path / CLUSTER_FILE) == 0o600


def test_the_group_is_that_of_the_sockets() -> None:
    assert group_of({}) is None
    assert group_of({"storage": {"host_bytes_max": 1}, "gateway": {}}) is None
    assert group_of({"storage": {"socket_group": "54321"}}) == 54321
    assert group_of({"storage": {"socket_group": 54321}, "storage-a": {"socket_group": "54321"}}) == 54321


def test_a_group_that_cannot_be_is_refused() -> None:
    with pytest.raises(Refusal, match="no such group"):
        group_of({"storage-a": {"socket_group": "nobody-has-this"}})
    with pytest.raises(Refusal, match="one cluster has one group, here are 1, 2"):
        group_of({"storage-a": {"socket_group": "1"}, "storage-b": {"socket_group": "2"}})
