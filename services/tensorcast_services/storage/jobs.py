"""What the storage keeps beside a ticket while a put or a load runs: the draft or the opened files, then the fill.

Owned by service.py; filled in by local.py (native events) and workroom.py (threads). A job ends with its run, which
closes what it still has open.
"""

from __future__ import annotations

import msgspec

from tensorcast_bus.manifest import Manifest
from tensorcast_native import FillDone
from tensorcast_services.storage.drafts import Draft
from tensorcast_services.storage.load_plan import LoadPlan
from tensorcast_services.storage.sidecars import Summary
from tensorcast_services.storage.sources import close_all


class PutJob(msgspec.Struct):
    art_id: str
    draft: Draft
    source: str
    fill: FillDone | None = None

    @property
    def manifest_bytes(self) -> int:
        return self.draft.manifest_bytes


class LoadJob(msgspec.Struct):
    """`blob` is the finished manifest as its sidecar keeps it; `fds` are open until the load has taken them over."""

    art_id: str
    summary: Summary
    manifest: Manifest
    blob: bytes
    plan: LoadPlan
    fds: list[int]
    fill: FillDone | None = None

    @property
    def manifest_bytes(self) -> int:
        return len(self.blob)

    def close_files(self) -> None:
        close_all(self.fds)


class Jobs:
    """By ticket. `drop` is harmless for one that is over."""

    def __init__(self) -> None:
        self._jobs: dict[int, PutJob | LoadJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, ticket: int, job: PutJob | LoadJob) -> None:
        self._jobs[ticket] = job

    def find(self, ticket: int) -> PutJob | LoadJob | None:
        return self._jobs.get(ticket)

    def drop(self, ticket: int) -> None:
        job = self._jobs.pop(ticket, None)
        if isinstance(job, LoadJob):
            job.close_files()

    def clear(self) -> None:
        for ticket in list(self._jobs):
            self.drop(ticket)
