"""Telling the global store that leases have ended: each until it is known, by one task, whatever else is under way.

Owned by service.py. Whoever asks the global store about such an id waits for this first: else a put after a release
would meet the old lease. Ends that find no room are forgotten: the global store ends leases that nobody claims itself.
"""

from __future__ import annotations

import asyncio

import structlog

from tensorcast_bus.errors import StaleFence, TensorCastError
from tensorcast_services.storage.link import Link

ENDS_MAX = 10_000
ASK_MS_MAX = 10_000
PAUSE_S = 0.5


class LeaseEnds:
    """On the loop's thread. Raises StaleFence out of `run` when a newer incarnation of this process is known."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._untold: dict[str, str] = {}  # id -> digest, the oldest first
        self._told: dict[str, asyncio.Event] = {}
        self._wake = asyncio.Event()
        self._log = structlog.get_logger("lease_ends")

    def tell(self, art_id: str, digest: str) -> None:
        self._untold.pop(art_id, None)
        self._untold[art_id] = digest
        self._told.setdefault(art_id, asyncio.Event())
        if len(self._untold) > ENDS_MAX:
            self._forget(next(iter(self._untold)))
        self._wake.set()

    async def told(self, art_id: str, *, budget_ms: int) -> None:
        """Returns when nothing is left to be told of the id, or half of the budget is over."""
        waiting = self._told.get(art_id)
        if waiting is None:
            return
        try:
            async with asyncio.timeout(budget_ms / 2000):
                await waiting.wait()
        except TimeoutError:
            pass

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._untold:
                art_id, digest = next(iter(self._untold.items()))
                del self._untold[art_id]  # before it is told: an end that comes meanwhile is told as well
                try:
                    await self._link.end_lease(art_id, digest, budget_ms=ASK_MS_MAX)
                except StaleFence:
                    raise
                except TensorCastError as error:
                    self._log.warning("lease_end_not_told", art_id=art_id, error=error.text, again=error.retryable)
                    if error.retryable:
                        self._untold.setdefault(art_id, digest)
                        await asyncio.sleep(PAUSE_S)
                        continue
                if art_id not in self._untold:
                    self._forget(art_id)

    def _forget(self, art_id: str) -> None:
        self._untold.pop(art_id, None)
        if (waited := self._told.pop(art_id, None)) is not None:
            waited.set()
