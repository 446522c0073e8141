"""The core of a storage: one event in, effects out, in the order they must be performed.

`service.py` calls step, tick and the read-only questions, all from its loop. Every wait has a deadline: next_due_ms
says when tick has something to do. See phases.py for the life of an artifact and events.py for tickets.
"""

from __future__ import annotations

from tensorcast_services.storage.core import attaches, commits, deletes, eviction, line, loads, puts, wording
from tensorcast_services.storage.core.effects import Effect, Forget, RemoveSidecar
from tensorcast_services.storage.core.events import (
    AskerGone,
    AttachAsked,
    CommitKnown,
    CommitRefused,
    CommitUnknown,
    DeleteAnswered,
    DeleteAsked,
    DropAnswered,
    Event,
    FilesChecked,
    FilesOpened,
    Filled,
    PutAsked,
    RemoteDeleted,
    ReportEnded,
    ResolveAnswered,
    Restored,
    RoomGiven,
    RoomRefused,
    RunFailed,
    Sealed,
    Use,
    Withdrawn,
)
from tensorcast_services.storage.core.phases import HOLDING_LOADS, PUBLISHED, Cue, Phase
from tensorcast_services.storage.core.shelf import Ask, Entry, Holding, Run, Shelf

Claim = tuple[str, int, str, str, int, int]  # id, serial, digest, tier, nbytes, tensors


