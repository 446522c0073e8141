"""The disk tier in the storage's core: durable puts, writing out for room and ahead of need, and disks that refuse."""

from __future__ import annotations

from tensorcast_bus.notes import MadeDurable, PutDone, PutExists
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tensorcast_services.storage.core.disk_trust import DISK_RETRY_MS
from tensorcast_services.storage.core.spilling import SPILL_MS_MAX
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.world import World


def full(*, disk_on: bool = True) -> World:
    """Three artifacts from memory fill the pool; x was attached longest ago."""
    world = World(disk_on=disk_on)
    for art_id in ("x", "y", "z"):
        world.put(art_id, "red")
        world.settle()
    return world


def text(answer: object) -> str:
    code(answer)
    return answer.text  # type: ignore[attr-defined, no-any-return]


def test_a_durable_put_is_on_disk_before_its_commit_and_answered_after_it() -> None:
    world = World(disk_on=True)
    put = world.put("x", "red", durable=True)
    upto(world, fx.CallCommit)
    call = world.pending[0]
    assert isinstance(call, fx.CallCommit) and call.tiers == ("host", "disk")
    assert world.disk["x"] == "red" and put not in world.answers and not world.published
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    assert world.core.describe("x").tiers == ("host", "disk") and world.core.describe("x").disk_bytes
    world.check_quiet()


def test_a_durable_put_that_the_disk_refuses_leaves_nothing_and_says_why() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    put = world.put("x", "red", path="/p", durable=True)
    upto(world, fx.WriteOut)
    world.end(0, how="fail")
    assert "disk is full" in text(world.answers[put])
    assert not world.published and not world.sidecars and not world.catalog
    world.check_quiet()


def test_a_durable_put_without_a_disk_is_refused_before_anything_is_moved() -> None:
    world = World()
    put = world.put("x", "red", durable=True)
    assert "storage.disk_path" in text(world.answers[put])
    world.check_quiet()


def test_a_client_that_dies_while_its_durable_put_is_written_leaves_nothing_on_disk() -> None:
    for how in ("", "fail"):
        world = World(disk_on=True)
        put = world.put("x", "red", durable=True)
        upto(world, fx.WriteOut)
        world.hang_up(put)
        world.end(0, how=how)
        assert not world.disk
        world.check_quiet()


def test_a_durable_put_past_its_deadline_names_the_disk() -> None:
    world = World(disk_on=True)
    put = world.put("x", "red", durable=True, budget_ms=400)
    upto(world, fx.WriteOut)
    world.wait(400)
    assert "writing it to disk" in text(world.answers[put])
    world.settle()
    world.check_quiet()


def test_what_is_only_visible_is_made_durable_once_for_all_who_ask() -> None:
    world = World(disk_on=True)
    world.put("x", "red")
    world.settle()
    again = world.put("x", "red", durable=True)
    world.settle()
    assert isinstance(world.answers[again], PutExists)
    first, second = world.durable("x"), world.durable("x")
    assert sum(isinstance(effect, fx.WriteOut) for effect in world.pending) == 1
    world.settle()
    assert world.answers[first] == world.answers[second] == MadeDurable("x")
    third = world.durable("x")
    assert world.answers[third] == MadeDurable("x")
    world.check_quiet()


def test_a_file_alone_is_not_durable_also_when_the_artifact_is_away() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    for art_id in ("x", "y", "z", "w"):
        world.put(art_id, "red", path="/p")
        world.settle()
    assert "x" not in world.published
    asked = world.durable("x")
    world.settle()
    assert world.answers[asked] == MadeDurable("x") and world.disk["x"] == "red"
    world.check_quiet()


def test_a_durable_wish_that_the_disk_refuses_is_told_and_the_artifact_stays() -> None:
    world = World(disk_on=True)
    world.put("x", "red")
    world.settle()
    asked = world.durable("x")
    world.end(0, how="fail")
    assert "disk is full" in text(world.answers[asked]) and "x" in world.published
    world.check_quiet()


