"""The storage's calls to the global store: repeated with one idempotency id, and told apart when they fail."""

from __future__ import annotations

import msgspec

from tensorcast_bus.errors import AlreadyExists, NotFound, Unavailable
from tensorcast_bus.loopback import LoopbackHub
from tensorcast_bus.messages import Commit, Committed, Delete, DeletedRow, EndLease, Resolve
from tensorcast_bus.serving import Caller
from tensorcast_bus.subjects import Subjects
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.link import Link

CALL = fx.CallCommit(1 << 33, 1 << 33, "x", "aa", 4, 1, ("host", "file"), budget_ms=2_000, ownership="lease")


class Desk:
    """Gives one answer after the other; the last one stays."""

    def __init__(self, *answers: msgspec.Struct | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[msgspec.Struct, str]] = []

    async def answer(self, body: msgspec.Struct, caller: Caller) -> msgspec.Struct:
        self.asked.append((body, caller.idem))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def link_to(desk: Desk | None) -> Link:
    hub = LoopbackHub()
    if desk is not None:
        await hub.bus("global_store").serve(
            Subjects.global_store_all(), Commit | Delete | EndLease | Resolve, desk.answer
        )
    return Link(hub.bus("storage-a"), node="a", process="storage-a", incarnation=7)


async def test_a_commit_is_repeated_under_one_id_until_it_is_answered() -> None:
    desk = Desk(Unavailable("busy"), ZeroDivisionError("a bug there"), Committed("stored", 5))
    link = await link_to(desk)
    assert await link.commit(CALL) == ev.CommitKnown(CALL.ticket, "stored", 5)
    assert len(desk.asked) == 3 and len({idem for _, idem in desk.asked}) == 1
    body = desk.asked[0][0]
    assert isinstance(body, Commit) and body.tiers == ("host", "file") and body.incarnation == 7
    assert body.ownership == "lease"


async def test_a_refusal_is_final_and_not_repeated() -> None:
    desk = Desk(AlreadyExists("other content"))
    answer = await (await link_to(desk)).commit(CALL)
    assert isinstance(answer, ev.CommitRefused) and answer.trouble.code == "AlreadyExists"
    assert len(desk.asked) == 1


async def test_no_answer_and_a_crash_of_the_peer_leave_the_commit_unknown() -> None:
    short = msgspec.structs.replace(CALL, budget_ms=200)
    for desk in (None, Desk(Unavailable("busy")), Desk(ZeroDivisionError("a bug there"))):
        assert isinstance(await (await link_to(desk)).commit(short), ev.CommitUnknown)


async def test_a_drop_that_cannot_be_asked_is_not_granted() -> None:
    answer = await (await link_to(None)).drop(fx.CallDrop(3, "x", 100))
    assert not answer.granted and answer.why


async def test_the_end_of_a_lease_names_the_process_that_held_it() -> None:
    desk = Desk(Unavailable("busy"), DeletedRow("x", 9))
    assert await (await link_to(desk)).end_lease("x", "aa", budget_ms=2_000) == DeletedRow("x", 9)
    assert desk.asked[-1][0] == EndLease("x", "aa", "a", "storage-a", 7)


async def test_what_does_not_exist_is_said_at_once() -> None:
    desk = Desk(NotFound("no such id"))
    link = await link_to(desk)
    resolved = await link.resolve(fx.CallResolve(3, "x", 60_000))
    deleted = await link.delete(fx.CallDelete(4, 1 << 33, "x", 60_000))
    for answer in (resolved, deleted):
        assert answer.trouble is not None and answer.trouble.code == "NotFound"
