"""Bringing an artifact back from its source files, once for however many attaches wait for it.

Every digest is compared with the manifest's before anything is published: a file that has other bytes than it had is
BadCheckpoint for all who wait, and no replica any more. A load that nobody waits for goes on once it copies (the next
attach finds it warm), and is given up while it only waits.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError, from_record
from tensorcast_services.storage.core import line
from tensorcast_services.storage.core.effects import (
    CancelFill,
    OpenFiles,
    Publish,
    RemoveSidecar,
    Seal,
    TellHeld,
    TellLost,
)
from tensorcast_services.storage.core.events import Filled, RunFailed
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf


def begin(shelf: Shelf, entry: Entry, ask: Ask) -> None:
    entry.move(Cue.BEGIN)
    run = Run("load", shelf.new_ticket())
    shelf.start_run(entry, run)
    entry.waiting.append(ask)
    shelf.do(OpenFiles(run.ticket, entry.art_id))


def opened(shelf: Shelf, entry: Entry, run: Run, *, need_bytes: int) -> None:
    run.need_bytes = need_bytes
    entry.move(Cue.OPENED)
    line.join(shelf, run.ticket)


def filled(shelf: Shelf, entry: Entry, run: Run, event: Filled) -> None:
    run.segments = event.segments
    assert run.manifest_segment is not None
    entry.move(Cue.FILLED)
    shelf.do(Seal(run.ticket, entry.art_id, run.manifest_segment))


def sealed(shelf: Shelf, entry: Entry, run: Run) -> None:
    assert run.manifest_segment is not None
    entry.move(Cue.SEALED)
    shelf.loads += 1
    shelf.do(Publish(entry.art_id, run.manifest_segment, run.segments))
    shelf.end_run(entry)
    shelf.do(TellHeld(entry.art_id))
    shelf.wake(entry, fresh=True)


def failed(shelf: Shelf, entry: Entry, run: Run, event: RunFailed) -> None:
    line.leave(shelf, run.ticket)
    shelf.end_run(entry)
    _tell_waiters(shelf, entry, from_record(event.trouble))
    if event.source_lost:
        entry.holding = None
        entry.move(Cue.LOST)
        shelf.do(RemoveSidecar(entry.art_id))
        shelf.do(TellLost(entry.art_id))
    else:
        entry.move(Cue.FAILED)
    shelf.wake(entry, fresh=False)


def stop(shelf: Shelf, entry: Entry, *, answer: TensorCastError | None) -> None:
    """Ends the run early: for a deleted id (with an answer for its attaches), or because nobody waits any more."""
    run = entry.run
    assert run is not None
    if answer is not None:
        _tell_waiters(shelf, entry, answer)
    line.leave(shelf, run.ticket)
    if entry.phase is Phase.OPENING or (entry.phase is Phase.LOAD_LINE and shelf.trying != run.ticket):
        shelf.end_run(entry)
        entry.move(Cue.LOST if entry.holding is None else Cue.FAILED)
        return
    if entry.phase is Phase.LOADING:
        shelf.do(CancelFill(run.ticket))
    entry.move(Cue.ABANDONED)


def waiter_left(shelf: Shelf, entry: Entry) -> None:
    """An attach gave up. Without any attach left, a load that has not begun to copy is not worth its line."""
    waiting_only = entry.phase in (Phase.OPENING, Phase.LOAD_LINE)
    if waiting_only and not any(ask.verb == "attach" for ask in entry.waiting):
        stop(shelf, entry, answer=None)
        if entry.phase is not Phase.DRAINING:
            shelf.wake(entry, fresh=False)


def _tell_waiters(shelf: Shelf, entry: Entry, trouble: TensorCastError) -> None:
    for ask in entry.waiting:
        if ask.verb == "attach":
            shelf.reply(ask, trouble)
    entry.waiting = [ask for ask in entry.waiting if ask.verb != "attach"]
