"""Whatever bytes come from the wire, reading them ends in a message or in ProtocolError."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensorcast_bus.codec import bodies_of, kind_of
from tensorcast_bus.envelope import pack, unpack
from tensorcast_bus.errors import ProtocolError, RemoteProtocolError, TensorCastError
from tensorcast_bus.messages import GlobalStoreRequest
from tensorcast_bus.serving import read_answer
from tests.unit.bus.samples import message_structs, sample
from tests.unit.bus.test_envelope import envelope

TAKEN = bodies_of(GlobalStoreRequest)
GOOD = [
    pack(envelope(sample(struct)))
    for name, struct in message_structs().items()
    if name.startswith(("messages", "errors"))
]
NESTED = b"\x9a\x01\xa6delete\xa1a\xa0\xa0\x01\xa0\x00\xa1s" + b"\x91" * 200_000 + b"\x01"
HUGE_ROW = b"\x9a\x01\xa6commit\xa1a\xa0\xa0\x01\xa0\x00\xa1s\xdd\xff\xff\xff\xff"

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=30,
)


def read(blob: bytes) -> None:
    try:
        got = unpack(blob)
    except ProtocolError:
        return
    try:
        assert kind_of(type(TAKEN.decode(got.kind, got.body))) == got.kind
    except RemoteProtocolError:
        pass
    try:
        assert kind_of(type(read_answer(got, TAKEN))) == got.kind
    except TensorCastError:
        pass  # Random bytes may well be an ErrorRecord.


@given(st.binary(max_size=200))
@example(NESTED)
@example(HUGE_ROW)
@example(b"")
def test_random_bytes_are_refused_or_read(blob: bytes) -> None:
    read(blob)


@given(anything)
def test_random_values_are_refused_or_read(value: object) -> None:
    read(msgspec.msgpack.encode(value))


@given(st.lists(anything, min_size=9, max_size=11))
def test_rows_like_an_envelope_are_refused_or_read(fields: list[object]) -> None:
    read(msgspec.msgpack.encode([1, *fields]))


@given(st.sampled_from(GOOD), st.integers(0, 1 << 16), st.integers(0, 255), st.integers(0, 400))
def test_damaged_messages_are_refused_or_read(good: bytes, place: int, byte: int, cut: int) -> None:
    damaged = bytearray(good)
    damaged[place % len(damaged)] = byte
    read(bytes(damaged))
    read(bytes(damaged[: max(0, len(damaged) - cut)]))


@pytest.mark.parametrize("blob", [NESTED, HUGE_ROW])
def test_nesting_and_sizes_from_the_wire_do_not_cost_memory_or_the_stack(blob: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        got = unpack(blob)
        TAKEN.decode(got.kind, got.body)
