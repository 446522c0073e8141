"""Reports: when one is due, what goes into it, and what is told after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from tensorcast_bus.errors import Invalid, StaleFence
from tensorcast_bus.loopback import LoopbackHub
from tensorcast_bus.messages import ArtifactEvent, Dropped, DropReplica, Report, Reported
from tensorcast_bus.serving import Caller
from tensorcast_bus.subjects import Subjects
from tensorcast_services.storage.core.events import ReportEnded
from tensorcast_services.storage.core.holdings import Claim
from tensorcast_services.storage.link import Link
from tensorcast_services.storage.reports import Reporter
from tests.support.slack import SLACK_S


class Desk:
    """A global store that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Report | DropReplica] = []
        self.incarnation = 1
        self.refused: tuple[str, ...] = ()
        self.claims: list[Claim] = [Claim("x", 1, "aa", "host", 4, 1)]
        self.ended: list[ReportEnded] = []
        self.on_report: Callable[[], None] = lambda: None
        self.stale = False
        self.trouble: list[int] = []  # numbers of messages that fail
        self.heard = 0
        self.slow: dict[str, asyncio.Event] = {}  # by id: until when its report waits for an answer
        self.news = asyncio.Event()

    async def answer(self, body: msgspec.Struct, _caller: Caller) -> msgspec.Struct:
        assert isinstance(body, Report | DropReplica)
        if self.stale:
            raise StaleFence("a newer one lives")
        self.heard += 1
        if self.heard in self.trouble:
            self.on_report()
            raise Invalid("not now")  # which the link does not repeat by itself
        if isinstance(body, Report) and body.claims and body.claims[0].art_id in self.slow:
            self.news.set()
            await self.slow[body.claims[0].art_id].wait()
        self.told.append(body)
        self.news.set()
        if isinstance(body, DropReplica):
            return Dropped(granted=True)
        self.on_report()
        return Reported(self.refused, self.incarnation, 10)

    def end(self, ended: ReportEnded) -> None:
        self.ended.append(ended)
        self.news.set()

    async def until_ended(self) -> ReportEnded:
        async with asyncio.timeout(SLACK_S):
            while not self.ended:
                self.news.clear()
                await self.news.wait()
        return self.ended[0]

    async def until(self, count: int) -> list[Report | DropReplica]:
        async with asyncio.timeout(SLACK_S):
            while len(self.told) < count:
                self.news.clear()
                await self.news.wait()
        return self.told


