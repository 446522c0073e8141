"""Residents: who lies where, which version is the newest, and who shares a segment."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast_services.storage.residents import Resident, Residents


def resident(art_id: str, *places: tuple[int, str]) -> Resident:
    return Resident(art_id, "d" * 32, 1000, 50, tuple(s for s, _ in places), tuple(k for _, k in places))


def users(residents: Residents, key: str) -> dict[int, list[str]]:
    return {segment: [user.art_id for user in using] for segment, using in residents.lying(key)}


def test_a_shared_segment_is_known_until_its_last_user_is_gone() -> None:
    residents = Residents()
    residents.add(resident("m@1", (7, "k")))
    residents.add(resident("m@2", (8, "new"), (7, "k")))
    assert users(residents, "k") == {7: ["m@1", "m@2"]} and residents.segment_of("k") == 7
    gone = residents.remove("m@1")
    assert gone is not None and gone.keys == ("k",)
    assert users(residents, "k") == {7: ["m@2"]} and residents.users("k") == ("m@2",)
    residents.remove("m@2")
    assert residents.segment_of("k") is None and users(residents, "k") == {} and residents.users("k") == ()
    assert residents.remove("m@2") is None and len(residents) == 0


def test_the_newest_of_a_name_is_the_last_that_was_published_and_is_still_there() -> None:
    residents = Residents()
    for art_id in ("m@1", "m@2", "m@3", "n@9", "m"):
        residents.add(resident(art_id, (int(art_id[-1], 36), art_id)))
    residents.remove("m")
    assert [found.art_id for found in (residents.base_for("m@4"), residents.base_for("n@1")) if found] == ["m@3", "n@9"]
    residents.remove("m@3")
    found = residents.base_for("m@4")
    assert found is not None and found.art_id == "m@2"
    assert residents.base_for("other@1") is None


def test_a_named_base_is_that_one_or_none() -> None:
    residents = Residents()
    residents.add(resident("m@1", (1, "k")))
    found = residents.base_for("n@1", "m@1")
    assert found is not None and found.art_id == "m@1"
    assert residents.base_for("m@2", "m@3") is None


def test_a_republished_artifact_moves_and_stays_as_new_as_it_was() -> None:
    residents = Residents()
    residents.add(resident("m@1", (1, "k"), (2, "l")))
    residents.add(resident("m@2", (1, "k")))
    residents.replace(resident("m@1", (9, "z"), (2, "l")))
    assert users(residents, "k") == {1: ["m@2"]} and users(residents, "z") == {9: ["m@1"]}
    assert users(residents, "l") == {2: ["m@1"]}
    found = residents.base_for("m@3")
    assert found is not None and found.art_id == "m@2"
    with pytest.raises(KeyError):
        residents.replace(resident("m@9", (1, "k")))


def test_two_segments_of_one_key_keep_their_users_apart() -> None:
    residents = Residents()
    residents.add(resident("m@1", (1, "k")))
    residents.add(resident("m@2", (5, "k")))
    assert users(residents, "k") == {1: ["m@1"], 5: ["m@2"]} and set(residents.users("k")) == {"m@1", "m@2"}
    residents.remove("m@1")
    assert residents.segment_of("k") == 5


def test_segments_without_a_key_are_nobodys_to_borrow() -> None:
    residents = Residents()
    residents.add(resident("old", (1, ""), (2, "")))
    assert residents.segment_of("") is None and residents.users("") == ()
    assert residents.remove("old") is not None


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    residents = Residents()
    residents.add(resident("m@1", (1, "k")))
    with pytest.raises(ValueError, match="'m@1' is published already"):
        residents.add(resident("m@1", (2, "l")))
    with pytest.raises(ValueError, match="zip"):
        residents.add(msgspec.structs.replace(resident("m@2", (3, "x")), keys=("x", "y")))
    assert residents.segment_of("l") is None and residents.find("m@2") is None and len(residents) == 1
