"""What the global store's catalog should believe, as sets that a page can hold.

Claims are only those that stand; names are ids or aliases; time is told by ticks as the desk's are. Each method returns
whether the catalog must agree, and then has changed what is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorcast_bus.messages import AliasRow, Commit, EndLease, Expectation, ReplicaClaim, Report
from tensorcast_services.global_store.core.leases import LEASE_GRACE_MS
from tensorcast_services.global_store.core.registry import TTL_MS
from tests.unit.services.global_store.cases import PENDING

Claim = tuple[str, str, str]  # (id, process, tier)


class Beliefs:
    def __init__(self, now_ms: int, processes: Iterable[str]) -> None:
        self.now_ms = now_ms
        self.incarnation = dict.fromkeys(processes, 1)
        self.content: dict[str, str] = {}
        self.ownership: dict[str, str] = {}
        self.claims: dict[Claim, int] = {}  # the incarnation of each
        self.records: dict[Claim, int] = {}  # the same, with those that are lost
        self.gone: dict[str, str] = {}  # id -> reason
        self.aliases: dict[str, AliasRow] = {}
        self.settings: list[AliasRow] = []  # all that ever were
        self.silent_since: dict[str, int | None] = {}
        self.known: dict[str, int] = {}  # the incarnation that the global store knows of
        self.heard_ms: dict[str, int] = {}  # of processes that it heard since its start
        self.dead: set[str] = set()
        self.grace_until_ms = now_ms + TTL_MS
        self.grace = True

    # Who lives

    def hear(self, process: str) -> None:
        """A word of the process's current incarnation arrives."""
        self.known[process] = self.incarnation[process]
        self.heard_ms[process] = self.now_ms
        self.dead.discard(process)

    def lives(self, process: str, incarnation: int) -> bool:
        if incarnation < self.known.get(process, 0):
            return False
        if process in self.heard_ms:
            return process not in self.dead and incarnation == self.known[process]
        return self.grace

    def living(self, art_id: str) -> set[tuple[str, str]]:
        return {
            (process, tier)
            for (of, process, tier), incarnation in self.claims.items()
            if of == art_id and self.lives(process, incarnation)
        }

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.dead |= {process for process, heard_ms in self.heard_ms.items() if now_ms - heard_ms > TTL_MS}
        self.grace = self.grace and now_ms < self.grace_until_ms
        for art_id in [i for i, ownership in self.ownership.items() if ownership == "lease"]:
            since_ms = self.silent_since.get(art_id)
            if self.living(art_id):
                self.silent_since[art_id] = None
            elif since_ms is None:
                self.silent_since[art_id] = now_ms
            elif now_ms - since_ms >= LEASE_GRACE_MS:
                self.remove(art_id, "lease")

    def restart(self, known: Mapping[str, int]) -> None:
        """`known`: the newest incarnations that saved rows name."""
        self.known = dict(known)
        self.heard_ms.clear()
        self.dead.clear()
        self.silent_since.clear()
        self.grace, self.grace_until_ms = True, self.now_ms + TTL_MS

    # Artifacts and claims

    def commit(self, ask: Commit) -> bool:
        other = self.content.get(ask.art_id, ask.digest) != ask.digest and not self._again(ask)
        if ask.art_id in self.aliases or other or self._forbidden(ask.art_id, ask.process, ask.ownership):
            return False
        self._hold(ask.art_id, ask.process, ask.ownership, ask.digest, ask.tiers)
        self.gone.pop(ask.art_id, None)
        return True

    def _again(self, ask: Commit) -> bool:
        """Files that were read before their storage ended are registered again, unread."""
        under_lease = ask.ownership == self.ownership[ask.art_id] == "lease"
        holders = {process for art_id, process, _ in self.records if art_id == ask.art_id}
        mine = holders <= {ask.process} and not self.living(ask.art_id)
        return under_lease and ask.digest == PENDING and mine

    def report(self, parts: Iterable[Report]) -> list[str]:
        """Both parts of a full report; the ids that are refused."""
        refused: list[str] = []
        named: set[Claim] = set()
        for ask in parts:
            if ask.first:
                self.claims = {c: n for c, n in self.claims.items() if c[1] != ask.process or n == ask.incarnation}
            for row in ask.claims:
                if self._take(row, ask.process):
                    named.add((row.art_id, ask.process, row.tier))
                else:
                    refused.append(row.art_id)
            if ask.last:
                self.claims = {c: n for c, n in self.claims.items() if c[1] != ask.process or c in named}
        return refused

    def drop(self, art_id: str, process: str, tier: str) -> bool:
        others = {place for place in self.living(art_id) if place != (process, tier) and place[0] in self.heard_ms}
        if art_id in self.content and tier == "host" and not others:
            return False
        if self.claims.pop((art_id, process, tier), None) is not None and tier == "host":
            del self.records[(art_id, process, tier)]
        return True

    def end_lease(self, ask: EndLease) -> bool:
        def mine(claims: Mapping[Claim, int]) -> bool:
            return any(c[:2] == (ask.art_id, ask.process) and n == ask.incarnation for c, n in claims.items())

        abandoned = mine(self.records) and not any(art_id == ask.art_id for art_id, _, _ in self.claims)
        if not (mine(self.claims) or abandoned) or self.ownership[ask.art_id] != "lease":
            return False
        if self.content[ask.art_id] != ask.digest and PENDING not in (self.content[ask.art_id], ask.digest):
            return False
        self.remove(ask.art_id, "lease")
        return True

    def remove(self, art_id: str, reason: str) -> None:
        del self.content[art_id], self.ownership[art_id]
        self.silent_since.pop(art_id, None)
        self.gone[art_id] = reason
        self.claims = {claim: n for claim, n in self.claims.items() if claim[0] != art_id}
        self.records = {claim: n for claim, n in self.records.items() if claim[0] != art_id}

    def _take(self, row: ReplicaClaim, process: str) -> bool:
        if row.art_id in self.aliases or row.art_id in self.gone:
            return False
        if self.content.get(row.art_id, row.digest) not in {row.digest, row.was or row.digest}:
            return False
        if self.ownership.get(row.art_id, row.ownership) != row.ownership:
            return False
        if self._forbidden(row.art_id, process, row.ownership):
            return False
        self._hold(row.art_id, process, row.ownership, row.digest, (row.tier,))
        return True

    def _forbidden(self, art_id: str, process: str, ownership: str) -> bool:
        match self.ownership.get(art_id):
            case None:
                return False
            case "system":
                return ownership == "lease"
            case _:
                return any(ownership == "system" or holder != process for holder, _ in self.living(art_id))

    def _hold(self, art_id: str, process: str, ownership: str, digest: str, tiers: Iterable[str]) -> None:
        if self.ownership.get(art_id) == "lease":
            self.claims = {c: n for c, n in self.claims.items() if c[0] != art_id or c[1] == process}
        self.content[art_id], self.ownership[art_id] = digest, ownership
        for tier in tiers:
            self.claims[(art_id, process, tier)] = self.records[(art_id, process, tier)] = self.incarnation[process]

    # Aliases

    def may_set(self, name: str, target: str, expect: Expectation) -> str:
        """The class of the error, "" when the alias is set."""
        if name in self.content:
            return "Conflict"
        if target not in self.content:
            return "NotFound"
        return "" if self._expected(name, expect) else "Conflict"

    def may_unset(self, name: str, expect: Expectation) -> str:
        if name not in self.aliases:
            return "NotFound"
        return "" if self._expected(name, expect) else "Conflict"

    def set(self, row: AliasRow) -> None:
        assert all(row.revision > earlier.revision for earlier in self.settings), "a revision was given out again"
        self.settings.append(row)
        self.aliases[row.name] = row

    def _expected(self, name: str, expect: Expectation) -> bool:
        row = self.aliases.get(name)
        match expect.kind:
            case "any":
                return True
            case "absent":
                return row is None
            case "id":
                return row is not None and row.art_id == expect.art_id
            case _:
                return row is not None and row.revision == expect.revision
