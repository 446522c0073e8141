"""What is refused of a put, a registration and an alias before anybody is asked."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from tensorcast.catalog import Catalog
from tensorcast.deadline import Deadline
from tensorcast.errors import BadCheckpoint, Invalid
from tensorcast.gateways import Gateways
from tensorcast.leases.registering import register
from tensorcast.local import StorageLink
from tensorcast.places import Places
from tensorcast.puts import Puts
from tensorcast.records import UNSET, AliasRecord
from tensorcast.settings import read_settings


def nowhere() -> str:
    raise AssertionError("the storage was asked")


LINK = StorageLink(nowhere)
NOBODY = Catalog(Gateways(Places(read_settings({}), cluster=None, url="nats://127.0.0.1:1", node=None)))
STATE = {"a": {"x": numpy.zeros(2)}, "b": numpy.ones(3)}


def deadline() -> Deadline:
    return Deadline(10_000, "put of 'v@2'")


@pytest.mark.parametrize("words", [{"base": "v@1"}, {"base": "v@1", "changed": ["a"]}, {"changed": ["a"]}])
def test_a_file_has_no_base(tmp_path: Path, words: dict[str, object]) -> None:
    given = {"base": None, "changed": None} | words
    with pytest.raises(Invalid, match="for tensors in memory"):
        Puts(LINK).put(tmp_path / "x", "v@2", durable=False, deadline=deadline(), **given)  # type: ignore[arg-type]


def test_what_changed_is_said_of_a_named_base(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="name it with base="):
        Puts(LINK).put(STATE, "v@2", durable=False, base=None, changed=["b"], deadline=deadline())


@pytest.mark.parametrize("changed", ["b", b"b", 3])
def test_names_of_what_changed_come_as_a_list(changed: object) -> None:
    with pytest.raises(Invalid, match="give a list of names"):
        Puts(LINK).put(
            STATE,
            "v@2",
            durable=False,
            base="v@1",
            changed=changed,  # type: ignore[arg-type]
            deadline=deadline(),
        )


def test_a_misspelled_name_of_what_changed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"1 tensors that were not given: x;"):
        Puts(LINK).put(STATE, "v@2", durable=False, base="v@1", changed=["a.x", "x"], deadline=deadline())


def test_a_base_that_is_no_id_is_refused() -> None:
    with pytest.raises(Invalid, match="has spaces"):
        Puts(LINK).put(STATE, "v@2", durable=False, base="has spaces", changed=None, deadline=deadline())


def test_a_tensor_that_is_not_in_host_memory_cannot_be_registered() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadCheckpoint, match=r"'inner\.w' is on meta.*copy on the CPU"):
        register(LINK, {"inner": {"w": torch.empty(3, device="meta")}}, "v", ttl_s=60, deadline=deadline())


@pytest.mark.parametrize("expect", [7, b"id", ["v@1"], True])
def test_an_expectation_that_is_none_is_refused(expect: object) -> None:
    with pytest.raises(Invalid, match="expect is"):
        NOBODY.set_alias("latest", "v@1", expect=expect, deadline=deadline())  # type: ignore[arg-type]


def test_a_record_of_another_alias_is_a_mix_up() -> None:
    other = AliasRecord("stable", "v@1", 3, 0)
    for call in (
        lambda: NOBODY.set_alias("latest", "v@1", expect=other, deadline=deadline()),
        lambda: NOBODY.delete_alias("latest", expect=other, deadline=deadline()),
        lambda: NOBODY.wait_alias("latest", after=other, deadline=deadline()),
    ):
        with pytest.raises(Invalid, match=r"'stable'.*'latest'"):
            call()


def test_names_and_targets_are_checked_as_ids() -> None:
    with pytest.raises(Invalid, match="bad name"):
        NOBODY.set_alias("bad name", "v@1", expect=UNSET, deadline=deadline())
    with pytest.raises(Invalid, match="bad id"):
        NOBODY.set_alias("latest", "bad id", expect=UNSET, deadline=deadline())
    with pytest.raises(Invalid, match="after is"):
        NOBODY.wait_alias("latest", after="v@1", deadline=deadline())  # type: ignore[arg-type]
