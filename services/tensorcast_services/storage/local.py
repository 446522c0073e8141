"""The native floor as the core's hand: its events become the core's, the core's effects become calls.

Lives on the loop's thread: every native call here returns at once (fills run on native threads and end as events on an
eventfd). Owns the pool and the local server, and keeps `residents` true in the same step in which something is
published or withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from tensorcast_bus.errors import ErrorRecord, Invalid, LeaseLost, LocalProtocolError, StorageLost, TensorCastError
from tensorcast_bus.notes import AboutManifest, Redirect
from tensorcast_native import FillDone, LocalStatus, PoolFull, Request
from tensorcast_services.storage.compaction import Compactor
from tensorcast_services.storage.core.effects import AttachView
from tensorcast_services.storage.core.events import (
    Filled,
    OwnerDied,
    RoomGiven,
    RoomRefused,
    RunFailed,
    Use,
    Withdrawn,
)
from tensorcast_services.storage.fill_troubles import fill_trouble, is_source_lost
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import Job, LeaseJob, PutJob, all_segments
from tensorcast_services.storage.reading import Fill
from tensorcast_services.storage.residents import Resident


class Local:
    """`post` takes the core's events, `on_request` what clients ask. KeyError, ValueError of the native floor for a
    request whose asker hung up in the meantime end here: the hang-up is an event of its own."""

    def __init__(self, floor: Floor, compactor: Compactor, *, on_request: Callable[[Request], None]) -> None:
        self._pool = floor.pool
        self._server = floor.server
        self._jobs = floor.jobs
        self._residents = floor.residents
        self._post = floor.post
        self._load_ms_max = floor.settings.load_ms_max
        self._compactor = compactor
        self._on_request = on_request
        self._sealed: dict[int, Resident] = {}  # by manifest segment, until it is published or freed
        self._log = structlog.get_logger("local")

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._server.event_fd, self._drain)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._server.event_fd)

    def _drain(self) -> None:
        for event in self._server.events():
            # Drained together, but other clients': one that cannot be taken must not cost the others theirs.
            try:
                if isinstance(event, Request):
                    self._post(OwnerDied(event.id)) if event.kind == "died" else self._on_request(event)
                elif not self._compactor.filled(event):
                    self._post(self._fill_ended(event))
            except Exception as bug:
                self._log.error("event_failed", kind=type(event).__name__, id=event.id, exc_info=bug)

    def _fill_ended(self, done: FillDone) -> Filled | RunFailed:
        try:
            return self._filled(done)
        except Exception as bug:
            self._log.error("fill_not_understood", id=done.id, exc_info=bug)
            self.free(tuple(done.segments))
            self._jobs.drop(done.id)
            text = f"the storage failed at the end of a fill: {type(bug).__name__}: {bug}; this is a bug, see its log"
            return RunFailed(done.id, LocalProtocolError(text).record())

    def _filled(self, done: FillDone) -> Filled | RunFailed:
        job = self._jobs.find(done.id)
        if done.status != "ok":
            trouble = fill_trouble(done, job)
            lost = is_source_lost(done, job)
            self._jobs.drop(done.id)
            return RunFailed(done.id, trouble.record(), source_lost=lost)
        # Also a fill that nobody waits for any more has segments, which the core frees.
        path = job.source if isinstance(job, PutJob | LeaseJob) else "file"
        segments = tuple(done.segments)
        if job is not None:
            job.fill = Fill(segments, done.digests)
            segments = all_segments(job, segments)
        return Filled(done.id, segments, done.bytes_moved, done.bytes_copied, path, done.ms)

    def accept_put(self, ticket: int) -> None:
        job = self._jobs.find(ticket)
        if isinstance(job, PutJob) and not job.borrowed and job.draft.borrowed and not self._borrow(ticket, job):
            return

        def start(job: Job) -> None:
            if job.reading is not None:
                self._load(ticket, job)
            elif isinstance(job, PutJob) and job.source != "pool":
                self._server.accept_put(ticket, job.draft.rows)
            elif isinstance(job, LeaseJob):
                self._server.accept_put(ticket, job.plan.draft.rows)

        if self._begin(ticket, start) and isinstance(job, PutJob) and job.source == "pool" and job.reading is None:
            # A view of whole tensors: nothing is copied.
            job.fill = Fill()
            self._post(Filled(ticket, all_segments(job, ()), 0, 0, "pool", 0.0))

    def start_load(self, ticket: int) -> None:
        self._begin(ticket, lambda job: self._load(ticket, job))

    def _load(self, ticket: int, job: Job) -> None:
        reading = job.reading
        assert reading is not None
        plan = reading.plan
        if reading.own_plan:
            self._server.load_kept(ticket, reading.kept, rows=plan.rows, deadline_ms=self._load_ms_max)
        elif reading.kept:
            self._server.load_kept(
                ticket,
                reading.kept,
                rows=plan.rows,
                segment_bytes=plan.segment_bytes,
                pieces=plan.pieces,
                inline=plan.inline,
                deadline_ms=self._load_ms_max,
            )
        else:
            self._server.load(
                ticket,
                segment_bytes=plan.segment_bytes,
                pieces=plan.pieces,
                rows=plan.rows,
                files=reading.files,
                inline=plan.inline,
                sources=reading.sources,
                deadline_ms=self._load_ms_max,
            )
        self._jobs.let_sources_go(reading)

    def _borrow(self, ticket: int, job: PutJob) -> bool:
        """Holds what a delta version borrows, all or none; False, and the run told, when something is gone."""
        first = len(job.manifest.segments) - len(job.draft.borrowed)
        for number, key in enumerate(job.draft.borrowed, first):
            segment = self._residents.segment_of(key)
            if segment is None:
                self._jobs.drop(ticket)
                text = f"what {job.art_id!r} would borrow of {job.draft.base!r} is not in the pool any more"
                gone = StorageLost(text, art_id=job.art_id, base=job.draft.base)
                self._post(RunFailed(ticket, gone.record(), base_gone=True))
                return False
            self._pool.hold(segment)
            job.borrowed[number] = segment
        return True

    def _begin(self, ticket: int, start: Callable[[Job], None]) -> bool:
        """Reserves the manifest's segment and starts the fill, or neither."""
        job = self._jobs.find(ticket)
        if job is None:
            self._post(RunFailed(ticket, _hung_up().record()))
            return False
        manifest_segment: int | None = None
        try:
            manifest_segment = self._pool.reserve(job.manifest_bytes)
            start(job)
        except PoolFull as full:
            self._free_one(manifest_segment)
            why, free_bytes, longest_run_bytes = full.args
            capacity = self._pool.stats()["capacity_bytes"]
            self._post(RoomRefused(ticket, free_bytes, longest_run_bytes, capacity, str(why), tuple(self.uses())))
        except (KeyError, ValueError, OSError) as error:
            # The asker hung up or the owner is gone (KeyError), or the native floor refuses what was asked of it.
            self._free_one(manifest_segment)
            self._jobs.drop(ticket)
            trouble, lost = _not_begun(job, error)
            self._post(RunFailed(ticket, trouble.record(), source_lost=lost))
        else:
            self._post(RoomGiven(ticket, manifest_segment, self._jobs.give_borrowed(ticket)))
            return True
        return False

    def _free_one(self, segment: int | None) -> None:
        if segment is not None:
            self._pool.drop(segment)

    def cancel(self, ticket: int) -> None:
        self._server.cancel(ticket)

    def sealed(self, resident: Resident) -> None:
        """What the manifest's segment of a run is of, said before the run may publish it."""
        self._sealed[resident.manifest_segment] = resident

    def publish(self, art_id: str, manifest_segment: int, segments: tuple[int, ...]) -> None:
        resident = self._sealed.pop(manifest_segment)
        self._server.publish(art_id, manifest_segment, segments)
        self._residents.add(resident)
        self._compactor.look(resident.keys)

    def withdraw(self, art_id: str) -> None:
        self._server.withdraw(art_id)
        self._gone(art_id)

    def withdraw_idle(self, ticket: int, art_id: str) -> None:
        done = self._server.withdraw_idle(art_id)
        if done:
            self._gone(art_id)
        self._post(Withdrawn(ticket, done=done))

    def _gone(self, art_id: str) -> None:
        if (resident := self._residents.remove(art_id)) is not None:
            self._compactor.look(resident.keys)

    def free(self, segments: Sequence[int]) -> None:
        for segment in segments:
            self._pool.drop(segment)
            self._sealed.pop(segment, None)

    def let_go(self, source: int) -> None:
        self._server.let_go(source)

    def attach_view(self, effect: AttachView) -> None:
        try:
            self._server.attach_segments(effect.request, effect.manifest_segment, effect.segments)
        except KeyError:
            pass  # hung up

    def attach_now(self, request: int) -> None:
        try:
            self._server.attach_now(request)
        except KeyError:
            # Hung up, and then nobody hears this; or withdrawn between the core's word and this one.
            text = f"what request {request} would attach was let go at this very moment; ask again"
            self.reply(request, StorageLost(text).record())

    def reply(self, request: int, answer: msgspec.Struct) -> None:
        self._server.reply(request, _status(answer), msgspec.msgpack.encode(answer))

    def uses(self) -> list[Use]:
        return [Use(art_id, last_ns, pins, nbytes) for art_id, last_ns, pins, nbytes in self._server.usage()]


def _status(answer: msgspec.Struct) -> int:
    match answer:
        case ErrorRecord():
            return LocalStatus.FAILED
        case Redirect():
            return LocalStatus.MOVED
        case AboutManifest():
            return LocalStatus.MANIFEST
        case _:
            return LocalStatus.OK


def _not_begun(job: Job, error: Exception) -> tuple[TensorCastError, bool]:
    """What is said, and whether the source of the bytes is lost."""
    if not isinstance(error, KeyError):
        return Invalid(f"{job.art_id!r} cannot be filled: {error}", art_id=job.art_id), False
    if job.reading is not None and job.reading.kept:
        text = f"the lease on {job.art_id!r} has ended, for its owner's process did; register or put it again"
        return LeaseLost(text, art_id=job.art_id), True
    return _hung_up(), False


def _hung_up() -> StorageLost:
    return StorageLost("the asker hung up before its put began")
