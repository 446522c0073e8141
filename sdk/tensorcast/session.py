"""A caller's end of a cluster: the one blocking truth behind both faces of the SDK and behind the command line.

Owns the link to this node's storage (bytes) and the link to the gateways (catalog). Both connect at first use and
find a restarted cluster again. Every call keeps one deadline as a whole.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tensorcast.cluster_room import cluster_with_url, command_up, node_of, read_cluster, runs
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.drafts.draft import Draft
from tensorcast.drafts.files import draft_from_path
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast.ids import checked_id, text
from tensorcast.local import StorageLink
from tensorcast.records import ArtifactRecord, PutStats
from tensorcast.settings import SdkSettings, read_settings
from tensorcast.shortage import shortage
from tensorcast_bus.errors import AlreadyExists, NoLocalStorage, NotConnected, StorageLost, Timeout
from tensorcast_bus.messages import (
    ArtifactPage,
    Delete,
    DeletedRow,
    ListArtifacts,
    ListWorkers,
    Resolve,
    Resolved,
    Worker,
    WorkerList,
)
from tensorcast_bus.notes import (
    AskDelete,
    AskDescribe,
    AskProgress,
    Deleted,
    Described,
    Progress,
    PutDone,
    PutExists,
)
from tensorcast_native import Attachment

if TYPE_CHECKING:
    from tensorcast.remote import Address, GatewayLink

GREETING_MS_MAX = 2_000
CONNECT_MS_MAX = 5_000


class Stored(msgspec.Struct, frozen=True):
    """The end of a put. `outcome` is "stored" or "already_present"; `digest` of the content."""

    outcome: str
    digest: str
    stats: PutStats


class Session:
    """`cluster` names one of this host, or is None and `url` is a bus whose cluster has no storage here."""

    def __init__(self, settings: SdkSettings, *, cluster: str | None, url: str, node: str | None) -> None:
        self._settings = settings
        self._cluster = cluster
        self._url = url
        self._node = node
        self._storage = StorageLink(self._socket)
        self._gateways: GatewayLink | None = None

    def put(self, x: object, art_id: str, *, durable: bool, deadline_ms: int) -> Stored:
        deadline = Deadline(deadline_ms, f"put of {art_id!r}")
        checked_id(art_id)
        self._require_storage(deadline.what)
        with _draft(x, art_id, deadline) as draft:
            answer = self._storage.put(draft, durable=durable, deadline=deadline)
            if isinstance(answer, PutExists):
                return _compare(draft, answer, deadline)
            return _stored(draft, answer, deadline)

    def attach(self, art_id: str, *, deadline: Deadline, manifest_only: bool = False) -> Attachment:
        checked_id(art_id)
        self._require_storage(deadline.what)
        return self._storage.attach(art_id, deadline=deadline, manifest_only=manifest_only)

    def delete(self, art_id: str, *, deadline_ms: int) -> None:
        deadline = Deadline(deadline_ms, f"delete of {art_id!r}")
        checked_id(art_id)
        if self._has_storage():
            self._storage.ask(AskDelete(art_id), answer=Deleted, deadline=deadline, repeatable=False)
        else:
            self._remote().ask(Delete(art_id), answer=DeletedRow, deadline=deadline)

    def list_artifacts(self, prefix: str, *, deadline_ms: int) -> list[ArtifactRecord]:
        deadline = Deadline(deadline_ms, f"list of {prefix!r}")
        text(prefix, "a prefix of ids")
        found: list[ArtifactRecord] = []
        after = ""
        while True:
            page = self._remote().ask(ListArtifacts(prefix, after), answer=ArtifactPage, deadline=deadline)
            for row, places in zip(page.rows, page.places, strict=True):
                found.append(ArtifactRecord(row.art_id, row.digest, row.nbytes, row.tensors, row.created_ms, places))
            if not page.more or not page.rows:
                return found
            after = page.rows[-1].art_id

    def resolve(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Resolved:
        """The catalog's record and who holds replicas."""
        checked_id(art_id)
        deadline = Deadline(deadline_ms, f"resolve of {art_id!r}")
        return self._remote().ask(Resolve(art_id), answer=Resolved, deadline=deadline)

    def workers(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Sequence[Worker]:
        """Every process that the registry knows, with the figures of its last heartbeat."""
        deadline = Deadline(deadline_ms, "list of workers")
        return self._remote().ask(ListWorkers(), answer=WorkerList, deadline=deadline).workers

    def describe(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Described:
        """What this node's storage itself knows of an id."""
        deadline = Deadline(deadline_ms, f"describe of {art_id!r}")
        self._require_storage(deadline.what)
        return self._storage.ask(AskDescribe(art_id), answer=Described, deadline=deadline)

    def progress(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Progress:
        """How far the put or load of an id is on this node's storage."""
        deadline = Deadline(deadline_ms, f"progress of {art_id!r}")
        self._require_storage(deadline.what)
        return self._storage.ask(AskProgress(art_id), answer=Progress, deadline=deadline)

    def greet(self) -> None:
        """Meets the storage now, or the bus where no storage is. Raises NotConnected where the cluster's processes are
        gone; a storage that is only restarting is left to the first call that needs it."""
        if not self._has_storage():
            self._remote().meet(Deadline(CONNECT_MS_MAX, f"connect to {self._url}"))
            return
        try:
            self._storage.greeting(deadline=Deadline(GREETING_MS_MAX, "connect"))
        except (StorageLost, Timeout) as lost:
            name = str(self._cluster)
            pid = read_cluster(name, self._settings).supervisor_pid
            if not runs(pid):
                raise NotConnected(
                    f"cluster {name!r} is not running any more: its supervisor (pid {pid}) is gone and its storage "
                    f"does not answer ({lost}); start it again with `{command_up(name)}`",
                    cluster=name,
                ) from None

    def close(self) -> None:
        self._storage.close()
        if self._gateways is not None:
            self._gateways.close()

    def _socket(self) -> str:
        name = str(self._cluster)
        cluster = read_cluster(name, self._settings)
        entry = node_of(cluster, self._node)
        if entry is None:
            raise _no_storage(name, "connect")
        if not os.path.exists(entry.socket) and not runs(cluster.supervisor_pid):
            raise NotConnected(
                f"cluster {name!r} is not running any more: its supervisor (pid {cluster.supervisor_pid}) is gone; "
                f"start it again with `{command_up(name)}`",
                cluster=name,
            )
        return entry.socket

    def _has_storage(self) -> bool:
        return (
            self._cluster is not None and node_of(read_cluster(self._cluster, self._settings), self._node) is not None
        )

    def _require_storage(self, what: str) -> None:
        if self._cluster is None:
            raise _no_storage(self._url, what)

    def _remote(self) -> GatewayLink:
        if self._gateways is None:
            # Attaching never uses the bus; asyncio and its client are imported only by who asks the catalog.
            try:
                remote = importlib.import_module("tensorcast.remote")
            except OSError as error:
                raise shortage(error, "loading the client of the bus") or error from error
            address: type[Address] = remote.Address
            link: type[GatewayLink] = remote.GatewayLink

            def locate() -> Address:
                if self._cluster is None:
                    return address(self._url, "")
                cluster = read_cluster(self._cluster, self._settings)
                return address(cluster.nats_url, cluster.nats_token)

            self._gateways = link(locate)
        return self._gateways


def open_session(addr: str | None, *, node: str | None, name: str | None) -> Session:
    """Raises NotConnected where there is no cluster, NotFound for a node that it has not on this host."""
    settings = read_settings()
    session = _named(settings, name, node) if addr is None else _at_url(addr, settings, node)
    session.greet()
    return session


def _at_url(url: str, settings: SdkSettings, node: str | None) -> Session:
    cluster = cluster_with_url(url, settings)
    if cluster is None and node is not None:
        raise NoLocalStorage(
            f"no storage of the cluster at {url} runs on this host, so there is no node {node!r}", node=node
        )
    return Session(settings, cluster=cluster, url=url, node=node)


def _named(settings: SdkSettings, name: str | None, node: str | None) -> Session:
    chosen = name or settings.cluster
    try:
        cluster = read_cluster(chosen, settings)
    except NotConnected:
        if name is None and settings.nats_url is not None:
            return _at_url(settings.nats_url, settings, node)
        raise
    node_of(cluster, node)
    return Session(settings, cluster=chosen, url=cluster.nats_url, node=node)


def _draft(x: object, art_id: str, deadline: Deadline) -> Draft:
    if isinstance(x, str | os.PathLike):
        return draft_from_path(os.fsdecode(x), art_id, deadline=deadline)
    return draft_from_tensors(x, art_id, deadline=deadline)


def _stored(draft: Draft, done: PutDone, deadline: Deadline) -> Stored:
    copied = done.bytes_copied + draft.bytes_copied
    stats = PutStats(draft.manifest.nbytes, done.bytes_moved, copied, done.path, deadline.passed_ms)
    return Stored(done.outcome, done.digest, stats)


def _compare(draft: Draft, taken: PutExists, deadline: Deadline) -> Stored:
    """The id is taken: unchanged files settle it by their identity, everything else by its content."""
    mine = {(f.device, f.inode, f.size, f.mtime_ns) for s in draft.manifest.segments if (f := s.file) is not None}
    theirs = {file[1:] for file in taken.files}
    digest = taken.digest if mine and mine == theirs else draft.digest(deadline)
    if digest != taken.digest:
        art_id = draft.manifest.art_id
        raise AlreadyExists(
            f"artifact {art_id!r} exists with other content: stored is {taken.digest}, given is {digest}; artifacts "
            "never change: put it under another id or version, or delete the id first",
            art_id=art_id,
            stored=taken.digest,
            given=digest,
        )
    stats = PutStats(draft.manifest.nbytes, 0, draft.bytes_copied, "", deadline.passed_ms)
    return Stored("already_present", digest, stats)


def _no_storage(where: str, what: str) -> NoLocalStorage:
    return NoLocalStorage(
        f"{what}: no storage of the cluster ({where}) runs on this host, and reading over the network is not in this "
        "version; run the caller on a node with a storage, or start one with `tensorcast up --node NAME`"
    )
