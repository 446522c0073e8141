"""Ids under a caller's lease: who holds them, how they end, and who may take them over."""

from __future__ import annotations

import pytest
from msgspec import Struct

from tensorcast_bus.errors import AlreadyExists, Invalid, LeaseLost, NotFound, StaleFence
from tensorcast_bus.messages import (
    AliasRow,
    ArtifactRow,
    Committed,
    Delete,
    DeletedRow,
    Dropped,
    ReplicaRow,
    Reported,
    Resolve,
    Resolved,
)
from tensorcast_services.global_store.core.leases import LEASE_GRACE_MS
from tests.unit.services.global_store.cases import PENDING, Desk, claim, commit, drop, end, lease, report, set_to

DEAD_MS = 6_000


def row(desk: Desk, art_id: str = "m@1") -> ArtifactRow:
    return desk.ask(Resolve(art_id), Resolved).artifact


def replicas(desk: Desk, art_id: str = "m@1", *, living: bool = True) -> list[ReplicaRow]:
    return [r for r in desk.ask(Resolve(art_id), Resolved).replicas if r.living is living]


def holders(desk: Desk, art_id: str = "m@1") -> list[str]:
    return [f"{r.process}:{r.tier}" for r in replicas(desk, art_id)]


def test_a_registered_id_is_under_a_lease_and_its_holder_is_a_replica() -> None:
    desk = Desk()
    assert desk.ask(lease(), Committed).outcome == "stored"
    assert row(desk).ownership == "lease"
    assert holders(desk) == ["storage-a:lease"]
    assert desk.ask(lease(), Committed).outcome == "already_present"
    desk.ask(report(claim("m@1", "aa", "host", ownership="lease"), full=False, first=False), Reported)
    assert holders(desk) == ["storage-a:host", "storage-a:lease"]
    assert desk.core.figures()["leases"] == 1


def test_a_lease_that_ended_takes_its_id_along_and_says_when_and_whose_it_was() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    assert desk.ask(end(), DeletedRow) == DeletedRow("m@1", 2)
    assert desk.told() == [("committed", "m@1"), ("lease_ended", "m@1")]
    desk.restart()
    desk.tick(after_ms=1_234)
    with pytest.raises(LeaseLost, match=r"'m@1' that storage-a held ended 1234 ms ago") as lost:
        desk.ask(Resolve("m@1"), Resolved)
    assert (lost.value.context["process"], lost.value.context["ended_ms"]) == ("storage-a", desk.now_ms - 1_234)
    with pytest.raises(NotFound):
        desk.ask(Delete("m@1"), DeletedRow)
    assert desk.core.figures()["leases"] == 0
    refused = desk.ask(report(claim("m@1", "aa", "host", ownership="lease")), Reported).refused
    assert refused == ("m@1",)


@pytest.mark.parametrize("again", [commit(digest="bb"), lease(digest="bb")])
def test_an_id_whose_lease_ended_is_free_for_the_next(again: object) -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.ask(end(), DeletedRow)
    assert desk.ask(again, Committed).outcome == "stored"  # type: ignore[arg-type]
    assert not desk.saved().deleted
    assert row(desk).digest == "bb"


def test_only_the_incarnation_that_holds_a_lease_ends_it() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    nothing = DeletedRow("m@1", 0)
    assert desk.ask(end(process="storage-b"), DeletedRow) == nothing
    assert desk.ask(end(digest="bb"), DeletedRow) == nothing
    assert desk.ask(end("other"), DeletedRow) == DeletedRow("other", 0)
    assert desk.ask(end(incarnation=2), DeletedRow) == nothing
    with pytest.raises(StaleFence):
        desk.ask(end(), DeletedRow)
    desk.ask(commit("mine", incarnation=2), Committed)
    assert desk.ask(end("mine", incarnation=2), DeletedRow) == DeletedRow("mine", 0)
    assert row(desk).ownership == "lease"
    assert holders(desk, "mine") == ["storage-a:host"]


@pytest.mark.parametrize("before", [report(), drop(tier="lease")])
def test_an_end_that_comes_after_the_report_of_it_still_ends_the_lease(before: Struct) -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.ask(before, Struct)
    assert desk.ask(end(process="storage-b"), DeletedRow).revision == 0
    assert desk.ask(end(), DeletedRow).revision > 0
    with pytest.raises(LeaseLost):
        desk.ask(Resolve("m@1"), Resolved)


def test_a_copy_that_outlived_its_lease_makes_it_nobodys_own() -> None:
    desk = Desk()
    desk.ask(lease(tiers=("lease", "disk")), Committed)
    assert desk.ask(report(("m@1", "aa", "disk"), incarnation=2), Reported).refused == ("m@1",)
    assert row(desk).ownership == "lease"
    assert replicas(desk) == []


def test_an_end_that_is_told_again_does_not_end_the_next_lease() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    ended = desk.ask(end(), DeletedRow, idem="end 1")
    assert desk.ask(end(), DeletedRow, idem="end 2").revision == 0
    desk.ask(lease(), Committed)
    desk.restart()
    assert desk.ask(end(), DeletedRow, idem="end 1") == ended
    assert desk.ask(end(), DeletedRow, idem="end 2").revision == 0
    assert row(desk).ownership == "lease"


