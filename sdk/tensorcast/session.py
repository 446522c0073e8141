"""A caller's end of a cluster: the one blocking truth behind both faces of the SDK and behind the command line.

Owns the link to this node's storage (bytes) and the link to the gateways (catalog). Both connect at first use and
find a restarted cluster again. Every call keeps one deadline as a whole. What is done with the links has rooms of its
own: puts, leases, catalog; where the links lead is looked up in places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorcast.catalog import Catalog, Expected
from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.gateways import Gateways
from tensorcast.ids import checked_id
from tensorcast.leases.lease import Lease
from tensorcast.leases.registering import close_leases, register
from tensorcast.local import StorageLink
from tensorcast.places import Places, find_places
from tensorcast.puts import Puts
from tensorcast.records import AliasRecord, ArtifactRecord
from tensorcast.records_local import About, Attached, Stored
from tensorcast.redirects import attach_by_name
from tensorcast.settings import SdkSettings
from tensorcast_bus.errors import StorageLost, Timeout
from tensorcast_bus.messages import Resolved, Worker
from tensorcast_bus.notes import AskDelete, AskDescribe, AskProgress, Box, Deleted, Described, Progress

__all__ = ["About", "Attached", "Session", "Stored", "open_session"]

GREETING_MS_MAX = 2_000
CONNECT_MS_MAX = 5_000


class Session:
    """`cluster` names one of this host, or is None and `url` is a bus whose cluster has no storage here."""

    def __init__(self, settings: SdkSettings, *, cluster: str | None, url: str, node: str | None) -> None:
        self._places = Places(settings, cluster=cluster, url=url, node=node)
        self._storage = StorageLink(self._places.socket)
        self._gateways = Gateways(self._places)
        self._catalog = Catalog(self._gateways)
        self._puts = Puts(self._storage)

    def put(
        self,
        x: object,
        art_id: str,
        *,
        durable: bool = False,
        base: str | None = None,
        changed: Iterable[str] | None = None,
        deadline_ms: int,
    ) -> Stored:
        deadline = Deadline(deadline_ms, f"put of {art_id!r}")
        checked_id(art_id)
        self._places.require_storage(deadline.what)
        return self._puts.put(x, art_id, durable=durable, base=base, changed=changed, deadline=deadline)

    def commit_view(
        self, base_id: str, *, digest: str, art_id: str, boxes: tuple[Box, ...], durable: bool, deadline: Deadline
    ) -> Stored:
        """Makes the boxes of `base_id`, whose content has `digest`, an artifact of its own."""
        checked_id(art_id)
        self._places.require_storage(deadline.what)
        return self._puts.commit_view(
            base_id, digest=digest, art_id=art_id, boxes=boxes, durable=durable, deadline=deadline
        )

    def register(self, x: object, art_id: str, *, ttl_s: float, deadline_ms: int) -> Lease:
        deadline = Deadline(deadline_ms, f"register of {art_id!r}")
        checked_id(art_id)
        self._places.require_storage(deadline.what)
        return register(self._storage, x, art_id, ttl_s=ttl_s, deadline=deadline)

    def attach(
        self, art_id: str, *, deadline: Deadline, manifest_only: bool = False, body: bytes = b""
    ) -> Attached | About:
        """Of an id, or of what an alias points at. About only with `manifest_only`. `body` is an encoded ViewWish."""
        checked_id(art_id)
        self._places.require_storage(deadline.what)
        return attach_by_name(self._storage, art_id, deadline=deadline, manifest_only=manifest_only, body=body)

    def delete(self, art_id: str, *, deadline_ms: int) -> None:
        deadline = Deadline(deadline_ms, f"delete of {art_id!r}")
        checked_id(art_id)
        if self._places.has_storage():
            self._storage.ask(AskDelete(art_id), answer=Deleted, deadline=deadline, repeatable=False)
        else:
            self._catalog.delete(art_id, deadline=deadline)

    def list_artifacts(self, prefix: str, *, deadline_ms: int) -> list[ArtifactRecord]:
        return self._catalog.artifacts(prefix, deadline=Deadline(deadline_ms, f"list of {prefix!r}"))

    def resolve(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Resolved:
        """The catalog's record and who holds replicas, of an id or of what an alias points at."""
        return self._catalog.resolve(art_id, deadline=Deadline(deadline_ms, f"resolve of {art_id!r}"))

    def workers(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Sequence[Worker]:
        """Every process that the registry knows, with the figures of its last heartbeat."""
        return self._catalog.workers(deadline=Deadline(deadline_ms, "list of workers"))

    def set_alias(self, name: str, art_id: str, *, expect: Expected, deadline_ms: int) -> AliasRecord:
        deadline = Deadline(deadline_ms, f"setting of alias {name!r}")
        return self._catalog.set_alias(name, art_id, expect=expect, deadline=deadline)

    def alias(self, name: str, *, deadline_ms: int) -> AliasRecord:
        return self._catalog.alias(name, deadline=Deadline(deadline_ms, f"look at alias {name!r}"))

    def list_aliases(self, prefix: str = "", *, deadline_ms: int) -> list[AliasRecord]:
        return self._catalog.aliases(prefix, deadline=Deadline(deadline_ms, f"list of aliases {prefix!r}"))

    def delete_alias(self, name: str, *, expect: Expected, deadline_ms: int) -> None:
        deadline = Deadline(deadline_ms, f"delete of alias {name!r}")
        self._catalog.delete_alias(name, expect=expect, deadline=deadline)

    def wait_alias(self, name: str, *, after: AliasRecord | None, deadline_ms: int) -> AliasRecord:
        return self._catalog.wait_alias(name, after=after, deadline=Deadline(deadline_ms, f"wait for alias {name!r}"))

    def describe(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Described:
        """What this node's storage itself knows of an id."""
        deadline = Deadline(deadline_ms, f"describe of {art_id!r}")
        self._places.require_storage(deadline.what)
        return self._storage.ask(AskDescribe(art_id), answer=Described, deadline=deadline)

    def progress(self, art_id: str, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> Progress:
        """How far the put or load of an id is on this node's storage."""
        deadline = Deadline(deadline_ms, f"progress of {art_id!r}")
        self._places.require_storage(deadline.what)
        return self._storage.ask(AskProgress(art_id), answer=Progress, deadline=deadline)

    def greet(self) -> None:
        """Meets the storage now, or the bus where no storage is. Raises NotConnected where the cluster's processes are
        gone; a storage that is only restarting is left to the first call that needs it."""
        if not self._places.has_storage():
            self._gateways.link().meet(Deadline(CONNECT_MS_MAX, f"connect to {self._places.url}"))
            return
        try:
            self._storage.greeting(deadline=Deadline(GREETING_MS_MAX, "connect"))
        except (StorageLost, Timeout) as lost:
            self._places.check_running(lost)

    def close(self) -> None:
        """Releases the leases that are left, then ends the links."""
        close_leases(self._storage)
        self._storage.close()
        self._gateways.close()


def open_session(addr: str | None, *, node: str | None, name: str | None) -> Session:
    """Raises NotConnected where there is no cluster, NotFound for a node that it has not on this host."""
    places = find_places(addr, node=node, name=name)
    session = Session(places.settings, cluster=places.cluster, url=places.url, node=places.node)
    session.greet()
    return session
