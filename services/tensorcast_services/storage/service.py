"""Joins the storage's core with the native floor, the file system, and the global store.

Built by ``__main__``. Events reach the core through the runtime's inbox, one batch a turn; `_perform` is the one place
where an effect of the core meets the world. Serves local clients whether or not the bus or the global store is up.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog

from tensorcast_bus.bus import Caller
from tensorcast_bus.errors import StaleFence, TensorCastError
from tensorcast_bus.messages import ArtifactEvent
from tensorcast_bus.notes import MadeDurable
from tensorcast_bus.subjects import Subjects
from tensorcast_native import LocalServer, Pool
from tensorcast_services.effect import Effect
from tensorcast_services.process import Context, TakenOver
from tensorcast_services.runtime import Limits, Runtime, SteadyClock
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import Event, PoolSeen, RemoteDeleted
from tensorcast_services.storage.lease_ends import LeaseEnds
from tensorcast_services.storage.link import Link
from tensorcast_services.storage.places import Places
from tensorcast_services.storage.reports import Reporter
from tensorcast_services.storage.rooms import Rooms
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.stepping import Stepping
from tensorcast_services.storage.workroom import as_trouble

TICK_MS = 500  # for the signs of life; deadlines have their own alarm
ANSWER_MARGIN_MS = 50  # what is answered at its deadline must still reach its asker
SUBSCRIBE_PAUSE_S = 0.5
FIGURES_PERIOD_S = 1.0
SETTLE_MS_MAX = 700  # of the second that the core waits for a drop beyond the call itself


class StorageService:
    """See process.Service."""

    def __init__(
        self, context: Context, pool: Pool, server: LocalServer, places: Places, settings: StorageSettings
    ) -> None:
        me = context.identity
        self.ready = asyncio.Event()
        self._context = context
        self._pool = pool
        self._server = server
        self._settings = settings
        self._log = structlog.get_logger("storage")
        self._artifacts = Artifacts(
            process=me.process,
            node=me.node,
            incarnation=me.incarnation,
            answer_margin_ms=ANSWER_MARGIN_MS,
            disk=places.disk is not None,
            spill_percent=settings.spill_percent,
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
        self._link = Link(
            context.bus, node=me.node, process=me.process, incarnation=me.incarnation, on_stale=self._on_stale
        )
        self._rooms = Rooms(self._artifacts, pool, server, places, settings, post=self._post)
        self._ends = LeaseEnds(self._link)
        self._reporter = Reporter(
            self._link,
            node=me.node,
            process=me.process,
            incarnation=me.incarnation,
            claims=self._artifacts.claims,
            ended=self._post,
        )
        self._stale: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._figures: dict[str, int] = {}
        self._figures_due_s = 0.0

    async def run(self) -> None:
        """Until `stop`; raises when the core or the runtime cannot go on, TakenOver when this process's name was."""
        running = asyncio.create_task(self._runtime.run(), name="runtime")
        beside: list[asyncio.Task[None]] = []
        try:
            await self._restore()
            self._rooms.local.start()
            work = (self._follow(), self._reporter.run(), self._ends.run(), self._rooms.compactor.run())
            beside = [asyncio.create_task(one) for one in work]
            self.ready.set()
            ends = (running, self._stale, *beside)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in ends:
                if task.done():
                    task.result()
        except StaleFence as error:
            raise TakenOver(
                f"its name was taken over by a newer process: {error.text}; two storages of one node cannot serve one "
                "cluster: start this one with another --node, or stop the other"
            ) from error
        finally:
            self._runtime.stop()
            for task in (self._stale, *beside):
                task.cancel()
            await asyncio.gather(running, self._stale, *beside, return_exceptions=True)

    def stop(self) -> None:
        self._runtime.stop()

    async def close(self) -> None:
        rooms = self._rooms
        rooms.local.stop()
        await rooms.work.stop()
        written = await rooms.disk.stop()
        await asyncio.to_thread(self._server.stop)
        rooms.jobs.clear()
        if written:
            await asyncio.to_thread(self._pool.stop)

    def figures(self) -> dict[str, int]:
        return self._figures

    def _on_stale(self, error: StaleFence) -> None:
        if not self._stale.done():
            self._stale.set_exception(error)

    def _post(self, event: Event) -> None:
        self._runtime.post(event)

    def _on_turn(self) -> None:
        self._context.beats.beat()
        now_s = time.monotonic()
        if now_s < self._figures_due_s:
            return
        self._figures_due_s = now_s + FIGURES_PERIOD_S
        stats = self._rooms.calls.stats()
        self._figures = {
            **{name: value for name, value in stats.pool.items() if name.endswith("_bytes")},
            **self._artifacts.figures(),
            **self._rooms.disk.figures(),
            "evictable_bytes": stats.evictable_bytes,
            "sessions": stats.sessions,
            "compactions": stats.compactions,
        }
        self._look_at_pool(stats.pool)

    def _look_at_pool(self, pool: dict[str, int]) -> None:
        capacity = pool["capacity_bytes"]
        used = capacity - pool["free_bytes"]
        if self._rooms.disk.folder is not None and 100 * used > self._settings.spill_percent * capacity:
            self._post(PoolSeen(used, capacity, tuple(self._rooms.local.uses())))

    async def _restore(self) -> None:
        """What an earlier incarnation left beside its files and on its disk."""
        for restored in await self._rooms.origins.scan():
            self._post(restored)

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
        if event.kind in ("deleted", "lease_ended"):
            self._post(RemoteDeleted(event.art_id, event.revision))

    def _perform(self, effect: Effect) -> None:
        local, jobs = self._rooms.local, self._rooms.jobs
        match effect:
            case fx.Reply(request, MadeDurable() as made):
                jobs.answered(request)
                self._rooms.work.spawn(self._reply_durable(request, made))
            case fx.Reply(request, answer):
                self._rooms.opening.wishes.pop(request, None)
                jobs.answered(request)
                local.reply(request, answer)
            case fx.AttachNow(request):
                self._rooms.opening.wishes.pop(request, None)
                local.attach_now(request)
            case fx.AttachView(request):
                self._rooms.opening.wishes.pop(request, None)
                local.attach_view(effect)
            case fx.AcceptPut(ticket):
                local.accept_put(ticket)
            case fx.StartLoad(ticket):
                local.start_load(ticket)
            case fx.CancelFill(ticket):
                local.cancel(ticket)
            case fx.Publish(art_id, manifest_segment, segments):
                local.publish(art_id, manifest_segment, segments)
            case fx.Withdraw(art_id):
                local.withdraw(art_id)
            case fx.WithdrawIdle(ticket, art_id):
                local.withdraw_idle(ticket, art_id)
            case fx.Free(segments):
                local.free(segments)
            case fx.Forget(ticket):
                jobs.drop(ticket)
            case fx.LetGo(source):
                self._rooms.kept.remove(source)
                local.let_go(source)
            case _:
                self._perform_slowly(effect)

    def _perform_slowly(self, effect: Effect) -> None:
        """Effects that end later: on a thread, or at the global store."""
        rooms = self._rooms
        match effect:
            case fx.OpenFiles():
                rooms.opening.open_files(effect)
            case fx.OpenView():
                rooms.opening.open_view(effect)
            case fx.CheckFiles(ticket, files):
                rooms.origins.check_files(ticket, files)
            case fx.ReplyManifest():
                rooms.work.spawn(self._reply_manifest(effect))
            case fx.Seal(ticket, art_id, manifest_segment):
                rooms.finishing.seal(ticket, art_id, manifest_segment)
            case fx.WriteOut():
                rooms.disk.write_out(effect)
            case fx.CancelWrite(ticket):
                rooms.disk.cancel(ticket)
            case fx.RemoveSidecar(art_id, tier):
                rooms.origins.remove(art_id, tier)
            case fx.TellLost(art_id, tier):
                self._reporter.lost(art_id, tier)
            case fx.TellHeld(art_id):
                self._reporter.held(art_id)
            case fx.CallEndLease(art_id, digest):
                self._ends.tell(art_id, digest)
            case fx.CallCommit() | fx.CallResolve() | fx.CallDrop() | fx.CallDelete():
                rooms.work.spawn(self._call(effect))
            case _:
                raise AssertionError(f"nobody performs {type(effect).__name__}")

    async def _reply_manifest(self, effect: fx.ReplyManifest) -> None:
        try:
            answer: msgspec.Struct = await self._rooms.opening.about(effect.art_id, effect.digest)
        except Exception as error:
            answer = as_trouble(effect.art_id, error).record()
        self._rooms.local.reply(effect.request, answer)

    async def _reply_durable(self, request: int, made: MadeDurable) -> None:
        """It is on disk; whoever lists it next shall see that."""
        await self._reporter.settle(made.art_id, budget_ms=SETTLE_MS_MAX)
        self._rooms.local.reply(request, made)

    async def _call(self, effect: fx.CallCommit | fx.CallResolve | fx.CallDrop | fx.CallDelete) -> None:
        match effect:
            case fx.CallCommit():
                await self._ends.told(effect.art_id, budget_ms=effect.budget_ms)
                self._post(await self._link.commit(effect))
            case fx.CallDrop():
                await self._reporter.settle(effect.art_id, budget_ms=SETTLE_MS_MAX)
                self._post(await self._link.drop(effect))
            case fx.CallDelete():
                self._post(await self._link.delete(effect))
            case fx.CallResolve():
                await self._ends.told(effect.art_id, budget_ms=effect.budget_ms)
                self._post(await self._link.resolve(effect))
