"""The records that the core keeps, and the small moves every flow shares.

Owned by `Artifacts` (artifacts.py); the flows (puts, loads, views, leases, deletes, room) are functions over one Shelf.
Invariants: an open request is in `asks` exactly until its one answer; segments that a run owns are freed exactly once;
a kept source is let go exactly once; an entry has a holding only between a known commit and the moment its last replica
here is gone.
"""

from __future__ import annotations

from collections import deque

import msgspec

from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.messages import ReplicaRow
from tensorcast_bus.notes import Leased
from tensorcast_services.storage.core.dues import Dues
from tensorcast_services.storage.core.effects import Answer, Effect, Forget, Free, LetGo, Reply
from tensorcast_services.storage.core.events import Filled, RegisterAsked, Sealed
from tensorcast_services.storage.core.holdings import Holding
from tensorcast_services.storage.core.phases import Cue, Phase, next_phase

# Numbers of runs lie below those of the local server's requests (which begin at 2^32), those of calls far above.
FIRST_CALL = 1 << 48


class Ask(msgspec.Struct):
    """An open request. `asked` once the global store has told about the id since the ask last started over; `ticket` is
    the number of a put's run; `how` an attach's; `offer` what a registration brought; `view` the entry of its own that
    reads a view for it."""

    verb: str  # "put", "register", "attach", "durable" or "delete"
    request: int
    art_id: str
    budget_ms: int
    due_ms: int = 0
    need_bytes: int = 0
    ticket: int = 0
    durable: bool = False
    how: str = "whole"
    offer: RegisterAsked | None = None
    asked: bool = False
    view: str = ""


class Run(msgspec.Struct):
    """The work that an entry is busy with. `ask` is the put's, the registration's or the view's; loads serve those who
    wait in the entry. `borrowed` segments belong to it until `segments` names them too. A load or view reads the `tier`
    that the holding `serial` of `base` has."""

    kind: str  # "put", "register", "load", "view", "spill" or "evict"
    ticket: int
    need_bytes: int = 0
    ask: Ask | None = None
    manifest_segment: int | None = None
    borrowed: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    filled: Filled | None = None
    sealed: Sealed | None = None
    disk_bytes: int = 0
    base: str = ""
    serial: int = 0
    tier: str = ""
    seen: bool = False  # evict: its files were looked at, and the drop is asked for
    withdrawing: bool = False
    cancelled: bool = False  # spill: nothing waits for it any more


class Entry(msgspec.Struct):
    art_id: str
    phase: Phase = Phase.ABSENT
    holding: Holding | None = None
    run: Run | None = None
    waiting: list[Ask] = msgspec.field(default_factory=list)
    deleted_revision: int = 0

    def move(self, cue: Cue) -> None:
        self.phase = next_phase(self.phase, cue)


class Unheard(msgspec.Struct, frozen=True):
    """A question of an eviction that was given up and may yet be answered; `devices` hold files that nobody saw."""

    art_id: str
    devices: frozenset[int]


class Call(msgspec.Struct, frozen=True):
    """A call to the global store, or a check of files, made for one ask. `serial` is the holding's when it began."""

    kind: str
    art_id: str
    request: int
    serial: int


class Ended(msgspec.Struct, frozen=True):
    """A lease that ended: remembered so that readers hear when and why."""

    lease: int
    digests: tuple[str, ...]
    at_ms: int
    why: str


