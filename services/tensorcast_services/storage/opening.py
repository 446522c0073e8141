"""Getting ready to read what is not in the pool: manifest, open files or a kept source, and a plan; for all of an
artifact, for its manifest alone, or for the boxes of a view.

Called by service.py for OpenFiles, OpenView and ReplyManifest, and by committed_views.py. What is in the pool under
other artifacts is borrowed from there and not read again. What was opened belongs to the job of the ticket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from tensorcast_bus.errors import Conflict, LeaseLost, StorageLost
from tensorcast_bus.manifest import Manifest, encode_manifest
from tensorcast_bus.notes import AboutManifest, Box, ViewWish
from tensorcast_services.storage.boxes import Cut, cut_boxes
from tensorcast_services.storage.core.effects import OpenFiles, OpenView
from tensorcast_services.storage.core.events import FilesOpened
from tensorcast_services.storage.draft_rows import DIGEST_BYTES
from tensorcast_services.storage.drafts import room_bytes
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import Job, LeaseJob, LoadJob, ViewJob
from tensorcast_services.storage.kept import Kept
from tensorcast_services.storage.load_plan import LoadPlan, plan_load
from tensorcast_services.storage.origins import Origin, Origins
from tensorcast_services.storage.pieces import FILE, POOL
from tensorcast_services.storage.reading import Reading
from tensorcast_services.storage.sources import SourceTrouble
from tensorcast_services.storage.view_plan import CannotCut, Span, Spans, dense_view, kept_spans
from tensorcast_services.storage.workroom import run_failed


class At(msgspec.Struct, frozen=True):
    """Where an artifact is read: from a kept `source`, or (0) at `tier` "disk" or "file", "" meaning either."""

    art_id: str
    source: int
    tier: str = ""


class Cutting(msgspec.Struct):
    """What boxes are cut from: where the bytes of each segment are, and what reads them."""

    manifest: Manifest
    cuts: list[Cut]
    spans: Spans
    reading: Reading


class Opening:
    """`wishes` are the views asked for, by request; `boxes_max` bounds one. On the loop's thread but for pieces of
    work."""

    def __init__(self, floor: Floor, origins: Origins) -> None:
        self.wishes: dict[int, ViewWish] = {}
        self._pool = floor.pool
        self._jobs = floor.jobs
        self._kept = floor.kept
        self._residents = floor.residents
        self._work = floor.work
        self._post = floor.post
        self._boxes_max = floor.settings.tensors_max
        self._origins = origins

    def open_files(self, effect: OpenFiles) -> None:
        at = At(effect.art_id, effect.source, effect.tier)
        self._open(effect.ticket, effect.art_id, lambda: self._whole(at))

    def open_view(self, effect: OpenView) -> None:
        at, wish = At(effect.art_id, effect.source, effect.tier), self.wishes.get(effect.request)
        self._open(effect.ticket, effect.art_id, lambda: self._view(wish, at))

    async def about(self, art_id: str, digest: str) -> AboutManifest:
        """What is not in the pool, from the registration or the sidecar that brings it back. SourceTrouble."""
        kept = self._kept.find(self._kept.source_of(art_id, digest))
        if kept is not None:
            return AboutManifest(kept.digest, await self._work.compute(kept.blob))
        origin = await self._origins.find(art_id)
        return AboutManifest(origin.summary.digest, origin.blob)

    async def cutting(self, at: At, *, digest: str, boxes: Sequence[Box]) -> Cutting:
        """Checks the boxes and opens what they read; the result owns it. SourceTrouble, or what is wrong with a box."""
        if at.source:
            kept = self._kept_of(at)
            _check_digest(at.art_id, kept.is_called(digest))
            cuts = await self._cuts(kept.manifest, boxes)
            _check_sure(cuts, sure=kept.plan.draft.from_files)
            spans = await self._work.compute(lambda: kept_spans(kept.pieces))
            reading = Reading(_NO_PLAN, "lease", kept=at.source, memory=not kept.plan.draft.from_files)
            return Cutting(kept.manifest, cuts, spans, reading)
        origin = await self._origins.find(at.art_id, at.tier)
        _check_digest(at.art_id, origin.summary.digest == digest)
        cuts = await self._cuts(origin.manifest, boxes)
        _check_sure(cuts, sure=origin.where == "file")
        needed = sorted({(cut.row.copied_from or (cut.row.segment, 0))[0] for cut in cuts if cut.nbytes})
        borrowed = self.borrow(origin.manifest, needed)
        images = [number for number in needed if number not in borrowed]
        try:
            files = await self._origins.open(origin, images)
        except BaseException:
            self._free(borrowed.values())
            raise
        rows = origin.manifest.segments
        spans = {n: [Span(0, rows[n].nbytes, FILE, 0, index)] for index, n in enumerate(images)}
        spans |= {n: [Span(0, rows[n].nbytes, POOL, 0, index)] for index, n in enumerate(borrowed)}
        reading = Reading(_NO_PLAN, origin.where, files=files, sources=list(borrowed.values()))
        return Cutting(origin.manifest, cuts, spans, reading)

    def borrow(self, manifest: Manifest, numbers: Sequence[int]) -> dict[int, int]:
        """Those of the manifest's segments that are in the pool, each with a user of the caller's."""
        found: dict[int, int] = {}
        for number in numbers:
            key = manifest.segments[number].key
            segment = self._residents.segment_of(key) if key else None
            if segment is not None:
                self._pool.hold(segment)
                found[number] = segment
        return found

    def let_go(self, reading: Reading) -> None:
        """Closes what was opened for nothing."""
        self._jobs.let_sources_go(reading)

    def _open(self, ticket: int, art_id: str, prepare: Callable[[], Awaitable[Job]]) -> None:
        async def work() -> None:
            try:
                job = await prepare()
            except Exception as error:
                self._post(run_failed(ticket, art_id, error))
                return
            self._jobs.add(ticket, job)
            assert job.reading is not None
            need = sum(map(room_bytes, (*job.reading.plan.segment_bytes, job.manifest_bytes)))
            self._post(FilesOpened(ticket, need))

        self._work.spawn(work())

    async def _whole(self, at: At) -> LoadJob | LeaseJob:
        if at.source:
            return self._whole_kept(at.source, self._kept_of(at))
        return await self._whole_away(await self._origins.find(at.art_id, at.tier))

    def _whole_kept(self, source: int, kept: Kept) -> LoadJob | LeaseJob:
        draft = kept.plan.draft
        plan = LoadPlan([row.nbytes for row in draft.manifest.segments], b"", draft.rows, b"")
        reading = Reading(plan, "lease", kept=source, own_plan=True, memory=not draft.from_files)
        done = kept.finished
        if done is None:
            return LeaseJob(kept.art_id, kept.plan, source, kept.path, reading)
        return LoadJob(kept.art_id, done.summary, done.manifest, done.blob, reading)

    async def _whole_away(self, origin: Origin) -> LoadJob:
        art_id, manifest = origin.summary.art_id, origin.manifest
        borrowed = self.borrow(manifest, range(len(manifest.segments)))
        try:
            plan = await self._work.compute(lambda: plan_load(manifest, borrowed=borrowed))
            files = await self._origins.open(origin, plan.images)
        except BaseException:
            self._free(borrowed.values())
            raise
        sources = [borrowed[number] for number in plan.sources]
        for segment in sources:
            self._pool.hold(segment)
        reading = Reading(plan, origin.where, files=files, sources=sources)
        return LoadJob(art_id, origin.summary, manifest, origin.blob, reading, borrowed)

    async def _view(self, wish: ViewWish | None, at: At) -> Job:
        if wish is None:
            raise StorageLost(f"the asker of a view of {at.art_id!r} is gone", art_id=at.art_id)
        try:
            cutting = await self.cutting(at, digest=wish.digest, boxes=wish.boxes)
        except CannotCut:
            return await self._whole(at)
        try:
            manifest, plan = await self._work.compute(lambda: dense_view(cutting.manifest, cutting.cuts, cutting.spans))
        except CannotCut:
            self.let_go(cutting.reading)
            return await self._whole(at)
        except BaseException:
            self.let_go(cutting.reading)
            raise
        cutting.reading.plan = plan
        undigested = sum(1 for row in manifest.tensors if not row.digest)
        size = await self._work.compute(lambda: len(encode_manifest(manifest))) + DIGEST_BYTES * undigested
        return ViewJob(at.art_id, wish.digest, manifest, size, cutting.reading)

    async def _cuts(self, manifest: Manifest, boxes: Sequence[Box]) -> list[Cut]:
        return await self._work.compute(lambda: cut_boxes(manifest, boxes, boxes_max=self._boxes_max))

    def _kept_of(self, at: At) -> Kept:
        kept = self._kept.find(at.source)
        if kept is None:
            text = f"the lease on {at.art_id!r} has ended; whoever owns it must register it again"
            raise SourceTrouble(LeaseLost(text, art_id=at.art_id), lost=True)
        return kept

    def _free(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._pool.drop(segment)


_NO_PLAN = LoadPlan([], b"", b"", b"")


def _check_sure(cuts: Sequence[Cut], *, sure: bool) -> None:
    """CannotCut for a part of a tensor where only the digest of all of it shows that its bytes are right."""
    if not sure and any(cut.nbytes and not cut.whole for cut in cuts):
        raise CannotCut("slices of an owner's memory or of our own disk can be compared with no digest")


def _check_digest(art_id: str, same: bool, /) -> None:
    if not same:
        raise Conflict(
            f"{art_id!r} has other content than the view was made for: it was put anew; make the view again",
            art_id=art_id,
        )
