"""What clients ask, on its way to the core: whoever asks is answered, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tensorcast_bus.errors import ErrorRecord
from tensorcast_native import LocalServer, Pool
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.events import Event
from tensorcast_services.storage.jobs import Jobs
from tensorcast_services.storage.requests import Requests
from tensorcast_services.storage.settings import StorageSettings
from tensorcast_services.storage.sidecars import Sidecars
from tensorcast_services.storage.workroom import Workroom
from tests.support.slack import SLACK_S


class UnreadableId:
    """A request whose id is no text; the native floor refuses such ones before they come here."""

    id, session, budget_ms, pid = 1 << 33, 1, 1000, 1
    body, segment_bytes, source, files, pieces = b"", list[int](), "vm_read", list[tuple[int, int, int, int]](), b""

    def __init__(self, kind: str) -> None:
        self.kind = kind

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
    tmp_path: Path, floor: tuple[Pool, LocalServer], kind: str
) -> None:
    answers: asyncio.Queue[tuple[int, msgspec.Struct]] = asyncio.Queue()
    posted: list[Event] = []
    jobs = Jobs()
    workroom = Workroom(floor[0], Sidecars(tmp_path / "s"), jobs, post=posted.append, file_threads=1)
    requests = Requests(
        Artifacts(process="storage-a", node="a", incarnation=7),
        *floor,
        jobs,
        workroom,
        StorageSettings(),
        post=posted.append,
        reply=lambda request, answer: answers.put_nowait((request, answer)),
        uses=list,
    )
    requests.take(UnreadableId(kind))  # type: ignore[arg-type]
    async with asyncio.timeout(SLACK_S):
        request, answer = await answers.get()
    assert request == UnreadableId.id and isinstance(answer, ErrorRecord) and not posted and not len(jobs)
    await workroom.stop()
