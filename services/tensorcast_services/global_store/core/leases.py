"""Ids that are under a caller's lease: who may hold one, and which are held by nobody living any more.

A lease hangs on the processes that claim its bytes. Its storage ends it by EndLease; where the storage itself is gone,
the tick does after a grace, in which the same content may be registered again. That time is counted on the registry's
awake clock, so nobody loses a lease to a stall of the global store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from tensorcast_services.global_store.core.entries import Entry
from tensorcast_services.global_store.core.rows import LEASE, SYSTEM, ReplicaRecord

LEASE_GRACE_MS = 60_000
LEASES_A_TICK_MAX = 500


class Leases:
    """Looked at in turn, a bounded number a tick; the value is since when (awake ms) nobody living holds the id."""

    def __init__(self, art_ids: Iterable[str]) -> None:
        self._silent_since: OrderedDict[str, int | None] = OrderedDict.fromkeys(art_ids)

    def __len__(self) -> int:
        return len(self._silent_since)

    def add(self, art_id: str) -> None:
        self._silent_since[art_id] = None

    def discard(self, art_id: str) -> None:
        self._silent_since.pop(art_id, None)

    def over(self, awake_ms: int, is_held: Callable[[str], bool]) -> list[str]:
        """Ids that nobody living has held for the grace. The caller ends them."""
        found: list[str] = []
        for _ in range(min(len(self._silent_since), LEASES_A_TICK_MAX)):
            art_id, since_ms = self._silent_since.popitem(last=False)
            if is_held(art_id):
                since_ms = None
            elif since_ms is None:
                since_ms = awake_ms
            elif awake_ms - since_ms >= LEASE_GRACE_MS:
                found.append(art_id)
            self._silent_since[art_id] = since_ms
        return found


def what_forbids(entry: Entry, process: str, ownership: str, is_living: Callable[[ReplicaRecord], bool]) -> str:
    """Why a process may not hold an artifact's content under this ownership, and what to do; "" when it may. A lease
    stands in the way of everybody else while a living process claims it, and of the system's copy in any process."""
    row = entry.row
    if row.ownership == SYSTEM:
        return (
            ""
            if ownership == SYSTEM
            else (
                f"{row.art_id!r} is owned by the system since {row.created_ms} ms, so nobody can register it under a "
                "lease; register under another id, or delete this one first"
            )
        )
    holders = [r for r in entry.claims.values() if is_living(r) and (ownership != LEASE or r.process != process)]
    if not holders:
        return ""
    return (
        f"{row.art_id!r} is under a lease that {holders[0].process} on node {holders[0].node} holds since "
        f"{holders[0].since_ms} ms; release that lease or delete the id first, or use another id"
    )
