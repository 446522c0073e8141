"""The threads in which the async face runs blocking calls: its own, since a loop's default ones are few.

They grow on demand up to THREADS_MAX and end after a while without work. They are daemons: a program may end while a
call still waits. What waits for a thread keeps the call's deadline, and leaves the queue when it is over. Invariant:
`idle` threads have no job, every other thread has or takes exactly one, and `waiting` jobs have no thread yet.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from tensorcast.deadline import Deadline
from tensorcast_bus.errors import Unavailable

R = TypeVar("R")
THREADS_MAX = 256
IDLE_S_MAX = 30.0


async def in_thread(work: Callable[[int], R], deadline: Deadline, *, to_its_end: bool = False) -> R:
    """`work` is called with the deadline's milliseconds, already running, and must keep them.

    Cancelled before a thread took it, `work` is never called. Cancelled later, it ends at its next look at the clock;
    with `to_its_end` the cancelled await returns only then, for work that reaches memory which the caller may use
    anew once the await has returned. Raises Timeout, and Unavailable when no thread can be started.
    """
    left_s = deadline.left_ms("waiting for a thread") / 1000
    job: _Job[R] = _Job(work, deadline)
    _shared.submit(job)
    waiter = asyncio.wrap_future(job.future)
    try:
        if not (await asyncio.wait({waiter}, timeout=left_s))[0]:
            if job.future.cancel():
                raise deadline.timeout(f"waiting for a thread; all {THREADS_MAX} (threads_max) are in calls")
            await asyncio.wait({waiter})  # it has a thread, and keeps the deadline itself
        return waiter.result()
    except asyncio.CancelledError:
        deadline.running.given_up = True
        if not job.future.cancel() and to_its_end:
            await _end_of(waiter)
        raise
    finally:
        # Nobody else looks at what an abandoned call brings; it must not be told as an error that was never seen.
        if not waiter.cancel() and not waiter.cancelled():
            waiter.exception()
        # An error holds this frame, and would be held by it: such a ring keeps the caller's tensors for the collector.
        del waiter, job


async def _end_of(waiter: asyncio.Future[R]) -> None:
    """However often the waiting is cancelled: memory that is still being read cannot be given back."""
    while not waiter.done():
        try:
            await asyncio.wait({waiter})
        except asyncio.CancelledError:
            continue


class _Job(Generic[R]):
    def __init__(self, work: Callable[[int], R], deadline: Deadline) -> None:
        self.future: Future[R] = Future()
        self._work: Callable[[int], R] | None = work
        self._deadline = deadline
        self._context = contextvars.copy_context()

    def run(self) -> None:
        work, self._work = self._work, None
        future = self.future
        if work is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._context.run(work, self._deadline.running))
        except BaseException as error:
            future.set_exception(error)
        finally:
            del work, future, self


class Threads:
    """A process's threads for blocking calls."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job[object]] = queue.SimpleQueue()
        self._threads = self._idle = self._waiting = 0

    def submit(self, job: _Job[R]) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._threads >= self._threads_max or not self._start():
                self._waiting += 1
            self._jobs.put(job)  # type: ignore[arg-type]  # whoever runs it does not look at what it returns

    def _start(self) -> bool:
        """False where the system gives no more threads, but some of ours will get to the job."""
        try:
            threading.Thread(target=self._serve, name="tensorcast-call", daemon=True).start()
        except RuntimeError as error:
            if self._threads:
                return False
            raise Unavailable(f"no thread can be started for the call: {error}; raise this process's limits") from error
        self._threads += 1
        return True

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_S_MAX)
            except queue.Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        self._threads -= 1
                        return
                continue
            job.run()
            del job  # what it brought is the caller's, not this thread's to keep
            with self._lock:
                if self._waiting:
                    self._waiting -= 1
                else:
                    self._idle += 1


_shared = Threads(THREADS_MAX)


def _new_in_child() -> None:
    global _shared
    _shared = Threads(THREADS_MAX)


os.register_at_fork(after_in_child=_new_in_child)
