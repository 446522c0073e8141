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
    """A checked draft. `need_bytes` is what the pool must find; `budget_ms` is what its asker will still wait. The run
    has the number of the request; where the bytes come from the pool itself (a view that is made an artifact), a
    `ticket` of its own (Artifacts.new_ticket), under which the job is kept."""

    request: int
    art_id: str
    budget_ms: int
    need_bytes: int
    durable: bool = False
    ticket: int = 0


class RegisterAsked(msgspec.Struct, frozen=True):
    """A checked lease draft. `source` is the native floor's number for what the caller's put named (LocalServer.keep);
    `lease` names the lease. `eager_bytes` above 0: the caller's memory cannot be read later, so the bytes are taken now
    (as a put of that need) and the lease governs the copy alone. `digest` may be pending."""

    request: int
    art_id: str
    budget_ms: int
    source: int
    lease: int
    ttl_ms: int
    digest: str
    nbytes: int
    tensors: int
    path: str
    eager_bytes: int = 0


class RenewAsked(msgspec.Struct, frozen=True):
    request: int
    art_id: str
    lease: int
    ttl_ms: int


class ReleaseAsked(msgspec.Struct, frozen=True):
    request: int
    art_id: str
    lease: int
    budget_ms: int


class OwnerDied(msgspec.Struct, frozen=True):
    """The process behind a kept source has ended."""

    source: int


class DurableAsked(msgspec.Struct, frozen=True):
    request: int
    art_id: str
    budget_ms: int


class AttachAsked(msgspec.Struct, frozen=True):
    """`how`: "whole", "manifest" (only, nothing is loaded for it), "view", or "parts" for a view of whole tensors (its
    wish is kept beside the request)."""

    request: int
    art_id: str
    budget_ms: int
    how: str = "whole"


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
    """The fill runs; the manifest's own segment (reserved with it) belongs to the run from here on, and so does one
    user of every `borrowed` segment, until Filled names all segments of the run."""

    ticket: int
    manifest_segment: int
    borrowed: tuple[int, ...] = ()


class RoomRefused(msgspec.Struct, frozen=True):
    ticket: int
    free_bytes: int
    longest_run_bytes: int
    capacity_bytes: int
    why: str
    uses: tuple[Use, ...]


class FilesOpened(msgspec.Struct, frozen=True):
    """The sources of a load or of a view are open and unchanged (files, our own disk's, or a kept source), and the
    manifest was read."""

    ticket: int
    need_bytes: int


class FilesChecked(msgspec.Struct, frozen=True):
    """`changed` is empty, or says which file is not what it was; with `sure` False nobody could look."""

    ticket: int
    changed: str = ""
    sure: bool = True


class Filled(msgspec.Struct, frozen=True):
    """All segments are sealed; each has one user, the run. Borrowed ones are among them, in the manifest's order."""

    ticket: int
    segments: tuple[int, ...]
    bytes_moved: int
    bytes_copied: int
    path: str
    ms: float


class Sealed(msgspec.Struct, frozen=True):
    """The manifest is finished and sealed; for `in_file` its sidecar is on disk. `digest` is never pending."""

    ticket: int
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    in_file: bool


class RunFailed(msgspec.Struct, frozen=True):
    """A step of a run failed and left no segment behind (but for those the run owns); `source_lost` when its files are
    not what they were; `base_gone` when what a delta version wanted to borrow is not in the pool any more (the
    trouble's context names the `base`)."""

    ticket: int
    trouble: ErrorRecord
    source_lost: bool = False
    base_gone: bool = False


class WrittenOut(msgspec.Struct, frozen=True):
    """The artifact is on our disk, whole and synced, with its sidecar. `nbytes` is what it takes there."""

    ticket: int
    nbytes: int


class PoolSeen(msgspec.Struct, frozen=True):
    """How full the pool is; told while it is above the high watermark (see spilling.py)."""

    used_bytes: int
    capacity_bytes: int
    uses: tuple[Use, ...]


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
    """Sidecars of an earlier incarnation: with `files` its source files are unchanged, with `disk_bytes` above 0 its
    segments are on our own disk; or both, in one event or in two."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    disk_bytes: int = 0


Event = (
    PutAsked
    | RegisterAsked
    | RenewAsked
    | ReleaseAsked
    | OwnerDied
    | DurableAsked
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
    | WrittenOut
    | PoolSeen
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