def test_room_is_made_by_writing_out_the_oldest_and_it_comes_back_from_disk() -> None:
    world = full()
    put = world.put("w", "red")
    upto(world, fx.WriteOut)
    assert "x" in world.published, "it stays until it is on disk"
    upto(world, fx.CallDrop)
    assert "x" in world.published and "x" in world.disk, "it stays until the global store has granted the drop"
    world.settle()
    assert isinstance(world.answers[put], PutDone) and sorted(world.published) == ["w", "y", "z"]
    assert world.core.describe("x").tiers == ("disk",)
    reader = world.attach("x")
    world.settle()
    assert world.answers[reader] == "attached red"
    world.check_quiet()


def test_what_something_else_has_goes_before_anything_is_written() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    for art_id, path in (("x", ""), ("y", "/p"), ("z", "")):
        world.put(art_id, "red", path=path)
        world.settle()
    world.put("w", "red")
    world.settle()
    assert sorted(world.published) == ["w", "x", "z"] and not world.disk


def test_a_full_disk_is_named_to_who_needed_the_room_and_left_alone_for_a_while() -> None:
    world = full()
    first = world.put("w", "red")
    upto(world, fx.WriteOut)
    world.end(0, how="fail")
    world.settle()
    assert code(world.answers[first]) == "CapacityExceeded" and "the disk is full" in text(world.answers[first])
    assert sorted(world.published) == ["x", "y", "z"]
    second = world.put("w", "red")
    world.settle()
    assert "the disk takes nothing at present" in text(world.answers[second]) and not world.disk
    world.wait(DISK_RETRY_MS)
    third = world.put("w", "red")
    world.settle()
    assert isinstance(world.answers[third], PutDone)
    world.check_quiet()


def test_without_a_disk_the_refusal_says_so() -> None:
    world = full(disk_on=False)
    put = world.put("w", "red")
    world.settle()
    assert "no disk to write to" in text(world.answers[put])


def test_an_artifact_that_is_mapped_while_it_is_written_stays() -> None:
    world = full()
    put = world.put("w", "red")
    upto(world, fx.WriteOut)
    world.published["x"].pins = 1
    world.settle()
    assert isinstance(world.answers[put], PutDone) and sorted(world.published) == ["w", "x", "z"]
    world.check_quiet()


def test_readers_are_served_and_puts_wait_while_it_is_written() -> None:
    world = full()
    world.durable("x")
    reader, other = world.attach("x"), world.put("x", "blue")
    assert world.answers[reader] == "attached red" and other not in world.answers
    world.settle()
    assert isinstance(world.answers[other], PutExists)


def test_a_delete_while_it_is_written_takes_effect_at_once_and_leaves_nothing_on_disk() -> None:
    for how in ("", "fail"):
        world = full()
        asked = world.durable("x")
        world.delete_elsewhere("x")
        world.hear()
        assert "x" not in world.published
        again = world.put("x", "blue")
        assert any(isinstance(effect, fx.WriteOut) for effect in world.pending)
        upto(world, fx.WriteOut)
        world.end(0, how=how)
        world.settle()
        assert code(world.answers[asked]) == "NotFound"
        assert isinstance(world.answers[again], PutDone) and world.published["x"].digest == "blue"
        world.check_quiet()


def test_a_disk_that_hangs_costs_the_head_of_the_line_its_budget_and_no_more() -> None:
    world = full()
    put = world.put("w", "red", budget_ms=SPILL_MS_MAX + 10_000)
    upto(world, fx.WriteOut)
    silent = world.pending.pop(0)
    world.wait(SPILL_MS_MAX)
    world.settle()
    assert code(world.answers[put]) == "CapacityExceeded" and "did not end within" in text(world.answers[put])
    world.pending.append(silent)
    world.settle()
    assert "x" in world.disk and "x" in world.published
    world.check_quiet()


