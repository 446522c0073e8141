"""A real nats-server for tests, on a free port of loopback, in a temporary folder; it keeps its port when restarted."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensorcast_bus.nats.server import ServerBinary, config_text, find_server, server_url
from tests.support.stopping import stop

START_S_MAX = 20.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class NatsServer:
    """Start it with `running_nats`. `url` and `token` are what a client needs."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_urlsafe(24)
        self.url = ""
        self._folder = folder
        self._binary: ServerBinary = find_server()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = -1

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Returns when it listens."""
        assert self._process is None, "the server is running"
        config = self._folder / "nats.conf"
        config.write_text(config_text(port=self._port, token=self.token, folder=str(self._folder)))
        config.chmod(0o600)
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary.path, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        self.url = self._wait_listening()
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL; every connection is cut."""
        assert self._process is not None, "the server is not running"
        self._process.kill()
        self._process.wait(timeout=START_S_MAX)
        self._process = None

    def restart(self) -> None:
        """Kills it and starts it on the same port."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        stop(self.pid)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def _wait_listening(self) -> str:
        assert self._process is not None
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline:
            url = server_url(str(self._folder), pid=self._process.pid)
            if url is not None:
                return url
            if self._process.poll() is not None:
                break
            time.sleep(0.005)  # polling a file that another process writes; the deadline above bounds it
        log = (self._folder / "nats.log").read_text(errors="replace")
        raise AssertionError(f"nats-server did not listen within {START_S_MAX} s:\n{log}")


@contextmanager
def running_nats() -> Iterator[NatsServer]:
    """A server that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="tensorcast-nats-") as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.end()


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
