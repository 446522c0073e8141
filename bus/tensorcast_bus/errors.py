"""Every error a caller can meet, in one tree.

TensorCastError
├── NotFound                                   no artifact, alias, plan or process of that name
├── Conflict
│   ├── AlreadyExists                          the id has other content; both digests in context
│   ├── StaleFence                             somebody holds a newer right
│   ├── LeaseLost                              the owner is gone or changed its memory
│   └── StillBorrowed                          tensors of the artifact are alive in this process
├── Invalid
│   ├── BadCheckpoint                          file, index or state dict that cannot be taken as it is
│   ├── SliceMismatch · FormatMismatch · PlanInvalid · MessageTooLarge
├── Unavailable
│   ├── NotConnected · NoLocalStorage · StorageLost · DeviceUnavailable
│   ├── NoReplica                              committed once, but nobody alive holds its bytes
│   ├── Rebuilding · Timeout · CapacityExceeded · Draining
├── PlanFailed
├── TransferError (PeerLost, ChecksumMismatch)
└── ProtocolError (LocalProtocolError, RemoteProtocolError)

Each text says what, which id or peer, how long, and what to do next. `code` is the class name, `retryable` is part of
the class, `context` holds the facts as plain values. Errors cross processes as ErrorRecord and keep their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

Fact = str | int | float | bool | None | list[str]


class ErrorRecord(msgspec.Struct, frozen=True, array_like=True):
    """An error on the wire."""

    code: str
    text: str
    context: dict[str, Fact] = {}


class TensorCastError(Exception):
    """The root. `code`, `retryable`, `context`."""

    retryable: ClassVar[bool] = False

    def __init__(self, text: str, /, **context: Fact) -> None:
        super().__init__(text)
        self.text = text
        self.context: Mapping[str, Fact] = context

    @property
    def code(self) -> str:
        return type(self).__name__

    def record(self) -> ErrorRecord:
        return ErrorRecord(self.code, _writable(self.text), {key: _fact(value) for key, value in self.context.items()})

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.text, dict(self.context))


class NotFound(TensorCastError): ...


class Conflict(TensorCastError): ...


class AlreadyExists(Conflict): ...


class StaleFence(Conflict): ...


class LeaseLost(Conflict): ...


class StillBorrowed(Conflict): ...


class Invalid(TensorCastError): ...


class BadCheckpoint(Invalid): ...


class SliceMismatch(Invalid): ...


class FormatMismatch(Invalid): ...


class PlanInvalid(Invalid): ...


class MessageTooLarge(Invalid): ...


class Unavailable(TensorCastError):
    retryable = True


class NotConnected(Unavailable): ...


class NoLocalStorage(Unavailable):
    retryable = False


class StorageLost(Unavailable): ...


class DeviceUnavailable(Unavailable):
    retryable = False


class NoReplica(Unavailable): ...


class Rebuilding(Unavailable): ...


class Timeout(Unavailable): ...


class CapacityExceeded(Unavailable): ...


class Draining(Unavailable): ...


class PlanFailed(TensorCastError): ...


class TransferError(TensorCastError):
    retryable = True


class PeerLost(TransferError): ...


class ChecksumMismatch(TransferError): ...


class ProtocolError(TensorCastError): ...


class LocalProtocolError(ProtocolError): ...


class RemoteProtocolError(ProtocolError): ...


def _tree(root: type[TensorCastError]) -> dict[str, type[TensorCastError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


CODES: Mapping[str, type[TensorCastError]] = _tree(TensorCastError)


def from_record(record: ErrorRecord) -> TensorCastError:
    """The error a peer sent. A code this version does not know becomes ProtocolError and keeps its text."""
    known = CODES.get(record.code)
    if known is None:
        return RemoteProtocolError(f"{record.code}: {record.text}", **record.context)
    return known(record.text, **record.context)


def _writable(text: str) -> str:
    # Names of files may hold lone surrogates, which have no form on the wire; the error must still arrive.
    return text.encode("utf-8", "backslashreplace").decode()


def _fact(value: Fact) -> Fact:
    if isinstance(value, str):
        return _writable(value)
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


def _rebuild(code: str, text: str, context: dict[str, Fact]) -> TensorCastError:
    return from_record(ErrorRecord(code, text, context))
