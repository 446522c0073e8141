"""The one thread of a process that renews its leases: at a third of their TTL at the latest, and again soon where that
failed.

Started at the first lease, a daemon: the process may end at any time, and its leases with it. A forked child starts its
own for what it registers itself. One storage that does not answer costs the leases at others one short try a round.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import threading
import time

from tensorcast.deadline import Deadline
from tensorcast.leases.tenure import Tenure
from tensorcast.local import StorageLink
from tensorcast_bus.errors import TensorCastError, Unavailable

RENEWALS_A_TTL = 3
PAUSE_S_MAX = 20.0
TRY_MS_MAX = 2_000
REGISTER_MS_MAX = 10_000
RETRY_S_MAX = 0.5
DUE_MIN = 64
CLOSE_MS_MAX = 2_000


class Renewal:
    """A process's leases and the thread that renews them. `watch` and `forsake` may be called from any thread."""

    def __init__(self) -> None:
        self._tenures: set[Tenure] = set()
        self._told: queue.SimpleQueue[Tenure] = queue.SimpleQueue()
        self._due: list[tuple[float, int, Tenure]] = []
        self._numbers = itertools.count()
        self._silent_until_s: dict[StorageLink, float] = {}
        self._lock = threading.Lock()
        self._running = False

    def start(self) -> None:
        """Raises Unavailable where no thread can be started."""
        with self._lock:
            if self._running:
                return
            try:
                threading.Thread(target=self._run, name="tensorcast-leases", daemon=True).start()
            except RuntimeError as error:
                raise Unavailable(
                    f"no thread can be started to renew leases: {error}; raise this process's limits"
                ) from error
            self._running = True

    def watch(self, tenure: Tenure) -> None:
        self._tenures.add(tenure)
        self._told.put(tenure)

    def forsake(self, tenure: Tenure) -> None:
        """Nobody holds its Lease any more. Takes no lock, since a garbage collection may come anywhere."""
        tenure.close("nobody held it any more")
        self._told.put(tenure)

    def close_all(self, storage: StorageLink) -> None:
        """Releases what is held at a storage, as far as it answers: its runtime is being closed."""
        mine = [tenure for tenure in list(self._tenures) if tenure.storage is storage]
        for tenure in mine:
            tenure.close("its runtime was closed")
        deadline = Deadline(CLOSE_MS_MAX, "release of the leases of a runtime")
        for tenure in mine:
            try:
                tenure.settle(deadline)
            except TensorCastError:
                pass  # its TTL ends it
            self._told.put(tenure)

    def _run(self) -> None:
        while True:
            pause = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            try:
                self._take(self._told.get(timeout=pause))
            except queue.Empty:
                pass
            while self._due and self._due[0][0] <= time.monotonic():
                self._turn(heapq.heappop(self._due)[2])

    def _take(self, tenure: Tenure) -> None:
        if tenure.over:
            self._end(tenure)
        else:
            self._push(tenure, time.monotonic() + _pause_s(tenure))

    def _turn(self, tenure: Tenure) -> None:
        if tenure.over:
            self._end(tenure)
        elif self._is_silent(tenure.storage):
            tenure.run_out()
            self._push(tenure, self._silent_until_s[tenure.storage])
        else:
            self._renew(tenure)

    def _renew(self, tenure: Tenure) -> None:
        began_s = time.monotonic()
        limit_ms = REGISTER_MS_MAX if tenure.forgotten else TRY_MS_MAX
        budget_ms = max(1, min(limit_ms, tenure.ttl_ms // RENEWALS_A_TTL // 2))
        try:
            tenure.renew(Deadline(budget_ms, f"renewal of the lease on {tenure.art_id!r}"))
            self._push(tenure, began_s + _pause_s(tenure))
        except Exception as error:
            # Whoever holds the lease hears why at their own renew(). Here it is tried until its time has passed.
            again_s = time.monotonic() + min(RETRY_S_MAX, _pause_s(tenure) / RENEWALS_A_TTL)
            if isinstance(error.__cause__ or error, Unavailable):
                self._silent_until_s[tenure.storage] = again_s
            if tenure.over:
                self._end(tenure)
            else:
                self._push(tenure, again_s)

    def _end(self, tenure: Tenure) -> None:
        if tenure in self._tenures:
            self._tenures.discard(tenure)
            self._forget()
        if self._is_silent(tenure.storage):
            return
        try:
            tenure.settle(Deadline(TRY_MS_MAX, f"release of the lease on {tenure.art_id!r}"))
        except Exception:
            # Its TTL ends it; and whatever it was, the other leases need this thread.
            self._silent_until_s[tenure.storage] = time.monotonic() + RETRY_S_MAX

    def _forget(self) -> None:
        """Those that are over wait for their turn among the due ones: not too many of them, whatever their TTL."""
        if not self._tenures:
            self._silent_until_s.clear()
        if len(self._due) > DUE_MIN and len(self._due) > 2 * len(self._tenures):
            self._due = [entry for entry in self._due if not entry[2].over]
            heapq.heapify(self._due)

    def _push(self, tenure: Tenure, due_s: float) -> None:
        heapq.heappush(self._due, (due_s, next(self._numbers), tenure))

    def _is_silent(self, storage: StorageLink) -> bool:
        return time.monotonic() < self._silent_until_s.get(storage, 0.0)


def _pause_s(tenure: Tenure) -> float:
    """Not longer than PAUSE_S_MAX: that is how late a restart of the storage is noticed."""
    return min(PAUSE_S_MAX, tenure.ttl_ms / 1000 / RENEWALS_A_TTL)


_shared = Renewal()


def shared_renewal() -> Renewal:
    """This process's."""
    return _shared


def _new_in_child() -> None:
    global _shared
    _shared = Renewal()


os.register_at_fork(after_in_child=_new_in_child)
