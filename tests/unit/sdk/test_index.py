"""Indexes and directories: complete in both directions, inside their folder, and never guessed at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorcast.checkpoint.source import identities, open_checkpoint
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast_bus.errors import BadCheckpoint
from tests.unit.sdk.checkpoint_files import TWO, Entries, image, sharded, write

# A deadline that no test reaches.
UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")
ONE: Entries = {"one.w": ("F32", [1], bytes(4)), "one.b": ("U8", [1], b"1")}
SECOND: Entries = {"two.w": ("F32", [1], bytes(4))}
THIRD: Entries = {"three.w": ("F32", [1], bytes(4)), "three.b": ("U8", [1], b"3")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    sharded(folder, {f"m-0000{n}-of-00003.safetensors": e for n, e in ((1, ONE), (2, SECOND), (3, THIRD))})
    return folder


def names(path: Path) -> set[str]:
    with open_checkpoint(str(path), UNHURRIED) as found:
        return {e.name for h in found.headers for e in h.entries}


def refusal(path: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        open_checkpoint(str(path), UNHURRIED)
    return str(caught.value)


def index_of(model: Path) -> Path:
    return model / "model.safetensors.index.json"


def rewrite(model: Path, change: dict[str, str | None]) -> None:
    index = json.loads(index_of(model).read_text())
    for name, shard in change.items():
        if shard is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = shard
    index_of(model).write_text(json.dumps(index))


def test_a_directory_and_its_index_are_one_checkpoint(model: Path) -> None:
    assert names(model) == names(index_of(model)) == {"one.w", "one.b", "two.w", "three.w", "three.b"}


def test_a_directory_with_one_file_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "any.safetensors", image(TWO))
    assert names(tmp_path) == {"a", "b"}


def test_a_missing_shard_is_named_with_the_tensors_that_go_with_it(model: Path) -> None:
    (model / "m-00002-of-00003.safetensors").unlink()
    said = refusal(model)
    assert "m-00002-of-00003.safetensors" in said and "two.w" in said and "incomplete download?" in said


def test_a_tensor_that_its_shard_lacks_is_named(model: Path) -> None:
    write(model / "m-00003-of-00003.safetensors", image({"three.w": THIRD["three.w"]}))
    said = refusal(model)
    assert "three.b" in said and "incomplete download" in said


def test_a_tensor_that_the_index_lacks_is_named(model: Path) -> None:
    rewrite(model, {"three.b": None})
    assert "three.b" in refusal(model)


def test_a_tensor_in_the_wrong_shard_is_named(model: Path) -> None:
    rewrite(model, {"three.b": "m-00001-of-00003.safetensors"})
    assert "three.b (m-00001-of-00003.safetensors)" in refusal(model)


def test_a_tensor_in_two_shards_is_refused_with_both(model: Path) -> None:
    write(model / "m-00003-of-00003.safetensors", image({**THIRD, **SECOND}))
    said = refusal(model)
    assert "two.w" in said and "m-00002-of-00003.safetensors" in said and "m-00003-of-00003.safetensors" in said


@pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "", ".", "a\0b"])
def test_a_shard_outside_the_folder_is_refused(model: Path, shard: str) -> None:
    write(model.parent / "x.safetensors", image(SECOND))
    rewrite(model, {"two.w": shard})
    assert "outside" in refusal(model)


def test_shards_may_be_links_to_files_elsewhere(model: Path) -> None:
    blob = model.parent / "blobs" / "abc"
    blob.parent.mkdir()
    (model / "m-00002-of-00003.safetensors").rename(blob)
    (model / "m-00002-of-00003.safetensors").symlink_to("../blobs/abc")
    assert "two.w" in names(model)


def test_an_index_behind_a_link_speaks_of_the_links_folder(model: Path) -> None:
    blob = model.parent / "blobs" / "index"
    blob.parent.mkdir()
    index_of(model).rename(blob)
    index_of(model).symlink_to("../blobs/index")
    assert "one.w" in names(model)


def test_a_dangling_shard_is_named_with_its_target(model: Path) -> None:
    shard = model / "m-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to("../blobs/gone")
    assert "../blobs/gone" in refusal(model)


def test_a_damaged_shard_has_the_same_verdict_as_alone(model: Path) -> None:
    shard = write(model / "m-00002-of-00003.safetensors", b"version https://git-lfs.github.com/spec/v1\n")
    alone = refusal(shard)
    assert "Git LFS pointer" in alone
    assert refusal(model) == refusal(index_of(model)) == alone


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": 1}}', "'a'"),
        ('{"weight_map": {"a": "x.bin"}}', "no safetensors file"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "twice"),
        ("[" * 100_000, "too deep"),
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(write(tmp_path / "model.safetensors.index.json", text.encode()))


def test_an_unclear_directory_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    assert "holds no safetensors file" in refusal(tmp_path)
    write(tmp_path / "pytorch_model.bin", b"PK\x03\x04")
    assert "only pickles" in refusal(tmp_path)
    write(tmp_path / "m-00001-of-00002.safetensors", image(ONE))
    write(tmp_path / "m-00002-of-00002.safetensors", image(SECOND))
    assert "no model.safetensors.index.json" in refusal(tmp_path)


def test_a_directory_with_a_whole_file_and_an_index_is_refused_with_both(model: Path) -> None:
    write(model / "model.safetensors", image(TWO))
    assert "model.safetensors and model.safetensors.index.json" in refusal(model)


def test_a_checkpoints_identity_changes_with_any_of_its_files(model: Path) -> None:
    before = identities(str(model), UNHURRIED)
    assert identities(str(index_of(model)), UNHURRIED) == before and len(before) == 4
    write(model / "m-00002-of-00003.safetensors", image({"two.w": ("F32", [1], b"abcd")}))
    assert identities(str(model), UNHURRIED) != before
