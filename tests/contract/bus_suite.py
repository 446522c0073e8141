"""What every bus must do with requests. Subclass BusSuite and give it a fixture `connect`; see also bus_edges_suite."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import (
    NotFound,
    RemoteProtocolError,
    Timeout,
    Unavailable,
)
from tensorcast_bus.limits import HANDLERS_INFLIGHT_MAX
from tensorcast_bus.messages import (
    Delete,
    DeletedRow,
    GlobalStoreRequest,
    Resolve,
    Resolved,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects
from tests.support.slack import SLACK_S

Connect = Callable[[str], Awaitable[Bus]]
DELETE = Subjects.global_store("delete")
BUDGET_MS = 20_000


async def deleted(body: Delete, caller: Caller) -> DeletedRow:
    return DeletedRow(body.art_id, 1)


class BusSuite:
    """`connect(name)` gives a bus that meets the others of the same test, and is closed after it."""

    async def test_a_request_gets_the_answer_of_its_handler(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        await there.serve(Subjects.global_store_all(), GlobalStoreRequest, deleted)
        answer = await here.request(DELETE, Delete("llama@1"), answer=DeletedRow, budget_ms=BUDGET_MS)
        assert answer == DeletedRow("llama@1", 1)

    async def test_the_handler_learns_who_asks_and_how_much_time_is_left(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        callers: list[Caller] = []

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            callers.append(caller)
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS, idem="i-1", trace_id="t-1")
        assert (callers[0].sender, callers[0].idem, callers[0].trace_id) == ("gateway-0", "i-1", "t-1")
        assert 0 < callers[0].budget_ms <= BUDGET_MS

    async def test_an_error_crosses_with_its_class_text_and_facts(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")

        async def handler(body: Resolve, caller: Caller) -> Resolved:
            raise NotFound(f"no artifact {body.art_id}", art_id=body.art_id)

        await there.serve(Subjects.global_store("resolve"), Resolve, handler)
        with pytest.raises(NotFound, match="no artifact x") as caught:
            await here.request(Subjects.global_store("resolve"), Resolve("x"), answer=Resolved, budget_ms=BUDGET_MS)
        assert caught.value.context == {"art_id": "x"}

    async def test_a_bug_in_a_handler_is_an_answer_and_not_a_timeout(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            raise ZeroDivisionError

        await there.serve(DELETE, Delete, handler)
        with pytest.raises(RemoteProtocolError, match="global_store"):
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)

    async def test_an_answer_of_another_kind_is_refused(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        await there.serve(DELETE, Delete, deleted)
        with pytest.raises(RemoteProtocolError, match="DeletedRow"):
            await here.request(DELETE, Delete("x"), answer=WorkerList, budget_ms=BUDGET_MS)

    async def test_a_request_of_another_kind_than_its_subject_is_not_run(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        await there.serve(Subjects.global_store_all(), GlobalStoreRequest, deleted)
        with pytest.raises(RemoteProtocolError, match="'resolve'"):
            await here.request(Subjects.global_store("resolve"), Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)

    async def test_a_silent_handler_is_a_timeout_that_names_subject_and_budget(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        never = asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            await never.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        started = time.monotonic()
        with pytest.raises(Timeout, match="within 200 ms") as caught:
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=200)
        assert time.monotonic() - started < 0.2 + SLACK_S
        assert caught.value.context == {"subject": DELETE, "budget_ms": 200}

    async def test_a_late_answer_reaches_nobody_else(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        late = asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            if body.art_id == "slow":
                await late.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        with pytest.raises(Timeout):
            await here.request(DELETE, Delete("slow"), answer=DeletedRow, budget_ms=100)
        late.set()
        for art_id in ("a", "b"):
            answer = await here.request(DELETE, Delete(art_id), answer=DeletedRow, budget_ms=BUDGET_MS)
            assert answer.art_id == art_id

    async def test_a_subject_that_nobody_serves_is_unavailable_at_once(self, connect: Connect) -> None:
        here = await connect("gateway-0")
        started = time.monotonic()
        with pytest.raises(Unavailable, match=DELETE) as caught:
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=600_000)
        assert type(caught.value) is Unavailable
        assert time.monotonic() - started < SLACK_S

    async def test_a_subject_is_unserved_again_after_unsubscribing(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        served = await there.serve(DELETE, Delete, deleted)
        await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)
        await served.unsubscribe()
        await served.unsubscribe()
        assert await there.settle(budget_ms=BUDGET_MS)
        with pytest.raises(Unavailable):
            await here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS)

    async def test_requests_are_handled_side_by_side(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        second_came = asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            if body.art_id == "first":
                await second_came.wait()
            second_came.set()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        answers = await asyncio.gather(
            here.request(DELETE, Delete("first"), answer=DeletedRow, budget_ms=BUDGET_MS),
            here.request(DELETE, Delete("second"), answer=DeletedRow, budget_ms=BUDGET_MS),
        )
        assert [answer.art_id for answer in answers] == ["first", "second"]

    async def test_a_request_beyond_the_limit_of_handlers_is_refused_and_not_queued(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        release, running = asyncio.Event(), 0
        full = asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            nonlocal running
            running += 1
            if running == HANDLERS_INFLIGHT_MAX:
                full.set()
            await release.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        waiting = [
            asyncio.create_task(here.request(DELETE, Delete(str(n)), answer=DeletedRow, budget_ms=BUDGET_MS))
            for n in range(HANDLERS_INFLIGHT_MAX)
        ]
        await asyncio.wait_for(full.wait(), SLACK_S)
        with pytest.raises(Unavailable, match=str(HANDLERS_INFLIGHT_MAX)):
            await here.request(DELETE, Delete("one more"), answer=DeletedRow, budget_ms=BUDGET_MS)
        release.set()
        assert len(await asyncio.gather(*waiting)) == HANDLERS_INFLIGHT_MAX
        await here.request(DELETE, Delete("again"), answer=DeletedRow, budget_ms=BUDGET_MS)

    async def test_a_queue_group_answers_every_request_once_and_shares_the_work(self, connect: Connect) -> None:
        here = await connect("py-1")
        asked: dict[str, list[str]] = {"gateway-0": [], "gateway-1": []}
        for name, seen in asked.items():
            member = await connect(name)

            async def handler(body: Delete, caller: Caller, seen: list[str] = seen) -> DeletedRow:
                seen.append(body.art_id)
                return DeletedRow(body.art_id, 1)

            await member.serve(Subjects.gateway_all(), Delete, handler, queue="gw")
        wanted = [str(n) for n in range(200)]
        subject = Subjects.gateway("py-1", "delete")
        await asyncio.gather(
            *(here.request(subject, Delete(n), answer=DeletedRow, budget_ms=BUDGET_MS) for n in wanted)
        )
        assert sorted(asked["gateway-0"] + asked["gateway-1"]) == sorted(wanted)
        assert all(asked.values())

    async def test_a_handler_may_ask_others(self, connect: Connect) -> None:
        here, gateway, store = await connect("py-1"), await connect("gateway-0"), await connect("global_store")

        async def forward(body: Delete, caller: Caller) -> DeletedRow:
            return await gateway.request(DELETE, body, answer=DeletedRow, budget_ms=caller.budget_ms)

        await store.serve(DELETE, Delete, deleted)
        await gateway.serve(Subjects.gateway_all(), Delete, forward, queue="gw")
        answer = await here.request(
            Subjects.gateway("py-1", "delete"), Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS
        )
        assert answer == DeletedRow("x", 1)

    async def test_a_cancelled_request_leaves_the_bus_usable(self, connect: Connect) -> None:
        here, there = await connect("gateway-0"), await connect("global_store")
        came, release = asyncio.Event(), asyncio.Event()

        async def handler(body: Delete, caller: Caller) -> DeletedRow:
            came.set()
            await release.wait()
            return DeletedRow(body.art_id, 1)

        await there.serve(DELETE, Delete, handler)
        asking = asyncio.create_task(here.request(DELETE, Delete("x"), answer=DeletedRow, budget_ms=BUDGET_MS))
        await asyncio.wait_for(came.wait(), SLACK_S)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        release.set()
        await here.request(DELETE, Delete("y"), answer=DeletedRow, budget_ms=BUDGET_MS)
