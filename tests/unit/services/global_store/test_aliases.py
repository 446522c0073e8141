"""Movable names: setting, comparing, following, and the one namespace that they share with ids."""

from __future__ import annotations

import pytest

from tensorcast_bus.codec import encode_body
from tensorcast_bus.errors import AlreadyExists, CapacityExceeded, Conflict, Invalid, NotFound
from tensorcast_bus.ids import ART_ID_BYTES_MAX, subject_token
from tensorcast_bus.limits import MESSAGE_BYTES_MAX
from tensorcast_bus.messages import (
    AliasPage,
    AliasRow,
    Committed,
    Delete,
    DeleteAlias,
    DeletedRow,
    Expectation,
    GetAlias,
    ListAliases,
    Reported,
    Resolve,
    Resolved,
    SetAlias,
)
from tensorcast_services.effect import Announce, Origin
from tensorcast_services.global_store.core import aliases as aliases_module
from tests.unit.services.global_store.cases import Desk, absent, as_set, commit, pointing_at, report, set_to


@pytest.fixture
def desk() -> Desk:
    """With two artifacts and nothing told yet."""
    desk = Desk()
    for art_id in ("m@1", "m@2"):
        desk.ask(commit(art_id), Committed)
    desk.told()
    return desk


def get(desk: Desk, name: str = "m@latest") -> AliasRow:
    return desk.ask(GetAlias(name), AliasRow)


def test_an_alias_is_set_moved_read_and_removed(desk: Desk) -> None:
    first = desk.ask(set_to("m@1"), AliasRow)
    assert first == AliasRow("m@latest", "m@1", 3, desk.now_ms) == get(desk)
    desk.tick(after_ms=10)
    second = desk.ask(set_to("m@2"), AliasRow)
    assert second == AliasRow("m@latest", "m@2", 4, desk.now_ms) == get(desk)
    assert desk.ask(DeleteAlias("m@latest"), AliasRow) == second
    for ask in (GetAlias("m@latest"), DeleteAlias("m@latest")):
        with pytest.raises(NotFound, match="no alias 'm@latest'"):
            desk.ask(ask, AliasRow)
    assert not desk.saved().aliases


def test_resolve_follows_an_alias_and_says_that_it_did(desk: Desk) -> None:
    row = desk.ask(set_to("m@2"), AliasRow)
    found = desk.ask(Resolve("m@latest"), Resolved)
    assert (found.artifact.art_id, found.alias) == ("m@2", row)
    assert [r.process for r in found.replicas] == ["storage-a"]
    assert desk.ask(Resolve("m@2"), Resolved).alias is None


def test_changes_are_told_under_the_alias_name_in_the_one_sequence(desk: Desk) -> None:
    origin = Origin(1, "test", "", 5_000, "")
    (told,) = [e for e in desk.core.step(set_to("m@1"), origin, desk.now_ms) if isinstance(e, Announce)]
    assert told.subject.endswith(subject_token("m@latest"))
    desk.ask(set_to("m@2"), AliasRow)
    desk.ask(DeleteAlias("m@latest"), AliasRow)
    set_again, removed = desk.events
    assert (set_again.kind, set_again.art_id, set_again.target) == ("alias", "m@latest", "m@2")
    assert (removed.kind, removed.art_id, removed.target) == ("unalias", "m@latest", "")
    assert removed.sequence == set_again.sequence + 1
    assert removed.revision == set_again.revision + 1


