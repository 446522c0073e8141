"""What storages report to hold: whole, in parts, or a single fact.

A report brings back what a lost catalog forgot, but neither what is gone nor other content, nor an id that is an alias
or another's by now: those it is told to drop. Only the last part of a full report whose first one was seen forgets what
was not named.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tensorcast_bus.messages import ArtifactRow, ReplicaClaim, Report
from tensorcast_services.global_store.core.aliases import Aliases
from tensorcast_services.global_store.core.entries import Place
from tensorcast_services.global_store.core.holdings import Holdings
from tensorcast_services.global_store.core.leases import what_forbids
from tensorcast_services.global_store.core.rows import ReplicaRecord


class _FullReport(Struct):
    incarnation: int
    named: set[tuple[str, str]]


class Reports:
    """Full reports that are under way, by process."""

    def __init__(self, holdings: Holdings, aliases: Aliases) -> None:
        self._holdings = holdings
        self._aliases = aliases
        self._under_way: dict[str, _FullReport] = {}

    def take(self, ask: Report, now_ms: int) -> tuple[str, ...]:
        """The ids that the storage must drop."""
        if ask.first:
            self._forget(ask.process, now_ms, lambda _, claim: claim.incarnation < ask.incarnation)
            if ask.full:
                self._under_way[ask.process] = _FullReport(ask.incarnation, set())
        refused = [claim.art_id for claim in ask.claims if not self._take_claim(ask, claim, now_ms)]
        if ask.full and ask.last:
            # Without its first part (we restarted in between) a report does not tell what is gone; the storage sees
            # our new incarnation in the answer and reports again.
            report = self._under_way.pop(ask.process, None)
            if report is not None and report.incarnation == ask.incarnation:
                named = report.named
                self._forget(ask.process, now_ms, lambda art_id, claim: (art_id, claim.tier) not in named)
        return tuple(refused)

    def note(self, process: str, art_id: str, tier: str) -> None:
        """Also what is committed between two parts of a report is named by it."""
        report = self._under_way.get(process)
        if report is not None:
            report.named.add((art_id, tier))

    def _take_claim(self, report: Report, claim: ReplicaClaim, now_ms: int) -> bool:
        holdings = self._holdings
        if self._aliases.find(claim.art_id) is not None:
            return False
        entry = holdings.entries.find(claim.art_id)
        if entry is None:
            if holdings.tombstones.find(claim.art_id) is not None:
                return False
            # Committed at a catalog that was lost since: what exists can be found again.
            row = ArtifactRow(
                claim.art_id, claim.digest, claim.nbytes, claim.tensors, "", now_ms, ownership=claim.ownership
            )
            holdings.claim(holdings.add(row), report, claim.tier, now_ms)
            self.note(report.process, claim.art_id, claim.tier)
            return True
        settles = bool(claim.was) and claim.was == entry.row.digest
        if entry.row.digest != claim.digest and not settles:
            return False
        # Nor does a report change whose an id is: a copy that outlived its lease is no reason to keep the id.
        owned_so = entry.row.ownership == claim.ownership
        if not owned_so or what_forbids(entry, report.process, claim.ownership, holdings.is_living):
            return False
        self.note(report.process, claim.art_id, claim.tier)
        if settles:
            holdings.settle(entry, claim.digest)
        taken = holdings.take_over(entry, report.process, claim.ownership, entry.row.owner, now_ms)
        if holdings.claim(entry, report, claim.tier, now_ms) or taken or settles:
            holdings.changed("replica", entry)
        return True

    def _forget(self, process: str, now_ms: int, is_gone: Callable[[str, ReplicaRecord], bool]) -> None:
        for art_id, tier in self._holdings.entries.of_process(process):
            entry = self._holdings.entries.find(art_id)
            assert entry is not None
            place: Place = (process, tier)
            if is_gone(art_id, entry.claims[place]) and not entry.claims[place].lost_ms:
                self._holdings.lose(entry, place, now_ms)
