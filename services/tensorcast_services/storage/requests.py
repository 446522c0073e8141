"""What local clients ask, on its way to the core: drafts are checked, wishes read, registrations kept.

A request is answered here (a malformed one) or becomes one event of the core; calls are in calls.py. Called by local.py
for everything that the native floor cannot answer itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec
import structlog

from tensorcast_bus.errors import (
    CapacityExceeded,
    Invalid,
    LocalProtocolError,
    StorageLost,
    TensorCastError,
    Unavailable,
)
from tensorcast_bus.ids import check_art_id
from tensorcast_bus.manifest import decode_manifest
from tensorcast_bus.notes import LeaseDraft, PutBaseGone, PutDraft, ViewWish
from tensorcast_native import Request
from tensorcast_services.storage.borrowing import BaseGone, check_borrowed
from tensorcast_services.storage.calls import Calls
from tensorcast_services.storage.core.events import AskerGone, AttachAsked, PutAsked, RegisterAsked
from tensorcast_services.storage.drafts import (
    Draft,
    LeasePlan,
    check_sources,
    decode_note,
    read_draft,
    read_lease,
)
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import LeaseJob, PutJob
from tensorcast_services.storage.kept import Kept

LEASE_BITS = 62


class Requests:
    """`reply` ends a request, `post` gives the core an event; `wishes` keeps views by request; `disk_off` is empty, or
    says why nothing can be made durable here."""

    def __init__(
        self,
        floor: Floor,
        calls: Calls,
        *,
        reply: Callable[[int, msgspec.Struct], None],
        wishes: dict[int, ViewWish],
        disk_off: str,
    ) -> None:
        self._pool = floor.pool
        self._server = floor.server
        self._jobs = floor.jobs
        self._kept = floor.kept
        self._residents = floor.residents
        self._work = floor.work
        self._settings = floor.settings
        self._post = floor.post
        self._calls = calls
        self._reply = reply
        self._wishes = wishes
        self._disk_off = disk_off
        self._log = structlog.get_logger("requests")

    def take(self, request: Request) -> None:
        try:
            self._take(request)
        except Exception as bug:
            self._crashed(request, bug)

    def _take(self, request: Request) -> None:
        match request.kind:
            case "put":
                self._work.spawn(self._put(request))
            case "attach":
                self._attach(request)
            case "call":
                self._calls.take(request)
            case "gone":
                self._wishes.pop(request.id, None)
                self._jobs.answered(request.id)
                self._post(AskerGone(request.id))
            case _:
                text = f"a request of kind {request.kind!r} is unknown to this storage"
                self._reply(request.id, LocalProtocolError(text).record())

    async def _put(self, request: Request) -> None:
        began = time.monotonic()
        try:
            event = await self._read(request)
        except BaseGone as gone:
            self._log.info("base_gone", art_id=request.art_id, why=str(gone))
            self._reply(request.id, PutBaseGone(str(gone.args[1]) if len(gone.args) > 1 else ""))
        except TensorCastError as error:
            self._reply(request.id, error.record())
        except Exception as bug:
            self._crashed(request, bug)
        else:
            spent_ms = int((time.monotonic() - began) * 1000)
            self._post(msgspec.structs.replace(event, budget_ms=max(0, request.budget_ms - spent_ms)))

    async def _read(self, request: Request) -> PutAsked | RegisterAsked:
        """The job and the event of a put that is in order. The caller's errors; BaseGone."""
        draft_bytes_max = self._settings.draft_bytes_max
        body, art_id = request.body, request.art_id
        note = await self._work.compute(lambda: decode_note(body, art_id=art_id, draft_bytes_max=draft_bytes_max))
        if isinstance(note, LeaseDraft):
            return self._register(request, await self._work.compute(lambda: self._lease(request, note)))
        if note.durable and self._disk_off:
            raise Unavailable(self._disk_off, art_id=art_id)
        draft = await self._work.compute(lambda: self._draft(request, note))
        if draft.base and draft.borrowed:
            draft = await self._with_base(draft)
        self._jobs.add(request.id, PutJob(art_id, draft, request.source))
        self._calls.count_put(request.source)
        return PutAsked(request.id, art_id, 0, draft.need_bytes, draft.durable, request.id)

    def _draft(self, request: Request, note: PutDraft) -> Draft:
        draft = read_draft(
            note,
            art_id=request.art_id,
            segment_bytes=request.segment_bytes,
            source=request.source,
            tensors_max=self._settings.tensors_max,
        )
        check_sources(draft, files=request.files, pieces=request.pieces)
        return draft

    def _lease(self, request: Request, note: LeaseDraft) -> LeasePlan:
        plan = read_lease(
            note,
            art_id=request.art_id,
            segment_bytes=request.segment_bytes,
            source=request.source,
            tensors_max=self._settings.tensors_max,
        )
        check_sources(plan.draft, files=request.files, pieces=request.pieces)
        return plan

    async def _with_base(self, draft: Draft) -> Draft:
        """What it borrows, compared with what the base is now. BaseGone."""
        base = self._residents.find(draft.base)
        if base is None or base.digest != draft.base_digest:
            raise BaseGone(f"{draft.base!r} is not in the pool as it was", draft.base)
        self._pool.hold(base.manifest_segment)
        try:
            return await self._work.compute(
                lambda: check_borrowed(
                    draft, decode_manifest(self._pool.read(base.manifest_segment, 0, base.manifest_bytes))
                )
            )
        except BaseGone as gone:
            raise BaseGone(str(gone), draft.base) from gone
        finally:
            self._pool.drop(base.manifest_segment)

    def _register(self, request: Request, plan: LeasePlan) -> RegisterAsked:
        art_id, draft, manifest = request.art_id, plan.draft, plan.draft.manifest
        try:
            source = self._server.keep(request.id)
        except KeyError:
            raise StorageLost("the asker hung up before its registration began", art_id=art_id) from None
        except (ValueError, OSError) as error:
            raise CapacityExceeded(f"the registration of {art_id!r} cannot be kept: {error}", art_id=art_id) from error
        eager = request.source == "socket"
        self._kept.add(source, Kept(art_id, plan, request.source, request.pieces))
        if eager:
            self._jobs.add(request.id, LeaseJob(art_id, plan, source, request.source))
        return RegisterAsked(
            request.id,
            art_id,
            0,
            source,
            1 + secrets.randbits(LEASE_BITS),
            plan.ttl_ms,
            plan.digest,
            manifest.nbytes,
            len(manifest.tensors),
            request.source,
            draft.need_bytes if eager else 0,
        )

    def _attach(self, request: Request) -> None:
        try:
            check_art_id(request.art_id)
            wish = self._wish(request)
        except TensorCastError as error:
            self._reply(request.id, error.record())
            return
        how = "manifest" if request.manifest_only else "whole"
        if wish is not None and how == "whole":
            how = "parts" if wish.whole else "view"
            self._wishes[request.id] = wish
        self._post(AttachAsked(request.id, request.art_id, request.budget_ms, how))

    def _wish(self, request: Request) -> ViewWish | None:
        body = request.body
        if not body:
            return None
        if len(body) > self._settings.draft_bytes_max:
            raise Invalid(
                f"the boxes of a view of {request.art_id!r} have {len(body)} bytes; the limit is "
                f"{self._settings.draft_bytes_max} (storage.draft_bytes_max)",
                art_id=request.art_id,
            )
        try:
            return msgspec.msgpack.decode(body, type=ViewWish)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise LocalProtocolError(
                f"what came with an attach of {request.art_id!r} is no view ({error}); client and storage must be of "
                "one version",
                art_id=request.art_id,
            ) from error

    def _crashed(self, request: Request, bug: Exception) -> None:
        """Its asker must not wait for what will never come."""
        self._log.error("request_failed", kind=request.kind, art_id=_shown(request), exc_info=bug)
        text = f"the storage failed at a {request.kind}: {type(bug).__name__}: {bug}; this is a bug, see its log"
        self._reply(request.id, LocalProtocolError(text).record())


def _shown(request: Request) -> str:
    """Its id for a log; what crashed may be the reading of that very id."""
    try:
        return request.art_id
    except UnicodeDecodeError as error:
        return repr(error.object)
