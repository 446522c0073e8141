"""Room and eviction in the storage's core: who has to leave, in which order, and who is refused."""

from __future__ import annotations

from tensorcast_bus.notes import PutDone
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core.eviction import DROP_HEARD_MS_MAX, LOOK_MS_MAX
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.world import UNIT, World


def full_of_files() -> World:
    world = World(files={"/p": "red"})
    for art_id in ("x", "y", "z"):
        world.put(art_id, "red", path="/p")
        world.settle()
    return world


def test_the_artifact_attached_longest_ago_goes_first() -> None:
    world = full_of_files()
    for art_id in ("x", "z", "y"):
        world.attach(art_id)
    world.put("w", "red", path="/p")
    world.settle()
    assert sorted(world.published) == ["w", "y", "z"]
    assert world.core.describe("x").state == "away" and world.core.figures()["evictions"] == 1
    world.check_quiet()


def test_mapped_artifacts_stay_and_the_next_one_goes() -> None:
    world = full_of_files()
    world.published["x"].pins = 1
    world.put("w", "red", path="/p")
    world.settle()
    assert sorted(world.published) == ["w", "x", "z"]


def test_an_artifact_mapped_after_its_drop_was_granted_stays_published_and_claimed() -> None:
    world = full_of_files()
    put = world.put("w", "red", path="/p")
    upto(world, fx.CallDrop)
    effect = world.pending[0]
    assert isinstance(effect, fx.CallDrop)
    world.published[effect.art_id].pins = 1
    world.settle()
    assert effect.art_id in world.published and (effect.art_id, "host") in world.claims
    assert isinstance(world.answers[put], PutDone)


def test_a_refused_drop_means_the_next_candidate() -> None:
    world = full_of_files()
    put = world.put("w", "red", path="/p")
    upto(world, fx.CallDrop)
    world.end(0, how="fail")
    world.settle()
    assert isinstance(world.answers[put], PutDone) and sorted(world.published) == ["w", "x", "z"]


def test_what_could_not_go_for_one_put_may_go_for_the_next() -> None:
    world = full_of_files()
    first = world.put("w", "red")
    for _ in ("x", "y", "z"):
        upto(world, fx.CallDrop)
        world.end(0, how="fail")
    upto(world, fx.AcceptPut)
    world.end(0)
    assert code(world.answers[first]) == "CapacityExceeded" and "3 tried" in world.answers[first].text  # type: ignore[union-attr]
    second = world.put("v", "red")
    world.settle()
    assert isinstance(world.answers[second], PutDone)


def test_an_artifact_whose_file_changed_is_never_evicted_again() -> None:
    world = full_of_files()
    world.files["/p"] = "blue"
    put = world.put("w", "green")
    world.settle()
    assert code(world.answers[put]) == "CapacityExceeded"
    assert sorted(world.published) == ["x", "y", "z"] and not world.sidecars
    world.check_quiet()


def test_a_file_that_cannot_be_looked_at_now_is_only_passed_over() -> None:
    world = full_of_files()
    world.put("w", "red", path="/p")
    upto(world, fx.CheckFiles)
    world.files["/p"] = "blue"
    world.end(0, how="fail")
    world.files["/p"] = "red"
    world.settle()
    assert "x" in world.published and "x" in world.sidecars and sorted(world.published) == ["w", "x", "z"]


def of_three_file_systems() -> World:
    """Each in a file of its own device: the content stands for it."""
    world = World(files={"/p": "red", "/q": "blue", "/r": "green"})
    for art_id, path in (("x", "/p"), ("y", "/q"), ("z", "/r")):
        world.put(art_id, world.files[path], path=path)
        world.settle()
    return world


def test_a_file_system_that_does_not_answer_costs_a_put_two_seconds_and_not_its_life() -> None:
    world = of_three_file_systems()
    put = world.put("w", "red")
    upto(world, fx.CheckFiles)
    silent = world.pending.pop(0)
    world.wait(LOOK_MS_MAX - 1)
    assert not world.pending
    world.wait(1)
    world.settle()
    assert isinstance(world.answers[put], PutDone) and sorted(world.published) == ["w", "x", "z"]
    world.pending.append(silent)
    world.settle()
    world.check_quiet()


def test_nothing_else_of_a_silent_file_system_is_tried_until_it_answers() -> None:
    world = full_of_files()
    world.put("w", "red")
    upto(world, fx.CheckFiles)
    silent = world.pending.pop(0)
    world.wait(LOOK_MS_MAX)
    world.settle()
    assert sorted(world.published) == ["x", "y", "z"]
    world.pending.append(silent)
    world.settle()
    put = world.put("v", "red")
    world.settle()
    assert isinstance(world.answers[put], PutDone) and len(world.published) == 3


def test_a_drop_that_is_granted_too_late_leaves_the_replica_claimed() -> None:
    world = of_three_file_systems()
    world.put("w", "red")
    upto(world, fx.CallDrop)
    late = world.pending.pop(0)
    world.wait(DROP_HEARD_MS_MAX)
    world.settle()
    assert "x" in world.published and "w" in world.published
    world.pending.append(late)
    world.settle()
    assert ("x", "host") in world.claims
    world.check_quiet()


def test_a_drop_whose_answer_was_lost_leaves_the_replica_claimed() -> None:
    world = of_three_file_systems()
    world.put("w", "red")
    upto(world, fx.CallDrop)
    world.claims.discard(("x", "host"))
    world.end(0, how="fail")
    world.settle()
    assert "x" in world.published
    world.check_quiet()


def test_nothing_is_thrown_out_for_a_put_that_would_not_fit_even_then() -> None:
    world = full_of_files()
    put = world.put("w", "red", units=64)
    world.settle()
    answer = world.answers[put]
    assert code(answer) == "CapacityExceeded" and str(64 * UNIT >> 20) in answer.text  # type: ignore[union-attr]
    assert len(world.published) == 3


def test_the_refusal_counts_what_is_free_pinned_and_fixed() -> None:
    world = World()
    for art_id in ("x", "y", "z"):
        world.put(art_id, "red")
        world.settle()
    world.published["x"].pins = 1
    put = world.put("w", "red")
    world.settle()
    answer = world.answers[put]
    assert code(answer) == "CapacityExceeded"
    for part in ("0 bytes free", "6.0 MiB", "2.0 MiB are mapped", "4.0 MiB cannot be evicted", "host_bytes_max"):
        assert part in answer.text, answer  # type: ignore[union-attr]


def test_room_is_given_in_the_order_of_asking_and_a_dead_head_does_not_stop_the_line() -> None:
    world = full_of_files()
    first, second, third = (world.put(art_id, "red") for art_id in ("a", "b", "c"))
    upto(world, fx.CheckFiles)
    world.hang_up(first)
    world.settle()
    assert isinstance(world.answers[second], PutDone) and isinstance(world.answers[third], PutDone)
    order = [art_id for art_id in world.published if art_id in ("b", "c")]
    assert order == ["b", "c"]
    world.check_quiet()


def test_a_delete_of_the_victim_under_eviction_lets_the_line_go_on() -> None:
    world = full_of_files()
    put = world.put("w", "red")
    upto(world, fx.CallDrop)
    world.delete_elsewhere("x")
    world.hear()
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    world.check_quiet()
