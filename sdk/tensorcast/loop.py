"""The one background loop thread of a process, for all that uses the bus.

Made at first use, made anew in a forked child (threads do not survive a fork), stopped by atexit before the
interpreter is finalized, so that no callback runs in a dying interpreter.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

from tensorcast.shortage import shortage
from tensorcast_bus.errors import Unavailable

T = TypeVar("T")
STOP_S_MAX = 2.0


class LoopThread:
    """Belongs to the process that made it. `at_stop` is run before the loop ends: what has to be closed in it;
    once it is `ending`, nothing new is begun in it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self.at_stop: set[Callable[[], Coroutine[object, object, None]]] = set()
        self.ending = False
        self._thread = threading.Thread(target=self._run, name="tensorcast-bus", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise Unavailable(f"no thread can be started for the bus: {error}; raise this process's limits") from error

    def submit(self, work: Coroutine[object, object, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def stop(self) -> None:
        """Cancels what still runs and ends the thread. Does nothing in a forked child."""
        if os.getpid() != self.pid or not self._thread.is_alive():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_S_MAX)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._end())
        finally:
            self.loop.close()

    async def _end(self) -> None:
        """Bounded: what refuses to end goes down with its thread, as the process is ending anyway."""
        self.ending = True
        closing = {asyncio.ensure_future(close()) for close in self.at_stop}
        if closing:
            await asyncio.wait(closing, timeout=STOP_S_MAX / 3)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=STOP_S_MAX / 3)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.new_event_loop()
    except OSError as error:
        raise shortage(error, "connecting to the bus") or error from error


_shared: LoopThread | None = None
_making = threading.Lock()


def shared_loop() -> LoopThread:
    """The loop of this process."""
    global _shared
    with _making:
        if _shared is None or _shared.pid != os.getpid():
            _shared = LoopThread()
        return _shared


def _stop_shared() -> None:
    if _shared is not None:
        _shared.stop()


def _new_lock_in_child() -> None:
    # Another thread of the parent may have held the lock at the fork; nobody in the child would ever free it.
    global _making
    _making = threading.Lock()


atexit.register(_stop_shared)
os.register_at_fork(after_in_child=_new_lock_in_child)
