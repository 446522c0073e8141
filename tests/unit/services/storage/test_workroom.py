"""Work on threads: a file system that does not answer holds up only what lies there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tensorcast_bus.errors import Unavailable
from tensorcast_bus.manifest import (
    MANIFEST_VERSION,
    Manifest,
    SegmentRow,
    SourceFile,
    TensorRow,
    decode_manifest,
    encode_manifest,
)
from tensorcast_native import LocalServer, Pool
from tensorcast_services.storage import file_threads, origins, sources
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.effects import OpenFiles
from tensorcast_services.storage.core.events import Event, FilesChecked, FilesOpened, Identity, Restored
from tensorcast_services.storage.file_threads import FileThreads
from tensorcast_services.storage.jobs import LoadJob
from tensorcast_services.storage.places import Places
from tensorcast_services.storage.rooms import Rooms
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.sidecars import Sidecars, Summary
from tensorcast_services.storage.sources import Look
from tests.support.slack import SLACK_S

DEAD_DEVICE = 1 << 20
DEAD: Identity = ("/dead/m.safetensors", DEAD_DEVICE, 2, 8, 3)
REAL_LOOK, REAL_OPEN = sources.look, sources.open_all


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files under /dead answer nobody before the event is set. No test can hang a real file system."""
    alive = threading.Event()

    def wait(files: Sequence[Identity]) -> None:
        if any(path.startswith("/dead/") for path, *_ in files):
            alive.wait(4 * SLACK_S)

    def look(files: Sequence[Identity]) -> Look:
        wait(files)
        return REAL_LOOK(files)

    def open_all(art_id: str, files: Sequence[Identity]) -> list[int]:
        wait(files)
        return REAL_OPEN(art_id, files)

    monkeypatch.setattr(sources, "look", look)
    monkeypatch.setattr(sources, "open_all", open_all)
    yield alive
    alive.set()


def identity(path: Path) -> Identity:
    s = path.stat()
    return str(path), s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def keep(sidecars: Sidecars, art_id: str, file: Identity) -> None:
    row = TensorRow("t", "U8", (8,), 0, 0, 8, b"d" * 16)
    manifest = Manifest(MANIFEST_VERSION, art_id, (SegmentRow(8, SourceFile(*file)),), (row,))
    sidecars.write(Summary(art_id, "ab" * 16, 8, 1, (file,)), encode_manifest(manifest))


class Room:
    def __init__(self, folder: Path) -> None:
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.sidecars = Sidecars(folder / "sidecars")
        self.pool = Pool(capacity_bytes=4 << 20, prefault_ahead_bytes=0, memory_reserve_bytes=0)
        self.server = LocalServer(self.pool, str(folder / "s.sock"), greeting=b"hello")
        self.rooms = Rooms(
            Artifacts(process="storage-a", node="a", incarnation=7),
            self.pool,
            self.server,
            Places(self.sidecars, None, ()),
            StorageSettings(file_threads=1),
            post=self.events.put_nowait,
        )
        self.file = folder / "m.bin"
        self.file.write_bytes(bytes(8))

    async def next(self) -> Event:
        async with asyncio.timeout(SLACK_S):
            return await self.events.get()


@asynccontextmanager
async def a_room(folder: Path) -> AsyncIterator[Room]:
    room = Room(folder)
    try:
        yield room
    finally:
        await room.rooms.work.stop()
        room.rooms.jobs.clear()
        room.server.stop()
        room.pool.stop()


async def test_looks_and_loads_go_on_beside_a_dead_file_system(tmp_path: Path, dead: threading.Event) -> None:
    async with a_room(tmp_path) as room:
        keep(room.sidecars, "good", identity(room.file))
        keep(room.sidecars, "dead", DEAD)
        for ticket in range(8):
            room.rooms.origins.check_files(ticket, (DEAD,))
            room.rooms.opening.open_files(OpenFiles(100 + ticket, "dead"))
        room.rooms.origins.check_files(50, (identity(room.file),))
        assert await room.next() == FilesChecked(50)
        room.rooms.opening.open_files(OpenFiles(51, "good"))
        opened = await room.next()
        assert isinstance(opened, FilesOpened) and opened.ticket == 51
        job = room.rooms.jobs.find(51)
        assert isinstance(job, LoadJob) and len(job.manifest.segments[0].key) == 32, (
            "an old sidecar's segments get names"
        )
        assert decode_manifest(job.blob) == job.manifest


async def test_a_start_waits_for_a_dead_file_system_no_longer_than_it_must(
    tmp_path: Path, dead: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origins, "SCAN_LOOKS_S_MAX", 0.2)
    async with a_room(tmp_path) as room:
        keep(room.sidecars, "good", identity(room.file))
        keep(room.sidecars, "gone", (str(tmp_path / "gone"), 7, 2, 8, 3))
        keep(room.sidecars, "dead", DEAD)
        async with asyncio.timeout(SLACK_S):
            found = await room.rooms.origins.scan()
        # What did not answer may be there; what is gone for sure is no replica, and its sidecar goes.
        assert {one.art_id for one in found} == {"good", "dead"} and all(isinstance(one, Restored) for one in found)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
        assert not room.sidecars.has("gone") and room.sidecars.has("dead")


async def test_a_look_that_fails_is_answered_as_one_that_nobody_could_take(tmp_path: Path) -> None:
    async with a_room(tmp_path) as room:
        room.rooms.origins.check_files(1, (("/with\0nul", 1, 2, 3, 4),))
        answer = await room.next()
        assert isinstance(answer, FilesChecked) and answer.changed and not answer.sure


async def test_nothing_is_queued_without_end_behind_a_dead_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_threads, "WAITING_MAX", 2)
    threads, alive, began = FileThreads(1), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        loop.call_soon_threadsafe(began.set)
        alive.wait(4 * SLACK_S)

    waiting = [asyncio.create_task(threads.run((DEAD,), hang)) for _ in range(2)]
    try:
        await began.wait()
        with pytest.raises(Unavailable, match=str(DEAD_DEVICE)):
            await threads.run((DEAD,), hang)
        alive.set()
        await asyncio.gather(*waiting)
        await threads.run((DEAD,), hang)
    finally:
        alive.set()
        threads.stop()
