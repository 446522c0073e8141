"""A cluster of one host: which processes it has, how they come up together and go down in order.

Built by ``__main__`` once the folder is locked and clean. The NATS server comes first, then all services at once: each
waits for what it needs. Down goes by stages, so that nobody loses his bus before he has said his last word.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from tensorcast_bus.cluster import SETTINGS_FILE, ClusterFile, NodeEntry
from tensorcast_services import VERSION
from tensorcast_services.supervisor.child import Spec
from tensorcast_services.supervisor.folder import write_cluster
from tensorcast_services.supervisor.keeper import Keeper
from tensorcast_services.supervisor.orphans import Recorded, record_of, write_records
from tensorcast_services.supervisor.server import NatsServer
from tensorcast_services.supervisor.settings import SupervisorSettings

KEEPERS_END_S = 1.0
STOP_STAGES = ("gateway", "storage", "global_store", "nats")


class NotReady(Exception):
    """The cluster did not come up in time."""


class Plan(Struct, frozen=True):
    """What was asked. `nats_url` is set when the caller has a server of his own, `group` when others may use it too."""

    folder: Path
    name: str
    nodes: tuple[str, ...]
    settings: SupervisorSettings
    environment: Mapping[str, str]
    nats_url: str = ""
    nats_token: str = ""
    group: int | None = None


class Cluster:
    """`run` until `stopping` is set; the caller holds the folder's lock all the time."""

    def __init__(self, plan: Plan, *, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self._server = None if plan.nats_url else NatsServer(plan.folder)
        self._keepers: list[Keeper] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._records: dict[str, Recorded] = {}
        self._state = "starting"
        self._started_ms = time.time_ns() // 1_000_000
        self._started_s = time.monotonic()

    async def run(self, stopping: asyncio.Event) -> None:
        """Raises ChildFailed or NotReady when the cluster cannot come up; everything is stopped in any case."""
        stop = asyncio.create_task(stopping.wait(), name="stop")
        try:
            if await self._come_up(stop):
                await self._watch(stop)
        finally:
            await self._go_down()
            stop.cancel()

    async def _come_up(self, stop: asyncio.Task[bool]) -> bool:
        try:
            async with asyncio.timeout(self._plan.settings.ready_ms_max / 1000):
                if self._server is not None:
                    spec = self._server.spec(self._plan.environment, self._log("nats"))
                    self._start(spec, is_nats=True)
                    if not await self._all_ready(stop):
                        return False
                for spec in self._services():
                    self._start(spec)
                if not await self._all_ready(stop):
                    return False
        except TimeoutError:
            late = [k.spec.process for k in self._keepers if not k.ready.is_set()]
            raise NotReady(
                f"not ready within {self._plan.settings.ready_ms_max} ms: {', '.join(late)}; "
                f"their logs are in {self._plan.folder / 'logs'}"
            ) from None
        self._state = "ready"
        self._write()
        names = ", ".join(k.spec.process for k in self._keepers)
        self._say(f"ready in {time.monotonic() - self._started_s:.1f} s: {names}")
        return True

    async def _all_ready(self, stop: asyncio.Task[bool]) -> bool:
        """False when asked to stop first. Raises what a keeper raised."""
        everybody = asyncio.gather(*(k.ready.wait() for k in self._keepers))
        try:
            await _first_of(everybody, stop, *self._tasks)
            self._raise_failures()
            return not stop.done()
        finally:
            everybody.cancel()
            await asyncio.gather(everybody, return_exceptions=True)

    async def _watch(self, stop: asyncio.Task[bool]) -> None:
        await _first_of(stop, *self._tasks)
        self._raise_failures()

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _go_down(self) -> None:
        self._state = "stopping"
        self._write()
        for stage in STOP_STAGES:
            await asyncio.gather(*(k.end() for k in self._keepers if k.spec.role == stage))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=KEEPERS_END_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, spec: Spec, *, is_nats: bool = False) -> None:
        keeper = Keeper(
            spec,
            on_change=self._write,
            log_bytes_max=self._plan.settings.log_bytes_max,
            is_ready=self._server.is_ready if is_nats and self._server is not None else None,
        )
        self._keepers.append(keeper)
        self._tasks.append(asyncio.create_task(keeper.keep(), name=f"keep {spec.process}"))

    def _services(self) -> list[Spec]:
        url = self._server.url if self._server else self._plan.nats_url
        token = self._server.token if self._server else self._plan.nats_token
        environment = {**self._plan.environment, "TENSORCAST_BUS__URL": url, "TENSORCAST_BUS__TOKEN": token}
        wanted = [("global_store", "")]
        wanted += [("gateway", str(i)) for i in range(self._plan.settings.gateways)]
        wanted += [("storage", node) for node in self._plan.nodes]
        return [self._service(role, node, environment) for role, node in wanted]

    def _service(self, role: str, node: str, environment: Mapping[str, str]) -> Spec:
        process = f"{role}-{node}" if node else role
        # -P keeps the folder that `up` was called in out of the module path.
        command = [sys.executable, "-P", "-m", f"tensorcast_services.{role}"]
        command += ["--config", str(self._plan.folder / SETTINGS_FILE), *(["--node", node] if node else [])]
        return Spec(process, role, tuple(command), environment, self._log(process))

    def _log(self, process: str) -> Path:
        return self._plan.folder / "logs" / f"{process}.log"

    def _write(self) -> None:
        try:
            self._write_files()
        except OSError as error:
            # A full disk must not take down processes that run; the next change is written again.
            structlog.get_logger("supervisor").error("cluster_file_not_written", error=str(error))

    def _write_files(self) -> None:
        self._record()
        write_cluster(
            self._plan.folder,
            ClusterFile(
                name=self._plan.name,
                state=self._state,
                version=VERSION,
                supervisor_pid=os.getpid(),
                started_ms=self._started_ms,
                nats_url=self._server.url if self._server else self._plan.nats_url,
                nats_token=self._server.token if self._server else self._plan.nats_token,
                nodes=tuple(NodeEntry(n, str(self._plan.folder / f"storage-{n}.sock")) for n in self._plan.nodes),
                processes=tuple(k.entry() for k in self._keepers),
            ),
            group=self._plan.group,
        )

    def _record(self) -> None:
        pids = {k.spec.process: k.pid for k in self._keepers if k.pid}
        if pids != {process: record.pid for process, record in self._records.items()}:
            known = self._records
            self._records = {
                process: known[process] if process in known and known[process].pid == pid else record_of(process, pid)
                for process, pid in pids.items()
            }
            write_records(self._plan.folder, list(self._records.values()))


async def _first_of(*ends: asyncio.Future[Any]) -> None:
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
