"""The asking side of a bus: requests that wait for their answers.

Invariants: a request waits under its id only while it is sent, so an answer to anything else is ignored; one deadline
covers waiting for a connection, sending, and the answer. Called by the exchange.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets

import msgspec

from tensorcast_bus.bus import Carrier
from tensorcast_bus.envelope import Envelope, pack, unpack
from tensorcast_bus.errors import NotConnected, ProtocolError, TensorCastError, Timeout, Unavailable
from tensorcast_bus.log import BusLog
from tensorcast_bus.serving import Arrival
from tensorcast_bus.subjects import Subjects

RETRY_S = 0.05


class _Reconnected:
    """In place of an answer: the connection was lost and came back since the request was sent."""


_Outcome = Arrival | Envelope | _Reconnected
_Answer = asyncio.Future[_Outcome]


class Asking:
    """The open requests of one process."""

    def __init__(self, name: str, carrier: Carrier, *, log: BusLog) -> None:
        self._name = name
        self._carrier = carrier
        self._log = log
        self._inbox = Subjects.inbox(name, secrets.token_hex(8))
        self._inbox_lock = asyncio.Lock()
        self._inbox_open = False
        self._numbers = itertools.count(1)
        self._sent: dict[str, _Answer] = {}
        self._closed = False

    async def open_inbox(self) -> None:
        self.check_open()
        if self._inbox_open:
            return
        async with self._inbox_lock:
            if not self._inbox_open:
                await self._carrier.route(f"{self._inbox}.*", self._take_answer)
                self._inbox_open = True

    async def ask(self, subject: str, draft: Envelope) -> Envelope:
        """The answer's envelope. `draft.budget_ms` is the whole budget; `req_id` is filled in here."""
        await self.open_inbox()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + draft.budget_ms / 1000
        draft = msgspec.structs.replace(draft, req_id=f"{next(self._numbers):x}")
        while True:
            outcome = await self._ask_once(subject, draft, deadline)
            if isinstance(outcome, Envelope):
                return outcome
            if isinstance(outcome, _Reconnected):
                if not draft.idem:
                    raise _lost_on_the_way(subject, self._carrier.peer)
            elif self._carrier.settling and loop.time() + RETRY_S < deadline:
                # Peers reconnect at their own pace: just after a server's restart, nobody there means not there yet.
                await asyncio.sleep(RETRY_S)
            else:
                raise _nobody_serves(subject)

    def came_back(self) -> None:
        """To be called when the connection is back, before anything is sent over it."""
        for future in self._sent.values():
            if not future.done():
                future.set_result(_Reconnected())

    def close(self) -> None:
        self._closed = True
        for future in self._sent.values():
            _fail(future, self._is_closed())

    def check_open(self) -> None:
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> NotConnected:
        return NotConnected(f"the bus of {self._name} is closed; connect again", process=self._name)

    async def _ask_once(self, subject: str, draft: Envelope, deadline: float) -> _Outcome:
        """Sends once, as soon as there is a connection, and waits for what comes of it."""
        loop = asyncio.get_running_loop()
        while True:
            await self._ready(subject, draft, deadline)
            future: _Answer = loop.create_future()
            late = loop.call_at(deadline, _fail, future, _no_answer(subject, draft.budget_ms))
            self._sent[draft.req_id] = future
            try:
                if await self._send(subject, draft, deadline):
                    return await future
            finally:
                late.cancel()
                del self._sent[draft.req_id]
                if not future.cancel() and not future.cancelled():
                    future.exception()  # Seen, so that asyncio does not report it when our caller was cancelled.
            await asyncio.sleep(RETRY_S)

    async def _ready(self, subject: str, draft: Envelope, deadline: float) -> None:
        self.check_open()
        late = asyncio.get_running_loop().time() >= deadline
        if late or not (self._carrier.connected or await self._carrier.ready(deadline)):
            self.check_open()
            raise _no_connection(subject, draft.budget_ms, self._carrier.peer)
        self.check_open()

    async def _send(self, subject: str, draft: Envelope, deadline: float) -> bool:
        left_ms = max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))
        blob = pack(msgspec.structs.replace(draft, budget_ms=left_ms))
        return await self._carrier.send(subject, blob, reply=f"{self._inbox}.{draft.req_id}")

    def _take_answer(self, arrival: Arrival) -> None:
        req_id = arrival.subject.rpartition(".")[2]
        future = self._sent.get(req_id)
        if future is None or future.done():
            return  # The caller gave up, or somebody made the id up.
        if arrival.no_responders:
            future.set_result(arrival)
            return
        try:
            envelope = unpack(arrival.blob)
        except ProtocolError as wrong:
            future.set_exception(wrong)
            return
        if envelope.req_id == req_id:
            future.set_result(envelope)
        else:
            self._log.warning("answer ignored: it is to another request", sender=envelope.sender[:80])


def _fail(future: _Answer, error: TensorCastError) -> None:
    if not future.done():
        future.set_exception(error)


def _no_answer(subject: str, budget_ms: int) -> Timeout:
    return Timeout(
        f"no answer on {subject} within {budget_ms} ms; the process that serves it is slow, stalled or cut off, and "
        "may still do it; ask again",
        subject=subject,
        budget_ms=budget_ms,
    )


def _no_connection(subject: str, budget_ms: int, peer: str) -> Timeout:
    return Timeout(
        f"{subject} was not asked: no connection to {peer} within {budget_ms} ms; it is tried again all the time, "
        "ask again, or see `tensorcast status`",
        subject=subject,
        budget_ms=budget_ms,
    )


def _nobody_serves(subject: str) -> Unavailable:
    return Unavailable(
        f"nobody serves {subject}; the process that does is not running or not connected: see `tensorcast status`",
        subject=subject,
    )


def _lost_on_the_way(subject: str, peer: str) -> Unavailable:
    return Unavailable(
        f"the connection to {peer} was lost while {subject} was asked; whether it was done is unknown; look, then ask "
        "again",
        subject=subject,
    )
