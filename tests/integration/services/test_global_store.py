"""The global store as a process on a real NATS server: what it acknowledged it keeps, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tensorcast_bus.bus import Bus, Caller
from tensorcast_bus.errors import Conflict, LeaseLost, TensorCastError, Unavailable
from tensorcast_bus.messages import (
    AliasRow,
    ArtifactEvent,
    ArtifactPage,
    Commit,
    Committed,
    DeleteAlias,
    DeletedRow,
    EndLease,
    Expectation,
    GetAlias,
    ListArtifacts,
    ListWorkers,
    Resolve,
    Resolved,
    SetAlias,
    Worker,
    WorkerList,
)
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.subjects import Subjects
from tests.integration.services.running import WAIT_S_MAX, Supervisor, supervisor
from tests.support.stopping import stop

COMMIT = Subjects.global_store("commit")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Supervisor]:
    with supervisor(tmp_path / "cluster") as running:
        running.wait_ready()
        yield running


@asynccontextmanager
async def bus_of(up: Supervisor) -> AsyncIterator[Bus]:
    state = up.wait_ready()
    bus = await connect_bus(state.nats_url, name="test", token=state.nats_token)
    try:
        yield bus
    finally:
        await bus.close()


def commit(art_id: str, *, ownership: str = "system") -> Commit:
    tier = "lease" if ownership == "lease" else "host"
    return Commit(art_id, "aa", 1, 1, "x", "storage-x", 1, (tier,), "", ownership)


def gateway(verb: str) -> str:
    return Subjects.gateway("test", verb)


async def list_all(bus: Bus) -> list[str]:
    names: list[str] = []
    more = True
    while more:
        ask = ListArtifacts("", names[-1] if names else "")
        page = await bus.request(Subjects.global_store("list"), ask, answer=ArtifactPage, budget_ms=20_000)
        names += [row.art_id for row in page.rows]
        more = page.more
    return names


async def find_worker(bus: Bus, process: str) -> Worker | None:
    found = await bus.request(Subjects.global_store("workers"), ListWorkers(), answer=WorkerList, budget_ms=20_000)
    return next((w for w in found.workers if w.process == process), None)


async def wait_for_worker(bus: Bus, process: str, *, living: bool) -> Worker:
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            found = await find_worker(bus, process)
            if found is not None and found.living is living:
                return found
            await asyncio.sleep(0.05)


async def first_answer(bus: Bus) -> Resolved:
    """Of a global store that the server has thrown out in its absence: it must come back first."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            try:
                return await bus.request(
                    Subjects.global_store("resolve"), Resolve("m@1"), answer=Resolved, budget_ms=20_000
                )
            except Unavailable:
                await asyncio.sleep(0.01)


async def test_every_acknowledged_commit_survives_a_kill_between_batches(up: Supervisor) -> None:
    acknowledged: list[str] = []
    enough = asyncio.Event()

    async def put_until_killed(bus: Bus, lane: int) -> None:
        for i in range(100_000):
            art_id = f"m/{lane}/{i:06}"
            try:
                done = await bus.request(COMMIT, commit(art_id), answer=Committed, budget_ms=10_000)
            except TensorCastError:
                return
            assert done.outcome == "stored"
            acknowledged.append(art_id)
            if len(acknowledged) == 400:
                enough.set()

    async with bus_of(up) as bus:
        lanes = [asyncio.create_task(put_until_killed(bus, lane)) for lane in range(16)]
        async with asyncio.timeout(WAIT_S_MAX):
            await enough.wait()
        old = up.entry("global_store").pid
        os.kill(old, signal.SIGKILL)
        up.wait_restarted("global_store", old)
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)
        found = set(await list_all(bus))
        assert len(acknowledged) >= 400
        assert set(acknowledged) <= found


async def test_a_restarted_global_store_greets_with_a_new_incarnation_and_no_gap(up: Supervisor) -> None:
    events: list[ArtifactEvent] = []
    changed = asyncio.Event()

    def on_event(event: ArtifactEvent, _caller: Caller) -> None:
        events.append(event)
        changed.set()

    async def wait_for(kind: str, *, not_from: int = 0) -> ArtifactEvent:
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                for event in events:
                    if event.kind == kind and event.incarnation != not_from:
                        return event
                changed.clear()
                await changed.wait()

    async with bus_of(up) as bus:
        await bus.subscribe(Subjects.events("artifact"), ArtifactEvent, on_event)
        first = await wait_for("hello")
        await bus.request(COMMIT, commit("m@1"), answer=Committed, budget_ms=10_000)
        committed = await wait_for("committed")
        assert (committed.art_id, committed.incarnation) == ("m@1", first.incarnation)
        old = up.entry("global_store").pid
        os.kill(old, signal.SIGKILL)
        again = await wait_for("hello", not_from=first.incarnation)
        assert again.incarnation > first.incarnation
        for incarnation in (first.incarnation, again.incarnation):
            sequences = [e.sequence for e in events if e.incarnation == incarnation]
            assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