def test_a_change_that_expects_something_else_is_refused_with_what_is_there(desk: Desk) -> None:
    for hopeless in (pointing_at("m@1"), Expectation("revision", "", 3)):
        with pytest.raises(Conflict, match="does not exist") as refused:
            desk.ask(set_to("m@1", expect=hopeless), AliasRow)
        assert (refused.value.context["art_id"], refused.value.context["revision"]) == ("", 0)
    row = desk.ask(set_to("m@1", expect=absent()), AliasRow)
    for wrong in (absent(), pointing_at("m@2"), Expectation("revision", "", row.revision + 1)):
        for ask in (set_to("m@2", expect=wrong), DeleteAlias("m@latest", wrong)):
            with pytest.raises(Conflict, match=r"names 'm@1' as of revision 3") as refused:
                desk.ask(ask, AliasRow)
            assert refused.value.context == {
                "name": "m@latest",
                "art_id": "m@1",
                "revision": row.revision,
                "set_ms": row.set_ms,
            }
    assert get(desk) == row
    moved = desk.ask(set_to("m@2", expect=pointing_at("m@1")), AliasRow)
    desk.ask(DeleteAlias("m@latest", as_set(moved)), AliasRow)


def test_a_compare_by_revision_is_not_fooled_by_a_name_that_came_back(desk: Desk) -> None:
    seen = desk.ask(set_to("m@1"), AliasRow)
    desk.ask(set_to("m@2"), AliasRow)
    now = desk.ask(set_to("m@1"), AliasRow)
    with pytest.raises(Conflict):
        desk.ask(set_to("m@2", expect=as_set(seen)), AliasRow)
    assert get(desk) == now
    assert desk.ask(set_to("m@2", expect=as_set(now)), AliasRow).art_id == "m@2"


def test_a_removed_alias_leaves_its_revision_behind_also_over_a_restart(desk: Desk) -> None:
    seen = desk.ask(set_to("m@1"), AliasRow)
    desk.ask(DeleteAlias("m@latest"), AliasRow)
    desk.restart()
    now = desk.ask(set_to("m@1"), AliasRow)
    assert now.revision > seen.revision + 1  # the removal has one of its own
    with pytest.raises(Conflict):
        desk.ask(set_to("m@2", expect=as_set(seen)), AliasRow)


def test_setting_an_alias_to_what_it_names_already_is_a_new_setting(desk: Desk) -> None:
    first = desk.ask(set_to("m@1"), AliasRow)
    assert desk.ask(set_to("m@1"), AliasRow).revision > first.revision


def test_ids_and_aliases_share_one_namespace(desk: Desk) -> None:
    with pytest.raises(Conflict, match="'m@2' is an artifact's id"):
        desk.ask(set_to("m@1", "m@2"), AliasRow)
    with pytest.raises(Conflict, match="'m@1' is an artifact's id"):
        desk.ask(set_to("m@1", "m@1"), AliasRow)
    desk.ask(set_to("m@1"), AliasRow)
    with pytest.raises(AlreadyExists, match="'m@latest' is an alias of 'm@1'") as refused:
        desk.ask(commit("m@latest"), Committed)
    assert refused.value.context["target"] == "m@1"
    kept = [("m@1", "aa", "host"), ("m@2", "aa", "host")]
    assert desk.ask(report(*kept, ("m@latest", "aa", "host")), Reported).refused == ("m@latest",)
    assert desk.ask(Resolve("m@latest"), Resolved).artifact.art_id == "m@1"
    desk.ask(DeleteAlias("m@latest"), AliasRow)
    assert desk.ask(commit("m@latest"), Committed).outcome == "stored"


def test_an_alias_names_an_artifact_and_nothing_else(desk: Desk) -> None:
    with pytest.raises(NotFound, match="no artifact 'm@3' that 'm@latest' could name: put it first"):
        desk.ask(set_to("m@3"), AliasRow)
    desk.ask(set_to("m@1"), AliasRow)
    with pytest.raises(NotFound, match="an alias itself; point at 'm@1'"):
        desk.ask(set_to("m@latest", "other"), AliasRow)
    with pytest.raises(NotFound, match="could name"):
        desk.ask(set_to("new", "new"), AliasRow)
    with pytest.raises(NotFound, match="it is an artifact's id"):
        get(desk, "m@1")


