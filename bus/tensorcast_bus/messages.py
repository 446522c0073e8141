"""Bodies of the messages between processes. One struct a message; new fields are added at the end only.

Requests to the global store and to gateways are answered by the record named in their docstring or by an ErrorRecord.
Heartbeats and events are published. Golden bytes in the tests hold every one of them to its wire form.
"""

from __future__ import annotations

import msgspec

PAGE_ROWS_MAX = 500
REPORT_ROWS_MAX = 500


class ReplicaRow(msgspec.Struct, frozen=True, array_like=True):
    """Where bytes of an artifact are: `tier` "host" (memory), "disk" (ours), "file" (an unchanged source file) or
    "lease" (the memory or open files of the caller that registered it).
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
    """An artifact's record. `revision` grows with every change of the catalog and orders events. `digest` is hex, or
    "pending:" and 32 hex digits until registered files were read once. `ownership` is "system" or "lease"."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    owner: str
    created_ms: int
    revision: int = 0
    ownership: str = "system"


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """storage -> global store. Makes an artifact visible. Answer: Committed; AlreadyExists on other content, on an id
    that is an alias, and when one of the two is under a lease and the other is not."""

    art_id: str
    digest: str
    nbytes: int
    tensors: int
    node: str
    process: str
    incarnation: int
    tiers: tuple[str, ...]
    owner: str = ""
    ownership: str = "system"


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """`outcome`: "stored" (a new artifact, or a new replica of a known one) or "already_present" (this node had it)."""

    outcome: str
    revision: int


class ReplicaClaim(msgspec.Struct, frozen=True, array_like=True):
    """`was` is the pending digest that `digest` takes the place of, once registered files were read."""

    art_id: str
    digest: str
    tier: str
    nbytes: int
    tensors: int
    was: str = ""
    ownership: str = "system"


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
    """`refused`: ids that are gone, have other content, are aliases, or are owned otherwise now: the storage drops
    them."""

    refused: tuple[str, ...]
    incarnation: int
    sequence: int


class DropReplica(msgspec.Struct, frozen=True, array_like=True, tag="drop"):
    """storage -> global store. Asks to let go of a host replica, or says that one of another tier is lost, which is
    always granted. Answer: Dropped."""

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


class EndLease(msgspec.Struct, frozen=True, array_like=True, tag="end_lease"):
    """storage -> global store. The lease on an id that this process registered has ended: the id is gone, and who asks
    for it hears LeaseLost. Answer: DeletedRow, with revision 0 when this process holds no such lease (any more)."""

    art_id: str
    digest: str
    node: str
    process: str
    incarnation: int


class AliasRow(msgspec.Struct, frozen=True, array_like=True):
    """A movable name. `revision` is the catalog's when it was last set: two rows of one revision are one setting."""

    name: str
    art_id: str
    revision: int
    set_ms: int


class Expectation(msgspec.Struct, frozen=True, array_like=True):
    """What an alias must be for a change: `kind` "any", "absent", "id" (it points at `art_id`) or "revision"."""

    kind: str = "any"
    art_id: str = ""
    revision: int = 0


class SetAlias(msgspec.Struct, frozen=True, array_like=True, tag="set_alias"):
    """Answer: AliasRow as it is now. Conflict with the present row in its context where it is not as expected, or where
    `name` is an artifact's id; NotFound where `art_id` is no artifact; CapacityExceeded at the limit of aliases."""

    name: str
    art_id: str
    expect: Expectation = Expectation()


class DeleteAlias(msgspec.Struct, frozen=True, array_like=True, tag="delete_alias"):
    """Answer: AliasRow as it was. NotFound, Conflict as above."""

    name: str
    expect: Expectation = Expectation()


class GetAlias(msgspec.Struct, frozen=True, array_like=True, tag="get_alias"):
    """Answer: AliasRow. NotFound."""

    name: str


class ListAliases(msgspec.Struct, frozen=True, array_like=True, tag="aliases"):
    """Answer: AliasPage, ordered by name, of at most PAGE_ROWS_MAX rows after `after`."""

    prefix: str = ""
    after: str = ""


class AliasPage(msgspec.Struct, frozen=True, array_like=True):
    rows: tuple[AliasRow, ...]
    more: bool


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve"):
    """`art_id` may be an alias. Answer: Resolved. NotFound when there is no such id, or an alias points at one that is
    gone; LeaseLost when its lease ended."""

    art_id: str


class Resolved(msgspec.Struct, frozen=True, array_like=True):
    """`alias` where the name asked for is one."""

    artifact: ArtifactRow
    replicas: tuple[ReplicaRow, ...]
    alias: AliasRow | None = None


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


GatewayRequest = Delete | Resolve | ListArtifacts | ListWorkers | SetAlias | DeleteAlias | GetAlias | ListAliases
GlobalStoreRequest = Commit | Report | DropReplica | EndLease | GatewayRequest


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
    """global store -> all. `kind`: "committed", "deleted", "lease_ended", "replica", "dropped", "alias" (`art_id` is
    its name, `target` the id that it points at now), "unalias", or "hello" (the global store started or beats while
    idle). A gap in (incarnation, sequence) means: events were lost, report and take a snapshot."""

    incarnation: int
    sequence: int
    kind: str
    art_id: str = ""
    digest: str = ""
    revision: int = 0
    target: str = ""
