"""The catalog's memory: artifacts in the order of their ids, the claims on each, and who claims what.

Every change is noted in the journal. Finding, adding and removing cost no walk over all artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from tensorcast_bus.errors import CapacityExceeded
from tensorcast_bus.messages import ArtifactRow
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.journal import Journal
from tensorcast_services.global_store.core.names import Names
from tensorcast_services.global_store.core.rows import ARTIFACTS, REPLICAS, ReplicaRecord, SavedRows

ARTIFACTS_MAX = 2_000_000
CLAIMS_AN_ARTIFACT_MAX = 256

Place = tuple[str, str]  # (process, tier)


class Entry:
    """An artifact and the claims on its bytes."""

    __slots__ = ("claims", "row")

    def __init__(self, row: ArtifactRow) -> None:
        self.row = row
        self.claims: dict[Place, ReplicaRecord] = {}


class Entries:
    def __init__(self, saved: SavedRows, journal: Journal) -> None:
        self._journal = journal
        self._entries = {row.art_id: Entry(row) for row in saved.artifacts}
        self._order = Names(self._entries)
        self._of_process: dict[str, set[tuple[str, str]]] = {}
        for record in saved.replicas:
            # A claim without its artifact cannot be saved, since both are saved together; ignore what others wrote.
            if record.art_id in self._entries:
                self._place(record)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, art_id: str) -> Entry | None:
        return self._entries.get(art_id)

    def add(self, row: ArtifactRow) -> Entry:
        """CapacityExceeded at ARTIFACTS_MAX."""
        if len(self._entries) >= ARTIFACTS_MAX:
            raise CapacityExceeded(
                f"the catalog holds {len(self._entries)} artifacts, its limit; delete some before {row.art_id!r}",
                art_id=row.art_id,
                artifacts_max=ARTIFACTS_MAX,
            )
        entry = self._entries[row.art_id] = Entry(row)
        self._order.add(row.art_id)
        self._journal.save(Save(ARTIFACTS, (row.art_id,), row, new=True))
        return entry

    def change(self, entry: Entry, row: ArtifactRow) -> None:
        """`row` is the entry's new one, of the same id."""
        entry.row = row
        self._journal.save(Save(ARTIFACTS, (row.art_id,), row))

    def remove(self, entry: Entry) -> None:
        art_id = entry.row.art_id
        for process, tier in list(entry.claims):
            self.withdraw(entry, process, tier)
        del self._entries[art_id]
        self._order.remove(art_id)
        self._journal.save(Save(ARTIFACTS, (art_id,), None))

    def claim(self, entry: Entry, record: ReplicaRecord) -> None:
        """Also the way to mark a claim as lost."""
        new = (record.process, record.tier) not in entry.claims
        if new and len(entry.claims) >= CLAIMS_AN_ARTIFACT_MAX:
            self._make_room(entry)
        self._place(record)
        self._journal.save(Save(REPLICAS, _key(record), record, new=new))

    def withdraw(self, entry: Entry, process: str, tier: str) -> None:
        record = entry.claims.pop((process, tier))
        self._of_process[process].discard((record.art_id, tier))
        self._journal.save(Save(REPLICAS, _key(record), None))

    def of_process(self, process: str) -> Set[tuple[str, str]]:
        """(id, tier) of all that a process claims or once claimed."""
        return frozenset(self._of_process.get(process, ()))

    def after(self, prefix: str, after: str) -> Iterator[Entry]:
        """Entries with the prefix, from the first id behind `after`, in the order of ids."""
        return (self._entries[art_id] for art_id in self._order.after(prefix, after))

    def _place(self, record: ReplicaRecord) -> None:
        self._entries[record.art_id].claims[(record.process, record.tier)] = record
        self._of_process.setdefault(record.process, set()).add((record.art_id, record.tier))

    def _make_room(self, entry: Entry) -> None:
        lost = [(r.lost_ms, place) for place, r in entry.claims.items() if r.lost_ms]
        if not lost:
            raise CapacityExceeded(
                f"{entry.row.art_id!r} has {len(entry.claims)} replicas, its limit", art_id=entry.row.art_id
            )
        self.withdraw(entry, *min(lost)[1])


def _key(record: ReplicaRecord) -> tuple[str, str, str]:
    return record.art_id, record.process, record.tier