async def test_of_many_who_compare_and_set_an_alias_one_wins_each_time_also_over_a_kill(up: Supervisor) -> None:
    """A counter made of an alias: every success moves it one on, so lost or doubled settings would show."""
    steps, lanes = 40, 4
    moves: list[AliasRow] = []
    half = asyncio.Event()

    async def move_on(bus: Bus, lane: int) -> None:
        tries = 0
        while True:
            try:
                row = await bus.request(gateway("get_alias"), GetAlias("now"), answer=AliasRow, budget_ms=10_000)
                number = int(row.art_id.removeprefix("step/"))
                if number == steps:
                    return
                tries += 1
                ask = SetAlias("now", f"step/{number + 1}", Expectation("revision", "", row.revision))
                moves.append(await set_once(bus, ask, f"lane-{lane}-{tries}"))
                if len(moves) == steps // 2:
                    half.set()
            except (Conflict, Unavailable):
                await asyncio.sleep(0)

    async def set_once(bus: Bus, ask: SetAlias, idem: str) -> AliasRow:
        """A repeat after a lost answer has the same id, so it gets the answer of the first."""
        while True:
            try:
                return await bus.request(gateway("set_alias"), ask, answer=AliasRow, budget_ms=10_000, idem=idem)
            except Unavailable:
                await asyncio.sleep(0.01)  # its process is being started again; each try has a budget of its own

    async with bus_of(up) as bus:
        for number in range(steps + 1):
            await bus.request(COMMIT, commit(f"step/{number}"), answer=Committed, budget_ms=10_000)
        await bus.request(gateway("set_alias"), SetAlias("now", "step/0"), answer=AliasRow, budget_ms=10_000)
        running = [asyncio.create_task(move_on(bus, lane)) for lane in range(lanes)]
        async with asyncio.timeout(2 * WAIT_S_MAX):
            await half.wait()
            os.kill(up.entry("global_store").pid, signal.SIGKILL)
            await asyncio.gather(*running)
        assert [row.art_id for row in sorted(moves, key=lambda r: r.revision)] == [
            f"step/{number}" for number in range(1, steps + 1)
        ]
        found = await bus.request(gateway("resolve"), Resolve("now"), answer=Resolved, budget_ms=10_000)
        assert found.alias is not None
        assert (found.artifact.art_id, found.alias.revision) == (f"step/{steps}", max(row.revision for row in moves))


async def test_ended_leases_and_removed_aliases_stay_so_over_a_kill(up: Supervisor) -> None:
    async with bus_of(up) as bus:
        for art_id in ("kept", "ended"):
            await bus.request(COMMIT, commit(art_id, ownership="lease"), answer=Committed, budget_ms=10_000)
        first = await bus.request(gateway("set_alias"), SetAlias("now", "kept"), answer=AliasRow, budget_ms=10_000)
        await bus.request(gateway("delete_alias"), DeleteAlias("now"), answer=AliasRow, budget_ms=10_000)
        end = EndLease("ended", "aa", "x", "storage-x", 1)
        done = await bus.request(Subjects.global_store("end_lease"), end, answer=DeletedRow, budget_ms=10_000)
        assert done.revision > 0
        old = up.entry("global_store").pid
        os.kill(old, signal.SIGKILL)
        up.wait_restarted("global_store", old)
        with pytest.raises(LeaseLost, match="that storage-x held ended"):
            await bus.request(gateway("resolve"), Resolve("ended"), answer=Resolved, budget_ms=20_000)
        kept = await bus.request(gateway("resolve"), Resolve("kept"), answer=Resolved, budget_ms=20_000)
        assert (kept.artifact.ownership, kept.replicas[0].tier) == ("lease", "lease")
        again = await bus.request(gateway("set_alias"), SetAlias("now", "kept"), answer=AliasRow, budget_ms=10_000)
        assert again.revision > done.revision > first.revision


async def test_a_stopped_process_counts_as_dead_and_lives_again_when_it_goes_on(up: Supervisor) -> None:
    gateway = up.entry("gateway-0").pid
    async with bus_of(up) as bus:
        assert (await wait_for_worker(bus, "gateway-0", living=True)).pid == gateway
        stop(gateway)
        try:
            await wait_for_worker(bus, "gateway-0", living=False)
        finally:
            os.kill(gateway, signal.SIGCONT)
        await wait_for_worker(bus, "gateway-0", living=True)


async def test_nobody_dies_of_a_stop_of_the_global_store_itself(up: Supervisor) -> None:
    async with bus_of(up) as bus:
        await wait_for_worker(bus, "gateway-0", living=True)
        await bus.request(COMMIT, commit("m@1"), answer=Committed, budget_ms=10_000)
        pid = up.entry("global_store").pid
        stop(pid)
        await asyncio.sleep(7)  # longer than the TTL: the stop itself is what is tested
        os.kill(pid, signal.SIGCONT)
        assert [r.living for r in (await first_answer(bus)).replicas] == [True]
        found = await find_worker(bus, "gateway-0")
        assert found is not None
        assert found.living
