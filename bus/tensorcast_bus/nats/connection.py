"""One lasting connection to a NATS server: nats-py's client, kept alive, and replaced when it is dead.

nats-py reconnects by itself; the watchdog replaces a client that cannot. Subscriptions are ours and move to the new
client; the process is told that it is back only when all of them stand at the server. Nothing is buffered while there
is no connection. `Any` of nats-py ends here. A Carrier; owned by NatsBus.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tensorcast_bus.bus import Arrival, Subscription
from tensorcast_bus.errors import MessageTooLarge, NotConnected
from tensorcast_bus.log import BusLog
from tensorcast_bus.nats.dial import RECONNECT_WAIT_S, Hooks, dial, dispose, public_url
from tensorcast_bus.nats.route import Route
from tensorcast_bus.nats.stall import Stall, watch_for_stalls
from tensorcast_bus.nats.watchdog import Watchdog
from tensorcast_bus.subjects import Subjects

CONNECT_S_MAX = 3.0
DISPOSE_S_MAX = 1.0
SETTLING_S = 1.5
BIND_S_MAX = 2.0


class Connection:
    """`open` it before anything else, `close` it after."""

    def __init__(self, url: str, *, name: str, token: str, log: BusLog) -> None:
        loop = asyncio.get_running_loop()
        self._url = url
        self._name = name
        self._token = token
        self._log = log
        self.peer = f"NATS at {public_url(url)}"
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._down_logged = False
        self._settled_at = 0.0
        self._on_up: list[Callable[[], None]] = []
        self._routes: list[Route] = []
        self._stall = Stall(loop.time())
        self._echo = f"{Subjects.inbox(name, secrets.token_hex(8))}.echo"
        self._echoes: dict[bytes, asyncio.Future[bool]] = {}
        self._numbers = itertools.count(1)
        self._watchdog = Watchdog(probe=self.settle, rebuild=self._rebuild)
        self._tasks: list[asyncio.Task[None]] = []
        self._last_error = ""
        self._refused: asyncio.Future[None] = loop.create_future()
        self._closed = False

    async def open(self, deadline_ms: int) -> None:
        """Connects for the first time. Raises NotConnected within the deadline, at once when we are not let in."""
        loop = asyncio.get_running_loop()
        opening = loop.create_task(self._replace())
        ends: set[asyncio.Future[None]] = {opening, self._refused}
        try:
            await asyncio.wait(ends, timeout=deadline_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise self._not_connected(deadline_ms)
        finally:
            if not opening.done():
                self._closed = True
                opening.cancel()
                await asyncio.wait({opening}, timeout=2 * DISPOSE_S_MAX)  # It ends its client itself.
        opening.result()
        self._stall = Stall(loop.time())
        self._up.set()
        self._tasks = [
            loop.create_task(self._watchdog.run()),
            loop.create_task(watch_for_stalls(self._stall, self._settle_quickly)),
        ]

    def _not_connected(self, deadline_ms: int) -> NotConnected:
        if self._refused.done():
            return NotConnected(f"{self.peer} refused {self._name}: {self._last_error}; check the token")
        return NotConnected(
            f"no connection to {self.peer} within {deadline_ms} ms ({self._last_error or 'it did not answer'}); "
            "is the cluster up? see `tensorcast status`",
            deadline_ms=deadline_ms,
        )

    @property
    def connected(self) -> bool:
        return self._up.is_set() and self._client is not None and self._client.is_connected and not self._closed

    @property
    def settling(self) -> bool:
        return asyncio.get_running_loop().time() < self._settled_at

    def on_up(self, callback: Callable[[], None]) -> None:
        self._on_up.append(callback)

    async def ready(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._up.wait()
        except TimeoutError:
            return False
        return not self._closed

    async def send(self, subject: str, blob: bytes, *, reply: str = "") -> bool:
        client = self._client
        if client is None or not self.connected:
            return False
        try:
            await client.publish(subject, blob, reply=reply)
        except nats.errors.MaxPayloadError as wrong:
            raise MessageTooLarge(
                f"a message of {len(blob)} bytes to {subject} is more than {self.peer} takes ({client.max_payload}); "
                "raise its max_payload to 1MB",
                message_bytes=len(blob),
                message_bytes_max=client.max_payload,
            ) from wrong
        except Exception as wrong:  # A client that just lost its socket raises much more than its own errors.
            self._noticed(wrong)
            return False
        return True

    async def route(self, pattern: str, take: Callable[[Arrival], None], *, queue: str = "") -> Subscription:
        route = Route(pattern, take, queue=queue, age_ms=self._age_ms, forget=self._forget)
        self._routes.append(route)
        client = self._client
        if client is not None and not client.is_closed:
            try:
                await route.bind(client)
            except Exception as wrong:
                self._noticed(wrong)
                return route  # The client just died; the next one binds every route.
            # The server keeps our order: once this came back, the subscription stands.
            await self.settle(BIND_S_MAX)
        return route

    async def settle(self, timeout_s: float) -> bool:
        """Sends ourselves a message; when it comes back, everything that lay at the server before it has come too."""
        client = self._client
        if client is None or not client.is_connected or self._closed:
            return False
        return await self._echoed(client, timeout_s)

    async def close(self, timeout_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        self._up.set()  # Wakes who waits for a connection, to be told that there will be none.
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s / 2)
        client, self._client = self._client, None
        if client is not None:
            await dispose(client, timeout_s / 2)

    # Staying alive

    async def _rebuild(self, why: str) -> None:
        """Called by the watchdog alone."""
        self._log.warning("client of the bus replaced", why=why, peer=self.peer)
        self._went_down(why)
        await self._replace()
        self._came_up()

    async def _replace(self) -> None:
        """Puts a client that proved itself alive in place of the old one, however long that takes."""
        old, self._client = self._client, None
        if old is not None:
            await dispose(old, DISPOSE_S_MAX)
        while True:
            client = Client()
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await self._connect(client)
                    await self._bind_all(client)
                if self._closed:
                    raise asyncio.CancelledError  # nats-py can swallow the cancellation that should have ended us.
                self._client = client
                return
            except Exception as wrong:  # Whatever it is: whoever waits for a connection must get one some day.
                self._last_error = self._last_error or str(wrong) or type(wrong).__name__
            except asyncio.CancelledError:
                await dispose(client, DISPOSE_S_MAX)
                raise
            await dispose(client, DISPOSE_S_MAX)
            await asyncio.sleep(RECONNECT_WAIT_S)

    async def _bind_all(self, client: Client) -> None:
        """Returns when every subscription stands at the server, also those that came while it worked."""
        while True:
            for route in list(self._routes):
                if not route.bound_to(client):
                    await route.bind(client)
            if not await self._echoed(client, CONNECT_S_MAX):
                raise TimeoutError("its first message to itself did not come back")
            if all(route.bound_to(client) for route in self._routes):
                return

    async def _connect(self, client: Client) -> None:
        async def on_error(error: Exception) -> None:
            self._noticed(error)

        async def on_disconnected() -> None:
            if client is self._client:
                self._went_down("the connection was lost")

        async def on_reconnected() -> None:
            if client is self._client:
                self._came_up()

        async def on_closed() -> None:
            if client is self._client and not self._closed:
                self._watchdog.report_dead(f"it was closed: {client.last_error or 'by the server'}")

        hooks = Hooks(on_error, on_disconnected, on_reconnected, on_closed)
        await dial(client, self._url, name=self._name, token=self._token, hooks=hooks)
        await self._bind_echo(client)

    def _went_down(self, why: str) -> None:
        self._up.clear()
        if not self._down_logged and not self._closed:
            self._down_logged = True
            self._log.warning("bus lost", why=why, peer=self.peer)

    def _came_up(self) -> None:
        if self._closed:
            return
        self._stall.backlog_read()  # A new connection starts empty.
        self._settled_at = asyncio.get_running_loop().time() + SETTLING_S
        self._down_logged = False
        self._log.info("bus back", peer=self.peer)
        for callback in self._on_up:
            callback()
        self._up.set()

    def _noticed(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        if "authorization" in self._last_error.lower() and not self._refused.done():
            self._refused.set_result(None)
        if isinstance(error, nats.errors.SlowConsumerError):
            self._log.warning("messages lost: they came faster than they were read", subject=error.subject)
        # nats-py reports every failed attempt, ten a second; that we are down is said once, elsewhere.
        self._log.debug("nats", error=self._last_error)

    # Messages to ourselves

    async def _bind_echo(self, client: Client) -> None:
        async def came_back(message: Msg) -> None:
            future = self._echoes.get(message.data)
            if future is not None and not future.done():
                future.set_result(True)

        await client.subscribe(self._echo, cb=came_back)

    async def _echoed(self, client: Client, timeout_s: float) -> bool:
        number = b"%d" % next(self._numbers)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._echoes[number] = future
        try:
            await client.publish(self._echo, number)
            async with asyncio.timeout(timeout_s):
                return await future
        except Exception:
            return False  # Whatever it is, this client does not work.
        finally:
            del self._echoes[number]

    async def _settle_quickly(self) -> bool:
        return await self.settle(BIND_S_MAX)

    def _age_ms(self) -> int:
        return int(self._stall.age_s(asyncio.get_running_loop().time()) * 1000)

    def _forget(self, route: Route) -> None:
        if route in self._routes:
            self._routes.remove(route)
