"""Eviction: of what is mapped by nobody, the artifact that was attached longest ago goes first.

What something else can give back (an unchanged file, our disk, the owner of a lease) goes as it is; only when there is
none such left is one written out for the purpose. Works for the head of the line, one victim at a time: source files
are looked at, the global store grants the drop, and only then is it withdrawn. What cannot go is passed over until the
next head. A file system that does not answer in time is given up, and nothing else there is tried before it answered.
"""

from __future__ import annotations

from tensorcast_services.storage.core import disk_trust, sources, spilling
from tensorcast_services.storage.core.effects import CallDrop, CheckFiles, TellHeld, WithdrawIdle
from tensorcast_services.storage.core.events import DropAnswered, FilesChecked, RoomRefused
from tensorcast_services.storage.core.holdings import Holding, away_tiers
from tensorcast_services.storage.core.phases import Cue, Phase
from tensorcast_services.storage.core.shelf import Entry, Run, Shelf, Unheard

LOOK_MS_MAX = 2000  # at a victim's files
DROP_MS_MAX = 2000
DROP_HEARD_MS_MAX = DROP_MS_MAX + 1000  # the call itself ends earlier
BLOCK_BYTES = 2 << 20  # segments take whole blocks


def begin(shelf: Shelf, run: Run, pool: RoomRefused) -> bool:
    """Starts on the next victim for `run`; False when there is none."""
    victim = _victim(shelf, run, pool)
    if victim is None:
        return False
    assert victim.holding is not None
    shelf.evicting = victim.art_id
    tiers = away_tiers(victim.holding)
    if not tiers:
        # Once it is on disk, the head is tried again and it goes like any other. It may be written out already.
        shelf.evict_due_ms = shelf.now_ms + spilling.SPILL_MS_MAX
        if victim.phase is Phase.RESIDENT:
            spilling.begin(shelf, victim)
        return True
    victim.move(Cue.EVICT)
    work = Run("evict", shelf.new_ticket())
    shelf.start_run(victim, work)
    if tiers[0] == "file":
        shelf.evict_due_ms = shelf.now_ms + LOOK_MS_MAX
        shelf.do(CheckFiles(work.ticket, victim.holding.files))
    else:
        _ask_for_drop(shelf, victim, work)
    return True


def files_checked(shelf: Shelf, entry: Entry, run: Run, event: FilesChecked) -> None:
    """Before a drop is asked for: the file must be able to give the bytes back."""
    if event.changed and event.sure:
        sources.lost_tier(shelf, entry, tier="file")
    if event.changed:
        _keep(shelf, entry, why=event.changed)
        if disk_trust.may(shelf, entry):
            del shelf.passed_over[entry.art_id]  # our disk can have it instead
        return
    _ask_for_drop(shelf, entry, run)


def _ask_for_drop(shelf: Shelf, entry: Entry, run: Run) -> None:
    run.seen = True
    shelf.evict_due_ms = shelf.now_ms + DROP_HEARD_MS_MAX
    shelf.do(CallDrop(run.ticket, entry.art_id, DROP_MS_MAX))


def drop_answered(shelf: Shelf, entry: Entry, run: Run, event: DropAnswered) -> None:
    assert entry.holding is not None
    if event.granted and away_tiers(entry.holding):
        run.withdrawing = True
        shelf.evict_due_ms = None  # the withdrawal ends at once
        shelf.do(WithdrawIdle(run.ticket, entry.art_id))
    else:
        shelf.do(TellHeld(entry.art_id))  # granted, perhaps, and only the answer lost
        _keep(shelf, entry, why=event.why or "nothing else has its bytes any more")


def withdrawn(shelf: Shelf, entry: Entry, *, done: bool) -> None:
    if not done:
        shelf.do(TellHeld(entry.art_id))
        _keep(shelf, entry, why="it was mapped meanwhile")
        return
    entry.move(Cue.WITHDRAWN)
    shelf.counts["evictions"] += 1
    over(shelf, entry)
    shelf.end_run(entry)
    sources.rest(shelf, entry)
    shelf.wake(entry, fresh=False)


def over(shelf: Shelf, entry: Entry) -> None:
    assert shelf.evicting == entry.art_id
    shelf.evicting = ""
    shelf.evict_due_ms = None


def late(shelf: Shelf) -> None:
    """The time for a look, a drop or a writing out is over: the victim stays, and the next one is tried."""
    entry = shelf.entry(shelf.evicting)
    run, here = entry.run, entry.holding
    assert run is not None and here is not None
    if entry.phase is Phase.SPILLING:
        over(shelf, entry)
        spilling.late(shelf, entry)
    elif run.seen:
        shelf.unheard[run.ticket] = Unheard(entry.art_id, frozenset())
        _keep(shelf, entry, why="the global store did not answer")
    else:
        shelf.unheard[run.ticket] = Unheard(entry.art_id, frozenset(device for _, device, *_ in here.files))
        _keep(shelf, entry, why=f"its source files did not answer within {LOOK_MS_MAX} ms")


def heard_late(shelf: Shelf, event: FilesChecked | DropAnswered) -> None:
    """What was given up is answered after all."""
    unheard = shelf.unheard.pop(event.ticket)
    if isinstance(event, DropAnswered):
        shelf.do(TellHeld(unheard.art_id))  # the victim stayed, and a drop may have been granted


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
    plain, after_writing, possible = [], [], 0
    for use in pool.uses:
        entry = shelf.entries.get(use.art_id)
        if entry is None or entry.holding is None or use.pins or use.art_id in shelf.passed_over:
            continue
        if _may_go(shelf, entry, entry.holding):
            plain.append((use.last_ns, use.art_id, entry))
        elif disk_trust.may(shelf, entry):
            after_writing.append((use.last_ns, use.art_id, entry))
        else:
            continue
        possible += use.nbytes + (len(entry.holding.files) + 2) * BLOCK_BYTES
    # Nothing is thrown out for a run that would not fit even then.
    if not possible or pool.free_bytes + possible < run.need_bytes:
        return None
    return min(plain or after_writing, key=lambda candidate: candidate[:2])[2]


def _may_go(shelf: Shelf, entry: Entry, here: Holding) -> bool:
    tiers = away_tiers(here)
    if entry.phase is not Phase.RESIDENT or not tiers:
        return False
    return tiers[0] != "file" or not any(
        unheard.art_id == entry.art_id or any(device in unheard.devices for _, device, *_ in here.files)
        for unheard in shelf.unheard.values()
    )
