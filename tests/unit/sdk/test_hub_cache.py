"""Checkpoints as the hub's cache and its makers lay them out: found, never guessed at, never written to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tensorcast.checkpoint.source import identities, open_checkpoint
from tensorcast.deadline import DEADLINE_MS_MAX, Deadline
from tensorcast_bus.errors import BadCheckpoint
from tests.unit.sdk.checkpoint_files import NOT_CHECKPOINTS, Entries, image, sharded, write

# A deadline that no test reaches.
UNHURRIED = Deadline(DEADLINE_MS_MAX, "test")
FIRST: Entries = {"embed": ("F32", [2], b"embedded"), "norm": ("U8", [1], b"n")}
SECOND: Entries = {"head": ("F32", [1], b"head")}
SHARDS: Mapping[str, Entries] = {
    "model-00001-of-00002.safetensors": FIRST,
    "model-00002-of-00002.safetensors": SECOND,
}
MAIN, OTHER = "a" * 40, "b" * 40


def snapshot(repository: Path, revision: str) -> Path:
    """A sharded snapshot whose files are relative links into the blobs, as the hub's own library leaves it."""
    made = repository / "made"
    sharded(made, SHARDS)
    folder = repository / "snapshots" / revision
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    for number, file in enumerate(sorted(made.iterdir())):
        blob = repository / "blobs" / f"{revision[:4]}{number}"
        file.rename(blob)
        (folder / file.name).symlink_to(os.path.join("..", "..", "blobs", blob.name))
    made.rmdir()
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "hub" / "models--acme--tiny"


def ref(repository: Path, revision: str, name: str = "main") -> None:
    write(repository / "refs" / name, revision.encode())


def names(path: Path) -> set[str]:
    with open_checkpoint(str(path), UNHURRIED) as found:
        return {e.name for h in found.headers for e in h.entries}


def files(path: Path) -> list[str]:
    with open_checkpoint(str(path), UNHURRIED) as found:
        return [opened.source.path for opened in found.opened]


def refusal(path: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        open_checkpoint(str(path), UNHURRIED)
    return str(caught.value)


def test_a_snapshot_its_repository_and_its_index_are_one_checkpoint(repository: Path) -> None:
    folder = snapshot(repository, MAIN)
    ref(repository, MAIN)
    index = folder / "model.safetensors.index.json"
    assert names(folder) == names(repository) == names(index) == {"embed", "norm", "head"}
    assert identities(str(folder), UNHURRIED) == identities(str(repository), UNHURRIED)
    assert {os.path.dirname(f) for f in files(repository)} == {str(repository / "blobs")}


def test_main_decides_between_snapshots(repository: Path) -> None:
    snapshot(repository, MAIN)
    snapshot(repository, OTHER)
    ref(repository, f"{OTHER}\n")
    assert all(os.path.basename(f).startswith("bbbb") for f in files(repository))


def test_without_main_a_lone_snapshot_is_meant_and_several_are_listed(repository: Path) -> None:
    snapshot(repository, MAIN)
    assert names(repository) == {"embed", "norm", "head"}
    ref(repository, MAIN, "v1.0")
    snapshot(repository, OTHER)
    said = refusal(repository)
    assert MAIN in said and OTHER in said and "2 snapshots and no refs/main" in said


def test_a_main_whose_snapshot_is_not_there_is_an_incomplete_download(repository: Path) -> None:
    snapshot(repository, OTHER)
    ref(repository, MAIN)
    said = refusal(repository)
    assert MAIN in said and OTHER in said and "incomplete download?" in said


def test_a_repository_without_snapshots_is_an_incomplete_download(repository: Path) -> None:
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    assert "without any snapshot; incomplete download?" in refusal(repository)


@pytest.mark.parametrize("text", ["../../../etc", "..", "", "x" * 1000, "a\0b"])
def test_a_main_that_is_no_revision_leads_nowhere(repository: Path, text: str) -> None:
    snapshot(repository, MAIN)
    ref(repository, text)
    assert "is no revision" in refusal(repository)


def test_a_main_that_is_a_pipe_holds_nobody_up(repository: Path) -> None:
    snapshot(repository, MAIN)
    (repository / "refs").mkdir()
    os.mkfifo(repository / "refs" / "main")
    assert "is no revision" in refusal(repository)


def test_a_dangling_link_in_a_snapshot_is_named_with_its_target(repository: Path) -> None:
    folder = snapshot(repository, MAIN)
    gone = "model-00002-of-00002.safetensors"
    target = os.readlink(folder / gone)
    (folder / target).unlink()
    for path in (folder, repository):
        said = refusal(path)
        assert f"{gone} -> {target}" in said and "head" in said and "incomplete download?" in said
    assert target in refusal(folder / gone)


def test_a_dangling_index_is_named_with_its_target(repository: Path) -> None:
    folder = snapshot(repository, MAIN)
    index = folder / "model.safetensors.index.json"
    target = os.readlink(index)
    (folder / target).unlink()
    assert target in refusal(folder) and "dangling" in refusal(folder)


def test_downloads_that_never_ended_are_named_where_nothing_else_is(repository: Path) -> None:
    (repository / "snapshots" / MAIN).mkdir(parents=True)
    write(repository / "snapshots" / MAIN / "config.json", b"{}")
    write(repository / "blobs" / "abc.incomplete", b"")
    ref(repository, MAIN)
    said = refusal(repository)
    assert "abc.incomplete" in said and "incomplete download?" in said


def test_a_whole_cache_is_told_its_models(repository: Path) -> None:
    snapshot(repository, MAIN)
    said = refusal(repository.parent)
    assert "cache of 1 models" in said and repository.name in said


def test_a_folder_that_only_has_a_folder_named_snapshots_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    write(tmp_path / "x.safetensors", image(SECOND))
    assert names(tmp_path) == {"head"}


def test_an_index_wins_over_a_consolidated_file(tmp_path: Path) -> None:
    sharded(tmp_path, SHARDS)
    # What would be refused if anybody read it.
    write(tmp_path / "consolidated.safetensors", b"not read")
    assert names(tmp_path) == {"embed", "norm", "head"}
    assert not [f for f in files(tmp_path) if "consolidated" in f]
    assert not [f for f in identities(str(tmp_path), UNHURRIED) if "consolidated" in f.path]


def test_a_consolidated_index_beside_the_usual_one_is_not_read(tmp_path: Path) -> None:
    sharded(tmp_path, SHARDS)
    write(tmp_path / "consolidated-00001-of-00001.safetensors", b"not read")
    write(tmp_path / "consolidated.safetensors.index.json", b"not read")
    assert names(tmp_path) == {"embed", "norm", "head"}


def test_a_consolidated_file_alone_is_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "consolidated.safetensors", image({**FIRST, **SECOND}))
    assert names(tmp_path) == {"embed", "norm", "head"}
    write(tmp_path / "model.safetensors", image(SECOND))
    assert names(tmp_path) == {"head"}, "the usual name wins over it too"


