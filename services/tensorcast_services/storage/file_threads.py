"""Threads that touch source files: a few for each file system, so that a dead one holds up nobody but its own.

Owned by the workroom. File systems are told apart by the device numbers in the identities of the files. A thread that
hangs ends with the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tensorcast_bus.errors import Unavailable
from tensorcast_services.storage.core.events import Identity

T = TypeVar("T")
WAITING_MAX = 4096  # pieces of work for one file system; past it nothing is queued behind what does not end

Place = tuple[int, ...]


class FileThreads:
    """On the loop's thread but for the pieces of work themselves."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pools: dict[Place, ThreadPoolExecutor] = {}
        self._waiting: Counter[Place] = Counter()

    async def run(self, files: Iterable[Identity], work: Callable[[], T]) -> T:
        """Runs `work`, which touches `files` only. Unavailable when their file system has not answered for long."""
        place = place_of(files)
        if self._waiting[place] >= WAITING_MAX:
            raise Unavailable(
                f"{WAITING_MAX} looks at files of device {', '.join(map(str, place))} wait for an answer: see whether "
                "its file system is alive, and ask again then"
            )
        pool = self._pools.get(place)
        if pool is None:
            pool = self._pools[place] = ThreadPoolExecutor(self._threads, thread_name_prefix="files")
        self._waiting[place] += 1
        future = pool.submit(work)
        # Counted by the thread's own end: who awaits it may give up long before.
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _on_loop(loop, lambda: self._ended(place)))
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Without waiting."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, place: Place) -> None:
        self._waiting[place] -= 1


def place_of(files: Iterable[Identity]) -> Place:
    """The devices that these files lie on."""
    return tuple(sorted({device for _, device, *_ in files}))


def _on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(work)
    except RuntimeError:
        pass  # the loop is closed: the process ends
