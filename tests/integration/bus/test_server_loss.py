"""The server dies, comes back, or stops answering: buses come back by themselves, and nothing hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import MessageTooLarge, NotConnected, TensorCastError, Timeout, Unavailable
from tensorcast_bus.limits import CLOSE_S_MAX
from tensorcast_bus.messages import ArtifactEvent, Delete, DeletedRow
from tensorcast_bus.nats.client import NatsBus, connect_bus
from tensorcast_bus.nats.connection import Connection
from tensorcast_bus.subjects import Subjects
from tests.support.nats_server import NatsServer, running_nats
from tests.support.slack import SLACK_S

DELETE = Subjects.global_store("delete")
EVENT = Subjects.event("artifact", "00")
BUDGET_MS = 60_000
BACK_S_MAX = 15.0


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with running_nats() as running:
        yield running


@pytest.fixture
async def pair(server: NatsServer) -> AsyncIterator[tuple[NatsBus, NatsBus]]:
    """Two buses; the second serves DELETE."""
    here = await connect_bus(server.url, name="gateway-0", token=server.token)
    there = await connect_bus(server.url, name="global_store", token=server.token)
    await there.serve(DELETE, Delete, deleted)
    yield here, there
    await here.close()
    await there.close()


async def deleted(body: Delete, caller: Caller) -> DeletedRow:
    return DeletedRow(body.art_id, 1)


async def ask(bus: Bus, art_id: str, *, idem: str = "", budget_ms: int = BUDGET_MS) -> DeletedRow:
    return await bus.request(DELETE, Delete(art_id), answer=DeletedRow, budget_ms=budget_ms, idem=idem)


def back(bus: Bus) -> asyncio.Event:
    event = asyncio.Event()
    bus.on_reconnect(event.set)
    return event


async def wait_down(bus: Bus) -> None:
    async with asyncio.timeout(BACK_S_MAX):
        while bus.connected:  # noqa: ASYNC110  # there is no event for it outside of the bus
            await asyncio.sleep(0.005)


async def test_a_restarted_server_finds_its_buses_and_their_subscriptions_again(
    server: NatsServer, pair: tuple[NatsBus, NatsBus]
) -> None:
    here, there = pair
    events: asyncio.Queue[int] = asyncio.Queue()

    def take(body: ArtifactEvent, caller: Caller) -> None:
        events.put_nowait(body.sequence)

    await here.subscribe(Subjects.events("artifact"), ArtifactEvent, take)
    here_back, there_back = back(here), back(there)
    for round_number in range(2):
        server.restart()
        await asyncio.wait_for(asyncio.gather(here_back.wait(), there_back.wait()), BACK_S_MAX)
        here_back.clear()
        there_back.clear()
        assert here.connected and there.connected
        assert await ask(here, "x") == DeletedRow("x", 1)
        await there.publish(EVENT, ArtifactEvent(1, round_number, "hello"))
        assert await asyncio.wait_for(events.get(), SLACK_S) == round_number


async def test_requests_made_while_the_server_is_away_wait_for_it(
    server: NatsServer, pair: tuple[NatsBus, NatsBus]
) -> None:
    here, there = pair
    server.kill()
    await wait_down(here)
    await wait_down(there)
    await there.publish(EVENT, ArtifactEvent(1, 1, "hello"))  # Lost, but no error.
    asking = [asyncio.create_task(ask(here, str(n))) for n in range(20)]
    with pytest.raises(Timeout, match="no connection to NATS at nats:") as caught:
        await ask(here, "impatient", budget_ms=100)
    assert caught.value.context["budget_ms"] == 100
    server.start()
    answers = await asyncio.wait_for(asyncio.gather(*asking), BACK_S_MAX)
    assert [answer.art_id for answer in answers] == [str(n) for n in range(20)]


@pytest.mark.parametrize("idem", ["i-1", ""])
async def test_a_request_on_the_way_when_the_server_dies_is_sent_again_if_it_may_be(
    server: NatsServer, pair: tuple[NatsBus, NatsBus], idem: str
) -> None:
    here, there = pair
    asked: list[str] = []
    came, release = asyncio.Event(), asyncio.Event()

    async def handler(body: Delete, caller: Caller) -> DeletedRow:
        asked.append(caller.idem)
        came.set()
        if len(asked) == 1:
            await release.wait()
        return DeletedRow(body.art_id, len(asked))

    await there.serve(Subjects.gateway_all(), Delete, handler, queue="gw")
    subject = Subjects.gateway("py-1", "delete")
    asking = asyncio.create_task(here.request(subject, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS, idem=idem))
    await asyncio.wait_for(came.wait(), SLACK_S)
    server.restart()
    if idem:
        assert await asyncio.wait_for(asking, BACK_S_MAX) == DeletedRow("x", 2)
        assert asked == [idem, idem]
    else:
        with pytest.raises(Unavailable, match="unknown"):
            await asyncio.wait_for(asking, BACK_S_MAX)
    release.set()


async def test_an_answer_that_is_ready_while_the_server_is_away_is_sent_when_it_is_back(
    server: NatsServer, pair: tuple[NatsBus, NatsBus]
) -> None:
    here, there = pair
    answered = asyncio.Event()

    async def handler(body: Delete, caller: Caller) -> DeletedRow:
        server.kill()
        await wait_down(there)
        answered.set()
        return DeletedRow(body.art_id, 1)

    served = await there.serve(Subjects.gateway_all(), Delete, handler, queue="gw")
    subject = Subjects.gateway("py-1", "delete")
    asking = asyncio.create_task(here.request(subject, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS, idem="i"))
    await asyncio.wait_for(answered.wait(), BACK_S_MAX)
    await served.unsubscribe()
    await there.serve(Subjects.gateway_all(), Delete, deleted, queue="gw")
    server.start()
    assert await asyncio.wait_for(asking, BACK_S_MAX) == DeletedRow("x", 1)


async def test_a_server_that_is_stopped_for_six_seconds_is_survived(
    server: NatsServer, pair: tuple[NatsBus, NatsBus]
) -> None:
    here, there = pair
    server.stop()
    started = time.monotonic()
    with pytest.raises(Timeout):
        await ask(here, "x", budget_ms=500)
    waiting = asyncio.create_task(ask(here, "waits", idem="i-1"))
    await asyncio.sleep(max(0.0, started + 6.0 - time.monotonic()))  # The length of the stop is the case.
    server.cont()
    assert await asyncio.wait_for(waiting, BACK_S_MAX) == DeletedRow("waits", 1)
    assert await asyncio.wait_for(ask(there, "y", idem="i-2"), BACK_S_MAX) == DeletedRow("y", 1)


def reading_task_dies(connection: Connection) -> None:
    client = connection._client
    assert client is not None and client._reading_task is not None
    client._reading_task.cancel()


def server_closes_for_good(connection: Connection) -> None:
    client = connection._client
    assert client is not None and client._transport is not None
    client._transport.write(b"NONSENSE\r\n")


def client_is_closed(connection: Connection) -> None:
    client = connection._client
    assert client is not None
    connection._tasks.append(asyncio.get_running_loop().create_task(client.close()))


def reconnecting_task_dies(connection: Connection) -> None:
    client = connection._client
    assert client is not None
    client._status = client.RECONNECTING
    assert client._reading_task is not None
    client._reading_task.cancel()


@pytest.mark.parametrize("hurt", [reading_task_dies, server_closes_for_good, client_is_closed, reconnecting_task_dies])
async def test_a_client_that_does_not_come_back_by_itself_is_replaced(
    server: NatsServer, pair: tuple[NatsBus, NatsBus], hurt: Callable[[Connection], None]
) -> None:
    here, there = pair
    there_back = back(there)
    connection = there._carrier
    assert isinstance(connection, Connection)
    hurt_client = connection._client
    hurt(connection)
    await asyncio.wait_for(there_back.wait(), BACK_S_MAX)
    assert connection._client is not hurt_client
    assert await ask(here, "x") == DeletedRow("x", 1)
    assert await ask(there, "y") == DeletedRow("y", 1)
    server.restart()
    there_back.clear()
    await asyncio.wait_for(there_back.wait(), BACK_S_MAX)
    assert await ask(here, "z", idem="i") == DeletedRow("z", 1)


async def test_subscriptions_made_while_the_server_is_away_stand_when_it_is_back(
    server: NatsServer, pair: tuple[NatsBus, NatsBus]
) -> None:
    here, there = pair
    server.kill()
    await wait_down(there)
    there_back = back(there)
    await there.serve(Subjects.gateway_all(), Delete, deleted, queue="gw")
    server.start()
    await asyncio.wait_for(there_back.wait(), BACK_S_MAX)
    answer = await here.request(
        Subjects.gateway("py-1", "delete"), Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS, idem="i"
    )
    assert answer == DeletedRow("x", 1)


@pytest.mark.parametrize("away", ["stopped", "killed"])
async def test_closing_ends_in_time_whatever_the_server_does(server: NatsServer, away: str) -> None:
    bus = await connect_bus(server.url, name="gateway-0", token=server.token)
    if away == "stopped":
        server.stop()
        for sequence in range(40):  # More than the socket takes: the client's own close would wait for it.
            await bus.publish(EVENT, ArtifactEvent(1, sequence, "hello", "x" * 400_000))
    else:
        server.kill()
    asking = asyncio.create_task(ask(bus, "x"))
    await asyncio.sleep(0)
    started = time.monotonic()
    await bus.close()
    assert time.monotonic() - started < CLOSE_S_MAX + SLACK_S
    with pytest.raises(NotConnected):
        await asking


async def test_without_a_server_connecting_fails_within_its_deadline(server: NatsServer) -> None:
    server.kill()
    started = time.monotonic()
    with pytest.raises(NotConnected, match="within 300 ms") as caught:
        await connect_bus(server.url, name="gateway-0", token=server.token, deadline_ms=300)
    assert time.monotonic() - started < 0.3 + SLACK_S
    assert "tensorcast status" in caught.value.text


async def test_a_server_that_does_not_answer_fails_connecting_within_its_deadline(server: NatsServer) -> None:
    server.stop()
    started = time.monotonic()
    with pytest.raises(NotConnected, match="within 300 ms"):
        await connect_bus(server.url, name="gateway-0", token=server.token, deadline_ms=300)
    assert time.monotonic() - started < 0.3 + SLACK_S


@pytest.mark.parametrize("token", ["", "wrong-token-wrong-token"])
async def test_a_wrong_token_is_refused_at_once_and_never_shown(server: NatsServer, token: str) -> None:
    url = server.url.replace("nats://", "nats://secret-in-url@") if not token else server.url
    started = time.monotonic()
    with pytest.raises(NotConnected, match="check the token") as caught:
        await connect_bus(url, name="gateway-0", token=token, deadline_ms=600_000)
    assert time.monotonic() - started < SLACK_S
    assert "secret-in-url" not in caught.value.text and "wrong-token" not in caught.value.text


async def test_a_server_that_takes_less_than_we_do_is_named(server: NatsServer, pair: tuple[NatsBus, NatsBus]) -> None:
    here, _ = pair
    connection = here._carrier
    assert isinstance(connection, Connection) and connection._client is not None
    connection._client._max_payload = 1000
    with pytest.raises(MessageTooLarge, match="1000"):
        await ask(here, "x" * 2000)
    with pytest.raises(TensorCastError):
        await here.publish(EVENT, ArtifactEvent(1, 1, "hello", "x" * 2000))
