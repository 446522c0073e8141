"""The caller's handle on a lease. Made by Runtime.register(); AsyncLease is the same for async callers."""

from __future__ import annotations

import os
import weakref
from types import TracebackType

from tensorcast.deadline import DEADLINE_MS_DEFAULT, Deadline
from tensorcast.leases.renewal import shared_renewal
from tensorcast.leases.tenure import Tenure
from tensorcast.records import PutStats


class Lease:
    """What this process registered, readable by others for as long as the lease lives. It is renewed in the background
    and ends with release(), with this object, with its runtime or with the process. Do not write to registered memory
    before that. `art_id`; `digest` of the content ("pending:" and hex for files, which were not read); `ttl_s`;
    `stats`: what registering cost. Thread-safe; in a forked child it is nothing but its record."""

    def __init__(self, tenure: Tenure, stats: PutStats) -> None:
        self.art_id = tenure.art_id
        self.digest = tenure.digest
        self.ttl_s = tenure.ttl_ms / 1000
        self.stats = stats
        self._tenure = tenure
        # At the end of the process the kernel tells the storage; until then whoever drops the object has released it.
        weakref.finalize(self, _forsake, tenure).atexit = False

    @property
    def lease_id(self) -> int:
        """The storage's number for it; another one after a restart of the storage."""
        return self._tenure.lease_id

    def renew(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """The lease lasts its TTL from now. Not needed: it is renewed in the background at a third of that; this tells
        whether it lives. Raises LeaseLost when it is over or belongs to the process that this one was forked from;
        StorageLost or Timeout when the storage does not answer, and then it holds for what is left of the TTL."""
        self._tenure.renew(Deadline(deadline_ms, f"renewal of the lease on {self.art_id!r}"))

    def release(self, *, deadline_ms: int = DEADLINE_MS_DEFAULT) -> None:
        """The id is gone, new reads raise LeaseLost, tensors that others have stay right, and the memory is the
        caller's alone. Idempotent; nothing in a forked child. Raises StorageLost or Timeout when the storage could not
        be told; the memory is the caller's all the same, and the id goes with the TTL."""
        deadline = Deadline(deadline_ms, f"release of the lease on {self.art_id!r}")
        self._tenure.close("it was released")
        try:
            self._tenure.settle(deadline)
        finally:
            _forsake(self._tenure)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        other = f" of process {self._tenure.pid}" if self._tenure.pid != os.getpid() else ""
        return f"<Lease on {self.art_id!r}{other}{f' over: {self._tenure.over}' if self._tenure.over else ''}>"


def _forsake(tenure: Tenure) -> None:
    """May run inside any garbage collection, and in a forked child."""
    if tenure.pid == os.getpid():
        shared_renewal().forsake(tenure)
