"""A world for the storage's core: pool, files, disk, owners and global store as plain records, time by hand.

Effects that end at once are carried out as they come; the others wait in `pending` until a test ends one of them, in
any order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorcast_services.storage.core import events as ev
from tests.unit.services.storage.hands import Answer, Hands, Told, identity_of
from tests.unit.services.storage.pool_model import CAPACITY, UNIT, Kept, Wish

__all__ = ["CAPACITY", "UNIT", "Told", "World"]


@dataclass
class World(Hands):
    def put(
        self,
        art_id: str,
        digest: str,
        *,
        path: str = "",
        budget_ms: int = 10_000,
        units: int = 1,
        durable: bool = False,
        base: str = "",
    ) -> int:
        request = self._ask("put", budget_ms)
        self.wishes[request] = Wish(art_id, digest, path, base=base)
        self.step(ev.PutAsked(request, art_id, budget_ms, units * UNIT, durable))
        return request

    def register(
        self,
        art_id: str,
        content: str,
        *,
        digest: str = "",
        ttl_ms: int = 30_000,
        budget_ms: int = 10_000,
        eager: bool = False,
    ) -> int:
        """`digest` as registered, the content's own unless given. The lease and source have number `self.sources`."""
        request = self._ask("register", budget_ms)
        self.sources += 1
        digest = digest or content
        self.kept[self.sources] = Kept(art_id, content, digest)
        self.offered[request] = self.sources
        self.wishes[request] = Wish(art_id, content)
        self.step(
            ev.RegisterAsked(
                request,
                art_id,
                budget_ms,
                source=self.sources,
                lease=self.sources,
                ttl_ms=ttl_ms,
                digest=digest,
                nbytes=1,
                tensors=1,
                path="socket" if eager else "vm_read",
                eager_bytes=UNIT if eager else 0,
            )
        )
        return request

    def renew(self, art_id: str, lease: int, *, ttl_ms: int = 30_000) -> Answer:
        request = self._ask("renew", 1)
        self.step(ev.RenewAsked(request, art_id, lease, ttl_ms))
        return self.answers[request]

    def release(self, art_id: str, lease: int) -> Answer:
        request = self._ask("release", 1)
        self.step(ev.ReleaseAsked(request, art_id, lease, 1))
        return self.answers[request]

    def die(self, source: int) -> None:
        """The owner's process ends."""
        if source in self.kept:
            self.kept[source].alive = False
        self.step(ev.OwnerDied(source))

    def attach(self, art_id: str, *, budget_ms: int = 10_000, how: str = "whole") -> int:
        request = self._ask("attach", budget_ms)
        if art_id in self.published:
            self._attached(request, art_id)
        else:
            self.wishes[request] = Wish(art_id, "")
            self.step(ev.AttachAsked(request, art_id, budget_ms, how))
        return request

    def durable(self, art_id: str, *, budget_ms: int = 10_000) -> int:
        request = self._ask("durable", budget_ms)
        self.wishes[request] = Wish(art_id, "")
        self.step(ev.DurableAsked(request, art_id, budget_ms))
        return request

    def delete(self, art_id: str, *, budget_ms: int = 10_000) -> int:
        request = self._ask("delete", budget_ms)
        self.step(ev.DeleteAsked(request, art_id, budget_ms))
        return request

    def hang_up(self, request: int) -> None:
        self.gone.add(request)
        self.step(ev.AskerGone(request))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.carry_out(self.core.tick(now_ms=self.now_ms))
        due = self.core.next_due_ms()
        assert due is None or due > self.now_ms, "somebody waits past his deadline"
        assert all(self.dues[request] > self.now_ms for request in self.open_requests()), "an answer is overdue"

    def see_pool(self) -> None:
        """The storage looks how full its pool is."""
        self.step(ev.PoolSeen(CAPACITY - self.free_bytes(), CAPACITY, self.uses()))

    def restore(self, art_id: str) -> None:
        """The start finds the sidecar that an earlier incarnation left."""
        wish = self.sidecars[art_id]
        self.step(ev.Restored(art_id, wish.digest, 1, 1, identity_of(wish)))

    def hear(self) -> None:
        """The oldest event of the global store arrives."""
        self.step(self.events.pop(0))

    def settle(self) -> None:
        """Ends everything that waits, as it would end when all goes well."""
        while self.pending or self.fills:
            if self.pending:
                self.end(0)
            else:
                self.end_fill(min(self.fills))

    def check_quiet(self) -> None:
        """Nothing waits and nothing runs: every byte that is held is published."""
        assert not self.pending and not self.fills and not self.writes and not self.open_requests()
        assert not self.opened, "source files stay open"
        self.check_users()
        for art_id, here in self.published.items():
            assert self.catalog.get(art_id, ("nothing",))[0] == here.digest, f"{art_id} is not what the catalog says"
        claims = self.core.claims()
        claimed = {(claim.art_id, claim.tier) for claim in claims}
        assert claimed == self.claims, "the global store has a wrong picture of this storage"
        assert self.sidecars.keys() == {art_id for art_id, tier in claimed if tier == "file"}
        assert self.disk.keys() == {art_id for art_id, tier in claimed if tier == "disk"}
        leased = {claim.art_id for claim in claims if claim.ownership == "lease"}
        assert sorted(kept.art_id for kept in self.kept.values()) == sorted(leased), (
            "kept for nobody, or let go too soon"
        )
        assert leased == self.leased and not leased & self.over

    def _ask(self, verb: str, budget_ms: int) -> int:
        self.requests += 1
        self.asked[self.requests] = verb
        self.dues[self.requests] = self.now_ms + budget_ms
        return self.requests
