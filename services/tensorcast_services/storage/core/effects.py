"""What the core wants done, in order. Effects with a ticket are answered by the event named in their docstring.

`RunFailed` may answer any effect of a run instead. Effects without a ticket end where they are performed.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.notes import Deleted, PutDone, PutExists
from tensorcast_services.storage.core.events import Identity


class Reply(msgspec.Struct, frozen=True):
    """Ends a request; an ErrorRecord travels with status FAILED."""

    request: int
    answer: PutDone | PutExists | Deleted | ErrorRecord


class AttachNow(msgspec.Struct, frozen=True):
    """Ends an attach with what is published."""

    request: int


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
    """Read the sidecar, open and check the source files. FilesOpened."""

    ticket: int
    art_id: str


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
    art_id: str


class CallCommit(msgspec.Struct, frozen=True):
    """CommitKnown, CommitRefused or CommitUnknown. `request` names the idempotency id: a repeat has the same."""

    ticket: int
    request: int
    art_id: str
    digest: str
    nbytes: int
    tensors: int
    in_file: bool
    budget_ms: int


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
    """The source file of an id is no replica any more; told until the global store knows."""

    art_id: str


class TellHeld(msgspec.Struct, frozen=True):
    """What this storage has of an id must be claimed (again): loaded, kept after a granted drop, or not on record."""

    art_id: str


Effect = (
    Reply
    | AttachNow
    | AcceptPut
    | StartLoad
    | CancelFill
    | OpenFiles
    | Forget
    | CheckFiles
    | Seal
    | Publish
    | Withdraw
    | WithdrawIdle
    | Free
    | RemoveSidecar
    | CallCommit
    | CallResolve
    | CallDrop
    | CallDelete
    | TellLost
    | TellHeld
)
