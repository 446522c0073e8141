"""The bus in memory: the whole meaning of the bus between parts of one event loop, without a server.

Ships, for tests and for single-process use. Everything goes through the codec, so nothing mutable is shared; messages
are delivered by the loop, one turn later, in the order of sending. `break_links` and `mend_links` play a lost server.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from tensorcast_bus.bus import Subscription
from tensorcast_bus.exchange import Exchange
from tensorcast_bus.log import bus_log
from tensorcast_bus.serving import Arrival
from tensorcast_bus.subjects import subject_matches

_Take = Callable[[Arrival], None]


class LoopbackBus(Exchange):
    """A Bus of a LoopbackHub."""


class LoopbackHub:
    """Where the loopback buses of one event loop meet."""

    def __init__(self) -> None:
        self._routes: list[_Route] = []
        self._links: list[_Link] = []
        self._turns = itertools.count()
        self._broken = False

    def bus(self, name: str) -> LoopbackBus:
        """A bus for the process `name`. Invalid when that is no subject token."""
        link = _Link(self, broken=self._broken)
        made = LoopbackBus(name, link, log=bus_log(process=name))
        self._links.append(link)
        return made

    def break_links(self) -> None:
        """From now on nothing is delivered: publications and answers are lost, requests wait."""
        self._broken = True
        for link in self._links:
            link.up.clear()

    def mend_links(self) -> None:
        """Every bus is connected again and is told so."""
        self._broken = False
        for link in self._links:
            link.came_up()

    def deliver(self, subject: str, blob: bytes, *, reply: str) -> None:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        takers = self._takers(subject)
        for route in takers:
            loop.call_soon(route.hand_over, subject, reply, blob, sent_at)
        if reply and not takers:
            for route in self._takers(reply):
                loop.call_soon(route.take, Arrival(reply, "", b"", no_responders=True))

    def add(self, route: _Route) -> None:
        self._routes.append(route)

    def remove(self, route: _Route) -> None:
        if route in self._routes:
            self._routes.remove(route)

    def forget(self, link: _Link) -> None:
        self._links = [other for other in self._links if other is not link]
        self._routes = [route for route in self._routes if route.link is not link]

    def _takers(self, subject: str) -> list[_Route]:
        """Every plain subscription, and one of each queue group in turn."""
        matching = [route for route in self._routes if subject_matches(route.subject, subject)]
        groups: dict[tuple[str, str], list[_Route]] = {}
        for route in matching:
            if route.queue:
                groups.setdefault((route.subject, route.queue), []).append(route)
        turn = next(self._turns) if groups else 0
        return [route for route in matching if not route.queue] + [
            members[turn % len(members)] for members in groups.values()
        ]


class _Route:
    def __init__(self, link: _Link, hub: LoopbackHub, subject: str, take: _Take, queue: str) -> None:
        self.link = link
        self.subject = subject
        self.take = take
        self.queue = queue
        self._hub = hub
        self._stopped = False

    def hand_over(self, subject: str, reply: str, blob: bytes, sent_at: float) -> None:
        if self._stopped or self.link.closed:
            return
        waited_ms = int((asyncio.get_running_loop().time() - sent_at) * 1000)
        self.take(Arrival(subject, reply, blob, aged_ms=waited_ms))

    async def unsubscribe(self) -> None:
        self._stopped = True
        self._hub.remove(self)


class _Link:
    """A Carrier: one bus's place at the hub."""

    peer = "the loopback hub"
    settling = False

    def __init__(self, hub: LoopbackHub, *, broken: bool) -> None:
        self._hub = hub
        self._on_up: list[Callable[[], None]] = []
        self.closed = False
        self.up = asyncio.Event()
        if not broken:
            self.up.set()

    @property
    def connected(self) -> bool:
        return self.up.is_set() and not self.closed

    async def ready(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self.up.wait()
        except TimeoutError:
            return False
        return not self.closed

    async def send(self, subject: str, blob: bytes, *, reply: str = "") -> bool:
        if not self.connected:
            return False
        self._hub.deliver(subject, blob, reply=reply)
        return True

    async def route(self, pattern: str, take: _Take, *, queue: str = "") -> Subscription:
        route = _Route(self, self._hub, pattern, take, queue)
        self._hub.add(route)
        return route

    def on_up(self, callback: Callable[[], None]) -> None:
        self._on_up.append(callback)

    def came_up(self) -> None:
        for callback in self._on_up:
            callback()
        self.up.set()

    async def settle(self, timeout_s: float) -> bool:
        if not self.connected:
            return False
        passed = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(passed.set_result, None)  # Behind everything sent so far.
        await passed
        return True

    async def close(self, timeout_s: float) -> None:
        self.closed = True
        self.up.set()  # Wakes who waits for a connection, to be told that there will be none.
        self._hub.forget(self)
