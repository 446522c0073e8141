"""The global store as plain records: which content an id has, who claims it, what was answered to which command."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorcast_bus.errors import AlreadyExists, ErrorRecord
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev


@dataclass
class CatalogModel:
    """Claims are those of storage-a, the storage under test; `elsewhere` has what node b holds."""

    catalog: dict[str, tuple[str, int]] = field(default_factory=dict)  # id -> (digest, revision)
    claims: set[tuple[str, str]] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # ids that node b holds
    commits: dict[int, tuple[str, int] | ErrorRecord] = field(default_factory=dict)  # idempotency
    deletes: dict[int, int | ErrorRecord] = field(default_factory=dict)
    known_commits: set[tuple[str, str]] = field(default_factory=set)
    events: list[ev.RemoteDeleted] = field(default_factory=list)  # on their way
    revision: int = 0

    def delete_elsewhere(self, art_id: str) -> None:
        """Another node deletes; `hear` brings the event."""
        if art_id in self.catalog:
            self._delete_row(art_id)

    def put_elsewhere(self, art_id: str, digest: str) -> None:
        """Another node commits the content, unless the id has other content."""
        if art_id not in self.catalog:
            self.revision += 1
            self.catalog[art_id] = (digest, self.revision)
        if self.catalog[art_id][0] == digest:
            self.elsewhere.add(art_id)

    def _commit_row(self, call: fx.CallCommit) -> tuple[str, int] | ErrorRecord:
        row = self.catalog.get(call.art_id)
        if row is not None and row[0] != call.digest:
            return AlreadyExists(f"{call.art_id} has other content").record()
        self.revision += 1
        self.catalog[call.art_id] = (call.digest, self.revision)
        self.claims |= {(call.art_id, "host")} | ({(call.art_id, "file")} if call.in_file else set())
        return ("stored", self.revision)

    def _delete_row(self, art_id: str) -> int:
        self.revision += 1
        del self.catalog[art_id]
        self.claims = {claim for claim in self.claims if claim[0] != art_id}
        self.elsewhere.discard(art_id)
        self.events.append(ev.RemoteDeleted(art_id, self.revision))
        return self.revision
