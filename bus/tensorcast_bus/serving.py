"""Serving one subject: from the bytes of a request to the bytes of its answer. No loop, no clock, no connection.

Called by the exchange, once a request. Every request gets an answer as long as its reply subject belongs to its
sender; a request that could make us write somewhere else gets none. A handler's TensorCastError crosses as it is,
any other exception becomes a RemoteProtocolError that names this process, and is logged with its traceback.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from tensorcast_bus.codec import Bodies, encode_body, kind_of
from tensorcast_bus.envelope import VERSION, Envelope, pack, unpack
from tensorcast_bus.errors import (
    ErrorRecord,
    ProtocolError,
    RemoteProtocolError,
    TensorCastError,
    Timeout,
    Unavailable,
    from_record,
)
from tensorcast_bus.limits import ERROR_TEXT_CHARS_MAX, HANDLERS_INFLIGHT_MAX
from tensorcast_bus.log import BusLog
from tensorcast_bus.subjects import inbox_of, is_inbox

T = TypeVar("T", bound=msgspec.Struct)
Handler = Callable[[msgspec.Struct, "Caller"], Awaitable[msgspec.Struct]]

_ERROR_KIND = kind_of(ErrorRecord)
_error_decoder = Bodies(ErrorRecord)


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `budget_ms` is what is left of the request's time, already without what this process slept through;
    `idem` is the idempotency id, "" where the caller gave none."""

    sender: str
    trace_id: str
    budget_ms: int
    idem: str


class Arrival(msgspec.Struct, frozen=True):
    """A message as a connection hands it over. `aged_ms`: how long it may have waited in this process unread.
    `no_responders`: not a message but the server's word that nobody serves the subject this reply was for."""

    subject: str
    reply: str
    blob: bytes
    aged_ms: int = 0
    no_responders: bool = False


class Service:
    """One served subject of `process`."""

    def __init__(self, process: str, bodies: Bodies, handler: Handler, *, log: BusLog) -> None:
        self._process = process
        self._bodies = bodies
        self._handler = handler
        self._log = log

    async def answer(self, arrival: Arrival) -> bytes | None:
        """The answer's bytes, to be sent to `arrival.reply`; None when nothing may be sent there."""
        try:
            envelope = unpack(arrival.blob)
        except ProtocolError as wrong:
            # Whose inbox it is cannot be checked, but an inbox takes only answers it waits for.
            self._log.warning("request unreadable", subject=arrival.subject, error=wrong.text)
            return self.refuse(wrong, arrival)
        if not inbox_of(envelope.sender, arrival.reply):
            self._log.warning(
                "request refused: its reply subject is not its sender's inbox",
                subject=arrival.subject,
                sender=envelope.sender[:80],
                reply=arrival.reply[:200],
            )
            return None
        try:
            answer = await self._handle(envelope, arrival)
            return _write_answer(answer, arrival, sender=self._process)
        except TensorCastError as refused:
            return self.refuse(refused, arrival)
        except Exception as crash:
            self._log.exception("handler failed", subject=arrival.subject, kind=envelope.kind, sender=envelope.sender)
            return self.refuse(self._crashed(envelope, crash), arrival)

    def refuse(self, error: TensorCastError, arrival: Arrival) -> bytes | None:
        if not is_inbox(arrival.reply):
            return None
        try:
            return _write_answer(error.record(), arrival, sender=self._process)
        except TensorCastError:
            # The error itself has no wire form or is too large: its class and the start of its text must still arrive.
            text = error.text.encode("utf-8", "backslashreplace").decode()[:ERROR_TEXT_CHARS_MAX]
            return _write_answer(ErrorRecord(error.code, text), arrival, sender=self._process)

    def too_busy(self) -> Unavailable:
        return Unavailable(
            f"{self._process} works on {HANDLERS_INFLIGHT_MAX} requests, its limit, and takes no more; ask again",
            process=self._process,
            handlers_inflight_max=HANDLERS_INFLIGHT_MAX,
        )

    async def _handle(self, envelope: Envelope, arrival: Arrival) -> msgspec.Struct:
        left_ms = envelope.budget_ms - arrival.aged_ms
        if left_ms <= 0:
            raise Timeout(
                f"{self._process} did not run {arrival.subject}: it stalled for up to {arrival.aged_ms} ms, and the "
                f"request came with {envelope.budget_ms} ms; nothing was done, ask again",
                subject=arrival.subject,
                budget_ms=envelope.budget_ms,
                stalled_ms=arrival.aged_ms,
            )
        verb = arrival.subject.rpartition(".")[2]
        if verb != envelope.kind:
            raise RemoteProtocolError(
                f"a request of kind {envelope.kind[:80]!r} was sent to {arrival.subject}, where {verb!r} is asked",
                subject=arrival.subject,
                kind=envelope.kind[:80],
            )
        body = self._bodies.decode(envelope.kind, envelope.body)
        return await self._handler(body, Caller(envelope.sender, envelope.trace_id, left_ms, envelope.idem))

    def _crashed(self, envelope: Envelope, crash: Exception) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self._process} failed at {envelope.kind!r}: {type(crash).__name__}: {crash}; "
            f"this is a bug, the log of {self._process} has its traceback",
            process=self._process,
            kind=envelope.kind,
        )


def _write_answer(body: msgspec.Struct, arrival: Arrival, *, sender: str) -> bytes:
    req_id = arrival.reply.rpartition(".")[2]
    return pack(Envelope(VERSION, kind_of(type(body)), req_id, "", "", 0, "", 0, sender, encode_body(body)))


def read_answer(envelope: Envelope, bodies: Bodies) -> msgspec.Struct:
    """The answer's body; raises the error that the peer sent, or RemoteProtocolError for another kind of answer."""
    if envelope.kind == _ERROR_KIND:
        record = _error_decoder.decode(envelope.kind, envelope.body)
        assert isinstance(record, ErrorRecord)
        raise from_record(record)
    return bodies.decode(envelope.kind, envelope.body)
