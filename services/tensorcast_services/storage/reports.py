"""Keeping the global store's picture of this storage true: full reports, and single facts in between.

A full report follows the subscription to events, a reconnect, a gap in the events, and a new incarnation of the global
store; several reasons in a row make one report. What changed while a report was under way is told after it. One task
does it all, and tries for as long as the storage lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tensorcast_bus.errors import StaleFence, TensorCastError
from tensorcast_bus.messages import REPORT_ROWS_MAX, ArtifactEvent, ReplicaClaim, Report, Reported
from tensorcast_services.storage.core.events import ReportEnded
from tensorcast_services.storage.core.holdings import Claim
from tensorcast_services.storage.link import Link

ASK_MS_MAX = 10_000
PAUSE_S = 0.5


class Reporter:
    """`claims` reads the core, `ended` tells it what a report brought. Raises StaleFence out of `run` when a newer
    incarnation of this process is known: this one must stop."""

    def __init__(
        self,
        link: Link,
        *,
        node: str,
        process: str,
        incarnation: int,
        claims: Callable[[], list[Claim]],
        ended: Callable[[ReportEnded], None],
    ) -> None:
        self._link = link
        self._node = node
        self._process = process
        self._incarnation = incarnation
        self._claims = claims
        self._ended = ended
        self._due = ""
        self._facts: dict[tuple[str, str], None] = {}  # ("held" or the tier that is lost, id)
        self._telling = ""  # whose fact is on its way
        self._reporting = False
        self._wake = asyncio.Event()
        self._seen: tuple[int, int] | None = None
        self.reports = 0
        self._log = structlog.get_logger("reports")

    def full(self, why: str) -> None:
        """Asks for a full report."""
        self._due = why
        self._wake.set()

    def held(self, art_id: str) -> None:
        self._facts[("held", art_id)] = None
        self._wake.set()

    def lost(self, art_id: str, tier: str) -> None:
        """ "file" or "disk" is no replica any more."""
        self._facts[(tier, art_id)] = None
        self._wake.set()

    async def settle(self, art_id: str, *, budget_ms: int) -> None:
        """Returns when the global store has heard what is held of an id, or the budget is over. A drop that is asked
        for before would meet claims of yesterday, and be refused as that of a last replica."""
        if not (self._reporting or self._due or self._telling == art_id or ("held", art_id) in self._facts):
            return
        here = [claim for claim in self._claims() if claim.art_id == art_id]
        try:
            async with asyncio.timeout(budget_ms / 1000):
                self._ended(_ended_of(here, await self._send(here, full=False)))
        except (TensorCastError, TimeoutError) as error:
            self._log.warning("claims_not_settled", art_id=art_id, error=str(error))

    def follow(self, event: ArtifactEvent) -> None:
        """Looks for gaps in the global store's events."""
        before, self._seen = self._seen, (event.incarnation, event.sequence)
        if before is None:
            return
        if event.incarnation != before[0]:
            self.full("the global store restarted")
        elif event.sequence > before[1] + 1:
            self.full(f"events {before[1] + 1} to {event.sequence - 1} of the global store were lost")
        elif event.sequence <= before[1]:
            self._seen = before

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                if self._due:
                    await self._report_all()
                await self._tell_facts()
            except StaleFence:
                raise
            except TensorCastError as error:
                self._log.warning("report_failed", error=error.text, again_in_s=PAUSE_S)
                await asyncio.sleep(PAUSE_S)
                self._wake.set()

    async def _report_all(self) -> None:
        why, claims = self._due, self._claims()
        # A lost file is not named, so it is forgotten; a held replica is. What is said meanwhile is told after it.
        self._due = ""
        self._facts.clear()
        self._reporting = True
        try:
            refused = await self._send(claims, full=True)
            self.reports += 1
            self._log.info("reported", why=why, claims=len(claims), refused=len(refused))
            self._ended(_ended_of(claims, refused))
            await self._tell_changes(claims)
        except TensorCastError:
            # Another report says all of it: the claims, the facts and the changes.
            self._due = self._due or why
            raise
        finally:
            self._reporting = False

    async def _tell_changes(self, before: Sequence[Claim]) -> None:
        """What was committed, loaded or let go while the report was on its way may have been overwritten by it."""
        then, now = ({(claim.art_id, claim.tier): claim for claim in some} for some in (before, self._claims()))
        fresh = [claim for place, claim in now.items() if place not in then or not _same(then[place], claim)]
        if fresh:
            self._ended(_ended_of(fresh, await self._send(fresh, full=False)))
        here = {art_id for art_id, _ in now}
        for art_id, tier in then.keys() - now.keys():
            if art_id in here:
                await self._link.drop_tier(art_id, tier=tier, budget_ms=ASK_MS_MAX)

    async def _tell_facts(self) -> None:
        while self._facts:
            what, art_id = fact = next(iter(self._facts))
            del self._facts[fact]  # before it is told: said once more meanwhile, it is told once more
            self._telling = art_id
            here = [claim for claim in self._claims() if claim.art_id == art_id]
            try:
                if what == "held" and here:
                    self._ended(_ended_of(here, await self._send(here, full=False)))
                elif what != "held" and not any(claim.tier == what for claim in here):
                    await self._link.drop_tier(art_id, tier=what, budget_ms=ASK_MS_MAX)
            except TensorCastError:
                self._facts[fact] = None
                raise
            finally:
                self._telling = ""

    async def _send(self, claims: Sequence[Claim], *, full: bool) -> list[str]:
        """In parts; started over by the caller when the global store changes on the way."""
        refused: list[str] = []
        rows = [
            ReplicaClaim(c.art_id, c.digest, c.tier, c.nbytes, c.tensors, was=c.was, ownership=c.ownership)
            for c in claims
        ]
        parts = [rows[i : i + REPORT_ROWS_MAX] for i in range(0, len(rows), REPORT_ROWS_MAX)] or [[]]
        heard: set[int] = set()
        for number, part in enumerate(parts):
            body = Report(
                node=self._node,
                process=self._process,
                incarnation=self._incarnation,
                claims=tuple(part),
                full=full,
                first=full and number == 0,
                last=number == len(parts) - 1,
            )
            answer = await self._link.report(body, budget_ms=ASK_MS_MAX)
            heard.add(answer.incarnation)
            refused.extend(answer.refused)
            self._note(answer, full=full)
        if len(heard) > 1:
            self.full("the global store restarted during a report")
        return refused

    def _note(self, answer: Reported, *, full: bool) -> None:
        """Events up to the answer's sequence are part of what the report brought."""
        if not full and self._seen is not None and self._seen[0] != answer.incarnation:
            self.full("the global store restarted")
        if self._seen is None or self._seen[0] != answer.incarnation or self._seen[1] < answer.sequence:
            self._seen = (answer.incarnation, answer.sequence)


def _same(one: Claim, other: Claim) -> bool:
    """Whether the second says nothing new: the digest of what was registered may have become known."""
    return one.serial == other.serial and one.digest == other.digest


def _ended_of(claims: Sequence[Claim], refused: Sequence[str]) -> ReportEnded:
    return ReportEnded(tuple((claim.art_id, claim.serial) for claim in claims), tuple(refused))
