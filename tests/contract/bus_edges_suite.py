"""What every bus must do with publications, at its limits, and at its end. Subclass BusEdgesSuite, as BusSuite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest

from tensorcast_bus.bus import Caller
from tensorcast_bus.errors import (
    Invalid,
    MessageTooLarge,
    NotConnected,
    Unavailable,
)
from tensorcast_bus.limits import CLOSE_S_MAX, MESSAGE_BYTES_MAX
from tensorcast_bus.messages import (
    ArtifactEvent,
    Delete,
    DeletedRow,
    Heartbeat,
    ListWorkers,
    Worker,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects
from tests.contract.bus_suite import BUDGET_MS, DELETE, Connect, deleted
from tests.support.slack import SLACK_S


class BusEdgesSuite:
    """`connect(name)` gives a bus that meets the others of the same test, and is closed after it."""

    async def test_publications_reach_every_subscriber_in_order(self, connect: Connect) -> None:
        here = await connect("global_store")
        got: list[list[int]] = [[], []]
        all_came = asyncio.Event()

        def taker(seen: list[int]) -> Callable[[ArtifactEvent, Caller], None]:
            def take(body: ArtifactEvent, caller: Caller) -> None:
                assert caller.sender == "global_store"
                seen.append(body.sequence)
                if all(len(each) == 500 for each in got):
                    all_came.set()

            return take

        for number, seen in enumerate(got):
            there = await connect(f"storage-{number}")
            await there.subscribe(Subjects.events("artifact"), ArtifactEvent, taker(seen))
        for sequence in range(500):
            await here.publish(Subjects.event("artifact", "00"), ArtifactEvent(1, sequence, "hello"))
        await asyncio.wait_for(all_came.wait(), SLACK_S)
        assert got == [list(range(500))] * 2

    async def test_a_failing_subscriber_and_a_foreign_publication_do_not_stop_the_next_one(
        self, connect: Connect
    ) -> None:
        here, there = await connect("global_store"), await connect("storage-a")
        seen: asyncio.Queue[int] = asyncio.Queue()

        def take(body: ArtifactEvent, caller: Caller) -> None:
            seen.put_nowait(body.sequence)
            raise ValueError("this one always fails")

        await there.subscribe(Subjects.events("artifact"), ArtifactEvent, take)
        subject = Subjects.event("artifact", "00")
        await here.publish(subject, ArtifactEvent(1, 1, "hello"))
        await here.publish(subject, Delete("not an event"))
        await here.publish(subject, ArtifactEvent(1, 2, "hello"))
        assert [await asyncio.wait_for(seen.get(), SLACK_S) for _ in range(2)] == [1, 2]

    async def test_settle_means_that_what_was_sent_before_has_been_handed_over(self, connect: Connect) -> None:
        here = await connect("global_store")
        seen: list[int] = []

        def take(body: Heartbeat, caller: Caller) -> None:
            seen.append(body.sequence)

        await here.subscribe(Subjects.heartbeats(), Heartbeat, take)
        for sequence in range(300):
            beat = Heartbeat("storage-a", "storage", "a", 1, sequence, 2, "0.1.0", 3)
            await here.publish(Subjects.heartbeat("storage", "storage-a"), beat)
        assert await here.settle(budget_ms=BUDGET_MS)
        assert seen == list(range(300))

    async def test_a_message_over_the_limit_is_refused_by_its_sender(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        asked: list[str] = []

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            asked.append(body.art_id)
            return DeletedRow("y" * (MESSAGE_BYTES_MAX if body.art_id == "large answer" else 1), 1)

        await there.serve(DELETE, Delete, handler)
        huge = Delete("x" * MESSAGE_BYTES_MAX)
        with pytest.raises(MessageTooLarge, match=str(MESSAGE_BYTES_MAX)) as caught:
            await here.request(DELETE, huge, answer=DeletedRow, budget_ms=BUDGET_MS)
        assert caught.value.context["kind"] == "delete"
        with pytest.raises(MessageTooLarge):
            await here.publish(DELETE, huge)
        with pytest.raises(MessageTooLarge) as caught:
            await here.request(DELETE, Delete("large answer"), answer=DeletedRow, budget_ms=BUDGET_MS)
        assert caught.value.context["kind"] == "DeletedRow"
        assert asked == ["large answer"]

    async def test_a_message_just_under_the_limit_passes_both_ways(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        await there.serve(DELETE, Delete, deleted)
        large = "x" * (MESSAGE_BYTES_MAX - 200)
        answer = await here.request(DELETE, Delete(large), answer=DeletedRow, budget_ms=BUDGET_MS)
        assert answer.art_id == large

    async def test_nothing_mutable_is_shared_between_the_two_sides(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        figures = {"used_bytes": 1}
        worker = Worker("storage-a", "storage", "a", 1, 2, "0.1.0", 3, 4, True, figures)

        async def handler(body: ListWorkers, caller: Caller) -> WorkerList:
            return WorkerList((worker,))

        await there.serve(Subjects.global_store("workers"), ListWorkers, handler)
        got = await here.request(
            Subjects.global_store("workers"), ListWorkers(), answer=WorkerList, budget_ms=BUDGET_MS
        )
        got.workers[0].figures["used_bytes"] = 2
        assert figures == {"used_bytes": 1}

    @pytest.mark.parametrize("subject", ["tc.v1.gs.*", "tc.v1.>", "", "tc v1", "a\r\nPUB b 0\r\n"])
    async def test_nobody_is_asked_or_told_at_a_pattern(self, connect: Connect, subject: str) -> None:
        here = await connect("gateway-0")
        with pytest.raises(Invalid):
            await here.request(subject, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)
        with pytest.raises(Invalid):
            await here.publish(subject, Delete("x"))

    @pytest.mark.parametrize("subject", ["", "tc.>.v1", "tc v1.*", "a\r\nSUB > 1"])
    async def test_what_is_no_pattern_can_be_neither_served_nor_subscribed(
        self, connect: Connect, subject: str
    ) -> None:
        here = await connect("gateway-0")
        with pytest.raises(Invalid):
            await here.serve(subject, Delete, deleted)

    @pytest.mark.parametrize("budget_ms", [0, -1, 1 << 60])
    async def test_a_budget_has_limits(self, connect: Connect, budget_ms: int) -> None:
        here = await connect("gateway-0")
        with pytest.raises(Invalid, match="budget"):
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=budget_ms)

    async def test_a_name_that_is_no_token_is_refused(self, connect: Connect) -> None:
        for name in ("", "a.b", "a b", "*"):
            with pytest.raises(Invalid):
                await connect(name)

    async def test_closing_ends_waiting_requests_handlers_and_subscriptions(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        came, never = asyncio.Event(), asyncio.Event()
        cancelled: list[str] = []

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            came.set()
            try:
                await never.wait()
            except asyncio.CancelledError:
                cancelled.append(body.art_id)
                raise
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        asking = asyncio.create_task(here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
        await asyncio.wait_for(came.wait(), SLACK_S)
        await here.close()
        with pytest.raises(NotConnected, match="closed"):
            await asking
        started = time.monotonic()
        await there.close()
        await there.close()
        assert time.monotonic() - started < CLOSE_S_MAX + SLACK_S
        assert cancelled == ["x"]
        assert not here.connected
        for use in (
            here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS),
            here.publish(DELETE, Delete("x")),
            here.serve(DELETE, Delete, deleted),
        ):
            with pytest.raises(NotConnected, match="closed"):
                await use
        another = await connect("py-1")
        with pytest.raises(Unavailable):
            await another.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)

    async def test_closing_lets_a_handler_finish_that_is_about_to(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        came, release = asyncio.Event(), asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            came.set()
            await release.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        asking = asyncio.create_task(here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
        await asyncio.wait_for(came.wait(), SLACK_S)
        closing = asyncio.create_task(there.close())
        asyncio.get_running_loop().call_soon(release.set)
        assert await asking == DeletedRow("x", 1)
        await closing

    async def test_two_types_of_one_kind_cannot_be_served(self, connect: Connect) -> None:
        class Other(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
            art_id: str

        with pytest.raises(TypeError, match="same kind"):
            await (await connect("global_store")).serve(DELETE, Delete | Other, deleted)
