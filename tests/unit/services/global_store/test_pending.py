"""Registered files that nobody has read yet: their digest is pending, and becomes what was read."""

from __future__ import annotations

import pytest

from tensorcast_bus.errors import AlreadyExists
from tensorcast_bus.messages import ArtifactRow, Committed, DeletedRow, ReplicaRow, Reported, Resolve, Resolved
from tests.unit.services.global_store.cases import PENDING, Desk, claim, end, lease, report


def row(desk: Desk, art_id: str = "m@1") -> ArtifactRow:
    return desk.ask(Resolve(art_id), Resolved).artifact


def replicas(desk: Desk, art_id: str = "m@1") -> list[ReplicaRow]:
    return [r for r in desk.ask(Resolve(art_id), Resolved).replicas if r.living]


def test_a_pending_digest_becomes_what_was_read() -> None:
    desk = Desk()
    desk.ask(lease(digest=PENDING), Committed)
    desk.told()
    read = [claim("m@1", "aa", tier, was=PENDING, ownership="lease") for tier in ("lease", "host")]
    assert desk.ask(report(*read, full=False, first=False), Reported).refused == ()
    assert row(desk).digest == "aa"
    assert {r.digest for r in replicas(desk)} == {"aa"}
    assert [r.tier for r in replicas(desk)] == ["host", "lease"]
    assert set(desk.told()) == {("replica", "m@1")}
    assert desk.ask(report(*read), Reported).refused == ()
    desk.restart()
    assert row(desk).digest == "aa"
    assert desk.ask(end(digest=PENDING), DeletedRow).revision > 0


def test_nothing_else_takes_the_place_of_a_pending_digest() -> None:
    desk = Desk()
    other = "pending:" + "a0" * 16
    desk.ask(lease(digest=PENDING), Committed)
    for offered in ("aa", other):
        with pytest.raises(AlreadyExists, match=r"pending:0f.* is there"):
            desk.ask(lease(digest=offered), Committed)
    for was in ("", other):
        wrong = claim("m@1", "aa", "host", was=was, ownership="lease")
        assert desk.ask(report(wrong, full=False, first=False), Reported).refused == ("m@1",)
    settling = claim("m@1", "aa", "host", was=PENDING, ownership="lease")
    assert desk.ask(report(settling, process="storage-b"), Reported).refused == ("m@1",)
    assert row(desk).digest == PENDING


def test_a_digest_that_was_settled_does_not_change_again() -> None:
    desk = Desk()
    desk.ask(lease(digest=PENDING), Committed)
    desk.ask(report(claim("m@1", "aa", "lease", was=PENDING, ownership="lease"), full=False, first=False), Reported)
    later = claim("m@1", "bb", "lease", was=PENDING, ownership="lease")
    assert desk.ask(report(later, full=False, first=False), Reported).refused == ("m@1",)
    with pytest.raises(AlreadyExists, match="pending:0f"):
        desk.ask(lease(digest=PENDING), Committed)
    assert row(desk).digest == "aa"


def test_a_settled_digest_is_told_of_once() -> None:
    desk = Desk()
    desk.ask(lease(digest=PENDING), Committed)
    desk.told()
    read = report(claim("m@1", "aa", "lease", was=PENDING, ownership="lease"), full=False, first=False)
    for _ in range(3):
        desk.ask(read, Reported)
    (event,) = desk.events
    assert (event.kind, event.digest, event.revision) == ("replica", "aa", row(desk).revision)
