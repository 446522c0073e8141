"""From filled segments to a sealed manifest: digests are completed or compared, and what a restart needs is written.

Called by service.py for Seal. Nothing is published that has other bytes than its manifest says: what was read from a
file or a disk must be what it was when it was put, what was read from a caller's memory what it was when registered.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tensorcast_bus.errors import BadCheckpoint, StorageLost, TensorCastError
from tensorcast_bus.manifest import TensorRow, encode_manifest, with_digests
from tensorcast_services.storage import sealing
from tensorcast_services.storage.core.events import Sealed
from tensorcast_services.storage.disk import Disk
from tensorcast_services.storage.disk_folder import damaged
from tensorcast_services.storage.floor import Floor
from tensorcast_services.storage.jobs import Job, LeaseJob, LoadJob, PutJob, ViewJob, all_segments
from tensorcast_services.storage.kept import Finished
from tensorcast_services.storage.load_plan import rows_filled
from tensorcast_services.storage.origins import Origins
from tensorcast_services.storage.residents import Resident
from tensorcast_services.storage.sidecars import Summary
from tensorcast_services.storage.sources import SourceTrouble, changed_file
from tensorcast_services.storage.workroom import run_failed


class Finishing:
    """`sealed` hears what a manifest's segment is of, before the core does. On the loop's thread but for tables."""

    def __init__(self, floor: Floor, origins: Origins, disk: Disk, *, sealed: Callable[[Resident], None]) -> None:
        self._pool = floor.pool
        self._jobs = floor.jobs
        self._kept = floor.kept
        self._work = floor.work
        self._post = floor.post
        self._origins = origins
        self._disk = disk
        self._sealed = sealed

    def seal(self, ticket: int, art_id: str, manifest_segment: int) -> None:
        job = self._jobs.find(ticket)

        async def work() -> None:
            try:
                if job is None or job.fill is None:
                    raise StorageLost(f"the work on {art_id!r} was given up; ask again", art_id=art_id)
                sealed = await self._seal(ticket, job, manifest_segment)
            except Exception as error:
                self._post(run_failed(ticket, art_id, error))
            else:
                self._post(sealed)

        self._work.spawn(work())

    async def _seal(self, ticket: int, job: Job, manifest_segment: int) -> Sealed:
        assert job.fill is not None
        digests, segments = job.fill.digests, all_segments(job, job.fill.segments)
        in_file = False
        match job:
            case PutJob():
                await self._check_headers(job, segments)
                await self._work.compute(lambda: _check_known(job, digests))
                summary, blob = await self._work.compute(lambda: sealing.finish_put(job, digests))
                in_file = job.draft.from_files and await self._origins.keep_beside_files(summary, blob)
                job.summary, job.blob = summary, blob
            case LeaseJob():
                summary, blob = await self._finish_lease(job, digests, segments)
            case LoadJob():
                summary, blob = await self._finish_load(job, digests, segments)
                in_file = job.reading.where == "file"
            case ViewJob():
                summary, blob = await self._work.compute(lambda: self._finish_view(job, digests))
        assert len(blob) <= job.manifest_bytes, "the size was foretold when its segment was reserved"
        self._pool.write(manifest_segment, 0, blob)
        self._pool.seal(manifest_segment)
        keys = await self._work.compute(lambda: tuple(row.key for row in job.manifest.segments))
        # What was filled from a put or a registration is in use from end to end; a load may bring back sparse segments.
        own = len(job.fill.segments) if isinstance(job, PutJob | LeaseJob) else 0
        self._sealed(Resident(job.art_id, summary.digest, manifest_segment, len(blob), segments, keys, brought=own))
        return Sealed(ticket, summary.digest, summary.nbytes, summary.tensors, summary.files, in_file)

    async def _finish_lease(self, job: LeaseJob, digests: bytes, segments: tuple[int, ...]) -> tuple[Summary, bytes]:
        await self._check_headers(job, segments)
        summary, manifest, blob = await self._work.compute(lambda: sealing.finish_lease(job.plan, digests))
        summary = msgspec.structs.replace(summary, files=())  # they are the owner's, and no replica of ours
        kept = self._kept.find(job.kept)
        if kept is not None:
            kept.finished = Finished(summary, manifest, blob)
        return summary, blob

    async def _finish_load(self, job: LoadJob, digests: bytes, segments: tuple[int, ...]) -> tuple[Summary, bytes]:
        filled = await self._work.compute(lambda: rows_filled(job.manifest, borrowed=job.borrowed))
        if job.reading.where == "disk" or job.reading.memory:
            if (row := await self._work.compute(lambda: sealing.other_row(filled, digests))) is not None:
                raise SourceTrouble(self._damaged(job, row), lost=True)
        else:
            await self._check_headers(job, segments)
            as_filled = msgspec.structs.replace(job, manifest=filled)
            await self._work.compute(lambda: sealing.check_load(as_filled, digests))
        return job.summary, job.blob

    def _damaged(self, job: LoadJob, row: TensorRow) -> TensorCastError:
        name = row.name[:200]
        if job.reading.where == "lease":
            return sealing.owner_wrote(job.art_id, f"tensor {name!r} has other bytes than when it was registered")
        image = row.copied_from[0] if row.copied_from is not None else row.segment
        path = self._disk.distrust(job.manifest.segments[image].key)
        return damaged(job.art_id, f"tensor {name!r} in {path} has other bytes")

    def _finish_view(self, job: ViewJob, digests: bytes) -> tuple[Summary, bytes]:
        split = sealing.split_digests(digests)
        for row, digest in zip(job.manifest.tensors, split, strict=True):
            if row.digest and row.digest != digest:
                what = f"tensor {row.name[:200]!r} has other bytes than when it was put or registered"
                raise SourceTrouble(_view_trouble(job, what), lost=True)
        manifest = with_digests(job.manifest, split)
        summary = Summary(job.art_id, job.digest, manifest.nbytes, len(manifest.tensors), ())
        return summary, encode_manifest(manifest)

    async def _check_headers(self, job: PutJob | LeaseJob | LoadJob, segments: tuple[int, ...]) -> None:
        def first_bytes(number: int, nbytes: int) -> bytes:
            return self._pool.read(segments[number], 0, nbytes)

        await self._work.compute(lambda: sealing.check_headers(job.art_id, job.manifest, first_bytes))


def _check_known(job: PutJob, digests: bytes) -> None:
    """SourceTrouble when a whole tensor that a view takes from elsewhere than the pool is not what it was."""
    brought = [row for row in job.manifest.tensors if row.segment not in job.borrowed] if job.known else []
    for row, digest in zip(brought, sealing.split_digests(digests) if brought else (), strict=True):
        known = job.known.get(row.name)
        if known and known != digest:
            where = job.reading.where if job.reading is not None else "pool"
            text = (
                f"tensor {row.name[:200]!r} of the view {job.art_id!r} was read from its base's {where} copy with other"
            )
            raise SourceTrouble(BadCheckpoint(f"{text} bytes than the base has; put the base again"), lost=False)


def _view_trouble(job: ViewJob, what: str) -> TensorCastError:
    match job.reading.where:
        case "disk":
            return damaged(job.art_id, what)
        case "lease" if job.reading.memory:
            return sealing.owner_wrote(job.art_id, what)
        case _:
            return changed_file(job.art_id, what)
