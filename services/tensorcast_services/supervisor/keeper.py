"""Keeps one child running: starts it, sees it become ready, starts it again after a death, ends it when asked.

Owned by the cluster, one keeper a process. Its figures are what the cluster file shows; `on_change` is called at every
change of them. A child that cannot run here at all ends the keeper with ChildFailed; one that was ready and has lost
its place to another process stays down as "refused" while the others go on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import structlog

from tensorcast_bus.cluster import ProcessEntry
from tensorcast_services.supervisor.child import Child, Spec, spawn
from tensorcast_services.supervisor.restarts import Restarts

END_MS_MAX = 6_500
KILL_MS_MAX = 5_000
CANNOT_START = 127

IsReady = Callable[[Child], Awaitable[bool]]


class ChildFailed(Exception):
    """A child refused or died again and again before it was ever ready. The text ends with its last words."""


class Keeper:
    """`is_ready` waits until the child serves; False when it never will."""

    def __init__(
        self, spec: Spec, *, on_change: Callable[[], None], log_bytes_max: int, is_ready: IsReady | None = None
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self._on_change = on_change
        self._log_bytes_max = log_bytes_max
        self._is_ready = is_ready or Child.ready
        self._restarts = Restarts()
        self._state = "starting"
        self._child: Child | None = None
        self._pid = 0
        self._ending = asyncio.Event()
        self._log = structlog.get_logger("supervisor").bind(child=spec.process)

    @property
    def pid(self) -> int:
        """0 while there is none."""
        return self._pid

    def entry(self) -> ProcessEntry:
        return ProcessEntry(
            self.spec.process,
            self.spec.role,
            self._pid,
            self._state,
            self._restarts.restarts,
            str(self.spec.log),
        )

    async def keep(self) -> None:
        """Until `end`. ChildFailed when the child cannot run here."""
        while not self._ending.is_set():
            try:
                child = spawn(self.spec, log_bytes_max=self._log_bytes_max)
            except OSError as error:
                # No memory or no process slot now does not mean never.
                await self._back_off(CANNOT_START, lived_ms=0, last_words=str(error))
                continue
            try:
                code = await self._follow(child)
            finally:
                self._child = None
                self._pid = 0
                child.close()
            if not self._ending.is_set():
                await self._back_off(code, lived_ms=child.lived_ms, last_words=child.last_words())
        self._change("stopped")

    async def end(self) -> None:
        """Asks the child to end, and kills it with all it started when it does not within END_MS_MAX."""
        self._ending.set()
        for sig in (signal.SIGTERM, signal.SIGKILL):
            child = self._child
            if child is None:
                return
            if sig is signal.SIGKILL:
                self._log.warning("killed", after_ms=END_MS_MAX)
            child.signal_group(sig)
            try:
                async with asyncio.timeout((END_MS_MAX if sig is signal.SIGTERM else KILL_MS_MAX) / 1000):
                    await child.exit()
            except TimeoutError:
                continue
            # What the child itself had started dies with it.
            return

    async def _follow(self, child: Child) -> int:
        self._child = child
        self._pid = child.pid
        self._change("starting")
        exiting = asyncio.create_task(child.exit(), name=f"exit {self.spec.process}")
        becoming = asyncio.create_task(self._become_ready(child), name=f"ready {self.spec.process}")
        try:
            return await exiting
        finally:
            self.ready.clear()
            exiting.cancel()
            becoming.cancel()
            await asyncio.gather(exiting, becoming, return_exceptions=True)
            if not becoming.cancelled() and becoming.exception() is not None:
                self._log.error("readiness_unknown", error=str(becoming.exception()))

    async def _become_ready(self, child: Child) -> None:
        if await self._is_ready(child):
            self._restarts.is_ready()
            self.ready.set()
            self._change("ready")

    async def _back_off(self, code: int, *, lived_ms: int, last_words: str) -> None:
        delay_ms = self._restarts.died(code=code, lived_ms=lived_ms)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if delay_ms is None and self._restarts.proven:
            # The others serve on; this one would only take back what another process has by now.
            self._log.error("not_started_again", how=how, last_words=last_words)
            self._change("refused")
            await self._ending.wait()
            return
        if delay_ms is None:
            raise ChildFailed(f"{self.spec.process} cannot run here ({how}); it said:\n{last_words}")
        self._log.warning("died", how=how, lived_ms=lived_ms, again_in_ms=delay_ms)
        self._change("backing_off")
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._ending.wait()
        except TimeoutError:
            pass

    def _change(self, state: str) -> None:
        self._state = state
        self._on_change()
