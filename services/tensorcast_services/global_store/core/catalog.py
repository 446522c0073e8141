"""The catalog's rules: which content an id names, who holds it, and what may be let go.

Ids decide at commit and the first wins; they share one namespace with aliases. The last living replica that is in
memory only is never let go. An id under a lease is its holder's and goes with the lease. Whoever asks was sighted at
the registry before.
"""

from __future__ import annotations

from tensorcast_bus.errors import AlreadyExists, NotFound
from tensorcast_bus.messages import (
    ArtifactRow,
    Commit,
    Committed,
    DeletedRow,
    Dropped,
    DropReplica,
    EndLease,
    Report,
)
from tensorcast_services.global_store.core.aliases import Aliases
from tensorcast_services.global_store.core.entries import Entries, Entry
from tensorcast_services.global_store.core.holdings import Holdings
from tensorcast_services.global_store.core.journal import Journal
from tensorcast_services.global_store.core.leases import LEASE_GRACE_MS, what_forbids
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.reports import Reports
from tensorcast_services.global_store.core.rows import LEASE, ReplicaRecord, SavedRows, is_pending
from tensorcast_services.global_store.core.tombstones import Tombstones

# A storage cannot be asked to keep what is in these: when it wants to drop them their bytes are gone already.
GONE_TIERS = ("disk", "file", LEASE)


