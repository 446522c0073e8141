"""A view that becomes an artifact: a put whose bytes the storage has itself.

Called by requests.py. Whole tensors of a base that is in the pool borrow its segments; everything else is copied to one
new segment, from the pool, or where the base is away from what gives it back. The job waits under a ticket of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from tensorcast_bus.errors import Conflict, TensorCastError, Unavailable
from tensorcast_bus.manifest import MANIFEST_VERSION, Manifest, SegmentRow, TensorRow, decode_manifest, encode_manifest
from tensorcast_bus.notes import AskCommitView
from tensorcast_services.storage.boxes import Cut, cut_boxes
from tensorcast_services.storage.core.events import PutAsked
from tensorcast_services.storage.disk import Disk
from tensorcast_services.storage.draft_rows import DIGEST_BYTES, new_key
from tensorcast_services.storage.drafts import Draft, room_bytes
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import PutJob
from tensorcast_services.storage.load_plan import LoadPlan
from tensorcast_services.storage.opening import At, Opening
from tensorcast_services.storage.pieces import POOL
from tensorcast_services.storage.reading import Reading
from tensorcast_services.storage.residents import Resident
from tensorcast_services.storage.view_plan import VIEW_PIECES_MAX, CannotCut, Span, view_image
from tensorcast_services.storage.workroom import as_trouble


class _Made(msgspec.Struct, frozen=True):
    """A draft over at most one new segment (`plan`, None where nothing is copied) and `borrowed` segments of the base,
    by their number in the draft."""

    manifest: Manifest
    plan: LoadPlan | None
    borrowed: dict[int, int]


class CommittedViews:
    """`reply` ends a request, `new_ticket` is the core's, `boxes_max` bounds a view. On the loop's thread but for
    tables."""

    def __init__(
        self,
        floor: Floor,
        opening: Opening,
        disk: Disk,
        *,
        reply: Callable[[int, msgspec.Struct], None],
        new_ticket: Callable[[], int],
    ) -> None:
        self._pool = floor.pool
        self._jobs = floor.jobs
        self._kept = floor.kept
        self._residents = floor.residents
        self._work = floor.work
        self._post = floor.post
        self._boxes_max = floor.settings.tensors_max
        self._opening = opening
        self._disk = disk
        self._reply = reply
        self._new_ticket = new_ticket

    async def take(self, request: int, ask: AskCommitView, *, budget_ms: int) -> None:
        began = time.monotonic()
        try:
            if ask.durable and self._disk.off_why:
                raise Unavailable(self._disk.off_why, art_id=ask.art_id)
            found = self._residents.find(ask.base)
            job = await (self._of_resident(ask, found) if found is not None else self._of_away(ask))
        except CannotCut as error:
            text = f"the view of {ask.base!r} cannot be copied: {error}; attach the whole first, or take fewer slices"
            trouble = Unavailable(text, art_id=ask.base, pieces_max=VIEW_PIECES_MAX, attach_first=True)
            self._reply(request, trouble.record())
        except Exception as error:
            self._reply(request, as_trouble(ask.art_id, error).record())
        else:
            ticket = self._new_ticket()
            self._jobs.add(ticket, job, request=request)
            # What planning and opening took counts: nothing is committed after its asker's time.
            left_ms = max(0, budget_ms - int((time.monotonic() - began) * 1000))
            self._post(PutAsked(request, ask.art_id, left_ms, job.draft.need_bytes, ask.durable, ticket))

    async def _of_resident(self, ask: AskCommitView, base: Resident) -> PutJob:
        """All of the base is held while this looks at it."""
        if base.digest != ask.digest:
            raise _other_content(ask)
        held = (base.manifest_segment, *base.segments)
        for segment in held:
            self._pool.hold(segment)
        try:
            made = await self._work.compute(lambda: self._plan(ask, base))
            reading = None
            if made.plan is not None:
                reading = Reading(made.plan, "pool", sources=self._hold([base.segments[n] for n in made.plan.sources]))
            self._hold(list(made.borrowed.values()))
        finally:
            self._free(held)
        return PutJob(ask.art_id, _draft(ask, made), "pool", reading, made.borrowed)

    async def _of_away(self, ask: AskCommitView) -> PutJob:
        at = At(ask.base, self._kept.source_of(ask.base, ask.digest))
        cutting = await self._opening.cutting(at, digest=ask.digest, boxes=ask.boxes)
        try:
            rows, plan = await self._work.compute(lambda: view_image(cutting.cuts, cutting.spans))
        except BaseException:
            self._opening.let_go(cutting.reading)
            raise
        cutting.reading.plan = plan
        segments = (SegmentRow(plan.segment_bytes[0], key=new_key()),)
        manifest = Manifest(MANIFEST_VERSION, ask.art_id, segments, tuple(rows), cutting.manifest.metadata)
        known = {cut.name: cut.row.digest for cut in cutting.cuts if cut.whole}
        return PutJob(ask.art_id, _draft(ask, _Made(manifest, plan, {})), "pool", cutting.reading, known=known)

    def _plan(self, ask: AskCommitView, base: Resident) -> _Made:
        manifest = decode_manifest(self._pool.read(base.manifest_segment, 0, base.manifest_bytes))
        cuts = cut_boxes(manifest, ask.boxes, boxes_max=self._boxes_max)
        lent = [cut for cut in cuts if cut.whole and cut.nbytes and manifest.segments[cut.row.segment].key]
        copied = [cut for cut in cuts if not (cut.whole and cut.nbytes and manifest.segments[cut.row.segment].key)]
        needed = sorted({cut.row.segment for cut in copied if cut.nbytes})
        spans = {n: [Span(0, manifest.segments[n].nbytes, POOL, 0, index)] for index, n in enumerate(needed)}
        rows, plan = view_image([_where_it_lies(cut) for cut in copied], spans) if copied else ([], None)
        if plan is not None:
            plan = msgspec.structs.replace(plan, sources=tuple(needed))
        new = [SegmentRow(plan.segment_bytes[0], key=new_key())] if plan is not None else []
        numbers = sorted({cut.row.segment for cut in lent})
        place = {number: len(new) + at for at, number in enumerate(numbers)}
        segments = (*new, *(SegmentRow(manifest.segments[n].nbytes, key=manifest.segments[n].key) for n in numbers))
        borrowed_rows = [
            msgspec.structs.replace(cut.row, name=cut.name, segment=place[cut.row.segment], copied_from=None)
            for cut in lent
        ]
        made = Manifest(MANIFEST_VERSION, ask.art_id, segments, (*rows, *borrowed_rows), manifest.metadata)
        return _Made(made, plan, {place[n]: base.segments[n] for n in numbers})

    def _hold(self, segments: list[int]) -> list[int]:
        for segment in segments:
            self._pool.hold(segment)
        return segments

    def _free(self, segments: Sequence[int]) -> None:
        for segment in segments:
            self._pool.drop(segment)


def _draft(ask: AskCommitView, made: _Made) -> Draft:
    undigested = sum(1 for row in made.manifest.tensors if not row.digest)
    manifest_bytes = len(encode_manifest(made.manifest)) + DIGEST_BYTES * undigested
    plan = made.plan
    need = sum(map(room_bytes, plan.segment_bytes if plan is not None else ())) + room_bytes(manifest_bytes)
    return Draft(
        made.manifest,
        plan.rows if plan is not None else b"",
        manifest_bytes,
        need,
        from_files=False,
        durable=ask.durable,
        borrowed=tuple(made.manifest.segments[n].key for n in made.borrowed),
        base_checked=True,
    )


def _where_it_lies(cut: Cut) -> Cut:
    """In the pool a copy aside is read where it is."""
    row: TensorRow = msgspec.structs.replace(cut.row, copied_from=None)
    return msgspec.structs.replace(cut, row=row)


def _other_content(ask: AskCommitView) -> TensorCastError:
    return Conflict(
        f"{ask.base!r} has other content than the view was made for: it was put anew; make the view again",
        art_id=ask.base,
    )
