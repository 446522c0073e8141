"""What a bus means, over any carrier: requests, publications, serving. Both buses are this class.

Invariants: every handler is a task that `close` waits for and then cancels; at most HANDLERS_INFLIGHT_MAX of them a
served subject, more are refused and never queued; subscribers are called in the order of arrival.
Made by loopback.py and nats/client.py; everybody else sees the Bus of bus.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar, cast

import msgspec

from tensorcast_bus.asking import Asking
from tensorcast_bus.bus import Carrier, Subscription
from tensorcast_bus.codec import BodyTypes, bodies_of, encode_body, kind_of
from tensorcast_bus.envelope import VERSION, Envelope, pack, unpack
from tensorcast_bus.errors import Invalid, ProtocolError
from tensorcast_bus.limits import (
    ANSWER_WAIT_S_MAX,
    BUDGET_MS_MAX,
    CLOSE_S_MAX,
    HANDLERS_END_S_MAX,
    HANDLERS_INFLIGHT_MAX,
)
from tensorcast_bus.log import BusLog
from tensorcast_bus.serving import Arrival, Caller, Handler, Service, read_answer
from tensorcast_bus.subjects import check_concrete, check_pattern

T = TypeVar("T", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)


class Exchange:
    """A Bus. `name` must be a subject token; Invalid otherwise."""

    def __init__(self, name: str, carrier: Carrier, *, log: BusLog) -> None:
        self._name = name
        self._carrier = carrier
        self._log = log
        self._asking = Asking(name, carrier, log=log)
        self._handlers: set[asyncio.Task[None]] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._routes: set[_Route] = set()
        self._closed = False
        carrier.on_up(self._came_back)

    @property
    def name(self) -> str:
        return self._name

    @property
    def connected(self) -> bool:
        return self._carrier.connected and not self._closed

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def settle(self, *, budget_ms: int) -> bool:
        return await self._carrier.settle(budget_ms / 1000)

    async def open_inbox(self) -> None:
        """Makes the first request as fast as the next."""
        await self._asking.open_inbox()

    async def request(
        self,
        subject: str,
        body: msgspec.Struct,
        *,
        answer: type[T],
        budget_ms: int,
        idem: str = "",
        trace_id: str = "",
    ) -> T:
        check_concrete(subject)
        if not 0 < budget_ms <= BUDGET_MS_MAX:
            raise Invalid(f"a request's budget is 1 to {BUDGET_MS_MAX} ms, not {budget_ms}", budget_ms=budget_ms)
        kind, raw = kind_of(type(body)), encode_body(body)
        draft = Envelope(VERSION, kind, "", trace_id, "", budget_ms, idem, 0, self._name, raw)
        return cast(T, read_answer(await self._asking.ask(subject, draft), bodies_of(answer)))

    async def publish(self, subject: str, body: msgspec.Struct, *, trace_id: str = "") -> None:
        check_concrete(subject)
        self._asking.check_open()
        kind, raw = kind_of(type(body)), encode_body(body)
        await self._carrier.send(subject, pack(Envelope(VERSION, kind, "", trace_id, "", 0, "", 0, self._name, raw)))

    async def subscribe(self, subject: str, bodies: BodyTypes, on_message: Callable[[B, Caller], None]) -> Subscription:
        accepted = bodies_of(bodies)

        def take(arrival: Arrival) -> None:
            try:
                envelope = unpack(arrival.blob)
                body = cast(B, accepted.decode(envelope.kind, envelope.body))
            except ProtocolError as wrong:
                self._log.warning("publication unreadable", subject=arrival.subject, error=wrong.text)
                return
            try:
                on_message(body, Caller(envelope.sender, envelope.trace_id, 0, ""))
            except Exception:
                self._log.exception("a subscriber failed", subject=arrival.subject, kind=envelope.kind)

        return await self._route(subject, take, queue="")

    async def serve(
        self,
        subject: str,
        bodies: BodyTypes,
        handler: Callable[[B, Caller], Awaitable[msgspec.Struct]],
        *,
        queue: str = "",
    ) -> Subscription:
        service = Service(self._name, bodies_of(bodies), cast(Handler, handler), log=self._log)
        running: set[asyncio.Task[None]] = set()

        def take(arrival: Arrival) -> None:
            if len(running) >= HANDLERS_INFLIGHT_MAX:
                self._start(self._reply(arrival, service.refuse(service.too_busy(), arrival)))
                return
            task = self._start(self._answer(service, arrival))
            running.add(task)
            task.add_done_callback(running.discard)

        return await self._route(subject, take, queue=queue)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_S_MAX
        self._asking.close()
        for route in list(self._routes):
            await route.unsubscribe()
        tasks = self._handlers - {asyncio.current_task()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=HANDLERS_END_S_MAX)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=HANDLERS_END_S_MAX)
        await self._carrier.close(max(0.1, deadline - loop.time()))

    def _came_back(self) -> None:
        self._asking.came_back()
        loop = asyncio.get_running_loop()
        for callback in self._callbacks:
            # Later, so that a callback finds the bus connected, and none can keep the connection from coming up.
            loop.call_soon(self._call, callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            self._log.exception("a reconnect callback failed")

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        return task

    async def _answer(self, service: Service, arrival: Arrival) -> None:
        await self._reply(arrival, await service.answer(arrival))

    async def _reply(self, arrival: Arrival, blob: bytes | None) -> None:
        if blob is None or await self._carrier.send(arrival.reply, blob):
            return
        # An inbox outlives its connection: the answer still counts when both of us are back in time.
        if await self._carrier.ready(asyncio.get_running_loop().time() + ANSWER_WAIT_S_MAX):
            await self._carrier.send(arrival.reply, blob)

    async def _route(self, subject: str, take: Callable[[Arrival], None], *, queue: str) -> Subscription:
        self._asking.check_open()
        check_pattern(subject)
        route = _Route(await self._carrier.route(subject, take, queue=queue), self._routes)
        self._routes.add(route)
        return route


class _Route:
    """A carrier's subscription that its exchange closes if nobody else does."""

    def __init__(self, inner: Subscription, routes: set[_Route]) -> None:
        self._inner = inner
        self._routes = routes

    @property
    def subject(self) -> str:
        return self._inner.subject

    async def unsubscribe(self) -> None:
        self._routes.discard(self)
        await self._inner.unsubscribe()
