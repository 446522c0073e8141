"""Who holds what: the single changes of artifacts and claims that commits, reports, drops and ends are made of.

A claim stands for one incarnation of a process; one that does not stand any more is kept as lost, to tell who had the
bytes and since when they are gone. Called by ``catalog`` and ``reports``, which have checked what may happen; every
change here is noted in the journal, and those that others must hear of are told.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tensorcast_bus.messages import ArtifactRow, Commit, DeletedRow, Report
from tensorcast_services.global_store.core.entries import Entries, Entry, Place
from tensorcast_services.global_store.core.journal import Change, Journal
from tensorcast_services.global_store.core.leases import Leases
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.rows import LEASE, DeletedRecord, ReplicaRecord, SavedRows
from tensorcast_services.global_store.core.tombstones import Tombstones


class Holdings:
    def __init__(self, registry: Registry, saved: SavedRows, journal: Journal) -> None:
        self.entries = Entries(saved, journal)
        self.tombstones = Tombstones(saved, journal)
        self.leases = Leases(row.art_id for row in saved.artifacts if row.ownership == LEASE)
        self._registry = registry
        self._journal = journal

    def is_living(self, claim: ReplicaRecord) -> bool:
        return not claim.lost_ms and self._registry.living(claim.process, claim.incarnation)

    def living(self, entry: Entry) -> Sequence[ReplicaRecord]:
        return [claim for claim in entry.claims.values() if self.is_living(claim)]

    def has_others(self, entry: Entry, place: Place) -> bool:
        """Whether a claim at another place stands; of processes only those count that were heard since our start."""
        return any(
            not claim.lost_ms and other != place and self._registry.heard(claim.process, claim.incarnation)
            for other, claim in entry.claims.items()
        )

    def add(self, row: ArtifactRow) -> Entry:
        """Its revision is given here. CapacityExceeded."""
        entry = self.entries.add(replace(row, revision=self._journal.next_revision()))
        self.tombstones.lift(row.art_id)
        if row.ownership == LEASE:
            self.leases.add(row.art_id)
        self._tell("committed", entry)
        return entry

    def claim(self, entry: Entry, ask: Commit | Report, tier: str, now_ms: int) -> bool:
        """False when this very claim stands already."""
        art_id = entry.row.art_id
        held = entry.claims.get((ask.process, tier))
        if held is not None and held.incarnation == ask.incarnation and not held.lost_ms and held.node == ask.node:
            return False
        self.entries.claim(
            entry,
            ReplicaRecord(art_id, ask.process, tier, ask.node, ask.incarnation, entry.row.digest, now_ms),
        )
        return True

    def take_over(self, entry: Entry, process: str, ownership: str, owner: str, now_ms: int) -> bool:
        """A lease that nobody living holds goes to a process that brings the same content. False when nothing had to
        change."""
        if entry.row.ownership != LEASE:
            return False
        others = [place for place, claim in entry.claims.items() if place[0] != process and not claim.lost_ms]
        for place in others:
            # Its process may come back and go on; the lease is another's by then.
            self.lose(entry, place, now_ms)
        if ownership == LEASE:
            return bool(others)
        self.leases.discard(entry.row.art_id)
        self.entries.change(entry, replace(entry.row, ownership=ownership, owner=owner))
        return True

    def settle(self, entry: Entry, digest: str) -> None:
        """The files behind a pending digest were read: this is what they hold."""
        self.entries.change(entry, replace(entry.row, digest=digest))
        for claim in list(entry.claims.values()):
            self.entries.claim(entry, replace(claim, digest=digest))

    def lose(self, entry: Entry, place: Place, now_ms: int) -> None:
        """Marks a standing claim as lost: since its incarnation was last heard, or since now where that still lives."""
        claim = entry.claims[place]
        living = self._registry.living(claim.process, claim.incarnation)
        lost_ms = now_ms if living else self._registry.gone_since(claim.process, claim.incarnation, now_ms)
        self.entries.claim(entry, replace(claim, lost_ms=lost_ms))

    def changed(self, kind: str, entry: Entry) -> None:
        self.entries.change(entry, replace(entry.row, revision=self._journal.next_revision()))
        self._tell(kind, entry)

    def remove(self, entry: Entry, kind: str, now_ms: int, *, holder: str = "") -> DeletedRow:
        """`kind` "deleted", or "lease_ended" with its holder."""
        art_id, digest = entry.row.art_id, entry.row.digest
        self.entries.remove(entry)
        self.leases.discard(art_id)
        revision = self._journal.next_revision()
        reason = LEASE if kind == "lease_ended" else kind
        self.tombstones.set(DeletedRecord(art_id, digest, revision, now_ms, reason, holder))
        self._journal.tell(Change(kind, art_id, digest, revision))
        return DeletedRow(art_id, revision)

    def _tell(self, kind: str, entry: Entry) -> None:
        self._journal.tell(Change(kind, entry.row.art_id, entry.row.digest, entry.row.revision))
