"""The catalog's rules: which content an id names, who holds it, and what may be let go.

Ids decide at commit and the first wins. A claim stands for one incarnation of a process; older ones' claims and those
that a full report did not name are kept as lost, to tell who had the bytes and since when they are gone. The last
living replica that is in memory only is never let go. Whoever asks was sighted at the registry before.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tensorcast_bus.errors import AlreadyExists, NotFound
from tensorcast_bus.messages import (
    ArtifactRow,
    Commit,
    Committed,
    DeletedRow,
    Dropped,
    DropReplica,
    ReplicaClaim,
    Report,
)
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.entries import Entries, Entry
from tensorcast_services.global_store.core.registry import Registry
from tensorcast_services.global_store.core.rows import DELETED, DeletedRecord, ReplicaRecord, SavedRows

DELETED_MAX = 100_000


class Change(Struct, frozen=True):
    """What the others are told. `kind` as in ArtifactEvent."""

    kind: str
    art_id: str
    digest: str
    revision: int


class _FullReport(Struct):
    incarnation: int
    named: set[tuple[str, str]]


class Catalog:
    """`revision` grows with every change and is found again in the saved rows."""

    def __init__(self, registry: Registry, saved: SavedRows) -> None:
        self.entries = Entries(saved)
        self._registry = registry
        self._deleted = {r.art_id: r for r in sorted(saved.deleted, key=lambda r: r.revision)}
        revisions = [r.revision for r in saved.artifacts] + [r.revision for r in saved.deleted]
        self._revision = max([0, *revisions, *(r.revision for r in saved.answers)])
        self._reports: dict[str, _FullReport] = {}
        self._changes: list[Change] = []
        self._saves: list[Save] = []

    def commit(self, ask: Commit, now_ms: int) -> Committed:
        """AlreadyExists when the id names other content."""
        entry = self.entries.find(ask.art_id)
        if entry is not None and entry.row.digest != ask.digest:
            raise AlreadyExists(
                f"{ask.art_id!r} has other content: {entry.row.digest} is there since {entry.row.created_ms} ms, "
                f"{ask.digest} was offered; put it under another id, or delete this one first",
                art_id=ask.art_id,
                stored=entry.row.digest,
                given=ask.digest,
            )
        known = entry is not None
        here = entry is not None and any(r.node == ask.node and self.is_living(r) for r in entry.claims.values())
        entry = entry or self._add(ask.art_id, ask.digest, ask.nbytes, ask.tensors, ask.owner, now_ms)
        fresh = [self._claim(entry, ask, tier, now_ms) for tier in ask.tiers]
        if known and any(fresh):
            self.entries.touch(entry, self._next())
            self._tell("replica", entry)
        return Committed("already_present" if here else "stored", entry.row.revision)

    def report(self, ask: Report, now_ms: int) -> tuple[str, ...]:
        """The ids that the storage must drop."""
        if ask.first:
            self._forget(ask.process, now_ms, older_than=ask.incarnation)
            if ask.full:
                self._reports[ask.process] = _FullReport(ask.incarnation, set())
        refused = [claim.art_id for claim in ask.claims if not self._take_claim(ask, claim, now_ms)]
        if ask.full and ask.last:
            # Without its first part (we restarted in between) a report does not tell what is gone; the storage sees
            # our new incarnation in the answer and reports again.
            report = self._reports.pop(ask.process, None)
            if report is not None and report.incarnation == ask.incarnation:
                self._forget(ask.process, now_ms, keep=report.named)
        return tuple(refused)

    def drop(self, ask: DropReplica, now_ms: int) -> Dropped:
        """A file replica goes as soon as its storage says so, since its file is gone. Everything else stays when it
        is the last one; only replicas of processes that were heard since our start count as others."""
        entry = self.entries.find(ask.art_id)
        if entry is None:
            return Dropped(granted=True, why="nobody knows the artifact")
        place = (ask.process, ask.tier)
        others = any(
            not r.lost_ms and p != place and self._registry.heard(r.process, r.incarnation)
            for p, r in entry.claims.items()
        )
        if ask.tier != "file" and not others:
            return Dropped(granted=False, why=f"it is the last living replica of {ask.art_id!r}, and in memory only")
        held = entry.claims.get(place)
        if held is None or held.lost_ms:
            return Dropped(granted=True)
        if others:
            self.entries.withdraw(entry, *place)
        else:
            self.entries.claim(entry, replace(held, lost_ms=now_ms))
        self.entries.touch(entry, self._next())
        self._tell("dropped", entry)
        return Dropped(granted=True)

    def delete(self, art_id: str, now_ms: int) -> DeletedRow:
        """NotFound when there is no such id."""
        entry = self.entries.find(art_id)
        if entry is None:
            raise NotFound(f"there is no artifact {art_id!r}", art_id=art_id)
        self.entries.remove(entry)
        record = DeletedRecord(art_id, entry.row.digest, self._next(), now_ms)
        self._deleted[art_id] = record
        self._saves.append(Save(DELETED, (art_id,), record))
        if len(self._deleted) > DELETED_MAX:
            self._undelete(next(iter(self._deleted)))
        self._changes.append(Change("deleted", art_id, record.digest, record.revision))
        return DeletedRow(art_id, record.revision)

    def is_living(self, claim: ReplicaRecord) -> bool:
        return not claim.lost_ms and self._registry.living(claim.process, claim.incarnation)

    def take(self) -> tuple[Sequence[Save], Sequence[Change]]:
        """What the last steps want saved and told."""
        saves, changes = [*self.entries.take_saves(), *self._saves], self._changes
        self._saves, self._changes = [], []
        return saves, changes

    def _add(self, art_id: str, digest: str, nbytes: int, tensors: int, owner: str, now_ms: int) -> Entry:
        row = ArtifactRow(art_id, digest, nbytes, tensors, owner, now_ms, self._revision + 1)
        entry = self.entries.add(row)
        self._next()
        if art_id in self._deleted:
            self._undelete(art_id)
        self._tell("committed", entry)
        return entry

    def _claim(self, entry: Entry, ask: Commit | Report, tier: str, now_ms: int) -> bool:
        """False when this very claim stands already."""
        art_id = entry.row.art_id
        report = self._reports.get(ask.process)
        if report is not None:
            # Also a commit between two parts of a report is named by this.
            report.named.add((art_id, tier))
        held = entry.claims.get((ask.process, tier))
        if held is not None and held.incarnation == ask.incarnation and not held.lost_ms and held.node == ask.node:
            return False
        self.entries.claim(
            entry,
            ReplicaRecord(art_id, ask.process, tier, ask.node, ask.incarnation, entry.row.digest, now_ms),
        )
        return True

    def _take_claim(self, report: Report, claim: ReplicaClaim, now_ms: int) -> bool:
        entry = self.entries.find(claim.art_id)
        if entry is None:
            if claim.art_id in self._deleted:
                return False
            # Committed at a catalog that was lost since: what exists can be found again.
            entry = self._add(claim.art_id, claim.digest, claim.nbytes, claim.tensors, "", now_ms)
            return self._claim(entry, report, claim.tier, now_ms)
        if entry.row.digest != claim.digest:
            return False
        if self._claim(entry, report, claim.tier, now_ms):
            self.entries.touch(entry, self._next())
            self._tell("replica", entry)
        return True

    def _forget(
        self, process: str, now_ms: int, *, older_than: int = 0, keep: set[tuple[str, str]] | None = None
    ) -> None:
        for art_id, tier in self.entries.of_process(process):
            entry = self.entries.find(art_id)
            assert entry is not None
            held = entry.claims[(process, tier)]
            gone = held.incarnation < older_than or (keep is not None and (art_id, tier) not in keep)
            if gone and not held.lost_ms:
                lost_ms = now_ms
                if held.incarnation < older_than:
                    lost_ms = self._registry.gone_since(process, held.incarnation, now_ms)
                self.entries.claim(entry, replace(held, lost_ms=lost_ms))

    def _undelete(self, art_id: str) -> None:
        del self._deleted[art_id]
        self._saves.append(Save(DELETED, (art_id,), None))

    def _tell(self, kind: str, entry: Entry) -> None:
        self._changes.append(Change(kind, entry.row.art_id, entry.row.digest, entry.row.revision))

    def _next(self) -> int:
        self._revision += 1
        return self._revision
