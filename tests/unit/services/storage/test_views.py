"""Views, manifests only, redirects and borrowed segments in the storage's core."""

from __future__ import annotations

import pytest

from tensorcast_bus.notes import PutBaseGone, PutDone, Redirect
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tests.unit.services.storage.pool_model import UNIT, Wish
from tests.unit.services.storage.test_leases import leased
from tests.unit.services.storage.test_loads import world_with_one_on_file
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.test_spilling import text
from tests.unit.services.storage.world import World


def emptied() -> World:
    """x is away on its file, and there is room."""
    world = world_with_one_on_file()
    for art_id in ("y", "z"):
        world.delete(art_id)
        world.settle()
    return world


def test_views_of_what_is_away_are_read_side_by_side_and_published_nowhere() -> None:
    world = emptied()
    readers = [world.attach("x", how="view") for _ in range(2)]
    assert sum(isinstance(effect, fx.OpenView) for effect in world.pending) == 2
    world.settle()
    assert [world.answers[reader] for reader in readers] == ["view red"] * 2
    assert "x" not in world.published and world.core.describe("x").state == "away"
    assert world.core.figures()["views"] == 2 and world.core.figures()["loads"] == 0
    world.check_quiet()


def test_a_view_of_what_is_loading_waits_for_the_whole() -> None:
    world = emptied()
    world.attach("x")
    upto(world, fx.StartLoad)
    viewer = world.attach("x", how="view")
    world.settle()
    assert world.answers[viewer] == "attached red"


def test_a_view_and_a_load_do_not_wait_for_one_another() -> None:
    world = emptied()
    viewer = world.attach("x", how="view")
    reader = world.attach("x")
    world.settle()
    assert world.answers[viewer] == "view red" and world.answers[reader] == "attached red"
    world.check_quiet()


def test_a_view_makes_room_like_anybody_else_and_is_refused_like_anybody_else() -> None:
    world = world_with_one_on_file()
    viewer = world.attach("x", how="view")
    world.settle()
    assert world.answers[viewer] == "view red" and len(world.published) == 2
    world.put("v", "red")
    world.settle()
    for here in world.published.values():
        here.pins = 1
    refused = world.attach("x", how="view")
    world.settle()
    assert code(world.answers[refused]) == "CapacityExceeded" and "'x'" in text(world.answers[refused])
    world.check_quiet()


@pytest.mark.parametrize("kind", [fx.OpenView, fx.StartLoad, fx.Seal])
@pytest.mark.parametrize("how", ["hang up", "time", "deleted", "filling"])
def test_a_view_given_up_at_any_point_frees_everything(kind: type, how: str) -> None:
    world = emptied()
    viewer = world.attach("x", how="view", budget_ms=300)
    upto(world, kind)
    match how:
        case "hang up":
            world.hang_up(viewer)
        case "time":
            world.wait(300)
            assert code(world.answers[viewer]) == "Timeout"
        case "deleted":
            world.delete_elsewhere("x")
            while world.events:
                world.hear()
            assert code(world.answers[viewer]) == "NotFound"
        case _:
            world.end(0)
            world.hang_up(viewer) if viewer not in world.answers else None
    world.settle()
    world.check_quiet()


def test_a_lease_that_ends_meanwhile_ends_its_views() -> None:
    for kind in (fx.OpenView, fx.StartLoad, fx.Seal):
        world = leased()
        viewer = world.attach("x", how="parts")
        upto(world, kind)
        world.release("x", 1)
        assert code(world.answers[viewer]) == "LeaseLost"
        world.settle()
        world.check_quiet()


def test_a_view_that_finds_the_owners_memory_changed_ends_the_lease() -> None:
    world = leased()
    world.kept[1].content = "blue"
    viewer = world.attach("x", how="parts")
    world.settle()
    assert code(world.answers[viewer]) == "LeaseLost" and world.core.describe("x").state == "unknown"
    world.check_quiet()


def test_a_view_of_pending_files_leaves_their_digest_pending() -> None:
    world = leased(digest="pending:1")
    viewer = world.attach("x", how="parts")
    world.settle()
    assert world.answers[viewer] == "view red" and world.core.describe("x").digest == "pending:1"
    world.check_quiet()


def test_slices_that_no_digest_covers_bring_the_whole_into_the_pool() -> None:
    world = leased()
    viewer = world.attach("x", how="view")
    world.settle()
    assert world.answers[viewer] == "attached red" and world.core.describe("x").state == "resident"
    world.check_quiet()


def test_a_view_that_finds_the_file_changed_tells_its_reader_and_the_artifact_is_lost() -> None:
    world = emptied()
    world.files["/p"] = "blue"
    viewer = world.attach("x", how="view")
    world.settle()
    assert code(world.answers[viewer]) == "BadCheckpoint" and ("x", "file") not in world.claims
    world.check_quiet()


