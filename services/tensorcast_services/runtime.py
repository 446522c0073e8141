"""The only place of a service that awaits, saves, then sends.

Events enter an inbox (`ask` for requests of the bus, `post` for everything else). One turn takes a bounded batch, lets
the core step through it in order of arrival, saves the net effect in one transaction, and only then replies, announces
and calls. Invariants: nothing of a batch is visible outside before its save succeeded; a failed save ends the process,
since its memory is then ahead of its disk and the saved rows are the truth; every accepted request is answered once,
within its budget. Everything here is called on one event loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog
from msgspec import Struct

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import LocalProtocolError, TensorCastError, Timeout, Unavailable
from tensorcast_services.effect import NOBODY, Announce, Answered, Call, Core, Effect, Origin, Reply, Save

Saver = Callable[[Sequence[Save]], Awaitable[None]]


class Limits(Struct, frozen=True):
    """`inbox_rows_max` bounds requests and `offer`; posts of local sources bound themselves."""

    inbox_rows_max: int = 20_000
    batch_rows_max: int = 512
    batch_ms_max: int = 20
    tick_ms: int = 100
    announcements_max: int = 20_000
    calls_in_flight_max: int = 4_096
    drain_ms_max: int = 1_000


class SteadyClock:
    """Milliseconds since the epoch, anchored once and carried on by the monotonic clock, so it never jumps."""

    def __init__(self) -> None:
        self._anchor_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._anchor_ns) // 1_000_000


class Runtime:
    """`perform` carries out effects that are none of Save, Reply, Call, Announce; it must neither block nor raise, and
    answers by `post`. `on_turn` is called at least every `tick_ms` while the loop is alive."""

    def __init__(
        self,
        core: Core,
        bus: Bus,
        *,
        save: Saver | None = None,
        perform: Callable[[Effect], None] | None = None,
        on_turn: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._core = core
        self._bus = bus
        self._save = save
        self._perform = perform
        self._on_turn = on_turn
        self._clock_ms = clock_ms or SteadyClock()
        self._limits = limits or Limits()
        self._log = structlog.get_logger("runtime")
        self._inbox: deque[tuple[Struct, Origin, int]] = deque()
        self._wake = asyncio.Event()
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Struct]] = {}
        self._outbox: deque[Announce] = deque(maxlen=self._limits.announcements_max)
        self._outbox_wake = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._next_tick_ms = 0
        self._stopping = False

    @property
    def waiting(self) -> int:
        """Events in the inbox."""
        return len(self._inbox)

    async def ask(self, body: Struct, caller: Caller) -> Struct:
        """A request of the bus: the core's Reply to it, or the error that it replied. Timeout when the budget ends
        first, Unavailable when the inbox is full or the service ends."""
        if self._stopping or len(self._inbox) >= self._limits.inbox_rows_max:
            what = "is stopping" if self._stopping else f"has {len(self._inbox)} requests waiting, its limit"
            raise Unavailable(f"{self._bus.name} {what}; try again", process=self._bus.name)
        ticket = next(self._tickets)
        answer: asyncio.Future[Struct] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = answer
        self.post(body, Origin(ticket, caller.sender, caller.trace_id, caller.budget_ms, caller.idem))
        try:
            async with asyncio.timeout(caller.budget_ms / 1000):
                return await answer
        except TimeoutError:
            raise _too_late(self._bus.name, body, caller.budget_ms) from None
        finally:
            self._waiting.pop(ticket, None)

    def post(self, event: Struct, origin: Origin = NOBODY) -> None:
        """An event from a source that bounds itself. On the loop's thread only."""
        self._inbox.append((event, origin, self._clock_ms()))
        self._wake.set()

    def offer(self, event: Struct, origin: Origin = NOBODY) -> bool:
        """The same for publications of others; False, and dropped, when the inbox is full."""
        if len(self._inbox) >= self._limits.inbox_rows_max:
            return False
        self.post(event, origin)
        return True

    async def run(self) -> None:
        """Turns until `stop`. Raises what the save raised, after refusing everybody who waits."""
        announcer = asyncio.create_task(self._announce(), name="announcer")
        try:
            while not self._stopping:
                await self._wait_for_work()
                await self._turn()
        finally:
            self._stopping = True
            await self._end(announcer)

    def stop(self) -> None:
        """Ends `run` after the turn that is on."""
        self._stopping = True
        self._wake.set()

    async def _wait_for_work(self) -> None:
        if not self._inbox:
            self._wake.clear()
            left_s = max(0, self._next_tick_ms - self._clock_ms()) / 1000
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _turn(self) -> None:
        effects = self._step_batch()
        now_ms = self._clock_ms()
        if now_ms >= self._next_tick_ms:
            self._next_tick_ms = now_ms + self._limits.tick_ms
            # The oldest unread event bounds the tick's time: nobody expires while his heartbeat lies in the inbox.
            effects.extend(self._core.tick(min(now_ms, self._inbox[0][2]) if self._inbox else now_ms))
            self._on_turn()
        saves = [e for e in effects if isinstance(e, Save)]
        if saves:
            await self._save_batch(saves)
        self._send(e for e in effects if not isinstance(e, Save))
        # A full inbox must not keep the loop from reading sockets.
        await asyncio.sleep(0)

    def _step_batch(self) -> list[Effect]:
        effects: list[Effect] = []
        end_ms = self._clock_ms() + self._limits.batch_ms_max
        for _ in range(min(len(self._inbox), self._limits.batch_rows_max)):
            event, origin, arrived_ms = self._inbox.popleft()
            now_ms = self._clock_ms()
            if origin.ticket and now_ms - arrived_ms >= origin.budget_ms:
                # Nobody waits for it any more, so it must not take effect; `ask` has told the caller Timeout.
                continue
            effects.extend(self._core.step(event, origin, arrived_ms))
            if now_ms >= end_ms:
                break
        return effects

    async def _save_batch(self, saves: Sequence[Save]) -> None:
        if self._save is None:
            raise AssertionError(f"{self._bus.name} has no store, but its core wants to save {saves[0].table}")
        try:
            await self._save(saves)
        except Exception as error:
            self._log.error("save_failed", rows=len(saves), error=str(error))
            self._refuse_all(f"{self._bus.name} could not save ({error}); it restarts from its saved rows")
            raise

    def _send(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(ticket, body):
                    self._resolve(ticket, body)
                case Announce():
                    self._outbox.append(effect)
                    self._outbox_wake.set()
                case Call():
                    self._start_call(effect)
                case Save():
                    raise AssertionError(f"a Save of {effect.table} came too late to be saved before it is sent")
                case _ if self._perform is not None:
                    self._perform(effect)
                case _:
                    raise AssertionError(f"{self._bus.name} cannot perform {type(effect).__name__}")

    def _resolve(self, ticket: int, body: Struct | TensorCastError) -> None:
        waiter = self._waiting.get(ticket)
        if waiter is None or waiter.done():
            return
        if isinstance(body, TensorCastError):
            waiter.set_exception(body)
        else:
            waiter.set_result(body)

    def _refuse_all(self, text: str) -> None:
        for ticket in list(self._waiting):
            self._resolve(ticket, Unavailable(text, process=self._bus.name))

    def _start_call(self, call: Call) -> None:
        if len(self._calls) >= self._limits.calls_in_flight_max:
            busy = Unavailable(
                f"{self._bus.name} has {len(self._calls)} requests of its own under way, its limit; try again",
                subject=call.subject,
            )
            self.post(Answered(call.token, busy))
            return
        task = asyncio.create_task(self._call(call), name=f"call {call.subject}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, call: Call) -> None:
        try:
            result: Struct | TensorCastError = await self._bus.request(
                call.subject,
                call.body,
                answer=call.answer,
                budget_ms=call.budget_ms,
                idem=call.idem,
                trace_id=call.trace_id,
            )
        except TensorCastError as error:
            result = error
        except Exception as error:
            # The core waits for an end of every call; a defect here must not leave it waiting.
            self._log.error("call_failed", subject=call.subject, error=str(error), exc_info=True)
            result = LocalProtocolError(f"{call.subject}: {type(error).__name__}: {error}", subject=call.subject)
        self.post(Answered(call.token, result))

    async def _announce(self) -> None:
        while not self._stopping or self._outbox:
            while self._outbox:
                announcement = self._outbox.popleft()
                try:
                    await self._bus.publish(announcement.subject, announcement.body)
                except Exception as error:
                    # Lost publications are seen by their sequence; those behind this one must still leave.
                    self._log.warning("announcement_lost", subject=announcement.subject, error=str(error))
            self._outbox_wake.clear()
            if not self._stopping:
                await self._outbox_wake.wait()

    async def _end(self, announcer: asyncio.Task[None]) -> None:
        self._refuse_all(f"{self._bus.name} is stopping; try again")
        self._outbox_wake.set()
        await asyncio.wait({announcer}, timeout=self._limits.drain_ms_max / 1000)
        for task in (announcer, *self._calls):
            task.cancel()
        await asyncio.gather(announcer, *self._calls, return_exceptions=True)


def _too_late(process: str, body: Struct, budget_ms: int) -> Timeout:
    kind = str(body.__struct_config__.tag or type(body).__name__)
    return Timeout(
        f"{process} did not get to {kind} within {budget_ms} ms; the same request may be sent again",
        process=process,
        verb=kind,
        budget_ms=budget_ms,
    )
