"""Which processes live: known by heartbeats, and by whatever else their incarnation says to the global store.

A process lives while its newest incarnation was heard within the TTL. Only `tick` lets anybody expire, and a gap
between two ticks (the global store itself stood still) is added to everybody's TTL, so that nobody expires while his
heartbeats lie unread. The same holds while its own heartbeats do not come back to it: then it is deaf, not they dead.
After a start, processes that saved claims name and nobody has heard yet get one TTL.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from tensorcast_bus.errors import StaleFence
from tensorcast_bus.messages import Heartbeat, Worker

# With every figure at its longest, all workers still fit one message.
WORKERS_MAX = 256
TTL_MS = 5_000
OWN_STALL_MS_MAX = 1_000
DEAF_MS_MAX = 2_500
REMEMBER_DEAD_MS = 24 * 3600 * 1000


class _Seen(Struct):
    """`before_ms` is when the incarnation before this one was last heard, or when this one was first."""

    worker: Worker
    last_ms: int
    before_ms: int


class Registry:
    """Times are the core's ms. A process is named without its incarnation ("storage-a")."""

    def __init__(self, *, own: str = "", newest: Mapping[str, int] | None = None, ttl_ms: int = TTL_MS) -> None:
        """`own` is the process whose heartbeats show that heartbeats reach us at all; "" to trust that they do.
        `newest` holds the newest incarnation of each process that saved rows name."""
        self._newest = newest or {}
        self._own = own
        self._ttl_ms = ttl_ms
        self._seen: dict[str, _Seen] = {}
        self._last_tick_ms: int | None = None
        self._awake_ms = 0
        self._grace_until_ms: int | None = None
        self._grace_over = False

    @property
    def awake_ms(self) -> int:
        """How long we have listened since our start: stalls and deafness are not in it, so a wait that is measured by
        it gives everybody the time to be heard."""
        return self._awake_ms

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> bool:
        """False for an older incarnation than the known one, and where there is no room for one more process."""
        if not self.sight(beat.process, role=beat.role, node=beat.node, incarnation=beat.incarnation, now_ms=now_ms):
            return False
        seen = self._seen[beat.process]
        seen.worker = replace(
            seen.worker,
            role=beat.role,
            node=beat.node,
            pid=beat.pid,
            version=beat.version,
            uptime_ms=beat.uptime_ms,
            figures=beat.figures,
        )
        return True

    def sight(self, process: str, *, role: str, node: str, incarnation: int, now_ms: int) -> bool:
        """Any word of an incarnation shows that it lives."""
        if incarnation < self.newest(process):
            return False
        seen = self._seen.get(process)
        if seen is not None and incarnation == seen.worker.incarnation:
            seen.last_ms = max(seen.last_ms, now_ms)
            if not seen.worker.living:
                seen.worker = replace(seen.worker, living=True)
            return True
        if seen is None and not self._make_room():
            return False
        fresh = Worker(process, role, node, incarnation, pid=0, version="", uptime_ms=0, age_ms=0, living=True)
        self._seen[process] = _Seen(fresh, now_ms, seen.last_ms if seen is not None else now_ms)
        return True

    def check_newest(self, process: str, incarnation: int) -> None:
        """StaleFence when a newer incarnation of the process is known."""
        newest = self.newest(process)
        if incarnation < newest:
            raise StaleFence(
                f"{process} with incarnation {incarnation:x} was replaced by {newest:x}: this process must stop",
                process=process,
                incarnation=incarnation,
                newest=newest,
            )

    def newest(self, process: str) -> int:
        """The newest known incarnation, 0 when none is."""
        seen = self._seen.get(process)
        return seen.worker.incarnation if seen is not None else self._newest.get(process, 0)

    def living(self, process: str, incarnation: int) -> bool:
        """Whether this very incarnation lives, as far as is known; within a TTL of our start, also if unheard."""
        seen = self._seen.get(process)
        if seen is None:
            return not self._grace_over and incarnation >= self._newest.get(process, 0)
        return seen.worker.living and seen.worker.incarnation == incarnation

    def heard(self, process: str, incarnation: int) -> bool:
        """The same, but only with a word of its own since our start."""
        return process in self._seen and self.living(process, incarnation)

    def gone_since(self, process: str, incarnation: int, otherwise_ms: int) -> int:
        """When this incarnation was last known to live, as closely as is known."""
        seen = self._seen.get(process)
        if seen is None or incarnation > seen.worker.incarnation:
            return otherwise_ms
        return seen.last_ms if seen.worker.incarnation == incarnation else seen.before_ms

    def tick(self, now_ms: int) -> None:
        """Expires whom nobody heard for a TTL, and forgets who has been dead for a day; does neither while deaf."""
        if self._own:
            own = self._seen.get(self._own)
            if own is None or now_ms - own.last_ms > DEAF_MS_MAX:
                return  # the next tick that hears sees the gap and adds it to everybody's TTL
        if self._last_tick_ms is None:
            self._grace_until_ms = now_ms + self._ttl_ms
        elif now_ms - self._last_tick_ms > OWN_STALL_MS_MAX:
            self._forgive(now_ms - self._last_tick_ms, now_ms)
        else:
            self._awake_ms += now_ms - self._last_tick_ms
        self._last_tick_ms = now_ms
        if self._grace_until_ms is not None and now_ms >= self._grace_until_ms:
            self._grace_over = True
        for process, seen in list(self._seen.items()):
            silent_ms = now_ms - seen.last_ms
            if seen.worker.living and silent_ms > self._ttl_ms:
                seen.worker = replace(seen.worker, living=False)
            elif not seen.worker.living and silent_ms > REMEMBER_DEAD_MS:
                del self._seen[process]

    def workers(self, role: str, now_ms: int) -> tuple[Worker, ...]:
        """All, or those of one role, by name; dead ones of the last day too."""
        return tuple(
            replace(seen.worker, age_ms=max(0, now_ms - seen.last_ms))
            for _, seen in sorted(self._seen.items())
            if not role or seen.worker.role == role
        )

    def counts(self) -> Mapping[str, int]:
        living = sum(seen.worker.living for seen in self._seen.values())
        return {"workers_living": living, "workers_dead": len(self._seen) - living}

    def _forgive(self, gap_ms: int, now_ms: int) -> None:
        for seen in self._seen.values():
            if seen.worker.living:
                seen.last_ms = min(now_ms, seen.last_ms + gap_ms)
        if self._grace_until_ms is not None:
            self._grace_until_ms += gap_ms

    def _make_room(self) -> bool:
        if len(self._seen) < WORKERS_MAX:
            return True
        dead = [(seen.last_ms, process) for process, seen in self._seen.items() if not seen.worker.living]
        if dead:
            del self._seen[min(dead)[1]]
        return bool(dead)
