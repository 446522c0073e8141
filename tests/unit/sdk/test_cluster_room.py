"""Finding the cluster of this host: where it is looked for, and what is said when it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import tensorcast as tc
from tensorcast.cluster_room import cluster_with_url, command_up, folder_of, node_of, read_cluster
from tensorcast.errors import Invalid, NotConnected, NotFound
from tensorcast.settings import SdkSettings, read_settings
from tensorcast_bus.cluster import ClusterFile, NodeEntry, encode_cluster


def settings(folder: Path, **changes: str) -> SdkSettings:
    return read_settings({"XDG_RUNTIME_DIR": str(folder), **changes})


def made(folder: Path, name: str, *, url: str = "nats://127.0.0.1:1") -> ClusterFile:
    nodes = (NodeEntry("a", "/a.sock"), NodeEntry("b", "/b.sock"))
    cluster = ClusterFile(name, "ready", "0.1.0", 1, 0, url, "secret", nodes, ())
    path = folder / "tensorcast" / name / "cluster.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_cluster(cluster))
    path.chmod(0o600)
    return cluster


def test_the_environment_names_the_cluster(tmp_path: Path) -> None:
    assert settings(tmp_path).cluster == "default"
    assert settings(tmp_path, TENSORCAST_CLUSTER="mine").cluster == "mine"
    assert settings(tmp_path, TENSORCAST_CLUSTER="").cluster == "default"
    assert read_settings({}).runtime_folder is None


def test_a_cluster_is_read_from_its_folder(tmp_path: Path) -> None:
    wanted = made(tmp_path, "mine")
    assert read_cluster("mine", settings(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("name", "command"), [("default", "`tensorcast up --detach`"), ("x", "`tensorcast --cluster x up --detach`")]
)
def test_without_a_cluster_the_command_that_starts_one_is_told(tmp_path: Path, name: str, command: str) -> None:
    with pytest.raises(NotConnected) as caught:
        read_cluster(name, settings(tmp_path))
    assert command in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotConnected, match="cannot name a cluster"):
        folder_of(name, settings(tmp_path))


def test_a_cluster_file_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    made(tmp_path, "x")
    (tmp_path / "tensorcast/x/cluster.json").chmod(0o666)
    with pytest.raises(NotConnected, match="mode 666"):
        read_cluster("x", settings(tmp_path))


def test_a_cluster_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    made(tmp_path, "x")
    path = tmp_path / "tensorcast/x/cluster.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotConnected, match=r"cannot be read.*it is a link of uid"):
        read_cluster("x", settings(tmp_path))


def test_a_cluster_file_that_is_no_file_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "tensorcast/x/cluster.json"
    path.mkdir(parents=True)
    with pytest.raises(NotConnected, match="no regular file"):
        read_cluster("x", settings(tmp_path))
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(NotConnected, match="no regular file"):
        read_cluster("x", settings(tmp_path))


def test_a_cluster_file_that_may_not_be_read_is_told_with_owner_and_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "x")
    path = tmp_path / "tensorcast/x/cluster.json"
    path.chmod(0o040)

    def refuse(*_: object) -> int:  # the superuser, who may run this test, is refused nothing
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotConnected, match=rf"{path}.*Permission denied.*uid {os.getuid()} with mode 0040.*run as its"):
        read_cluster("x", settings(tmp_path))


def test_a_relative_runtime_folder_is_meant_from_where_the_caller_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = read_settings({"XDG_RUNTIME_DIR": "run/me"})
    assert folder_of("x", found) == str(tmp_path / "run/me/tensorcast/x")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(Invalid, match=r"XDG_RUNTIME_DIR.*was deleted"):
        read_settings({"XDG_RUNTIME_DIR": "run/me"})


def test_the_command_that_starts_a_cluster_again_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command_up("default") == "tensorcast up --detach"
    assert command_up("a b") == "tensorcast --cluster 'a b' up --detach"
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait(60)
    dead = msgspec.structs.replace(made(tmp_path, "mine"), supervisor_pid=ended.pid)
    (tmp_path / "tensorcast/mine/cluster.json").write_bytes(encode_cluster(dead))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(NotConnected, match="`tensorcast --cluster mine up --detach`"):
        tc.connect(name="mine")


def test_a_cluster_file_that_is_none_is_told_as_such(tmp_path: Path) -> None:
    made(tmp_path, "x")
    (tmp_path / "tensorcast/x/cluster.json").write_bytes(b"{}")
    with pytest.raises(NotConnected, match="cannot be understood"):
        read_cluster("x", settings(tmp_path))


def test_a_cluster_is_found_by_its_url(tmp_path: Path) -> None:
    made(tmp_path, "one", url="nats://127.0.0.1:1111")
    made(tmp_path, "two", url="nats://127.0.0.1:2222")
    for url in ("nats://127.0.0.1:2222", "nats://secret@127.0.0.1:2222/", "localhost:2222"):
        assert cluster_with_url(url, settings(tmp_path)) == "two"
    for url in ("nats://127.0.0.1:3333", "nats://other:2222", "nats://127.0.0.1:99999999", ""):
        assert cluster_with_url(url, settings(tmp_path)) is None


def test_the_first_node_is_taken_and_an_unknown_one_is_refused_with_those_there_are(tmp_path: Path) -> None:
    cluster = made(tmp_path, "x")
    first, second = node_of(cluster, None), node_of(cluster, "b")
    assert first is not None and first.node == "a"
    assert second is not None and second.socket == "/b.sock"
    with pytest.raises(NotFound, match=r"'c'.*a, b"):
        node_of(cluster, "c")
