"""A view of what is away: only its bytes are read, into segments that are published nowhere, for one reader.

Each view is a run in an entry of its own, under an id that no artifact can have, so any number go on at a time and
beside a load of the whole. A source that is found changed is lost for the artifact too; when another is left, or the
artifact came back meanwhile, the reader starts over.
"""

from __future__ import annotations

from tensorcast_bus.errors import from_record
from tensorcast_services.storage.core import leases, line, sources
from tensorcast_services.storage.core.effects import AttachView, OpenView
from tensorcast_services.storage.core.events import RunFailed
from tensorcast_services.storage.core.holdings import away_tiers, source_of
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf


def begin(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    here = entry.holding
    assert here is not None
    tier, source = source_of(here)
    ask.view = f"\0view:{ask.request}"
    mine = shelf.entry(ask.view)
    mine.move(Cue.VIEW)
    run = Run("view", shelf.new_ticket(), ask=ask, base=entry.art_id, serial=here.serial, tier=tier)
    shelf.start_run(mine, run)
    shelf.views.setdefault(entry.art_id, []).append(mine.art_id)
    shelf.do(OpenView(run.ticket, ask.request, entry.art_id, source, tier))


def sealed(shelf: Shelf, mine: Entry, run: Run) -> None:
    ask = run.ask
    assert ask is not None and run.manifest_segment is not None
    mine.move(Cue.ENDED)
    shelf.close(ask)
    shelf.counts["views"] += 1
    shelf.do(AttachView(ask.request, run.manifest_segment, run.segments))
    shelf.end_run(mine)


def failed(shelf: Shelf, mine: Entry, run: Run, event: RunFailed) -> None:
    line.leave(shelf, run.ticket)
    shelf.end_run(mine)
    mine.move(Cue.LOST)
    ask, entry = run.ask, shelf.entry(run.base)
    assert ask is not None
    trouble = from_record(event.trouble)
    here = entry.holding
    if here is None or here.serial != run.serial:
        shelf.reply(ask, trouble)
    elif leases.is_over(run, event):
        shelf.reply(ask, trouble)
        leases.end(shelf, entry, why=trouble.text)
    elif not event.source_lost:
        shelf.reply(ask, trouble)
    else:
        sources.lost_tier(shelf, entry, tier=run.tier)
        if entry.phase is Phase.ON_FILE and not away_tiers(here):
            shelf.reply(ask, trouble)
            sources.rest(shelf, entry)
            shelf.wake(entry, fresh=False)
        elif shelf.is_open(ask):
            ask.view = ""
            shelf.woken.append(ask)
