"""The NATS bus keeps the contract, over a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tensorcast_bus.bus import Bus
from tensorcast_bus.nats.client import NatsBus, connect_bus
from tests.contract.bus_edges_suite import BusEdgesSuite
from tests.contract.bus_suite import BusSuite, Connect
from tests.support.nats_server import NatsServer, running_nats


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with running_nats() as running:
        yield running


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    made: list[NatsBus] = []

    async def join(name: str) -> Bus:
        made.append(await connect_bus(server.url, name=name, token=server.token))
        return made[-1]

    yield join
    for bus in made:
        await bus.close()


class TestNatsBusAtItsEdges(BusEdgesSuite):
    pass


class TestNatsBus(BusSuite):
    pass
