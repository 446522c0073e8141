"""What the storage says when it must refuse: each text names the id, the phase, how long, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from tensorcast_bus.errors import (
    AlreadyExists,
    CapacityExceeded,
    Conflict,
    DeviceUnavailable,
    NoReplica,
    NotFound,
    TensorCastError,
    Timeout,
    Unavailable,
)
from tensorcast_bus.messages import ReplicaRow
from tensorcast_services.storage.core import disk_trust
from tensorcast_services.storage.core.events import RoomRefused
from tensorcast_services.storage.core.shelf import Ask, Shelf

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def _size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in _UNITS:
        if amount < 1024 or unit == _UNITS[-1]:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the loop returns at its last unit")


def too_late(ask: Ask, *, process: str, phase: str) -> Timeout:
    hint = "give it a longer deadline_ms"
    if "global store" in phase:
        hint = "see in `tensorcast status` whether the global store and nats are up, then ask again"
    if "commit" in phase:
        hint += "; whether the id became visible is not known yet and is settled before anybody is answered about it"
    return Timeout(
        f"{ask.verb} of {ask.art_id!r} at {process} did not end within {ask.budget_ms} ms; it was {phase}: {hint}",
        art_id=ask.art_id,
        phase=phase,
        budget_ms=ask.budget_ms,
        process=process,
    )


def no_answer(ask: Ask, trouble: TensorCastError) -> TensorCastError:
    """A call to the global store failed: said for somebody who asked about an id and knows no subjects."""
    if not isinstance(trouble, Unavailable):
        return trouble
    kind = Timeout if isinstance(trouble, Timeout) else Unavailable
    return kind(
        f"{ask.verb} of {ask.art_id!r} failed while asking the global store about the id, within {ask.budget_ms} ms: "
        f"{trouble.text}; see in `tensorcast status` whether the global store and nats are up, then ask again",
        art_id=ask.art_id,
        phase="asking the global store about the id",
        budget_ms=ask.budget_ms,
    )


def no_room(ask_verb: str, art_id: str, *, shelf: Shelf, need: int, pool: RoomRefused) -> CapacityExceeded:
    pinned = sum(use.nbytes for use in pool.uses if use.pins)
    fixed = sum(use.nbytes for use in pool.uses if not use.pins)
    kept = shelf.passed_over
    passed = f" ({len(kept)} tried, the last: {list(kept.values())[-1]})" if kept else ""
    disk = f"; {why}" if (why := disk_trust.why_not(shelf)) else ""
    return CapacityExceeded(
        f"{ask_verb} of {art_id!r} needs {_size(need)}, and the pool of {shelf.process} has {_size(pool.free_bytes)} "
        f"free of {_size(pool.capacity_bytes)} (longest free run {_size(pool.longest_run_bytes)}); {_size(pinned)} are "
        f"mapped by readers and {_size(fixed)} cannot be evicted{passed}{disk}: release tensors, delete "
        f"artifacts, or raise storage.host_bytes_max ({pool.why})",
        art_id=art_id,
        need_bytes=need,
        free_bytes=pool.free_bytes,
        longest_run_bytes=pool.longest_run_bytes,
        capacity_bytes=pool.capacity_bytes,
        pinned_bytes=pinned,
    )


def unknown_id(art_id: str) -> NotFound:
    return NotFound(
        f"there is no artifact {art_id!r}: it was never put, or it was deleted; `tensorcast ls` shows what there is",
        art_id=art_id,
    )


def no_disk(verb: str, art_id: str, *, process: str) -> DeviceUnavailable:
    return DeviceUnavailable(
        f"a durable {verb} of {art_id!r} needs a disk, and {process} has none: its disk folder lies in memory or "
        "cannot be written; set storage.disk_path to a folder on a disk",
        art_id=art_id,
        process=process,
    )


def is_alias(ask: Ask, *, target: str) -> Conflict:
    kind = Conflict if ask.verb == "durable" else AlreadyExists
    return kind(
        f"{ask.art_id!r} is an alias of {target!r} and no artifact: name {target!r} itself, or take another id",
        art_id=ask.art_id,
        target=target,
    )


def lost_replica(art_id: str, rows: Sequence[ReplicaRow], *, node: str) -> NoReplica:
    """Committed once, but no bytes can be had here: who has or had them."""
    living = sorted({row.node for row in rows if row.living and row.node != node})
    if living:
        return NoReplica(
            f"{art_id!r} is held by node {', '.join(living)} and not by node {node}: reading from other nodes needs "
            "the network data plane, which this version does not have; attach it there, or put it here as well",
            art_id=art_id,
            nodes=living,
        )
    had = "; ".join(f"{row.process} had it ({row.tier}), gone since {_moment(row.since_ms)}" for row in rows[:4])
    return NoReplica(
        f"{art_id!r} was committed, but nobody alive holds its bytes: {had or 'no holder is on record'}; put it again",
        art_id=art_id,
        holders=[f"{row.node}:{row.tier}" for row in rows[:4]],
    )


def _moment(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="seconds")
