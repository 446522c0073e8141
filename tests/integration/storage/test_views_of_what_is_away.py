"""Views through the native client: parts of what is not in the pool, and views that become artifacts."""

from __future__ import annotations

import os

import msgspec
import pytest

from tensorcast_bus.errors import BadCheckpoint, Conflict, NotFound, SliceMismatch, Unavailable
from tensorcast_bus.manifest import decode_manifest
from tensorcast_bus.notes import AboutManifest, AskCommitView, Box, PutAnswer, PutDone, ViewWish
from tensorcast_native import Client, LocalStatus
from tests.integration.storage.house import (
    BUDGET_MS,
    House,
    attach,
    content,
    delete,
    describe,
    put_answer,
    put_file,
    put_memory,
    read,
    stats,
)
from tests.integration.storage.test_storage import MIB, a_file


def away(house: House) -> Client:
    house.kill("storage-a")
    house.start("storage", node="a")
    return house.client()


def view(client: Client, art_id: str, digest: str, *boxes: Box, whole: bool = False) -> tuple[bool, dict[str, bytes]]:
    """(whether it is a dense view, the bytes by name)."""
    attached = attach(client, art_id, body=msgspec.msgpack.encode(ViewWish(digest, boxes, whole)))
    found = content(attached)
    dense = decode_manifest(attached.manifest).view
    assert attached.release() == 0
    return dense, found


def part(name: str, source: str, start: int, length: int) -> Box:
    return Box(name, source, (start,), (length,))


def commit_view(client: Client, art_id: str, base: str, digest: str, *boxes: Box, durable: bool = False) -> PutAnswer:
    ask = AskCommitView(art_id, base, digest, boxes, durable)
    return put_answer(*client.call(msgspec.msgpack.encode(ask), deadline_ms=BUDGET_MS))


def test_a_view_of_what_is_away_reads_only_its_own_bytes(house: House) -> None:
    tensors = {"a": os.urandom(4 * MIB), "b": os.urandom(4 * MIB)}
    done = put_memory(house.client(), "x", tensors, durable=True)
    path = a_file(house.folder, "f.bin", 8 * MIB)
    of_file = put_file(house.client(), "f", path)
    assert isinstance(done, PutDone) and isinstance(of_file, PutDone)
    client = away(house)
    dense, found = view(client, "x", done.digest, part("all", "b", 0, 4 * MIB), whole=True)
    assert dense and found == {"all": tensors["b"]}
    dense, found = view(client, "f", of_file.digest, part("middle", "tensor", MIB, 10))
    assert dense and found == {"middle": path.read_bytes()[8 + MIB :][:10]}
    assert view(client, "f", of_file.digest, part("none", "tensor", 5, 0)) == (True, {"none": b""})
    assert describe(client, "x").state == "away" and stats(client).loads == 0 and stats(client).views == 3
    assert stats(client).pool["used_bytes"] == 0, "a view's bytes go with its last map"
    dense, found = view(client, "x", done.digest, part("head", "a", 0, 100))
    assert not dense and found == tensors, "a slice of our disk's copy has no digest of its own: the whole is compared"
    assert stats(client).loads == 1 and describe(client, "x").state == "resident"


@pytest.mark.parametrize("whole", [True, False])
def test_no_view_of_a_damaged_copy_is_ever_answered(house: House, whole: bool) -> None:
    tensors = {"a": os.urandom(2 * MIB), "b": os.urandom(2 * MIB)}
    done = put_memory(house.client(), "x", tensors, durable=True)
    assert isinstance(done, PutDone)
    client = away(house)
    (path,) = (path for path in house.disk() if path.suffix == ".safetensors")
    with path.open("r+b") as file:
        file.seek(3 * MIB)
        byte = file.read(1)
        file.seek(3 * MIB)
        file.write(bytes([byte[0] ^ 1]))
    box = part("v", "b", 0, 2 * MIB) if whole else part("v", "b", 0, 10)
    if whole:
        with pytest.raises(BadCheckpoint, match="other bytes"):
            commit_view(client, "v", "x", done.digest, box)
        with pytest.raises(NotFound):
            read(client, "v")
    with pytest.raises(BadCheckpoint, match="other bytes"):
        view(client, "x", done.digest, box, whole=whole)