def test_a_view_starts_over_from_the_file_when_the_disk_copy_is_bad() -> None:
    world = World(disk_on=True, files={"/p": "red"})
    for art_id in ("x", "y", "z", "w"):
        world.put(art_id, "red", path="/p", durable=art_id == "x")
        world.settle()
    world.disk["x"] = "flipped"
    viewer = world.attach("x", how="view")
    world.settle()
    assert world.answers[viewer] == "view red" and world.core.describe("x").tiers == ("file",)
    world.check_quiet()


def test_the_manifest_of_what_is_away_is_answered_without_loading() -> None:
    world = emptied()
    asked = world.attach("x", how="manifest")
    assert world.answers[asked] == "manifest of x red" and not world.pending
    world.check_quiet()


def test_the_manifest_of_what_an_earlier_incarnation_left_waits_for_the_catalog() -> None:
    old = emptied()
    world = World(files={"/p": "red"}, sidecars={"x": old.sidecars["x"]})
    world.restore("x")
    asked = world.attach("x", how="manifest")
    world.settle()
    assert code(world.answers[asked]) == "NotFound"


def test_an_alias_is_answered_by_a_redirect_and_no_put_takes_its_name() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    world.aliases["latest"] = "x"
    for how in ("whole", "manifest", "view"):
        reader = world.attach("latest", how=how)
        world.settle()
        assert world.answers[reader] == Redirect("x", 5)
    put, wish = world.put("latest", "red"), world.durable("latest")
    world.settle()
    assert code(world.answers[put]) == "AlreadyExists" and "alias of 'x'" in text(world.answers[put])
    assert code(world.answers[wish]) == "Conflict"
    world.check_quiet()


def test_an_alias_set_on_the_name_of_an_ended_lease_is_followed() -> None:
    world = leased()
    world.release("x", 1)
    world.put("y", "red")
    world.settle()
    world.aliases["x"] = "y"
    reader = world.attach("x")
    world.settle()
    assert world.answers[reader] == Redirect("y", 5)


@pytest.mark.parametrize("under_lease", [False, True])
def test_who_reads_through_an_alias_of_what_is_gone_hears_what_it_points_at(under_lease: bool) -> None:
    """Also where the alias has the name that a lease ended under here."""
    world = leased()
    world.release("x", 1)
    world.put("y", "red")
    world.settle()
    name = "x" if under_lease else "latest"
    world.aliases[name] = "y"
    world.delete("y")
    world.settle()
    reader, wish = world.attach(name), world.durable(name)
    world.settle()
    for asked in (reader, wish):
        assert code(world.answers[asked]) == "NotFound"
        assert f"alias {name!r} points at 'y'" in text(world.answers[asked])
    world.check_quiet()


def test_a_version_borrows_its_bases_segments_and_outlives_it() -> None:
    world = World()
    world.put("x@1", "red")
    world.settle()
    put = world.put("x@2", "blue", base="x@1")
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    assert world.data_of("x@1")[0] in world.data_of("x@2")
    world.delete("x@1")
    world.settle()
    assert len(world.segments) == 2
    world.check_quiet()


@pytest.mark.parametrize("kind", [fx.Seal, fx.CallCommit])
def test_a_version_that_fails_gives_back_what_it_borrowed(kind: type) -> None:
    world = World()
    world.put("x@1", "red")
    world.settle()
    put = world.put("x@2", "blue", base="x@1")
    upto(world, kind)
    world.put_elsewhere("x@2", "green")
    world.end(0, how="fail" if kind is fx.Seal else "")
    world.settle()
    assert put in world.answers and "x@2" not in world.published
    world.check_quiet()


def test_a_version_whose_fill_is_given_up_gives_back_what_it_borrowed() -> None:
    for how in ("hang up", "fail"):
        world = World()
        world.put("x@1", "red")
        world.settle()
        put = world.put("x@2", "blue", base="x@1")
        upto(world, fx.AcceptPut)
        world.end(0)
        if how == "hang up":
            world.hang_up(put)
        world.end_fill(put, how=how)
        world.settle()
        world.check_quiet()


def test_a_version_whose_base_is_gone_is_told_so() -> None:
    world = World()
    put = world.put("x@2", "blue", base="x@1")
    world.settle()
    assert world.answers[put] == PutBaseGone("x@1")
    world.check_quiet()


def test_a_put_from_the_pool_runs_under_a_ticket_of_its_own() -> None:
    world = World()
    ticket = world.core.new_ticket()
    request = world.requests = world.requests + 1
    world.asked[request], world.dues[request] = "put", world.now_ms + 400
    world.wishes[request] = world.wishes[ticket] = Wish("x", "red")
    world.step(ev.PutAsked(request, "x", 400, UNIT, ticket=ticket))
    upto(world, fx.CallCommit)
    call = world.pending[0]
    assert isinstance(call, fx.CallCommit) and call.ticket == call.request == ticket
    world.settle()
    assert isinstance(world.answers[request], PutDone)
    world.check_quiet()
