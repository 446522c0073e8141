"""The global store hears of every ended lease, and nobody asks it about the id before."""

from __future__ import annotations

import asyncio

from tensorcast_bus.errors import TensorCastError, Unavailable
from tensorcast_bus.messages import DeletedRow
from tensorcast_services.storage import lease_ends
from tensorcast_services.storage.lease_ends import LeaseEnds
from tests.support.slack import SLACK_S


class Desk:
    """Stands for the link, whose own tests have a bus."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.troubles: list[TensorCastError] = []
        self.open = asyncio.Event()
        self.asked = asyncio.Event()

    async def end_lease(self, art_id: str, digest: str, *, budget_ms: int) -> DeletedRow:
        self.asked.set()
        await self.open.wait()
        if self.troubles:
            raise self.troubles.pop(0)
        self.told.append((art_id, digest))
        return DeletedRow(art_id, 5)


async def test_an_end_is_told_until_it_is_known_and_who_asks_waits_for_it() -> None:
    desk = Desk()
    ends = LeaseEnds(desk)  # type: ignore[arg-type]
    running = asyncio.create_task(ends.run())
    try:
        ends.tell("x", "aa")
        asker = asyncio.create_task(ends.told("x", budget_ms=int(4000 * SLACK_S)))
        async with asyncio.timeout(SLACK_S):
            await ends.told("other", budget_ms=1)
        assert not asker.done()
        desk.troubles = [Unavailable("busy")]
        desk.open.set()
        async with asyncio.timeout(SLACK_S):
            await asker
        assert desk.told == [("x", "aa")]
    finally:
        running.cancel()


async def test_who_asks_does_not_wait_beyond_half_of_his_time() -> None:
    ends = LeaseEnds(Desk())  # type: ignore[arg-type]
    ends.tell("x", "aa")
    async with asyncio.timeout(SLACK_S):
        await ends.told("x", budget_ms=20)


async def test_ends_that_find_no_room_are_forgotten_and_hold_nobody_up() -> None:
    ends = LeaseEnds(Desk())  # type: ignore[arg-type]
    for number in range(lease_ends.ENDS_MAX + 1):
        ends.tell(f"x{number}", "aa")
    async with asyncio.timeout(SLACK_S):
        await ends.told("x0", budget_ms=int(4000 * SLACK_S))


async def test_an_end_that_comes_while_one_of_the_same_content_is_told_is_told_as_well() -> None:
    desk = Desk()
    ends = LeaseEnds(desk)  # type: ignore[arg-type]
    running = asyncio.create_task(ends.run())
    try:
        ends.tell("x", "aa")
        async with asyncio.timeout(SLACK_S):
            await desk.asked.wait()
        ends.tell("x", "aa")
        desk.open.set()
        async with asyncio.timeout(SLACK_S):
            await ends.told("x", budget_ms=int(4000 * SLACK_S))
        assert desk.told == [("x", "aa")] * 2
    finally:
        running.cancel()
