"""Opening and ending nats-py's clients: the options that experience asks for, and an end that always comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
from nats.aio.client import Client

RECONNECT_WAIT_S = 0.1


class Hooks(msgspec.Struct, frozen=True):
    """What a client calls, on its loop."""

    error: Callable[[Exception], Awaitable[None]]
    disconnected: Callable[[], Awaitable[None]]
    reconnected: Callable[[], Awaitable[None]]
    closed: Callable[[], Awaitable[None]]


async def dial(client: Client, url: str, *, name: str, token: str, hooks: Hooks) -> None:
    """Tries until it is connected; the caller sets the deadline by cancelling."""
    await client.connect(
        url,
        name=name,
        token=token or None,
        error_cb=hooks.error,
        disconnected_cb=hooks.disconnected,
        reconnected_cb=hooks.reconnected,
        closed_cb=hooks.closed,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # it sleeps for it: fractions are fine
        ping_interval=2,
        max_outstanding_pings=2,
        # Nothing is kept for later: what would be sent after a reconnect is older than its receiver can know.
        pending_size=-1,
    )


async def dispose(client: Client, timeout_s: float) -> None:
    """Ends a client, politely first: a stopped peer would keep nats-py's own close waiting for ever."""
    # A task of its own, since nats-py can end up awaiting what another of its tasks cancelled: that must not cancel us.
    closing = asyncio.get_running_loop().create_task(client.close())
    done, _ = await asyncio.wait({closing}, timeout=timeout_s)
    if closing not in done:
        closing.cancel()
    elif not closing.cancelled():
        closing.exception()  # Whatever it is, the client is of no use any more.
    # There is no public way to drop the socket; a closed one does not mind.
    writer = getattr(getattr(client, "_transport", None), "_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def public_url(url: str) -> str:
    """Without user, password and token."""
    parts = urlsplit(url if "//" in url else f"nats://{url}")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
