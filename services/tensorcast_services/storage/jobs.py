"""What the storage keeps beside a ticket while a put, a load or a view runs: what was asked, where the bytes come from,
then the fill.

Owned by service.py; filled in by requests.py and opening.py (what to read), local.py (native events) and finishing.py
(the manifest). A job ends with its run: what it still has open is closed, and segments that it holds go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tensorcast_bus.manifest import Manifest
from tensorcast_native import Pool
from tensorcast_services.storage.drafts import Draft, LeasePlan
from tensorcast_services.storage.reading import Fill, Reading
from tensorcast_services.storage.sidecars import Summary


class PutJob(msgspec.Struct):
    """`source` is the path that the bytes take. With `reading` the storage fetches them itself (a view that is made an
    artifact). `borrowed`: segments of the manifest (by number) that are in the pool already, one user each of the
    job's, and of the run's once it has room. `known`: digests that tensors must have, by name, where they were read
    from what may be damaged. `summary` and `blob`: the finished manifest, once it is sealed."""

    art_id: str
    draft: Draft
    source: str
    reading: Reading | None = None
    borrowed: dict[int, int] = msgspec.field(default_factory=dict)
    known: dict[str, bytes] = msgspec.field(default_factory=dict)
    fill: Fill | None = None
    summary: Summary | None = None
    blob: bytes = b""

    @property
    def manifest(self) -> Manifest:
        return self.draft.manifest

    @property
    def manifest_bytes(self) -> int:
        return self.draft.manifest_bytes


class LeaseJob(msgspec.Struct):
    """A registration's bytes, on their way: at the first read from the kept source (`reading`), or at once (without),
    where its caller cannot be read later. `kept` names the source either way."""

    art_id: str
    plan: LeasePlan
    kept: int
    source: str
    reading: Reading | None = None
    borrowed: dict[int, int] = msgspec.field(default_factory=dict)
    fill: Fill | None = None
    summary: Summary | None = None
    blob: bytes = b""

    @property
    def manifest(self) -> Manifest:
        return self.plan.draft.manifest

    @property
    def manifest_bytes(self) -> int:
        return self.plan.draft.manifest_bytes


class LoadJob(msgspec.Struct):
    """`blob` is the finished manifest as its sidecar, or the kept source, has it."""

    art_id: str
    summary: Summary
    manifest: Manifest
    blob: bytes
    reading: Reading
    borrowed: dict[int, int] = msgspec.field(default_factory=dict)
    fill: Fill | None = None

    @property
    def manifest_bytes(self) -> int:
        return len(self.blob)


class ViewJob(msgspec.Struct):
    """A view's bytes for one reader. `manifest` is the dense one; its rows have a digest where the box is a whole
    tensor whose digest is known. `digest` is the artifact's."""

    art_id: str
    digest: str
    manifest: Manifest
    manifest_bytes: int
    reading: Reading
    borrowed: dict[int, int] = msgspec.field(default_factory=dict)
    fill: Fill | None = None


Job = PutJob | LeaseJob | LoadJob | ViewJob


def all_segments(job: Job, filled: Sequence[int]) -> tuple[int, ...]:
    """The job's segments in its manifest's order, from those that a fill brought and those that it borrowed."""
    brought = iter(filled)
    count = len(filled) + len(job.borrowed)
    return tuple(job.borrowed[n] if n in job.borrowed else next(brought) for n in range(count))


class Jobs:
    """By ticket. `drop` is harmless for a job that is over."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._jobs: dict[int, Job] = {}
        self._given: set[int] = set()
        self._ticket_of: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, ticket: int, job: Job, *, request: int = 0) -> None:
        """`request` where it is another number than the ticket."""
        self._jobs[ticket] = job
        if request:
            self._ticket_of[request] = ticket

    def find(self, ticket: int) -> Job | None:
        return self._jobs.get(ticket)

    def give_borrowed(self, ticket: int) -> tuple[int, ...]:
        """It has room: from here on the users of the borrowed segments are the run's, which ends the job."""
        self._given.add(ticket)
        return tuple(self._jobs[ticket].borrowed.values())

    def let_sources_go(self, reading: Reading) -> None:
        """The native floor has taken over what the load reads from."""
        reading.close_files()
        self._free(reading.sources)
        reading.sources = []

    def answered(self, request: int) -> None:
        """Its asker waits no longer: a job that never had room has no run that would end it."""
        ticket = self._ticket_of.pop(request, request)
        if ticket not in self._given:
            self.drop(ticket)

    def drop(self, ticket: int) -> None:
        job = self._jobs.pop(ticket, None)
        given = ticket in self._given
        self._given.discard(ticket)
        if job is None:
            return
        if job.reading is not None:
            self.let_sources_go(job.reading)
        if job.borrowed and not given:
            self._free(job.borrowed.values())

    def clear(self) -> None:
        for ticket in list(self._jobs):
            self.drop(ticket)

    def _free(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._pool.drop(segment)
