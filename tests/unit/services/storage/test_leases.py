"""Leases in the storage's core: granted, read, renewed, and ended by time, release, death or change."""

from __future__ import annotations

import pytest

from tensorcast_bus.notes import Deleted, Leased, PutDone, Renewed
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.core import leases
from tensorcast_services.storage.core.leases import LEASES_MAX
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.test_spilling import text
from tests.unit.services.storage.world import World


def leased(*, digest: str = "", eager: bool = False) -> World:
    world = World()
    asked = world.register("x", "red", digest=digest, eager=eager)
    world.settle()
    assert isinstance(world.answers[asked], Leased)
    return world


def test_a_registration_moves_nothing_and_commits_the_lease_alone() -> None:
    world = World()
    asked = world.register("x", "red", ttl_ms=9_000)
    upto(world, fx.CallCommit)
    call = world.pending[0]
    assert isinstance(call, fx.CallCommit) and call.tiers == ("lease",) and call.ownership == "lease"
    world.settle()
    assert world.answers[asked] == Leased(1, "red", 1, 9_000, "vm_read")
    assert not world.segments and not world.published
    about = world.core.describe("x")
    assert about.state == "away" and about.tiers == ("lease",) and about.lease_left_ms == 9_000
    world.check_quiet()


def test_the_first_reader_makes_the_owners_bytes_a_replica_here() -> None:
    world = leased()
    readers = [world.attach("x"), world.attach("x")]
    assert [(e.source, e.tier) for e in world.pending if isinstance(e, fx.OpenFiles)] == [(1, "lease")]
    world.settle()
    assert [world.answers[reader] for reader in readers] == ["attached red"] * 2
    assert world.core.describe("x").tiers == ("host", "lease")
    world.check_quiet()


def test_memory_that_changed_ends_the_lease_and_its_readers_hear_it() -> None:
    world = leased()
    world.kept[1].content = "blue"
    reader = world.attach("x")
    world.settle()
    assert code(world.answers[reader]) == "LeaseLost" and 1 in world.let_gone and not world.catalog
    late = world.attach("x")
    world.settle()
    assert code(world.answers[late]) == "LeaseLost"
    world.check_quiet()


def test_registered_files_get_their_digest_at_the_first_load() -> None:
    world = leased(digest="pending:1")
    reader = world.attach("x")
    world.settle()
    assert world.answers[reader] == "attached red"
    assert {(c.digest, c.was, c.ownership) for c in world.core.claims()} == {("red", "pending:1", "lease")}
    assert world.catalog["x"][0] == "red"
    world.check_quiet()


def test_an_evicted_registration_is_read_again_and_must_be_what_it_was() -> None:
    world = leased(digest="pending:1")
    for art_id in ("x", "y", "z", "w"):
        if art_id == "x":
            world.attach("x")
        else:
            world.put(art_id, "red")
        world.settle()
    assert "x" not in world.published and world.core.describe("x").tiers == ("lease",)
    world.kept[1].content = "green"
    for art_id in ("y", "z"):
        world.delete(art_id)
        world.settle()
    reader = world.attach("x")
    world.settle()
    assert code(world.answers[reader]) == "LeaseLost"
    world.check_quiet()


@pytest.mark.parametrize("way", ["time", "release", "death"])
def test_an_ended_lease_takes_the_id_with_it_and_says_when_and_why(way: str) -> None:
    world = leased()
    world.attach("x")
    world.settle()
    why = {"time": "not renewed in time", "release": "was released", "death": "process ended"}[way]
    if way == "time":
        world.wait(30_000)
    elif way == "release":
        assert world.release("x", 1) == Deleted("x")
    else:
        world.die(1)
    assert "x" not in world.published and world.let_gone == {1}
    world.wait(2_000)
    reader = world.attach("x")
    world.settle()
    assert code(world.answers[reader]) == "LeaseLost" and why in text(world.answers[reader])
    assert "2.0 s ago" in text(world.answers[reader])
    renewed = world.renew("x", 1)
    assert code(renewed) == "LeaseLost" and why in text(renewed)
    assert world.release("x", 1) == Deleted("x")
    world.check_quiet()


def test_readers_hear_of_an_ended_lease_also_while_the_global_store_does_not_know_it() -> None:
    world = leased()
    world.release("x", 1)
    assert isinstance(world.pending[0], fx.CallEndLease)
    told = world.pending.pop(0)
    reader, silent = world.attach("x"), world.attach("x", budget_ms=300)
    world.end(0)
    assert code(world.answers[reader]) == "LeaseLost"
    world.wait(300)
    assert code(world.answers[silent]) == "LeaseLost"
    world.pending.append(told)
    world.settle()
    world.check_quiet()


def test_a_renewed_lease_lasts_from_the_renewal_on() -> None:
    world = leased()
    world.wait(20_000)
    assert world.renew("x", 1) == Renewed(30_000)
    world.wait(20_000)
    assert world.core.describe("x").lease_left_ms == 10_000
    world.wait(10_000)
    assert world.core.describe("x").state == "unknown"
    world.settle()
    world.check_quiet()


def test_another_number_neither_renews_nor_ends_a_lease() -> None:
    world = leased()
    assert code(world.renew("x", 7)) == "LeaseLost" and world.release("x", 7) == Deleted("x")
    assert world.core.describe("x").lease_left_ms == 30_000