class Artifacts:
    """All artifacts of one storage process. Not thread-safe: one loop owns it."""

    def __init__(self, *, process: str, node: str, incarnation: int, answer_margin_ms: int = 50) -> None:
        self._shelf = Shelf(process=process, node=node, incarnation=incarnation, answer_margin_ms=answer_margin_ms)

    def step(self, event: Event, *, now_ms: int) -> list[Effect]:
        self._shelf.now_ms = now_ms
        self._take(event)
        return self._settle()

    def tick(self, *, now_ms: int) -> list[Effect]:
        """Answers everyone whose time is over, and gives up an eviction that gets no answers."""
        shelf = self._shelf
        shelf.now_ms = now_ms
        if shelf.evict_due_ms is not None and shelf.evict_due_ms <= now_ms:
            eviction.late(shelf)
        while (due := shelf.next_due_ms()) is not None and due <= now_ms:
            late = [ask for ask in shelf.asks.values() if ask.due_ms <= now_ms]
            for ask in late:
                self._give_up(ask, gone=False)
        return self._settle()

    def next_due_ms(self) -> int | None:
        return self._shelf.next_due_ms()

    def claims(self) -> list[Claim]:
        """What this storage holds, for a report: tier "host" for what is published, "file" for unchanged files."""
        found: list[Claim] = []
        for entry in self._shelf.entries.values():
            here = entry.holding
            if here is None:
                continue
            tiers = ("host",) if entry.phase in PUBLISHED else ()
            for tier in (*tiers, *(("file",) if here.in_file else ())):
                found.append((entry.art_id, here.serial, here.digest, tier, here.nbytes, here.tensors))
        return found

    def describe(self, art_id: str) -> tuple[str, str, int]:
        """(state, digest, bytes) as in notes.Described."""
        entry = self._shelf.entries.get(art_id)
        if entry is None or entry.holding is None:
            return "unknown", "", 0
        elsewhere = "loading" if entry.phase in HOLDING_LOADS else "on_file"
        state = "resident" if entry.phase in PUBLISHED else elsewhere
        return state, entry.holding.digest, entry.holding.nbytes

    def ticket_of(self, art_id: str) -> int | None:
        """The put or load that runs for an id."""
        entry = self._shelf.entries.get(art_id)
        return entry.run.ticket if entry is not None and entry.run is not None else None

    def evictable_bytes(self, uses: list[Use]) -> int:
        entries = self._shelf.entries
        return sum(
            use.nbytes
            for use in uses
            if not use.pins
            and (e := entries.get(use.art_id)) is not None
            and e.holding is not None
            and e.holding.in_file
        )

    def figures(self) -> dict[str, int]:
        shelf = self._shelf
        return {
            "artifacts": sum(entry.holding is not None for entry in shelf.entries.values()),
            "resident": sum(entry.phase in PUBLISHED for entry in shelf.entries.values()),
            "waiting_for_room": len(shelf.line),
            "evictions": shelf.evictions,
            "loads": shelf.loads,
        }

    def _settle(self) -> list[Effect]:
        shelf = self._shelf
        while shelf.woken:
            self._consider(shelf.woken.popleft())
        line.advance(shelf)
        shelf.sweep()
        effects, shelf.effects = shelf.effects, []
        return effects

    def _consider(self, ask: Ask) -> None:
        if not self._shelf.is_open(ask):
            return
        match ask.verb:
            case "put":
                puts.consider(self._shelf, ask)
            case "attach":
                attaches.consider(self._shelf, ask)
            case _:
                deletes.consider(self._shelf, ask)

    def _take(self, event: Event) -> None:
        shelf = self._shelf
        match event:
            case PutAsked(request, art_id, budget_ms, need_bytes):
                self._consider(
                    shelf.open(verb="put", request=request, art_id=art_id, budget_ms=budget_ms, need_bytes=need_bytes)
                )
            case AttachAsked(request, art_id, budget_ms):
                self._consider(shelf.open(verb="attach", request=request, art_id=art_id, budget_ms=budget_ms))
            case DeleteAsked(request, art_id, budget_ms):
                self._consider(shelf.open(verb="delete", request=request, art_id=art_id, budget_ms=budget_ms))
            case AskerGone(request):
                if request in shelf.asks:
                    self._give_up(shelf.asks[request], gone=True)
            case ResolveAnswered() | DeleteAnswered():
                self._take_answer(event)
            case FilesChecked() | DropAnswered() if event.ticket in shelf.unheard:
                eviction.heard_late(shelf, event)
            case FilesChecked() if event.ticket in shelf.calls:
                self._take_answer(event)
            case RemoteDeleted():
                deletes.remote(shelf, event)
            case ReportEnded():
                self._report_ended(event)
            case Restored():
                self._restore(event)
            case _:
                known = shelf.entry_of(event.ticket)
                if known is not None:
                    self._take_step(*known, event)
                elif isinstance(event, FilesOpened):
                    shelf.do(Forget(event.ticket))  # opened after its run was over: nobody else closes them

    def _take_answer(self, event: ResolveAnswered | DeleteAnswered | FilesChecked) -> None:
        shelf = self._shelf
        call = shelf.calls.pop(event.ticket, None)
        if call is None:
            return
        ask = shelf.asks.get(call.request)
        match event:
            case DeleteAnswered():
                deletes.answered(shelf, call.art_id, ask, event, serial=call.serial)
            case ResolveAnswered() if ask is not None:
                flow = puts if ask.verb == "put" else attaches
                flow.resolved(shelf, ask, event, serial=call.serial)
            case FilesChecked() if ask is not None:
                lost = bool(event.changed) and event.sure
                puts.files_checked(shelf, ask, lost=lost, serial=call.serial)

    def _take_step(self, entry: Entry, run: Run, event: Event) -> None:
        """The next step of a run: its ticket is alive."""
        shelf = self._shelf
        if entry.phase is Phase.DRAINING:
            self._drain(entry, run, event)
            return
        flow = puts if run.kind == "put" else loads
        match event:
            case RoomGiven():
                line.given(shelf, event)
            case RoomRefused():
                self._refuse_room(entry, run, event)
            case FilesOpened():
                loads.opened(shelf, entry, run, need_bytes=event.need_bytes)
            case Filled():
                flow.filled(shelf, entry, run, event)
            case Sealed() if run.kind == "put":
                puts.sealed(shelf, entry, run, event)
            case Sealed():
                loads.sealed(shelf, entry, run)
            case RunFailed():
                shelf.trying = None if shelf.trying == run.ticket else shelf.trying
                flow.failed(shelf, entry, run, event)
            case CommitKnown():
                commits.known(shelf, entry, run, event)
            case CommitRefused():
                commits.refused(shelf, entry, run, event)
            case CommitUnknown():
                commits.unknown(shelf, entry, run, event)
            case FilesChecked():
                eviction.files_checked(shelf, entry, run, event)
            case DropAnswered():
                eviction.drop_answered(shelf, entry, run, event)
            case Withdrawn():
                eviction.withdrawn(shelf, entry, done=event.done)

    def _drain(self, entry: Entry, run: Run, event: Event) -> None:
        shelf = self._shelf
        match event:
            case RoomGiven():
                line.given(shelf, event)
                return
            case Filled():
                run.segments = event.segments
            case Sealed() if entry.holding is None:
                shelf.do(RemoveSidecar(entry.art_id))
        shelf.trying = None if shelf.trying == run.ticket else shelf.trying
        line.drained(shelf, entry)

    def _refuse_room(self, entry: Entry, run: Run, event: RoomRefused) -> None:
        shelf = self._shelf
        shelf.trying = None
        if eviction.begin(shelf, run, event):
            return
        trouble = wording.no_room(
            run.kind,
            entry.art_id,
            process=shelf.process,
            need=run.need_bytes,
            pool=event,
            kept=shelf.passed_over,
        )
        flow = puts if run.kind == "put" else loads
        flow.failed(shelf, entry, run, RunFailed(run.ticket, trouble.record()))

    def _give_up(self, ask: Ask, *, gone: bool) -> None:
        """An ask ends without what it asked for: its asker hung up, or its time is over."""
        shelf = self._shelf
        entry = shelf.entry(ask.art_id)
        phase = wording.stopped_waiting(entry, ask)
        answer = None if gone else wording.too_late(ask, process=shelf.process, phase=phase)
        run = entry.run
        if run is not None and run.ask is ask:
            puts.abandon(shelf, entry, run, answer=answer)
        elif answer is not None:
            shelf.reply(ask, answer)
        shelf.asks.pop(ask.request, None)
        entry.waiting = [waiter for waiter in entry.waiting if waiter is not ask]
        if ask.verb == "attach":
            loads.waiter_left(shelf, entry)

    def _report_ended(self, event: ReportEnded) -> None:
        shelf = self._shelf
        refused = set(event.refused)
        for art_id, serial in event.claimed:
            entry = shelf.entries.get(art_id)
            if entry is None or entry.holding is None or entry.holding.serial != serial:
                continue
            if art_id in refused:
                shelf.touched.add(art_id)
                deletes.forget(shelf, entry)
            else:
                entry.holding.confirmed = True

    def _restore(self, event: Restored) -> None:
        entry = self._shelf.entry(event.art_id)
        if entry.phase is not Phase.ABSENT:
            return
        entry.move(Cue.RESTORED)
        entry.holding = Holding(
            self._shelf.new_serial(),
            event.digest,
            event.nbytes,
            event.tensors,
            event.files,
            in_file=True,
            revision=0,
            confirmed=False,
        )
