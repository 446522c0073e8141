"""What clients ask, on its way to the core: whoever asks is answered, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow
from tensorcast_bus.notes import (
    AskDelete,
    AskDurable,
    AskRelease,
    AskRenew,
    Box,
    PutBaseGone,
    PutDraft,
    ViewWish,
)
from tensorcast_native import LocalServer, Pool
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import AttachAsked, DeleteAsked, Event, ReleaseAsked, RenewAsked
from tensorcast_services.storage.places import Places
from tensorcast_services.storage.rooms import Rooms
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.sidecars import Sidecars
from tests.support.slack import SLACK_S


def rooms_of(
    folder: Path, floor: tuple[Pool, LocalServer], posted: list[Event], heard: Callable[[], None] = lambda: None
) -> Rooms:
    def post(event: Event) -> None:
        posted.append(event)
        heard()

    return Rooms(
        Artifacts(process="storage-a", node="a", incarnation=7),
        *floor,
        Places(Sidecars(folder / "s"), None, ()),
        StorageSettings(file_threads=1),
        post=post,
    )


class UnreadableId:
    """A request whose id is no text; the native floor refuses such ones before they come here."""

    id, session, budget_ms, pid = 1 << 33, 1, 1000, 1
    source, pieces = "vm_read", b""
    files: tuple[tuple[int, int, int, int], ...] = ()
    segment_bytes: list[int]
    body = b""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.segment_bytes = []

    @property
    def art_id(self) -> str:
        return b"\xff".decode()


@pytest.fixture
def floor(tmp_path: Path) -> Iterator[tuple[Pool, LocalServer]]:
    pool = Pool(capacity_bytes=4 << 20, prefault_ahead_bytes=0, memory_reserve_bytes=0)
    server = LocalServer(pool, str(tmp_path / "s.sock"), greeting=b"hello")
    yield pool, server
    server.stop()
    pool.stop()


@pytest.mark.parametrize("kind", ["put", "attach"])
async def test_a_request_whose_id_cannot_be_read_is_answered(
    tmp_path: Path, floor: tuple[Pool, LocalServer], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: asyncio.Queue[tuple[int, msgspec.Struct]] = asyncio.Queue()
    posted: list[Event] = []
    rooms = rooms_of(tmp_path, floor, posted)
    monkeypatch.setattr(rooms.requests, "_reply", lambda request, answer: answers.put_nowait((request, answer)))
    rooms.requests.take(UnreadableId(kind))  # type: ignore[arg-type]
    async with asyncio.timeout(SLACK_S):
        request, answer = await answers.get()
    assert request == UnreadableId.id and isinstance(answer, ErrorRecord) and not posted and not len(rooms.jobs)
    await rooms.work.stop()


class Asked(UnreadableId):
    """A request with an id that can be read."""

    art_id = "x"
    manifest_only = False

    def __init__(self, kind: str, body: bytes) -> None:
        super().__init__(kind)
        self.body = body


async def ends_of(
    tmp_path: Path, floor: tuple[Pool, LocalServer], monkeypatch: pytest.MonkeyPatch, *asked: Asked
) -> tuple[list[Event], list[ErrorRecord]]:
    """What became of these requests: events of the core, and refusals."""
    posted, refused = list[Event](), list[ErrorRecord]()
    ended: asyncio.Queue[None] = asyncio.Queue()
    rooms = rooms_of(tmp_path, floor, posted, lambda: ended.put_nowait(None))

    def reply(_request: int, answer: ErrorRecord) -> None:
        refused.append(answer)
        ended.put_nowait(None)

    for room in (rooms.requests, rooms.calls):
        monkeypatch.setattr(room, "_reply", reply)
    for request in asked:
        rooms.requests.take(request)  # type: ignore[arg-type]
    async with asyncio.timeout(SLACK_S):
        for _ in asked:
            await ended.get()
    await rooms.work.stop()
    return posted, refused


def draft_of(name: str, *, durable: bool = False) -> bytes:
    manifest = Manifest(MANIFEST_VERSION, name, (SegmentRow(0),), ())
    return msgspec.msgpack.encode(PutDraft(manifest, durable))


async def test_nothing_is_durable_without_a_disk_and_the_refusal_names_the_setting(
    tmp_path: Path, floor: tuple[Pool, LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Asked("put", draft_of("x", durable=True))
    put.segment_bytes = [0]
    asked = (put, Asked("call", msgspec.msgpack.encode(AskDurable("x"))))
    posted, refused = await ends_of(tmp_path, floor, monkeypatch, *asked)
    assert not posted and [one.code for one in refused] == ["Unavailable", "Unavailable"]
    assert all("storage.disk_path" in one.text for one in refused)


async def test_an_attach_brings_its_wish_and_a_broken_one_is_refused(
    tmp_path: Path, floor: tuple[Pool, LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = ViewWish("ab" * 16, (Box("v", "t", (0,), (1,)),))
    good, bad = Asked("attach", msgspec.msgpack.encode(wish)), Asked("attach", b"\xc1")
    posted, refused = await ends_of(tmp_path, floor, monkeypatch, good, Asked("attach", b""), bad)
    assert [event.how for event in posted if isinstance(event, AttachAsked)] == ["view", "whole"]
    assert [one.code for one in refused] == ["LocalProtocolError"]


async def test_calls_become_events_and_impossible_ones_are_refused(
    tmp_path: Path, floor: tuple[Pool, LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [AskDelete("x"), AskRenew("x", 5, 60_000), AskRelease("x", 5), AskRenew("x", 5, 1), AskDelete("")]
    asked = [Asked("call", msgspec.msgpack.encode(call)) for call in calls]
    posted, refused = await ends_of(tmp_path, floor, monkeypatch, *asked)
    number, budget_ms = UnreadableId.id, UnreadableId.budget_ms
    assert posted == [
        DeleteAsked(number, "x", budget_ms),
        RenewAsked(number, "x", 5, 60_000),
        ReleaseAsked(number, "x", 5, budget_ms),
    ]
    assert [one.code for one in refused] == ["Invalid", "Invalid"]


async def test_a_draft_that_borrows_from_a_base_that_is_not_here_is_told_so(
    tmp_path: Path, floor: tuple[Pool, LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = TensorRow("t", "U8", (4,), 0, 0, 4, bytes(16))
    manifest = Manifest(MANIFEST_VERSION, "x", (SegmentRow(4, key="ab" * 16),), (row,))
    draft = PutDraft(manifest, base="x@1", base_digest="cd" * 16)
    posted, answers = await ends_of(tmp_path, floor, monkeypatch, Asked("put", msgspec.msgpack.encode(draft)))
    assert not posted and [msgspec.to_builtins(one) for one in answers] == [msgspec.to_builtins(PutBaseGone("x@1"))]
