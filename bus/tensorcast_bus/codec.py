"""Bodies to bytes and back, typed: a receiver names the structs it takes, and gets one of them or ProtocolError.

`kind` on the wire is a struct's tag, or its class name where it has no tag. Encoded bodies are placed raw into the
envelope. Fields that a newer peer added at the end are ignored; fields that an older peer does not know yet take
their defaults.
"""

from __future__ import annotations

import types
from functools import cache, lru_cache
from typing import get_args

import msgspec

from tensorcast_bus.envelope import WIRE_ERRORS
from tensorcast_bus.errors import Invalid, RemoteProtocolError

BodyTypes = type[msgspec.Struct] | types.UnionType

_encoder = msgspec.msgpack.Encoder()


@cache
def kind_of(body: type[msgspec.Struct]) -> str:
    tag = body.__struct_config__.tag
    return body.__name__ if tag is None else str(tag)


def encode_body(body: msgspec.Struct) -> msgspec.Raw:
    """Raises Invalid for values that have no wire form: lone surrogates, integers beyond 64 bits."""
    try:
        return msgspec.Raw(_encoder.encode(body))
    except (UnicodeError, OverflowError, TypeError, ValueError) as wrong:
        kind = kind_of(type(body))
        raise Invalid(f"a message of kind {kind!r} cannot be written: {wrong}; correct the value", kind=kind) from wrong


class Bodies:
    """A closed set of body types that one receiver takes."""

    def __init__(self, accepted: BodyTypes) -> None:
        members = get_args(accepted) if isinstance(accepted, types.UnionType) else (accepted,)
        self._decoders = {kind_of(member): msgspec.msgpack.Decoder(member) for member in members}
        if len(self._decoders) != len(members):
            raise TypeError(f"two of {accepted} have the same kind on the wire")

    def decode(self, kind: str, raw: msgspec.Raw) -> msgspec.Struct:
        """Raises RemoteProtocolError naming the kind and what is taken here, or what is wrong with the fields."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            raise RemoteProtocolError(
                f"a message of kind {kind[:80]!r} came in where {' or '.join(sorted(self._decoders))} is taken; "
                "its sender is of another release or asked at the wrong subject",
                kind=kind[:80],
            )
        try:
            body: msgspec.Struct = decoder.decode(raw)
        except WIRE_ERRORS as wrong:
            raise RemoteProtocolError(
                f"a message of kind {kind!r} does not have its fields: {wrong}; its sender is of another release",
                kind=kind,
            ) from wrong
        return body


@lru_cache(maxsize=256)
def bodies_of(accepted: BodyTypes) -> Bodies:
    return Bodies(accepted)
