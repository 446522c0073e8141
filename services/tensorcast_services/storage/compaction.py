"""Gives back what nobody uses of shared segments: a segment less than half alive is copied to a smaller one.

Runs as one task beside the service, one segment at a time. The core does not know: an artifact is republished with the
same content from other segments, in one loop step, and only while it still is what was read; whoever maps the old
segment keeps it. Nothing here is urgent: whatever fails is given up and undone, and the next look tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import structlog

from tensorcast_bus.manifest import Manifest, decode_manifest, encode_manifest
from tensorcast_native import FillDone, LocalServer, Pool, PoolFull
from tensorcast_services.storage.compaction_plan import CompactionPlan, plan_compaction
from tensorcast_services.storage.draft_rows import new_key
from tensorcast_services.storage.residents import Resident, Residents

# Numbers of the core's runs grow from 0, and the local server's requests begin at 2**32.
TOKEN_FIRST = 1 << 31
TOKENS = 1 << 30

T = TypeVar("T")


class Compute(Protocol):
    """Runs work on a thread for tables."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


class Compactor:
    """`look` after a withdraw with the keys of what was withdrawn, and after a publish of what borrowed or was loaded:
    then a segment may have lost users, or have never had those that used the rest of it."""

    def __init__(
        self, pool: Pool, server: LocalServer, residents: Residents, *, compute: Compute, load_ms_max: int
    ) -> None:
        self.compactions = 0
        self._pool = pool
        self._server = server
        self._residents = residents
        self._compute = compute
        self._load_ms_max = load_ms_max
        self._due: dict[str, None] = {}
        self._without_room: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._tokens = 0
        self._loads: dict[int, asyncio.Future[FillDone]] = {}
        self._log = structlog.get_logger("compaction")

    def look(self, keys: Iterable[str]) -> None:
        """Keys that nobody uses cost nothing. What once had no room is looked at again with them."""
        again, self._without_room = self._without_room, {}
        for key in (*again, *keys):
            if self._residents.segment_of(key) is not None:
                self._due[key] = None
                self._wake.set()

    def filled(self, done: FillDone) -> bool:
        """Takes the end of a load of its own. False for all others."""
        load = self._loads.pop(done.id, None)
        if load is None:
            return False
        if load.done():
            self._drop(done.segments)  # given up meanwhile
        else:
            load.set_result(done)
        return True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.settle()

    async def settle(self) -> None:
        """Looks at all that is due now."""
        while self._due:
            key = next(iter(self._due))
            del self._due[key]
            for segment, _ in list(self._residents.lying(key)):
                try:
                    await self._compact(key, segment)
                except PoolFull:
                    self._without_room[key] = None
                    self._log.info("no_room_to_compact", key=key)
                except Exception as bug:
                    self._log.error("compaction_failed", key=key, segment=segment, exc_info=bug)

    async def _compact(self, key: str, segment: int) -> None:
        users = dict(self._residents.lying(key)).get(segment, ())
        if not users or any(user.lives_in_all_of(key) for user in users):
            return
        held: list[int] = []
        try:
            # Held, so that what is read is what was there at this step, whoever withdraws it meanwhile.
            for one in (segment, *(user.manifest_segment for user in users)):
                self._pool.hold(one)
                held.append(one)
            plan = await self._compute(lambda: self._plan(key, users))
            if plan is None:
                return
            done = await self._copied(plan, segment)
            held += done.segments
            if done.status != "ok" or done.digests != plan.digests:
                why = f"{done.status} {done.detail}" if done.status != "ok" else "the copy has other bytes"
                self._log.error("copy_failed", key=key, why=why)
                return
            blobs = await self._compute(lambda: [encode_manifest(manifest) for manifest in plan.manifests])
            moves: list[tuple[Resident, Resident]] = []
            for user, manifest, blob in zip(users, plan.manifests, blobs, strict=True):
                held.append(self._sealed(blob))
                moves.append((user, _moved(user, segment, done.segments[0], held[-1], manifest, len(blob))))
            self._switch(moves, plan.nbytes)
        finally:
            self._drop(held)

    def _plan(self, key: str, users: tuple[Resident, ...]) -> CompactionPlan | None:
        manifests = [self._manifest(user) for user in users]
        return plan_compaction(key, manifests, new_key=new_key())

    def _manifest(self, user: Resident) -> Manifest:
        return decode_manifest(self._pool.read(user.manifest_segment, 0, user.manifest_bytes))

    async def _copied(self, plan: CompactionPlan, source: int) -> FillDone:
        token = TOKEN_FIRST + self._tokens % TOKENS
        self._tokens += 1
        load: asyncio.Future[FillDone] = asyncio.get_running_loop().create_future()
        self._server.load(
            token,
            segment_bytes=[plan.nbytes],
            pieces=plan.pieces,
            rows=plan.rows,
            files=(),
            inline=plan.inline,
            sources=[source],
            deadline_ms=self._load_ms_max,
        )
        self._loads[token] = load
        try:
            return await load
        except asyncio.CancelledError:
            self._server.cancel(token)
            raise

    def _sealed(self, blob: bytes) -> int:
        segment = self._pool.reserve(len(blob))
        try:
            self._pool.write(segment, 0, blob)
            self._pool.seal(segment)
        except BaseException:
            self._pool.drop(segment)
            raise
        return segment

    def _switch(self, moves: list[tuple[Resident, Resident]], nbytes: int) -> None:
        """One loop step: every user that still is what was read moves. Those that are gone, or were published anew from
        elsewhere, are left alone; what was copied for them goes with our own users."""
        done: list[str] = []
        for old, new in moves:
            if self._residents.find(old.art_id) is not old:
                continue
            try:
                self._server.republish(new.art_id, new.manifest_segment, new.segments)
            except ValueError as error:
                self._log.error("not_republished", art_id=old.art_id, error=str(error))
                continue
            self._residents.replace(new)
            done.append(old.art_id)
        if done:
            self.compactions += 1
            self._log.info("compacted", users=done[:4], of=len(moves), nbytes=nbytes)

    def _drop(self, segments: Iterable[int]) -> None:
        for segment in segments:
            self._pool.drop(segment)


def _moved(user: Resident, old: int, new: int, manifest_segment: int, manifest: Manifest, nbytes: int) -> Resident:
    segments = tuple(new if segment == old else segment for segment in user.segments)
    keys = tuple(row.key for row in manifest.segments)
    return Resident(user.art_id, user.digest, manifest_segment, nbytes, segments, keys)
