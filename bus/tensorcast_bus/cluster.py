"""The cluster folder: where one host's processes and callers find each other.

The supervisor writes `cluster.json` (mode 0600, by rename); the SDK and the CLI read it. Paths are computed here from
arguments; reading the environment is the caller's business.
"""

from __future__ import annotations

import os.path

import msgspec

CLUSTER_FILE = "cluster.json"
SETTINGS_FILE = "tensorcast.toml"
LOCK_FILE = "lock"
DEFAULT_CLUSTER = "default"


class NodeEntry(msgspec.Struct, frozen=True):
    """A node of this host: its storage's local socket."""

    node: str
    socket: str


class ProcessEntry(msgspec.Struct, frozen=True):
    """`state`: "starting", "ready", "backing_off", "refused" or "stopped". Restarts count since `up`."""

    process: str
    role: str
    pid: int
    state: str
    restarts: int
    log: str


class ClusterFile(msgspec.Struct, frozen=True):
    """`state`: "starting", "ready" or "stopping"."""

    name: str
    state: str
    version: str
    supervisor_pid: int
    started_ms: int
    nats_url: str
    nats_token: str
    nodes: tuple[NodeEntry, ...]
    processes: tuple[ProcessEntry, ...]


def cluster_folder(name: str, *, runtime_folder: str | None, temp_folder: str, uid: int) -> str:
    """`$XDG_RUNTIME_DIR/tensorcast/NAME`, else a folder of the user's own (mode 0700) under the temp folder."""
    if runtime_folder:
        return os.path.join(runtime_folder, "tensorcast", name)
    return os.path.join(temp_folder, f"tensorcast-{uid}", name)


def decode_cluster(blob: bytes) -> ClusterFile:
    """Raises msgspec.DecodeError or ValidationError."""
    return msgspec.json.decode(blob, type=ClusterFile)


def encode_cluster(cluster: ClusterFile) -> bytes:
    return msgspec.json.format(msgspec.json.encode(cluster), indent=2)
