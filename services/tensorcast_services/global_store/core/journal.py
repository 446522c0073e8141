"""What a step changed: the rows to save, what the others are told, and the revision that orders both.

One for the whole core, so everything that a step did leaves together and is saved in one transaction. The revision
grows with every change and is found again in the saved rows: whoever removes the row that holds the newest one without
leaving another in its place calls `keep_revision`, or a restart would give out that revision a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.rows import MARKS, MarkRecord, SavedRows

REVISION = "revision"


class Change(Struct, frozen=True):
    """What the others are told. Fields as in ArtifactEvent."""

    kind: str
    art_id: str
    digest: str
    revision: int
    target: str = ""


class Journal:
    def __init__(self, saved: SavedRows) -> None:
        self._revision = max(
            0,
            max((row.revision for row in saved.artifacts), default=0),
            max((row.revision for row in saved.deleted), default=0),
            max((row.revision for row in saved.answers), default=0),
            max((row.revision for row in saved.aliases), default=0),
            max((mark.value for mark in saved.marks if mark.name == REVISION), default=0),
        )
        self._saves: list[Save] = []
        self._changes: list[Change] = []

    def next_revision(self) -> int:
        self._revision += 1
        return self._revision

    def keep_revision(self) -> None:
        self.save(Save(MARKS, (REVISION,), MarkRecord(REVISION, self._revision)))

    def save(self, save: Save) -> None:
        self._saves.append(save)

    def tell(self, change: Change) -> None:
        self._changes.append(change)

    def take(self) -> tuple[Sequence[Save], Sequence[Change]]:
        """What was noted since the last call."""
        saves, self._saves = self._saves, []
        changes, self._changes = self._changes, []
        return saves, changes
