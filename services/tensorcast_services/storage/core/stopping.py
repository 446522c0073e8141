"""Ends of loads and views before their time: nobody waits any more, the id is gone, or a lease has ended.

Work that a native thread or a file system still holds is cancelled and drained; what only waits ends at once.
"""

from __future__ import annotations

from tensorcast_bus.errors import TensorCastError
from tensorcast_services.storage.core import line
from tensorcast_services.storage.core.effects import CancelFill
from tensorcast_services.storage.core.phases import HOLDING_LOADS, Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Shelf

READERS = frozenset({"attach", "durable"})  # verbs of those who wait for a load


def tell_readers(shelf: Shelf, entry: Entry, trouble: TensorCastError) -> None:
    for ask in entry.waiting:
        if ask.verb in READERS:
            shelf.reply(ask, trouble)
    entry.waiting = [ask for ask in entry.waiting if ask.verb not in READERS]


def stop_load(shelf: Shelf, entry: Entry, *, answer: TensorCastError | None) -> None:
    """Also of a view's entry, which nobody waits in."""
    run = entry.run
    assert run is not None
    if answer is not None:
        tell_readers(shelf, entry, answer)
    line.leave(shelf, run.ticket)
    if entry.phase is Phase.OPENING or (entry.phase is Phase.LOAD_LINE and shelf.trying != run.ticket):
        shelf.end_run(entry)
        entry.move(Cue.LOST if entry.holding is None else Cue.FAILED)
        return
    if entry.phase is Phase.LOADING:
        shelf.do(CancelFill(run.ticket))
    entry.move(Cue.ABANDONED)


def reader_left(shelf: Shelf, entry: Entry) -> None:
    """Without any reader left, a load that has not begun to copy is not worth its line."""
    waiting_only = entry.phase in (Phase.OPENING, Phase.LOAD_LINE)
    if waiting_only and not any(ask.verb in READERS for ask in entry.waiting):
        stop_load(shelf, entry, answer=None)
        if entry.phase is not Phase.DRAINING:
            shelf.wake(entry, fresh=False)


def stop_view(shelf: Shelf, mine: Entry, *, answer: TensorCastError | None) -> None:
    """`mine` is the view's own entry. Without an answer its asker hung up."""
    assert mine.run is not None
    if answer is not None:
        shelf.reply(mine.run.ask, answer)
    stop_load(shelf, mine, answer=None)


def stop_views(shelf: Shelf, art_id: str, *, answer: TensorCastError) -> None:
    """Of an artifact that is gone."""
    for view in list(shelf.views.get(art_id, ())):
        mine = shelf.entry(view)
        if mine.phase in HOLDING_LOADS:
            stop_view(shelf, mine, answer=answer)
