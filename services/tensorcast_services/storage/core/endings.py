"""Ends that do not follow from a run's own steps: no room, an asker that gave up, and the draining of what it left."""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError
from tensorcast_services.storage.core import (
    commits,
    eviction,
    lease_wording,
    line,
    loads,
    puts,
    sources,
    stopping,
    views,
    wording,
)
from tensorcast_services.storage.core.effects import CancelFill, CancelWrite, RemoveSidecar
from tensorcast_services.storage.core.events import Event, Filled, RoomGiven, RoomRefused, RunFailed, Sealed, WrittenOut
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf


def fail(shelf: Shelf, entry: Entry, run: Run, event: RunFailed) -> None:
    """A step of a put, load or view failed."""
    shelf.trying = None if shelf.trying == run.ticket else shelf.trying
    match run.kind:
        case "put" | "register":
            puts.failed(shelf, entry, run, event)
        case "view":
            views.failed(shelf, entry, run, event)
        case _:
            loads.failed(shelf, entry, run, event)


def refuse_room(shelf: Shelf, entry: Entry, run: Run, event: RoomRefused) -> None:
    shelf.trying = None
    if eviction.begin(shelf, run, event):
        return
    trouble = wording.no_room(run.kind, run.base or entry.art_id, shelf=shelf, need=run.need_bytes, pool=event)
    fail(shelf, entry, run, RunFailed(run.ticket, trouble.record()))


def drain(shelf: Shelf, entry: Entry, run: Run, event: Event) -> None:
    """A step of a run that was given up. What it wrote to disk goes too, unless it belongs to what is still here."""
    match event:
        case RoomGiven():
            line.given(shelf, event)
            return
        case Filled():
            run.segments = event.segments
    shelf.trying = None if shelf.trying == run.ticket else shelf.trying
    written = isinstance(event, Sealed | WrittenOut) or run.sealed is not None or run.kind == "spill"
    if written and entry.holding is None and run.kind != "view":
        shelf.do(RemoveSidecar(entry.art_id))
    shelf.end_run(entry)
    if entry.holding is None:
        entry.move(Cue.ENDED)
        shelf.wake(entry, fresh=True)
    else:
        entry.move(Cue.KEPT)
        sources.rest(shelf, entry)
        shelf.wake(entry, fresh=False)


def give_up(shelf: Shelf, ask: Ask, *, answer: TensorCastError | None) -> None:
    """An ask ends without what it asked for. Without an answer its asker hung up."""
    entry = shelf.entry(ask.view or ask.art_id)
    run = entry.run
    if run is not None and run.ask is ask and run.kind == "view":
        stopping.stop_view(shelf, entry, answer=answer)
    elif run is not None and run.ask is ask:
        _abandon(shelf, entry, run, answer=answer)
    elif answer is not None:
        shelf.reply(ask, answer)
    if shelf.is_open(ask):
        shelf.close(ask)
    entry.waiting = [waiter for waiter in entry.waiting if waiter is not ask]
    if ask.verb in stopping.READERS:
        stopping.reader_left(shelf, entry)


def time_over(shelf: Shelf, ask: Ask) -> TensorCastError:
    """What somebody hears whose deadline has come."""
    ended = shelf.ended.get(ask.art_id)
    entry = shelf.entry(ask.view or ask.art_id)
    if ended is not None and ask.verb in stopping.READERS and entry.holding is None and entry.run is None:
        return lease_wording.lease_lost(ask.art_id, ended=ended, now_ms=shelf.now_ms)
    return wording.too_late(ask, process=shelf.process, phase=_standing(entry, ask))


def _abandon(shelf: Shelf, entry: Entry, run: Run, *, answer: TensorCastError | None) -> None:
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
    elif entry.phase is Phase.KEEPING:
        shelf.do(CancelWrite(run.ticket))
    line.leave(shelf, run.ticket)
    if answer is not None:
        shelf.reply(ask, answer)
    entry.move(Cue.ABANDONED)


def _standing(entry: Entry, ask: Ask) -> str:
    """Where an ask stands, for the text of its Timeout."""
    if ask.verb != "delete" and any(ask is waiter for waiter in entry.waiting):
        if ask.verb == "put":
            return f"waiting for another run of the id, which is {entry.phase.value}"
        return entry.phase.value
    if entry.run is not None and entry.run.ask is ask:
        return entry.phase.value
    return "asking the global store about the id"
