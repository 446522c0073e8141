"""The runtime over a loopback bus and small cores: what is saved, when, and what is sent after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from msgspec import Struct

from tensorcast_bus.bus import Caller
from tensorcast_bus.errors import NotFound, Timeout, Unavailable
from tensorcast_bus.loopback import LoopbackHub
from tensorcast_bus.messages import ArtifactEvent, Delete, DeletedRow, Resolve
from tensorcast_bus.subjects import Subjects
from tensorcast_services.effect import Announce, Answered, Call, Effect, Origin, Reply, Save
from tensorcast_services.runtime import Limits, Runtime, Saver
from tests.support.slack import SLACK_S

EVENT = Subjects.event("artifact", "all")


class Note(Struct, frozen=True):
    text: str


class Script:
    """A core that answers by a function and remembers what it saw."""

    def __init__(self, answer: Callable[[Struct, Origin], Sequence[Effect]]) -> None:
        self.seen: list[Struct] = []
        self.ticks: list[int] = []
        self._answer = answer

    def step(self, event: Struct, origin: Origin, now_ms: int) -> Sequence[Effect]:
        self.seen.append(event)
        return self._answer(event, origin)

    def tick(self, now_ms: int) -> Sequence[Effect]:
        self.ticks.append(now_ms)
        return ()


def caller(budget_ms: int = 5_000) -> Caller:
    return Caller("test", "trace", budget_ms, "")


async def until(condition: Callable[[], bool]) -> None:
    """Lets other tasks run until the condition holds."""
    async with asyncio.timeout(SLACK_S):
        while not condition():  # noqa: ASYNC110  it yields to the loop, nothing waits for time
            await asyncio.sleep(0)


def save(key: str) -> Save:
    return Save("table", (key,), None)


@asynccontextmanager
async def running(
    core: Script,
    hub: LoopbackHub,
    *,
    save: Saver | None = None,
    perform: Callable[[Effect], None] | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Runtime]:
    runtime = Runtime(core, hub.bus("service"), save=save, perform=perform, limits=limits)
    task = asyncio.create_task(runtime.run())
    try:
        yield runtime
    finally:
        runtime.stop()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_reply_leaves_only_after_its_batch_is_saved() -> None:
    may_save = asyncio.Event()
    saved: list[Sequence[Save]] = []

    async def slow_save(saves: Sequence[Save]) -> None:
        await may_save.wait()
        saved.append(saves)

    core = Script(lambda event, origin: [save("x"), Reply(origin.ticket, DeletedRow("x", 1))])
    async with running(core, LoopbackHub(), save=slow_save) as runtime:
        asked = asyncio.create_task(runtime.ask(Delete("x"), caller()))
        await until(lambda: bool(core.seen))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked.done()
        may_save.set()
        assert await asked == DeletedRow("x", 1)
        assert [list(part) for part in saved] == [[save("x")]]


async def test_requests_that_arrive_during_a_save_share_the_next_one() -> None:
    may_save = asyncio.Event()
    batches: list[int] = []

    async def slow_save(saves: Sequence[Save]) -> None:
        await may_save.wait()
        batches.append(len(saves))

    core = Script(lambda event, origin: [save("x"), Reply(origin.ticket, DeletedRow("x", 1))])
    async with running(core, LoopbackHub(), save=slow_save) as runtime:
        first = asyncio.create_task(runtime.ask(Delete("first"), caller()))
        await until(lambda: bool(core.seen))
        rest = [asyncio.create_task(runtime.ask(Delete(f"n{i}"), caller())) for i in range(40)]
        await until(lambda: runtime.waiting == 40)
        may_save.set()
        await asyncio.gather(first, *rest)
        assert batches == [1, 40]


async def test_a_failed_save_answers_nobody_with_success_and_ends_the_process() -> None:
    async def no_save(saves: Sequence[Save]) -> None:
        raise OSError("disk full")

    core = Script(lambda event, origin: [save("x"), Reply(origin.ticket, DeletedRow("x", 1))])
    runtime = Runtime(core, LoopbackHub().bus("service"), save=no_save)
    task = asyncio.create_task(runtime.run())
    with pytest.raises(Unavailable, match="disk full"):
        await runtime.ask(Delete("x"), caller())
    with pytest.raises(OSError, match="disk full"):
        await task


async def test_an_error_of_the_core_reaches_the_caller_as_itself() -> None:
    core = Script(lambda event, origin: [Reply(origin.ticket, NotFound("no x", art_id="x"))])
    async with running(core, LoopbackHub()) as runtime:
        with pytest.raises(NotFound, match="no x"):
            await runtime.ask(Resolve("x"), caller())


async def test_a_request_that_nobody_answers_ends_with_its_budget() -> None:
    core = Script(lambda event, origin: [])
    async with running(core, LoopbackHub()) as runtime:
        async with asyncio.timeout(SLACK_S):
            with pytest.raises(Timeout, match="resolve within 30 ms"):
                await runtime.ask(Resolve("x"), caller(30))


async def test_a_request_whose_budget_ended_in_the_inbox_takes_no_effect() -> None:
    core = Script(lambda event, origin: [Reply(origin.ticket, DeletedRow("x", 1))])
    runtime = Runtime(core, LoopbackHub().bus("service"))
    with pytest.raises(Timeout):
        await runtime.ask(Delete("late"), caller(10))
    assert runtime.waiting == 1  # it lies there unread, since nobody runs the runtime yet
    task = asyncio.create_task(runtime.run())
    assert await runtime.ask(Delete("in time"), caller()) == DeletedRow("x", 1)
    runtime.stop()
    await task
    assert core.seen == [Delete("in time")]


async def test_a_full_inbox_refuses_requests_and_drops_offers() -> None:
    core = Script(lambda event, origin: [])
    runtime = Runtime(core, LoopbackHub().bus("service"), limits=Limits(inbox_rows_max=2))
    assert runtime.offer(Note("1"))
    assert runtime.offer(Note("2"))
    assert not runtime.offer(Note("3"))
    with pytest.raises(Unavailable, match="2 requests waiting"):
        await runtime.ask(Resolve("x"), caller())


async def test_no_tick_runs_ahead_of_an_unread_event() -> None:
    now = [1_000]
    core = Script(lambda event, origin: [])
    hub = LoopbackHub()
    runtime = Runtime(core, hub.bus("service"), clock_ms=lambda: now[0], limits=Limits(batch_rows_max=1, tick_ms=10))
    runtime.post(Note("first"))
    runtime.post(Note("unread"))
    now[0] = 9_000
    task = asyncio.create_task(runtime.run())
    await until(lambda: bool(core.ticks))
    assert core.ticks[0] == 1_000
    runtime.stop()
    await task


async def test_announcements_leave_in_order() -> None:
    hub = LoopbackHub()
    got: list[int] = []
    done = asyncio.Event()

    def on_event(body: ArtifactEvent, _caller: Caller) -> None:
        got.append(body.sequence)
        if len(got) == 100:
            done.set()

    await hub.bus("watcher").subscribe(EVENT, ArtifactEvent, on_event)
    core = Script(lambda event, origin: [Announce(EVENT, ArtifactEvent(1, i, "hello")) for i in range(100)])
    async with running(core, hub) as runtime:
        runtime.post(Note("go"))
        async with asyncio.timeout(SLACK_S):
            await done.wait()
    assert got == list(range(100))


async def test_a_call_comes_back_as_an_answer_and_its_failure_too() -> None:
    hub = LoopbackHub()

    async def serve(body: Delete, _caller: Caller) -> Struct:
        if body.art_id == "gone":
            raise NotFound("no such artifact")
        return DeletedRow(body.art_id, 7)

    await hub.bus("store").serve(Subjects.global_store_all(), Delete, serve)
    ended = asyncio.Event()

    def answer(event: Struct, origin: Origin) -> Sequence[Effect]:
        if isinstance(event, Answered):
            if len([e for e in core.seen if isinstance(e, Answered)]) == 2:
                ended.set()
            return []
        subject = Subjects.global_store("delete")
        return [
            Call(1, subject, Delete("here"), DeletedRow, 5_000),
            Call(2, subject, Delete("gone"), DeletedRow, 5_000),
        ]

    core = Script(answer)
    async with running(core, hub) as runtime:
        runtime.post(Note("go"))
        async with asyncio.timeout(SLACK_S):
            await ended.wait()
    results = {e.token: e.result for e in core.seen if isinstance(e, Answered)}
    assert results[1] == DeletedRow("here", 7)
    assert isinstance(results[2], NotFound)


async def test_effects_of_the_service_itself_go_to_its_perform() -> None:
    performed: list[Effect] = []
    core = Script(lambda event, origin: [Note("do this"), Reply(origin.ticket, DeletedRow("x", 1))])
    async with running(core, LoopbackHub(), perform=performed.append) as runtime:
        await runtime.ask(Delete("x"), caller())
    assert performed == [Note("do this")]


async def test_who_waits_at_the_end_is_told_so() -> None:
    core = Script(lambda event, origin: [])
    runtime = Runtime(core, LoopbackHub().bus("service"))
    task = asyncio.create_task(runtime.run())
    asked = asyncio.create_task(runtime.ask(Resolve("x"), caller()))
    await until(lambda: bool(core.seen))
    runtime.stop()
    await task
    with pytest.raises(Unavailable, match="stopping"):
        await asked
