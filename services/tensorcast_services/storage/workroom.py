"""Threads for work that may block (disks, network file systems, large tables), each piece awaited on the loop.

Kinds of threads, so that none waits for another's trouble: tables only compute, files touch source files and may hang
with a dead file system (their askers are answered by their deadlines all the same), sidecars are read by a few, and
written by one thread, in order: the last word on an id is the one on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

import structlog

from tensorcast_bus.errors import LocalProtocolError, TensorCastError, Unavailable
from tensorcast_services.storage.core.events import Identity, RunFailed
from tensorcast_services.storage.file_threads import FileThreads
from tensorcast_services.storage.sources import SourceTrouble

T = TypeVar("T")


class Workroom:
    """On the loop's thread but for the pieces of work themselves."""

    def __init__(self, *, file_threads: int) -> None:
        self._tables = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tables")
        self._files = FileThreads(file_threads)
        self._reader = ThreadPoolExecutor(max_workers=file_threads, thread_name_prefix="sidecar-reads")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sidecars")
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("workroom")

    async def compute(self, work: Callable[[], T], /) -> T:
        """On a thread for tables."""
        return await _on(self._tables, work)

    async def read(self, work: Callable[[], T]) -> T:
        """On a thread that reads the storage's own files."""
        return await _on(self._reader, work)

    async def write(self, work: Callable[[], T]) -> T:
        """On the one thread that writes sidecars beside source files."""
        return await _on(self._writer, work)

    async def touch(self, files: Iterable[Identity], work: Callable[[], T]) -> T:
        """On a thread for the file systems of these source files. Unavailable when they have not answered for long."""
        return await self._files.run(files, work)

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

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("task_failed", exc_info=error)


def run_failed(ticket: int, art_id: str, error: Exception) -> RunFailed:
    """The end of a run whose work raised."""
    if isinstance(error, SourceTrouble):
        return RunFailed(ticket, error.error.record(), source_lost=error.lost)
    return RunFailed(ticket, as_trouble(art_id, error).record())


def as_trouble(art_id: str, error: Exception) -> TensorCastError:
    """For whoever waits; a bug has its traceback in the log."""
    if isinstance(error, SourceTrouble):
        return error.error
    if isinstance(error, TensorCastError):
        return error
    if isinstance(error, OSError):
        text = f"{art_id!r}: {error.strerror} ({error.filename or 'no file'}); ask again once the file system works"
        return Unavailable(text, art_id=art_id)
    structlog.get_logger("workroom").error("work_failed", art_id=art_id, exc_info=error)
    return LocalProtocolError(f"{art_id!r}: {type(error).__name__}: {error}; this is a bug, the log has its traceback")


async def _on(executor: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
