"""Somebody else on the server: spoofed answers, answers diverted to third parties, garbage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tensorcast_bus.bus import Caller
from tensorcast_bus.codec import encode_body
from tensorcast_bus.envelope import VERSION, Envelope, pack
from tensorcast_bus.errors import ErrorRecord, ProtocolError
from tensorcast_bus.messages import ArtifactEvent, Delete, DeletedRow
from tensorcast_bus.nats.client import NatsBus, connect_bus
from tensorcast_bus.subjects import Subjects
from tests.support.nats_server import NatsServer, running_nats
from tests.support.slack import SLACK_S

DELETE = Subjects.global_store("delete")
BUDGET_MS = 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with running_nats() as running:
        yield running


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    made = await connect_bus(server.url, name="gateway-0", token=server.token)
    yield made
    await made.close()


@pytest.fixture
async def stranger(server: NatsServer) -> AsyncIterator[Client]:
    client = Client()
    await client.connect(server.url, token=server.token)
    yield client
    await client.close()


def answer(req_id: str, art_id: str, *, v: int = VERSION) -> bytes:
    body = encode_body(DeletedRow(art_id, 1))
    return pack(Envelope(v, "DeletedRow", req_id, "", "", 0, "", 0, "stranger", body))


def request(sender: str, art_id: str) -> bytes:
    return pack(Envelope(VERSION, "delete", "1", "", "", BUDGET_MS, "", 0, sender, encode_body(Delete(art_id))))


async def settled(client: Client) -> None:
    """Returns when the server has what the client did so far. Its own flush does not say so: its ping overtakes."""
    came: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def take(message: Msg) -> None:
        came.set_result(None)

    subscription = await client.subscribe("stranger.settled", cb=take)
    await client.publish("stranger.settled", b"")
    await asyncio.wait_for(came, SLACK_S)
    await subscription.unsubscribe()


async def asked_once(stranger: Client, bus: NatsBus) -> tuple[asyncio.Task[DeletedRow], Msg]:
    """A request of `bus` that the stranger got and has not answered."""
    came: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def take(message: Msg) -> None:
        came.set_result(message)

    await stranger.subscribe(DELETE, cb=take)
    await settled(stranger)
    asking = asyncio.create_task(bus.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
    return asking, await asyncio.wait_for(came, SLACK_S)


async def test_a_spoofed_answer_is_ignored_and_the_true_one_taken(bus: NatsBus, stranger: Client) -> None:
    asking, message = await asked_once(stranger, bus)
    inbox, _, req_id = message.reply.rpartition(".")
    await stranger.publish(f"{inbox}.999", answer("999", "spoofed: an id nobody asked with"))
    await stranger.publish(message.reply, answer("999", "spoofed: the answer to another request"))
    await stranger.publish("_INBOX_gateway-0.0000000000000000." + req_id, answer(req_id, "spoofed: a guessed inbox"))
    await stranger.publish(message.reply, answer(req_id, "true"))
    assert await asking == DeletedRow("true", 1)


async def test_an_answer_in_another_version_names_both(bus: NatsBus, stranger: Client) -> None:
    asking, message = await asked_once(stranger, bus)
    await stranger.publish(message.reply, answer(message.reply.rpartition(".")[2], "x", v=3))
    with pytest.raises(ProtocolError, match=f"version 3 .* version {VERSION}"):
        await asking


async def test_a_garbled_answer_is_an_error_and_not_a_timeout(bus: NatsBus, stranger: Client) -> None:
    asking, message = await asked_once(stranger, bus)
    await stranger.publish(message.reply, b"\xc1\xff")
    with pytest.raises(ProtocolError):
        await asking


async def test_a_request_that_wants_its_answer_at_a_third_party_is_not_run(bus: NatsBus, stranger: Client) -> None:
    asked: list[str] = []

    async def handler(body: Delete, caller: Caller) -> DeletedRow:
        asked.append(body.art_id)
        return DeletedRow(body.art_id, 1)

    got: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def take(message: Msg) -> None:
        got.put_nowait((message.subject, message.data))

    await bus.serve(DELETE, Delete, handler)
    victims = ("tc.v1.in.storage-a-1.delete", "_INBOX_storage-a.00.1", "_INBOX_stranger.00.1")
    for victim in victims:
        await stranger.subscribe(victim, cb=take)
    for victim in victims[:2]:
        await stranger.publish(DELETE, request("stranger", f"answered at {victim}"), reply=victim)
    await stranger.publish(DELETE, request("stranger", "without an answer"))
    await stranger.publish(DELETE, request("stranger", "honest"), reply=victims[2])
    subject, _ = await asyncio.wait_for(got.get(), SLACK_S)
    assert subject == victims[2] and got.empty()
    assert asked == ["honest"]


async def test_garbage_on_every_subject_leaves_the_bus_as_it_was(bus: NatsBus, stranger: Client) -> None:
    seen: list[int] = []

    def take(body: ArtifactEvent, caller: Caller) -> None:
        seen.append(body.sequence)

    async def handler(body: Delete, caller: Caller) -> DeletedRow:
        return DeletedRow(body.art_id, 1)

    await bus.subscribe(Subjects.events("artifact"), ArtifactEvent, take)
    await bus.serve(Subjects.global_store_all(), Delete, handler)
    error: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def refused(message: Msg) -> None:
        error.set_result(message.data)

    await stranger.subscribe("_INBOX_x.1.1", cb=refused)
    blobs = (
        b"",
        b"\xc1",
        b"\x90",
        b"\x9a" + b"\x91" * 1000,
        b"\xdd\xff\xff\xff\xff",
        msgspec.msgpack.encode(["a"] * 10),
    )
    for blob in blobs:
        await stranger.publish(Subjects.event("artifact", "00"), blob)
        await stranger.publish(DELETE, blob)
    await stranger.publish(DELETE, b"\xc1", reply="_INBOX_x.1.1")
    assert b"RemoteProtocolError" in await asyncio.wait_for(error, SLACK_S)
    assert ErrorRecord.__name__.encode() in error.result()
    event = pack(Envelope(1, "ev", "", "", "", 0, "", 0, "s", encode_body(ArtifactEvent(1, 5, "hello"))))
    await stranger.publish(Subjects.event("artifact", "00"), event)
    await settled(stranger)
    assert await bus.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS) == DeletedRow("x", 1)
    assert await bus.settle(budget_ms=BUDGET_MS)
    assert seen == [5]


async def test_a_library_user_s_stdout_stays_clean(
    bus: NatsBus, stranger: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    async def handler(body: Delete, caller: Caller) -> DeletedRow:
        raise KeyError("a bug, logged")

    await bus.serve(DELETE, Delete, handler)
    await stranger.publish(DELETE, b"\xc1", reply="nowhere")
    with pytest.raises(ProtocolError):
        await bus.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)
    assert capfd.readouterr().out == ""