class Shelf:
    """All entries, open asks, tickets and pending effects of one storage. `disk`: there is a disk tier."""

    def __init__(
        self, *, process: str, node: str, incarnation: int, answer_margin_ms: int, disk: bool, spill_percent: int
    ) -> None:
        self.process = process
        self.node = node
        self.incarnation = incarnation
        self.disk = disk
        self.spill_percent = spill_percent
        self.now_ms = 0
        self.entries: dict[str, Entry] = {}
        self.asks: dict[int, Ask] = {}
        self.runs: dict[int, str] = {}
        self.calls: dict[int, Call] = {}
        self.views: dict[str, list[str]] = {}  # id -> entries that read views of it
        self.kept: dict[int, tuple[str, int]] = {}  # kept source -> id and request of its registration
        self.ended: dict[str, Ended] = {}
        self.lease_dues = Dues()  # by kept source
        self.line: deque[int] = deque()
        self.trying: int | None = None
        self.evicting: str = ""
        self.evict_due_ms: int | None = None
        self.unheard: dict[int, Unheard] = {}  # by ticket
        self.passed_over: dict[str, str] = {}  # id -> why it could not go
        self.disk_trouble: tuple[int, str] | None = None  # until when the disk is left alone, and why
        self.writing: set[str] = set()  # being written out, for whatever reason
        self.spill_next: deque[str] = deque()  # to be written out ahead of need, in this order
        self.woken: deque[Ask] = deque()
        self.effects: list[Effect] = []
        self.touched: set[str] = set()
        self.counts = {"evictions": 0, "loads": 0, "spills": 0, "views": 0}
        self._answer_margin_ms = answer_margin_ms
        self._dues = Dues()  # by request
        self._next_ticket = 0
        self._next_call = FIRST_CALL
        self._next_serial = 0

    def entry(self, art_id: str) -> Entry:
        self.touched.add(art_id)
        found = self.entries.get(art_id)
        if found is None:
            found = self.entries[art_id] = Entry(art_id)
        return found

    def entry_of(self, ticket: int) -> tuple[Entry, Run] | None:
        """The entry and run of a ticket; None when the run is over."""
        art_id = self.runs.get(ticket)
        if art_id is None:
            return None
        entry = self.entry(art_id)
        assert entry.run is not None and entry.run.ticket == ticket
        return entry, entry.run

    def open(self, ask: Ask) -> Ask:
        """The ask is due a little before its asker stops listening: an answer at the last moment would be missed."""
        margin = min(self._answer_margin_ms, ask.budget_ms // 4)
        ask.due_ms = self.now_ms + max(0, ask.budget_ms - margin)
        self.asks[ask.request] = ask
        self._dues.set(ask.request, ask.due_ms)
        return ask

    def close(self, ask: Ask, *, granted: bool = False) -> None:
        """The ask has its answer, or its asker is gone. What a registration brought goes with it unless `granted`."""
        del self.asks[ask.request]
        self._dues.drop(ask.request)
        if ask.offer is not None and not granted:
            self.let_go(ask.offer.source)

    def next_due_ms(self) -> int | None:
        dues = (self._dues.next_ms(), self.lease_dues.next_ms(), self.evict_due_ms)
        return min((due for due in dues if due is not None), default=None)

    def late_asks(self) -> list[Ask]:
        return [self.asks[request] for request in self._dues.over(self.now_ms)]

    def left_ms(self, ask: Ask | None) -> int:
        return max(1, ask.due_ms - self.now_ms) if ask is not None else 1

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def reply(self, ask: Ask | None, answer: Answer | TensorCastError) -> None:
        """Ends the ask; nothing when it has ended before (answered, expired, or its asker hung up)."""
        if ask is None or self.asks.get(ask.request) is not ask:
            return
        self.close(ask, granted=isinstance(answer, Leased))
        self.do(Reply(ask.request, answer.record() if isinstance(answer, TensorCastError) else answer))

    def let_go(self, source: int) -> None:
        """Once for each kept source, whoever says it first."""
        if self.kept.pop(source, None) is not None:
            self.lease_dues.drop(source)
            self.do(LetGo(source))

    def is_open(self, ask: Ask | None) -> bool:
        return ask is not None and self.asks.get(ask.request) is ask

    def is_mine(self, row: ReplicaRow) -> bool:
        return row.living and row.process == self.process and row.incarnation == self.incarnation

    def new_ticket(self) -> int:
        """For a run."""
        self._next_ticket += 1
        return self._next_ticket

    def new_serial(self) -> int:
        self._next_serial += 1
        return self._next_serial

    def call(self, *, kind: str, ask: Ask) -> int:
        """A ticket for a call made on behalf of `ask`."""
        ticket = self._next_call = self._next_call + 1
        holding = self.entry(ask.art_id).holding
        self.calls[ticket] = Call(kind, ask.art_id, ask.request, holding.serial if holding else 0)
        return ticket

    def start_run(self, entry: Entry, run: Run) -> None:
        assert entry.run is None
        entry.run = run
        self.runs[run.ticket] = entry.art_id

    def end_run(self, entry: Entry) -> None:
        """Forgets the run and frees what it still owns."""
        run = entry.run
        assert run is not None
        owned = run.segments or run.borrowed
        owned = owned if run.manifest_segment is None else (*owned, run.manifest_segment)
        if owned:
            self.do(Free(owned))
        if run.kind != "evict":
            self.do(Forget(run.ticket))
        if run.kind == "view":
            self.views[run.base].remove(entry.art_id)
            if not self.views[run.base]:
                del self.views[run.base]
        del self.runs[run.ticket]
        entry.run = None

    def wake(self, entry: Entry, *, fresh: bool) -> None:
        """Lets everyone who waited for this entry start over. `fresh`: what happened here is the newest word on the
        id, so puts need not ask the global store again."""
        for ask in entry.waiting:
            ask.asked = fresh
        self.woken.extend(entry.waiting)
        entry.waiting = []

    def sweep(self) -> None:
        """Forgets entries that came to nothing."""
        for art_id in self.touched:
            entry = self.entries.get(art_id)
            if entry is not None and entry.phase is Phase.ABSENT and not entry.waiting:
                del self.entries[art_id]
        self.touched.clear()
