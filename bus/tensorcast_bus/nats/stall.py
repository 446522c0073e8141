"""How long this process slept: the age of what it reads after that.

A ticker measures how late the event loop is. Whatever is read between the end of a stall and the moment when
everything that had piled up is read may have waited through the whole stall, so all of it is aged by it. The end of
the backlog is marked by a message to ourselves (`settle`): the server keeps the order of one connection.
Owned by the connection; `Stall` itself is pure, times are seconds of the loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TICK_S = 0.1
STALL_S_MIN = 0.1


class Stall:
    """The measured stall, from ticks."""

    def __init__(self, now: float) -> None:
        self._last_tick = now
        self._backlog_s = 0.0

    def tick(self, now: float) -> bool:
        """True when the loop has just come out of a stall: somebody has to mark the end of the backlog."""
        late = self._late(now)
        self._last_tick = now
        self._backlog_s += late
        return late > 0

    def age_s(self, now: float) -> float:
        """What a message read now may have waited. Right also before the first tick after a stall."""
        return self._backlog_s + self._late(now)

    def backlog_read(self) -> None:
        self._backlog_s = 0.0

    def _late(self, now: float) -> float:
        late = now - self._last_tick - TICK_S
        return late if late > STALL_S_MIN else 0.0


async def watch_for_stalls(stall: Stall, settle: Callable[[], Awaitable[bool]]) -> None:
    """Ticks for ever. `settle` says True when everything is read that came in before it was called."""
    loop = asyncio.get_running_loop()
    marking: asyncio.Task[None] | None = None
    try:
        while True:
            await asyncio.sleep(TICK_S)
            if stall.tick(loop.time()):
                if marking is not None:
                    marking.cancel()  # It would end the newer stall's backlog too early.
                marking = loop.create_task(_mark(stall, settle))
    finally:
        if marking is not None:
            marking.cancel()


async def _mark(stall: Stall, settle: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await settle():
            stall.backlog_read()
            return
        await asyncio.sleep(TICK_S)  # No connection now. The next one starts without a backlog.
