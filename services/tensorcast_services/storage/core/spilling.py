"""Writing out to our own disk what has no other replica: for the head of the line, ahead of need, or because asked for.

The artifact stays published all the while. A disk that is full or fails is left alone for a while (disk_trust.py), and
whoever needed the room hears why. Above the high watermark (`spill_percent` of the pool) artifacts are written out,
least recently attached first, until plain eviction alone would reach the low one, LOW_MARK_POINTS below; nothing is
evicted for it.
"""

from __future__ import annotations

from tensorcast_bus.errors import from_record
from tensorcast_services.storage.core import disk_trust
from tensorcast_services.storage.core.effects import CancelWrite, TellHeld, WriteOut
from tensorcast_services.storage.core.events import PoolSeen, RunFailed, WrittenOut
from tensorcast_services.storage.core.holdings import away_tiers
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Run, Shelf

SPILL_MS_MAX = 120_000  # the head of the line waits no longer for one artifact
LOW_MARK_POINTS = 10


def begin(shelf: Shelf, entry: Entry) -> None:
    entry.move(Cue.SPILL)
    run = Run("spill", shelf.new_ticket())
    shelf.start_run(entry, run)
    shelf.writing.add(entry.art_id)
    shelf.do(WriteOut(run.ticket, entry.art_id))


def written(shelf: Shelf, entry: Entry, event: WrittenOut) -> None:
    assert entry.holding is not None
    entry.holding.disk_bytes = max(1, event.nbytes)
    shelf.counts["spills"] += 1
    shelf.disk_trouble = None
    entry.move(Cue.WRITTEN)
    _over(shelf, entry)
    shelf.do(TellHeld(entry.art_id))
    shelf.wake(entry, fresh=False)


def failed(shelf: Shelf, entry: Entry, event: RunFailed) -> None:
    """It stays in memory. Who asked for it to be on disk hears why it is not."""
    assert entry.run is not None
    if not entry.run.cancelled:
        disk_trust.distrust(shelf, event.trouble.text)
    shelf.passed_over[entry.art_id] = event.trouble.text
    entry.move(Cue.FAILED)
    _over(shelf, entry)
    asked = [ask for ask in entry.waiting if ask.verb == "durable"]
    entry.waiting = [ask for ask in entry.waiting if ask.verb != "durable"]
    for ask in asked:
        shelf.reply(ask, from_record(event.trouble))
    shelf.wake(entry, fresh=False)


def late(shelf: Shelf, entry: Entry) -> None:
    """The head of the line goes on to the next victim; the writing ends when it can."""
    assert entry.run is not None
    entry.run.cancelled = True
    why = f"writing {entry.art_id!r} to disk did not end within {SPILL_MS_MAX} ms"
    shelf.passed_over[entry.art_id] = why
    disk_trust.distrust(shelf, why)
    shelf.do(CancelWrite(entry.run.ticket))


def drop(shelf: Shelf, entry: Entry) -> None:
    """The artifact is gone while it is being written."""
    assert entry.run is not None
    shelf.do(CancelWrite(entry.run.ticket))
    shelf.writing.discard(entry.art_id)
    entry.move(Cue.ABANDONED)


def seen(shelf: Shelf, event: PoolSeen) -> None:
    """What has to be written out so that eviction alone reaches the low mark."""
    shelf.spill_next.clear()
    low = event.capacity_bytes * max(0, shelf.spill_percent - LOW_MARK_POINTS) // 100
    excess = event.used_bytes - low
    found = []
    for use in event.uses:
        entry = shelf.entries.get(use.art_id)
        if entry is None or entry.holding is None or use.pins:
            continue
        if away_tiers(entry.holding) or entry.phase is Phase.SPILLING:
            excess -= use.nbytes
        elif disk_trust.may(shelf, entry):
            found.append(use)
    for use in sorted(found, key=lambda use: (use.last_ns, use.art_id)):
        if excess <= 0:
            break
        excess -= use.nbytes
        shelf.spill_next.append(use.art_id)


def advance(shelf: Shelf) -> None:
    """Starts on the next artifact ahead of need, when nothing else is being written."""
    while shelf.spill_next and not shelf.writing:
        entry = shelf.entry(shelf.spill_next.popleft())
        if disk_trust.may(shelf, entry):
            begin(shelf, entry)


def _over(shelf: Shelf, entry: Entry) -> None:
    shelf.writing.discard(entry.art_id)
    if shelf.evicting == entry.art_id:
        shelf.evicting = ""
        shelf.evict_due_ms = None
    shelf.end_run(entry)