def test_a_head_whose_time_is_over_does_not_make_the_next_wait_for_the_disk() -> None:
    world = full()
    first = world.put("w", "red", budget_ms=500)
    upto(world, fx.WriteOut)
    silent = world.pending.pop(0)
    world.delete_elsewhere("z")
    world.hear()
    second = world.put("v", "red")
    world.wait(500)
    assert code(world.answers[first]) == "Timeout"
    world.settle()
    assert isinstance(world.answers[second], PutDone)
    world.pending.append(silent)
    world.settle()
    world.check_quiet()


def test_above_the_watermark_the_oldest_are_written_out_and_nothing_is_evicted() -> None:
    world = full()
    world.see_pool()
    world.settle()
    assert world.disk.keys() == {"x"}, "one is enough to come below the low mark by eviction alone"
    assert len(world.published) == 3 and world.core.figures()["spills"] == 1
    world.see_pool()
    assert not world.pending
    world.put("w", "red")
    assert not any(isinstance(effect, fx.WriteOut) for effect in world.pending)
    world.settle()
    assert sorted(world.published) == ["w", "y", "z"]
    world.check_quiet()


def test_what_is_mapped_or_lies_in_files_is_not_written_ahead_of_need() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    for art_id, path in (("x", ""), ("y", "/p"), ("z", "")):
        world.put(art_id, "red", path=path)
        world.settle()
    world.see_pool()
    assert not world.pending, "the file gives back enough"
    world.published["y"].pins = world.published["x"].pins = 1
    world.see_pool()
    world.settle()
    assert world.disk.keys() == {"z"}
    world.check_quiet()


def test_a_flipped_bit_on_disk_is_an_error_and_the_copy_is_no_replica_any_more() -> None:
    world = full()
    world.put("w", "red")
    world.settle()
    world.disk["x"] = "flipped"
    readers = [world.attach("x"), world.attach("x")]
    world.settle()
    assert {code(world.answers[reader]) for reader in readers} == {"BadCheckpoint"}
    assert "x" not in world.disk and ("x", "disk") not in world.claims
    world.check_quiet()


def test_a_lost_disk_copy_is_replaced_by_the_file_that_is_left() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    for art_id in ("x", "y", "z", "w"):
        world.put(art_id, "red", path="/p", durable=art_id == "x")
        world.settle()
    assert world.core.describe("x").tiers == ("disk", "file")
    world.disk["x"] = "flipped"
    reader = world.attach("x")
    world.settle()
    assert world.answers[reader] == "attached red"
    assert world.core.describe("x").tiers == ("host", "file")
    world.check_quiet()


def test_what_an_earlier_incarnation_wrote_out_is_loaded_from_disk() -> None:
    world = World(disk_on=True, catalog={"x": ("red", 4)}, revision=9)
    world.known_commits.add(("x", "red"))
    world.disk["x"] = world.disk_digests["x"] = "red"
    world.step(ev.Restored("x", "red", 1, 1, (), disk_bytes=7))
    assert world.core.describe("x").state == "away" and world.core.describe("x").tiers == ("disk",)
    reader = world.attach("x")
    assert isinstance(world.pending[0], fx.CallResolve)
    world.settle()
    assert world.answers[reader] == "attached red"
    world.check_quiet()


def test_files_and_disk_of_one_id_are_restored_together_in_either_order() -> None:
    file = ev.Restored("x", "red", 1, 1, (("/p", 0, 0, 0, 0),))
    disk = ev.Restored("x", "red", 1, 1, (), disk_bytes=7)
    both = ev.Restored("x", "red", 1, 1, (("/p", 0, 0, 0, 0),), disk_bytes=7)
    for events in ((file, disk), (disk, file), (both,)):
        world = World(disk_on=True)
        for event in events:
            world.step(event)
        assert world.core.describe("x").tiers == ("disk", "file")
