"""Whether anything can be written to our own disk now, and what would be worth it.

A disk that is full, fails or hangs is left alone for DISK_RETRY_MS, and as long as a write that was given up has not
ended. A durable put or an explicit wish tries it all the same.
"""

from __future__ import annotations

from tensorcast_services.storage.core.holdings import away_tiers
from tensorcast_services.storage.core.phases import Phase
from tensorcast_services.storage.core.shelf import Entry, Shelf

DISK_RETRY_MS = 10_000


def distrust(shelf: Shelf, why: str) -> None:
    shelf.disk_trouble = (shelf.now_ms + DISK_RETRY_MS, why)


def why_not(shelf: Shelf) -> str:
    """Why nothing is written to make room; "" when it is."""
    if not shelf.disk:
        return "there is no disk to write to (storage.disk_path)"
    hangs = [entry.art_id for name in shelf.writing if (entry := shelf.entries[name]).run and entry.run.cancelled]
    if hangs:
        return f"the disk does not answer: writing {hangs[0]!r} was given up and has not ended"
    if shelf.disk_trouble is not None and shelf.now_ms < shelf.disk_trouble[0]:
        return f"the disk takes nothing at present: {shelf.disk_trouble[1]}"
    return ""


def may(shelf: Shelf, entry: Entry) -> bool:
    """Whether writing it out would make it evictable. What a lease governs ends with the lease and is never written."""
    here = entry.holding
    if here is None or here.lease is not None or away_tiers(here):
        return False
    return entry.phase in (Phase.RESIDENT, Phase.SPILLING) and not why_not(shelf)
