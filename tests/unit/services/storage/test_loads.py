"""Attaches in the storage's core: from memory, back from file, or refused with the reason."""

from __future__ import annotations

import pytest

from tensorcast_services.storage.core import effects as fx
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.world import Told, World


def world_with_one_on_file(*, evicted: str = "x") -> World:
    """Three artifacts fill the pool; `evicted` (the oldest) has made room for the last."""
    world = World(files={"/p": "red", "/q": "red"})
    for art_id in ("x", "y", "z", "w"):
        world.put(art_id, "red", path="/p" if art_id == "x" else "/q")
        world.settle()
    assert evicted not in world.published
    return world


def test_many_attaches_of_an_evicted_artifact_share_one_load() -> None:
    world = world_with_one_on_file()
    readers = [world.attach("x") for _ in range(5)]
    assert sum(isinstance(effect, fx.OpenFiles) for effect in world.pending) == 1
    world.settle()
    assert [world.answers[reader] for reader in readers] == ["attached red"] * 5
    assert world.core.figures()["loads"] == 1
    world.check_quiet()


def test_a_changed_file_is_told_to_every_waiter_and_is_no_replica_any_more() -> None:
    world = world_with_one_on_file()
    readers = [world.attach("x"), world.attach("x")]
    upto(world, fx.StartLoad)
    world.files["/p"] = "blue"
    world.settle()
    assert {code(world.answers[reader]) for reader in readers} == {"BadCheckpoint"}
    assert ("x", "file") not in world.claims and "x" not in world.sidecars
    late = world.attach("x")
    world.settle()
    assert code(world.answers[late]) == "NoReplica"


def test_a_load_that_fails_for_a_passing_reason_may_be_tried_again() -> None:
    world = world_with_one_on_file()
    first = world.attach("x")
    world.end(0, how="fail")
    assert code(world.answers[first]) == "Unavailable"
    second = world.attach("x")
    world.settle()
    assert world.answers[second] == "attached red"


def test_a_waiter_that_gives_up_does_not_stop_the_load_of_the_others() -> None:
    world = world_with_one_on_file()
    patient, hasty = world.attach("x"), world.attach("x", budget_ms=100)
    upto(world, fx.StartLoad)
    world.end(0)
    world.wait(100)
    assert code(world.answers[hasty]) == "Timeout"
    world.settle()
    assert world.answers[patient] == "attached red"
    world.check_quiet()


@pytest.mark.parametrize("kind", [fx.OpenFiles, fx.StartLoad])
def test_a_load_that_only_waits_ends_with_its_last_waiter(kind: type) -> None:
    world = world_with_one_on_file()
    reader = world.attach("x")
    upto(world, kind)
    world.hang_up(reader)
    world.settle()
    assert world.core.describe("x").state == "away"
    world.check_quiet()


def test_files_opened_for_nobody_are_closed() -> None:
    world = world_with_one_on_file()
    reader = world.attach("x")
    assert isinstance(world.pending[0], fx.OpenFiles)
    world.hang_up(reader)
    world.end(0)
    assert not world.opened
    world.check_quiet()


def test_an_attach_while_an_abandoned_load_ends_waits_for_it_and_loads_again() -> None:
    world = world_with_one_on_file()
    first = world.attach("x")
    upto(world, fx.StartLoad)
    world.hang_up(first)
    second = world.attach("x")
    while any(asked := [isinstance(effect, fx.CallResolve) for effect in world.pending]):
        world.end(asked.index(True))  # whatever the global store says before the load has ended
    assert second not in world.answers
    world.settle()
    assert world.answers[second] == "attached red"
    world.check_quiet()


def test_an_attach_that_meets_the_withdrawal_of_an_eviction_loads_from_the_file() -> None:
    world = World(files={"/p": "red"})
    for art_id in ("x", "y", "z"):
        world.put(art_id, "red", path="/p")
        world.settle()
    world.put("w", "red", path="/p")
    upto(world, fx.CallDrop)
    world.end(0)
    assert "x" not in world.published and isinstance(world.pending[-1], Told)
    reader = world.attach("x")
    assert reader not in world.answers
    world.settle()
    assert world.answers[reader] == "attached red"
    world.check_quiet()


def test_a_delete_during_a_load_tells_the_waiters_and_frees_what_arrives() -> None:
    world = world_with_one_on_file()
    reader = world.attach("x")
    upto(world, fx.StartLoad)
    world.end(0)
    world.delete_elsewhere("x")
    world.hear()
    assert code(world.answers[reader]) == "NotFound"
    world.settle()
    world.check_quiet()


def test_an_artifact_left_by_an_earlier_incarnation_is_loaded_only_once_the_catalog_confirms_it() -> None:
    old = world_with_one_on_file()
    for wanted, answer in ((("red", 4), "attached red"), (None, "NotFound"), (("blue", 9), "NoReplica")):
        world = World(files={"/p": "red"}, sidecars=dict(old.sidecars))
        if wanted:
            world.catalog["x"], world.revision = wanted, 9
            world.known_commits.add(("x", wanted[0]))
        world.restore("x")
        reader = world.attach("x")
        assert isinstance(world.pending[0], fx.CallResolve)
        world.settle()
        told = world.answers[reader]
        assert told == answer or code(told) == answer


def test_an_unknown_id_is_resolved_and_the_answer_says_who_has_it() -> None:
    world = World()
    nobody = world.attach("x")
    world.settle()
    assert code(world.answers[nobody]) == "NotFound"
    world.put_elsewhere("x", "red")
    reader = world.attach("x")
    world.settle()
    answer = world.answers[reader]
    assert code(answer) == "NoReplica" and "node b" in answer.text  # type: ignore[union-attr]


def test_an_attach_meanwhile_of_an_uncommitted_put_is_not_found() -> None:
    world = World()
    world.put("x", "red")
    upto(world, fx.Seal)
    reader = world.attach("x")
    upto(world, fx.CallResolve)
    world.end(0)
    assert code(world.answers[reader]) == "NotFound"


def test_an_attach_that_hears_of_the_commit_before_the_storage_does_waits_for_it() -> None:
    world = World()
    world.put("x", "red")
    upto(world, fx.CallCommit)
    call = world.pending[0]
    assert isinstance(call, fx.CallCommit)
    world.commits[call.request] = world._commit_row(call)
    reader = world.attach("x")
    upto(world, fx.CallResolve)
    world.end(0)
    assert reader not in world.answers
    world.settle()
    assert world.answers[reader] == "attached red"


def test_an_attach_without_a_global_store_names_the_phase() -> None:
    world = World()
    reader = world.attach("x", budget_ms=300)
    world.wait(300)
    answer = world.answers[reader]
    assert code(answer) == "Timeout" and "asking the global store" in answer.text  # type: ignore[union-attr]
