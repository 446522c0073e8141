"""What can be asked about a storage's artifacts at any moment. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence

from tensorcast_bus.notes import Described
from tensorcast_services.storage.core.events import Use
from tensorcast_services.storage.core.holdings import Claim, Holding, away_tiers, tiers_of
from tensorcast_services.storage.core.phases import HOLDING_LOADS, PUBLISHED, Phase
from tensorcast_services.storage.core.shelf import Shelf


def claims(shelf: Shelf) -> list[Claim]:
    """What this storage holds, for a report."""
    return [
        claim
        for entry in shelf.entries.values()
        if entry.holding is not None
        for claim in _claims_of(entry.art_id, entry.holding, entry.phase)
    ]


def describe(shelf: Shelf, art_id: str, *, pins: int) -> Described:
    entry = shelf.entries.get(art_id)
    if entry is None or entry.holding is None:
        return Described("unknown")
    here = entry.holding
    state = "loading" if entry.phase in HOLDING_LOADS else "away"
    return Described(
        "resident" if entry.phase in PUBLISHED else state,
        here.digest,
        here.nbytes,
        pins,
        tiers_of(here, entry.phase),
        -1 if here.lease is None else max(0, here.lease.due_ms - shelf.now_ms),
        here.disk_bytes,
    )


def evictable_bytes(shelf: Shelf, uses: Sequence[Use]) -> int:
    """What is mapped by nobody and could be given back as it is."""
    return sum(
        use.nbytes
        for use in uses
        if not use.pins
        and (entry := shelf.entries.get(use.art_id)) is not None
        and entry.holding is not None
        and away_tiers(entry.holding)
    )


def figures(shelf: Shelf) -> dict[str, int]:
    held = [(entry, entry.holding) for entry in shelf.entries.values() if entry.holding is not None]
    return {
        "artifacts": len(held),
        "resident": sum(entry.phase in PUBLISHED for entry, _ in held),
        "leases": sum(here.lease is not None for _, here in held),
        "waiting_for_room": len(shelf.line),
        **shelf.counts,
    }


def _claims_of(art_id: str, here: Holding, phase: Phase) -> list[Claim]:
    return [
        Claim(art_id, here.serial, here.digest, tier, here.nbytes, here.tensors, here.was, here.ownership)
        for tier in tiers_of(here, phase)
    ]
