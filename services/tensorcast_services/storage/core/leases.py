"""Registrations: bytes that stay their owner's, under a lease that ends by time, by release, or with the owner.

An ended lease takes the id with it: it is withdrawn, the global store is told, the kept source is let go, and readers
hear LeaseLost with when and why; maps in use stay. The storage owns the clock. Whatever way a registration goes, what
the native floor kept for it is let go exactly once.
"""

from __future__ import annotations

from tensorcast_bus.notes import Deleted, Renewed
from tensorcast_services.storage.core import deletes, lease_wording
from tensorcast_services.storage.core.effects import CallEndLease, Reply
from tensorcast_services.storage.core.events import RegisterAsked, ReleaseAsked, RenewAsked, RunFailed
from tensorcast_services.storage.core.holdings import Lease
from tensorcast_services.storage.core.shelf import Ask, Ended, Entry, Run, Shelf

LEASES_MAX = 4096
LEASES_ENDED_MAX = 10_000
_ENDING = frozenset({"LeaseLost", "BadCheckpoint"})  # codes of a read that say: not what was registered


def offered(shelf: Shelf, event: RegisterAsked) -> Ask | None:
    """Takes charge of the kept source; None, and answered, when there are too many."""
    ask = shelf.open(
        Ask(
            "register",
            event.request,
            event.art_id,
            event.budget_ms,
            need_bytes=event.eager_bytes,
            ticket=event.request,
            offer=event,
        )
    )
    shelf.kept[event.source] = (event.art_id, event.request)
    if len(shelf.kept) > LEASES_MAX:
        shelf.reply(ask, lease_wording.too_many_leases(event.art_id, process=shelf.process, leases_max=LEASES_MAX))
        return None
    return ask


def renew(shelf: Shelf, event: RenewAsked) -> None:
    lease = _find(shelf, event.art_id, event.lease)
    if lease is None:
        ended = shelf.ended.get(event.art_id)
        ended = ended if ended is not None and ended.lease == event.lease else None
        trouble = lease_wording.lease_lost(event.art_id, ended=ended, now_ms=shelf.now_ms)
        shelf.do(Reply(event.request, trouble.record()))
        return
    lease.due_ms = shelf.now_ms + event.ttl_ms
    shelf.lease_dues.set(lease.source, lease.due_ms)
    shelf.do(Reply(event.request, Renewed(event.ttl_ms)))


def release(shelf: Shelf, event: ReleaseAsked) -> None:
    if _find(shelf, event.art_id, event.lease) is not None:
        end(shelf, shelf.entry(event.art_id), why="it was released")
    shelf.do(Reply(event.request, Deleted(event.art_id)))


def owner_died(shelf: Shelf, source: int) -> Ask | None:
    """The ask of a registration that is not granted yet and has to be given up."""
    if source not in shelf.kept:
        return None
    art_id, request = shelf.kept[source]
    if request in shelf.asks:
        return shelf.asks[request]
    end(shelf, shelf.entry(art_id), why="its owner's process ended")
    return None


def expire(shelf: Shelf) -> None:
    for source in shelf.lease_dues.over(shelf.now_ms):
        if source in shelf.kept:
            end(shelf, shelf.entry(shelf.kept[source][0]), why="it was not renewed in time")


def is_over(run: Run, event: RunFailed) -> bool:
    """Whether what a load or view met at a lease's source ends the lease."""
    return run.tier == "lease" and (event.source_lost or event.trouble.code in _ENDING)


def end(shelf: Shelf, entry: Entry, *, why: str) -> None:
    here = entry.holding
    assert here is not None and here.lease is not None
    ended = Ended(here.lease.number, (here.digest, here.was), shelf.now_ms, why)
    shelf.ended.pop(entry.art_id, None)
    shelf.ended[entry.art_id] = ended
    if len(shelf.ended) > LEASES_ENDED_MAX:
        del shelf.ended[next(iter(shelf.ended))]
    shelf.do(CallEndLease(entry.art_id, here.digest))
    deletes.forget(shelf, entry, answer=lease_wording.lease_lost(entry.art_id, ended=ended, now_ms=shelf.now_ms))


def _find(shelf: Shelf, art_id: str, number: int) -> Lease | None:
    entry = shelf.entries.get(art_id)
    lease = entry.holding.lease if entry is not None and entry.holding is not None else None
    return lease if lease is not None and lease.number == number else None
