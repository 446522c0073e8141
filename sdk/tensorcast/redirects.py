"""An attach by name: of an id, or of what an alias points at. Called by Session and by puts that look for a base.

One hop: an alias points at an artifact. Between the hop's two questions the alias may be moved on and its old target
deleted; then it is asked again, so a name that always had a target is always found.
"""

from __future__ import annotations

from tensorcast.deadline import Deadline
from tensorcast.local import StorageLink
from tensorcast.records_local import About, Attached
from tensorcast_bus.errors import LeaseLost, LocalProtocolError, NotFound
from tensorcast_bus.notes import AboutManifest, Redirect


def attach_by_name(
    storage: StorageLink, name: str, *, deadline: Deadline, manifest_only: bool = False, body: bytes = b""
) -> Attached | About:
    """About only with `manifest_only`. `body` is an encoded ViewWish, or empty. Raises NotFound, LeaseLost, NoReplica,
    BadCheckpoint, CapacityExceeded, StorageLost, Timeout."""
    got = storage.attach(name, deadline=deadline, manifest_only=manifest_only, body=body)
    at = name
    while isinstance(got, Redirect):
        hop, at = got, got.art_id
        try:
            got = storage.attach(at, deadline=deadline, manifest_only=manifest_only, body=body)
        except (NotFound, LeaseLost):
            got = storage.attach(name, deadline=deadline, manifest_only=manifest_only, body=body)
            if got == hop:
                raise
            at = name
            continue
        if isinstance(got, Redirect):
            raise LocalProtocolError(
                f"{deadline.what}: alias {name!r} leads to {at!r}, which leads on to {got.art_id!r}; an alias points "
                "at an artifact: this is a bug"
            )
    return About(at, got.digest, got.manifest) if isinstance(got, AboutManifest) else Attached(at, got)
