"""The core of a storage: one event in, effects out, in the order they must be performed.

`service.py` calls step, tick and the read-only questions, all from its loop. Every wait has a deadline: next_due_ms
says when tick has something to do. See phases.py for the life of an artifact and events.py for tickets.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorcast_bus.notes import Described
from tensorcast_services.storage.core import (
    attaches,
    commits,
    deletes,
    endings,
    eviction,
    lease_wording,
    leases,
    line,
    loads,
    puts,
    questions,
    sources,
    spilling,
    views,
)
from tensorcast_services.storage.core.effects import Effect, Forget
from tensorcast_services.storage.core.events import (
    AskerGone,
    AttachAsked,
    CommitKnown,
    CommitRefused,
    CommitUnknown,
    DeleteAnswered,
    DeleteAsked,
    DropAnswered,
    DurableAsked,
    Event,
    FilesChecked,
    FilesOpened,
    Filled,
    OwnerDied,
    PoolSeen,
    PutAsked,
    RegisterAsked,
    ReleaseAsked,
    RemoteDeleted,
    RenewAsked,
    ReportEnded,
    ResolveAnswered,
    Restored,
    RoomGiven,
    RoomRefused,
    RunFailed,
    Sealed,
    Use,
    Withdrawn,
    WrittenOut,
)
from tensorcast_services.storage.core.holdings import Claim
from tensorcast_services.storage.core.phases import Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Run, Shelf

SPILL_PERCENT = 90


class Artifacts:
    """All artifacts of one storage process. Not thread-safe: one loop owns it. `disk`: there is a disk tier, and above
    `spill_percent` of the pool (the high watermark) it is written to ahead of need."""

    def __init__(
        self,
        *,
        process: str,
        node: str,
        incarnation: int,
        answer_margin_ms: int = 50,
        disk: bool = False,
        spill_percent: int = SPILL_PERCENT,
    ) -> None:
        self._shelf = Shelf(
            process=process,
            node=node,
            incarnation=incarnation,
            answer_margin_ms=answer_margin_ms,
            disk=disk,
            spill_percent=spill_percent,
        )

    def step(self, event: Event, *, now_ms: int) -> list[Effect]:
        self._shelf.now_ms = now_ms
        self._take(event)
        return self._settle()

    def tick(self, *, now_ms: int) -> list[Effect]:
        """Answers everyone whose time is over, ends leases, and gives up an eviction that gets no answers."""
        shelf = self._shelf
        shelf.now_ms = now_ms
        if shelf.evict_due_ms is not None and shelf.evict_due_ms <= now_ms:
            eviction.late(shelf)
        leases.expire(shelf)
        for ask in shelf.late_asks():
            if shelf.is_open(ask):
                endings.give_up(shelf, ask, answer=endings.time_over(shelf, ask))
        return self._settle()

    def next_due_ms(self) -> int | None:
        return self._shelf.next_due_ms()

    def new_ticket(self) -> int:
        """A number for PutAsked.ticket that no run of the core's own has."""
        return self._shelf.new_ticket()

    def claims(self) -> list[Claim]:
        return questions.claims(self._shelf)

    def describe(self, art_id: str, *, pins: int = 0) -> Described:
        return questions.describe(self._shelf, art_id, pins=pins)

    def ticket_of(self, art_id: str) -> int | None:
        """The put, load or writing out that runs for an id."""
        entry = self._shelf.entries.get(art_id)
        return entry.run.ticket if entry is not None and entry.run is not None else None

    def evictable_bytes(self, uses: Sequence[Use]) -> int:
        return questions.evictable_bytes(self._shelf, uses)

    def figures(self) -> dict[str, int]:
        return questions.figures(self._shelf)

    def _settle(self) -> list[Effect]:
        shelf = self._shelf
        while shelf.woken:
            self._consider(shelf.woken.popleft())
        line.advance(shelf)
        spilling.advance(shelf)
        shelf.sweep()
        effects, shelf.effects = shelf.effects, []
        return effects

    def _consider(self, ask: Ask) -> None:
        if not self._shelf.is_open(ask):
            return
        match ask.verb:
            case "put" | "register":
                puts.consider(self._shelf, ask)
            case "attach" | "durable":
                attaches.consider(self._shelf, ask)
            case _:
                deletes.consider(self._shelf, ask)

    def _take(self, event: Event) -> None:
        shelf = self._shelf
        match event:
            case PutAsked() | AttachAsked() | DurableAsked() | DeleteAsked() | RegisterAsked():
                self._take_ask(event)
            case RenewAsked():
                leases.renew(shelf, event)
            case ReleaseAsked():
                leases.release(shelf, event)
            case OwnerDied(source):
                if (ask := leases.owner_died(shelf, source)) is not None:
                    endings.give_up(shelf, ask, answer=lease_wording.owner_died(ask.art_id))
            case AskerGone(request):
                if request in shelf.asks:
                    endings.give_up(shelf, shelf.asks[request], answer=None)
            case ResolveAnswered() | DeleteAnswered():
                self._take_answer(event)
            case FilesChecked() | DropAnswered() if event.ticket in shelf.unheard:
                eviction.heard_late(shelf, event)
            case FilesChecked() if event.ticket in shelf.calls:
                self._take_answer(event)
            case RemoteDeleted():
                deletes.remote(shelf, event)
            case PoolSeen():
                spilling.seen(shelf, event)
            case ReportEnded():
                deletes.report_ended(shelf, event)
            case Restored():
                sources.restore(shelf, event)
            case _:
                known = shelf.entry_of(event.ticket)
                if known is not None:
                    self._take_step(*known, event)
                elif isinstance(event, FilesOpened):
                    shelf.do(Forget(event.ticket))  # opened after its run was over: nobody else closes them

    def _take_ask(self, event: PutAsked | AttachAsked | DurableAsked | DeleteAsked | RegisterAsked) -> None:
        shelf = self._shelf
        match event:
            case PutAsked(request, art_id, budget_ms):
                ask = Ask(
                    "put",
                    request,
                    art_id,
                    budget_ms,
                    need_bytes=event.need_bytes,
                    ticket=event.ticket or request,
                    durable=event.durable,
                )
            case AttachAsked(request, art_id, budget_ms, how):
                ask = Ask("attach", request, art_id, budget_ms, how=how)
            case DurableAsked(request, art_id, budget_ms):
                ask = Ask("durable", request, art_id, budget_ms)
            case DeleteAsked(request, art_id, budget_ms):
                ask = Ask("delete", request, art_id, budget_ms)
            case RegisterAsked():
                if (offered := leases.offered(shelf, event)) is not None:
                    self._consider(offered)
                return
        self._consider(shelf.open(ask))

    def _take_answer(self, event: ResolveAnswered | DeleteAnswered | FilesChecked) -> None:
        shelf = self._shelf
        call = shelf.calls.pop(event.ticket, None)
        if call is None:
            return
        ask = shelf.asks.get(call.request)
        match event:
            case DeleteAnswered():
                deletes.answered(shelf, call.art_id, ask, event, serial=call.serial)
            case ResolveAnswered() if ask is not None and ask.verb in ("put", "register"):
                puts.resolved(shelf, ask, event, serial=call.serial)
            case ResolveAnswered() if ask is not None:
                attaches.resolved(shelf, ask, event, serial=call.serial)
            case FilesChecked() if ask is not None:
                lost = bool(event.changed) and event.sure
                puts.files_checked(shelf, ask, lost=lost, serial=call.serial)

    def _take_step(self, entry: Entry, run: Run, event: Event) -> None:
        """The next step of a run: its ticket is alive."""
        shelf = self._shelf
        match event:
            case _ if entry.phase is Phase.DRAINING:
                endings.drain(shelf, entry, run, event)
            case RoomGiven():
                line.given(shelf, event)
            case RoomRefused():
                endings.refuse_room(shelf, entry, run, event)
            case FilesOpened():
                loads.opened(shelf, entry, run, need_bytes=event.need_bytes)
            case Filled() | Sealed() if run.kind in ("put", "register"):
                self._put_step(entry, run, event)
            case Filled():
                loads.filled(shelf, entry, run, event)
            case Sealed() if run.kind == "view":
                views.sealed(shelf, entry, run)
            case Sealed():
                loads.sealed(shelf, entry, run, event)
            case WrittenOut() if run.kind == "spill":
                spilling.written(shelf, entry, event)
            case WrittenOut():
                puts.written(shelf, entry, run, event)
            case RunFailed() if run.kind == "spill":
                spilling.failed(shelf, entry, event)
            case RunFailed():
                endings.fail(shelf, entry, run, event)
            case FilesChecked():
                eviction.files_checked(shelf, entry, run, event)
            case DropAnswered():
                eviction.drop_answered(shelf, entry, run, event)
            case Withdrawn():
                eviction.withdrawn(shelf, entry, done=event.done)
            case CommitKnown() | CommitRefused() | CommitUnknown():
                self._commit_step(entry, run, event)

    def _put_step(self, entry: Entry, run: Run, event: Filled | Sealed) -> None:
        if isinstance(event, Filled):
            puts.filled(self._shelf, entry, run, event)
        else:
            puts.sealed(self._shelf, entry, run, event)

    def _commit_step(self, entry: Entry, run: Run, event: CommitKnown | CommitRefused | CommitUnknown) -> None:
        match event:
            case CommitKnown():
                commits.known(self._shelf, entry, run, event)
            case CommitRefused():
                commits.refused(self._shelf, entry, run, event)
            case CommitUnknown():
                commits.unknown(self._shelf, entry, run, event)
