"""Ends of a holding: deleted by a caller here or elsewhere, unknown to the catalog, or under a lease that ended.

Deletes run beside whatever else happens to the id: the catalog's revisions say which of a commit and a delete came
last. Only an unsettled commit makes them wait.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.messages import Resolved
from tensorcast_bus.notes import Deleted
from tensorcast_services.storage.core import eviction, spilling, stopping, wording
from tensorcast_services.storage.core.effects import CallDelete, RemoveSidecar, TellHeld, Withdraw
from tensorcast_services.storage.core.events import DeleteAnswered, RemoteDeleted, ReportEnded
from tensorcast_services.storage.core.phases import HOLDING_LOADS, PUBLISHED, Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Shelf


def consider(shelf: Shelf, ask: Ask) -> None:
    entry = shelf.entry(ask.art_id)
    if entry.phase is Phase.SETTLING:
        entry.waiting.append(ask)
        return
    ticket = shelf.call(kind="delete", ask=ask)
    shelf.do(CallDelete(ticket, ask.request, ask.art_id, shelf.left_ms(ask)))


def answered(shelf: Shelf, art_id: str, ask: Ask | None, event: DeleteAnswered, *, serial: int) -> None:
    """Takes effect even when the asker gave up meanwhile: the id is gone."""
    entry = shelf.entry(art_id)
    if event.trouble is None:
        _gone_at(shelf, entry, revision=event.revision)
        shelf.reply(ask, Deleted(art_id))
        return
    trouble = from_record(event.trouble)
    if trouble.code == "NotFound":
        unknown_at_the_global_store(shelf, entry, serial=serial)
    if ask is not None:
        shelf.reply(ask, wording.no_answer(ask, trouble))


def remote(shelf: Shelf, event: RemoteDeleted) -> None:
    if event.art_id in shelf.entries:
        _gone_at(shelf, shelf.entries[event.art_id], revision=event.revision)


def _gone_at(shelf: Shelf, entry: Entry, *, revision: int) -> None:
    """The catalog deleted the id at `revision`; a holding committed later than that stays."""
    entry.deleted_revision = max(entry.deleted_revision, revision)
    if entry.holding is not None and entry.holding.revision < revision:
        forget(shelf, entry)


def unknown_at_the_global_store(shelf: Shelf, entry: Entry, *, serial: int) -> None:
    """The catalog has no such id. A holding newer than the question is not meant."""
    if entry.holding is not None and entry.holding.serial == serial:
        forget(shelf, entry)


def reconcile(shelf: Shelf, entry: Entry, known: Resolved, *, serial: int) -> bool:
    """Compares the holding that was there when the question went out with the catalog's record. True when it is
    still here and good."""
    artifact = known.artifact
    here = entry.holding
    if here is None or here.serial != serial:
        return False
    if artifact.digest not in (here.digest, here.was) or artifact.ownership != here.ownership:
        forget(shelf, entry)
        return False
    here.confirmed = True
    here.revision = max(here.revision, artifact.revision)
    if not any(shelf.is_mine(row) for row in known.replicas):
        # Deleted and put again elsewhere with the same content: our claim went with the old record.
        shelf.do(TellHeld(entry.art_id))
    return True


def report_ended(shelf: Shelf, event: ReportEnded) -> None:
    refused = set(event.refused)
    for art_id, serial in event.claimed:
        entry = shelf.entries.get(art_id)
        if entry is None or entry.holding is None or entry.holding.serial != serial:
            continue
        if art_id in refused:
            shelf.touched.add(art_id)
            forget(shelf, entry)
        else:
            entry.holding.confirmed = True


def forget(shelf: Shelf, entry: Entry, *, answer: TensorCastError | None = None) -> None:
    """Lets the holding go, whatever is being done with it. Blocks return at the last unmap. Readers who wait hear
    `answer`, else that there is no such id."""
    here = entry.holding
    if here is None:
        return
    entry.holding = None
    if here.lease is not None:
        shelf.let_go(here.lease.source)
    shelf.do(RemoveSidecar(entry.art_id))
    if entry.phase in PUBLISHED:
        shelf.do(Withdraw(entry.art_id))
    if shelf.evicting == entry.art_id:
        eviction.over(shelf, entry)
    if entry.phase is Phase.EVICTING:
        shelf.end_run(entry)
    if answer is not None:
        stopping.tell_readers(shelf, entry, answer)
    answer = answer or wording.unknown_id(entry.art_id)
    stopping.stop_views(shelf, entry.art_id, answer=answer)
    if entry.phase in HOLDING_LOADS:
        stopping.stop_load(shelf, entry, answer=answer)
    elif entry.phase is Phase.SPILLING:
        spilling.drop(shelf, entry)
    elif entry.phase is not Phase.DRAINING:
        entry.move(Cue.LOST)
    if entry.phase is not Phase.DRAINING:
        shelf.wake(entry, fresh=False)
