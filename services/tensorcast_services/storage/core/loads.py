"""Bringing an artifact back from its files, our disk, or its owner, once for however many wait for it.

Every digest is compared with the manifest's before anything is published: a source that has other bytes than it had is
no source any more; when another one is left it is tried, else all who wait hear why. A load that nobody waits for goes
on once it copies (the next attach finds it warm), and is given up while it only waits.
"""

from __future__ import annotations

from tensorcast_bus.errors import BadCheckpoint, from_record
from tensorcast_bus.manifest import is_pending
from tensorcast_services.storage.core import leases, line, sources, stopping
from tensorcast_services.storage.core.effects import OpenFiles, Publish, Seal, TellHeld
from tensorcast_services.storage.core.events import Filled, RunFailed, Sealed
from tensorcast_services.storage.core.holdings import source_of
from tensorcast_services.storage.core.phases import Cue
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf


def begin(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    here = entry.holding
    assert here is not None
    entry.move(Cue.BEGIN)
    tier, source = source_of(here)
    run = Run("load", shelf.new_ticket(), base=entry.art_id, serial=here.serial, tier=tier)
    shelf.start_run(entry, run)
    entry.waiting.append(ask)
    shelf.do(OpenFiles(run.ticket, entry.art_id, source, tier))


def opened(shelf: Shelf, entry: Entry, run: Run, *, need_bytes: int) -> None:
    """Also of a view."""
    run.need_bytes = need_bytes
    entry.move(Cue.OPENED)
    line.join(shelf, run.ticket)


def filled(shelf: Shelf, entry: Entry, run: Run, event: Filled) -> None:
    """Also of a view."""
    run.segments = event.segments
    assert run.manifest_segment is not None
    entry.move(Cue.FILLED)
    shelf.do(Seal(run.ticket, run.base, run.manifest_segment))


def sealed(shelf: Shelf, entry: Entry, run: Run, event: Sealed) -> None:
    here = entry.holding
    assert run.manifest_segment is not None and here is not None
    if is_pending(here.digest):
        here.was, here.digest = here.digest, event.digest
    elif here.digest != event.digest:
        text = f"{entry.art_id!r} was read again and is {event.digest}; it was {here.digest}: its source has changed"
        trouble = BadCheckpoint(text, art_id=entry.art_id, expected=here.digest, found=event.digest)
        failed(shelf, entry, run, RunFailed(run.ticket, trouble.record(), source_lost=True))
        return
    entry.move(Cue.SEALED)
    shelf.counts["loads"] += 1
    shelf.do(Publish(entry.art_id, run.manifest_segment, run.segments))
    shelf.end_run(entry)
    shelf.do(TellHeld(entry.art_id))
    shelf.wake(entry, fresh=True)


def failed(shelf: Shelf, entry: Entry, run: Run, event: RunFailed) -> None:
    line.leave(shelf, run.ticket)
    shelf.end_run(entry)
    entry.move(Cue.FAILED)
    trouble = from_record(event.trouble)
    if leases.is_over(run, event):
        stopping.tell_readers(shelf, entry, trouble)
        leases.end(shelf, entry, why=trouble.text)
        return
    if event.source_lost:
        sources.lost_tier(shelf, entry, tier=run.tier)
    if not event.source_lost or not sources.rest(shelf, entry):
        stopping.tell_readers(shelf, entry, trouble)
    shelf.wake(entry, fresh=False)