def test_a_leased_id_can_be_deleted_like_any_other() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.ask(Delete("m@1"), DeletedRow)
    with pytest.raises(NotFound, match="it was deleted"):
        desk.ask(Resolve("m@1"), Resolved)
    assert desk.ask(end(), DeletedRow).revision == 0
    assert desk.told() == [("committed", "m@1"), ("deleted", "m@1")]


def test_what_is_held_under_a_lease_is_nobody_elses() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    for other in (commit(), commit(process="storage-b"), lease(process="storage-b")):
        with pytest.raises(AlreadyExists, match="under a lease that storage-a on node a holds"):
            desk.ask(other, Committed)
    with pytest.raises(AlreadyExists, match=r"other content.* storage-a holds it under a lease"):
        desk.ask(lease(digest="bb", process="storage-b"), Committed)
    told = report(claim("m@1", "aa", "host", ownership="lease"), process="storage-b")
    assert desk.ask(told, Reported).refused == ("m@1",)
    assert holders(desk) == ["storage-a:lease"]


def test_what_the_system_owns_goes_under_no_lease() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    for process in ("storage-a", "storage-b"):
        with pytest.raises(AlreadyExists, match="owned by the system"):
            desk.ask(lease(process=process), Committed)
        told = report(claim("m@1", "aa", "lease", ownership="lease"), process=process, full=False, first=False)
        assert desk.ask(told, Reported).refused == ("m@1",)
    assert row(desk).ownership == "system"


def test_a_lease_of_nobody_living_is_taken_over_with_the_same_content() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    assert desk.ask(lease(incarnation=2), Committed).outcome == "stored"
    assert holders(desk) == ["storage-a:lease"]
    desk.pass_time(DEAD_MS)
    with pytest.raises(AlreadyExists, match="held by nobody living"):
        desk.ask(lease(digest="bb", process="storage-b"), Committed)
    assert desk.ask(lease(process="storage-b"), Committed).outcome == "stored"
    assert desk.told() == [("committed", "m@1"), ("replica", "m@1"), ("replica", "m@1")]
    desk.beat("storage-a", 2)  # it was away only, and has lost its lease meanwhile
    assert holders(desk) == ["storage-b:lease"]
    told = report(claim("m@1", "aa", "lease", ownership="lease"), incarnation=2)
    assert desk.ask(told, Reported).refused == ("m@1",)
    assert desk.ask(end(incarnation=2), DeletedRow).revision == 0
    assert desk.ask(end(process="storage-b"), DeletedRow).revision > 0


def test_a_put_takes_a_lease_of_nobody_living_over_for_good() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.pass_time(DEAD_MS)
    assert desk.ask(commit(process="storage-b"), Committed).outcome == "stored"
    assert (row(desk).ownership, row(desk).owner) == ("system", "me")
    desk.pass_time(2 * LEASE_GRACE_MS)
    desk.restart()
    assert row(desk).ownership == "system"
    assert desk.core.figures()["leases"] == 0


def test_an_alias_of_an_id_whose_lease_ended_says_so() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.ask(set_to("m@1"), AliasRow)
    desk.ask(end(), DeletedRow)
    with pytest.raises(LeaseLost, match=r"'m@latest' points at 'm@1'"):
        desk.ask(Resolve("m@latest"), Resolved)


def test_a_lost_catalog_learns_of_leases_by_reports() -> None:
    desk = Desk()
    desk.ask(report(claim("m@1", PENDING, "lease", ownership="lease")), Reported)
    assert (row(desk).ownership, row(desk).digest) == ("lease", PENDING)
    assert desk.ask(end(digest=PENDING), DeletedRow).revision > 0


def test_memory_that_a_lease_lent_is_gone_when_its_storage_says_so() -> None:
    desk = Desk()
    desk.ask(lease(tiers=("lease", "host")), Committed)
    assert desk.ask(drop(), Dropped).granted
    assert holders(desk) == ["storage-a:lease"]
    assert desk.ask(drop(tier="lease"), Dropped).granted
    assert [(r.tier, r.since_ms) for r in replicas(desk, living=False)] == [("lease", desk.now_ms)]


@pytest.mark.parametrize(
    "bad",
    [
        commit(ownership="mine"),
        commit(digest=PENDING),
        commit(tiers=("lease",)),
        lease(digest="pending:"),
        lease(digest="pending:" + "0F" * 16),
        lease(digest=PENDING + "0"),
        report(claim("m@1", PENDING, "host")),
        report(claim("m@1", "aa", "lease")),
        report(claim("m@1", "aa", "host", was="bb", ownership="lease")),
        report(claim("m@1", PENDING, "host", was=PENDING, ownership="lease")),
        report(claim("m@1", "aa", "host", ownership="")),
        end("a b"),
        end(digest="nothing"),
        end(incarnation=0),
    ],
)
def test_a_request_out_of_bounds_is_refused_and_changes_nothing(bad: Delete) -> None:
    desk = Desk()
    with pytest.raises(Invalid):
        desk.ask(bad, DeletedRow)
    assert not desk.rows
    assert desk.told() == []
