"""The gateway over a loopback bus, in front of a real core of the global store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import get_args

import pytest
from msgspec import Struct

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import Conflict, NotFound, Timeout, Unavailable
from tensorcast_bus.loopback import LoopbackHub
from tensorcast_bus.messages import (
    AliasPage,
    AliasRow,
    ArtifactPage,
    Committed,
    Delete,
    DeleteAlias,
    DeletedRow,
    GatewayRequest,
    GetAlias,
    GlobalStoreRequest,
    ListAliases,
    ListArtifacts,
    ListWorkers,
    Resolve,
    Resolved,
    WorkerList,
)
from tensorcast_bus.subjects import Subjects
from tensorcast_services.gateway.service import ANSWERS, GatewayService
from tensorcast_services.gateway.settings import GatewaySettings
from tensorcast_services.heartbeat import Beats, Identity
from tensorcast_services.process import Context
from tests.support.slack import SLACK_S
from tests.unit.services.global_store.cases import Desk, as_set, commit, set_to


@asynccontextmanager
async def gateway(hub: LoopbackHub, settings: GatewaySettings | None = None) -> AsyncIterator[Bus]:
    """A caller's bus, while a gateway serves."""
    identity = Identity("gateway-0", "gateway", "0", 1, os.getpid(), "0.1.0")
    context = Context(identity, hub.bus("gateway-0"), Path(), Beats())
    service = GatewayService(context, settings or GatewaySettings())
    running = asyncio.create_task(service.run())
    await service.ready.wait()
    try:
        yield hub.bus("caller")
    finally:
        service.stop()
        await running
        await service.close()


async def serve(hub: LoopbackHub, desk: Desk) -> None:
    async def answer(body: Struct, caller: Caller) -> Struct:
        return desk.ask(body, Struct, idem=caller.idem)

    await hub.bus("global_store").serve(Subjects.global_store_all(), GlobalStoreRequest, answer)


def at(verb: str) -> str:
    return Subjects.gateway("caller", verb)


async def test_every_verb_gets_the_global_stores_answer() -> None:
    hub, desk = LoopbackHub(), Desk()
    desk.ask(commit(), Committed)
    await serve(hub, desk)
    async with gateway(hub) as bus:
        page = await bus.request(at("list"), ListArtifacts(), answer=ArtifactPage, budget_ms=5_000)
        assert [row.art_id for row in page.rows] == ["m@1"]
        found = await bus.request(at("resolve"), Resolve("m@1"), answer=Resolved, budget_ms=5_000)
        assert found.artifact.digest == "aa"
        workers = await bus.request(at("workers"), ListWorkers(), answer=WorkerList, budget_ms=5_000)
        assert [w.process for w in workers.workers] == ["storage-a"]
        for _ in range(2):  # the same idempotency id: the repeat gets the first answer
            gone = await bus.request(at("delete"), Delete("m@1"), answer=DeletedRow, budget_ms=5_000, idem="once")
            assert gone.art_id == "m@1"
        with pytest.raises(NotFound, match="no artifact 'm@1'"):
            await bus.request(at("resolve"), Resolve("m@1"), answer=Resolved, budget_ms=5_000)


async def test_aliases_are_set_read_listed_and_removed_through_a_gateway() -> None:
    hub, desk = LoopbackHub(), Desk()
    for art_id in ("m@1", "m@2"):
        desk.ask(commit(art_id), Committed)
    await serve(hub, desk)
    async with gateway(hub) as bus:
        first = await bus.request(at("set_alias"), set_to("m@1"), answer=AliasRow, budget_ms=5_000, idem="once")
        moved = await bus.request(at("set_alias"), set_to("m@2"), answer=AliasRow, budget_ms=5_000)
        again = await bus.request(at("set_alias"), set_to("m@1"), answer=AliasRow, budget_ms=5_000, idem="once")
        assert (again, moved.art_id) == (first, "m@2")
        assert await bus.request(at("get_alias"), GetAlias("m@latest"), answer=AliasRow, budget_ms=5_000) == moved
        page = await bus.request(at("aliases"), ListAliases("m"), answer=AliasPage, budget_ms=5_000)
        assert page == AliasPage((moved,), more=False)
        with pytest.raises(Conflict) as refused:
            stale = set_to("m@1", expect=as_set(first))
            await bus.request(at("set_alias"), stale, answer=AliasRow, budget_ms=5_000)
        assert refused.value.context["revision"] == moved.revision
        gone = await bus.request(at("delete_alias"), DeleteAlias("m@latest"), answer=AliasRow, budget_ms=5_000)
        assert gone == moved


def test_a_gateway_has_an_answer_to_every_request_that_it_takes() -> None:
    assert set(ANSWERS) == set(get_args(GatewayRequest))


async def test_without_a_global_store_the_caller_hears_so_at_once() -> None:
    async with gateway(LoopbackHub()) as bus:
        with pytest.raises(Unavailable):
            await bus.request(at("resolve"), Resolve("m@1"), answer=Resolved, budget_ms=5_000)


async def test_a_silent_global_store_costs_no_more_than_the_callers_budget() -> None:
    hub = LoopbackHub()
    never = asyncio.Event()

    async def silent(body: Struct, caller: Caller) -> Struct:
        await never.wait()
        return body

    await hub.bus("global_store").serve(Subjects.global_store_all(), GlobalStoreRequest, silent)
    async with gateway(hub) as bus:
        async with asyncio.timeout(SLACK_S):
            with pytest.raises(Timeout):
                await bus.request(at("resolve"), Resolve("m@1"), answer=Resolved, budget_ms=100)
    never.set()


async def test_more_requests_than_its_limit_are_refused() -> None:
    hub = LoopbackHub()
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(body: Struct, caller: Caller) -> Struct:
        asked.set()
        await go_on.wait()
        return WorkerList(())

    await hub.bus("global_store").serve(Subjects.global_store_all(), GlobalStoreRequest, slow)
    async with gateway(hub, GatewaySettings(requests_max=1)) as bus:
        first = asyncio.create_task(bus.request(at("workers"), ListWorkers(), answer=WorkerList, budget_ms=5_000))
        await asked.wait()
        with pytest.raises(Unavailable, match="1 requests under way"):
            await bus.request(at("workers"), ListWorkers(), answer=WorkerList, budget_ms=5_000)
        go_on.set()
        assert await first == WorkerList(())
