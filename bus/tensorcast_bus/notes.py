"""Records inside the opaque bodies of the local socket: what a client and its storage's Python say to each other.

The socket itself (frames, fds, pins) belongs to the native floor. A client sends PutDraft with a put and one Ask in a
call; the storage answers with the record named beside it, or with an ErrorRecord and status FAILED.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.manifest import Manifest


class PutDraft(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """With a put. Answer: PutDone, PutExists (nothing was pulled) when this storage has the id, or PutBaseGone.

    A delta version names its `base` and the base's content digest: segments of the manifest that have a key are the
    base's; they come after those that the put brings, and only the brought ones count in the put's own plan. Rows in
    borrowed segments are the base's rows (dtype, nbytes, place and digest); their names may differ."""

    manifest: Manifest
    durable: bool = False
    trace_id: str = ""
    base: str = ""
    base_digest: str = ""


class LeaseDraft(msgspec.Struct, frozen=True, array_like=True, tag="lease"):
    """With a put that registers: the storage keeps the plan, the open files and the way to the caller's memory, and
    pulls nothing until somebody reads. `digest` is the content digest; "pending:" and 32 hex digits (over the
    identities of the files) where only files were named, and then the rows have no digests. Answer: Leased."""

    manifest: Manifest
    ttl_ms: int
    digest: str
    trace_id: str = ""


Draft = PutDraft | LeaseDraft


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A part of one tensor: of `source`, in every dimension `lengths` elements from `starts` on, under `name`."""

    name: str
    source: str
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


class ViewWish(msgspec.Struct, frozen=True, array_like=True):
    """With an attach: these parts are enough. A storage that has the artifact in its pool answers with the whole of
    it, one that has not reads only these bytes and answers with a manifest whose `view` is True: one dense segment,
    the boxes in order. `digest` as in Described: of the content that the boxes were made for. `whole`: every box is all
    of its tensor, so what is read can be compared with a digest. Where nothing else could show that a slice's bytes
    are right (the memory of an owner, our own disk), slices make the storage load the artifact and answer with that."""

    digest: str
    boxes: tuple[Box, ...]
    whole: bool = False


class Redirect(msgspec.Struct, frozen=True, array_like=True):
    """Answer to an attach with status MOVED: the id is an alias of `art_id`."""

    art_id: str
    revision: int


class AboutManifest(msgspec.Struct, frozen=True, array_like=True):
    """Answer to an attach of the manifest only, with status MANIFEST, where the artifact is not in the pool: nothing
    was loaded for it. `digest` is the content digest or pending; `manifest` is encoded, its digests may be empty."""

    digest: str
    manifest: bytes


class PutDone(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """`outcome` is "stored" or "already_present" (two puts of equal content met)."""

    outcome: str
    digest: str
    bytes_total: int
    bytes_moved: int
    bytes_copied: int
    path: str
    ms: float


class PutBaseGone(msgspec.Struct, frozen=True, array_like=True, tag="base_gone"):
    """What the draft wanted to borrow is not in the pool any more; nothing was done: put it again, whole."""

    base: str


class PutExists(msgspec.Struct, frozen=True, array_like=True, tag="exists"):
    """The id is taken by content `digest`. The client digests its own bytes and decides: already_present or
    AlreadyExists. `files` is the source identity of each segment, so an unchanged file needs no reading."""

    digest: str
    bytes_total: int
    files: tuple[tuple[str, int, int, int, int], ...] = ()


PutAnswer = PutDone | PutExists | PutBaseGone


class Leased(msgspec.Struct, frozen=True, array_like=True):
    """The end of a registration: `lease` names it in AskRenew and AskRelease. `path`: "vm_read" or "file" where nothing
    was moved, "socket" where the storage cannot read the caller's memory and took its copy at once."""

    lease: int
    digest: str
    bytes_total: int
    ttl_ms: int
    path: str


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


class AskRenew(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """The lease lasts `ttl_ms` from now. Answer: Renewed; LeaseLost when it has ended."""

    art_id: str
    lease: int
    ttl_ms: int


class AskRelease(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Ends a lease now. Answer: Deleted, also for one that has ended."""

    art_id: str
    lease: int


class AskDurable(msgspec.Struct, frozen=True, array_like=True, tag="durable"):
    """The artifact is on disk too when the answer comes. Answer: MadeDurable."""

    art_id: str


class AskBase(msgspec.Struct, frozen=True, array_like=True, tag="base"):
    """Which artifact of the pool a new version may borrow from: `base` itself, or with "" the newest one here of the
    same name (the part before "@"). Answer: BaseFound, with art_id "" when there is none in the pool."""

    art_id: str
    base: str = ""


class AskCommitView(msgspec.Struct, frozen=True, array_like=True, tag="commit_view"):
    """Makes the boxes of `base` (content `digest`) an artifact of its own. Answer: a PutAnswer."""

    art_id: str
    base: str
    digest: str
    boxes: tuple[Box, ...]
    durable: bool = False


Ask = AskDelete | AskDescribe | AskStats | AskProgress | AskRenew | AskRelease | AskDurable | AskBase | AskCommitView


class Renewed(msgspec.Struct, frozen=True, array_like=True):
    left_ms: int


class MadeDurable(msgspec.Struct, frozen=True, array_like=True):
    art_id: str


class BaseFound(msgspec.Struct, frozen=True, array_like=True):
    art_id: str
    digest: str = ""


class Deleted(msgspec.Struct, frozen=True, array_like=True):
    art_id: str


class Described(msgspec.Struct, frozen=True, array_like=True):
    """`state`: "resident", "loading", "away" (not in the pool; its file, disk copy or owner gives it back) or
    "unknown". `tiers` as in ReplicaRow; `lease_left_ms` is -1 for what the system owns; `disk_bytes` on our disk."""

    state: str
    digest: str = ""
    bytes_total: int = 0
    pins: int = 0
    tiers: tuple[str, ...] = ()
    lease_left_ms: int = -1
    disk_bytes: int = 0


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
    leases: int = 0
    spills: int = 0
    compactions: int = 0
    views: int = 0
    disk_bytes: int = 0
    disk_bytes_max: int = 0


class Progress(msgspec.Struct, frozen=True, array_like=True):
    bytes_done: int
    bytes_total: int
