"""From what a caller gives to a lease. Called by Session.

Tensors are digested here, where they lie: the digests are the caller's promise, and the storage compares them with what
it reads later. Files are opened and their headers checked here, so permissions and paths are the caller's; their digest
is pending, made of their identities, until somebody read them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import msgspec

from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import Draft
from tensorcast.drafts.intake import NESTING_MAX
from tensorcast.leases.lease import Lease
from tensorcast.leases.renewal import shared_renewal
from tensorcast.leases.tenure import Tenure
from tensorcast.local import StorageLink
from tensorcast.puts import draft_of, is_path
from tensorcast.records import PutStats
from tensorcast_bus.errors import BadCheckpoint, Invalid
from tensorcast_bus.manifest import PENDING, content_digest
from tensorcast_bus.notes import Leased, LeaseDraft

TTL_S_DEFAULT = 60
TTL_S_MIN = 1
TTL_S_MAX = 86_400


def register(storage: StorageLink, x: object, art_id: str, *, ttl_s: float, deadline: Deadline) -> Lease:
    """See Runtime.register."""
    ttl_ms = _checked_ttl_ms(ttl_s, deadline.what)
    for name, device in _on_devices(x, ()):
        raise BadCheckpoint(
            f"{deadline.what}: tensor {name!r} is on {device}; a lease leaves bytes where they are, and so far "
            "a storage reads only the host memory of processes: register a copy on the CPU, or put it",
            tensor=name,
            device=device,
        )
    with ExitStack() as stack:
        draft = stack.enter_context(draft_of(x, art_id, deadline))
        note = _note(draft, x, ttl_ms, deadline)
        keep = stack.pop_all()
    tenure = Tenure(storage, draft, note, keep=keep)
    try:
        shared_renewal().start()
        leased = tenure.begin(deadline)
    except BaseException:
        tenure.close("it was not registered")
        keep.close()
        raise
    shared_renewal().watch(tenure)
    return Lease(tenure, _stats(draft, leased, deadline))


def close_leases(storage: StorageLink) -> None:
    """Ends what this process registered over a link, which is being closed."""
    shared_renewal().close_all(storage)


def _note(draft: Draft, x: object, ttl_ms: int, deadline: Deadline) -> LeaseDraft:
    if is_path(x):
        facts = msgspec.msgpack.encode([row.file for row in draft.manifest.segments if row.file is not None])
        return LeaseDraft(draft.manifest, ttl_ms, PENDING + hashlib.blake2b(facts, digest_size=16).hexdigest())
    manifest = draft.with_digests(deadline)
    return LeaseDraft(manifest, ttl_ms, content_digest(manifest))


def _stats(draft: Draft, leased: Leased, deadline: Deadline) -> PutStats:
    moved = leased.bytes_total if leased.path == "socket" else 0
    return PutStats(leased.bytes_total, moved, draft.bytes_copied, leased.path, deadline.passed_ms)


def _checked_ttl_ms(ttl_s: float, what: str) -> int:
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise Invalid(
            f"{what}: ttl_s is {ttl_s!r}; give seconds from {TTL_S_MIN} to {TTL_S_MAX}: how long the lease may outlive "
            "a process that hangs (it is renewed at a third of that, and ends at once with the process)"
        )
    return int(ttl_s * 1000)


def _on_devices(x: object, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Name and device of every tensor that is not in host memory. What is no tensor is the draft's to refuse."""
    torch = sys.modules.get("torch")
    if torch is None or len(above) > NESTING_MAX:
        return
    if isinstance(x, torch.nn.Module):
        x = x.state_dict()
    if isinstance(x, Mapping):
        for key, value in x.items():
            yield from _on_devices(value, (*above, str(key)))
    elif isinstance(x, torch.Tensor) and x.device.type != "cpu":
        yield ".".join(above), str(x.device)
