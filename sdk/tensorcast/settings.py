"""What the SDK and the command line take from the environment. This is the only room that reads it.

XDG_RUNTIME_DIR places the cluster folders, TENSORCAST_CLUSTER names the cluster that `connect()` means when nothing
is said, NATS_URL is the bus where no cluster runs on this host.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import msgspec

from tensorcast_bus.cluster import DEFAULT_CLUSTER


class SdkSettings(msgspec.Struct, frozen=True):
    """`runtime_folder` is None where the session has none; then clusters live under `temp_folder`."""

    cluster: str
    runtime_folder: str | None
    temp_folder: str
    nats_url: str | None
    uid: int


def read_settings(environment: Mapping[str, str] | None = None) -> SdkSettings:
    """Read anew at every use: tests and notebooks change the environment while the process runs."""
    env = os.environ if environment is None else environment
    return SdkSettings(
        cluster=env.get("TENSORCAST_CLUSTER") or DEFAULT_CLUSTER,
        runtime_folder=env.get("XDG_RUNTIME_DIR") or None,
        temp_folder=tempfile.gettempdir(),
        nats_url=env.get("NATS_URL") or None,
        uid=os.getuid(),
    )
