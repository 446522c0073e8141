"""Readers that the local server could not answer itself, and those who want an artifact on disk: it is published by
now, it can be brought back, or it is not to be had.

Who asks for the manifest only makes nothing load; who brings a view makes only its bytes be read, where these can be
trusted alone.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.notes import MadeDurable, Redirect
from tensorcast_services.storage.core import deletes, lease_wording, loads, spilling, views, wording
from tensorcast_services.storage.core.effects import AttachNow, CallResolve, ReplyManifest
from tensorcast_services.storage.core.events import ResolveAnswered
from tensorcast_services.storage.core.holdings import Holding, slices_are_sure
from tensorcast_services.storage.core.phases import HOLDING_LOADS, PUBLISHED, Phase
from tensorcast_services.storage.core.puts import GONE
from tensorcast_services.storage.core.shelf import Ask, Entry, Shelf


def consider(shelf: Shelf, ask: Ask) -> None:
    entry = shelf.entry(ask.art_id)
    here = entry.holding
    if entry.phase in PUBLISHED and here is not None and not (entry.run and entry.run.withdrawing):
        _resident(shelf, entry, here, ask)
    elif _settles_soon(entry):
        entry.waiting.append(ask)
    elif entry.phase is Phase.ON_FILE and here is not None and here.confirmed:
        _away(shelf, entry, here, ask)
    else:
        # Absent, a put in progress that nobody may see yet, or left by an earlier incarnation and perhaps deleted
        # since: the global store knows.
        shelf.do(CallResolve(shelf.call(kind="resolve", ask=ask), ask.art_id, shelf.left_ms(ask)))


def resolved(shelf: Shelf, ask: Ask, event: ResolveAnswered, *, serial: int) -> None:
    entry = shelf.entry(ask.art_id)
    if event.resolved is None:
        assert event.trouble is not None
        trouble = from_record(event.trouble)
        if trouble.code in GONE:
            deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
        if _has_more_to_say(entry, serial=serial):
            consider(shelf, ask)
        else:
            shelf.reply(ask, _unresolved(shelf, ask, trouble))
        return
    if event.resolved.alias is not None:
        deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
        _redirect(shelf, ask, target=event.resolved.alias.art_id, revision=event.resolved.alias.revision)
        return
    deletes.reconcile(shelf, entry, event.resolved, serial=serial)
    if _has_more_to_say(entry, serial=serial) or entry.phase is Phase.ON_FILE:
        consider(shelf, ask)
        return
    if entry.phase is Phase.COMMITTING and any(shelf.is_mine(row) for row in event.resolved.replicas):
        # Visible already, only our own commit's answer is still on its way.
        entry.waiting.append(ask)
        return
    ended = shelf.ended.get(ask.art_id)
    if ended is not None and event.resolved.artifact.digest in ended.digests:
        # The global store has yet to hear of the end.
        shelf.reply(ask, lease_wording.lease_lost(ask.art_id, ended=ended, now_ms=shelf.now_ms))
        return
    shelf.reply(ask, wording.lost_replica(ask.art_id, event.resolved.replicas, node=shelf.node))


def _unresolved(shelf: Shelf, ask: Ask, trouble: TensorCastError) -> TensorCastError:
    if "alias" in trouble.context:
        return trouble  # it points at what is gone, which only the global store can tell
    ended = shelf.ended.get(ask.art_id)
    if ended is not None:
        return lease_wording.lease_lost(ask.art_id, ended=ended, now_ms=shelf.now_ms)
    return wording.no_answer(ask, wording.unknown_id(ask.art_id) if trouble.code == "NotFound" else trouble)


def _resident(shelf: Shelf, entry: Entry, here: Holding, ask: Ask) -> None:
    if ask.verb == "attach":
        shelf.close(ask)
        shelf.do(AttachNow(ask.request))
    elif not _answer_durable(shelf, here, ask):
        entry.waiting.append(ask)
        if entry.phase is Phase.RESIDENT:
            spilling.begin(shelf, entry)


def _away(shelf: Shelf, entry: Entry, here: Holding, ask: Ask) -> None:
    match ask.how:
        case "manifest":
            shelf.close(ask)
            shelf.do(ReplyManifest(ask.request, ask.art_id, here.digest))
        case "parts":
            views.begin(shelf, entry, ask)
        case "view" if slices_are_sure(here):
            views.begin(shelf, entry, ask)
        case _:
            if ask.verb == "attach" or not _answer_durable(shelf, here, ask):
                loads.begin(shelf, entry, ask)


def _answer_durable(shelf: Shelf, here: Holding, ask: Ask) -> bool:
    """What can be said at once to who wants it on disk."""
    if here.disk_bytes:
        shelf.reply(ask, MadeDurable(ask.art_id))
    elif here.lease is not None:
        shelf.reply(ask, lease_wording.durable_under_lease(ask.art_id))
    elif not shelf.disk:
        shelf.reply(ask, wording.no_disk("copy", ask.art_id, process=shelf.process))
    else:
        return False
    return True


def _redirect(shelf: Shelf, ask: Ask, *, target: str, revision: int) -> None:
    shelf.reply(ask, Redirect(target, revision) if ask.verb == "attach" else wording.is_alias(ask, target=target))


def _settles_soon(entry: Entry) -> bool:
    draining = entry.phase is Phase.DRAINING and entry.holding is not None  # away again in a moment
    leaving = entry.run is not None and entry.run.withdrawing  # published or away: not known yet
    return draining or leaving or entry.phase in HOLDING_LOADS or entry.phase is Phase.SETTLING


def _has_more_to_say(entry: Entry, *, serial: int) -> bool:
    """Whether this storage moved on while the global store was asked."""
    if entry.phase in PUBLISHED or _settles_soon(entry):
        return True
    return entry.holding is not None and entry.holding.serial != serial
