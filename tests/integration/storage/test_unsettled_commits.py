"""A real storage before a global store that takes commits and does not answer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import NotFound, Timeout, Unavailable
from tensorcast_bus.messages import Commit, Committed, DropReplica, GlobalStoreRequest, Report, Reported, Resolve
from tensorcast_bus.nats.client import connect_bus
from tensorcast_bus.notes import PutExists
from tensorcast_bus.serving import Caller
from tensorcast_bus.subjects import Subjects
from tests.integration.storage.house import TOKEN, House, put_memory, read, stats
from tests.support.slack import SLACK_S


class Mute:
    """Knows no artifact; hears every commit, and answers as `outcome` says once that is set."""

    def __init__(self) -> None:
        self.outcome: Committed | NotFound | None = None
        self.commits: list[tuple[Commit, str]] = []
        self.heard = asyncio.Event()

    async def answer(self, body: msgspec.Struct, caller: Caller) -> msgspec.Struct:
        match body:
            case Report():
                return Reported((), 1, 1)
            case Commit():
                self.commits.append((body, caller.idem))
                self.heard.set()
                if self.outcome is None:
                    raise Unavailable("not now")
                if isinstance(self.outcome, NotFound):
                    raise self.outcome
                return self.outcome
            case Resolve(art_id) | DropReplica(art_id):
                raise NotFound(f"no {art_id}")
        raise Unavailable("not here")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[tuple[House, Mute]]:
    house, mute = House(tmp_path), Mute()
    house.folder.mkdir(exist_ok=True)
    (house.folder / "tensorcast.toml").write_text(house.settings)
    try:
        await asyncio.to_thread(house.start_nats)
        bus = await connect_bus(house.url, name="global_store", token=TOKEN)
        await bus.serve(Subjects.global_store_all(), GlobalStoreRequest, mute.answer)
        await asyncio.to_thread(house.start, "storage", node="a")
        yield house, mute
        await bus.close()
    finally:
        await asyncio.to_thread(house.close)


async def test_bytes_of_an_unknown_commit_appear_once_it_is_known(scene: tuple[House, Mute]) -> None:
    house, mute = scene
    client = house.client()
    with pytest.raises(Timeout, match="committing at the global store"):
        await asyncio.to_thread(put_memory, client, "x", {"t": b"first"}, deadline_ms=800)
    reader = asyncio.create_task(asyncio.to_thread(read, house.client(), "x"))
    other = asyncio.create_task(asyncio.to_thread(put_memory, house.client(), "x", {"t": b"second"}))
    mute.heard.clear()
    async with asyncio.timeout(SLACK_S):
        await mute.heard.wait()
    assert not reader.done() and not other.done()
    mute.outcome = Committed("stored", 5)
    assert await reader == {"t": b"first"}
    assert isinstance(await other, PutExists)
    assert len({idem for _, idem in mute.commits}) == 1 and len({body.digest for body, _ in mute.commits}) == 1


async def test_bytes_of_an_unknown_commit_are_freed_once_it_is_refused(scene: tuple[House, Mute]) -> None:
    house, mute = scene
    client = house.client()
    with pytest.raises(Timeout):
        await asyncio.to_thread(put_memory, client, "x", {"t": bytes(4 << 20)}, deadline_ms=800)
    assert (await asyncio.to_thread(stats, client)).pool["used_bytes"] > 4 << 20
    mute.outcome = NotFound("refused")
    with pytest.raises(NotFound):
        await asyncio.to_thread(read, client, "x")
    assert (await asyncio.to_thread(stats, client)).pool["used_bytes"] == 0
