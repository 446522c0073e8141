"""Serving a subject: every request gets one answer at its sender's inbox, and nobody else gets anything."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast_bus.codec import bodies_of
from tensorcast_bus.envelope import Envelope, pack, unpack
from tensorcast_bus.errors import (
    AlreadyExists,
    MessageTooLarge,
    ProtocolError,
    RemoteProtocolError,
    TensorCastError,
    Timeout,
)
from tensorcast_bus.limits import MESSAGE_BYTES_MAX
from tensorcast_bus.log import bus_log
from tensorcast_bus.messages import Delete, DeletedRow, Resolve
from tensorcast_bus.serving import Arrival, Caller, Handler, Service, read_answer
from tests.unit.bus.test_envelope import envelope

INBOX = "_INBOX_storage-a.00ff.1f"
DELETE = pack(envelope(Delete("x")))


def service(handler: Handler) -> Service:
    return Service("global_store", bodies_of(Delete | Resolve), handler, log=bus_log(process="global_store"))


async def deleted(body: msgspec.Struct, caller: Caller) -> DeletedRow:
    assert isinstance(body, Delete)
    return DeletedRow(body.art_id, caller.budget_ms)


async def never(body: msgspec.Struct, caller: Caller) -> DeletedRow:
    raise AssertionError("the handler ran")


async def answered(serving: Service, arrival: Arrival) -> tuple[Envelope, msgspec.Struct]:
    blob = await serving.answer(arrival)
    assert blob is not None
    got = unpack(blob)
    return got, read_answer(got, bodies_of(DeletedRow))


async def refused(serving: Service, arrival: Arrival) -> TensorCastError:
    with pytest.raises(TensorCastError) as caught:
        await answered(serving, arrival)
    return caught.value


async def test_an_answer_carries_the_requests_id_and_the_server_s_name() -> None:
    got, body = await answered(service(deleted), Arrival("tc.v1.gs.delete", INBOX, DELETE))
    assert (got.req_id, got.sender, got.budget_ms) == ("1f", "global_store", 0)
    assert body == DeletedRow("x", 900)


async def test_a_request_is_older_by_what_it_waited_here() -> None:
    _, body = await answered(service(deleted), Arrival("tc.v1.gs.delete", INBOX, DELETE, aged_ms=850))
    assert body == DeletedRow("x", 50)


@pytest.mark.parametrize("aged_ms", [900, 901, 1 << 40])
async def test_a_request_whose_budget_this_process_slept_through_is_not_run(aged_ms: int) -> None:
    error = await refused(service(never), Arrival("tc.v1.gs.delete", INBOX, DELETE, aged_ms=aged_ms))
    assert type(error) is Timeout and error.context["budget_ms"] == 900


@pytest.mark.parametrize("reply", ["", "tc.v1.gs.delete", "_INBOX_storage-b.00ff.1f", "_INBOX_storage-a.00ff.*"])
async def test_a_request_that_wants_its_answer_elsewhere_is_neither_run_nor_answered(reply: str) -> None:
    assert await service(never).answer(Arrival("tc.v1.gs.delete", reply, DELETE)) is None


async def test_a_request_at_another_verb_s_subject_is_not_run() -> None:
    error = await refused(service(never), Arrival("tc.v1.gs.resolve", INBOX, DELETE))
    assert type(error) is RemoteProtocolError and "'resolve'" in error.text


async def test_garbage_is_answered_where_an_inbox_asks_and_ignored_elsewhere() -> None:
    assert type(await refused(service(never), Arrival("tc.v1.gs.delete", INBOX, b"\xc1"))) is RemoteProtocolError
    assert await service(never).answer(Arrival("tc.v1.gs.delete", "tc.v1.gs.delete", b"\xc1")) is None


async def test_a_peer_of_another_version_is_told_both_versions() -> None:
    old = msgspec.msgpack.encode(envelope(Delete("x"), v=9))
    error = await refused(service(never), Arrival("tc.v1.gs.delete", INBOX, old))
    assert type(error) is ProtocolError and "version 9" in error.text


async def test_an_error_of_the_handler_crosses_with_its_facts() -> None:
    async def handler(body: msgspec.Struct, caller: Caller) -> DeletedRow:
        raise AlreadyExists("x has other content", theirs="aa", ours="bb")

    error = await refused(service(handler), Arrival("tc.v1.gs.delete", INBOX, DELETE))
    assert type(error) is AlreadyExists and error.context == {"theirs": "aa", "ours": "bb"}


async def test_a_bug_of_the_handler_is_a_protocol_error_that_names_the_process() -> None:
    async def handler(body: msgspec.Struct, caller: Caller) -> DeletedRow:
        raise KeyError("\udc80")

    error = await refused(service(handler), Arrival("tc.v1.gs.delete", INBOX, DELETE))
    assert type(error) is RemoteProtocolError and error.context["process"] == "global_store"
    assert "KeyError" in error.text


async def test_an_answer_over_the_limit_is_an_error_to_the_caller() -> None:
    async def handler(body: msgspec.Struct, caller: Caller) -> DeletedRow:
        return DeletedRow("x" * MESSAGE_BYTES_MAX, 0)

    error = await refused(service(handler), Arrival("tc.v1.gs.delete", INBOX, DELETE))
    assert type(error) is MessageTooLarge and error.context["kind"] == "DeletedRow"


async def test_an_error_over_the_limit_still_arrives_as_its_class() -> None:
    async def handler(body: msgspec.Struct, caller: Caller) -> DeletedRow:
        raise AlreadyExists("y" * MESSAGE_BYTES_MAX, fact="z" * MESSAGE_BYTES_MAX)

    error = await refused(service(handler), Arrival("tc.v1.gs.delete", INBOX, DELETE))
    assert type(error) is AlreadyExists and error.text.startswith("yyy")
