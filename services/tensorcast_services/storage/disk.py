"""Writing artifacts out to the disk folder and forgetting them there: one thread, so that the last word on an id is the
one on disk.

Owned by rooms.py, on the loop's thread but for the writes themselves. Every segment is held while it is written, so
it stays whatever happens to its artifact. Without a disk tier (`folder` None) a write is refused by an error that names
the setting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec
import structlog

from tensorcast_bus.errors import CapacityExceeded, StorageLost, TensorCastError, Unavailable
from tensorcast_bus.manifest import decode_manifest
from tensorcast_services.storage.core.effects import WriteOut
from tensorcast_services.storage.core.events import Event, RunFailed, WrittenOut
from tensorcast_services.storage.disk_folder import DiskFolder, Part, WriteCancelled
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import PutJob
from tensorcast_services.storage.load_plan import remade
from tensorcast_services.storage.sidecars import Summary

T = TypeVar("T")
STOP_S_MAX = 2.0
_OFF = (
    "this storage has no disk tier, since its folder lies in memory (tmpfs): set storage.disk_path to a folder on a "
    "disk and start it again, or put without durable=True"
)


class _Work(msgspec.Struct, frozen=True):
    """What is to be written: the finished manifest, and the segments of the pool that it names, in its order. All of
    `held` have a user of ours."""

    art_id: str
    digest: str
    blob: bytes
    segments: tuple[int, ...]
    held: tuple[int, ...]


class Disk:
    """`post` takes the core's events."""

    def __init__(self, floor: Floor, folder: DiskFolder | None) -> None:
        self.folder = folder
        self._pool = floor.pool
        self._jobs = floor.jobs
        self._residents = floor.residents
        self._post = floor.post
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
        self._cancelled: dict[int, threading.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("disk")

    @property
    def off_why(self) -> str:
        """Empty, or why nothing can be made durable here."""
        return "" if self.folder is not None else _OFF

    def figures(self) -> dict[str, int]:
        here = self.folder
        return {"disk_bytes": here.bytes if here else 0, "disk_bytes_max": here.bytes_max if here else 0}

    def write_out(self, effect: WriteOut) -> None:
        """What it writes is held before this returns."""
        try:
            folder, work = self._ready(), self._work(effect)
        except Exception as error:
            self._post(RunFailed(effect.ticket, self._trouble(effect.art_id, error).record()))
            return
        flag = self._cancelled[effect.ticket] = threading.Event()
        self._spawn(self._write(effect.ticket, folder, work, flag))

    def cancel(self, ticket: int) -> None:
        if (flag := self._cancelled.get(ticket)) is not None:
            flag.set()

    def distrust(self, key: str) -> str:
        """The path of a damaged file, which is written anew with the next artifact that has it."""
        folder = self.folder
        if folder is None:
            return "?"
        self._thread.submit(folder.distrust, key)
        return str(folder.path(key))

    def remove(self, art_id: str) -> None:
        folder = self.folder
        if folder is None:
            return

        async def work() -> None:
            try:
                await self._on_thread(lambda: folder.remove(art_id))
            except OSError as error:
                # The next start reports it, and the global store refuses it again.
                self._log.error("disk_copy_not_removed", art_id=art_id, error=str(error))

        self._spawn(work())

    async def scan(self) -> list[Summary]:
        """What an earlier incarnation wrote out, as far as it is whole."""
        folder = self.folder
        if folder is None:
            return []

        def skipped(why: str) -> None:
            self._log.warning("disk_copy_skipped", why=why)

        return await self._on_thread(lambda: folder.scan(skipped))

    async def stop(self) -> bool:
        """Ends what is being written; False when the disk does not answer, and then the pool must not go."""
        for flag in self._cancelled.values():
            flag.set()
        late = (await asyncio.wait(self._tasks, timeout=STOP_S_MAX))[1] if self._tasks else set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        return not late

    async def _write(self, ticket: int, folder: DiskFolder, work: _Work, cancelled: threading.Event) -> None:
        answer: Event
        try:
            answer = WrittenOut(ticket, await self._on_thread(lambda: self._write_now(folder, work, cancelled)))
        except Exception as error:
            answer = RunFailed(ticket, self._trouble(work.art_id, error).record())
        finally:
            for segment in work.held:
                self._pool.drop(segment)
            self._cancelled.pop(ticket, None)
        self._post(answer)

    def _ready(self) -> DiskFolder:
        if self.folder is None:
            raise Unavailable(_OFF)
        return self.folder

    def _work(self, effect: WriteOut) -> _Work:
        art_id = effect.art_id
        job = self._jobs.find(effect.ticket)
        try:
            if isinstance(job, PutJob) and effect.segments and job.summary is not None:
                held = self._hold(effect.segments)
                return _Work(art_id, job.summary.digest, job.blob, effect.segments, held)
            found = self._residents.find(art_id)
            if found is not None:
                held = self._hold((*found.segments, found.manifest_segment))
                blob = self._pool.read(found.manifest_segment, 0, found.manifest_bytes)
                return _Work(art_id, found.digest, blob, found.segments, held)
        except KeyError:
            pass
        raise StorageLost(f"{art_id!r} was let go before it was written out; ask again", art_id=art_id)

    def _hold(self, segments: Sequence[int]) -> tuple[int, ...]:
        """All of them, or KeyError and none."""
        held: list[int] = []
        try:
            for segment in segments:
                self._pool.hold(segment)
                held.append(segment)
        except KeyError:
            for segment in held:
                self._pool.drop(segment)
            raise
        return tuple(held)

    def _write_now(self, folder: DiskFolder, work: _Work, cancelled: threading.Event) -> int:
        """On the disk thread; bytes that the artifact takes there."""
        manifest = decode_manifest(work.blob)
        again = remade(manifest)
        rows = [(n, row) for n, row in enumerate(manifest.segments) if n not in again]
        if unnamed := [n for n, row in rows if not row.key]:
            raise Unavailable(
                f"segment {unnamed[0]} of {work.art_id!r} was put before segments had names, and cannot be written "
                "out: put it again",
                art_id=work.art_id,
            )
        parts = [Part(row.key, row.nbytes, work.segments[n]) for n, row in rows]
        disk = tuple((part.key, part.nbytes) for part in parts)
        folder.write(
            Summary(work.art_id, work.digest, manifest.nbytes, len(manifest.tensors), (), disk),
            work.blob,
            parts,
            pour=lambda part, fd, offset, nbytes: self._pool.write_to(part.segment, fd, offset, nbytes),
            cancelled=cancelled.is_set,
        )
        return sum(part.nbytes for part in parts)

    def _trouble(self, art_id: str, error: Exception) -> TensorCastError:
        if isinstance(error, TensorCastError):
            if isinstance(error, CapacityExceeded):
                self._log.warning("not_written_out", art_id=art_id, why=error.text)
            return error
        if isinstance(error, WriteCancelled):
            return StorageLost(f"writing {art_id!r} out was given up", art_id=art_id)
        if isinstance(error, OSError):
            self._log.error("not_written_out", art_id=art_id, why=str(error))
            what = f"{error.strerror} ({error.filename or 'no file'})"
            return Unavailable(
                f"{art_id!r} cannot be written out: {what}; see to the disk, and ask again", art_id=art_id
            )
        self._log.error("write_failed", art_id=art_id, exc_info=error)
        what = f"{type(error).__name__}: {error}"
        return Unavailable(f"{art_id!r} was not written out: {what}; this is a bug, see the log", art_id=art_id)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
