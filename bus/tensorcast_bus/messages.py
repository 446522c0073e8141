"""Bodies of the messages between processes. One struct a message; new fields are added at the end only.

Requests to the global store and to gateways are answered by the record named in their docstring or by an ErrorRecord.
Heartbeats and events are published. Golden bytes in the tests hold every one of them to its wire form.
"""

from __future__ import annotations

import msgspec

PAGE_ROWS_MAX = 500
REPORT_ROWS_MAX = 500


class ReplicaRow(msgspec.Struct, frozen=True, array_like=True):
    """Where bytes of an artifact are: `tier` "host" (memory), "disk", or "file" (an unchanged source file).
    `living` is the global store's word: the incarnation that claims it still beats. Times are ms since the epoch."""

    art_id: str
    node: str
    tier: str
    process: str
    incarnation: int
    digest: str
    since_ms: int
    living: bool = True


class ArtifactRow(msgspec.Struct, frozen=True, array_like=True):
    """An artifact's record. `revision` grows with every change of the catalog and orders events."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    owner: str
    created_ms: int
    revision: int = 0


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """storage -> global store. Makes an artifact visible. Answer: Committed; AlreadyExists on other content."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    node: str
    process: str
    incarnation: int
    tiers: tuple[str, ...]
    owner: str = ""


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """`outcome`: "stored" (a new artifact, or a new replica of a known one) or "already_present" (this node had it)."""

    outcome: str
    revision: int


class ReplicaClaim(msgspec.Struct, frozen=True, array_like=True):
    art_id: str
    digest: str
    tier: str
    nbytes: int
    tensors: int


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """storage -> global store. What a storage holds, after its own or the global store's restart and on change, in
    parts of at most REPORT_ROWS_MAX; `first` forgets what older incarnations of the process claimed; with `last` of a
    full report (`full`) everything of this process that was not named is forgotten. Answer: Reported."""

    node: str
    process: str
    incarnation: int
    claims: tuple[ReplicaClaim, ...]
    full: bool
    first: bool
    last: bool


class Reported(msgspec.Struct, frozen=True, array_like=True):
    """`refused`: ids that are deleted or have other content now: the storage drops them."""

    refused: tuple[str, ...]
    incarnation: int
    sequence: int


class DropReplica(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """storage -> global store. Asks to let go of a host replica. Answer: Dropped."""

    art_id: str
    tier: str
    node: str
    process: str
    incarnation: int


class Dropped(msgspec.Struct, frozen=True, array_like=True):
    """`granted` is False for the last replica that is neither on disk nor in an unchanged file."""

    granted: bool
    why: str = ""


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Answer: DeletedRow. NotFound when there is no such id."""

    art_id: str


class DeletedRow(msgspec.Struct, frozen=True, array_like=True):
    art_id: str
    revision: int


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve"):
    """Answer: Resolved. NotFound when there is no such id."""

    art_id: str


class Resolved(msgspec.Struct, frozen=True, array_like=True):
    artifact: ArtifactRow
    replicas: tuple[ReplicaRow, ...]


class ListArtifacts(msgspec.Struct, frozen=True, array_like=True, tag="list"):
    """Answer: ArtifactPage, ordered by id, of at most PAGE_ROWS_MAX rows after `after`."""

    prefix: str = ""
    after: str = ""
    rows_max: int = PAGE_ROWS_MAX


class ArtifactPage(msgspec.Struct, frozen=True, array_like=True):
    """Each row with the tiers of its living replicas as "node:tier". `more`: ask again after the last id."""

    rows: tuple[ArtifactRow, ...]
    places: tuple[tuple[str, ...], ...]
    more: bool


class ListWorkers(msgspec.Struct, frozen=True, array_like=True, tag="workers"):
    """Answer: WorkerList."""

    role: str = ""


class Worker(msgspec.Struct, frozen=True, array_like=True):
    """A process as the registry sees it. Memory figures (bytes) are those of its last heartbeat; ages in ms."""

    process: str
    role: str
    node: str
    incarnation: int
    pid: int
    version: str
    uptime_ms: int
    age_ms: int
    living: bool
    figures: dict[str, int] = {}


class WorkerList(msgspec.Struct, frozen=True, array_like=True):
    workers: tuple[Worker, ...]


GlobalStoreRequest = Commit | Report | DropReplica | Delete | Resolve | ListArtifacts | ListWorkers
GatewayRequest = Delete | Resolve | ListArtifacts | ListWorkers


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="hb"):
    """Published once a second by every service's heartbeat thread; stops when the main loop stalls."""

    process: str
    role: str
    node: str
    incarnation: int
    sequence: int
    pid: int
    version: str
    uptime_ms: int
    figures: dict[str, int] = {}


class ArtifactEvent(msgspec.Struct, frozen=True, array_like=True, tag="ev"):
    """global store -> all. `kind`: "committed", "deleted", "replica", "dropped", or "hello" (the global store started
    or beats while idle). A gap in (incarnation, sequence) means: events were lost, report and take a snapshot."""

    incarnation: int
    sequence: int
    kind: str
    art_id: str = ""
    digest: str = ""
    revision: int = 0
