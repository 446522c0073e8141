"""One lease as its process keeps it: what was registered, until when it holds, and how it ends.

Used by the public Lease, by the renewal thread, and by nobody in a forked child: a lease belongs to the process that
registered it. It holds until its TTL has passed since the last word with the storage. A storage that was restarted has
forgotten it, and is told again; one that says that the lease is over is believed. When it is over, the ticket is ended
(nothing read from the caller's memory counts any more) and the caller's tensors and files are let go.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tensorcast.deadline import Deadline
from tensorcast.drafts.draft import Draft
from tensorcast.local import StorageLink
from tensorcast_bus.errors import AlreadyExists, Conflict, Invalid, LeaseLost, NotFound, TensorCastError
from tensorcast_bus.manifest import is_pending
from tensorcast_bus.notes import AskRelease, AskRenew, Deleted, Leased, LeaseDraft, Renewed
from tensorcast_native import Ticket


class Tenure:
    """`keep` closes what the draft owns. Thread-safe."""

    def __init__(self, storage: StorageLink, draft: Draft, note: LeaseDraft, *, keep: ExitStack) -> None:
        self.pid = os.getpid()
        self.storage = storage
        self.art_id = note.manifest.art_id
        self.digest = note.digest
        self.ttl_ms = note.ttl_ms
        self.lease_id = 0
        # Why it is over; "" while it is held.
        self.over = ""
        self.holds_until_s = 0.0
        # Its storage was restarted and does not know it; registering again has not succeeded yet.
        self.forgotten = False
        self._draft: Draft | None = draft
        self._note: LeaseDraft | None = note
        self._keep = keep
        self._ticket = Ticket()
        self._incarnation = 0
        self._settled = False
        self._lock = threading.Lock()

    def begin(self, deadline: Deadline) -> Leased:
        """Registers. Raises what the storage refuses with, and StorageLost."""
        with self._held_by_one(deadline):
            return self._register(deadline)

    def renew(self, deadline: Deadline) -> None:
        """The lease lasts its TTL from now. Raises LeaseLost when it is over, also in a forked child; StorageLost or
        Timeout when the storage does not answer, and then it still holds for what is left of its TTL."""
        if self.pid != os.getpid():
            raise LeaseLost(
                f"the lease on {self.art_id!r} belongs to process {self.pid}, which registered it; process "
                f"{os.getpid()} was forked from it and has no part in it: register under another id here",
                art_id=self.art_id,
                pid=self.pid,
            )
        with self._held_by_one(deadline):
            self._check_held()
            try:
                self._renew(deadline)
            except TensorCastError as error:
                self._lose_in_time(error)
                raise

    def run_out(self) -> None:
        """Over, where its TTL has passed and nobody is just renewing it: for a storage that is known to be silent."""
        if time.monotonic() >= self.holds_until_s and self._lock.acquire(blocking=False):
            try:
                self._lose("its storage was silent until its TTL had passed")
            finally:
                self._lock.release()

    def settle(self, deadline: Deadline) -> None:
        """Once it was closed: lets go of memory and files, and tells the storage, once. Nothing in a forked child.
        Raises StorageLost or Timeout when the storage could not be told: there the lease ends with its TTL."""
        if self.pid != os.getpid():
            return
        with self._held_by_one(deadline):
            self._let_go()
            if self.lease_id and not self._settled:
                self._settled = True
                ask = AskRelease(self.art_id, self.lease_id)
                self.storage.ask(ask, answer=Deleted, deadline=deadline)

    def close(self, why: str) -> None:
        """Ends it on this side, without a word to anybody and without waiting: it may be called from within a garbage
        collection. Nothing in a forked child."""
        if self.pid == os.getpid():
            self._ticket.end()
            self.over = self.over or why

    def lost(self) -> LeaseLost:
        """What a caller is told once it is over."""
        return LeaseLost(
            f"the lease on {self.art_id!r} (held for {self.ttl_ms / 1000:g} s at a time by process {self.pid}) is "
            f"over: {self.over}; register it again for another",
            art_id=self.art_id,
            lease=self.lease_id,
        )

    @contextmanager
    def _held_by_one(self, deadline: Deadline) -> Iterator[None]:
        if not self._lock.acquire(timeout=deadline.left_ms("waiting for a renewal of the lease") / 1000):
            raise deadline.timeout("waiting for a renewal of the lease")
        try:
            yield
        finally:
            self._lock.release()

    def _check_held(self) -> None:
        if self.over:
            raise self.lost()

    def _register(self, deadline: Deadline) -> Leased:
        if self._draft is None or self._note is None:
            raise self.lost()
        # Taken first: where the storage is restarted in between, one registration too many is tried later, not too few.
        self._incarnation = self.storage.greeting(deadline=deadline).incarnation
        asked_s = time.monotonic()
        leased = self.storage.register(self._draft, self._note, ticket=self._ticket, deadline=deadline)
        self.lease_id = leased.lease
        self.forgotten = False
        self.holds_until_s = asked_s + self.ttl_ms / 1000
        return leased

    def _renew(self, deadline: Deadline) -> None:
        asked_s = time.monotonic()
        if not self.forgotten:
            try:
                ask = AskRenew(self.art_id, self.lease_id, self.ttl_ms)
                self.storage.ask(ask, answer=Renewed, deadline=deadline)
                self.holds_until_s = asked_s + self.ttl_ms / 1000
                return
            except (LeaseLost, NotFound) as gone:
                self.forgotten = self.storage.greeting(deadline=deadline).incarnation != self._incarnation
                if not self.forgotten or time.monotonic() >= self.holds_until_s:
                    self._lose(gone.text)
                    raise self.lost() from gone
        try:
            # With the digests of then: they are what was promised, and the storage compares them at its first read.
            self._register(deadline)
        except (Conflict, Invalid) as refused:
            if isinstance(refused, AlreadyExists) and is_pending(self.digest):
                # Files that were read have a real digest in the catalog, for as long as it waits for their lease.
                raise
            self._lose(f"its storage was restarted and would not have it again: {refused.text}")
            raise self.lost() from refused

    def _lose_in_time(self, error: TensorCastError) -> None:
        """Raises LeaseLost once the TTL has passed: by then the storage has ended it, whatever it answers later."""
        if not self.over and time.monotonic() >= self.holds_until_s:
            self._lose(f"it could not be renewed within its TTL: {error.text}")
            raise self.lost() from error

    def _lose(self, why: str) -> None:
        self.close(why)
        self._settled = True
        self._let_go()

    def _let_go(self) -> None:
        self._draft = self._note = None
        self._keep.close()
