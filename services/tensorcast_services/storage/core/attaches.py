"""An attach that the local server could not answer itself: published by now, loadable from file, or not to be had."""

from __future__ import annotations

from tensorcast_bus.errors import from_record
from tensorcast_services.storage.core import deletes, loads, wording
from tensorcast_services.storage.core.effects import AttachNow, CallResolve
from tensorcast_services.storage.core.events import ResolveAnswered
from tensorcast_services.storage.core.phases import HOLDING_LOADS, PUBLISHED, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Shelf


def consider(shelf: Shelf, ask: Ask) -> None:
    entry = shelf.entry(ask.art_id)
    if entry.phase in PUBLISHED and not (entry.run and entry.run.withdrawing):
        del shelf.asks[ask.request]
        shelf.do(AttachNow(ask.request))
    elif _settles_soon(entry):
        entry.waiting.append(ask)
    elif entry.phase is Phase.ON_FILE and entry.holding is not None and entry.holding.confirmed:
        loads.begin(shelf, entry, ask)
    else:
        # Absent, a put in progress that nobody may see yet, or left by an earlier incarnation and perhaps deleted
        # since: the global store knows.
        shelf.do(CallResolve(shelf.call(kind="resolve", ask=ask), ask.art_id, shelf.left_ms(ask)))


def resolved(shelf: Shelf, ask: Ask, event: ResolveAnswered, *, serial: int) -> None:
    entry = shelf.entry(ask.art_id)
    if event.resolved is None:
        assert event.trouble is not None
        trouble = from_record(event.trouble)
        if trouble.code == "NotFound":
            deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
            trouble = wording.unknown_id(ask.art_id)
        if _has_more_to_say(entry, serial=serial):
            consider(shelf, ask)
        else:
            shelf.reply(ask, wording.no_answer(ask, trouble))
        return
    deletes.reconcile(shelf, entry, event.resolved, serial=serial)
    if _has_more_to_say(entry, serial=serial) or entry.phase is Phase.ON_FILE:
        consider(shelf, ask)
        return
    if entry.phase is Phase.COMMITTING and any(shelf.is_mine(row) for row in event.resolved.replicas):
        # Visible already, only our own commit's answer is still on its way.
        entry.waiting.append(ask)
        return
    shelf.reply(ask, wording.lost_replica(ask.art_id, event.resolved.replicas, node=shelf.node))


def _settles_soon(entry: Entry) -> bool:
    draining = entry.phase is Phase.DRAINING and entry.holding is not None  # back to its file in a moment
    leaving = entry.run is not None and entry.run.withdrawing  # published or on file: not known yet
    return draining or leaving or entry.phase in HOLDING_LOADS or entry.phase is Phase.SETTLING


def _has_more_to_say(entry: Entry, *, serial: int) -> bool:
    """Whether this storage moved on while the global store was asked."""
    if entry.phase in PUBLISHED or _settles_soon(entry):
        return True
    return entry.holding is not None and entry.holding.serial != serial