def test_an_alias_outlives_its_artifact_and_points_into_the_void(desk: Desk) -> None:
    row = desk.ask(set_to("m@1"), AliasRow)
    desk.ask(Delete("m@1"), DeletedRow)
    with pytest.raises(NotFound) as gone:
        desk.ask(Resolve("m@latest"), Resolved)
    assert "'m@latest'" in gone.value.text
    assert "'m@1'" in gone.value.text
    assert gone.value.context == {"art_id": "m@1", "alias": "m@latest"}
    assert get(desk) == row
    desk.ask(commit("m@1", "bb"), Committed)
    assert desk.ask(Resolve("m@latest"), Resolved).artifact.digest == "bb"


def test_delete_takes_no_alias_for_an_artifact(desk: Desk) -> None:
    desk.ask(set_to("m@1"), AliasRow)
    with pytest.raises(NotFound, match="is an alias of 'm@1' and no artifact: remove the name with delete_alias"):
        desk.ask(Delete("m@latest"), DeletedRow)
    assert desk.ask(Resolve("m@latest"), Resolved).artifact.art_id == "m@1"


def test_a_repeated_change_takes_effect_once_also_after_a_restart(desk: Desk) -> None:
    first = desk.ask(set_to("m@1"), AliasRow, idem="set")
    removed = desk.ask(DeleteAlias("m@latest"), AliasRow, idem="remove")
    assert removed == first
    later = desk.ask(set_to("m@2"), AliasRow)
    desk.restart()
    assert desk.ask(set_to("m@1"), AliasRow, idem="set") == first
    assert desk.ask(DeleteAlias("m@latest"), AliasRow, idem="remove") == first
    assert get(desk) == later
    with pytest.raises(Conflict, match="another command"):
        desk.ask(set_to("m@2"), AliasRow, idem="set")


def test_aliases_come_back_after_a_restart(desk: Desk) -> None:
    row = desk.ask(set_to("m@1"), AliasRow)
    desk.restart()
    assert get(desk) == row
    assert desk.ask(commit("m@3"), Committed).revision == row.revision + 1


def test_there_are_no_more_aliases_than_the_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases_module, "ALIASES_MAX", 2)
    for name in ("a", "b"):
        desk.ask(set_to("m@1", name), AliasRow)
    with pytest.raises(CapacityExceeded, match="holds 2 aliases, its limit") as full:
        desk.ask(set_to("m@1", "c"), AliasRow)
    assert full.value.context["aliases_max"] == 2
    assert desk.ask(set_to("m@2", "a"), AliasRow).art_id == "m@2"


def test_the_list_of_aliases_is_ordered_and_goes_on_where_it_ended(desk: Desk) -> None:
    names = sorted("é" * (ART_ID_BYTES_MAX // 2 - 4) + f"{i:08}" for i in range(1_200))
    for name in [*reversed(names), "a", "z"]:
        desk.ask(set_to("m@1", name), AliasRow)
    got: list[str] = []
    more = True
    while more:
        page = desk.ask(ListAliases("é", got[-1] if got else ""), AliasPage)
        assert len(encode_body(page)) < MESSAGE_BYTES_MAX - 1024
        assert page.rows
        got += [row.name for row in page.rows]
        more = page.more
    assert got == names
    assert [row.name for row in desk.ask(ListAliases("", "zz"), AliasPage).rows] == names[:500]


@pytest.mark.parametrize(
    "bad",
    [
        SetAlias("no spaces", "m@1"),
        SetAlias("m@latest", "*"),
        SetAlias("m@latest", "m@1", Expectation("maybe")),
        SetAlias("m@latest", "m@1", Expectation("revision", "", -1)),
        SetAlias("m@latest", "m@1", Expectation("id", "a b")),
        DeleteAlias("m@latest", Expectation("maybe")),
        DeleteAlias(""),
        GetAlias(""),
    ],
)
def test_a_request_out_of_bounds_is_refused_and_changes_nothing(desk: Desk, bad: SetAlias) -> None:
    before = dict(desk.rows)
    with pytest.raises(Invalid):
        desk.ask(bad, AliasRow)
    assert desk.rows == before
    assert desk.told() == []
