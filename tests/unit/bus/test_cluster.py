"""The cluster file: where it lies and what it says."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast_bus.cluster import (
    ClusterFile,
    NodeEntry,
    ProcessEntry,
    cluster_folder,
    decode_cluster,
    encode_cluster,
)

STATE = ClusterFile(
    "default",
    "ready",
    "0.1.0",
    17,
    1_700_000_000_000,
    "nats://127.0.0.1:4222",
    "secret",
    (NodeEntry("a", "/run/storage-a.sock"),),
    (ProcessEntry("storage-a", "storage", 18, "ready", 0, "/run/logs/storage-a.log"),),
)


def test_the_cluster_file_survives_writing() -> None:
    assert decode_cluster(encode_cluster(STATE)) == STATE


def test_the_cluster_file_is_json_that_people_can_read() -> None:
    assert b'\n  "nats_url": "nats://127.0.0.1:4222"' in encode_cluster(STATE)


@pytest.mark.parametrize("blob", [b"", b"{", b"[]", b'{"name": 1}', b"\xff"])
def test_half_a_file_is_refused(blob: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_cluster(blob)


def test_the_folder_is_in_the_runtime_folder_or_else_the_users_own_under_the_temp_folder() -> None:
    assert cluster_folder("x", runtime_folder="/run/user/7", temp_folder="/tmp", uid=7) == "/run/user/7/tensorcast/x"
    for nothing in (None, ""):
        assert cluster_folder("x", runtime_folder=nothing, temp_folder="/tmp", uid=7) == "/tmp/tensorcast-7/x"
