"""The rows that the global store saves, one struct a table; ``store`` makes its tables from their fields.

Times are ms since the epoch. Only what a restart cannot rediscover is saved: workers announce themselves again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from tensorcast_bus.messages import ArtifactRow

ARTIFACTS = "artifacts"
REPLICAS = "replicas"
DELETED = "deleted"
ANSWERS = "answers"


class ReplicaRecord(Struct, frozen=True):
    """A claim on bytes. `lost_ms` is 0 while the claim stands; a lost claim stays, to tell who had the bytes."""

    art_id: str
    process: str
    tier: str
    node: str
    incarnation: int
    digest: str
    since_ms: int
    lost_ms: int = 0


class DeletedRecord(Struct, frozen=True):
    """An id that was deleted: a storage that slept through it must not bring it back by a report."""

    art_id: str
    digest: str
    revision: int
    deleted_ms: int


class AnswerRecord(Struct, frozen=True):
    """What was answered to a command's idempotency id. `fingerprint` is that of the command."""

    idem: str
    fingerprint: str
    outcome: str
    revision: int
    at_ms: int


class SavedRows(Struct, frozen=True):
    """All that the last run saved."""

    artifacts: Sequence[ArtifactRow] = ()
    replicas: Sequence[ReplicaRecord] = ()
    deleted: Sequence[DeletedRecord] = ()
    answers: Sequence[AnswerRecord] = ()


# The struct of a table and how many of its first fields are its key.
TABLES: Mapping[str, tuple[type[Struct], int]] = {
    ARTIFACTS: (ArtifactRow, 1),
    REPLICAS: (ReplicaRecord, 3),
    DELETED: (DeletedRecord, 1),
    ANSWERS: (AnswerRecord, 1),
}
