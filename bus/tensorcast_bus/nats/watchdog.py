"""Finds out that a client is dead although it thinks it is not, and has it replaced.

nats-py notices a closed or silent connection, but its reading task can die alone, an error text from the server closes
it for good, and its reconnecting can get stuck. The only proof of life is a message to ourselves that comes back.
Owned by the connection, one task each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

WATCH_INTERVAL_S = 2.0
PROBE_S_MAX = 2.0
FAILURES_MAX = 2


class Watchdog:
    """`probe(seconds)` says whether a message to ourselves came back; `rebuild(why)` returns with a living client."""

    def __init__(
        self,
        *,
        probe: Callable[[float], Awaitable[bool]],
        rebuild: Callable[[str], Awaitable[None]],
        interval_s: float = WATCH_INTERVAL_S,
        probe_s: float = PROBE_S_MAX,
    ) -> None:
        self._probe = probe
        self._rebuild = rebuild
        self._interval_s = interval_s
        self._probe_s = probe_s
        self._dead: str | None = None
        self._wake = asyncio.Event()

    def report_dead(self, why: str) -> None:
        """The client said itself that it will not come back: no need to wait for probes."""
        self._dead = why
        self._wake.set()

    async def run(self) -> None:
        """Ends only by cancellation."""
        while True:
            why = await self._next_death()
            self._dead = None
            self._wake.clear()
            await self._rebuild(why)

    async def _next_death(self) -> str:
        failures = 0
        while failures < FAILURES_MAX:
            # After one failure the second probe follows at once: a stall of our own fails one, never two.
            if failures == 0:
                await self._pause(self._interval_s)
            if self._dead is not None:
                return self._dead
            loop = asyncio.get_running_loop()
            started = loop.time()
            if await self._probe(self._probe_s):
                failures = 0
                continue
            failures += 1
            await self._pause(started + self._probe_s - loop.time())
        return self._dead or f"its messages to itself did not come back for {FAILURES_MAX * self._probe_s:g} s"

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
