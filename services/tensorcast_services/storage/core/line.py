"""The line for room in the pool: puts, loads and views alike, first come first served; its head is tried until it has
room, is refused, or its time is over. A head that nothing can be evicted for is refused at once, so no place waits on
hope.
"""

from __future__ import annotations

from tensorcast_services.storage.core.effects import AcceptPut, CancelFill, StartLoad
from tensorcast_services.storage.core.events import RoomGiven
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Shelf


def join(shelf: Shelf, ticket: int) -> None:
    shelf.line.append(ticket)


def leave(shelf: Shelf, ticket: int) -> None:
    if ticket not in shelf.line:
        return
    if shelf.line[0] == ticket:
        shelf.passed_over.clear()
        if shelf.evicting and shelf.entries[shelf.evicting].phase is Phase.SPILLING:
            # The next head may fit without it; the writing goes on and is of use to whoever comes.
            shelf.evicting = ""
            shelf.evict_due_ms = None
    shelf.line.remove(ticket)


def advance(shelf: Shelf) -> None:
    """Tries the head, unless a try or an eviction is under way."""
    if not shelf.line or shelf.trying is not None or shelf.evicting:
        return
    ticket = shelf.trying = shelf.line[0]
    known = shelf.entry_of(ticket)
    assert known is not None
    shelf.do(AcceptPut(ticket) if known[1].kind in ("put", "register") else StartLoad(ticket))


def given(shelf: Shelf, event: RoomGiven) -> None:
    shelf.trying = None
    known = shelf.entry_of(event.ticket)
    assert known is not None, "a run that is being tried ends only after its answer"
    entry, run = known
    run.manifest_segment = event.manifest_segment
    run.borrowed = event.borrowed
    if entry.phase is Phase.DRAINING:
        shelf.do(CancelFill(run.ticket))
        return
    leave(shelf, run.ticket)
    entry.move(Cue.ROOM)
