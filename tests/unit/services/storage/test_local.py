"""The storage's hand on the native floor: what one client does wrong costs no other client its answer."""

from __future__ import annotations

import ctypes
import select
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_bus.notes import PutDraft
from tensorcast_native import Client, FillDone, LocalServer, LocalStatus, Pool, Request, tensor_digest
from tensorcast_services.storage.compaction import Compactor
from tensorcast_services.storage.core.events import Event, Filled, RoomGiven, RunFailed, Withdrawn
from tensorcast_services.storage.drafts import decode_note, read_draft
from tensorcast_services.storage.floor import Floor as StorageFloor
from tensorcast_services.storage.jobs import Job, Jobs, PutJob
from tensorcast_services.storage.kept import KeptSources
from tensorcast_services.storage.local import Local
from tensorcast_services.storage.residents import Resident, Residents
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.workroom import Workroom
from tests.support.slack import SLACK_S

NBYTES = 4096
T = TypeVar("T")


class BrokenJobs(Jobs):
    broken = False

    def find(self, ticket: int) -> Job | None:
        if self.broken:
            raise MemoryError("no room for this")
        return super().find(ticket)


async def compute(work: Callable[[], T], /) -> T:
    return work()


class Floor:
    """A real pool and server; events are drained by hand, so that a test says which come together."""

    def __init__(self, folder: Path) -> None:
        self.pool = Pool(capacity_bytes=8 << 20, prefault_ahead_bytes=0, memory_reserve_bytes=0)
        self.server = LocalServer(self.pool, str(folder / "s.sock"), greeting=b"hello")
        self.path = str(folder / "s.sock")
        self.jobs, self.posted, self.taken = BrokenJobs(self.pool), list[Event](), list[str]()
        self.residents = Residents()
        compactor = Compactor(self.pool, self.server, self.residents, compute=compute, load_ms_max=10_000)
        parts = (self.pool, self.server, self.jobs, KeptSources(), self.residents, Workroom(file_threads=1))
        on = StorageFloor(*parts, StorageSettings(load_ms_max=10_000), self.posted.append)
        self.local = Local(on, compactor, on_request=self.take)
        self.answers: list[object] = []
        self.threads: list[threading.Thread] = []

    def take(self, request: Request) -> None:
        if request.art_id == "bad":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "as for an id that is no text")
        self.taken.append(request.art_id)
        self.local.reply(request.id, ErrorRecord("NotFound", "no such id"))

    def events(self, count: int) -> list[Request | FillDone]:
        """The next `count` events, as one batch."""
        found: list[Request | FillDone] = []
        while len(found) < count:
            assert select.select([self.server.event_fd], [], [], SLACK_S)[0], "no event came"
            found += self.server.events()
        return found

    def attach(self, art_id: str) -> None:
        def ask() -> None:
            self.answers.append(Client(self.path, deadline_ms=5_000).attach(art_id, deadline_ms=5_000))

        self._beside(ask)

    def put(self, *, rows_at: int) -> tuple[Request, bytes]:
        """Asks to put a tensor of the first half of what it sends; its client's own row lies at `rows_at`."""
        content = b"A" * NBYTES + b"B" * NBYTES
        memory = ctypes.create_string_buffer(content, len(content))
        manifest = Manifest(
            MANIFEST_VERSION, "x", (SegmentRow(2 * NBYTES),), (TensorRow("t", "U8", (NBYTES,), 0, 0, NBYTES),)
        )

        def ask() -> None:
            answer = Client(self.path, deadline_ms=5_000).put(
                "x",
                draft=msgspec.msgpack.encode(PutDraft(manifest)),
                segment_bytes=[2 * NBYTES],
                pieces=struct.pack("<IIQQQII", 0, 2, 0, 2 * NBYTES, ctypes.addressof(memory), 0, 0),
                rows=struct.pack("<IIQQ", 0, 0, rows_at, NBYTES),
                deadline_ms=5_000,
            )
            self.answers.append(answer)

        self._beside(ask)
        (request,) = self.events(1)
        assert isinstance(request, Request)
        note = decode_note(request.body, art_id="x", draft_bytes_max=10_000)
        assert isinstance(note, PutDraft)
        draft = read_draft(note, art_id="x", segment_bytes=request.segment_bytes, source=request.source, tensors_max=1)
        self.jobs.add(request.id, PutJob("x", draft, request.source))
        return request, content

    def close(self) -> None:
        self.server.stop()
        for thread in self.threads:
            thread.join(2 * SLACK_S)
            assert not thread.is_alive()
        self.pool.stop()

    def _beside(self, ask: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=ask))
        self.threads[-1].start()


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[Floor]:
    found = Floor(tmp_path)
    try:
        yield found
    finally:
        found.close()


