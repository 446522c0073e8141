"""Leases that nobody living holds: how long they wait for their holder, and that they do not stay for ever."""

from __future__ import annotations

import pytest

from tensorcast_bus.errors import LeaseLost
from tensorcast_bus.messages import ArtifactRow, Committed, Reported, Resolve, Resolved
from tensorcast_services.global_store.core import leases as leases_module
from tests.unit.services.global_store.cases import Desk, commit, lease, report

GRACE_MS = leases_module.LEASE_GRACE_MS
DEAD_MS = 6_000


def row(desk: Desk, art_id: str = "m@1") -> ArtifactRow:
    return desk.ask(Resolve(art_id), Resolved).artifact


def holders(desk: Desk) -> list[str]:
    return [f"{r.process}:{r.tier}" for r in desk.ask(Resolve("m@1"), Resolved).replicas if r.living]


def test_a_lease_ends_by_itself_when_nobody_living_has_held_it_for_the_grace() -> None:
    desk = Desk()
    desk.ask(lease("gone"), Committed)
    desk.ask(lease("kept", process="storage-b"), Committed)
    desk.ask(commit("system"), Committed)
    alive = [("storage-b", 1)]
    desk.pass_time(GRACE_MS, beating=alive)
    assert row(desk, "gone").ownership == "lease"
    desk.pass_time(DEAD_MS, beating=alive)
    with pytest.raises(LeaseLost, match="storage-a held"):
        desk.ask(Resolve("gone"), Resolved)
    assert row(desk, "kept").ownership == "lease"
    assert row(desk, "system").ownership == "system"
    assert ("lease_ended", "gone") in desk.told()
    assert [record.reason for record in desk.saved().deleted] == ["lease"]


def test_a_lease_that_a_report_does_not_name_any_more_ends_by_itself_too() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.ask(report(), Reported)
    assert holders(desk) == []
    desk.pass_time(GRACE_MS + DEAD_MS, beating=[("storage-a", 1)])
    with pytest.raises(LeaseLost):
        desk.ask(Resolve("m@1"), Resolved)


def test_the_grace_starts_again_with_every_restart_and_every_holder() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.pass_time(GRACE_MS)
    desk.restart()
    desk.pass_time(GRACE_MS)
    assert row(desk).ownership == "lease"
    desk.ask(lease(incarnation=2), Committed)
    desk.pass_time(GRACE_MS)
    assert row(desk).ownership == "lease"
    desk.pass_time(DEAD_MS)
    with pytest.raises(LeaseLost):
        desk.ask(Resolve("m@1"), Resolved)


def test_a_holder_that_comes_back_within_the_grace_keeps_its_lease() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.pass_time(GRACE_MS)
    desk.pass_time(1_000, beating=[("storage-a", 1)])
    desk.pass_time(GRACE_MS)
    assert row(desk).ownership == "lease"


def test_a_stall_of_the_global_store_costs_nobody_a_lease() -> None:
    desk = Desk()
    desk.ask(lease(), Committed)
    desk.pass_time(DEAD_MS + 1_000)
    assert holders(desk) == []
    desk.tick(after_ms=10 * GRACE_MS)
    desk.beat("storage-a")
    desk.tick(after_ms=100)
    assert holders(desk) == ["storage-a:lease"]


def test_a_deaf_global_store_ends_no_lease() -> None:
    desk = Desk(own="global_store")
    desk.beat("global_store", 100, role="global_store")
    desk.ask(lease(), Committed)
    desk.pass_time(DEAD_MS + 1_000, beating=[("global_store", 100)])
    assert holders(desk) == []
    desk.pass_time(3 * GRACE_MS)
    assert row(desk).ownership == "lease"


def test_a_tick_looks_at_a_bounded_number_of_leases_and_gets_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "LEASES_A_TICK_MAX", 3)
    desk = Desk()
    names = [f"m@{i}" for i in range(10)]
    for name in names:
        desk.ask(lease(name), Committed)
    desk.told()
    most = 0
    for _ in range((GRACE_MS + 4 * DEAD_MS) // 500):
        desk.tick(after_ms=500)
        most = max(most, len(desk.told()))
    assert most == 3
    assert not desk.saved().artifacts
    assert {record.art_id for record in desk.saved().deleted} == set(names)
