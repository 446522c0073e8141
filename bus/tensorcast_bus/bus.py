"""The bus: what processes can say to each other, as a seam with two implementations.

`loopback.LoopbackHub().bus(name)` is one process's memory, `nats.client.connect_bus(url, ...)` a NATS server; both are
an Exchange (exchange.py) over a Carrier that moves bytes. A bus belongs to the event loop it was made in.
Every request ends within its budget: with the answer, the peer's error, Unavailable or Timeout. Publications are never
queued: one made while there is no connection is lost, as core NATS loses some around a reconnect; receivers find gaps
by sequence and take a snapshot. A request with an idempotency id is sent again after a reconnect; one without fails
as Unavailable then, since its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from tensorcast_bus.codec import BodyTypes
from tensorcast_bus.serving import Arrival, Caller

__all__ = ["Arrival", "Bus", "Caller", "Carrier", "Subscription"]

T = TypeVar("T", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)


class Subscription(Protocol):
    @property
    def subject(self) -> str: ...

    async def unsubscribe(self) -> None:
        """No message is taken after it; handlers that run go on. May be called twice."""


class Bus(Protocol):
    """`name` is the envelope's sender. Subjects come from Subjects; bodies are the structs of messages.py."""

    @property
    def name(self) -> str: ...

    @property
    def connected(self) -> bool: ...

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
        """Raises Timeout (subject, budget), Unavailable (nobody serves it, or the connection was lost on the way),
        NotConnected after close, MessageTooLarge, ProtocolError, or the peer's own error."""
        ...

    async def publish(self, subject: str, body: msgspec.Struct, *, trace_id: str = "") -> None:
        """Best effort. Raises MessageTooLarge or Invalid, never because there is no connection."""

    async def serve(
        self,
        subject: str,
        bodies: BodyTypes,
        handler: Callable[[B, Caller], Awaitable[msgspec.Struct]],
        *,
        queue: str = "",
    ) -> Subscription:
        """When it returns, requests reach `handler`, each in a task of its own. A handler that runs longer than its
        caller's budget is not cancelled. Requests come at subjects whose last token is the body's kind."""
        ...

    async def subscribe(self, subject: str, bodies: BodyTypes, on_message: Callable[[B, Caller], None]) -> Subscription:
        """When it returns, publications reach `on_message`, in the order of each publisher; it must not block."""
        ...

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Called each time the connection is back and every subscription with it: state may have been missed."""

    async def settle(self, *, budget_ms: int) -> bool:
        """True once everything that waited for this process when it was called has been handed over."""
        ...

    async def close(self) -> None:
        """Ends within CLOSE_S_MAX; requests that wait raise NotConnected. May be called twice."""


class Carrier(Protocol):
    """What moves bytes. `settling`: the connection came back a moment ago and peers may still be on their way."""

    @property
    def connected(self) -> bool: ...

    @property
    def settling(self) -> bool: ...

    @property
    def peer(self) -> str:
        """What it is connected to, for the text of errors."""
        ...

    async def ready(self, deadline: float) -> bool:
        """Waits for a connection until `deadline` of the loop's clock; False at once when closed."""
        ...

    async def send(self, subject: str, blob: bytes, *, reply: str = "") -> bool:
        """False when there is no connection; nothing is kept for later."""
        ...

    async def route(self, pattern: str, take: Callable[[Arrival], None], *, queue: str = "") -> Subscription: ...

    def on_up(self, callback: Callable[[], None]) -> None:
        """Called when the connection is back, before `ready` returns to anybody."""

    async def settle(self, timeout_s: float) -> bool: ...

    async def close(self, timeout_s: float) -> None: ...
