"""The rows that the global store saves, one struct a table; ``store`` makes its tables from their fields.

Times are ms since the epoch. Only what a restart cannot rediscover is saved: workers announce themselves again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from tensorcast_bus.messages import AliasRow, ArtifactRow

ARTIFACTS = "artifacts"
REPLICAS = "replicas"
DELETED = "deleted"
ANSWERS = "answers"
ALIASES = "aliases"
MARKS = "marks"

# Whose an artifact is (ArtifactRow.ownership), and the tier and the reason of the same name.
SYSTEM = "system"
LEASE = "lease"


_PENDING = re.compile(r"pending:[0-9a-f]{32}")


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
    """An id that is gone: a storage that slept through it must not bring it back by a report. `reason` is "deleted", or
    "lease" where the lease of `process` ended."""

    art_id: str
    digest: str
    revision: int
    deleted_ms: int
    reason: str = "deleted"
    process: str = ""


class AnswerRecord(Struct, frozen=True):
    """What was answered to a command's idempotency id. `fingerprint` is that of the command."""

    idem: str
    fingerprint: str
    outcome: str
    revision: int
    at_ms: int


class MarkRecord(Struct, frozen=True):
    """A number that no other row holds."""

    name: str
    value: int


class SavedRows(Struct, frozen=True):
    """All that the last run saved."""

    artifacts: Sequence[ArtifactRow] = ()
    replicas: Sequence[ReplicaRecord] = ()
    deleted: Sequence[DeletedRecord] = ()
    answers: Sequence[AnswerRecord] = ()
    aliases: Sequence[AliasRow] = ()
    marks: Sequence[MarkRecord] = ()


# The struct of a table and how many of its first fields are its key.
TABLES: Mapping[str, tuple[type[Struct], int]] = {
    ARTIFACTS: (ArtifactRow, 1),
    REPLICAS: (ReplicaRecord, 3),
    DELETED: (DeletedRecord, 1),
    ANSWERS: (AnswerRecord, 1),
    ALIASES: (AliasRow, 1),
    MARKS: (MarkRecord, 1),
}


def is_pending(digest: str) -> bool:
    """Whether it stands for files that nobody has read yet."""
    return _PENDING.fullmatch(digest) is not None
