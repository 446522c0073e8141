"""The native floor as the core's hand: its events become the core's, the core's effects become calls.

Lives on the loop's thread: every native call here returns at once (fills run on native threads and end as events on an
eventfd). Owns the pool and the local server; nobody else calls them but for reading and sealing small segments.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import msgspec
import structlog

from tensorcast_bus.errors import (
    BadCheckpoint,
    ErrorRecord,
    Invalid,
    LocalProtocolError,
    StorageLost,
    TensorCastError,
    Timeout,
)
from tensorcast_native import FillDone, LocalServer, LocalStatus, Pool, PoolFull, Request
from tensorcast_services.storage.core.events import Event, Filled, RoomGiven, RoomRefused, RunFailed, Use, Withdrawn
from tensorcast_services.storage.jobs import Jobs, LoadJob, PutJob
from tensorcast_services.storage.sources import changed_file

SOURCE_STATUSES = frozenset({"source_changed", "source_short"})


class Local:
    """`post` takes the core's events, `on_request` what clients ask. KeyError, ValueError of the native floor for a
    request whose asker hung up in the meantime end here: the hang-up is an event of its own."""

    def __init__(
        self,
        pool: Pool,
        server: LocalServer,
        jobs: Jobs,
        *,
        post: Callable[[Event], None],
        on_request: Callable[[Request], None],
        load_ms_max: int,
    ) -> None:
        self._pool = pool
        self._server = server
        self._jobs = jobs
        self._post = post
        self._on_request = on_request
        self._load_ms_max = load_ms_max
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
                    self._on_request(event)
                else:
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
            lost = done.status in SOURCE_STATUSES and isinstance(job, LoadJob)
            self._jobs.drop(done.id)
            return RunFailed(done.id, trouble.record(), source_lost=lost)
        # Also a fill that nobody waits for any more has segments, which the core frees.
        path = job.source if isinstance(job, PutJob) else "file"
        if job is not None:
            job.fill = done
        return Filled(done.id, tuple(done.segments), done.bytes_moved, done.bytes_copied, path, done.ms)

    def accept_put(self, ticket: int) -> None:
        def start(job: PutJob | LoadJob) -> None:
            assert isinstance(job, PutJob)
            self._server.accept_put(ticket, job.draft.rows)

        self._begin(ticket, start)

    def start_load(self, ticket: int) -> None:
        def start(job: PutJob | LoadJob) -> None:
            assert isinstance(job, LoadJob)
            self._server.load(
                ticket,
                segment_bytes=job.plan.segment_bytes,
                pieces=job.plan.pieces,
                rows=job.plan.rows,
                files=[(fd, *seen) for fd, (_, *seen) in zip(job.fds, job.summary.files, strict=True)],  # type: ignore[misc]  # mypy loses the length
                inline=job.plan.inline,
                deadline_ms=self._load_ms_max,
            )
            job.close_files()

        self._begin(ticket, start)

    def _begin(self, ticket: int, start: Callable[[PutJob | LoadJob], None]) -> None:
        """Reserves the manifest's segment and starts the fill, or neither."""
        job = self._jobs.find(ticket)
        if job is None:
            self._post(RunFailed(ticket, _hung_up().record()))
            return
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
            # The asker hung up (KeyError), or the native floor refuses what was asked of it.
            self._free_one(manifest_segment)
            self._jobs.drop(ticket)
            trouble = (
                _hung_up() if isinstance(error, KeyError) else Invalid(f"{job.art_id!r} cannot be filled: {error}")
            )
            self._post(RunFailed(ticket, trouble.record()))
        else:
            self._post(RoomGiven(ticket, manifest_segment))

    def _free_one(self, segment: int | None) -> None:
        if segment is not None:
            self._pool.drop(segment)

    def cancel(self, ticket: int) -> None:
        self._server.cancel(ticket)

    def publish(self, art_id: str, manifest_segment: int, segments: tuple[int, ...]) -> None:
        self._server.publish(art_id, manifest_segment, segments)

    def withdraw(self, art_id: str) -> None:
        self._server.withdraw(art_id)

    def withdraw_idle(self, ticket: int, art_id: str) -> None:
        self._post(Withdrawn(ticket, done=self._server.withdraw_idle(art_id)))

    def free(self, segments: tuple[int, ...]) -> None:
        for segment in segments:
            self._pool.drop(segment)

    def attach_now(self, request: int) -> None:
        try:
            self._server.attach_now(request)
        except KeyError:
            # Hung up, and then nobody hears this; or withdrawn between the core's word and this one.
            text = f"what request {request} would attach was let go at this very moment; ask again"
            self.reply(request, StorageLost(text).record())

    def reply(self, request: int, answer: msgspec.Struct) -> None:
        status = LocalStatus.FAILED if isinstance(answer, ErrorRecord) else LocalStatus.OK
        self._server.reply(request, status, msgspec.msgpack.encode(answer))

    def uses(self) -> list[Use]:
        return [Use(art_id, last_ns, pins, nbytes) for art_id, last_ns, pins, nbytes in self._server.usage()]


def fill_trouble(done: FillDone, job: PutJob | LoadJob | None) -> TensorCastError:
    """What went wrong with a fill, for whoever waits for it."""
    art_id = job.art_id if job is not None else "?"
    detail = done.detail or done.status
    match done.status:
        case "source_changed" | "source_short":
            return changed_file(art_id, detail)
        case "source_error":
            why = os.strerror(done.error) if done.error else "no reason given"
            return BadCheckpoint(f"the source of {art_id!r} cannot be read: {detail} ({why})", art_id=art_id)
        case "deadline":
            return Timeout(
                f"copying the bytes of {art_id!r} did not end in time ({detail}): give it a longer deadline_ms",
                art_id=art_id,
                phase="copying the bytes",
            )
        case "bad_plan":
            return LocalProtocolError(f"the pieces of {art_id!r} do not make up its segments: {detail}", art_id=art_id)
        case _:
            return StorageLost(f"the copy of {art_id!r} was given up: {detail}; ask again", art_id=art_id)


def _hung_up() -> StorageLost:
    return StorageLost("the asker hung up before its put began")
