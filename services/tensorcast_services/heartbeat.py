"""Heartbeats: a thread with a loop and a bus connection of its own says once a second that this process lives.

It speaks only while the main loop does its work: `Beats` is advanced by the main loop, and when that has not
happened for ``STALL_MS_MAX`` the thread keeps silent, so a process that hangs counts as dead. The figures callable
runs on this thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from msgspec import Struct

from tensorcast_bus.bus import Bus
from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.messages import Heartbeat
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects
from tensorcast_services.settings import BusSettings

PERIOD_MS = 1_000
STALL_MS_MAX = 2_500
CONNECT_MS_MAX = 5_000
FIGURES_MAX = 32


class Identity(Struct, frozen=True):
    """`process` is "storage-a", `incarnation` the ns of its start; `token` is both, as it stands in subjects."""

    process: str
    role: str
    node: str
    incarnation: int
    pid: int
    version: str

    @property
    def token(self) -> str:
        return Subjects.process_token(self.process, self.incarnation)


class Beats:
    """The main loop's sign of life."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._last_s = clock_s()

    def beat(self) -> None:
        self._last_s = self._clock_s()

    @property
    def still_ms(self) -> int:
        """How long the main loop has given no sign."""
        return int((self._clock_s() - self._last_s) * 1000)


class HeartbeatThread:
    """Started once the service can answer; `stop` returns at once, the thread ends with its connection."""

    def __init__(
        self, identity: Identity, bus: BusSettings, beats: Beats, figures: Callable[[], Mapping[str, int]]
    ) -> None:
        self._identity = identity
        self._bus_settings = bus
        self._beats = beats
        self._figures = figures
        self._started_s = time.monotonic()
        self._sequence = 0
        self._silent = False
        self._stopping = threading.Event()
        self._log = structlog.get_logger("heartbeat")
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_until_stopped())
        except Exception as error:
            # Without this thread the process counts as dead while it serves; the log must say why.
            self._log.error("heartbeat_thread_failed", error=str(error), exc_info=True)

    async def _beat_until_stopped(self) -> None:
        bus: Bus | None = None
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                bus = bus or await self._connect()
                if self._main_loop_works():
                    await bus.publish(Subjects.heartbeat(self._identity.role, self._identity.token), self._next())
            except TensorCastError as error:
                self._log.warning("heartbeat_not_sent", error=error.text)
            await asyncio.sleep(max(0.0, PERIOD_MS / 1000 - (time.monotonic() - began_s)))
        if bus is not None:
            await bus.close()

    async def _connect(self) -> Bus:
        settings = self._bus_settings
        return await connect_bus(
            settings.url, name=f"{self._identity.token}-hb", token=settings.token, deadline_ms=CONNECT_MS_MAX
        )

    def _main_loop_works(self) -> bool:
        still_ms = self._beats.still_ms
        works = still_ms <= STALL_MS_MAX
        if works == self._silent:
            self._silent = not works
            self._log.warning("heartbeats_resume" if works else "heartbeats_stop", main_loop_still_ms=still_ms)
        return works

    def _next(self) -> Heartbeat:
        self._sequence += 1
        me = self._identity
        return Heartbeat(
            process=me.process,
            role=me.role,
            node=me.node,
            incarnation=me.incarnation,
            sequence=self._sequence,
            pid=me.pid,
            version=me.version,
            uptime_ms=int((time.monotonic() - self._started_s) * 1000),
            figures=self._read_figures(),
        )

    def _read_figures(self) -> dict[str, int]:
        try:
            return dict(list(self._figures().items())[:FIGURES_MAX])
        except Exception as error:
            # A figure that cannot be read must not let the process count as dead.
            self._log.error("figures_failed", error=str(error))
            return {}
