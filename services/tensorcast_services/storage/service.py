"""Joins the storage's core with the native floor, the file system, and the global store.

Built by ``__main__``. Events reach the core through the runtime's inbox, one batch a turn; `_perform` is the one place
where an effect of the core meets the world. Serves local clients whether or not the bus or the global store is up.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from tensorcast_bus.bus import Caller
from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.messages import ArtifactEvent
from tensorcast_bus.subjects import Subjects
from tensorcast_native import LocalServer, Pool
from tensorcast_services.effect import Effect
from tensorcast_services.process import Context
from tensorcast_services.runtime import Limits, Runtime, SteadyClock
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import Event, RemoteDeleted, Restored
from tensorcast_services.storage.jobs import Jobs
from tensorcast_services.storage.link import Link
from tensorcast_services.storage.local import Local
from tensorcast_services.storage.reports import Reporter
from tensorcast_services.storage.requests import Requests
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.sidecars import Sidecars
from tensorcast_services.storage.stepping import Stepping
from tensorcast_services.storage.workroom import Workroom

TICK_MS = 500  # for the signs of life; deadlines have their own alarm
ANSWER_MARGIN_MS = 50  # what is answered at its deadline must still reach its asker
SUBSCRIBE_PAUSE_S = 0.5
FIGURES_PERIOD_S = 1.0


class StorageService:
    """See process.Service."""

    def __init__(
        self, context: Context, pool: Pool, server: LocalServer, sidecars: Sidecars, settings: StorageSettings
    ) -> None:
        me = context.identity
        self.ready = asyncio.Event()
        self._context = context
        self._pool = pool
        self._server = server
        self._log = structlog.get_logger("storage")
        self._artifacts = Artifacts(
            process=me.process, node=me.node, incarnation=me.incarnation, answer_margin_ms=ANSWER_MARGIN_MS
        )
        clock_ms = SteadyClock()
        self._runtime = Runtime(
            Stepping(self._artifacts, post=lambda due: self._runtime.post(due), clock_ms=clock_ms),
            context.bus,
            clock_ms=clock_ms,
            perform=self._perform,
            on_turn=self._on_turn,
            limits=Limits(tick_ms=TICK_MS),
        )
        self._jobs = Jobs()
        self._link = Link(context.bus, node=me.node, process=me.process, incarnation=me.incarnation)
        self._workroom = Workroom(pool, sidecars, self._jobs, post=self._post, file_threads=settings.file_threads)
        self._local = Local(
            pool,
            server,
            self._jobs,
            post=self._post,
            on_request=lambda request: self._requests.take(request),
            load_ms_max=settings.load_ms_max,
        )
        self._requests = Requests(
            self._artifacts,
            pool,
            server,
            self._jobs,
            self._workroom,
            settings,
            post=self._post,
            reply=self._local.reply,
            uses=self._local.uses,
        )
        self._reporter = Reporter(
            self._link,
            node=me.node,
            process=me.process,
            incarnation=me.incarnation,
            claims=self._artifacts.claims,
            ended=self._post,
        )
        self._figures: dict[str, int] = {}
        self._figures_due_s = 0.0

    async def run(self) -> None:
        """Until `stop`; raises when the core, the reports (StaleFence) or the runtime cannot go on."""
        running = asyncio.create_task(self._runtime.run(), name="runtime")
        beside: list[asyncio.Task[None]] = []
        try:
            await self._restore()
            self._local.start()
            beside = [asyncio.create_task(self._follow(), name="follow")]
            beside.append(asyncio.create_task(self._reporter.run(), name="reports"))
            self.ready.set()
            await asyncio.wait({running, *beside}, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, *beside):
                if task.done():
                    task.result()
        finally:
            self._runtime.stop()
            for task in beside:
                task.cancel()
            await asyncio.gather(running, *beside, return_exceptions=True)

    def stop(self) -> None:
        self._runtime.stop()

    async def close(self) -> None:
        self._local.stop()
        await self._workroom.stop()
        await asyncio.to_thread(self._server.stop)
        self._jobs.clear()
        await asyncio.to_thread(self._pool.stop)

    def figures(self) -> dict[str, int]:
        return self._figures

    def _post(self, event: Event) -> None:
        self._runtime.post(event)

    def _on_turn(self) -> None:
        self._context.beats.beat()
        now_s = time.monotonic()
        if now_s < self._figures_due_s:
            return
        self._figures_due_s = now_s + FIGURES_PERIOD_S
        stats = self._requests.stats()
        pool = {name: value for name, value in stats.pool.items() if name.endswith("_bytes")}
        self._figures = {
            **pool,
            **self._artifacts.figures(),
            "evictable_bytes": stats.evictable_bytes,
            "sessions": stats.sessions,
        }

    async def _restore(self) -> None:
        """What an earlier incarnation left beside its files."""
        for summary, now in await self._workroom.scan():
            if now.changed and now.sure:
                self._log.warning("sidecar_dropped", art_id=summary.art_id, why=now.changed)
                self._workroom.remove_sidecar(summary.art_id)
            else:
                self._post(Restored(summary.art_id, summary.digest, summary.nbytes, summary.tensors, summary.files))

    async def _follow(self) -> None:
        """Events of the global store; a report after every reconnect. Ends by cancellation only."""
        bus = self._context.bus
        bus.on_reconnect(lambda: self._reporter.full("the bus came back"))
        while True:
            try:
                await bus.subscribe(Subjects.events("artifact"), ArtifactEvent, self._on_event)
                break
            except TensorCastError as error:
                self._log.warning("subscribe_failed", error=error.text)
                await asyncio.sleep(SUBSCRIBE_PAUSE_S)
        # What happened before the subscription is told by this report's answer.
        self._reporter.full("events are followed from here")
        await asyncio.Event().wait()

    def _on_event(self, event: ArtifactEvent, _caller: Caller) -> None:
        self._reporter.follow(event)
        if event.kind == "deleted":
            self._post(RemoteDeleted(event.art_id, event.revision))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case fx.Reply(request, answer):
                self._jobs.drop(request)
                self._local.reply(request, answer)
            case fx.AttachNow(request):
                self._local.attach_now(request)
            case fx.AcceptPut(ticket):
                self._local.accept_put(ticket)
            case fx.StartLoad(ticket):
                self._local.start_load(ticket)
            case fx.CancelFill(ticket):
                self._local.cancel(ticket)
            case fx.Publish(art_id, manifest_segment, segments):
                self._local.publish(art_id, manifest_segment, segments)
            case fx.Withdraw(art_id):
                self._local.withdraw(art_id)
            case fx.WithdrawIdle(ticket, art_id):
                self._local.withdraw_idle(ticket, art_id)
            case fx.Free(segments):
                self._local.free(segments)
            case fx.Forget(ticket):
                self._jobs.drop(ticket)
            case _:
                self._perform_slowly(effect)

    def _perform_slowly(self, effect: Effect) -> None:
        """Effects that end later: on a thread, or at the global store."""
        match effect:
            case fx.OpenFiles(ticket, art_id):
                self._workroom.open_files(ticket, art_id)
            case fx.CheckFiles(ticket, files):
                self._workroom.check_files(ticket, files)
            case fx.Seal(ticket, art_id, manifest_segment):
                self._workroom.seal(ticket, art_id, manifest_segment)
            case fx.RemoveSidecar(art_id):
                self._workroom.remove_sidecar(art_id)
            case fx.TellLost(art_id):
                self._reporter.lost(art_id)
            case fx.TellHeld(art_id):
                self._reporter.held(art_id)
            case fx.CallCommit() | fx.CallResolve() | fx.CallDrop() | fx.CallDelete():
                self._workroom.spawn(self._call(effect))
            case _:
                raise AssertionError(f"nobody performs {type(effect).__name__}")

    async def _call(self, effect: fx.CallCommit | fx.CallResolve | fx.CallDrop | fx.CallDelete) -> None:
        match effect:
            case fx.CallCommit():
                self._post(await self._link.commit(effect))
            case fx.CallDrop():
                self._post(await self._link.drop(effect))
            case fx.CallDelete():
                self._post(await self._link.delete(effect))
            case fx.CallResolve():
                self._post(await self._link.resolve(effect))
