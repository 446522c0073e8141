"""Work that may block (disks, network file systems, large tables), on a few threads, each piece ending in one event.

Kinds of threads, so that none waits for another's trouble: tables only compute, files touch source files and may hang
with a dead file system (their askers are answered by their deadlines all the same), and sidecars are written by one
thread, in order: the last word on an id is the one on disk.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import structlog

from tensorcast_bus.errors import LocalProtocolError, NoReplica, TensorCastError, Unavailable
from tensorcast_bus.manifest import Manifest
from tensorcast_native import Pool
from tensorcast_services.storage import sealing, sources
from tensorcast_services.storage.core.events import Event, FilesChecked, FilesOpened, Identity, RunFailed, Sealed
from tensorcast_services.storage.drafts import room_bytes
from tensorcast_services.storage.file_threads import FileThreads, Place, place_of
from tensorcast_services.storage.jobs import Jobs, LoadJob, PutJob
from tensorcast_services.storage.load_plan import plan_load
from tensorcast_services.storage.sidecars import Sidecars, Summary, TornSidecar
from tensorcast_services.storage.sources import Look, SourceTrouble

T = TypeVar("T")
SCAN_LOOKS_S_MAX = 2.0  # a start waits no longer for file systems that may be dead
_UNANSWERED = Look(f"not seen within {SCAN_LOOKS_S_MAX} s", sure=False)


class Workroom:
    """On the loop's thread but for the pieces of work themselves."""

    def __init__(
        self, pool: Pool, sidecars: Sidecars, jobs: Jobs, *, post: Callable[[Event], None], file_threads: int
    ) -> None:
        self._pool = pool
        self._sidecars = sidecars
        self._jobs = jobs
        self._post = post
        self._tables = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tables")
        self._files = FileThreads(file_threads)
        self._reader = ThreadPoolExecutor(max_workers=file_threads, thread_name_prefix="sidecar-reads")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sidecars")
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("workroom")

    def check_files(self, ticket: int, files: tuple[Identity, ...]) -> None:
        async def work() -> None:
            try:
                found = await self._files.run(files, lambda: sources.look(files))
            except Exception as error:
                self._log.error("look_failed", files=[path for path, *_ in files[:4]], exc_info=error)
                found = Look(f"nobody could look: {type(error).__name__}: {error}", sure=False)
            self._post(FilesChecked(ticket, found.changed, found.sure))

        self.spawn(work())

    def open_files(self, ticket: int, art_id: str) -> None:
        async def work() -> None:
            try:
                summary, blob, manifest = await _on(self._reader, lambda: self._read(art_id))
                fds = await self._files.run(summary.files, lambda: sources.open_all(art_id, summary.files))
                opened = LoadJob(art_id, summary, manifest, blob, plan_load(manifest), fds)
            except Exception as error:
                self._post(_failed(ticket, art_id, error))
                return
            self._jobs.add(ticket, opened)
            need = sum(map(room_bytes, (*opened.plan.segment_bytes, opened.manifest_bytes)))
            self._post(FilesOpened(ticket, need))

        self.spawn(work())

    def seal(self, ticket: int, art_id: str, manifest_segment: int) -> None:
        job = self._jobs.find(ticket)

        async def work() -> None:
            try:
                if job is None or job.fill is None:
                    raise Unavailable(f"the put of {art_id!r} was given up", art_id=art_id)
                sealed = await self._seal(ticket, job, manifest_segment)
            except Exception as error:
                self._post(_failed(ticket, art_id, error))
            else:
                self._post(sealed)

        self.spawn(work())

    def remove_sidecar(self, art_id: str) -> None:
        async def work() -> None:
            try:
                await _on(self._writer, lambda: self._sidecars.remove(art_id))
            except OSError as error:
                # The next start reports it, and the global store refuses it again.
                self._log.error("sidecar_not_removed", art_id=art_id, error=str(error))

        self.spawn(work())

    async def compute(self, work: Callable[[], T]) -> T:
        """On a thread for tables."""
        return await _on(self._tables, work)

    async def scan(self) -> list[tuple[Summary, Look]]:
        """Every whole sidecar, with how its files look now: not `sure` where they do not answer in time."""

        def skipped(why: str) -> None:
            self._log.warning("sidecar_skipped", why=why)

        heads = await _on(self._reader, lambda: list(self._sidecars.scan(skipped)))
        by_place: dict[Place, list[Summary]] = defaultdict(list)
        for head in heads:
            by_place[place_of(head.files)].append(head)
        seen: dict[str, Look] = {}
        looks = [self.spawn(self._look_at(some, seen)) for some in by_place.values()]
        if looks:
            await asyncio.wait(looks, timeout=SCAN_LOOKS_S_MAX)
        found = [(head, seen.get(head.art_id, _UNANSWERED)) for head in heads]
        if unanswered := [head.art_id for head, now in found if now is _UNANSWERED]:
            self._log.warning("sources_not_seen", artifacts=len(unanswered), first=unanswered[0])
        return found

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # A thread that hangs in a file system ends with the process.
        self._files.stop()
        for executor in (self._tables, self._reader, self._writer):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _look_at(self, heads: list[Summary], seen: dict[str, Look]) -> None:
        """Fills in `seen`, one after the other, for artifacts of one file system."""

        def work() -> None:
            for head in heads:
                seen[head.art_id] = sources.look(head.files)

        await self._files.run(heads[0].files, work)

    async def _seal(self, ticket: int, job: PutJob | LoadJob, manifest_segment: int) -> Sealed:
        assert job.fill is not None
        fill = job.fill
        manifest = job.manifest if isinstance(job, LoadJob) else job.draft.manifest

        def first_bytes(number: int, nbytes: int) -> bytes:
            return self._pool.read(fill.segments[number], 0, nbytes)

        await _on(self._tables, lambda: sealing.check_headers(job.art_id, manifest, first_bytes))
        if isinstance(job, LoadJob):
            summary = await _on(self._tables, lambda: sealing.check_load(job, fill.digests))
            blob, in_file = job.blob, True
        else:
            summary, blob = await _on(self._tables, lambda: sealing.finish_put(job, fill.digests))
            in_file = job.draft.from_files and await self._keep_beside_files(summary, blob)
        self._pool.write(manifest_segment, 0, blob)
        self._pool.seal(manifest_segment)
        return Sealed(ticket, summary.digest, summary.nbytes, summary.tensors, summary.files, in_file)

    async def _keep_beside_files(self, summary: Summary, blob: bytes) -> bool:
        """Writes the sidecar. False where this process itself cannot read the very files: they are no replica then."""
        try:
            opened = await self._files.run(summary.files, lambda: sources.open_all(summary.art_id, summary.files))
            sources.close_all(opened)
            await _on(self._writer, lambda: self._sidecars.write(summary, blob))
        except (SourceTrouble, Unavailable, OSError) as error:
            self._log.warning("file_is_no_replica", art_id=summary.art_id, why=str(error))
            self.remove_sidecar(summary.art_id)
            return False
        return True

    def _read(self, art_id: str) -> tuple[Summary, bytes, Manifest]:
        try:
            return self._sidecars.read(art_id)
        except (TornSidecar, FileNotFoundError) as error:
            lost = NoReplica(
                f"the manifest of {art_id!r} beside its file is lost ({error}); put it again", art_id=art_id
            )
            raise SourceTrouble(lost, lost=True) from error

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_failed", exc_info=error)


async def _on(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)


def _failed(ticket: int, art_id: str, error: Exception) -> RunFailed:
    if isinstance(error, SourceTrouble):
        return RunFailed(ticket, error.error.record(), source_lost=error.lost)
    if isinstance(error, TensorCastError):
        return RunFailed(ticket, error.record())
    if isinstance(error, OSError):
        text = f"{art_id!r}: {error.strerror} ({error.filename or 'no file'}); ask again once the file system works"
        return RunFailed(ticket, Unavailable(text, art_id=art_id).record())
    structlog.get_logger("workroom").error("work_failed", art_id=art_id, exc_info=error)
    crash = LocalProtocolError(f"{art_id!r}: {type(error).__name__}: {error}; this is a bug, the log has its traceback")
    return RunFailed(ticket, crash.record())
