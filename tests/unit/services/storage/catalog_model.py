"""The global store as plain records: which content an id has, who claims it, what was answered to which command."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorcast_bus.errors import AlreadyExists, ErrorRecord, LeaseLost, NotFound
from tensorcast_bus.messages import AliasRow, ArtifactRow, ReplicaRow, Resolved
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.core.holdings import Claim


@dataclass
class CatalogModel:
    """Claims are those of storage-a, the storage under test; `elsewhere` has what node b holds."""

    catalog: dict[str, tuple[str, int]] = field(default_factory=dict)  # id -> (digest, revision)
    leased: set[str] = field(default_factory=set)  # ids under a lease
    tombs: set[str] = field(default_factory=set)  # ids whose lease ended
    aliases: dict[str, str] = field(default_factory=dict)
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
        """Another node commits the content, unless the id has other content or is under a lease."""
        if art_id not in self.catalog:
            self.revision += 1
            self.catalog[art_id] = (digest, self.revision)
            self.tombs.discard(art_id)
        if self.catalog[art_id][0] == digest and art_id not in self.leased:
            self.elsewhere.add(art_id)

    def row_of(self, name: str) -> Resolved | ErrorRecord:
        alias = AliasRow(name, self.aliases[name], 5, 0) if name in self.aliases else None
        art_id = self.aliases.get(name, name)
        row = self.catalog.get(art_id)
        if row is None:
            kind, why = (LeaseLost, "its lease ended") if art_id in self.tombs else (NotFound, "no such id")
            if alias is not None:
                return kind(f"alias {name!r} points at {art_id!r}: {why}", art_id=art_id, alias=name).record()
            return kind(why).record()
        rows = [ReplicaRow(a, "a", t, "storage-a", 7, row[0], 0) for a, t in sorted(self.claims) if a == art_id]
        if art_id in self.elsewhere:
            rows.append(ReplicaRow(art_id, "b", "host", "storage-b", 9, row[0], 0))
        ownership = "lease" if art_id in self.leased else "system"
        return Resolved(ArtifactRow(art_id, row[0], 1, 1, "", 0, row[1], ownership), tuple(rows), alias)

    def report(self, art_id: str, claims: list[Claim]) -> ev.ReportEnded:
        """A report of one id: what is refused, and a pending digest that becomes the real one."""
        refused: tuple[str, ...] = ()
        for claim in claims:
            known = self.catalog.get(art_id, ("", 0))
            if claim.was and known[0] == claim.was:
                known = self.catalog[art_id] = (claim.digest, known[1])
                self.known_commits.add((art_id, claim.digest))
            if known[0] == claim.digest and (claim.ownership == "lease") == (art_id in self.leased):
                self.claims.add((art_id, claim.tier))
            else:
                refused = (art_id,)
        return ev.ReportEnded(tuple((claim.art_id, claim.serial) for claim in claims), refused)

    def end_lease(self, art_id: str) -> None:
        if art_id in self.leased:
            self._delete_row(art_id)
            self.tombs.add(art_id)

    def grants(self, art_id: str) -> bool:
        """Whether the host replica may go."""
        others = any((art_id, tier) in self.claims for tier in ("file", "disk", "lease"))
        return others or art_id in self.elsewhere

    def _commit_row(self, call: fx.CallCommit) -> tuple[str, int] | ErrorRecord:
        row = self.catalog.get(call.art_id)
        leased = call.ownership == "lease"
        if call.art_id in self.aliases:
            return AlreadyExists(f"{call.art_id} is an alias").record()
        if row is not None and (row[0] != call.digest or leased != (call.art_id in self.leased)):
            return AlreadyExists(f"{call.art_id} has other content, or another owner").record()
        self.revision += 1
        self.catalog[call.art_id] = (call.digest, self.revision)
        self.tombs.discard(call.art_id)
        if leased:
            self.leased.add(call.art_id)
        self.claims |= {(call.art_id, tier) for tier in call.tiers}
        return ("stored", self.revision)

    def _delete_row(self, art_id: str) -> int:
        self.revision += 1
        del self.catalog[art_id]
        self.leased.discard(art_id)
        self.claims = {claim for claim in self.claims if claim[0] != art_id}
        self.elsewhere.discard(art_id)
        self.events.append(ev.RemoteDeleted(art_id, self.revision))
        return self.revision
