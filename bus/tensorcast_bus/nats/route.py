"""A subscription that outlives its client: pattern, queue group and receiver, bound to one client at a time."""

from __future__ import annotations

from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription

from tensorcast_bus.bus import Arrival

PENDING_MESSAGES_MAX = 65_536
PENDING_BYTES_MAX = 64 << 20
NO_RESPONDERS = "503"


class Route:
    """`age_ms()` is what a message read now may have waited in this process."""

    def __init__(
        self,
        subject: str,
        take: Callable[[Arrival], None],
        *,
        queue: str,
        age_ms: Callable[[], int],
        forget: Callable[[Route], None],
    ) -> None:
        self.subject = subject
        self._take = take
        self._queue = queue
        self._age_ms = age_ms
        self._forget = forget
        self._client: Client | None = None
        self._subscription: ClientSubscription | None = None
        self._stopped = False

    def bound_to(self, client: Client) -> bool:
        return self._client is client

    async def bind(self, client: Client) -> None:
        """Raises when the client is dead, with whatever it has: its successor binds the route."""
        # The receiver never waits, so nats-py's queue before it stays empty and its messages keep their order.
        self._client = client
        try:
            subscription = await client.subscribe(
                self.subject,
                queue=self._queue,
                cb=self._arrived,
                pending_msgs_limit=PENDING_MESSAGES_MAX,
                pending_bytes_limit=PENDING_BYTES_MAX,
            )
        except Exception:
            self._client = None
            raise
        if self._client is client:
            self._subscription = subscription

    async def unsubscribe(self) -> None:
        self._stopped = True
        self._forget(self)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.unsubscribe()
            except Exception:
                pass  # The client is gone, and the subscription with it.

    async def _arrived(self, message: Msg) -> None:
        if self._stopped:
            return
        refused = not message.data and message.headers is not None and message.headers.get("Status") == NO_RESPONDERS
        self._take(Arrival(message.subject, message.reply, message.data, self._age_ms(), refused))
