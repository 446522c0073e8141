"""A process that slept: what waited for it has aged by that long, and what nobody waits for any more is not done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from tensorcast_bus.bus import Caller
from tensorcast_bus.errors import Timeout
from tensorcast_bus.messages import Delete, DeletedRow
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects
from tests.support.nats_server import NatsServer, running_nats
from tests.support.slack import SLACK_S

DELETE = Subjects.global_store("delete")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with running_nats() as running:
        yield running


class StallingService:
    """Serves DELETE on a loop and thread of its own, which `stall` holds until `resume`."""

    def __init__(self, server: NatsServer) -> None:
        self.asked: list[tuple[str, int]] = []
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._resumed = threading.Event()
        self._ready = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> StallingService:
        self._thread.start()
        assert self._ready.wait(SLACK_S)
        return self

    def __exit__(self, *unused: object) -> None:
        self._resumed.set()
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(SLACK_S)
        assert not self._thread.is_alive()

    def stall(self) -> None:
        """Returns when the loop is held."""
        held = threading.Event()
        self._resumed.clear()
        self._loop.call_soon_threadsafe(self._hold, held)
        assert held.wait(SLACK_S)

    def resume(self) -> None:
        self._resumed.set()

    def _hold(self, held: threading.Event) -> None:
        held.set()
        assert self._resumed.wait(60.0)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        bus = await connect_bus(self._server.url, name="global_store", token=self._server.token)
        await bus.serve(DELETE, Delete, self._delete)
        self._ready.set()
        await self._ended.wait()
        await bus.close()

    async def _delete(self, body: Delete, caller: Caller) -> DeletedRow:
        self.asked.append((body.art_id, caller.budget_ms))
        return DeletedRow(body.art_id, 1)


async def test_a_request_that_timed_out_during_a_stall_is_not_run_after_it(server: NatsServer) -> None:
    bus = await connect_bus(server.url, name="gateway-0", token=server.token)
    with StallingService(server) as service:
        service.stall()
        stalled_at = time.monotonic()
        patient = asyncio.create_task(bus.request(DELETE, Delete("patient"), answer=DeletedRow, budget_ms=60_000))
        with pytest.raises(Timeout):
            await bus.request(DELETE, Delete("impatient"), answer=DeletedRow, budget_ms=400)
        await asyncio.sleep(max(0.0, stalled_at + 1.0 - time.monotonic()))  # The length of the stall is the case.
        stalled_ms = int((time.monotonic() - stalled_at) * 1000)
        service.resume()
        assert await patient == DeletedRow("patient", 1)
        assert [art_id for art_id, _ in service.asked] == ["patient"]
        assert service.asked[0][1] <= 60_000 - stalled_ms + 200  # A stall shorter than two ticks goes unmeasured.
    await bus.close()


async def test_requests_after_a_stall_have_their_whole_budget_again(server: NatsServer) -> None:
    bus = await connect_bus(server.url, name="gateway-0", token=server.token)
    with StallingService(server) as service:
        service.stall()
        waiting = asyncio.create_task(bus.request(DELETE, Delete("old"), answer=DeletedRow, budget_ms=60_000))
        await asyncio.sleep(1.0)  # The length of the stall is the case.
        service.resume()
        await waiting
        async with asyncio.timeout(SLACK_S):
            while not service.asked or service.asked[-1][1] < 59_500:
                await bus.request(DELETE, Delete("new"), answer=DeletedRow, budget_ms=60_000)
        assert service.asked[0][1] < 59_500
    await bus.close()
