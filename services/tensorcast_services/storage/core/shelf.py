"""The records that the core keeps, and the small moves every flow shares.

Owned by `Artifacts` (artifacts.py); the flows (puts, loads, attaches, deletes, room) are functions over one Shelf.
Invariants: an open request is in `asks` exactly until its one reply; segments in `Run.owned` are freed exactly once;
an entry has a holding only between a known commit and the moment its last replica here is gone.
"""

from __future__ import annotations

import heapq
from collections import deque

import msgspec

from tensorcast_bus.errors import TensorCastError
from tensorcast_bus.messages import ReplicaRow
from tensorcast_bus.notes import Deleted, PutDone, PutExists
from tensorcast_services.storage.core.effects import Effect, Forget, Free, Reply
from tensorcast_services.storage.core.events import Filled, Identity, Sealed
from tensorcast_services.storage.core.phases import Cue, Phase, next_phase

# Numbers of runs lie below those of the local server's requests (which begin at 2^32), those of calls far above.
FIRST_CALL = 1 << 48
_DUES_SLACK = 1024


class Holding(msgspec.Struct):
    """A committed artifact's replica here. `serial` tells two holdings of one id apart; `revision` is the catalog's
    at the commit (0 for one that survived a restart); `confirmed` once this incarnation's global store knows it."""

    serial: int
    digest: str
    nbytes: int
    tensors: int
    files: tuple[Identity, ...]
    in_file: bool
    revision: int
    confirmed: bool


class Ask(msgspec.Struct):
    """An open request. `asked` once the global store has told about the id since the ask last started over."""

    verb: str  # "put", "attach" or "delete"
    request: int
    art_id: str
    budget_ms: int
    due_ms: int
    need_bytes: int = 0
    asked: bool = False


class Run(msgspec.Struct):
    """The work that an entry is busy with. `ask` is the put's; loads serve the attaches in the entry's waiting list."""

    kind: str  # "put", "load" or "evict"
    ticket: int
    need_bytes: int = 0
    ask: Ask | None = None
    manifest_segment: int | None = None
    segments: tuple[int, ...] = ()
    filled: Filled | None = None
    sealed: Sealed | None = None
    seen: bool = False  # evict: its files were looked at, and the drop is asked for
    withdrawing: bool = False


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


class Shelf:
    """All entries, open asks, tickets and pending effects of one storage."""

    def __init__(self, *, process: str, node: str, incarnation: int, answer_margin_ms: int) -> None:
        self.process = process
        self.node = node
        self.incarnation = incarnation
        self.now_ms = 0
        self.entries: dict[str, Entry] = {}
        self.asks: dict[int, Ask] = {}
        self.runs: dict[int, str] = {}
        self.calls: dict[int, Call] = {}
        self.line: deque[int] = deque()
        self.trying: int | None = None
        self.evicting: str = ""
        self.evict_due_ms: int | None = None
        self.unheard: dict[int, Unheard] = {}  # by ticket
        self.passed_over: dict[str, str] = {}  # id -> why it could not go
        self.woken: deque[Ask] = deque()
        self.effects: list[Effect] = []
        self.touched: set[str] = set()
        self.evictions = 0
        self.loads = 0
        self._answer_margin_ms = answer_margin_ms
        self._next_ticket = 0
        self._next_call = FIRST_CALL
        self._next_serial = 0
        self._dues: list[tuple[int, int]] = []

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

    def open(self, *, verb: str, request: int, art_id: str, budget_ms: int, need_bytes: int = 0) -> Ask:
        """A new ask, due a little before its asker stops listening: an answer at the last moment would be missed."""
        margin = min(self._answer_margin_ms, budget_ms // 4)
        ask = Ask(verb, request, art_id, budget_ms, self.now_ms + max(0, budget_ms - margin), need_bytes)
        self.asks[request] = ask
        heapq.heappush(self._dues, (ask.due_ms, request))
        if len(self._dues) > 2 * len(self.asks) + _DUES_SLACK:
            # Most were answered long before their deadline.
            self._dues = sorted((ask.due_ms, ask.request) for ask in self.asks.values())
        return ask

    def next_due_ms(self) -> int | None:
        while self._dues and self._dues[0][1] not in self.asks:
            heapq.heappop(self._dues)
        asks_due_ms = self._dues[0][0] if self._dues else None
        return min((due for due in (asks_due_ms, self.evict_due_ms) if due is not None), default=None)

    def left_ms(self, ask: Ask | None) -> int:
        return max(1, ask.due_ms - self.now_ms) if ask is not None else 1

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def reply(self, ask: Ask | None, answer: PutDone | PutExists | Deleted | TensorCastError) -> None:
        """Ends the ask; nothing when it has ended before (answered, expired, or its asker hung up)."""
        if ask is None or self.asks.get(ask.request) is not ask:
            return
        del self.asks[ask.request]
        self.do(Reply(ask.request, answer.record() if isinstance(answer, TensorCastError) else answer))

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
        owned = run.segments if run.manifest_segment is None else (*run.segments, run.manifest_segment)
        if owned:
            self.do(Free(owned))
        if run.kind != "evict":
            self.do(Forget(run.ticket))
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
