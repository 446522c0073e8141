"""A put, from its draft to visible: room, fill, seal, disk where asked for, commit, publish; and a registration, which
skips all but the commit unless its bytes are taken at once. Called by artifacts.py with one event each.

The first put of an id that nobody living holds becomes the entry's run; a second one waits in the entry and takes over
when the first fails. Nothing is visible before the global store has answered the commit; when that answer is lost the
bytes are kept aside (SETTLING) and the same commit is asked again until its outcome is known.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.notes import PutBaseGone, PutExists
from tensorcast_services.storage.core import commits, deletes, lease_wording, line, sources, wording
from tensorcast_services.storage.core.effects import (
    Answer,
    CallResolve,
    CheckFiles,
    RemoveSidecar,
    Seal,
    WriteOut,
)
from tensorcast_services.storage.core.events import Filled, ResolveAnswered, RunFailed, Sealed, WrittenOut
from tensorcast_services.storage.core.holdings import away_tiers
from tensorcast_services.storage.core.phases import AT_REST, Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf

GONE = frozenset({"NotFound", "LeaseLost"})  # the global store's words for an id that is free
RESOLVE_RESIDENT_MS_MAX = 2000  # past this a put of a resident id is answered from what is known here


def consider(shelf: Shelf, ask: Ask) -> None:
    """Starts, or starts over, a put or a registration."""
    entry = shelf.entry(ask.art_id)
    if ask.durable and not shelf.disk:
        shelf.reply(ask, wording.no_disk(ask.verb, ask.art_id, process=shelf.process))
    elif entry.phase not in AT_REST:
        entry.waiting.append(ask)
    elif not ask.asked:
        left = shelf.left_ms(ask)
        budget = min(left // 2, RESOLVE_RESIDENT_MS_MAX) if _known_here(entry) else left
        shelf.do(CallResolve(shelf.call(kind="resolve", ask=ask), ask.art_id, max(1, budget)))
    elif entry.holding is None:
        _begin(shelf, entry, ask)
    elif entry.phase is Phase.ON_FILE and away_tiers(entry.holding) == ("file",):
        # The file may have changed since it was last looked at; then nobody here holds the bytes, and this put may.
        shelf.do(CheckFiles(shelf.call(kind="check", ask=ask), entry.holding.files))
    else:
        _exists(shelf, entry, ask)


def resolved(shelf: Shelf, ask: Ask, event: ResolveAnswered, *, serial: int) -> None:
    """The global store's word on the id of a put. `serial` is that of the holding when it was asked."""
    entry = shelf.entry(ask.art_id)
    ask.asked = True
    if event.resolved is None:
        assert event.trouble is not None
        trouble = from_record(event.trouble)
        if trouble.code in GONE:
            deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
        elif not _known_here(entry):
            shelf.reply(ask, wording.no_answer(ask, trouble))
            return
    elif event.resolved.alias is not None:
        deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
        shelf.reply(ask, wording.is_alias(ask, target=event.resolved.alias.art_id))
        return
    else:
        # Another node's replica is of no use to this one's callers: bytes are pulled, and the commit decides whether
        # they are one more replica or other content.
        deletes.reconcile(shelf, entry, event.resolved, serial=serial)
    consider(shelf, ask)


def files_checked(shelf: Shelf, ask: Ask, *, lost: bool, serial: int) -> None:
    entry = shelf.entry(ask.art_id)
    here = entry.holding
    if here is None or here.serial != serial or entry.phase is not Phase.ON_FILE:
        consider(shelf, ask)
    elif lost:
        sources.lost_tier(shelf, entry, tier="file")
        if not sources.rest(shelf, entry):
            shelf.wake(entry, fresh=False)
        consider(shelf, ask)
    else:
        _exists(shelf, entry, ask)


def filled(shelf: Shelf, entry: Entry, run: Run, event: Filled) -> None:
    run.filled = event
    run.segments = event.segments
    assert run.manifest_segment is not None
    entry.move(Cue.FILLED)
    shelf.do(Seal(run.ticket, entry.art_id, run.manifest_segment))


def sealed(shelf: Shelf, entry: Entry, run: Run, event: Sealed) -> None:
    ask = run.ask
    assert ask is not None
    run.sealed = event
    if ask.offer is not None and ask.offer.digest != event.digest:
        changed = lease_wording.changed_at_register(ask.art_id, given=ask.offer.digest, found=event.digest)
        failed(shelf, entry, run, RunFailed(run.ticket, changed.record()))
    elif ask.durable:
        entry.move(Cue.KEEP)
        shelf.do(WriteOut(run.ticket, entry.art_id, run.segments))
    else:
        entry.move(Cue.SEALED)
        commits.ask(shelf, entry, run, budget_ms=shelf.left_ms(ask))


def written(shelf: Shelf, entry: Entry, run: Run, event: WrittenOut) -> None:
    run.disk_bytes = max(1, event.nbytes)
    entry.move(Cue.WRITTEN)
    commits.ask(shelf, entry, run, budget_ms=shelf.left_ms(run.ask))


def failed(shelf: Shelf, entry: Entry, run: Run, event: RunFailed) -> None:
    trouble = from_record(event.trouble)
    answer: Answer | TensorCastError = trouble
    if event.base_gone:
        answer = PutBaseGone(str(trouble.context.get("base", "")))
    if run.sealed is not None:
        shelf.do(RemoveSidecar(entry.art_id))
    line.leave(shelf, run.ticket)
    commits.stop(shelf, entry, run, answer=answer, fresh=True)


def _begin(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    run = Run(ask.verb, ask.ticket, ask.need_bytes, ask)
    offer = ask.offer
    if offer is None or offer.eager_bytes:
        entry.move(Cue.BEGIN)
        shelf.start_run(entry, run)
        line.join(shelf, run.ticket)
        return
    # Nothing is moved: what the commit needs was said with the registration.
    run.sealed = Sealed(run.ticket, offer.digest, offer.nbytes, offer.tensors, (), in_file=False)
    entry.move(Cue.REGISTER)
    shelf.start_run(entry, run)
    commits.ask(shelf, entry, run, budget_ms=shelf.left_ms(ask))


def _known_here(entry: Entry) -> bool:
    """Whether a put can be answered from what is here when the global store says nothing."""
    return entry.phase is Phase.RESIDENT or (entry.holding is not None and entry.holding.lease is not None)


def _exists(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    here = entry.holding
    assert here is not None
    if here.lease is not None:
        shelf.reply(ask, lease_wording.under_lease(ask, left_ms=here.lease.due_ms - shelf.now_ms))
    elif ask.verb == "register":
        shelf.reply(ask, lease_wording.put_before(ask, digest=here.digest))
    else:
        shelf.reply(ask, PutExists(here.digest, here.nbytes, here.files))
