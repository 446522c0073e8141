"""Puts in the storage's core: who goes first, who takes over, and what an unknown commit means."""

from __future__ import annotations

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.notes import PutDone, PutExists
from tensorcast_services.storage.core import effects as fx
from tests.unit.services.storage.world import World


def code(answer: object) -> str:
    assert isinstance(answer, ErrorRecord), answer
    return answer.code


def upto(world: World, kind: type) -> None:
    """Ends pending effects until one of `kind` is the next."""
    for _ in range(50):
        index = next((i for i, effect in enumerate(world.pending) if isinstance(effect, kind)), None)
        if index is not None:
            world.pending.insert(0, world.pending.pop(index))
            return
        if world.pending:
            world.end(0)
        else:
            world.end_fill(min(world.fills))
    raise AssertionError(f"no {kind.__name__} came")


def test_a_put_is_published_and_answered_only_after_its_commit_is_known() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.CallCommit)
    assert not world.published and put not in world.answers
    world.settle()
    assert isinstance(world.answers[put], PutDone) and world.published["x"].digest == "red"
    world.check_quiet()


def test_the_second_put_of_an_id_waits_and_learns_that_it_exists() -> None:
    world = World()
    first, second = world.put("x", "red"), world.put("x", "blue")
    world.settle()
    assert isinstance(world.answers[first], PutDone)
    assert world.answers[second] == PutExists("red", 1, ())
    assert sum(isinstance(e, fx.AcceptPut) for e in world.pending) == 0
    world.check_quiet()


def test_the_second_put_takes_over_when_the_first_ones_client_dies() -> None:
    world = World()
    first = world.put("x", "red")
    upto(world, fx.AcceptPut)
    world.end(0)
    second = world.put("x", "blue")
    world.hang_up(first)
    assert second not in world.answers
    world.settle()
    assert isinstance(world.answers[second], PutDone) and world.published["x"].digest == "blue"
    world.check_quiet()


def test_a_client_that_dies_while_its_room_is_looked_for_leaves_nothing_behind() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.AcceptPut)
    world.hang_up(put)
    # The fill starts although its asker is gone already: the native floor had not seen it.
    world.gone.clear()
    world.end(0)
    assert world.fills
    world.gone.add(put)
    world.settle()
    world.check_quiet()


def test_a_fill_that_ends_well_for_nobody_is_freed() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.AcceptPut)
    world.end(0)
    world.hang_up(put)
    world.gone.clear()
    world.end_fill(put)
    world.gone.add(put)
    world.check_quiet()


def test_a_sealed_put_whose_client_died_removes_its_sidecar() -> None:
    world = World(files={"/p": "red"})
    put = world.put("x", "red", path="/p")
    upto(world, fx.Seal)
    world.hang_up(put)
    world.settle()
    world.check_quiet()
    assert not world.sidecars


def test_a_client_that_dies_during_the_commit_changes_nothing() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.CallCommit)
    world.hang_up(put)
    world.settle()
    assert "x" in world.published
    world.check_quiet()


def test_a_refused_commit_frees_the_loser_and_tells_it() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.CallCommit)
    world.put_elsewhere("x", "blue")
    world.settle()
    assert code(world.answers[put]) == "AlreadyExists"
    world.check_quiet()


def test_a_lost_commit_answer_is_settled_before_anybody_is_answered_about_the_id() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.CallCommit)
    world.end(0, how="lost")
    assert code(world.answers[put]) == "Timeout"
    reader, other, remover = world.attach("x"), world.put("x", "blue"), world.delete("x")
    assert not {reader, other, remover} & world.answers.keys()
    assert not world.published
    again = [effect.request for effect in world.pending if isinstance(effect, fx.CallCommit)]
    assert again == [put] and len(world.pending) == 1, "the same commit is asked again, and nothing else"
    world.settle()
    assert world.answers[reader] == "attached red"
    assert world.answers[other] == PutExists("red", 1, ())


def test_a_commit_that_never_happened_settles_as_refused_when_another_won_meanwhile() -> None:
    world = World()
    world.put("x", "red")
    upto(world, fx.CallCommit)
    world.end(0, how="unheard")
    world.put_elsewhere("x", "blue")
    second = world.put("x", "green")
    world.settle()
    assert code(world.answers[second]) == "AlreadyExists"
    assert "x" not in world.published
    world.check_quiet()


def test_a_put_that_was_deleted_before_its_commit_was_read_is_done_but_not_published() -> None:
    world = World()
    put = world.put("x", "red")
    upto(world, fx.CallCommit)
    call = world.pending[0]
    assert isinstance(call, fx.CallCommit)
    world.commits[call.request] = world._commit_row(call)  # the answer is on its way
    world.delete_elsewhere("x")
    world.hear()
    world.settle()
    assert isinstance(world.answers[put], PutDone) and not world.published
    world.check_quiet()


def test_every_phase_of_a_put_ends_by_its_deadline_and_is_named() -> None:
    for kind, phase in (
        (fx.CallResolve, "asking the global store"),
        (fx.AcceptPut, "waiting for room"),
        (fx.Seal, "sealing the manifest"),
        (fx.CallCommit, "committing at the global store"),
    ):
        world = World()
        put = world.put("x", "red", budget_ms=400)
        upto(world, kind)
        world.wait(400)
        answer = world.answers[put]
        assert code(answer) == "Timeout" and phase in answer.text and "400 ms" in answer.text  # type: ignore[union-attr]
        world.settle()
        world.check_quiet()


def test_a_fill_past_its_deadline_is_cancelled_and_drained_before_the_next_put_begins() -> None:
    world = World()
    first = world.put("x", "red", budget_ms=400)
    upto(world, fx.AcceptPut)
    world.end(0)
    second = world.put("x", "blue")
    world.wait(400)
    assert "copying the bytes" in world.answers[first].text  # type: ignore[union-attr]
    assert second not in world.answers and first in world.fills
    world.settle()
    assert world.published["x"].digest == "blue"
    world.check_quiet()


def test_a_put_of_a_resident_id_is_answered_without_the_global_store_when_that_is_down() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    again = world.put("x", "red")
    world.end(0, how="fail")
    assert world.answers[again] == PutExists("red", 1, ())


def test_a_put_after_a_delete_that_was_not_heard_of_stores_anew() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    world.delete_elsewhere("x")
    again = world.put("x", "blue")
    world.settle()
    assert isinstance(world.answers[again], PutDone) and world.published["x"].digest == "blue"
    world.hear()
    assert world.published["x"].digest == "blue", "the old delete must not take the new artifact"
    world.check_quiet()


def test_a_put_of_an_id_whose_holders_are_all_dead_stores_a_new_replica() -> None:
    world = World(catalog={"x": ("red", 1)}, revision=1)
    put = world.put("x", "red")
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    world.check_quiet()


def test_a_put_of_what_lives_elsewhere_makes_a_replica_here_and_other_content_is_refused() -> None:
    world = World()
    world.put_elsewhere("x", "red")
    other = world.put("x", "blue")
    world.settle()
    assert code(world.answers[other]) == "AlreadyExists" and not world.segments
    put = world.put("x", "red")
    world.settle()
    assert isinstance(world.answers[put], PutDone) and "x" in world.published
    world.check_quiet()
