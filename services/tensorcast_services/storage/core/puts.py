"""A put, from its draft to visible: room, fill, seal, commit, publish. Called by artifacts.py with one event each.

The first put of an id that nobody living holds becomes the entry's run; a second one waits in the entry and takes over
when the first fails. Nothing is visible before the global store has answered the commit; when that answer is lost the
bytes are kept aside (SETTLING) and the same commit is asked again until its outcome is known.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_bus.notes import PutExists
from tensorcast_services.storage.core import commits, deletes, line, wording
from tensorcast_services.storage.core.effects import (
    CallResolve,
    CancelFill,
    CheckFiles,
    Seal,
)
from tensorcast_services.storage.core.events import (
    Filled,
    ResolveAnswered,
    RunFailed,
    Sealed,
)
from tensorcast_services.storage.core.phases import AT_REST, Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf

RESOLVE_RESIDENT_MS_MAX = 2000  # past this a put of a resident id is answered from what is known here


def consider(shelf: Shelf, ask: Ask) -> None:
    """Starts, or starts over, a put."""
    entry = shelf.entry(ask.art_id)
    if entry.phase not in AT_REST:
        entry.waiting.append(ask)
    elif not ask.asked:
        left = shelf.left_ms(ask)
        budget = min(left // 2, RESOLVE_RESIDENT_MS_MAX) if entry.phase is Phase.RESIDENT else left
        shelf.do(CallResolve(shelf.call(kind="resolve", ask=ask), ask.art_id, budget))
    elif entry.phase is Phase.ON_FILE:
        # The file may have changed since it was last looked at; then nobody here holds the bytes, and this put may.
        assert entry.holding is not None
        shelf.do(CheckFiles(shelf.call(kind="check", ask=ask), entry.holding.files))
    elif entry.phase is Phase.RESIDENT:
        _exists(shelf, entry, ask)
    else:
        entry.move(Cue.BEGIN)
        shelf.start_run(entry, Run("put", ask.request, ask.need_bytes, ask))
        line.join(shelf, ask.request)


def resolved(shelf: Shelf, ask: Ask, event: ResolveAnswered, *, serial: int) -> None:
    """The global store's word on the id of a put. `serial` is that of the holding when it was asked."""
    entry = shelf.entry(ask.art_id)
    ask.asked = True
    if event.resolved is None:
        assert event.trouble is not None
        trouble = from_record(event.trouble)
        if trouble.code == "NotFound":
            deletes.unknown_at_the_global_store(shelf, entry, serial=serial)
        elif entry.phase is not Phase.RESIDENT:
            shelf.reply(ask, wording.no_answer(ask, trouble))
            return
        consider(shelf, ask)
        return
    if deletes.reconcile(shelf, entry, event.resolved, serial=serial) or entry.phase is not Phase.ABSENT:
        consider(shelf, ask)
        return
    # Another node's replica is of no use to this one's callers: bytes are pulled, and the commit decides whether they
    # are one more replica or other content.
    consider(shelf, ask)


def files_checked(shelf: Shelf, ask: Ask, *, lost: bool, serial: int) -> None:
    entry = shelf.entry(ask.art_id)
    here = entry.holding
    if here is None or here.serial != serial or entry.phase is not Phase.ON_FILE:
        consider(shelf, ask)
    elif lost:
        deletes.source_lost(shelf, entry)
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
    run.sealed = event
    entry.move(Cue.SEALED)
    commits.ask(shelf, entry, run, budget_ms=shelf.left_ms(run.ask))


def failed(shelf: Shelf, entry: Entry, run: Run, event: RunFailed) -> None:
    line.leave(shelf, run.ticket)
    commits.stop(shelf, entry, run, answer=from_record(event.trouble), fresh=True)


def abandon(shelf: Shelf, entry: Entry, run: Run, *, answer: TensorCastError | None) -> None:
    """The asker hung up (no answer) or its time is over."""
    ask = run.ask
    if entry.phase is Phase.COMMITTING:
        # The commit is on its way: its outcome counts whoever is left to hear it.
        if answer is not None:
            shelf.reply(ask, answer)
            entry.move(Cue.UNKNOWN)
        return
    if entry.phase is Phase.IN_LINE and shelf.trying != run.ticket:
        line.leave(shelf, run.ticket)
        commits.stop(shelf, entry, run, answer=answer, fresh=True)
        return
    if entry.phase is Phase.FILLING:
        shelf.do(CancelFill(run.ticket))
    line.leave(shelf, run.ticket)
    if answer is not None:
        shelf.reply(ask, answer)
    entry.move(Cue.ABANDONED)


def _exists(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    here = entry.holding
    assert here is not None
    shelf.reply(ask, PutExists(here.digest, here.nbytes, here.files))
