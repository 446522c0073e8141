"""Deletes in the storage's core: against puts, loads, late events, and a catalog that never knew the id."""

from __future__ import annotations

from tensorcast_bus.errors import ErrorRecord
from tensorcast_bus.notes import Deleted, PutDone
from tensorcast_services.storage.core import effects as fx
from tensorcast_services.storage.core import events as ev
from tests.unit.services.storage.test_puts import code, upto
from tests.unit.services.storage.world import World


def test_a_delete_withdraws_at_once_and_removes_the_sidecar() -> None:
    world = World(files={"/p": "red"})
    world.put("x", "red", path="/p")
    world.settle()
    asked = world.delete("x")
    world.end(0)
    assert world.answers[asked] == Deleted("x")
    assert not world.published and not world.sidecars and not world.segments


def test_a_delete_takes_effect_here_even_when_its_asker_hung_up() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    asked = world.delete("x")
    world.hang_up(asked)
    world.settle()
    assert not world.published
    world.check_quiet()


def test_delete_then_put_again_then_the_late_event_keeps_the_new_artifact() -> None:
    world = World()
    for _ in range(2):
        put = world.put("x", "red")
        world.settle()
        assert isinstance(world.answers[put], PutDone)
        asked = world.delete("x")
        world.settle()
        assert world.answers[asked] == Deleted("x")
    put = world.put("x", "blue")
    world.settle()
    while world.events:
        world.hear()
    assert world.published["x"].digest == "blue" and isinstance(world.answers[put], PutDone)
    world.check_quiet()


def test_not_found_does_not_take_what_was_committed_while_it_was_on_its_way() -> None:
    world = World()
    asked = world.delete("x")
    put = world.put("x", "red")
    upto(world, fx.CallDelete)
    delete = world.pending.pop(0)
    world.settle()
    assert isinstance(world.answers[put], PutDone)
    assert isinstance(delete, fx.CallDelete)
    world.step(ev.DeleteAnswered(delete.ticket, trouble=ErrorRecord("NotFound", "no such id")))
    assert code(world.answers[asked]) == "NotFound" and "x" in world.published


def test_an_id_that_the_catalog_does_not_know_is_let_go_of() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    world.catalog.clear()
    world.claims.clear()
    asked = world.delete("x")
    world.settle()
    assert code(world.answers[asked]) == "NotFound" and not world.published
    world.check_quiet()


def test_a_report_that_is_refused_drops_only_the_holding_it_spoke_of() -> None:
    world = World()
    world.put("x", "red")
    world.settle()
    claimed = tuple((claim[0], claim[1]) for claim in world.core.claims())
    world.delete("x")
    world.settle()
    world.put("x", "blue")
    world.settle()
    world.step(ev.ReportEnded(claimed, ("x",)))
    assert world.published["x"].digest == "blue"
    world.step(ev.ReportEnded(tuple((claim[0], claim[1]) for claim in world.core.claims()), ("x",)))
    assert not world.published


def test_a_delete_that_nobody_answers_ends_by_its_deadline() -> None:
    world = World()
    asked = world.delete("x", budget_ms=200)
    world.wait(200)
    assert code(world.answers[asked]) == "Timeout"
