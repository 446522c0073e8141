"""Eviction: the artifact that was attached longest ago, is mapped by nobody and lies in an unchanged file goes first.

Works for the head of the line only, one victim at a time: its files are looked at, the global store grants the drop,
and only then is it withdrawn. What cannot go is passed over until the next head.
"""

from __future__ import annotations

from tensorcast_services.storage.core.effects import (
    CallDrop,
    CheckFiles,
    RemoveSidecar,
    TellHeld,
    TellLost,
    WithdrawIdle,
)
from tensorcast_services.storage.core.events import DropAnswered, FilesChecked, RoomRefused
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Run, Shelf

DROP_MS_MAX = 2000
BLOCK_BYTES = 2 << 20  # segments take whole blocks


def begin(shelf: Shelf, run: Run, pool: RoomRefused) -> bool:
    """Starts on the next victim for `run`; False when there is none."""
    victim = _victim(shelf, run, pool)
    if victim is None:
        return False
    assert victim.holding is not None
    victim.move(Cue.EVICT)
    work = Run("evict", shelf.new_ticket())
    shelf.start_run(victim, work)
    shelf.evicting = victim.art_id
    shelf.do(CheckFiles(work.ticket, victim.holding.files))
    return True


def files_checked(shelf: Shelf, entry: Entry, run: Run, event: FilesChecked) -> None:
    """Before a drop is asked for: the file must be able to give the bytes back."""
    assert entry.holding is not None
    if event.changed and event.sure:
        entry.holding.in_file = False
        shelf.do(RemoveSidecar(entry.art_id))
        shelf.do(TellLost(entry.art_id))
    if event.changed:
        _keep(shelf, entry, why=event.changed)
        return
    shelf.do(CallDrop(run.ticket, entry.art_id, DROP_MS_MAX))


def drop_answered(shelf: Shelf, entry: Entry, run: Run, event: DropAnswered) -> None:
    if event.granted:
        shelf.do(WithdrawIdle(run.ticket, entry.art_id))
    else:
        _keep(shelf, entry, why=event.why)


def withdrawn(shelf: Shelf, entry: Entry, *, done: bool) -> None:
    if not done:
        shelf.do(TellHeld(entry.art_id))
        _keep(shelf, entry, why="it was mapped meanwhile")
        return
    entry.move(Cue.WITHDRAWN)
    shelf.evictions += 1
    over(shelf, entry)
    shelf.end_run(entry)
    shelf.wake(entry, fresh=False)


def over(shelf: Shelf, entry: Entry) -> None:
    assert shelf.evicting == entry.art_id
    shelf.evicting = ""


def _keep(shelf: Shelf, entry: Entry, *, why: str) -> None:
    """Still resident; not asked for again while the same head waits."""
    shelf.passed_over[entry.art_id] = why
    entry.move(Cue.KEPT)
    over(shelf, entry)
    shelf.end_run(entry)
    shelf.wake(entry, fresh=False)


def _victim(shelf: Shelf, run: Run, pool: RoomRefused) -> Entry | None:
    if run.need_bytes > pool.capacity_bytes:
        return None
    candidates = []
    for use in pool.uses:
        entry = shelf.entries.get(use.art_id)
        if entry is None or entry.phase is not Phase.RESIDENT or entry.holding is None:
            continue
        if entry.holding.in_file and not use.pins and use.art_id not in shelf.passed_over:
            blocks = (len(entry.holding.files) + 2) * BLOCK_BYTES
            candidates.append((use.last_ns, use.art_id, use.nbytes + blocks, entry))
    # Nothing is thrown out for a run that would not fit even then.
    possible = sum(nbytes for _, _, nbytes, _ in candidates)
    if not candidates or pool.free_bytes + possible < run.need_bytes:
        return None
    return min(candidates, key=lambda candidate: candidate[:2])[3]