class Catalog:
    """`aliases`, `entries` and `tombstones` are there to be read."""

    def __init__(self, registry: Registry, saved: SavedRows, journal: Journal) -> None:
        self._registry = registry
        self._holdings = Holdings(registry, saved, journal)
        self.entries: Entries = self._holdings.entries
        self.tombstones: Tombstones = self._holdings.tombstones
        self.aliases = Aliases(self.entries, saved, journal)
        self._reports = Reports(self._holdings, self.aliases)

    def commit(self, ask: Commit, now_ms: int) -> Committed:
        """AlreadyExists when the id names other content, is an alias, or is held in a way that forbids it."""
        self._check_no_alias(ask.art_id)
        entry = self.entries.find(ask.art_id)
        if entry is not None and entry.row.digest != ask.digest:
            if not self._is_registered_again(entry, ask):
                raise self._other_content(entry, ask)
            self._holdings.settle(entry, ask.digest)
        forbidden = what_forbids(entry, ask.process, ask.ownership, self.is_living) if entry is not None else ""
        if entry is not None and forbidden:
            raise AlreadyExists(forbidden, art_id=ask.art_id, stored=entry.row.ownership, given=ask.ownership)
        here = entry is not None and any(claim.node == ask.node for claim in self._holdings.living(entry))
        known = entry is not None
        if entry is None:
            entry = self._holdings.add(_row(ask, now_ms))
            taken = False
        else:
            taken = self._holdings.take_over(entry, ask.process, ask.ownership, ask.owner, now_ms)
        fresh = [self._holdings.claim(entry, ask, tier, now_ms) for tier in ask.tiers]
        for tier in ask.tiers:
            self._reports.note(ask.process, ask.art_id, tier)
        if known and (taken or any(fresh)):
            self._holdings.changed("replica", entry)
        return Committed("already_present" if here else "stored", entry.row.revision)

    def report(self, ask: Report, now_ms: int) -> tuple[str, ...]:
        """The ids that the storage must drop."""
        return self._reports.take(ask, now_ms)

    def drop(self, ask: DropReplica, now_ms: int) -> Dropped:
        """A replica that is not in the pool goes as soon as its storage says so, since its bytes are gone. One in
        memory stays when it is the last one; only replicas of processes that were heard since our start count as
        others, and this very process's own on disk, in a file or under a lease."""
        entry = self.entries.find(ask.art_id)
        if entry is None:
            return Dropped(granted=True, why="nobody knows the artifact")
        place = (ask.process, ask.tier)
        gone = ask.tier in GONE_TIERS
        if not gone and not self._holdings.has_others(entry, place):
            return Dropped(granted=False, why=f"it is the last living replica of {ask.art_id!r}, and in memory only")
        held = entry.claims.get(place)
        if held is None or held.lost_ms:
            return Dropped(granted=True)
        if gone:
            self._holdings.lose(entry, place, now_ms)
        else:
            self.entries.withdraw(entry, *place)
        self._holdings.changed("dropped", entry)
        return Dropped(granted=True)

    def delete(self, art_id: str, now_ms: int) -> DeletedRow:
        """NotFound when there is no such id."""
        entry = self.entries.find(art_id)
        if entry is not None:
            return self._holdings.remove(entry, "deleted", now_ms)
        alias = self.aliases.find(art_id)
        if alias is not None:
            raise NotFound(
                f"{art_id!r} is an alias of {alias.art_id!r} and no artifact: remove the name with delete_alias, or "
                f"delete {alias.art_id!r} itself",
                art_id=art_id,
                target=alias.art_id,
            )
        raise NotFound(f"there is no artifact {art_id!r}", art_id=art_id)

    def end_lease(self, ask: EndLease, now_ms: int) -> DeletedRow:
        """Revision 0, and nothing done, unless this very incarnation holds the lease on this content."""
        entry = self.entries.find(ask.art_id)
        if entry is None or entry.row.ownership != LEASE:
            return DeletedRow(ask.art_id, 0)
        # The storage may not have heard yet that a pending digest was settled, nor we.
        same = ask.digest == entry.row.digest or is_pending(ask.digest) or is_pending(entry.row.digest)
        mine = [c for c in entry.claims.values() if c.process == ask.process and c.incarnation == ask.incarnation]
        # A report that went out before this ask may have ended the claim already: then nobody else's stands either.
        holds = any(not c.lost_ms for c in mine) or (mine and all(c.lost_ms for c in entry.claims.values()))
        if not same or not holds:
            return DeletedRow(ask.art_id, 0)
        return self._holdings.remove(entry, "lease_ended", now_ms, holder=ask.process)

    def end_silent_leases(self, now_ms: int) -> None:
        """Those that nobody living has held for LEASE_GRACE_MS."""
        for art_id in self._holdings.leases.over(self._registry.awake_ms, self._is_held):
            entry = self.entries.find(art_id)
            assert entry is not None
            last = max(entry.claims.values(), key=lambda claim: (claim.since_ms, claim.process), default=None)
            self._holdings.remove(entry, "lease_ended", now_ms, holder=last.process if last is not None else "nobody")

    @property
    def leased(self) -> int:
        """How many ids are under a lease."""
        return len(self._holdings.leases)

    def is_living(self, claim: ReplicaRecord) -> bool:
        return self._holdings.is_living(claim)

    def _is_registered_again(self, entry: Entry, ask: Commit) -> bool:
        """Files whose digest was settled, and whose storage was restarted since: it has not read them yet, so their
        digest is pending again. Nobody else has a part in that lease."""
        again = ask.ownership == LEASE and is_pending(ask.digest) and entry.row.ownership == LEASE
        mine = all(claim.process == ask.process for claim in entry.claims.values())
        return again and mine and not self._holdings.living(entry)

    def _is_held(self, art_id: str) -> bool:
        entry = self.entries.find(art_id)
        return entry is not None and bool(self._holdings.living(entry))

    def _check_no_alias(self, art_id: str) -> None:
        alias = self.aliases.find(art_id)
        if alias is not None:
            raise AlreadyExists(
                f"{art_id!r} is an alias of {alias.art_id!r}: use another id, or remove the alias first",
                art_id=art_id,
                target=alias.art_id,
            )

    def _other_content(self, entry: Entry, ask: Commit) -> AlreadyExists:
        row = entry.row
        how = "put it under another id, or delete this one first"
        if row.ownership == LEASE:
            held = self._holdings.living(entry)
            who = (
                f"{held[0].process} holds it under a lease"
                if held
                else f"its lease is held by nobody living and ends {LEASE_GRACE_MS // 1000} s after that was seen"
            )
            how = f"{who}; use another id, or release or delete this one first"
        return AlreadyExists(
            f"{row.art_id!r} has other content: {row.digest} is there since {row.created_ms} ms, {ask.digest} was "
            f"offered; {how}",
            art_id=row.art_id,
            stored=row.digest,
            given=ask.digest,
        )


def _row(ask: Commit, now_ms: int) -> ArtifactRow:
    return ArtifactRow(ask.art_id, ask.digest, ask.nbytes, ask.tensors, ask.owner, now_ms, ownership=ask.ownership)
