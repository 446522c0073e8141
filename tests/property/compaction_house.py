"""A storage without a core: a real pool and server, puts by the SDK's own drafts, withdraws, and the compactor.

What a client's put would pull comes as inline bytes of a load, so that no client is needed to write. Everything runs on
the caller's loop; `pauses` lets a test act between two steps of the compactor, where it computes on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy

from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast.drafts.delta import delta_draft
from tensorcast.drafts.draft import INLINE, PIECE, Draft
from tensorcast.drafts.memory import draft_from_tensors
from tensorcast_bus.manifest import Manifest, decode_manifest
from tensorcast_bus.notes import PutDraft
from tensorcast_native import Client, FillDone, LocalServer, Pool
from tensorcast_services.storage import drafts
from tensorcast_services.storage.borrowing import check_borrowed
from tensorcast_services.storage.compaction import Compactor
from tensorcast_services.storage.jobs import PutJob
from tensorcast_services.storage.residents import Resident, Residents
from tensorcast_services.storage.sealing import finish_put
from tests.unit.sdk.test_drafts import segments as filled

T = TypeVar("T")
Tensors = dict[str, "numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]"]

LOAD_MS_MAX = 20_000
UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")
MIB = 1 << 20


class Put:
    """A put whose bytes are sealed, and which nobody sees yet. `segments` are its users."""

    def __init__(self, draft: drafts.Draft, segments: list[int], digests: bytes) -> None:
        self.draft = draft
        self.segments = segments
        self.digests = digests


class House:
    """Use as an async context."""

    def __init__(self, folder: Path, *, capacity_bytes: int = 96 * MIB) -> None:
        self.pool = Pool(capacity_bytes=capacity_bytes, prefault_ahead_bytes=0, memory_reserve_bytes=0)
        self._path = str(folder / "s.sock")
        self.server = LocalServer(self.pool, self._path, greeting=b"")
        self.residents = Residents()
        self.compactor = Compactor(
            self.pool, self.server, self.residents, compute=self._compute, load_ms_max=LOAD_MS_MAX
        )
        self.pauses: list[Callable[[], Awaitable[None]]] = []
        self._fills: dict[int, asyncio.Future[FillDone]] = {}
        self._token = 0

    async def __aenter__(self) -> House:
        asyncio.get_running_loop().add_reader(self.server.event_fd, self._drain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self.server.event_fd)
        self.server.stop()
        self.pool.stop()

    def deaf(self, deaf: bool, /) -> None:
        """Whether ends of fills stay unheard for now."""
        loop = asyncio.get_running_loop()
        if deaf:
            loop.remove_reader(self.server.event_fd)
        else:
            loop.add_reader(self.server.event_fd, self._drain)

    async def put(self, art_id: str, tensors: Tensors, *, base: str = "") -> None:
        self.publish(await self.begin(self.draft(art_id, tensors, base=base)))

    def draft(self, art_id: str, tensors: Tensors, *, base: str = "") -> Draft:
        whole = draft_from_tensors(tensors, art_id, deadline=UNHURRIED)
        return delta_draft(whole, self.manifest(base), changed=None, deadline=UNHURRIED) if base else whole

    async def begin(self, draft: Draft) -> Put:
        """As accept_put and the end of its fill: the borrowed segments are held before anything is awaited."""
        art_id = draft.manifest.art_id
        note = PutDraft(draft.manifest, base=draft.base, base_digest=draft.base_digest)
        checked = drafts.read_draft(
            note, art_id=art_id, segment_bytes=draft.segment_bytes, source="vm_read", tensors_max=1000
        )
        if checked.borrowed:
            checked = check_borrowed(checked, self.manifest(checked.base))
        borrowed = [self._held(key) for key in checked.borrowed]
        made = filled(draft)
        inline = b"".join(made)
        pieces, at = b"", 0
        for number, part in enumerate(made):
            pieces += PIECE.pack(number, INLINE, 0, len(part), at, 0, 0)
            at += len(part)
        done = await self._load([len(part) for part in made], pieces, checked.rows, inline)
        return Put(checked, [*done.segments, *borrowed], done.digests)

    def publish(self, put: Put) -> None:
        art_id = put.draft.manifest.art_id
        summary, blob = finish_put(PutJob(art_id, put.draft, "vm_read"), put.digests)
        manifest_segment = self.pool.reserve(len(blob))
        self.pool.write(manifest_segment, 0, blob)
        self.pool.seal(manifest_segment)
        self.server.publish(art_id, manifest_segment, put.segments)
        keys = tuple(row.key for row in put.draft.manifest.segments)
        brought = len(keys) - len(put.draft.borrowed)
        self.residents.add(
            Resident(art_id, summary.digest, manifest_segment, len(blob), tuple(put.segments), keys, brought)
        )
        for segment in (manifest_segment, *put.segments):
            self.pool.drop(segment)
        self.compactor.look(keys)

    def give_up(self, put: Put) -> None:
        for segment in put.segments:
            self.pool.drop(segment)

    def delete(self, art_id: str) -> None:
        assert self.server.withdraw(art_id)
        gone = self.residents.remove(art_id)
        assert gone is not None
        self.compactor.look(gone.keys)

    def manifest(self, art_id: str) -> Manifest:
        resident = self.residents.find(art_id)
        assert resident is not None
        return decode_manifest(self.pool.read(resident.manifest_segment, 0, resident.manifest_bytes))

    def reader(self) -> Client:
        return Client(self._path, deadline_ms=LOAD_MS_MAX)

    def overwrite_all_that_is_free(self) -> None:
        segments: list[int] = []
        while (nbytes := self.pool.stats()["longest_run_bytes"] // (2 * MIB) * 2 * MIB) > 0:
            segments.append(self.pool.reserve(nbytes))
            self.pool.write(segments[-1], 0, b"\xee" * nbytes)
        for segment in segments:
            self.pool.drop(segment)

    def in_use(self) -> set[int]:
        return {
            segment
            for resident in map(self.residents.find, self.published())
            if resident is not None
            for segment in (resident.manifest_segment, *resident.segments)
        }

    def published(self) -> list[str]:
        return [art_id for art_id, *_ in self.server.usage()]

    def _held(self, key: str) -> int:
        segment = self.residents.segment_of(key)
        assert segment is not None
        self.pool.hold(segment)
        return segment

    async def _compute(self, work: Callable[[], T], /) -> T:
        if self.pauses:
            await self.pauses.pop(0)()
        return await asyncio.to_thread(work)

    async def _load(self, segment_bytes: list[int], pieces: bytes, rows: bytes, inline: bytes) -> FillDone:
        self._token += 1
        fill: asyncio.Future[FillDone] = asyncio.get_running_loop().create_future()
        self._fills[self._token] = fill
        self.server.load(
            self._token,
            segment_bytes=segment_bytes,
            pieces=pieces,
            rows=rows,
            files=(),
            inline=inline,
            deadline_ms=LOAD_MS_MAX,
        )
        done = await fill
        assert done.status == "ok", done.detail
        return done

    def _drain(self) -> None:
        for event in self.server.events():
            assert isinstance(event, FillDone)
            if not self.compactor.filled(event):
                self._fills.pop(event.id).set_result(event)
