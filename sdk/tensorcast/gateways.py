"""The link to the gateways, opened by the first question that needs it. Called by Session and the catalog.

Attaching never uses the bus: asyncio and the bus's client are imported only by who asks the catalog.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tensorcast.places import Places
from tensorcast.shortage import shortage
from tensorcast_bus.errors import NotConnected

if TYPE_CHECKING:
    from tensorcast.remote import Address, GatewayLink

_ONLY = "gateways"


class Gateways:
    """One link, to wherever `places` says that the bus is."""

    def __init__(self, places: Places) -> None:
        self._places = places
        # Set in one step, which needs no lock: a lock could be held by another thread at a fork.
        self._links: dict[str, GatewayLink] = {}
        self._closed = False

    def link(self) -> GatewayLink:
        """Raises Unavailable where its client cannot be loaded, NotConnected once closed."""
        if self._closed:
            raise NotConnected("this runtime was closed; make another with tensorcast.connect()")
        link = self._links.get(_ONLY)
        if link is None:
            try:
                remote = importlib.import_module("tensorcast.remote")
            except OSError as error:
                raise shortage(error, "loading the client of the bus") or error from error
            address: type[Address] = remote.Address
            kind: type[GatewayLink] = remote.GatewayLink
            places = self._places
            # Of several threads that come first at once, one's link is everybody's.
            link = self._links.setdefault(_ONLY, kind(lambda: address(*places.bus())))
        return link

    def close(self) -> None:
        self._closed = True
        for link in self._links.values():
            link.close()
