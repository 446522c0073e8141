"""The performing side of the storage's core, as plain records: every effect, carried out at once or ended by a test.

Every promise of the core that can be checked on the way is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tensorcast_bus.errors import BadCheckpoint, CapacityExceeded, ErrorRecord, LeaseLost, Unavailable
from tensorcast_bus.notes import Deleted, Leased, MadeDurable, PutBaseGone, PutDone, PutExists, Redirect, Renewed
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.core.artifacts import Artifacts
from tensorcast_services.storage.core.effects import Effect
from tests.unit.services.storage.catalog_model import CatalogModel
from tests.unit.services.storage.pool_model import CAPACITY, UNIT, PoolModel, Wish

CONTENTS = ["red", "blue", "green"]
Answer = PutDone | PutExists | PutBaseGone | Leased | Renewed | MadeDurable | Deleted | Redirect | ErrorRecord | str


class Told(msgspec.Struct, frozen=True):
    """An event that is posted at once and arrives later, in its turn."""

    event: ev.Event


@dataclass
class Hands(CatalogModel, PoolModel):
    disk_on: bool = False
    now_ms: int = 1_000
    pending: list[Effect | Told] = field(default_factory=list)
    opened: set[int] = field(default_factory=set)  # tickets whose files are open
    wishes: dict[int, Wish] = field(default_factory=dict)  # by ticket or request
    asked: dict[int, str] = field(default_factory=dict)
    dues: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    sidecars: dict[str, Wish] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # path -> content; absent: no such file
    disk: dict[str, str] = field(default_factory=dict)  # id -> content that lies there
    disk_digests: dict[str, str] = field(default_factory=dict)  # id -> what its sidecar there says
    untold: list[str] = field(default_factory=list)  # ids to report
    writes: dict[int, str] = field(default_factory=dict)  # ticket -> content that is being written
    over: set[str] = field(default_factory=set)  # ids whose lease ended, until they are registered or put anew
    offered: dict[int, int] = field(default_factory=dict)  # request of a registration -> its source
    requests: int = 1 << 32
    sources: int = 0

    def __post_init__(self) -> None:
        self.core = Artifacts(process="storage-a", node="a", incarnation=7, answer_margin_ms=0, disk=self.disk_on)

    def step(self, event: ev.Event) -> None:
        self.carry_out(self.core.step(event, now_ms=self.now_ms))

    def carry_out(self, effects: list[Effect]) -> None:
        self._perform(effects)
        while self.untold:
            # After all that came with it: a report is a message, and its answer another event, behind the events that
            # the global store sent before it.
            art_id = self.untold.pop(0)
            while self.events:
                self._perform(self.core.step(self.events.pop(0), now_ms=self.now_ms))
            ended = self.report(art_id, [claim for claim in self.core.claims() if claim.art_id == art_id])
            self._perform(self.core.step(ended, now_ms=self.now_ms))

    def open_requests(self) -> set[int]:
        return self.asked.keys() - self.answers.keys() - self.gone

    # How effects end.

    def end(self, index: int, *, how: str = "") -> None:
        """Ends pending effect number `index`. `how`: "", "lost" (an answer lost after it took effect), "unheard" (lost
        before), "fail"."""
        effect = self.pending.pop(index)
        match effect:
            case fx.AcceptPut(ticket) | fx.StartLoad(ticket):
                self._start(ticket, how)
            case fx.OpenFiles(ticket, art_id, source, tier):
                self._open(ticket, Wish(art_id, "", tier=tier, source=source), how)
            case fx.OpenView(ticket, _, art_id, source, tier):
                self._open(ticket, Wish(art_id, "", tier=tier, source=source, view=True), how)
            case fx.CheckFiles(ticket, files):
                bad = [path for path, *_rest in files if self.files.get(path) != _content(_rest)]
                self.step(ev.FilesChecked(ticket, " ".join(bad), sure=how != "fail"))
            case fx.Seal(ticket, art_id, manifest_segment):
                self._seal(ticket, art_id, manifest_segment, how)
            case fx.WriteOut(ticket, art_id):
                self._write(ticket, art_id, how)
            case fx.CallEndLease(art_id):
                if how:
                    self.pending.append(effect)  # told until it is known
                else:
                    self.end_lease(art_id)
            case Told(event):
                self.step(event)
            case _:
                self._call(effect, how)

    def _call(self, effect: Effect | Told, how: str) -> None:
        match effect:
            case fx.CallCommit():
                self._commit(effect, how)
            case fx.CallResolve(ticket, art_id):
                row = self.row_of(art_id)
                if how:
                    self.step(ev.ResolveAnswered(ticket, trouble=Unavailable("nobody answers").record()))
                elif isinstance(row, ErrorRecord):
                    self.step(ev.ResolveAnswered(ticket, trouble=row))
                else:
                    self.step(ev.ResolveAnswered(ticket, row))
            case fx.CallDrop(ticket, art_id):
                granted = how != "fail" and self.grants(art_id)
                if granted:
                    self.claims.discard((art_id, "host"))
                self.step(ev.DropAnswered(ticket, granted))
            case fx.CallDelete():
                self._delete(effect, how)
            case _:
                raise AssertionError(effect)

    def end_fill(self, ticket: int, *, how: str = "") -> None:
        wish = self.fills.pop(ticket)
        borrowed = self.borrowed.pop(ticket, ())
        if how == "fail" or ticket in self.gone:
            self.step(ev.RunFailed(ticket, Unavailable("the fill failed").record()))
            return
        if wish.tier:
            # A load brings what its source has now.
            wish.digest = self._content_now(wish)
        self.step(ev.Filled(ticket, (self.reserve(wish), *borrowed), 1, 0, "file", 1.0))

    def _content_now(self, wish: Wish) -> str:
        match wish.tier:
            case "file":
                return self.files.get(wish.path, "?")
            case "disk":
                return self.disk.get(wish.art_id, "?")
            case _:
                return self.kept[wish.source].content if wish.source in self.kept else "?"

    def _start(self, ticket: int, how: str) -> None:
        if ticket in self.gone or how == "fail":
            self.step(ev.RunFailed(ticket, Unavailable("hung up").record()))
            return
        wish = self.wishes[ticket]
        if wish.base and wish.base not in self.published:
            gone = Unavailable("what it would borrow is gone", base=wish.base)
            self.step(ev.RunFailed(ticket, gone.record(), base_gone=True))
            return
        free = self.free_bytes()
        if free < UNIT:
            self.step(ev.RoomRefused(ticket, free, free, CAPACITY, "full", self.uses()))
            return
        self.fills[ticket] = wish
        borrowed = self.data_of(wish.base) if wish.base else ()
        for segment in borrowed:
            self.hold(segment)
        self.borrowed[ticket] = borrowed
        self.step(ev.RoomGiven(ticket, self.reserve(wish, counted=False), borrowed))

    def _open(self, ticket: int, wish: Wish, how: str) -> None:
        if how == "fail":
            self.step(ev.RunFailed(ticket, Unavailable("not now").record()))
            return
        if wish.tier == "lease":
            kept = self.kept.get(wish.source)
            trouble = LeaseLost("its owner is gone").record() if kept is None or not kept.alive else None
        elif wish.tier == "disk":
            trouble = None if wish.art_id in self.disk else Unavailable("no such copy").record()
        else:
            known = self.sidecars.get(wish.art_id)
            wish.path = known.path if known else ""
            trouble = None if wish.path in self.files else Unavailable("no such file").record()
        if trouble is not None:
            self.step(ev.RunFailed(ticket, trouble, source_lost=True))
            return
        self.wishes[ticket] = wish
        self.opened.add(ticket)
        self.step(ev.FilesOpened(ticket, UNIT))

    def _seal(self, ticket: int, art_id: str, manifest_segment: int, how: str) -> None:
        assert manifest_segment in self.small
        wish = self.wishes[ticket]
        assert wish.art_id == art_id
        if how == "fail":
            self.step(ev.RunFailed(ticket, Unavailable("no disk").record()))
            return
        if wish.tier:
            expected = self._expected(wish)
            if expected.startswith("pending:") and not wish.view and wish.source in self.kept:
                self.kept[wish.source].digest = wish.digest
            elif not expected.startswith("pending:") and expected != wish.digest:
                kind = LeaseLost if wish.tier == "lease" else BadCheckpoint
                self.step(ev.RunFailed(ticket, kind("changed").record(), source_lost=wish.tier != "lease"))
                return
            self.step(ev.Sealed(ticket, wish.digest, 1, 1, (), False))
            return
        in_file = bool(wish.path) and self.files.get(wish.path) == wish.digest
        if in_file:
            self.sidecars[art_id] = wish
        self.step(ev.Sealed(ticket, wish.digest, 1, 1, identity_of(wish), in_file))

    def _expected(self, wish: Wish) -> str:
        match wish.tier:
            case "file":
                return self.sidecars[wish.art_id].digest if wish.art_id in self.sidecars else "gone"
            case "disk":
                return self.disk_digests.get(wish.art_id, "gone")
            case _:
                return self.kept[wish.source].digest if wish.source in self.kept else "gone"

    def _write(self, ticket: int, art_id: str, how: str) -> None:
        content = self.writes.pop(ticket)
        if how == "fail":
            self.step(ev.RunFailed(ticket, CapacityExceeded("the disk is full").record()))
            return
        self.disk[art_id] = self.disk_digests[art_id] = content
        self.step(ev.WrittenOut(ticket, UNIT))

    def _commit(self, call: fx.CallCommit, how: str) -> None:
        for effect in [e for e in self.pending if isinstance(e, fx.CallEndLease) and e.art_id == call.art_id]:
            # The end of a lease is told before the id is committed anew.
            self.pending.remove(effect)
            self.end_lease(effect.art_id)
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
            self.over.discard(call.art_id)
            self.step(ev.CommitKnown(call.ticket, *outcome))

    def _delete(self, call: fx.CallDelete, how: str) -> None:
        if how != "unheard" and call.request not in self.deletes:
            known = call.art_id in self.catalog
            row = self.row_of(call.art_id)
            self.deletes[call.request] = self._delete_row(call.art_id) if known else row  # type: ignore[assignment]  # an error then
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
                case fx.ReplyManifest(request, art_id, digest):
                    self._answer(request, f"manifest of {art_id} {digest}")
                case fx.AttachView(request, manifest_segment, segments):
                    assert manifest_segment in self.small
                    self._answer(request, f"view {self.segments[segments[0]].wish.digest}")
                case fx.Publish(art_id, manifest_segment, segments):
                    digest = self.publish(art_id, manifest_segment, segments)
                    # A pending digest stands for what was committed until the files were read.
                    known = {digest, *(claim.was for claim in self.core.claims() if claim.art_id == art_id)}
                    assert any((art_id, each) in self.known_commits for each in known), "visible, and not committed"
                case fx.Withdraw(art_id):
                    self.withdraw(art_id)
                case fx.WithdrawIdle(ticket, art_id):
                    self._withdraw_idle(ticket, art_id)
                case fx.Free(segments):
                    for segment in segments:
                        self.drop(segment)
                case _:
                    self._perform_elsewhere(effect)

    def _perform_elsewhere(self, effect: Effect) -> None:
        match effect:
            case fx.RemoveSidecar(art_id, tier):
                if tier in ("", "file"):
                    self.sidecars.pop(art_id, None)
                if tier in ("", "disk"):
                    self.disk.pop(art_id, None)
                    self.disk_digests.pop(art_id, None)
            case fx.WriteOut(ticket, art_id, segments):
                assert self.disk_on, "there is no disk"
                first = segments[0] if segments else self.data_of(art_id)[0]
                self.writes[ticket] = self.segments[first].wish.digest
                self.pending.append(effect)
            case fx.TellLost(art_id, tier):
                self.claims.discard((art_id, tier))
            case fx.TellHeld(art_id):
                self.untold.append(art_id)
            case fx.LetGo(source):
                self.let_go(source)
            case fx.CallEndLease(art_id):
                self.over.add(art_id)
                self.pending.append(effect)
            case fx.Forget(ticket):
                self.opened.discard(ticket)
            case fx.CancelFill() | fx.CancelWrite():
                pass
            case _:
                self.pending.append(effect)

    def _withdraw_idle(self, ticket: int, art_id: str) -> None:
        here = self.published.get(art_id)
        idle = here is not None and not here.pins
        if idle:
            leased = any(kept.art_id == art_id for kept in self.kept.values())
            assert art_id in self.sidecars or art_id in self.disk or leased, "the last replica went"
            self.withdraw(art_id)
        self.pending.append(Told(ev.Withdrawn(ticket, done=idle)))

    def _answer(self, request: int, answer: Answer) -> None:
        assert request in self.asked, "an answer to nobody"
        assert request not in self.answers, "answered twice"
        assert request not in self.gone, "an answer for somebody who hung up"
        wish = self.wishes.get(request)
        if isinstance(answer, PutDone):
            assert wish is not None
            assert (wish.art_id, answer.digest) in self.known_commits, "done before its commit was known"
        if isinstance(answer, Leased):
            assert wish is not None
            assert (wish.art_id, answer.digest) in self.known_commits, "granted before its commit was known"
        if isinstance(answer, MadeDurable):
            assert answer.art_id in self.disk, "durable, and not on disk"
        if isinstance(answer, str) and wish is not None:
            assert wish.art_id not in self.over, "read after its lease ended"
        self.answers[request] = answer

    def _attached(self, request: int, art_id: str) -> None:
        here = self.published[art_id]
        self.clock += 1
        here.used = self.clock
        if request not in self.gone:
            self._answer(request, f"attached {here.digest}")


def identity_of(wish: Wish) -> tuple[ev.Identity, ...]:
    # The content stands in the place of the identity's numbers: other content is another identity.
    return ((wish.path, CONTENTS.index(wish.digest) if wish.digest in CONTENTS else -1, 0, 0, 0),) if wish.path else ()


def _content(rest: list[int]) -> object:
    return CONTENTS[rest[0]] if rest[0] >= 0 else None
