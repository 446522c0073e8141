"""What can give an artifact's bytes back, and what happens when that is lost.

A tier that is lost is told to the global store and leaves nothing on disk; an artifact that is away and has no tier
left is no replica any more.
"""

from __future__ import annotations

from tensorcast_services.storage.core.effects import RemoveSidecar, TellLost
from tensorcast_services.storage.core.events import Restored
from tensorcast_services.storage.core.holdings import Holding, away_tiers
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Shelf


def lost_tier(shelf: Shelf, entry: Entry, *, tier: str) -> None:
    """ "file" or "disk" is not what it was. Harmless when that is known already."""
    here = entry.holding
    if here is None or tier not in away_tiers(here):
        return
    if tier == "file":
        here.in_file = False
    else:
        here.disk_bytes = 0
    shelf.do(RemoveSidecar(entry.art_id, tier))
    shelf.do(TellLost(entry.art_id, tier))


def rest(shelf: Shelf, entry: Entry) -> bool:
    """For what is away from here on: False, and the holding is gone, when nothing can give it back. The caller wakes
    those who wait."""
    here = entry.holding
    assert entry.phase is Phase.ON_FILE and here is not None
    if away_tiers(here):
        return True
    entry.holding = None
    entry.move(Cue.LOST)
    shelf.do(RemoveSidecar(entry.art_id))
    return False


def restore(shelf: Shelf, event: Restored) -> None:
    """Files and our disk may both have it, in one event or in two; of two contents under one id the first is taken."""
    entry = shelf.entry(event.art_id)
    here = entry.holding
    if here is not None and here.digest == event.digest:
        here.disk_bytes = event.disk_bytes or here.disk_bytes
        here.in_file = here.in_file or bool(event.files)
        here.files = event.files or here.files
    elif entry.phase is Phase.ABSENT:
        entry.move(Cue.RESTORED)
        entry.holding = Holding(
            shelf.new_serial(),
            event.digest,
            event.nbytes,
            event.tensors,
            event.files,
            in_file=bool(event.files),
            revision=0,
            confirmed=False,
            disk_bytes=event.disk_bytes,
        )
