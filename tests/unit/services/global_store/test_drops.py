"""What a storage may let go of: never the last bytes that are in memory only."""

from __future__ import annotations

import pytest

from tensorcast_bus.messages import Committed, Dropped, Reported, Resolve, Resolved
from tests.unit.services.global_store.cases import Desk, commit, drop, report


def living(desk: Desk, art_id: str = "m@1") -> list[str]:
    return [f"{r.process}:{r.tier}" for r in desk.ask(Resolve(art_id), Resolved).replicas if r.living]


def test_the_last_replica_in_memory_is_not_let_go() -> None:
    desk = Desk()
    desk.ask(commit(), Committed)
    refused = desk.ask(drop(), Dropped)
    assert not refused.granted
    assert "last living replica" in refused.why
    desk.ask(commit(process="storage-b"), Committed)
    assert desk.ask(drop(), Dropped).granted
    assert living(desk) == ["storage-b:host"]
    assert not desk.ask(drop(process="storage-b"), Dropped).granted


@pytest.mark.parametrize("tier", ["file", "disk"])
def test_a_replica_in_memory_goes_when_its_file_or_disk_copy_stays(tier: str) -> None:
    desk = Desk()
    desk.ask(commit(tiers=("host", tier)), Committed)
    desk.told()
    assert desk.ask(drop(), Dropped).granted
    assert living(desk) == [f"storage-a:{tier}"]
    assert desk.ask(drop(), Dropped).granted
    assert desk.told() == [("dropped", "m@1")]


def test_a_copy_that_an_earlier_life_of_the_process_claimed_does_not_let_the_last_one_go() -> None:
    desk = Desk()
    desk.ask(commit(tiers=("host", "disk")), Committed)
    desk.ask(commit(incarnation=2), Committed)
    assert not desk.ask(drop(incarnation=2), Dropped).granted
    desk.ask(report(("m@1", "aa", "disk"), incarnation=2, full=False, first=False), Reported)
    assert desk.ask(drop(incarnation=2), Dropped).granted


@pytest.mark.parametrize("tier", ["file", "disk"])
def test_a_lost_disk_copy_counts_no_more_but_who_had_it_is_told(tier: str) -> None:
    desk = Desk()
    desk.ask(commit(tiers=("host", tier)), Committed)
    assert desk.ask(drop(tier=tier), Dropped).granted
    assert living(desk) == ["storage-a:host"]
    lost = [r for r in desk.ask(Resolve("m@1"), Resolved).replicas if not r.living]
    assert [(r.tier, r.since_ms) for r in lost] == [(tier, desk.now_ms)]
    assert not desk.ask(drop(), Dropped).granted


def test_a_dead_process_does_not_count_as_another_holder() -> None:
    desk = Desk()
    desk.ask(commit(process="storage-b"), Committed)
    desk.ask(commit(), Committed)
    desk.pass_time(8_000, beating=[("storage-a", 1)])
    assert not desk.ask(drop(), Dropped).granted


def test_after_a_restart_only_processes_that_were_heard_count_as_other_holders() -> None:
    desk = Desk()
    desk.ask(commit(process="storage-b"), Committed)
    desk.ask(commit(), Committed)
    desk.restart()
    assert not desk.ask(drop(), Dropped).granted
    desk.beat("storage-b")
    assert desk.ask(drop(), Dropped).granted


def test_a_vanished_file_is_dropped_at_once_and_stays_known_as_lost() -> None:
    desk = Desk()
    desk.ask(commit(tiers=("file",)), Committed)
    assert desk.ask(drop(tier="file"), Dropped).granted
    (replica,) = desk.ask(Resolve("m@1"), Resolved).replicas
    assert (replica.living, replica.since_ms) == (False, desk.now_ms)
    assert desk.ask(commit(tiers=("file",)), Committed).outcome == "stored"
