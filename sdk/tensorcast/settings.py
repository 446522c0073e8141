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
from tensorcast_bus.errors import Invalid


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
    folder = env.get("XDG_RUNTIME_DIR") or None
    return SdkSettings(
        cluster=env.get("TENSORCAST_CLUSTER") or DEFAULT_CLUSTER,
        runtime_folder=folder and _absolute(folder),
        temp_folder=tempfile.gettempdir(),
        nats_url=env.get("NATS_URL") or None,
        uid=os.getuid(),
    )


def _absolute(folder: str) -> str:
    """The supervisor does not work where its callers do, so a relative folder would be another one there."""
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:
        raise Invalid(
            f"XDG_RUNTIME_DIR is {folder!r}, which is relative, and this process's working folder was deleted; give a "
            "full path"
        ) from None
