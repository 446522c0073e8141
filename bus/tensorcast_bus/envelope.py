"""The envelope: what stands around every body on the bus, requests, answers and publications alike.

`[v, kind, req_id, trace_id, span_id, budget_ms, idem, fence, sender, body]`, MessagePack. New fields are added at the
end only and need no new `v`; `v` grows when an old peer could misread what it gets. Metadata travels here and not in
NATS headers. Reading never raises anything but ProtocolError, whatever bytes come in.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import MessageTooLarge, ProtocolError, RemoteProtocolError
from tensorcast_bus.limits import MESSAGE_BYTES_MAX

VERSION = 1


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """`kind` is the body's tag, or its class name where it has none. `budget_ms` is what is left for the whole request
    when it is sent, 0 in answers and publications. `idem` is the caller's idempotency id, `fence` a fencing token."""

    v: int
    kind: str
    req_id: str
    trace_id: str
    span_id: str
    budget_ms: int
    idem: str
    fence: int
    sender: str
    body: msgspec.Raw


# What foreign bytes can make a decoder raise; RecursionError comes from deep nesting inside a raw body.
WIRE_ERRORS = (msgspec.MsgspecError, RecursionError, UnicodeError, OverflowError)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)
_row_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_int_decoder = msgspec.msgpack.Decoder(int)


def pack(envelope: Envelope) -> bytes:
    """Raises MessageTooLarge, naming kind, size and limit."""
    blob = _encoder.encode(envelope)
    if len(blob) > MESSAGE_BYTES_MAX:
        raise MessageTooLarge(
            f"a message of kind {envelope.kind!r} has {len(blob)} bytes, the limit is {MESSAGE_BYTES_MAX}; send it in "
            "parts, bytes of tensors never go over the bus",
            kind=envelope.kind,
            message_bytes=len(blob),
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
    return blob


def unpack(blob: bytes) -> Envelope:
    """Raises ProtocolError naming both versions for another version's envelope, RemoteProtocolError for garbage."""
    if len(blob) > MESSAGE_BYTES_MAX:
        raise RemoteProtocolError(
            f"a message of {len(blob)} bytes came in, the limit is {MESSAGE_BYTES_MAX}; its sender does not keep it",
            message_bytes=len(blob),
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
    try:
        envelope = _decoder.decode(blob)
    except WIRE_ERRORS as wrong:
        _refuse_version(_version_of(blob))
        raise RemoteProtocolError(f"a message of {len(blob)} bytes is not an envelope: {wrong}") from wrong
    _refuse_version(envelope.v)
    return envelope


def _version_of(blob: bytes) -> int:
    """The version of an envelope that cannot be read as ours; our own where there is none to be seen."""
    try:
        return _int_decoder.decode(_row_decoder.decode(blob)[0])
    except (*WIRE_ERRORS, IndexError):
        return VERSION


def _refuse_version(version: int) -> None:
    if version != VERSION:
        raise ProtocolError(
            f"a peer speaks version {version} of the bus, this process speaks version {VERSION}; "
            "run the same release of TensorCast everywhere",
            theirs=version if abs(version) < 1 << 63 else str(version),
            ours=VERSION,
        )
