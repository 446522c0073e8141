"""Joins the core, its rows and the bus: requests on ``gs.*``, heartbeats, events.

Built by ``__main__``. The rows are read and written on one thread of their own, so a slow disk stops answers, and with
them the heartbeats, but not the loop that reads the bus.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog
from msgspec import Struct

from tensorcast_bus.bus import Caller
from tensorcast_bus.messages import GlobalStoreRequest, Heartbeat
from tensorcast_bus.subjects import Subjects
from tensorcast_services.effect import Save
from tensorcast_services.global_store.core.machine import GlobalStoreCore
from tensorcast_services.global_store.settings import GlobalStoreSettings
from tensorcast_services.global_store.store import Store
from tensorcast_services.process import Context
from tensorcast_services.runtime import Runtime

T = TypeVar("T")


class GlobalStoreService:
    """See process.Service."""

    def __init__(self, context: Context, store: Store, core: GlobalStoreCore, disk: ThreadPoolExecutor) -> None:
        self.ready = asyncio.Event()
        self._bus = context.bus
        self._store = store
        self._core = core
        self._disk = disk
        self._log = structlog.get_logger("global_store")
        self._runtime = Runtime(core, context.bus, save=self._save, on_turn=context.beats.beat)

    async def run(self) -> None:
        running = asyncio.create_task(self._runtime.run(), name="runtime")
        try:
            await self._bus.subscribe(Subjects.heartbeats(), Heartbeat, self._on_heartbeat)
            await self._bus.serve(Subjects.global_store_all(), GlobalStoreRequest, self._runtime.ask)
            self.ready.set()
            await running
        finally:
            self._runtime.stop()
            running.cancel()

    def stop(self) -> None:
        self._runtime.stop()

    async def close(self) -> None:
        await _on(self._disk, self._store.close)
        self._disk.shutdown(wait=False)

    def figures(self) -> dict[str, int]:
        return {**self._core.figures(), "inbox": self._runtime.waiting}

    async def _save(self, saves: Sequence[Save]) -> None:
        await _on(self._disk, lambda: self._store.save(saves))

    def _on_heartbeat(self, body: Struct, _caller: Caller) -> None:
        if not self._runtime.offer(body):
            self._log.warning("heartbeat_dropped", inbox=self._runtime.waiting)


async def build(context: Context, settings: GlobalStoreSettings) -> GlobalStoreService:
    """Reads the catalog. Refusal when the file cannot be one."""
    disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disk")
    path = context.folder / settings.database
    store = await _on(disk, lambda: Store(path, memory_bytes_max=settings.memory_bytes_max))
    saved = await _on(disk, store.load)
    structlog.get_logger("global_store").info("catalog_read", path=str(path), artifacts=len(saved.artifacts))
    core = GlobalStoreCore(context.identity.incarnation, saved, own=context.identity.process)
    return GlobalStoreService(context, store, core, disk)


async def _on(disk: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(disk, work)
