"""The link to the gateways over the bus: catalog questions, and deletes from hosts without a storage.

Imported by whoever asks the first such question: attaching needs no bus, and importing its client costs more than a
whole attach. Runs on the background loop; asked from any thread. The bus is opened at first use, again in a forked
child, and again when the cluster came back under another address.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from tensorcast.deadline import Deadline
from tensorcast.loop import shared_loop
from tensorcast.shortage import shortage
from tensorcast_bus.bus import Bus, Subscription
from tensorcast_bus.errors import NotConnected, TensorCastError, Unavailable
from tensorcast_bus.messages import ArtifactEvent, GatewayRequest
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")
CLOSE_S_MAX = 2.0
READ_MS_MAX = 2_000
READ_AGAIN_S = 2.0
WATCHING = "waiting for it to change"


class Address(msgspec.Struct, frozen=True):
    """Where the bus is. `token` is "" where none is needed."""

    url: str
    token: str


class _Line:
    """An open bus and the lock under which it is opened; both belong to one process's loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.name = f"sdk-{self.pid}-{secrets.token_hex(4)}"
        self.opening = asyncio.Lock()
        self.bus: Bus | None = None
        self.address: Address | None = None


class GatewayLink:
    """`locate` returns the bus's address, or raises NotConnected; it is asked at every call."""

    def __init__(self, locate: Callable[[], Address]) -> None:
        self._locate = locate
        self._closed = False
        self._line = self._new_line()

    def meet(self, deadline: Deadline) -> None:
        """Opens the bus now. Raises NotConnected or Timeout."""
        self._wait(self._open(deadline), deadline, "connecting to the bus")

    def ask(self, request: GatewayRequest, *, answer: type[T], deadline: Deadline) -> T:
        """Blocks the caller's thread. Raises the gateway's error, Timeout, Unavailable or NotConnected."""
        return self._wait(self._ask(request, answer, deadline), deadline, "asking a gateway")

    def watch(
        self,
        subject: str,
        request: GatewayRequest,
        *,
        answer: type[T],
        wanted: Callable[[T], bool],
        absent: type[TensorCastError],
        deadline: Deadline,
    ) -> T:
        """Asks until the answer is `wanted`: after every event at `subject`, and every READ_AGAIN_S in any case, since
        events may be lost. `absent` is the error that means: not yet. Raises the other errors of the gateway, Timeout,
        and NotConnected once the runtime was closed."""
        return self._wait(self._watch(subject, request, answer, wanted, absent, deadline), deadline, WATCHING)

    def _wait(self, work: Coroutine[object, object, R], deadline: Deadline, phase: str) -> R:
        try:
            asked = shared_loop().submit(work)
        except BaseException:
            work.close()
            raise
        try:
            # The bus keeps the deadline itself; the margin only guards against a loop that was stopped.
            return asked.result(deadline.left_ms(phase) / 1000 + CLOSE_S_MAX)
        except TimeoutError:
            raise deadline.timeout(phase) from None
        except OSError as error:
            raise shortage(error, deadline.what) or error from error
        finally:
            # Whoever was interrupted (Ctrl-C) does not wait for it any more either; harmless where it has ended.
            asked.cancel()
            # An error holds this frame, and `asked` the error: such a ring keeps the callers' tensors mapped until
            # the cyclic collector runs.
            del asked

    def close(self) -> None:
        self._closed = True
        closing = _let_go(self._line)
        if closing is not None:
            try:
                closing.result(CLOSE_S_MAX)
            except TimeoutError:
                pass  # the connection ends with the process

    def _new_line(self) -> _Line:
        line = _Line()
        # A runtime that is dropped without close() must not leave its connection behind; at exit the loop closes it.
        weakref.finalize(self, _let_go, line).atexit = False
        return line

    async def _ask(self, request: GatewayRequest, answer: type[T], deadline: Deadline) -> T:
        bus = await self._open(deadline)
        return await _request(bus, request, answer, deadline.left_ms("asking a gateway"))

    async def _watch(
        self,
        subject: str,
        request: GatewayRequest,
        answer: type[T],
        wanted: Callable[[T], bool],
        absent: type[TensorCastError],
        deadline: Deadline,
    ) -> T:
        woken = asyncio.Event()
        bus: Bus | None = None
        heard: Subscription | None = None
        try:
            while True:
                woken.clear()
                try:
                    now = await self._open(deadline)
                    if now is not bus:
                        # First the events, then the record: what is set in between wakes us.
                        bus, heard = now, await now.subscribe(subject, ArtifactEvent, lambda *_: woken.set())
                    left_ms = min(READ_MS_MAX, deadline.left_ms(WATCHING))
                    found = await _request(bus, request, answer, left_ms)
                    if wanted(found):
                        return found
                except absent:
                    pass
                except Unavailable:
                    # Gateway, server or the whole cluster are away for a moment; the deadline is for that as well.
                    if self._closed or deadline.over:
                        raise
                await _woken(woken, min(READ_AGAIN_S, deadline.left_ms(WATCHING) / 1000))
        finally:
            if heard is not None:
                await heard.unsubscribe()

    async def _open(self, deadline: Deadline) -> Bus:
        if self._closed:
            raise NotConnected(f"{deadline.what}: this runtime was closed; make another with tensorcast.connect()")
        if self._line.pid != os.getpid():
            self._line = self._new_line()
        line = self._line
        async with line.opening:
            address = self._locate()
            if line.bus is not None and line.address != address:
                shared_loop().at_stop.discard(line.bus.close)
                await line.bus.close()
                line.bus = None
            if line.bus is None:
                line.bus = await connect_bus(
                    address.url,
                    name=line.name,
                    token=address.token,
                    deadline_ms=deadline.left_ms("connecting to the bus"),
                )
                line.address = address
                shared_loop().at_stop.add(line.bus.close)
            return line.bus


async def _request(bus: Bus, request: GatewayRequest, answer: type[T], budget_ms: int) -> T:
    tag = str(request.__struct_config__.tag)
    subject = Subjects.gateway(bus.name, tag)
    return await bus.request(subject, request, answer=answer, budget_ms=budget_ms, idem=secrets.token_hex(8))


async def _woken(event: asyncio.Event, seconds: float) -> None:
    """Returns when it is set, or later."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _let_go(line: _Line) -> Future[None] | None:
    """Begins to close; None where nothing is open. In a forked child the connection is the parent's."""
    bus = line.bus
    if bus is None or line.pid != os.getpid():
        return None
    line.bus = None
    loop = shared_loop()
    if loop.ending:
        return None  # with everything that is open
    loop.at_stop.discard(bus.close)
    return loop.submit(bus.close())
