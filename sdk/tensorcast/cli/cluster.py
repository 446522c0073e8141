"""Which cluster the words mean, and the session that the artifact commands work through."""

from __future__ import annotations

from tensorcast.cli.words import Words
from tensorcast.cluster_room import folder_of, read_cluster
from tensorcast.session import Session, open_session
from tensorcast.settings import read_settings
from tensorcast_bus.cluster import ClusterFile


def name_of(words: Words) -> str:
    return words.cluster or read_settings().cluster


def folder(words: Words) -> str:
    return folder_of(name_of(words), read_settings())


def cluster_file(words: Words) -> ClusterFile:
    """Raises NotConnected."""
    return read_cluster(name_of(words), read_settings())


def session(words: Words) -> Session:
    """Raises NotConnected. NATS_URL counts only where no cluster was named."""
    return open_session(None, node=words.node, name=words.cluster or None)
