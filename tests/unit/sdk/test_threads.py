"""Blocking calls in threads of their own: deadlines that count the wait, cancelled awaits, and what is kept alive."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from tensorcast import threads
from tensorcast.deadline import Deadline
from tensorcast.errors import Timeout
from tensorcast.threads import THREADS_MAX, Threads, in_thread
from tests.support.slack import SLACK_S

WAIT_S_MAX = 30.0


class Gate:
    """A call that is entered, and ends when it is let go."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.left = False
        self.ms: int | None = None

    def call(self, ms: int) -> str:
        self.ms = ms
        self.entered.set()
        assert self.open.wait(WAIT_S_MAX)
        self.left = True
        return "done"

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, WAIT_S_MAX)


def deadline(ms: int = 30_000) -> Deadline:
    return Deadline(ms, "test")


async def test_more_calls_than_a_loop_has_threads_run_at_once() -> None:
    meeting = threading.Barrier(100)
    found = await asyncio.gather(*(in_thread(lambda _: meeting.wait(WAIT_S_MAX), deadline()) for _ in range(100)))
    assert sorted(found) == list(range(100)) and THREADS_MAX > 100


async def test_a_cancelled_call_that_reaches_memory_is_awaited_to_its_end_however_often_it_is_cancelled() -> None:
    gate = Gate()
    task = asyncio.create_task(in_thread(gate.call, deadline(), to_its_end=True))
    await gate.until_entered()
    for _ in range(5):
        task.cancel()
        assert not (await asyncio.wait({task}, timeout=0.02))[0]
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gate.left


async def test_a_cancelled_call_that_reaches_nothing_is_given_up_at_once_and_told_by_its_clock() -> None:
    gate = Gate()
    task = asyncio.create_task(in_thread(gate.call, deadline()))
    await gate.until_entered()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not gate.left and gate.ms is not None
    with pytest.raises(Timeout):
        Deadline(gate.ms, "inner").left_ms("working")
    gate.open.set()


async def test_waiting_for_a_thread_counts_against_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_shared", Threads(1))
    gate = Gate()
    called: list[int] = []
    first = asyncio.create_task(in_thread(gate.call, deadline()))
    await gate.until_entered()
    started = time.monotonic()
    with pytest.raises(Timeout, match="threads_max"):
        await in_thread(called.append, deadline(100))
    assert time.monotonic() - started < 0.1 + SLACK_S
    cancelled = asyncio.create_task(in_thread(called.append, deadline(), to_its_end=True))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    gate.open.set()
    assert await first == "done"
    assert await in_thread(lambda ms: Deadline(ms, "inner").deadline_ms, deadline(5_000)) == 5_000
    assert called == []


async def test_the_clock_of_a_call_starts_before_its_thread() -> None:
    whole = deadline(10_000)
    whole.running.started -= 9.0
    left = await in_thread(lambda ms: Deadline(ms, "inner").left_ms("working"), whole)
    assert left <= 1_000


class Held:
    """Something that can be watched."""


def _gone(ref: Callable[[], object]) -> bool:
    until = time.monotonic() + SLACK_S
    while ref() is not None and time.monotonic() < until:
        time.sleep(0.005)  # a thread drops what it held just after the loop was told
    return ref() is None


async def test_neither_arguments_nor_results_nor_errors_are_kept_by_threads_or_rings() -> None:
    def fails(_: int) -> None:
        raise ValueError("on purpose")

    async def passing() -> weakref.ref[Held]:
        held = Held()
        assert await in_thread(lambda _: held, deadline()) is held
        return weakref.ref(held)

    async def failing() -> weakref.ref[Held]:
        held = Held()
        try:
            await in_thread(fails, deadline())
        except ValueError:
            pass
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert _gone(await passing())
        assert _gone(await failing())
    finally:
        gc.enable()


async def test_a_forked_child_has_threads_of_its_own() -> None:
    await in_thread(lambda _: None, deadline())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if _in_new_loop() == "done" else 1
        finally:
            os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _in_new_loop() -> str:
    asyncio._set_running_loop(None)  # the parent's loop was running when it forked
    return asyncio.new_event_loop().run_until_complete(in_thread(lambda _: "done", deadline(5_000)))
