"""What a storage answered, as TensorCast's own records and errors.

Called by the link to the storage alone. An answer that is not understood is of another version, and says so.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar

import msgspec

from tensorcast_bus.errors import ErrorRecord, LocalProtocolError, ProtocolError, from_record
from tensorcast_bus.notes import PutAnswer, PutBaseGone, PutDone, PutExists
from tensorcast_native import LocalStatus

T = TypeVar("T", bound=msgspec.Struct)


def decoded(blob: bytes, kind: type[T], what: str) -> T:
    """Raises LocalProtocolError."""
    try:
        return msgspec.msgpack.decode(blob, type=kind)
    except msgspec.DecodeError as error:
        raise _not_understood(blob, what, error) from error


def put_answer(status: int, blob: bytes, what: str) -> PutAnswer:
    """Raises what the storage refused with."""
    if status != LocalStatus.OK:
        refuse(status, blob, what)
    try:
        return msgspec.msgpack.decode(blob, type=PutDone | PutExists | PutBaseGone)
    except msgspec.DecodeError as error:
        raise _not_understood(blob, what, error) from error


def answered(status: int, blob: bytes, kind: type[T], what: str) -> T:
    """Raises what the storage refused with."""
    if status != LocalStatus.OK:
        refuse(status, blob, what)
    return decoded(blob, kind, what)


def refuse(status: int, body: bytes, what: str) -> NoReturn:
    """Raises the storage's own error, or ProtocolError where there is none."""
    if status == LocalStatus.FAILED:
        raise from_record(decoded(body, ErrorRecord, what))
    text = body.decode(errors="replace")
    if status == LocalStatus.VERSION:
        raise ProtocolError(f"{what}: {text}; install the same version of tensorcast in caller and cluster")
    raise LocalProtocolError(f"{what}: the storage refused the request with status {status}: {text}; this is a bug")


def _not_understood(blob: bytes, what: str, error: Exception) -> LocalProtocolError:
    return LocalProtocolError(
        f"{what}: the storage's answer of {len(blob)} bytes is not understood ({error}); install one version of "
        "tensorcast in caller and cluster"
    )
