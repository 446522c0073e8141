"""Where things are: this node's storage socket and the cluster's bus, looked up anew for every connection.

Called by Session, which lends its methods to the links. A cluster that restarted under other addresses is found again.
"""

from __future__ import annotations

import os

from tensorcast.cluster_room import cluster_with_url, command_up, node_of, read_cluster, runs
from tensorcast.settings import SdkSettings, read_settings
from tensorcast_bus.errors import NoLocalStorage, NotConnected, StorageLost, Timeout


class Places:
    """`cluster` names one of this host, or is None and `url` is a bus whose cluster has no storage here. `node` is the
    one asked for, None for the cluster's first."""

    def __init__(self, settings: SdkSettings, *, cluster: str | None, url: str, node: str | None) -> None:
        self.cluster = cluster
        self.url = url
        self.settings = settings
        self.node = node

    def socket(self) -> str:
        """The storage's socket. Raises NoLocalStorage, NotConnected."""
        name = str(self.cluster)
        cluster = read_cluster(name, self.settings)
        entry = node_of(cluster, self.node)
        if entry is None:
            raise _no_storage(name, "connect")
        if not os.path.exists(entry.socket) and not runs(cluster.supervisor_pid):
            raise NotConnected(
                f"cluster {name!r} is not running any more: its supervisor (pid {cluster.supervisor_pid}) is gone; "
                f"start it again with `{command_up(name)}`",
                cluster=name,
            )
        return entry.socket

    def bus(self) -> tuple[str, str]:
        """URL and token ("" where none is needed) of the bus."""
        if self.cluster is None:
            return self.url, ""
        cluster = read_cluster(self.cluster, self.settings)
        return cluster.nats_url, cluster.nats_token

    def has_storage(self) -> bool:
        return self.cluster is not None and node_of(read_cluster(self.cluster, self.settings), self.node) is not None

    def require_storage(self, what: str) -> None:
        """Raises NoLocalStorage where this host has none."""
        if self.cluster is None:
            raise _no_storage(self.url, what)

    def check_running(self, silence: StorageLost | Timeout) -> None:
        """Raises NotConnected where the storage is silent because the cluster is gone: none is being restarted."""
        name = str(self.cluster)
        pid = read_cluster(name, self.settings).supervisor_pid
        if not runs(pid):
            raise NotConnected(
                f"cluster {name!r} is not running any more: its supervisor (pid {pid}) is gone and its storage "
                f"does not answer ({silence}); start it again with `{command_up(name)}`",
                cluster=name,
            ) from None


def find_places(addr: str | None, *, node: str | None, name: str | None) -> Places:
    """Raises NotConnected where there is no cluster, NotFound for a node that it has not on this host."""
    settings = read_settings()
    if addr is not None:
        return _at_url(addr, settings, node)
    chosen = name or settings.cluster
    try:
        cluster = read_cluster(chosen, settings)
    except NotConnected:
        if name is None and settings.nats_url is not None:
            return _at_url(settings.nats_url, settings, node)
        raise
    node_of(cluster, node)
    return Places(settings, cluster=chosen, url=cluster.nats_url, node=node)


def _at_url(url: str, settings: SdkSettings, node: str | None) -> Places:
    cluster = cluster_with_url(url, settings)
    if cluster is None and node is not None:
        raise NoLocalStorage(
            f"no storage of the cluster at {url} runs on this host, so there is no node {node!r}", node=node
        )
    return Places(settings, cluster=cluster, url=url, node=node)


def _no_storage(where: str, what: str) -> NoLocalStorage:
    return NoLocalStorage(
        f"{what}: no storage of the cluster ({where}) runs on this host, and reading over the network is not in this "
        "version; run the caller on a node with a storage, or start one with `tensorcast up --node NAME`"
    )