class Batch:
    """The server, whose next events are those that a test has collected."""

    def __init__(self, batch: list[Request | FillDone]) -> None:
        self._batch = batch

    def events(self) -> list[Request | FillDone]:
        return self._batch


def drain(floor: Floor, batch: list[Request | FillDone], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(floor.local, "_server", Batch(batch))
        patch.setattr(floor.local, "reply", lambda request, _answer: floor.server.reply(request, LocalStatus.FAILED))
        floor.local._drain()


def test_a_request_that_cannot_be_taken_does_not_cost_the_others_theirs(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for art_id in ("bad", "good"):
        floor.attach(art_id)
    batch = floor.events(2)
    batch.sort(key=lambda event: event.art_id if isinstance(event, Request) else "")
    drain(floor, batch, monkeypatch)
    assert floor.taken == ["good"]
    floor.server.reply(batch[0].id, LocalStatus.FAILED)


def test_digests_are_of_the_manifests_own_rows_whatever_the_client_sent(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, content = floor.put(rows_at=NBYTES)
    floor.local.accept_put(request.id)
    assert isinstance(floor.posted[0], RoomGiven)
    (done,) = floor.events(1)
    assert isinstance(done, FillDone) and done.status == "ok"
    assert done.digests == tensor_digest(content[:NBYTES]) != tensor_digest(content[NBYTES:])
    drain(floor, [done], monkeypatch)
    assert isinstance(floor.posted[1], Filled)
    floor.local.free(floor.posted[1].segments)
    floor.server.reply(request.id, LocalStatus.FAILED)


def test_a_fill_whose_end_cannot_be_understood_fails_its_run_and_frees_its_room(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, _ = floor.put(rows_at=0)
    floor.local.accept_put(request.id)
    given = floor.posted.pop()
    assert isinstance(given, RoomGiven)
    batch = floor.events(1)
    floor.jobs.broken = True
    drain(floor, batch, monkeypatch)
    assert isinstance(floor.posted[0], RunFailed) and floor.posted[0].trouble.code == "LocalProtocolError"
    floor.local.free((given.manifest_segment,))
    stats = floor.pool.stats()
    assert stats["reserved_bytes"] == 0 and stats["used_bytes"] == 0
    floor.server.reply(request.id, LocalStatus.FAILED)


def test_what_is_mapped_is_not_withdrawn_and_an_attach_of_what_is_gone_is_answered(floor: Floor) -> None:
    manifest, segment = floor.pool.reserve(16), floor.pool.reserve(1 << 20)
    for one in (manifest, segment):
        floor.pool.seal(one)
    floor.local.sealed(Resident("x", "aa", manifest, 16, (segment,), ("ab" * 16,)))
    floor.local.publish("x", manifest, (segment,))
    assert floor.residents.segment_of("ab" * 16) == segment
    floor.local.free((manifest, segment))
    held = Client(floor.path, deadline_ms=5_000).attach("x", deadline_ms=5_000)
    assert not isinstance(held, tuple)
    floor.local.withdraw_idle(1, "x")
    assert held.release() == 0
    del held
    for _ in range(1000):
        floor.local.withdraw_idle(2, "x")
        if floor.posted[-1] == Withdrawn(2, done=True):
            break
        select.select([], [], [], 0.01)  # until the server has seen the unmap
    assert floor.posted[0] == Withdrawn(1, done=False) and floor.posted[-1] == Withdrawn(2, done=True)
    assert floor.residents.find("x") is None
    floor.attach("x")
    (request,) = floor.events(1)
    floor.local.attach_now(request.id)
    floor.threads[-1].join(SLACK_S)
    assert len(floor.answers) == 1
    answer = floor.answers[0]
    assert isinstance(answer, tuple)
    status, body = answer
    assert isinstance(body, bytes)
    record = msgspec.msgpack.decode(body, type=ErrorRecord)
    assert status == LocalStatus.FAILED and record.code == "StorageLost"
