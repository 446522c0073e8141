"""The envelope: what is written is read, other versions are named, limits are kept by the sender."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast_bus.codec import bodies_of, encode_body, kind_of
from tensorcast_bus.envelope import VERSION, Envelope, pack, unpack
from tensorcast_bus.errors import (
    ErrorRecord,
    Invalid,
    MessageTooLarge,
    NotFound,
    ProtocolError,
    RemoteProtocolError,
)
from tensorcast_bus.limits import MESSAGE_BYTES_MAX
from tensorcast_bus.messages import Commit, Delete, DeletedRow, GlobalStoreRequest, Heartbeat, ListArtifacts, Resolve
from tensorcast_bus.serving import read_answer


def envelope(body: msgspec.Struct, *, v: int = VERSION) -> Envelope:
    return Envelope(v, kind_of(type(body)), "1f", "trace", "", 900, "idem", 0, "storage-a", encode_body(body))


def test_what_is_packed_is_unpacked() -> None:
    read = unpack(pack(envelope(Delete("llama@1"))))
    assert (read.v, read.kind, read.req_id, read.trace_id) == (VERSION, "delete", "1f", "trace")
    assert (read.budget_ms, read.idem, read.fence, read.sender) == (900, "idem", 0, "storage-a")
    assert bodies_of(GlobalStoreRequest).decode(read.kind, read.body) == Delete("llama@1")


def test_another_version_is_refused_with_both_versions_in_the_text() -> None:
    with pytest.raises(ProtocolError, match=f"version 7 .* version {VERSION}") as caught:
        unpack(msgspec.msgpack.encode(envelope(Delete("x"), v=7)))
    assert (caught.value.context["theirs"], caught.value.context["ours"]) == (7, VERSION)


def test_another_version_is_named_even_when_its_envelope_has_another_shape() -> None:
    with pytest.raises(ProtocolError, match="version 2 "):
        unpack(msgspec.msgpack.encode([2, {"kind": "delete"}]))


def test_the_sender_refuses_a_message_over_the_limit_naming_kind_size_and_limit() -> None:
    with pytest.raises(MessageTooLarge, match="'list'") as caught:
        pack(envelope(ListArtifacts(prefix="x" * MESSAGE_BYTES_MAX)))
    size = caught.value.context["message_bytes"]
    assert isinstance(size, int) and size > MESSAGE_BYTES_MAX
    assert caught.value.context["message_bytes_max"] == MESSAGE_BYTES_MAX


def test_a_message_of_exactly_the_limit_passes_and_one_byte_more_does_not() -> None:
    room = MESSAGE_BYTES_MAX - len(pack(envelope(Delete("x" * 70_000)))) + 70_000
    assert len(pack(envelope(Delete("x" * room)))) == MESSAGE_BYTES_MAX
    with pytest.raises(MessageTooLarge):
        pack(envelope(Delete("x" * (room + 1))))


def test_a_received_message_over_the_limit_is_garbage() -> None:
    with pytest.raises(RemoteProtocolError, match="limit"):
        unpack(b"\x90" * (MESSAGE_BYTES_MAX + 1))


def test_the_kind_is_the_tag_or_else_the_name() -> None:
    assert (kind_of(Commit), kind_of(Heartbeat), kind_of(DeletedRow)) == ("commit", "hb", "DeletedRow")


def test_a_kind_that_is_not_taken_is_refused_naming_what_is() -> None:
    with pytest.raises(RemoteProtocolError, match=r"'delete'.*list or resolve"):
        bodies_of(Resolve | ListArtifacts).decode("delete", encode_body(Delete("x")))


def test_a_body_with_wrong_fields_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="fields"):
        bodies_of(Delete).decode("delete", msgspec.Raw(msgspec.msgpack.encode(["delete", 5])))


def test_a_body_that_claims_another_kind_than_its_envelope_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="fields"):
        bodies_of(Delete | Resolve).decode("resolve", encode_body(Delete("x")))


@pytest.mark.parametrize("art_id", ["\udc80"])
def test_a_body_that_has_no_wire_form_is_refused_by_its_sender(art_id: str) -> None:
    with pytest.raises(Invalid, match="'delete'"):
        encode_body(Delete(art_id))


def test_an_integer_beyond_the_wire_is_refused_by_its_sender() -> None:
    with pytest.raises(Invalid, match="'DeletedRow'"):
        encode_body(DeletedRow("x", 1 << 70))


def test_an_error_record_in_an_answer_is_raised() -> None:
    sent = envelope(NotFound("no artifact x", art_id="x").record())
    assert sent.kind == kind_of(ErrorRecord)
    with pytest.raises(NotFound, match="no artifact x") as caught:
        read_answer(unpack(pack(sent)), bodies_of(DeletedRow))
    assert caught.value.context == {"art_id": "x"}


def test_an_answer_of_another_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="DeletedRow"):
        read_answer(envelope(Resolve("x")), bodies_of(DeletedRow))
