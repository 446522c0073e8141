"""The age of a backlog: what a process slept through, until the backlog is read."""

from __future__ import annotations

import asyncio

import pytest

from tensorcast_bus.nats.stall import TICK_S, Stall
from tensorcast_bus.nats.watchdog import Watchdog
from tests.support.slack import SLACK_S


def test_a_loop_that_keeps_time_ages_nothing() -> None:
    stall = Stall(0.0)
    for tick in range(1, 50):
        assert not stall.tick(tick * TICK_S * 1.2)
        assert stall.age_s(tick * TICK_S * 1.2 + 0.05) == 0.0


def test_a_message_read_before_the_first_tick_after_a_stall_is_aged_already() -> None:
    assert Stall(0.0).age_s(6.0) == pytest.approx(6.0 - TICK_S)


def test_everything_is_aged_until_the_backlog_is_read() -> None:
    stall = Stall(0.0)
    assert stall.tick(6.0)
    assert stall.age_s(6.05) == pytest.approx(6.0 - TICK_S)
    assert not stall.tick(6.1)
    assert stall.age_s(6.15) == pytest.approx(6.0 - TICK_S)
    stall.backlog_read()
    assert stall.age_s(6.15) == 0.0


def test_two_stalls_before_the_backlog_is_read_add_up() -> None:
    stall = Stall(0.0)
    stall.tick(2.0)
    stall.tick(5.0)
    assert stall.age_s(5.0) == pytest.approx(5.0 - 2 * TICK_S)


class Client:
    """A client for the watchdog: alive while `answers` has True left."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.rebuilt: asyncio.Queue[str] = asyncio.Queue()

    async def probe(self, seconds: float) -> bool:
        return self.answers.pop(0) if self.answers else True

    async def rebuild(self, why: str) -> None:
        self.rebuilt.put_nowait(why)


async def first_rebuild(client: Client, watchdog: Watchdog) -> str:
    watching = asyncio.create_task(watchdog.run())
    try:
        return await asyncio.wait_for(client.rebuilt.get(), 10.0 + SLACK_S)
    finally:
        watching.cancel()


async def test_two_failed_probes_in_a_row_have_a_client_replaced() -> None:
    client = Client(False, True, False, False)
    why = await first_rebuild(client, Watchdog(probe=client.probe, rebuild=client.rebuild, interval_s=0.0, probe_s=0.0))
    assert client.answers == [] and "did not come back" in why


async def test_a_client_that_says_it_is_dead_is_replaced_without_a_probe() -> None:
    client = Client()
    watchdog = Watchdog(probe=client.probe, rebuild=client.rebuild, interval_s=3600.0)
    watchdog.report_dead("it was closed")
    assert await first_rebuild(client, watchdog) == "it was closed"