def test_a_box_that_cannot_be_is_refused_and_the_artifact_stays(house: House) -> None:
    path = a_file(house.folder, "f.bin", 108)
    done = put_file(house.client(), "f", path)
    assert isinstance(done, PutDone)
    client = away(house)
    for box, digest, kind in [
        (part("v", "tensor", 50, 51), done.digest, SliceMismatch),
        (part("v", "other", 0, 1), done.digest, NotFound),
        (part("v", "tensor", 0, 1), "ab" * 16, Conflict),
    ]:
        with pytest.raises(kind):
            view(client, "f", digest, box)
    assert read(client, "f") == {"tensor": path.read_bytes()[8:]}


def test_the_manifest_of_what_is_away_is_read_without_loading_it(house: House) -> None:
    done = put_memory(house.client(), "x", {"a": bytes(100)}, durable=True)
    assert isinstance(done, PutDone)
    client = away(house)
    answer = client.attach("x", deadline_ms=BUDGET_MS, manifest_only=True)
    assert isinstance(answer, tuple) and answer[0] == LocalStatus.MANIFEST
    about = msgspec.msgpack.decode(answer[1], type=AboutManifest)
    assert about.digest == done.digest and [row.name for row in decode_manifest(about.manifest).tensors] == ["a"]
    assert describe(client, "x").state == "away"


def test_a_committed_view_borrows_whole_tensors_and_outlives_its_base(house: House) -> None:
    client = house.client()
    tensors = {"a": os.urandom(4 * MIB), "b": os.urandom(4 * MIB)}
    done = put_memory(client, "x", tensors)
    assert isinstance(done, PutDone)
    before = stats(client).pool["used_bytes"]
    boxes = (Box("whole", "a", (0,), (4 * MIB,)), part("slice", "b", 5, MIB))
    committed = commit_view(client, "v", "x", done.digest, *boxes)
    assert isinstance(committed, PutDone) and committed.outcome == "stored"
    assert stats(client).pool["used_bytes"] < before + 3 * MIB, "the whole tensor is not copied"
    delete(client, "x")
    wanted = {"whole": tensors["a"], "slice": tensors["b"][5 : 5 + MIB]}
    assert read(client, "v") == wanted
    only_whole = commit_view(client, "w", "v", committed.digest, Box("again", "whole", (0,), (4 * MIB,)))
    assert isinstance(only_whole, PutDone) and only_whole.bytes_moved == 0
    assert read(client, "w") == {"again": tensors["a"]}


def test_a_view_of_what_is_away_can_be_made_an_artifact_and_durable(house: House) -> None:
    tensors = {"a": os.urandom(2 * MIB), "b": os.urandom(2 * MIB)}
    done = put_memory(house.client(), "x", tensors, durable=True)
    path = a_file(house.folder, "f.bin", 4 * MIB)
    of_file = put_file(house.client(), "f", path)
    assert isinstance(done, PutDone) and isinstance(of_file, PutDone)
    client = away(house)
    whole = Box("whole", "a", (0,), (2 * MIB,))
    assert isinstance(commit_view(client, "v", "x", done.digest, whole, durable=True), PutDone)
    part_of_file = part("slice", "tensor", 5, MIB)
    assert isinstance(commit_view(client, "w", "f", of_file.digest, part_of_file, durable=True), PutDone)
    with pytest.raises(Unavailable, match="attach the whole first") as sliced:
        commit_view(client, "u", "x", done.digest, part("slice", "a", 5, MIB))
    assert sliced.value.context["attach_first"] is True
    delete(client, "x")
    content_of_file = path.read_bytes()[8:]
    path.unlink()
    client = away(house)
    assert read(client, "v") == {"whole": tensors["a"]}
    assert read(client, "w") == {"slice": content_of_file[5 : 5 + MIB]}


def test_a_view_committed_under_a_taken_id_is_refused_and_leaves_nothing(house: House) -> None:
    client = house.client()
    done = put_memory(client, "x", {"a": os.urandom(3 * MIB)})
    assert isinstance(done, PutDone)
    put_memory(client, "v", {"a": b"other"})
    before = stats(client).pool
    for _ in range(3):
        answer = commit_view(client, "v", "x", done.digest, part("slice", "a", 0, MIB))
        assert not isinstance(answer, PutDone)
    after = stats(client).pool
    assert (after["used_bytes"], after["reserved_bytes"]) == (before["used_bytes"], before["reserved_bytes"])
    delete(client, "x")
    assert stats(client).pool["used_bytes"] < before["used_bytes"] - 2 * MIB, "nothing holds what was looked at"
