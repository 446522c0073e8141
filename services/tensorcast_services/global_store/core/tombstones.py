"""Ids that are gone: what a report must not bring back, and why a reader does not find what he had yesterday.

Bounded: the oldest is forgotten first, and its id is then as one that never was.
"""

from __future__ import annotations

from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.journal import Journal
from tensorcast_services.global_store.core.rows import DELETED, DeletedRecord, SavedRows

TOMBSTONES_MAX = 100_000


class Tombstones:
    """In the order of their revisions, which is that of time."""

    def __init__(self, saved: SavedRows, journal: Journal) -> None:
        self._records = {r.art_id: r for r in sorted(saved.deleted, key=lambda r: r.revision)}
        self._journal = journal

    def __len__(self) -> int:
        return len(self._records)

    def find(self, art_id: str) -> DeletedRecord | None:
        return self._records.get(art_id)

    def set(self, record: DeletedRecord) -> None:
        """For an id that has none."""
        self._records[record.art_id] = record
        self._journal.save(Save(DELETED, (record.art_id,), record))
        if len(self._records) > TOMBSTONES_MAX:
            self.lift(next(iter(self._records)))

    def lift(self, art_id: str) -> None:
        """The id lives again. Harmless where there is none."""
        if self._records.pop(art_id, None) is not None:
            self._journal.save(Save(DELETED, (art_id,), None))
