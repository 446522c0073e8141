"""A world for the storage's core: pool, files and global store as plain records, time by hand.

Effects that end at once are carried out as they come; the others wait in `pending` until a test ends one of them, in
any order. Every promise of the core that can be checked on the way is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tensorcast_bus.errors import ErrorRecord, NotFound, Unavailable
from tensorcast_bus.messages import ArtifactRow, ReplicaRow, Resolved
from tensorcast_bus.notes import Deleted, PutDone, PutExists
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.effects import Effect
from tests.unit.services.storage.catalog_model import CatalogModel

CAPACITY = 6 << 20
UNIT = 2 << 20
CONTENTS = ["red", "blue", "green"]
Answer = PutDone | PutExists | Deleted | ErrorRecord | str


@dataclass
class Wish:
    """What a put would bring: content, and the file it lies in, if any."""

    art_id: str
    digest: str
    path: str = ""


@dataclass
class Segment:
    wish: Wish
    users: int = 1


@dataclass
class Published:
    digest: str
    segments: tuple[int, ...]
    pins: int = 0
    used: int = 0


class Told(msgspec.Struct, frozen=True):
    """An event that is posted at once and arrives later, in its turn."""

    event: ev.Event


@dataclass
class World(CatalogModel):
    core: Artifacts = field(
        default_factory=lambda: Artifacts(process="storage-a", node="a", incarnation=7, answer_margin_ms=0)
    )
    now_ms: int = 1_000
    pending: list[Effect | Told] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)  # tickets whose files are open
    fills: dict[int, Wish] = field(default_factory=dict)
    wishes: dict[int, Wish] = field(default_factory=dict)  # by ticket
    asked: dict[int, str] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    segments: dict[int, Segment] = field(default_factory=dict)
    published: dict[str, Published] = field(default_factory=dict)
    sidecars: dict[str, Wish] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # path -> content; absent: no such file
    numbers: int = 0
    requests: int = 1 << 32
    clock: int = 0

    # What clients and time do.

    def put(self, art_id: str, digest: str, *, path: str = "", budget_ms: int = 10_000, units: int = 1) -> int:
        request = self._ask("put")
        self.wishes[request] = Wish(art_id, digest, path)
        self.step(ev.PutAsked(request, art_id, budget_ms, units * UNIT))
        return request

    def attach(self, art_id: str, *, budget_ms: int = 10_000) -> int:
        request = self._ask("attach")
        if art_id in self.published:
            self._attached(request, art_id)
        else:
            self.wishes[request] = Wish(art_id, "")
            self.step(ev.AttachAsked(request, art_id, budget_ms))
        return request

    def delete(self, art_id: str, *, budget_ms: int = 10_000) -> int:
        request = self._ask("delete")
        self.step(ev.DeleteAsked(request, art_id, budget_ms))
        return request

    def hang_up(self, request: int) -> None:
        self.gone.add(request)
        self.step(ev.AskerGone(request))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self._perform(self.core.tick(now_ms=self.now_ms))
        due = self.core.next_due_ms()
        assert due is None or due > self.now_ms, "somebody waits past his deadline"

    def restore(self, art_id: str) -> None:
        """The start finds the sidecar that an earlier incarnation left."""
        wish = self.sidecars[art_id]
        self.step(ev.Restored(art_id, wish.digest, 1, 1, _identity(wish)))

    def hear(self) -> None:
        """The oldest event of the global store arrives."""
        self.step(self.events.pop(0))

    def open_requests(self) -> set[int]:
        return self.asked.keys() - self.answers.keys() - self.gone

    def step(self, event: ev.Event) -> None:
        self._perform(self.core.step(event, now_ms=self.now_ms))

    def settle(self) -> None:
        """Ends everything that waits, as it would end when all goes well."""
        while self.pending or self.fills:
            if self.pending:
                self.end(0)
            else:
                self.end_fill(min(self.fills))

    # How effects end.

    def end(self, index: int, *, how: str = "") -> None:
        """Ends pending effect number `index`. `how`: "", "lost" (an answer lost after it took effect), "unheard" (lost
        before), "fail"."""
        effect = self.pending.pop(index)
        match effect:
            case fx.AcceptPut(ticket) | fx.StartLoad(ticket):
                self._start(ticket, is_put=isinstance(effect, fx.AcceptPut), how=how)
            case fx.OpenFiles(ticket, art_id):
                self._open(ticket, art_id, how)
            case fx.CheckFiles(ticket, files):
                bad = [path for path, *_rest in files if self.files.get(path) != _content(_rest)]
                self.step(ev.FilesChecked(ticket, " ".join(bad), sure=how != "fail"))
            case fx.Seal(ticket, art_id, manifest_segment):
                self._seal(ticket, art_id, manifest_segment, how)
            case fx.CallCommit():
                self._commit(effect, how)
            case fx.CallResolve(ticket, art_id):
                self._resolve(ticket, art_id, how)
            case fx.CallDrop(ticket, art_id):
                granted = how != "fail" and ((art_id, "file") in self.claims or art_id in self.elsewhere)
                if granted:
                    self.claims.discard((art_id, "host"))
                self.step(ev.DropAnswered(ticket, granted))
            case fx.CallDelete():
                self._delete(effect, how)
            case Told(event):
                self.step(event)
            case _:
                raise AssertionError(effect)

    def end_fill(self, ticket: int, *, how: str = "") -> None:
        wish = self.fills.pop(ticket)
        if how == "fail" or ticket in self.gone:
            self.step(ev.RunFailed(ticket, Unavailable("the fill failed").record()))
            return
        if not self._is_put(ticket):
            # A load brings what the file has now.
            wish = Wish(wish.art_id, self.files.get(wish.path, "?"), wish.path)
            self.wishes[ticket] = wish
        self.step(ev.Filled(ticket, (self._reserve(wish),), 1, 0, "file", 1.0))

    def _start(self, ticket: int, *, is_put: bool, how: str) -> None:
        if ticket in self.gone or how == "fail":
            self.step(ev.RunFailed(ticket, Unavailable("hung up").record()))
            return
        held = UNIT * (len(self.segments) + len(self.fills))
        if held + UNIT > CAPACITY:
            uses = tuple(ev.Use(a, p.used, p.pins, UNIT) for a, p in self.published.items())
            self.step(ev.RoomRefused(ticket, CAPACITY - held, CAPACITY - held, CAPACITY, "full", uses))
            return
        self.fills[ticket] = self.wishes[ticket]
        self.step(ev.RoomGiven(ticket, self._reserve(self.wishes[ticket], counted=False)))

    def _open(self, ticket: int, art_id: str, how: str) -> None:
        wish = self.sidecars.get(art_id)
        good = wish is not None and self.files.get(wish.path) is not None
        if how == "fail" or not good:
            trouble = Unavailable("no such file").record()
            self.step(ev.RunFailed(ticket, trouble, source_lost=not good))
            return
        assert wish is not None
        self.wishes[ticket] = wish
        self.opened.add(ticket)
        self.step(ev.FilesOpened(ticket, UNIT))

    def _seal(self, ticket: int, art_id: str, manifest_segment: int, how: str) -> None:
        assert manifest_segment in self.small
        wish = self.wishes[ticket]
        if how == "fail":
            self.step(ev.RunFailed(ticket, Unavailable("no disk").record()))
            return
        if not self._is_put(ticket):
            kept = self.sidecars.get(art_id)
            if kept is None or kept.digest != wish.digest:
                self.step(ev.RunFailed(ticket, Unavailable("changed").record(), source_lost=True))
                return
        in_file = bool(wish.path) and self.files.get(wish.path) == wish.digest
        if in_file:
            self.sidecars[art_id] = wish
        self.step(ev.Sealed(ticket, wish.digest, 1, 1, _identity(wish), in_file))

    def _commit(self, call: fx.CallCommit, how: str) -> None:
        if how != "unheard" and call.request not in self.commits:
            self.commits[call.request] = self._commit_row(call)
        if how in ("lost", "unheard", "fail"):
            self.step(ev.CommitUnknown(call.ticket, Unavailable("no answer").record()))
            return
        outcome = self.commits[call.request]
        if isinstance(outcome, ErrorRecord):
            self.step(ev.CommitRefused(call.ticket, outcome))
        else:
            self.known_commits.add((call.art_id, call.digest))
            self.step(ev.CommitKnown(call.ticket, *outcome))

    def _resolve(self, ticket: int, art_id: str, how: str) -> None:
        if how in ("fail", "lost", "unheard"):
            self.step(ev.ResolveAnswered(ticket, trouble=Unavailable("nobody answers").record()))
            return
        row = self.catalog.get(art_id)
        if row is None:
            self.step(ev.ResolveAnswered(ticket, trouble=NotFound("no such id").record()))
            return
        rows = [ReplicaRow(a, "a", t, "storage-a", 7, row[0], 0) for a, t in sorted(self.claims) if a == art_id]
        if art_id in self.elsewhere:
            rows.append(ReplicaRow(art_id, "b", "host", "storage-b", 9, row[0], 0))
        self.step(ev.ResolveAnswered(ticket, Resolved(ArtifactRow(art_id, row[0], 1, 1, "", 0, row[1]), tuple(rows))))

    def _delete(self, call: fx.CallDelete, how: str) -> None:
        if how != "unheard" and call.request not in self.deletes:
            known = call.art_id in self.catalog
            self.deletes[call.request] = self._delete_row(call.art_id) if known else NotFound("no such id").record()
        if how in ("lost", "unheard", "fail"):
            self.step(ev.DeleteAnswered(call.ticket, trouble=Unavailable("no answer").record()))
            return
        outcome = self.deletes[call.request]
        if isinstance(outcome, ErrorRecord):
            self.step(ev.DeleteAnswered(call.ticket, trouble=outcome))
        else:
            self.step(ev.DeleteAnswered(call.ticket, outcome))

    # Effects that end at once.

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Reply(request, answer):
                    self._answer(request, answer)
                case fx.AttachNow(request):
                    self._attached(request, self.wishes[request].art_id)
                case fx.Publish(art_id, manifest_segment, segments):
                    self._publish(art_id, manifest_segment, segments)
                case fx.Withdraw(art_id):
                    self._withdraw(art_id)
                case fx.Free(segments):
                    for segment in segments:
                        self._drop(segment)
                case fx.RemoveSidecar(art_id):
                    self.sidecars.pop(art_id, None)
                case fx.TellLost(art_id):
                    self.claims.discard((art_id, "file"))
                case fx.TellHeld(art_id):
                    self._report(art_id)
                case fx.WithdrawIdle(ticket, art_id):
                    here = self.published.get(art_id)
                    idle = here is not None and not here.pins
                    if idle:
                        self._withdraw(art_id)
                    self.pending.append(Told(ev.Withdrawn(ticket, done=idle)))
                case fx.Forget(ticket):
                    self.opened.discard(ticket)
                case fx.CancelFill():
                    pass
                case _:
                    self.pending.append(effect)

    def _report(self, art_id: str) -> None:
        """A report of one id, answered at once."""
        claims = [claim for claim in self.core.claims() if claim[0] == art_id]
        good = {claim[1] for claim in claims if self.catalog.get(art_id, ("",))[0] == claim[2]}
        self.claims |= {(art_id, claim[3]) for claim in claims if claim[1] in good}
        refused = () if len(good) == len({claim[1] for claim in claims}) else (art_id,)
        self.step(ev.ReportEnded(tuple((claim[0], claim[1]) for claim in claims), refused))

    def _answer(self, request: int, answer: Answer) -> None:
        assert request in self.asked, "an answer to nobody"
        assert request not in self.answers, "answered twice"
        assert request not in self.gone, "an answer for somebody who hung up"
        if isinstance(answer, PutDone):
            wish = self.wishes[request]
            assert (wish.art_id, wish.digest) in self.known_commits, "done before its commit was known"
        self.answers[request] = answer

    def _attached(self, request: int, art_id: str) -> None:
        here = self.published[art_id]
        self.clock += 1
        here.used = self.clock
        if request not in self.gone:
            self._answer(request, f"attached {here.digest}")

    def _publish(self, art_id: str, manifest_segment: int, segments: tuple[int, ...]) -> None:
        assert art_id not in self.published, "published twice"
        digests = {self.segments[segment].wish.digest for segment in segments}
        assert len(digests) == 1
        digest = digests.pop()
        assert (art_id, digest) in self.known_commits, "visible before its commit was known"
        held = (manifest_segment, *segments)
        for segment in held:
            (self.segments.get(segment) or self.small[segment]).users += 1
        self.published[art_id] = Published(digest, held)

    def _withdraw(self, art_id: str) -> None:
        here = self.published.pop(art_id, None)
        for segment in here.segments if here else ():
            self._drop(segment)

    @property
    def small(self) -> dict[int, Segment]:
        return self._small

    def __post_init__(self) -> None:
        self._small: dict[int, Segment] = {}

    def _reserve(self, wish: Wish, *, counted: bool = True) -> int:
        self.numbers += 1
        (self.segments if counted else self._small)[self.numbers] = Segment(wish)
        return self.numbers

    def _drop(self, segment: int) -> None:
        shelf = self.segments if segment in self.segments else self._small
        assert segment in shelf, "freed twice"
        shelf[segment].users -= 1
        if not shelf[segment].users:
            del shelf[segment]

    def _ask(self, verb: str) -> int:
        self.requests += 1
        self.asked[self.requests] = verb
        return self.requests

    def _is_put(self, ticket: int) -> bool:
        return ticket > 1 << 32

    def check_quiet(self) -> None:
        """Nothing waits and nothing runs: every byte that is held is published."""
        assert not self.pending and not self.fills and not self.open_requests()
        assert not self.opened, "source files stay open"
        held = [s for p in self.published.values() for s in p.segments]
        assert sorted(held) == sorted([*self.segments, *self._small]), "segments leaked"
        assert all(s.users == 1 for s in (*self.segments.values(), *self._small.values()))
        for art_id, here in self.published.items():
            assert self.catalog.get(art_id, ("nothing",))[0] == here.digest, f"{art_id} is not what the catalog says"
        claimed = {(claim[0], claim[3]) for claim in self.core.claims()}
        assert claimed == self.claims, "the global store has a wrong picture of this storage"
        assert self.sidecars.keys() == {art_id for art_id, tier in claimed if tier == "file"}


def _identity(wish: Wish) -> tuple[ev.Identity, ...]:
    # The content stands in the place of the identity's numbers: other content is another identity.
    return ((wish.path, CONTENTS.index(wish.digest) if wish.digest in CONTENTS else -1, 0, 0, 0),) if wish.path else ()


def _content(rest: list[int]) -> object:
    return CONTENTS[rest[0]] if rest[0] >= 0 else None
