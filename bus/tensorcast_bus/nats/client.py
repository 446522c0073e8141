"""A process's bus over a NATS server. Called by every process and by the SDK; heartbeats have a second one."""

from __future__ import annotations

from tensorcast_bus.exchange import Exchange
from tensorcast_bus.log import bus_log
from tensorcast_bus.nats.connection import Connection
from tensorcast_bus.subjects import check_token


class NatsBus(Exchange):
    """A Bus over one NATS server."""


async def connect_bus(url: str, *, name: str, token: str = "", deadline_ms: int = 5000) -> NatsBus:
    """Connects the process `name` to the server at `url`, in the running event loop.

    Raises NotConnected when there is no server within `deadline_ms`, at once when it refuses the token, and Invalid
    when `name` is no subject token. Afterwards the bus comes back by itself, however long the server is away.
    """
    check_token(name)
    log = bus_log(process=name)
    connection = Connection(url, name=name, token=token, log=log)
    await connection.open(deadline_ms)
    bus = NatsBus(name, connection, log=log)
    try:
        await bus.open_inbox()
    except BaseException:
        await bus.close()
        raise
    return bus
