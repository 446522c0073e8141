"""An attach by an alias: one hop, and asked again when the alias was moved on in the middle of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorcast.deadline import Deadline
from tensorcast.errors import LocalProtocolError, NotFound
from tensorcast.records_local import About, Attached
from tensorcast.redirects import attach_by_name
from tensorcast_bus.notes import Redirect
from tests.integration.sdk.scripted import Place, scripted


@pytest.fixture(autouse=True)
def _default_cluster() -> None:
    """No cluster runs for these tests: the storage that they speak with is their own."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with scripted(tmp_path) as made:
        yield made


def attached(place: Place, name: str) -> Attached | About:
    return attach_by_name(place.link, name, deadline=Deadline(10_000, f"attach of {name!r}"))


def test_an_alias_leads_to_the_id_that_it_points_at(place: Place) -> None:
    place.storage.publish("policy@5")
    place.storage.redirects["latest"] = [Redirect("policy@5", 7)]
    assert attached(place, "latest").art_id == "policy@5"
    assert attached(place, "policy@5").art_id == "policy@5"
    assert place.storage.heard == ["latest"]


def test_an_alias_that_was_moved_while_its_old_target_went_is_asked_again(place: Place) -> None:
    place.storage.publish("policy@6")
    place.storage.redirects["latest"] = [Redirect("policy@5", 7), Redirect("policy@6", 9)]
    assert attached(place, "latest").art_id == "policy@6"
    assert place.storage.heard == ["latest", "policy@5", "latest"]


def test_an_alias_whose_target_is_gone_is_told_and_not_asked_for_ever(place: Place) -> None:
    place.storage.redirects["latest"] = [Redirect("policy@5", 7)]
    with pytest.raises(NotFound, match="policy@5"):
        attached(place, "latest")
    assert place.storage.heard == ["latest", "policy@5", "latest"]


def test_an_alias_that_was_set_again_to_a_target_that_is_put_again_is_followed(place: Place) -> None:
    place.storage.redirects["latest"] = [Redirect("policy@5", 7), Redirect("policy@5", 8), Redirect("policy@6", 9)]
    place.storage.publish("policy@6")
    assert attached(place, "latest").art_id == "policy@6"


def test_a_second_hop_is_refused(place: Place) -> None:
    place.storage.redirects |= {"a": [Redirect("b", 1)], "b": [Redirect("c", 2)]}
    with pytest.raises(LocalProtocolError, match="'a' leads to 'b', which leads on to 'c'"):
        attached(place, "a")