@pytest.fixture
async def desk() -> AsyncIterator[tuple[Desk, Reporter]]:
    hub, found = LoopbackHub(), Desk()
    await hub.bus("global_store").serve(Subjects.global_store_all(), Report | DropReplica, found.answer)
    link = Link(hub.bus("storage-a"), node="a", process="storage-a", incarnation=7)
    reporter = Reporter(
        link,
        node="a",
        process="storage-a",
        incarnation=7,
        claims=lambda: list(found.claims),
        ended=found.end,
    )
    running = asyncio.create_task(reporter.run())
    yield found, reporter
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_full_report_comes_in_parts_that_fit_a_message(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    found.claims = [Claim(f"a{i}", i, "aa", "host", 4, 1) for i in range(1201)]
    found.refused = ("a3",)
    reporter.full("test")
    parts = [part for part in await found.until(3) if isinstance(part, Report)]
    assert [len(part.claims) for part in parts] == [500, 500, 201]
    assert [(part.first, part.last, part.full) for part in parts] == [
        (True, False, True),
        (False, False, True),
        (False, True, True),
    ]
    ended = await found.until_ended()
    assert ended.refused == ("a3", "a3", "a3") and len(ended.claimed) == 1201


async def test_an_empty_storage_reports_too(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    found.claims = []
    reporter.full("test")
    (report,) = await found.until(1)
    assert isinstance(report, Report) and report.first and report.last and not report.claims


async def test_what_changed_during_a_report_is_told_after_it(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    found.claims = [Claim("x", 1, "aa", "host", 4, 1), Claim("x", 1, "aa", "file", 4, 1)]

    def meanwhile() -> None:
        found.claims = [Claim("x", 1, "aa", "file", 4, 1), Claim("new", 2, "bb", "host", 4, 1)]
        found.on_report = lambda: None

    found.on_report = meanwhile
    reporter.full("test")
    _, extra, drop = await found.until(3)
    assert isinstance(extra, Report) and [claim.art_id for claim in extra.claims] == ["new"] and not extra.full
    assert drop == DropReplica("x", "host", "a", "storage-a", 7)


async def test_changes_that_could_not_be_told_after_a_report_make_another_one_due(
    desk: tuple[Desk, Reporter],
) -> None:
    found, reporter = desk

    def meanwhile() -> None:
        found.claims = [Claim("new", 2, "bb", "host", 4, 1)]

    found.on_report, found.trouble = meanwhile, [2]
    reporter.full("test")
    first, again = (await found.until(2))[:2]
    assert isinstance(first, Report) and isinstance(again, Report) and again.full
    assert [claim.art_id for claim in again.claims] == ["new"]


async def test_a_fact_that_is_said_again_while_it_is_told_is_told_again(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk

    def again() -> None:
        found.on_report = lambda: None
        reporter.held("x")

    found.on_report = again
    reporter.held("x")
    assert len(await found.until(2)) == 2


async def test_a_fact_that_is_said_during_a_report_is_told_after_it(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk

    def meanwhile() -> None:
        found.on_report = lambda: None
        reporter.held("x")

    found.on_report = meanwhile
    reporter.held("x")
    reporter.full("test")
    report, fact = await found.until(2)
    assert isinstance(report, Report) and report.full and isinstance(fact, Report) and not fact.full


async def test_a_fact_that_could_not_be_told_is_told_later(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    found.trouble = [1]
    reporter.held("x")
    assert isinstance((await found.until(1))[0], Report)


async def test_a_gap_a_new_incarnation_and_nothing_else_make_a_report_due(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    for incarnation, sequence in ((1, 11), (1, 12), (1, 12), (1, 13)):
        reporter.follow(ArtifactEvent(incarnation, sequence, "hello"))
    reporter.held("x")
    assert isinstance((await found.until(1))[0], Report) and not found.told[0].full  # type: ignore[union-attr]
    reporter.follow(ArtifactEvent(1, 15, "hello"))
    assert (await found.until(2))[1].full  # type: ignore[union-attr]
    found.incarnation = 2
    reporter.follow(ArtifactEvent(2, 1, "hello"))
    assert (await found.until(3))[2].full  # type: ignore[union-attr]


async def test_a_single_fact_that_meets_a_new_global_store_leads_to_a_full_report(
    desk: tuple[Desk, Reporter],
) -> None:
    found, reporter = desk
    reporter.follow(ArtifactEvent(1, 10, "hello"))
    found.incarnation = 2
    reporter.held("x")
    told = await found.until(2)
    assert [part.full for part in told if isinstance(part, Report)] == [False, True]


async def test_a_lost_file_is_told_unless_it_is_a_replica_again(desk: tuple[Desk, Reporter]) -> None:
    found, reporter = desk
    reporter.lost("x", "file")
    assert (await found.until(1))[0] == DropReplica("x", "file", "a", "storage-a", 7)
    found.claims = [Claim("x", 2, "aa", "file", 4, 1)]
    reporter.lost("x", "file")
    reporter.held("x")
    assert isinstance((await found.until(2))[1], Report)


async def test_a_replaced_incarnation_ends() -> None:
    hub, found = LoopbackHub(), Desk()
    found.stale = True
    await hub.bus("global_store").serve(Subjects.global_store_all(), Report | DropReplica, found.answer)
    link = Link(hub.bus("storage-a"), node="a", process="storage-a", incarnation=7)
    reporter = Reporter(link, node="a", process="storage-a", incarnation=7, claims=list, ended=found.end)
    reporter.full("test")
    with pytest.raises(StaleFence):
        async with asyncio.timeout(SLACK_S):
            await reporter.run()


async def test_what_a_drop_depends_on_is_told_before_it_though_another_fact_is_slow(
    desk: tuple[Desk, Reporter],
) -> None:
    found, reporter = desk
    found.claims = [Claim("y", 1, "bb", "host", 4, 1), *(Claim("x", 2, "aa", tier, 4, 1) for tier in ("host", "disk"))]
    found.slow["y"] = asyncio.Event()
    reporter.held("y")
    async with asyncio.timeout(SLACK_S):
        while not found.heard:
            found.news.clear()
            await found.news.wait()
    reporter.held("x")
    await reporter.settle("x", budget_ms=int(SLACK_S * 1000))
    (report,) = found.told
    assert isinstance(report, Report) and [claim.tier for claim in report.claims] == ["host", "disk"]
    found.slow["y"].set()
    await found.until(3)