def test_several_indexes_without_the_usual_name_are_listed(tmp_path: Path) -> None:
    sharded(tmp_path, SHARDS).rename(tmp_path / "one.safetensors.index.json")
    write(tmp_path / "two.safetensors.index.json", (tmp_path / "one.safetensors.index.json").read_bytes())
    said = refusal(tmp_path)
    assert "one.safetensors.index.json" in said and "two.safetensors.index.json" in said
    assert names(tmp_path / "two.safetensors.index.json") == {"embed", "norm", "head"}
    write(tmp_path / "model.safetensors.index.json", (tmp_path / "one.safetensors.index.json").read_bytes())
    assert names(tmp_path) == {"embed", "norm", "head"}


@pytest.mark.parametrize("kind", ["lfs", "html", "pickle", "zip"])
def test_what_stands_in_place_of_a_shard_or_index_is_named(tmp_path: Path, kind: str) -> None:
    blob, looks = NOT_CHECKPOINTS[kind]
    index = sharded(tmp_path, SHARDS)
    good = index.read_bytes()
    write(index, blob)
    assert looks in refusal(tmp_path) and "no index" in refusal(tmp_path)
    write(index, good)
    shard = write(tmp_path / "model-00002-of-00002.safetensors", blob)
    assert looks in refusal(tmp_path) and str(shard) in refusal(tmp_path)


def test_a_missing_file_is_missing_for_a_quantized_model_too(tmp_path: Path) -> None:
    packed: Entries = {
        "layer.qweight": ("I32", [1, 2], bytes(8)),
        "layer.qzeros": ("I32", [1, 1], bytes(4)),
        "layer.scales": ("F16", [1, 2], bytes(4)),
    }
    sharded(tmp_path, {**SHARDS, "model-00003-of-00003.safetensors": packed})
    config = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    write(tmp_path / "config.json", json.dumps(config).encode())
    assert "layer.qweight" in names(tmp_path)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    said = refusal(tmp_path)
    assert all(n in said for n in packed) and "model-00003-of-00003.safetensors" in said
    assert "incomplete download?" in said
    write(tmp_path / "model-00003-of-00003.safetensors", image({n: e for n, e in packed.items() if "scales" not in n}))
    said = refusal(tmp_path)
    assert "layer.scales (model-00003-of-00003.safetensors)" in said and "incomplete download?" in said


def test_tied_weights_are_taken_as_the_files_have_them(tmp_path: Path) -> None:
    """Makers leave one of two tied names out, or store both: neither is made up nor dropped here."""
    write(tmp_path / "config.json", b'{"tie_word_embeddings": true}')
    sharded(tmp_path, {"model-00001-of-00001.safetensors": FIRST})
    assert names(tmp_path) == {"embed", "norm"}
    both: Entries = {**FIRST, "lm_head": FIRST["embed"]}
    sharded(tmp_path, {"model-00001-of-00001.safetensors": both})
    assert names(tmp_path) == {"embed", "norm", "lm_head"}
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    write(tmp_path / "model-00001-of-00001.safetensors", image(FIRST))
    assert "lm_head" in index["weight_map"] and "lm_head" in refusal(tmp_path), "promised by the index, so not left out"
