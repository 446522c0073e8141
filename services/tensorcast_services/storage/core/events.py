"""What the core is told. Every event names the request or the ticket that it belongs to.

A *ticket* stands for one run of work (a put's has the number of its request, so that native fills carry it), or for one
call to the global store. An answer whose ticket the core has dropped is ignored, after whatever it owns is freed.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.messages import Resolved

Identity = tuple[str, int, int, int, int]  # path, device, inode, size, mtime_ns: a source file as it was seen


class PutAsked(msgspec.Struct, frozen=True):
    """A checked draft. `need_bytes` is what the pool must find; `budget_ms` is what its asker will still wait."""

    request: int
    art_id: str
    budget_ms: int
    need_bytes: int


class AttachAsked(msgspec.Struct, frozen=True):
    request: int
    art_id: str
    budget_ms: int


class DeleteAsked(msgspec.Struct, frozen=True):
    request: int
    art_id: str
    budget_ms: int


class AskerGone(msgspec.Struct, frozen=True):
    request: int


class Use(msgspec.Struct, frozen=True):
    """A published artifact as the local server sees it."""

    art_id: str
    last_ns: int
    pins: int
    nbytes: int


class RoomGiven(msgspec.Struct, frozen=True):
    """The fill runs; the manifest's own segment (reserved with it) belongs to the run from here on."""

    ticket: int
    manifest_segment: int


class RoomRefused(msgspec.Struct, frozen=True):
    ticket: int
    free_bytes: int
    longest_run_bytes: int
    capacity_bytes: int
    why: str
    uses: tuple[Use, ...]


class FilesOpened(msgspec.Struct, frozen=True):
    """The source files of a load are open and unchanged, and its sidecar was read."""

    ticket: int
    need_bytes: int


class FilesChecked(msgspec.Struct, frozen=True):
    """`changed` is empty, or says which file is not what it was; with `sure` False nobody could look."""

    ticket: int
    changed: str = ""
    sure: bool = True


class Filled(msgspec.Struct, frozen=True):
    """All segments are sealed; each has one user, the run."""

    ticket: int
    segments: tuple[int, ...]
    bytes_moved: int
    bytes_copied: int
    path: str
    ms: float


class Sealed(msgspec.Struct, frozen=True):
    """The manifest is finished and sealed; for `in_file` its sidecar is on disk."""

    ticket: int
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    in_file: bool


class RunFailed(msgspec.Struct, frozen=True):
    """A step of a run failed and left no segment behind; `source_lost` when its files are not what they were."""

    ticket: int
    trouble: ErrorRecord
    source_lost: bool = False


class Withdrawn(msgspec.Struct, frozen=True):
    """`done` is False when a reader mapped the artifact in the meantime: it stays published."""

    ticket: int
    done: bool


class CommitKnown(msgspec.Struct, frozen=True):
    ticket: int
    outcome: str
    revision: int


class CommitRefused(msgspec.Struct, frozen=True):
    ticket: int
    trouble: ErrorRecord


class CommitUnknown(msgspec.Struct, frozen=True):
    """No answer within the call's budget: the commit may or may not have happened, or may still happen."""

    ticket: int
    trouble: ErrorRecord


class ResolveAnswered(msgspec.Struct, frozen=True):
    ticket: int
    resolved: Resolved | None = None
    trouble: ErrorRecord | None = None


class DropAnswered(msgspec.Struct, frozen=True):
    ticket: int
    granted: bool
    why: str = ""


class DeleteAnswered(msgspec.Struct, frozen=True):
    ticket: int
    revision: int = 0
    trouble: ErrorRecord | None = None


class RemoteDeleted(msgspec.Struct, frozen=True):
    art_id: str
    revision: int


class ReportEnded(msgspec.Struct, frozen=True):
    """`claimed` is (id, serial of its holding) of every claim sent; `refused` are ids to let go."""

    claimed: tuple[tuple[str, int], ...]
    refused: tuple[str, ...]


class Restored(msgspec.Struct, frozen=True):
    """A sidecar of an earlier incarnation whose source files are unchanged."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]


Event = (
    PutAsked
    | AttachAsked
    | DeleteAsked
    | AskerGone
    | RoomGiven
    | RoomRefused
    | FilesOpened
    | FilesChecked
    | Filled
    | Sealed
    | RunFailed
    | Withdrawn
    | CommitKnown
    | CommitRefused
    | CommitUnknown
    | ResolveAnswered
    | DropAnswered
    | DeleteAnswered
    | RemoteDeleted
    | ReportEnded
    | Restored
)
