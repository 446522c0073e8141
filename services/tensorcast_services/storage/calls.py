"""Calls of local clients: questions about now are answered here, everything else becomes one event of the core.

Called by requests.py. A call that this version does not know is answered by an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tensorcast_bus.errors import Invalid, LocalProtocolError, TensorCastError, Unavailable
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.notes import (
    Ask,
    AskBase,
    AskCommitView,
    AskDelete,
    AskDescribe,
    AskDurable,
    AskProgress,
    AskRelease,
    AskRenew,
    AskStats,
    BaseFound,
    Described,
    Progress,
    StorageStats,
)
from tensorcast_native import Request
from tensorcast_services.storage.committed_views import CommittedViews
from tensorcast_services.storage.compaction import Compactor
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import (
    DeleteAsked,
    DurableAsked,
    ReleaseAsked,
    RenewAsked,
    Use,
)
from tensorcast_services.storage.disk import Disk
from tensorcast_services.storage.drafts import TTL_MS_MAX, TTL_MS_MIN
from tensorcast_services.storage.floor import Floor


class Calls:
    """`reply` ends a request, `post` gives the core an event, `uses` lists what is published."""

    def __init__(
        self,
        floor: Floor,
        artifacts: Artifacts,
        compactor: Compactor,
        disk: Disk,
        views: CommittedViews,
        *,
        reply: Callable[[int, msgspec.Struct], None],
        uses: Callable[[], list[Use]],
    ) -> None:
        self._pool = floor.pool
        self._server = floor.server
        self._residents = floor.residents
        self._work = floor.work
        self._post = floor.post
        self._artifacts = artifacts
        self._compactor = compactor
        self._disk = disk
        self._views = views
        self._reply = reply
        self._uses = uses
        self._puts = {"vm_read": 0, "socket": 0, "file": 0}

    def count_put(self, path: str) -> None:
        self._puts[path] = self._puts.get(path, 0) + 1

    def take(self, request: Request) -> None:
        try:
            ask = msgspec.msgpack.decode(request.body, type=Ask)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            text = f"this storage does not know the call ({error}); client and storage must be of one version"
            self._reply(request.id, LocalProtocolError(text).record())
            return
        try:
            self._take(request, ask)
        except TensorCastError as error:
            self._reply(request.id, error.record())

    def stats(self) -> StorageStats:
        figures, uses, disk = self._artifacts.figures(), self._uses(), self._disk.figures()
        return StorageStats(
            pool=self._pool.stats(),
            artifacts=figures["artifacts"],
            evictable_bytes=self._artifacts.evictable_bytes(uses),
            sessions=len(self._server.sessions()),
            socket_puts=self._puts["socket"],
            vm_puts=self._puts["vm_read"],
            evictions=figures["evictions"],
            loads=figures["loads"],
            leases=figures["leases"],
            spills=figures["spills"],
            compactions=self._compactor.compactions,
            views=figures["views"],
            disk_bytes=disk["disk_bytes"],
            disk_bytes_max=disk["disk_bytes_max"],
        )

    def _take(self, request: Request, ask: Ask) -> None:
        match ask:
            case AskDescribe(art_id):
                self._reply(request.id, self._describe(art_id))
            case AskProgress(art_id):
                ticket = self._artifacts.ticket_of(art_id)
                done, total = self._server.progress(ticket) if ticket is not None else (0, 0)
                self._reply(request.id, Progress(done, total))
            case AskStats():
                self._reply(request.id, self.stats())
            case AskBase(art_id, base):
                found = self._residents.base_for(art_id, base)
                self._reply(request.id, BaseFound(found.art_id, found.digest) if found is not None else BaseFound(""))
            case _:
                self._change(request, ask)

    def _change(self, request: Request, ask: AskDelete | AskRenew | AskRelease | AskDurable | AskCommitView) -> None:
        check_art_id(ask.art_id)
        number, budget_ms = request.id, request.budget_ms
        match ask:
            case AskDelete(art_id):
                self._post(DeleteAsked(number, art_id, budget_ms))
            case AskRenew(art_id, lease, ttl_ms):
                if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
                    raise Invalid(
                        f"the lease of {art_id!r} would last {ttl_ms} ms; allowed is {TTL_MS_MIN} to {TTL_MS_MAX}",
                        art_id=art_id,
                    )
                self._post(RenewAsked(number, art_id, lease, ttl_ms))
            case AskRelease(art_id, lease):
                self._post(ReleaseAsked(number, art_id, lease, budget_ms))
            case AskDurable(art_id):
                if self._disk.off_why:
                    raise Unavailable(self._disk.off_why, art_id=art_id)
                self._post(DurableAsked(number, art_id, budget_ms))
            case AskCommitView():
                self._work.spawn(self._views.take(number, ask, budget_ms=budget_ms))

    def _describe(self, art_id: str) -> Described:
        pins = sum(use.pins for use in self._uses() if use.art_id == art_id)
        return self._artifacts.describe(art_id, pins=pins)