def test_a_put_or_registration_under_a_living_lease_is_refused_and_says_so() -> None:
    world = leased()
    for again in (world.put("x", "red"), world.register("x", "red")):
        world.settle()
        assert code(world.answers[again]) == "AlreadyExists" and "under a lease" in text(world.answers[again])
    assert world.let_gone == {2}
    world.check_quiet()


def test_what_was_put_cannot_be_registered() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    asked = world.register("x", "red")
    world.settle()
    assert code(world.answers[asked]) == "AlreadyExists" and "belongs to the system" in text(world.answers[asked])
    world.check_quiet()


def test_a_put_after_the_end_takes_the_id_and_clears_what_was_remembered() -> None:
    world = leased()
    world.release("x", 1)
    put = world.put("x", "blue")
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    world.delete("x")
    world.settle()
    reader = world.attach("x")
    world.settle()
    assert code(world.answers[reader]) == "NotFound"
    world.check_quiet()


def test_a_lease_that_ends_during_its_load_frees_what_arrives() -> None:
    for kind in (fx.OpenFiles, fx.StartLoad, fx.Seal):
        world = leased()
        reader = world.attach("x")
        upto(world, kind)
        world.die(1)
        assert code(world.answers[reader]) == "LeaseLost"
        world.settle()
        assert not world.published
        world.check_quiet()


@pytest.mark.parametrize("kind", [fx.CallResolve, fx.CallCommit])
@pytest.mark.parametrize("how", ["hang up", "time", "death"])
def test_a_registration_given_up_at_any_point_leaves_nothing(kind: type, how: str) -> None:
    world = World()
    asked = world.register("x", "red", budget_ms=400)
    upto(world, kind)
    if how == "death":
        world.die(1)
        assert code(world.answers[asked]) == "LeaseLost"
        world.step(ev.AskerGone(asked))
    elif how == "time":
        world.wait(400)
    else:
        world.hang_up(asked)
    world.settle()
    assert world.let_gone == {1} and not world.catalog and not world.claims
    world.check_quiet()


def test_a_commit_whose_answer_was_lost_ends_as_a_lease_that_nobody_has() -> None:
    world = World()
    asked = world.register("x", "red")
    upto(world, fx.CallCommit)
    world.end(0, how="lost")
    assert code(world.answers[asked]) == "Timeout" and world.let_gone == {1}
    world.settle()
    assert not world.catalog and not world.claims
    world.check_quiet()


def test_a_refused_registration_lets_its_source_go() -> None:
    world = World()
    world.put_elsewhere("x", "blue")
    asked = world.register("x", "red")
    world.settle()
    assert code(world.answers[asked]) == "AlreadyExists" and world.let_gone == {1}
    world.check_quiet()


def test_bytes_that_cannot_be_read_later_are_taken_at_once_and_stay_under_the_lease() -> None:
    world = leased(eager=True)
    assert "x" in world.published and world.core.describe("x").tiers == ("host",)
    for art_id in ("y", "z", "w"):
        world.put(art_id, "red")
        world.settle()
    assert "x" in world.published, "nothing else has its bytes"
    world.wait(30_000)
    assert "x" not in world.published and world.let_gone == {1}
    world.settle()
    world.check_quiet()


def test_what_changed_while_it_was_taken_is_not_granted() -> None:
    world = World()
    asked = world.register("x", "red", digest="blue", eager=True)
    world.settle()
    assert code(world.answers[asked]) == "LeaseLost" and not world.segments and world.let_gone == {1}
    world.check_quiet()


@pytest.mark.parametrize("kind", [fx.AcceptPut, fx.Seal, fx.CallCommit])
def test_a_death_while_bytes_are_taken_leaves_nothing(kind: type) -> None:
    world = World()
    world.register("x", "red", eager=True)
    upto(world, kind)
    world.die(1)
    world.settle()
    assert not world.published and world.let_gone == {1}
    world.check_quiet()


def test_what_a_lease_governs_is_never_written_to_disk() -> None:
    world = World(disk_on=True)
    world.register("x", "red", eager=True)
    world.settle()
    asked = world.durable("x")
    assert code(world.answers[asked]) == "Conflict"
    for art_id in ("y", "z"):
        world.put(art_id, "red")
        world.settle()
    world.see_pool()
    world.settle()
    assert world.disk.keys() == {"y"}
    world.check_quiet()


def test_a_delete_by_another_node_ends_the_lease_quietly() -> None:
    world = leased()
    world.delete_elsewhere("x")
    world.hear()
    assert world.let_gone == {1} and not world.pending
    assert code(world.renew("x", 1)) == "LeaseLost"
    reader = world.attach("x")
    world.settle()
    assert code(world.answers[reader]) == "NotFound"
    world.check_quiet()


def test_registrations_beyond_the_limit_are_refused() -> None:
    world = World()
    for number in range(LEASES_MAX):
        world.register(f"x{number}", "red")
    asked = world.register("one-more", "red")
    assert code(world.answers[asked]) == "CapacityExceeded" and str(LEASES_MAX) in text(world.answers[asked])
    assert world.let_gone == {LEASES_MAX + 1}


def test_only_so_many_ended_leases_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASES_ENDED_MAX", 2)
    world = World()
    for number, art_id in enumerate(("x", "y", "z"), 1):
        world.register(art_id, "red")
        world.settle()
        world.release(art_id, number)
        world.settle()
    assert "was released" in text(world.renew("y", 2)) and "was released" in text(world.renew("z", 3))
    assert "was released" not in text(world.renew("x", 1))
