"""What the storage says about leases: each text names the id, since when and why, and what to do next."""

from __future__ import annotations

from tensorcast_bus.errors import AlreadyExists, CapacityExceeded, Conflict, LeaseLost
from tensorcast_services.storage.core.shelf import Ask, Ended


def lease_lost(art_id: str, *, ended: Ended | None, now_ms: int) -> LeaseLost:
    """`ended` is None where nothing is remembered of it."""
    if ended is None:
        return LeaseLost(
            f"there is no such lease on {art_id!r} here: it ended, the id was deleted, or the storage started anew; "
            "register it again",
            art_id=art_id,
        )
    age_ms = max(0, now_ms - ended.at_ms)
    return LeaseLost(
        f"the lease on {art_id!r} ended {age_ms / 1000:.1f} s ago: {ended.why}; ask its owner to register it again",
        art_id=art_id,
        ended_ms_ago=age_ms,
        why=ended.why,
    )


def owner_died(art_id: str) -> LeaseLost:
    return LeaseLost(f"the process that was registering {art_id!r} ended before the lease was granted", art_id=art_id)


def changed_at_register(art_id: str, *, given: str, found: str) -> LeaseLost:
    return LeaseLost(
        f"{art_id!r} changed while it was registered: its digest was {given}, and {found} arrived; register it again "
        "and leave its tensors alone meanwhile",
        art_id=art_id,
        given=given,
        found=found,
    )


def under_lease(ask: Ask, *, left_ms: int) -> AlreadyExists:
    return AlreadyExists(
        f"{ask.art_id!r} is registered, under a lease that has {max(0, left_ms) / 1000:.1f} s left: a {ask.verb} of "
        "the id has to wait until its owner releases it; or take another id",
        art_id=ask.art_id,
        lease_left_ms=max(0, left_ms),
    )


def put_before(ask: Ask, *, digest: str) -> AlreadyExists:
    return AlreadyExists(
        f"{ask.art_id!r} was put before ({digest}) and belongs to the system: delete it, or register under another id",
        art_id=ask.art_id,
        stored=digest,
    )


def too_many_leases(art_id: str, *, process: str, leases_max: int) -> CapacityExceeded:
    return CapacityExceeded(
        f"{process} keeps {leases_max} registrations, its limit: release some before {art_id!r} is registered",
        art_id=art_id,
        leases_max=leases_max,
    )


def durable_under_lease(art_id: str) -> Conflict:
    return Conflict(
        f"{art_id!r} is registered, and what a lease governs ends with the lease: put it to make it durable",
        art_id=art_id,
    )
