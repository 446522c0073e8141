"""What local clients ask, on its way to the core: drafts are checked, calls decoded, questions about now answered.

A request is answered here (a malformed one, statistics, a description, progress) or becomes one event of the core.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import structlog

from tensorcast_bus.errors import Invalid, LocalProtocolError, TensorCastError
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.notes import (
    Ask,
    AskDelete,
    AskDescribe,
    AskProgress,
    AskStats,
    Described,
    Progress,
    StorageStats,
)
from tensorcast_native import LocalServer, Pool, Request
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import AskerGone, AttachAsked, DeleteAsked, Event, PutAsked, Use
from tensorcast_services.storage.drafts import Draft, check_sources, read_draft
from tensorcast_services.storage.jobs import Jobs, PutJob
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.workroom import Workroom


class Requests:
    """`reply` ends a request, `post` gives the core an event, `uses` lists what is published."""

    def __init__(
        self,
        artifacts: Artifacts,
        pool: Pool,
        server: LocalServer,
        jobs: Jobs,
        workroom: Workroom,
        settings: StorageSettings,
        *,
        post: Callable[[Event], None],
        reply: Callable[[int, msgspec.Struct], None],
        uses: Callable[[], list[Use]],
    ) -> None:
        self._artifacts = artifacts
        self._pool = pool
        self._server = server
        self._jobs = jobs
        self._workroom = workroom
        self._settings = settings
        self._post = post
        self._reply = reply
        self._uses = uses
        self._log = structlog.get_logger("requests")
        self._puts = {"vm_read": 0, "socket": 0, "file": 0}

    def take(self, request: Request) -> None:
        try:
            self._take(request)
        except Exception as bug:
            self._crashed(request, bug)

    def _take(self, request: Request) -> None:
        match request.kind:
            case "put":
                self._workroom.spawn(self._put(request))
            case "attach":
                self._attach(request)
            case "call":
                self._call(request)
            case "gone":
                self._jobs.drop(request.id)
                self._post(AskerGone(request.id))
            case _:
                text = f"a request of kind {request.kind!r} is unknown to this storage"
                self._reply(request.id, LocalProtocolError(text).record())

    def stats(self) -> StorageStats:
        figures, uses = self._artifacts.figures(), self._uses()
        return StorageStats(
            pool=self._pool.stats(),
            artifacts=figures["artifacts"],
            evictable_bytes=self._artifacts.evictable_bytes(uses),
            sessions=len(self._server.sessions()),
            socket_puts=self._puts["socket"],
            vm_puts=self._puts["vm_read"],
            evictions=figures["evictions"],
            loads=figures["loads"],
        )

    async def _put(self, request: Request) -> None:
        began = time.monotonic()
        try:
            draft = await self._workroom.compute(lambda: self._draft(request))
        except TensorCastError as error:
            self._reply(request.id, error.record())
            return
        except Exception as bug:
            self._crashed(request, bug)
            return
        self._puts[request.source] = self._puts.get(request.source, 0) + 1
        self._jobs.add(request.id, PutJob(request.art_id, draft, request.source))
        spent_ms = int((time.monotonic() - began) * 1000)
        budget_ms = max(0, request.budget_ms - spent_ms)
        self._post(PutAsked(request.id, request.art_id, budget_ms, draft.need_bytes))

    def _draft(self, request: Request) -> Draft:
        draft = read_draft(
            request.body,
            art_id=request.art_id,
            segment_bytes=request.segment_bytes,
            source=request.source,
            tensors_max=self._settings.tensors_max,
            draft_bytes_max=self._settings.draft_bytes_max,
        )
        check_sources(draft, files=request.files, pieces=request.pieces)
        return draft

    def _crashed(self, request: Request, bug: Exception) -> None:
        """Its asker must not wait for what will never come."""
        self._log.error("request_failed", kind=request.kind, art_id=_shown(request), exc_info=bug)
        text = f"the storage failed at a {request.kind}: {type(bug).__name__}: {bug}; this is a bug, see its log"
        self._reply(request.id, LocalProtocolError(text).record())

    def _attach(self, request: Request) -> None:
        try:
            check_art_id(request.art_id)
        except Invalid as error:
            self._reply(request.id, error.record())
            return
        self._post(AttachAsked(request.id, request.art_id, request.budget_ms))

    def _call(self, request: Request) -> None:
        try:
            ask = msgspec.msgpack.decode(request.body, type=Ask)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            text = f"this storage does not know the call ({error}); client and storage must be of one version"
            self._reply(request.id, LocalProtocolError(text).record())
            return
        match ask:
            case AskDelete(art_id):
                self._delete(request, art_id)
            case AskDescribe(art_id):
                self._reply(request.id, self._describe(art_id))
            case AskProgress(art_id):
                ticket = self._artifacts.ticket_of(art_id)
                done, total = self._server.progress(ticket) if ticket is not None else (0, 0)
                self._reply(request.id, Progress(done, total))
            case AskStats():
                self._reply(request.id, self.stats())

    def _delete(self, request: Request, art_id: str) -> None:
        try:
            check_art_id(art_id)
        except Invalid as error:
            self._reply(request.id, error.record())
            return
        self._post(DeleteAsked(request.id, art_id, request.budget_ms))

    def _describe(self, art_id: str) -> Described:
        state, digest, nbytes = self._artifacts.describe(art_id)
        pins = sum(use.pins for use in self._uses() if use.art_id == art_id) if state == "resident" else 0
        return Described(state, digest, nbytes, pins)


def _shown(request: Request) -> str:
    """Its id for a log; what crashed may be the reading of that very id."""
    try:
        return request.art_id
    except UnicodeDecodeError as error:
        return repr(error.object)
