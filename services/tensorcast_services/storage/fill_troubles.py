"""What went wrong with a fill, in words for whoever waits for it, and whether the source of its bytes is lost.

Called by local.py alone.
"""

from __future__ import annotations

import os

from tensorcast_bus.errors import BadCheckpoint, LeaseLost, LocalProtocolError, StorageLost, TensorCastError, Timeout
from tensorcast_native import FillDone
from tensorcast_services.storage.disk_folder import damaged
from tensorcast_services.storage.jobs import Job, LoadJob, ViewJob
from tensorcast_services.storage.sources import changed_file

CHANGED = frozenset({"source_changed", "source_short"})
MEMORY_GONE = frozenset({"gone", "source_error", *CHANGED})


def is_source_lost(done: FillDone, job: Job | None) -> bool:
    """Whether what was read cannot give the bytes back any more."""
    reading = job.reading if job is not None else None
    if reading is not None and reading.where == "lease":
        return done.status in (MEMORY_GONE if reading.memory else CHANGED)
    return done.status in CHANGED and isinstance(job, LoadJob | ViewJob)


def fill_trouble(done: FillDone, job: Job | None) -> TensorCastError:
    art_id = job.art_id if job is not None else "?"
    detail = done.detail or done.status
    reading = job.reading if job is not None else None
    if reading is not None and reading.memory and done.status in MEMORY_GONE:
        return LeaseLost(
            f"the lease on {art_id!r} has ended: its owner gave its memory up or ended ({detail}); register it "
            "again, or put it",
            art_id=art_id,
        )
    match done.status:
        case "source_changed" | "source_short" if reading is not None and reading.where == "disk":
            return damaged(art_id, detail)
        case "source_changed" | "source_short":
            return changed_file(art_id, detail)
        case "source_error":
            why = os.strerror(done.error) if done.error else "no reason given"
            return BadCheckpoint(f"the source of {art_id!r} cannot be read: {detail} ({why})", art_id=art_id)
        case "deadline":
            return Timeout(
                f"copying the bytes of {art_id!r} did not end in time ({detail}): give it a longer deadline_ms",
                art_id=art_id,
                phase="copying the bytes",
            )
        case "bad_plan":
            return LocalProtocolError(f"the pieces of {art_id!r} do not make up its segments: {detail}", art_id=art_id)
        case _:
            return StorageLost(f"the copy of {art_id!r} was given up: {detail}; ask again", art_id=art_id)
