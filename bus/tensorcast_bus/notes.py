"""Records inside the opaque bodies of the local socket: what a client and its storage's Python say to each other.

The socket itself (frames, fds, pins) belongs to the native floor. A client sends PutDraft with a put and one Ask in a
call; the storage answers with the record named beside it, or with an ErrorRecord and status FAILED.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.manifest import Manifest


class PutDraft(msgspec.Struct, frozen=True, array_like=True):
    """With a put. Answer: PutDone, or PutExists (nothing was pulled) when this storage has the id."""

    manifest: Manifest
    durable: bool = False
    trace_id: str = ""


class PutDone(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """`outcome` is "stored" or "already_present" (two puts of equal content met)."""

    outcome: str
    digest: str
    bytes_total: int
    bytes_moved: int
    bytes_copied: int
    path: str
    ms: float


class PutExists(msgspec.Struct, frozen=True, array_like=True, tag="exists"):
    """The id is taken by content `digest`. The client digests its own bytes and decides: already_present or
    AlreadyExists. `files` is the source identity of each segment, so an unchanged file needs no reading."""

    digest: str
    bytes_total: int
    files: tuple[tuple[str, int, int, int, int], ...] = ()


PutAnswer = PutDone | PutExists


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """The storage's opaque greeting at connect."""

    node: str
    process: str
    incarnation: int
    version: str


class AskDelete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Answer: Deleted."""

    art_id: str


class AskDescribe(msgspec.Struct, frozen=True, array_like=True, tag="describe"):
    """What this storage itself knows of an id. Answer: Described."""

    art_id: str


class AskStats(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Answer: StorageStats."""


class AskProgress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """How far the put or load of an id is. Answer: Progress."""

    art_id: str


Ask = AskDelete | AskDescribe | AskStats | AskProgress


class Deleted(msgspec.Struct, frozen=True, array_like=True):
    art_id: str


class Described(msgspec.Struct, frozen=True, array_like=True):
    """`state`: "resident", "loading", "on_file" (evicted, source unchanged when last seen) or "unknown"."""

    state: str
    digest: str = ""
    bytes_total: int = 0
    pins: int = 0


class StorageStats(msgspec.Struct, frozen=True, array_like=True):
    """Figures of the pool (names as in tc::PoolStats), bytes or counts."""

    pool: dict[str, int]
    artifacts: int
    evictable_bytes: int
    sessions: int
    socket_puts: int
    vm_puts: int
    evictions: int
    loads: int


class Progress(msgspec.Struct, frozen=True, array_like=True):
    bytes_done: int
    bytes_total: int
