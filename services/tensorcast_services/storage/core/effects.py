"""What the core wants done, in order. Effects with a ticket are answered by the event named in their docstring.

`RunFailed` may answer any effect of a run instead. Effects without a ticket end where they are performed.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.notes import Deleted, Leased, MadeDurable, PutBaseGone, PutDone, PutExists, Redirect, Renewed
from tensorcast_services.storage.core.events import Identity

Answer = PutDone | PutExists | PutBaseGone | Leased | Renewed | MadeDurable | Deleted | Redirect | ErrorRecord


class Reply(msgspec.Struct, frozen=True):
    """Ends a request; an ErrorRecord travels with status FAILED, a Redirect with MOVED."""

    request: int
    answer: Answer


class AttachNow(msgspec.Struct, frozen=True):
    """Ends an attach with what is published."""

    request: int


class ReplyManifest(msgspec.Struct, frozen=True):
    """Ends an attach of the manifest only with AboutManifest, read from the sidecar or the lease; nothing is loaded."""

    request: int
    art_id: str
    digest: str


class AttachView(msgspec.Struct, frozen=True):
    """Ends an attach with segments that are published nowhere. The run still frees its own users."""

    request: int
    manifest_segment: int
    segments: tuple[int, ...]


class AcceptPut(msgspec.Struct, frozen=True):
    """Reserve and start the fill. RoomGiven (then Filled) or RoomRefused."""

    ticket: int


class StartLoad(msgspec.Struct, frozen=True):
    """The same for the files that OpenFiles opened."""

    ticket: int


class CancelFill(msgspec.Struct, frozen=True):
    """The fill still ends by Filled or RunFailed."""

    ticket: int


class OpenFiles(msgspec.Struct, frozen=True):
    """Read the sidecar, open and check what `tier` says: "file" (the source files), "disk" (our own), or "lease" (the
    plan is that of the kept `source`, which is above 0). FilesOpened."""

    ticket: int
    art_id: str
    source: int = 0
    tier: str = "file"


class OpenView(msgspec.Struct, frozen=True):
    """The same for the boxes that came with the attach `request`: FilesOpened, then StartLoad, Seal and AttachView."""

    ticket: int
    request: int
    art_id: str
    source: int = 0
    tier: str = "file"


class LetGo(msgspec.Struct, frozen=True):
    """Close what was kept of a registration."""

    source: int


class WriteOut(msgspec.Struct, frozen=True):
    """Write the artifact to our disk. For a durable put (not published yet) the job of `ticket` has its manifest and
    `segments`; with no segments it is what is published, and may be withdrawn while it is written: whoever writes holds
    it. WrittenOut, or RunFailed with nothing left on disk."""

    ticket: int
    art_id: str
    segments: tuple[int, ...] = ()


class CancelWrite(msgspec.Struct, frozen=True):
    """The writing still ends by WrittenOut or RunFailed."""

    ticket: int


class Forget(msgspec.Struct, frozen=True):
    """The run is over: close and forget what is kept for it; nothing answers."""

    ticket: int


class CheckFiles(msgspec.Struct, frozen=True):
    """Stat the files only. FilesChecked."""

    ticket: int
    files: tuple[Identity, ...]


class Seal(msgspec.Struct, frozen=True):
    """Finish and seal the manifest (for a load: check every digest against it), write the sidecar. Sealed."""

    ticket: int
    art_id: str
    manifest_segment: int


class Publish(msgspec.Struct, frozen=True):
    art_id: str
    manifest_segment: int
    segments: tuple[int, ...]


class Withdraw(msgspec.Struct, frozen=True):
    art_id: str


class WithdrawIdle(msgspec.Struct, frozen=True):
    """Withdraw unless somebody maps it. Withdrawn."""

    ticket: int
    art_id: str


class Free(msgspec.Struct, frozen=True):
    """Drop the run's user of each segment."""

    segments: tuple[int, ...]


class RemoveSidecar(msgspec.Struct, frozen=True):
    """What we keep on disk of an id: with `tier` "file" the sidecar for its source files, with "disk" that of our own
    disk and the segments there that no other one names, with "" both. Harmless where there is none."""

    art_id: str
    tier: str = ""


class CallCommit(msgspec.Struct, frozen=True):
    """CommitKnown, CommitRefused or CommitUnknown. `request` names the idempotency id: a repeat has the same."""

    ticket: int
    request: int
    art_id: str
    digest: str
    nbytes: int
    tensors: int
    tiers: tuple[str, ...]
    budget_ms: int
    ownership: str = "system"


class CallEndLease(msgspec.Struct, frozen=True):
    """Told until the global store knows; nothing answers. A commit of the same id is sent only after that."""

    art_id: str
    digest: str


class CallResolve(msgspec.Struct, frozen=True):
    """ResolveAnswered."""

    ticket: int
    art_id: str
    budget_ms: int


class CallDrop(msgspec.Struct, frozen=True):
    """Ask to let the host replica go. DropAnswered."""

    ticket: int
    art_id: str
    budget_ms: int


class CallDelete(msgspec.Struct, frozen=True):
    """DeleteAnswered."""

    ticket: int
    request: int
    art_id: str
    budget_ms: int


class TellLost(msgspec.Struct, frozen=True):
    """The file or disk copy of an id is no replica any more; told until the global store knows."""

    art_id: str
    tier: str = "file"


class TellHeld(msgspec.Struct, frozen=True):
    """What this storage has of an id must be claimed (again): loaded, kept after a granted drop, or not on record."""

    art_id: str


Effect = (
    Reply
    | AttachNow
    | ReplyManifest
    | AttachView
    | AcceptPut
    | StartLoad
    | CancelFill
    | OpenFiles
    | OpenView
    | LetGo
    | WriteOut
    | CancelWrite
    | Forget
    | CheckFiles
    | Seal
    | Publish
    | Withdraw
    | WithdrawIdle
    | Free
    | RemoveSidecar
    | CallCommit
    | CallEndLease
    | CallResolve
    | CallDrop
    | CallDelete
    | TellLost
    | TellHeld
)
