"""Finds the cluster that runs on this host: its folder, and what its supervisor wrote into `cluster.json`.

Read anew whenever a link has to be made, so that a restarted cluster is found again. Nothing is trusted that another
user could have put there.
"""

from __future__ import annotations

import os
import shlex
import stat
from urllib.parse import urlsplit

import msgspec

from tensorcast.settings import SdkSettings
from tensorcast.shortage import shortage
from tensorcast_bus.cluster import CLUSTER_FILE, DEFAULT_CLUSTER, ClusterFile, NodeEntry, cluster_folder, decode_cluster
from tensorcast_bus.errors import NotConnected, NotFound


def folder_of(name: str, settings: SdkSettings) -> str:
    """Raises NotConnected for a name that is no single folder name."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise NotConnected(f"{name!r} cannot name a cluster: give a plain folder name, such as 'default'", cluster=name)
    return cluster_folder(
        name, runtime_folder=settings.runtime_folder, temp_folder=settings.temp_folder, uid=settings.uid
    )


def read_cluster(name: str, settings: SdkSettings) -> ClusterFile:
    """Raises NotConnected, with the command that starts a cluster, when there is none of that name."""
    folder = folder_of(name, settings)
    path = os.path.join(folder, CLUSTER_FILE)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotConnected(
            f"no cluster {name!r} runs on this host ({path} is not there); start one with `{command_up(name)}`",
            cluster=name,
        ) from None
    except OSError as error:
        raise shortage(error, f"reading {path}") or _cannot_read(path, name, settings, error) from error
    seen = os.fstat(fd)
    if not stat.S_ISREG(seen.st_mode):
        os.close(fd)
        raise NotConnected(f"{path} is no regular file; remove it or choose another --cluster", cluster=name)
    with os.fdopen(fd, "rb") as file:
        if seen.st_mode & stat.S_IWOTH or (settings.runtime_folder is None and seen.st_uid != settings.uid):
            raise NotConnected(
                f"{path} belongs to uid {seen.st_uid} with mode {stat.S_IMODE(seen.st_mode):o}; a cluster of yours "
                f"(uid {settings.uid}) would not: remove it or choose another --cluster",
                cluster=name,
            )
        blob = file.read()
    try:
        return decode_cluster(blob)
    except msgspec.DecodeError as error:
        raise NotConnected(
            f"{path} cannot be understood ({error}); was it written by another version? run `tensorcast down` and `up`",
            cluster=name,
        ) from error


def command_up(name: str) -> str:
    """What starts the cluster of that name."""
    named = "" if name == DEFAULT_CLUSTER else f"--cluster {shlex.quote(name)} "
    return f"tensorcast {named}up --detach"


def _cannot_read(path: str, name: str, settings: SdkSettings, error: OSError) -> NotConnected:
    place = path
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    seen = os.lstat(place)
    if stat.S_ISLNK(seen.st_mode):
        whose = f"it is a link of uid {seen.st_uid}, and links are not followed here"
        fix = "remove it if it should not be there"
    else:
        whose = f"{place} belongs to uid {seen.st_uid} with mode {stat.S_IMODE(seen.st_mode):04o} (gid {seen.st_gid})"
        shared = f"{command_up(name)} --set storage.socket_group=GROUP --set storage.socket_mode=0660"
        fix = f"run as its owner, have the owner share it with a group of yours (`{shared}`)"
    return NotConnected(
        f"{path} cannot be read: {error.strerror}; {whose}, you are uid {settings.uid}: {fix}, or choose another "
        "--cluster or XDG_RUNTIME_DIR",
        cluster=name,
    )


def cluster_with_url(url: str, settings: SdkSettings) -> str | None:
    """The name of the cluster on this host whose bus is `url`, if one is."""
    parent = os.path.dirname(folder_of("x", settings))
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return None
    for name in names:
        try:
            if _place(read_cluster(name, settings).nats_url) == _place(url):
                return name
        except NotConnected:
            continue
    return None


def _place(url: str) -> tuple[str, int | None]:
    """Host and port: a token in the URL does not make it another bus."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host = parts.hostname or ""
        return "127.0.0.1" if host == "localhost" else host, parts.port
    except ValueError:
        return url, None


def node_of(cluster: ClusterFile, node: str | None) -> NodeEntry | None:
    """The node asked for; with None the first one, or None where the host has no storage. Raises NotFound."""
    if node is None:
        return cluster.nodes[0] if cluster.nodes else None
    for entry in cluster.nodes:
        if entry.node == node:
            return entry
    known = ", ".join(entry.node for entry in cluster.nodes) or "none"
    raise NotFound(f"cluster {cluster.name!r} has no node {node!r} on this host; its nodes: {known}", node=node)


def runs(pid: int) -> bool:
    """Whether a process of that pid exists (it may be another by now)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
