"""The cluster's NATS server: its configuration, and when it is ready.

It takes any free port at its first start and the same one ever after, so that clients come back by themselves. The
token lies in its configuration and in the cluster file, both of mode 0600, never on a command line.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tensorcast_bus.nats.server import config_text, find_server, server_url
from tensorcast_services.supervisor.child import Child, Spec
from tensorcast_services.supervisor.folder import write_private

PROCESS = "nats"
ANY_PORT = -1
LOOK_MS = 10
GREETING_MS_MAX = 1_000


class NatsServer:
    """Writes the configuration; `spec` says how to start it, `is_ready` is the keeper's."""

    def __init__(self, folder: Path) -> None:
        """NotFound when this host has no server that is new enough."""
        self.token = secrets.token_urlsafe(32)
        self.url = ""
        self._folder = folder / "nats"
        self._binary = find_server()
        for stale in self._folder.glob("*.ports"):
            stale.unlink()
        self._write_config(ANY_PORT)

    @property
    def version(self) -> str:
        return self._binary.version

    def spec(self, environment: Mapping[str, str], log: Path) -> Spec:
        command = (self._binary.path, "--config", str(self._config))
        return Spec(PROCESS, PROCESS, command, environment, log, native=True)

    async def is_ready(self, child: Child) -> bool:
        """Waits until the child has written its own address and answers there."""
        while True:
            url = server_url(str(self._folder), pid=child.pid)
            if url and await _greets(url):
                if not self.url:
                    self.url = url
                    self._write_config(urlsplit(url).port or ANY_PORT)
                return True
            await asyncio.sleep(LOOK_MS / 1000)

    @property
    def _config(self) -> Path:
        return self._folder / "nats.conf"

    def _write_config(self, port: int) -> None:
        write_private(self._config, config_text(port=port, token=self.token, folder=str(self._folder)).encode())


async def _greets(url: str) -> bool:
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(GREETING_MS_MAX / 1000):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                return (await reader.read(5)) == b"INFO "
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
