"""The loopback bus keeps the contract, and plays a lost server for those who test with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import NotConnected, Timeout, Unavailable
from tensorcast_bus.loopback import LoopbackBus, LoopbackHub
from tensorcast_bus.messages import ArtifactEvent, Delete, DeletedRow
from tensorcast_bus.subjects import Subjects
from tests.contract.bus_edges_suite import BusEdgesSuite
from tests.contract.bus_suite import BUDGET_MS, DELETE, BusSuite, Connect, deleted
from tests.support.slack import SLACK_S


@pytest.fixture
async def hub() -> LoopbackHub:
    return LoopbackHub()


@pytest.fixture
async def connect(hub: LoopbackHub) -> AsyncIterator[Connect]:
    made: list[LoopbackBus] = []

    async def join(name: str) -> Bus:
        made.append(hub.bus(name))
        return made[-1]

    yield join
    for bus in made:
        await bus.close()


class TestLoopbackBusAtItsEdges(BusEdgesSuite):
    pass


class TestLoopbackBus(BusSuite):
    async def test_a_request_made_while_links_are_broken_waits_for_them(
        self, hub: LoopbackHub, connect: Connect
    ) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        await there.serve(DELETE, Delete, deleted)
        hub.break_links()
        assert not here.connected
        asking = asyncio.create_task(here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
        await asyncio.sleep(0)
        hub.mend_links()
        assert await asking == DeletedRow("x", 1)

    async def test_a_request_times_out_while_links_stay_broken(self, hub: LoopbackHub, connect: Connect) -> None:
        here = await connect("gateway-0")
        hub.break_links()
        with pytest.raises(Timeout, match="no connection"):
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=50)

    async def test_closing_ends_a_request_that_waits_for_a_connection(self, hub: LoopbackHub, connect: Connect) -> None:
        here = await connect("gateway-0")
        hub.break_links()
        asking = asyncio.create_task(here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
        await asyncio.sleep(0)
        await here.close()
        with pytest.raises(NotConnected, match="closed"):
            await asking

    async def test_publications_made_while_links_are_broken_are_lost_and_everybody_is_told(
        self, hub: LoopbackHub, connect: Connect
    ) -> None:
        here, there = await connect("global_store"), await connect("storage-a")
        told: list[str] = []
        seen: list[int] = []
        here.on_reconnect(lambda: told.append("global_store"))
        there.on_reconnect(lambda: told.append("storage-a"))

        def take(body: ArtifactEvent, caller: Caller) -> None:
            seen.append(body.sequence)

        await there.subscribe(Subjects.events("artifact"), ArtifactEvent, take)
        hub.break_links()
        await here.publish(Subjects.event("artifact", "00"), ArtifactEvent(1, 1, "hello"))
        hub.mend_links()
        await here.publish(Subjects.event("artifact", "00"), ArtifactEvent(1, 2, "hello"))
        assert await there.settle(budget_ms=BUDGET_MS)
        assert seen == [2] and sorted(told) == ["global_store", "storage-a"]

    @pytest.mark.parametrize("idem", ["i-1", ""])
    async def test_a_request_on_the_way_when_links_break_is_sent_again_if_it_may_be(
        self, hub: LoopbackHub, connect: Connect, idem: str
    ) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        asked: list[str] = []
        came, release = asyncio.Event(), asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            asked.append(body.art_id)
            came.set()
            if len(asked) == 1:
                await release.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        asking = asyncio.create_task(
            here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS, idem=idem)
        )
        await asyncio.wait_for(came.wait(), SLACK_S)
        hub.break_links()
        hub.mend_links()
        if idem:
            assert await asking == DeletedRow("x", 1)
        else:
            with pytest.raises(Unavailable, match="unknown"):
                await asking
        assert len(asked) == (2 if idem else 1)
        release.set()
