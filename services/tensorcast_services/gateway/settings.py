"""Settings of a gateway: table ``[gateway]``, or ``[gateway-0]`` for one."""

from __future__ import annotations

from msgspec import Struct


class GatewaySettings(Struct, frozen=True):
    """`requests_max` bounds what one gateway asks at a time; more is refused as Unavailable."""

    requests_max: int = 512
